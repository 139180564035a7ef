"""Every experiment, one after the other: one result, and what could not be run with its reason."""

from __future__ import annotations

import time
from pathlib import Path

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.host.machine import describe_machine
from pgsweep.lab.catalog import Experiment, experiments, missing_needs
from pgsweep.lab.chosen import prepare
from pgsweep.lab.protocol import Place
from pgsweep.pg.private.bindir import find_server
from pgsweep.progress import NullListener, Progress
from pgsweep.records.lab import LabAllResult, LabResult, LabSkipped
from pgsweep.units import format_minutes, format_plain


def run_every(
    folder: Path,
    *,
    scale: float | None = None,
    repetitions: int | None = None,
    seed: int | None = None,
    place: Place | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> LabAllResult:
    """Run what is missing of every experiment and return all results.

    An experiment that fails as a whole is skipped with its reason, and the others go on.

    Args:
        folder: of the files of samples, one an experiment; what they have is not run again.
        scale: of all of them; each one's own by default.
        repetitions: of each job; each experiment's own by default.
        seed: of the orders and of pgbench.
        place: of the private servers.
        command: the command line, for the files of samples.
        progress: receives the expected time first.

    Raises:
        UsageError: the folder holds the runs of something else.
        PgsweepError: there is no server, or the folder cannot be made.
    """
    progress, place = progress or NullListener(), place or Place()
    begin = time.monotonic()
    version = find_server(place.bindir).version
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PgsweepError(f"cannot make the folder `{folder}`: {error.strerror}") from error
    every = list(experiments().values())
    runnable = [each for each in every if not missing_needs(each)]
    took = sum(each.seconds_at(each.scale if scale is None else scale) for each in runnable)
    progress.note(
        f"{len(runnable)} of {len(every)} experiments can run here; about {format_minutes(took)} in all, "
        f"assumed; every run is kept in {folder}, so the same command goes on where this one is stopped"
    )
    results: list[LabResult] = []
    skipped: list[LabSkipped] = []
    for number, experiment in enumerate(every, 1):
        try:
            chosen = prepare(experiment.name, scale=scale)
            progress.note(
                f"experiment {number} of {len(every)}: {experiment.name}, "
                f"scale {format_plain(chosen.scale)}, about {format_minutes(chosen.seconds or 0.0)}"
            )
            samples = folder / f"{experiment.name}.samples.jsonl"
            results.append(
                chosen.run(
                    samples=samples,
                    repetitions=repetitions,
                    seed=seed,
                    place=place,
                    command=command,
                    progress=progress,
                )
            )
        except UsageError:
            raise
        except PgsweepError as error:
            why = error.message + (f": {error.cause}" if error.cause else "")
            skipped.append(_skipped(experiment, why, progress))
        except OSError as error:
            skipped.append(_skipped(experiment, error.strerror or str(error), progress))
    return LabAllResult(
        server_version=version,
        machine=describe_machine(),
        results=results,
        skipped=skipped,
        seconds=time.monotonic() - begin,
        samples=str(folder),
    )


def _skipped(experiment: Experiment, why: str, progress: Progress) -> LabSkipped:
    progress.note(f"skipped: {experiment.name}: {why.splitlines()[0]}")
    return LabSkipped(number=experiment.number, name=experiment.name, question=experiment.question, why=why)
