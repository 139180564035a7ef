"""Whether a server is the one that evidence was recorded on: by the system identifier of its cluster.

initdb makes the identifier, and copies of a cluster keep it: a physical standby has its primary's, and a
server restored from a backup has that of the server that was saved. Evidence recorded by a role that might
not read it, or by an earlier pgsweep, does not have it. Then nothing is refused, and that is said.
"""

from __future__ import annotations

from pathlib import Path

from pgsweep.commands import recording
from pgsweep.errors import OtherServer
from pgsweep.evidence.schema import EvidenceMeta, other_cluster
from pgsweep.pg.catalog.server import read_cluster
from pgsweep.pg.session.connect import Connection


def check_cluster(connection: Connection, meta: EvidenceMeta, evidence: Path) -> str | None:
    """Return a warning if it cannot be determined whether the server is the recorded one, else None.

    Args:
        connection: a session on the server.
        meta: of the evidence.
        evidence: its folder.

    Raises:
        UsageError: it is another one.
    """
    cluster = read_cluster(connection)
    here = "" if cluster is None else cluster[0]
    if other_cluster(meta.system_identifier, here):
        raise OtherServer(
            f"`{evidence}` was recorded on another server",
            cause=f"the system identifier of that cluster is {meta.system_identifier}, of this one {here}",
            hint="name the server that was recorded, or record this one: " + recording(),
        )
    if meta.system_identifier and here:
        return None
    who = "this role may not read" if meta.system_identifier else "the evidence does not have"
    return (
        f"whether the server is the one that was recorded was not checked: {who} the cluster's system "
        "identifier"
    )
