"""The buffer pool at one time, by whichever method is available."""

from __future__ import annotations

from pgsweep.pg.catalog.buffercache import Snapshot, SnapshotReader, snapshot_of
from pgsweep.residency.access import Access, server_gone


class PoolReader:
    """Reads the pool again and again; what need be done only once is done here.

    Args:
        access: the server.
        filenodes: of the files whose buffers are of interest, which makes less to send by SQL; None for all.
            Buffers of other files may be among those returned.
    """

    def __init__(self, access: Access, filenodes: tuple[int, ...] | None = None) -> None:
        self._access = access
        self._sql: SnapshotReader | None = None
        if access.pool_source == "sql":
            assert access.buffercache is not None
            self._sql = SnapshotReader(
                access.connection,
                access.buffercache,
                access.server.shared_buffers_blocks,
                filenodes=filenodes,
            )

    def read(self) -> Snapshot:
        """Return the used buffers.

        Raises:
            DriverError: the statement was refused.
        """
        if self._sql is not None:
            return self._sql.take()
        memory = self._access.memory
        assert memory is not None
        try:
            table = memory.read()
        except OSError as error:
            raise server_gone() from error
        return snapshot_of(table)
