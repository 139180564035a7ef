"""How should this PostgreSQL server's memory be used? Answers with evidence.

    import pgsweep

    pgsweep.record("dbname=shop", Path("shop.evidence"), seconds=60)
    result = pgsweep.predict(Path("shop.evidence"), sizes_bytes=[1 << 30, 2 << 30])
    print(result.verdict.level, result.points)

The commands that give a result are functions here: typed arguments in, a record (`pgsweep.records`) out.
docs/reference/python.md lists them, and what there is on the command line only.
Names are loaded when they are first used, because all of them together take half a second.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as type checkers know it; importing typing would take longer than all the rest
if TYPE_CHECKING:
    from pgsweep._native import __version__
    from pgsweep.advice.ask import advise
    from pgsweep.api import (
        examine_server,
        huge_pages,
        inspect_cache,
        inspect_memory,
        kernel_settings,
        load_compare,
        load_keep_as_is,
        load_plan,
        load_resume,
        load_rollback,
        load_run,
        memory_budget,
        sample_load,
        warm_check,
        warm_keep,
        warm_plan,
        warm_restore,
        warm_run,
        warm_save,
    )
    from pgsweep.cache.footprint import footprint
    from pgsweep.errors import (
        ClusterError,
        ConnectionFailed,
        EvidenceError,
        HeatError,
        MissingAbility,
        PgsweepError,
        UnexpectedAnswer,
        UsageError,
    )
    from pgsweep.evidence.gathered import import_gathered
    from pgsweep.evidence.oracle_export import export_oracle_general
    from pgsweep.evidence.oracle_general import read_oracle_general
    from pgsweep.evidence.reader import Evidence
    from pgsweep.evidence.record import plan_record, record
    from pgsweep.evidence.script import record_script
    from pgsweep.lab.catalog import list_experiments as lab_list
    from pgsweep.lab.compare import compare as lab_compare
    from pgsweep.lab.every import run_every as lab_run_all
    from pgsweep.lab.run import run_lab as lab_run
    from pgsweep.load.options import LoadOptions
    from pgsweep.sizing.demo import run_demo as demo
    from pgsweep.sizing.predict import predict
    from pgsweep.sizing.prove import prove
    from pgsweep.sizing.verify import verify
    from pgsweep.warm.heat.file import read_heat
    from pgsweep.warm.heat.restore_plan import RestoreOptions
    from pgsweep.warm.keep.keep import KeepOptions
    from pgsweep.warm.run.gather import Selection
    from pgsweep.warm.run.prepare import WarmOptions

__all__ = [
    "ClusterError",
    "ConnectionFailed",
    "Evidence",
    "EvidenceError",
    "HeatError",
    "KeepOptions",
    "LoadOptions",
    "MissingAbility",
    "PgsweepError",
    "RestoreOptions",
    "Selection",
    "UnexpectedAnswer",
    "UsageError",
    "WarmOptions",
    "__version__",
    "advise",
    "demo",
    "examine_server",
    "export_oracle_general",
    "footprint",
    "huge_pages",
    "import_gathered",
    "inspect_cache",
    "inspect_memory",
    "kernel_settings",
    "lab_compare",
    "lab_list",
    "lab_run",
    "lab_run_all",
    "load_compare",
    "load_keep_as_is",
    "load_plan",
    "load_resume",
    "load_rollback",
    "load_run",
    "memory_budget",
    "plan_record",
    "predict",
    "prove",
    "read_heat",
    "read_oracle_general",
    "record",
    "record_script",
    "sample_load",
    "verify",
    "warm_check",
    "warm_keep",
    "warm_plan",
    "warm_restore",
    "warm_run",
    "warm_save",
]

_ERRORS = "pgsweep.errors"
_PLACES = {
    "ClusterError": _ERRORS,
    "ConnectionFailed": _ERRORS,
    "Evidence": "pgsweep.evidence.reader",
    "EvidenceError": _ERRORS,
    "HeatError": _ERRORS,
    "KeepOptions": "pgsweep.warm.keep.keep",
    "LoadOptions": "pgsweep.load.options",
    "MissingAbility": _ERRORS,
    "PgsweepError": _ERRORS,
    "RestoreOptions": "pgsweep.warm.heat.restore_plan",
    "Selection": "pgsweep.warm.run.gather",
    "UnexpectedAnswer": _ERRORS,
    "UsageError": _ERRORS,
    "WarmOptions": "pgsweep.warm.run.prepare",
    "__version__": "pgsweep._native",
    "advise": "pgsweep.advice.ask",
    "demo": "pgsweep.sizing.demo:run_demo",
    "export_oracle_general": "pgsweep.evidence.oracle_export",
    "footprint": "pgsweep.cache.footprint",
    "import_gathered": "pgsweep.evidence.gathered",
    "plan_record": "pgsweep.evidence.record",
    "lab_compare": "pgsweep.lab.compare:compare",
    "lab_list": "pgsweep.lab.catalog:list_experiments",
    "lab_run": "pgsweep.lab.run:run_lab",
    "lab_run_all": "pgsweep.lab.every:run_every",
    "predict": "pgsweep.sizing.predict",
    "prove": "pgsweep.sizing.prove",
    "read_heat": "pgsweep.warm.heat.file",
    "read_oracle_general": "pgsweep.evidence.oracle_general",
    "record": "pgsweep.evidence.record",
    "record_script": "pgsweep.evidence.script",
    "verify": "pgsweep.sizing.verify",
}
"""The module that defines each name, and the name there if it differs. All others are in pgsweep.api."""


if not TYPE_CHECKING:  # with this function a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Load a name when it is first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, original = _PLACES.get(name, "pgsweep.api").partition(":")
        value = getattr(import_module(module), original or name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
