"""Root over a Unix socket: connecting as the operating-system user that the server runs as.

Debian's pg_hba.conf has `peer` for the socket: the server lets in the system user of the role's name and
nobody else, root neither. What decides is the effective user id at the moment of connect() (SO_PEERCRED,
unix(7)), so root takes on that of the socket's owner for as long as connecting takes. The session is then one
of that user's, usually `postgres`; everything else is done as root as before.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable
from typing import Final, TypeVar

import psycopg

T = TypeVar("T")

_BY_PEER: Final = re.compile(r'peer authentication failed|role "root" does not exist', re.IGNORECASE)
_changing = threading.Lock()


def connected_as_owner(connect: Callable[[], T], refusal: psycopg.Error) -> T | None:
    """Connect again as the owner of the socket, where root was refused for being root.

    Args:
        connect: connects.
        refusal: what the first attempt ended in.

    Returns:
        Nothing where this is not such a case, or that user is refused too.
    """
    if os.geteuid() != 0 or not _BY_PEER.search(str(refusal)):
        return None
    owner = _owner_of_socket(refusal)
    if not owner:
        return None
    with _changing:
        os.seteuid(owner)
        try:
            return connect()
        except psycopg.Error:
            return None
        finally:
            os.seteuid(0)


def _owner_of_socket(refusal: psycopg.Error) -> int | None:
    """Return the user id of the server's socket; None where the connection was no socket's."""
    if refusal.pgconn is None:
        return None
    host, port = refusal.pgconn.host, refusal.pgconn.port
    if not host.startswith(b"/"):
        return None
    try:
        status = os.stat(os.path.join(host, b".s.PGSQL." + port))  # noqa: PTH116, PTH118  (bytes)
    except OSError:
        return None
    return status.st_uid if stat.S_ISSOCK(status.st_mode) else None
