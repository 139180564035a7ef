"""The executor on real servers: all is read, in order, and what cannot be read is reported and left out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsweep.errors import ConnectionFailed
from pgsweep.pg.private.cluster import Cluster
from pgsweep.warm.block_ranges import BlockRange, Call, calls_of
from pgsweep.warm.outcome import WorkOptions, WorkState
from pgsweep.warm.readers import LatencyProbe, PrewarmReader
from pgsweep.warm.session import DROPPED, LOCKED, SHORTER, PrewarmSession, Read, many_of_each_fork
from pgsweep.warm.work import Work
from tests.fix_warm import as_reader, carry_out, database_to_warm, evict_all, piece_of, resident_blocks


class OnceBegun:
    """Does something in a thread of its own as soon as a first call is done; to receive the state."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=action)

    def __call__(self, state: WorkState) -> None:
        if state.done_bytes > 0 and self._thread.ident is None:
            self._thread.start()

    def join(self) -> None:
        """Wait until it is done."""
        self._thread.join()


def test_what_is_asked_for_is_read(towarm: str) -> None:
    evict_all(towarm)
    pieces = [piece_of(towarm, name) for name in ("orders_pkey", "orders", "notes")]
    outcome = carry_out(towarm, pieces)
    assert outcome.asked_blocks == outcome.read_blocks == sum(piece.blocks for piece in pieces)
    assert outcome.troubles == []
    assert not outcome.stopped
    for piece in pieces:
        assert resident_blocks(towarm, piece.relation) == piece.blocks


def test_a_client_without_privileges_warms_what_it_may_read(towarm: str) -> None:
    outcome = carry_out(
        as_reader(towarm), [piece_of(towarm, name) for name in ("secret", "orders", "scratch")]
    )
    assert outcome.read_blocks == piece_of(towarm, "orders").blocks
    assert {trouble.relation for trouble in outcome.troubles} == {"secret", "scratch"}
    assert all(trouble.why == "this role may not read it" for trouble in outcome.troubles)
    assert outcome.troubles[0].enable is not None
    assert "GRANT SELECT ON" in outcome.troubles[0].enable


def test_dropped_and_truncated_and_locked_relations_cost_only_themselves(fresh: str) -> None:
    pieces = [piece_of(fresh, name) for name in ("secret", "orders", "scratch", "notes")]
    with (
        psycopg.connect(fresh, autocommit=True) as connection,
        psycopg.connect(fresh) as other,
    ):
        connection.execute("DROP TABLE secret; TRUNCATE scratch")
        other.execute("LOCK TABLE notes IN ACCESS EXCLUSIVE MODE")
        outcome = carry_out(fresh, pieces)
    assert outcome.read_blocks == pieces[1].blocks
    assert {trouble.relation: trouble.why for trouble in outcome.troubles} == {
        "secret": DROPPED,
        "scratch": SHORTER,
        "notes": LOCKED,
    }


def test_a_table_that_has_shrunk_is_read_as_far_as_it_goes(towarm: str) -> None:
    piece = piece_of(towarm, "orders")
    longer = msgspec.structs.replace(piece, blocks=piece.blocks + 10)
    outcome = carry_out(towarm, [longer])
    assert outcome.read_blocks == piece.blocks
    [trouble] = outcome.troubles
    assert (trouble.why, trouble.blocks) == (SHORTER, 10)


def stretches_of(piece: BlockRange, blocks: int) -> list[BlockRange]:
    """Return every second block of a piece that is taken to have so many blocks, each by itself."""
    return [msgspec.structs.replace(piece, first_block=block, blocks=1) for block in range(0, blocks, 2)]


def test_many_stretches_of_a_fork_are_read_each_once(towarm: str) -> None:
    evict_all(towarm)
    orders, notes = piece_of(towarm, "orders"), piece_of(towarm, "notes")
    stretches = stretches_of(orders, orders.blocks)
    assert len(many_of_each_fork([*stretches, notes])) == 2, "a statement for each fork"
    assert many_of_each_fork([stretches[0], notes, stretches[1]]) == [], "one for all"
    outcome = carry_out(towarm, [*stretches, notes])
    assert outcome.read_blocks == len(stretches) + notes.blocks
    assert resident_blocks(towarm, "orders") == len(stretches)
    assert resident_blocks(towarm, "notes") == notes.blocks


