"""`pgsweep doctor`: what can be done with a server from here, and how to enable the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgsweep.cli.command import Run, subcommand
from pgsweep.errors import ConnectionFailed

if TYPE_CHECKING:
    from pgsweep.records.doctor import DoctorResult


@subcommand(server="database")
def command(run: Run, /) -> int:
    r"""Show what can be done with a server from here, and how to enable the rest.

    Each ability has a yes or no, the reason, and the command that enables it: pg_buffercache, pg_prewarm,
    pg_monitor, tables that the role may read, statistics settings, the server's memory and files, tracing,
    huge pages, memory limits. Nothing is changed, on the server or on the host. Hosted servers get a smaller
    answer.

    The exit code is 0 even if abilities are missing, and 3 if there is no connection; the abilities of this
    host are shown in both cases.

    \b
    Examples:
      pgsweep doctor -h db1 -U postgres -d shop
      sudo pgsweep doctor
      pgsweep doctor service=shop --json
    """
    from pgsweep.doctor import examine, examine_host

    result: DoctorResult
    code = 0
    try:
        result = run.target.use(examine)
    except ConnectionFailed as refused:
        result = examine_host(run.target.conninfo, refused)
        code = refused.exit_code
    run.show(result)
    return code