def test_of_many_stretches_those_that_fail_are_reported(fresh: str) -> None:
    orders, secret, scratch = (piece_of(fresh, name) for name in ("orders", "secret", "scratch"))
    longer = stretches_of(orders, orders.blocks + 20)
    pieces = [*stretches_of(secret, 40), *longer, *stretches_of(scratch, scratch.blocks)]
    with (
        psycopg.connect(fresh, autocommit=True) as connection,
        psycopg.connect(fresh) as other,
    ):
        connection.execute("DROP TABLE secret")
        other.execute("LOCK TABLE scratch IN ACCESS EXCLUSIVE MODE")
        outcome = carry_out(fresh, pieces)
    assert outcome.read_blocks == -(-orders.blocks // 2)
    assert {(trouble.relation, trouble.why, trouble.blocks) for trouble in outcome.troubles} == {
        ("secret", DROPPED, 20),
        ("orders", SHORTER, 10),
        ("scratch", LOCKED, -(-scratch.blocks // 2)),
    }


def test_a_database_without_pg_prewarm_is_reported(towarm: str, server: Cluster) -> None:
    elsewhere = msgspec.structs.replace(piece_of(towarm, "orders"), database="template1")
    outcome = carry_out(towarm, [elsewhere, piece_of(towarm, "notes")])
    assert outcome.read_blocks == piece_of(towarm, "notes").blocks
    [trouble] = outcome.troubles
    assert "pg_prewarm does not exist in database `template1`" in trouble.why
    assert "CREATE EXTENSION" in (trouble.enable or "")


def test_the_rate_is_kept(wheel18: Cluster, warm_databases: Callable[[Cluster], str]) -> None:
    conninfo = warm_databases(wheel18)
    piece = piece_of(conninfo, "orders")
    rate = piece.blocks * 8192 / 1.0
    outcome = carry_out(conninfo, [piece], rate_bytes_per_second=rate, connections=4)
    assert outcome.read_blocks == piece.blocks
    assert outcome.seconds > 0.7


def test_a_stop_is_heeded_and_the_rest_counted(
    wheel18: Cluster, warm_databases: Callable[[Cluster], str]
) -> None:
    stop = threading.Event()
    conninfo = warm_databases(wheel18)
    piece = piece_of(conninfo, "orders")
    rate = piece.blocks * 8192 / 30
    outcome = carry_out(
        conninfo, [piece], rate_bytes_per_second=rate, stop=stop, progress=OnceBegun(stop.set)
    )
    assert outcome.stopped
    assert 0 < outcome.read_blocks < piece.blocks
    assert outcome.seconds < 5


def test_an_ended_session_is_opened_again(wheel18: Cluster, warm_databases: Callable[[Cluster], str]) -> None:
    conninfo = warm_databases(wheel18)
    piece = piece_of(conninfo, "orders")

    def end_it() -> None:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'pgsweep warm'"
            )

    ending = OnceBegun(end_it)
    rate = piece.blocks * 8192 / 2
    outcome = carry_out(conninfo, [piece], rate_bytes_per_second=rate, connections=1, progress=ending)
    ending.join()
    assert outcome.read_blocks == piece.blocks
    assert outcome.reconnects == 1
    assert outcome.again_calls == 0


@pytest.fixture(scope="module")
def unsteady() -> Iterator[tuple[Cluster, str]]:
    """A server that tests may stop, with a database to warm."""
    with (
        Cluster.create(None, {"shared_buffers": "32MB", "autovacuum": "off"}) as cluster,
        database_to_warm(cluster) as conninfo,
    ):
        yield cluster, conninfo
        cluster.restart()  # it may have been left stopped


@pytest.mark.parametrize("immediately", [False, True])
def test_a_restart_half_way_begins_anew_with_an_empty_pool(
    unsteady: tuple[Cluster, str], immediately: bool
) -> None:
    cluster, conninfo = unsteady
    piece = piece_of(conninfo, "orders")

    def restart() -> None:
        cluster.stop(immediately=immediately)
        cluster.start()

    loss = OnceBegun(restart)
    outcome = carry_out(conninfo, [piece], rate_bytes_per_second=piece.blocks * 8192 / 3, progress=loss)
    loss.join()
    assert outcome.read_blocks == piece.blocks
    assert outcome.reconnects > 0
    assert outcome.again_calls > 0
    assert resident_blocks(conninfo, "orders") == piece.blocks


def test_a_server_that_is_away_when_the_first_session_begins_is_waited_for(
    unsteady: tuple[Cluster, str],
) -> None:
    cluster, conninfo = unsteady
    piece = piece_of(conninfo, "orders")
    cluster.stop()
    start = threading.Thread(target=cluster.start)

    def start_it(state: WorkState) -> None:
        if state.waiting and start.ident is None:
            start.start()

    outcome = carry_out(conninfo, [piece], progress=start_it)
    start.join()
    assert outcome.read_blocks == piece.blocks
    assert outcome.again_calls == 0


def test_a_server_that_stays_away_is_an_error(unsteady: tuple[Cluster, str]) -> None:
    cluster, conninfo = unsteady
    piece = piece_of(conninfo, "orders")
    loss = OnceBegun(cluster.stop)
    rate = piece.blocks * 8192 / 20
    with pytest.raises(ConnectionFailed):
        carry_out(conninfo, [piece], rate_bytes_per_second=rate, patience_seconds=1.0, progress=loss)
    loss.join()


def test_a_late_answer_pauses_the_work(wheel18: Cluster, warm_databases: Callable[[Cluster], str]) -> None:
    conninfo = warm_databases(wheel18)
    piece = piece_of(conninfo, "orders")
    probe = LatencyProbe(conninfo)
    late, late_probes = threading.Event(), 0
    late.set()

    def probed(cold: BlockRange | None) -> None:
        nonlocal late_probes
        probe(cold)
        if late.is_set():
            time.sleep(0.05)
            late_probes += 1

    options = WorkOptions(
        max_latency_seconds=0.04, connections=2, rate_bytes_per_second=piece.blocks * 8192 / 2
    )
    work = Work(
        calls_of([piece], options.call_blocks),
        lambda: PrewarmReader(conninfo, "buffer"),
        options,
        probe=probed,
    )
    done_bytes: list[int] = []

    def progress(state: WorkState) -> None:
        if state.paused and late.is_set():
            done_bytes.append(state.done_bytes)
            if late_probes >= 5:
                late.clear()

    outcome = work.run(threading.Event(), progress)
    probe.close()
    assert outcome.read_blocks == piece.blocks
    assert outcome.pauses >= 1
    assert late_probes >= 5
    # Each session ends the call that it has begun. In that time most of it would have been read.
    assert done_bytes[-1] - done_bytes[0] <= options.connections * options.call_blocks * options.block_bytes


def test_two_warmers_see_each_other(server: Cluster, towarm: str) -> None:
    first = PrewarmSession(towarm, None, "buffer")
    second = PrewarmSession(server.conninfo("postgres"), None, "buffer")
    try:
        assert first.others_warming() == 0
        assert second.others_warming() == 1
        assert first.others_warming() == 1
    finally:
        first.close()
        second.close()


class Counting:
    """A reader that keeps the calls it was given."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def open(self, database: str) -> None:
        pass

    def read(self, call: Call) -> Read:
        self.calls.append(call)
        return Read(call.blocks, [])

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_one_connection_keeps_the_order() -> None:
    pieces = [
        BlockRange(
            database=f"d{number % 2}",
            oid=number,
            schema="s",
            relation=f"r{number}",
            kind="table",
            fork="main",
            first_block=number,
            blocks=5000,
        )
        for number in range(20)
    ]
    reader = Counting()
    options = WorkOptions(connections=1)
    Work(calls_of(pieces, options.call_blocks), lambda: reader, options).run(threading.Event())
    assert [call.number for call in reader.calls] == list(range(len(reader.calls)))
    read = [
        (p.oid, block)
        for call in reader.calls
        for p in call.pieces
        for block in range(p.first_block, p.end_block)
    ]
    assert read == [(p.oid, block) for p in pieces for block in range(p.first_block, p.end_block)]


def calls_of_a_relation(number: int, options: WorkOptions) -> list[Call]:
    """Return that many calls for consecutive blocks of one relation."""
    whole = BlockRange(
        database="d",
        oid=1,
        schema="s",
        relation="r",
        kind="table",
        fork="main",
        first_block=0,
        blocks=number * options.call_blocks,
    )
    return list(calls_of([whole], options.call_blocks))


class Away(Counting):
    """One that needs another connection to read, which the server refuses three times."""

    def read(self, call: Call) -> Read:
        read = super().read(call)
        if len(self.calls) <= 3:
            raise ConnectionFailed("the database system is starting up")
        return read


def test_a_connection_that_fails_while_a_call_is_read_is_tried_again() -> None:
    reader, options = Away(), WorkOptions(connections=1)
    outcome = Work(calls_of_a_relation(3, options), lambda: reader, options).run(threading.Event())
    assert [call.number for call in reader.calls] == [0, 0, 0, 0, 1, 2]
    assert outcome.read_blocks == outcome.asked_blocks


class Full(Counting):
    """One that the server gives no session."""

    opened = 0

    def open(self, database: str) -> None:
        self.opened += 1
        raise ConnectionFailed("sorry, too many clients already")


def test_a_server_without_a_free_connection_is_not_waited_for() -> None:
    reader, options = Full(), WorkOptions(connections=1)
    with pytest.raises(ConnectionFailed, match="too many clients"):
        Work(calls_of_a_relation(3, options), lambda: reader, options).run(threading.Event())
    assert reader.opened == 1


class Overtaken(Counting):
    """One that learns of a restart, by another session, before its second call is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.started: Callable[[int], None] = lambda _: None

    def read(self, call: Call) -> Read:
        read = super().read(call)
        self.started(2 if len(self.calls) >= 2 else 1)
        return read


def test_a_call_that_ends_when_the_pool_is_lost_is_read_again() -> None:
    reader, options = Overtaken(), WorkOptions(connections=1)
    work = Work(calls_of_a_relation(3, options), lambda: reader, options)
    reader.started = work.server_started
    outcome = work.run(threading.Event())
    assert sorted(call.number for call in reader.calls) == [0, 0, 1, 1, 2]
    assert outcome.read_blocks == outcome.asked_blocks
    assert outcome.again_calls == 2


class Slow(Counting):
    """One that takes its time, and notes in which order all readers were asked."""

    def __init__(self, asked: list[int]) -> None:
        super().__init__()
        self.asked = asked

    def read(self, call: Call) -> Read:
        self.asked.append(call.number)
        time.sleep(0.005)
        return super().read(call)


def test_each_session_reads_on_where_it_was_and_the_order_holds_nearly() -> None:
    options = WorkOptions(connections=3, block_bytes=1 << 20)
    asked: list[int] = []
    readers: list[Slow] = []

    def reader() -> Slow:
        readers.append(Slow(asked))
        return readers[-1]

    Work(calls_of_a_relation(120, options), reader, options).run(threading.Event())
    assert sorted(asked) == list(range(120)), "each once"
    # A thread that has to wait for a processor is late with the few calls that it had taken.
    assert sum(abs(place - number) > 16 for place, number in enumerate(asked)) <= 12
    numbers = [[call.number for call in slow.calls] for slow in readers]
    onward = sum(after == before + 1 for own in numbers for before, after in pairwise(own))
    assert onward >= 120 / 2, "three of four, unless another was quicker"


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1000), st.integers(0, 300))),
    st.integers(1, 400),
)
def test_calls_hold_every_block_once_in_order_and_are_short(
    described: list[tuple[str, int, int]], call_blocks: int
) -> None:
    pieces = [
        BlockRange(
            database=database,
            oid=number,
            schema="s",
            relation="r",
            kind="table",
            fork="main",
            first_block=first,
            blocks=blocks,
        )
        for number, (database, first, blocks) in enumerate(described)
    ]
    calls = list(calls_of(pieces, call_blocks))
    assert [call.number for call in calls] == list(range(len(calls)))
    assert all(0 < call.blocks <= call_blocks for call in calls)
    assert all(piece.database == call.database for call in calls for piece in call.pieces)
    flat = [
        (p.oid, block) for call in calls for p in call.pieces for block in range(p.first_block, p.end_block)
    ]
    assert flat == [(p.oid, block) for p in pieces for block in range(p.first_block, p.end_block)]
