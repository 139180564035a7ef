"""`pgsweep serve` against clients that never end, that hold what they can, and that ask for anything."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pgsweep.serve.web.connections import address_of
from tests.fix_cli import run
from tests.fix_process import busyness, wait_until
from tests.fix_serve import Served, serving

GONE = "host=127.0.0.1 port=1 dbname=gone"
HOST = b"Host: localhost\r\n"
EVENTS = b"GET /events HTTP/1.1\r\n" + HOST + b"\r\n"
FILE = b"GET /static/vendor/uPlot.iife.min.js HTTP/1.1\r\n" + HOST + b"\r\n"
ALWAYS = ("/healthz", "/metrics")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve")
    with serving(folder, options=limited(folder, most=256, of_one=128)) as running:
        yield running


@pytest.fixture
def peers() -> Iterator[list[socket.socket]]:
    """Connections that are held until the test ends."""
    held: list[socket.socket] = []
    yield held
    for peer in held:
        peer.close()


def limited(folder: Path, *conninfos: str, most: int, of_one: int) -> tuple[str, ...]:
    config = folder / "serve.toml"
    lines = ["[serve]", f"max-connections = {most}", f"max-connections-per-address = {of_one}"]
    for number, conninfo in enumerate(conninfos or (GONE,)):
        lines += ["[[server]]", f"name = 's{number}'", f"conninfo = '{conninfo}'"]
    config.write_text("\n".join(lines))
    return ("--config", str(config))


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\n".encode() + HOST + b"\r\n"


def status_of(peer: socket.socket) -> int:
    """Return the status of an answer, 0 where the connection has ended without one."""
    try:
        head = peer.recv(12)
    except ConnectionResetError:
        return 0
    return int(head[9:12]) if len(head) == 12 else 0


def read_all(peer: socket.socket) -> bytes:
    """Return all that comes until the other side ends the connection, or a stream begins."""
    found = b""
    with contextlib.suppress(OSError):
        while b"event: hello" not in found and (piece := peer.recv(65536)):
            found += piece
    return found


def has_ended(peer: socket.socket) -> bool:
    """Return whether the other side has ended a connection; what it sent before stays unread."""
    poll = select.poll()
    poll.register(peer, select.POLLRDHUP)
    return bool(poll.poll(0))


def one_by_one(peer: socket.socket, text: bytes) -> None:
    """Send a byte each half second until the other side ends the connection."""
    with contextlib.suppress(OSError):
        for number in range(10_000):
            peer.sendall(text[number % len(text) :][:1])
            if has_ended(peer):
                return
            time.sleep(0.5)


# Clients that never end.


def test_idle_connections_keep_nobody_out(served: Served, peers: list[socket.socket]) -> None:
    stream = served.peer(EVENTS)
    peers.append(stream)
    assert status_of(stream) == 200
    peers += [served.peer() for _ in range(300)]
    for path in (*ALWAYS, "/", "/overview.json"):
        assert served.ask(path)[0] == 200, path
    assert not has_ended(stream), "who waits for us does not give way"
    kept = sum(not has_ended(peer) for peer in peers)
    assert 100 <= kept <= 128


NEVER_END = {
    "nothing": (b"", b""),
    "a head": (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"a"),
    "empty lines": (b"", b"\r\n"),
    "a body": (b"POST /login HTTP/1.1\r\n" + HOST + b"Content-Length: 4000\r\n\r\n", b"a"),
    "what is continued": (
        b"POST /login HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n", b""
    ),
    "a body that nobody reads": (get("/")[:-2] + b"Content-Length: 4096\r\n\r\n", b"a"),
    "a second request": (get("/healthz") + b"GET /", b"a"),
    "a request after some time": (get("/healthz"), b""),
    "half closed": (b"GET", b""),
    # A reset may be out of the window of who reads nothing: by the next byte it learns that there is no peer.
    "what is not read": (FILE * 200, b"G"),
}  # fmt: skip


@pytest.mark.slow
def test_clients_that_never_end_are_ended(
    tmp_path: Path, peers: list[socket.socket], subtests: pytest.Subtests
) -> None:
    """Each has a deadline that the next byte does not move; the stream of events beside them goes on."""
    with serving(tmp_path, options=("--token-file", str(token_in(tmp_path))), listen="127.0.0.1:0") as served:
        named = {}
        for name, (begun, more) in NEVER_END.items():
            named[name] = served.peer(begun, receives=4096)
            if more:
                threading.Thread(target=one_by_one, args=(named[name], more), daemon=True).start()
        stream = served.peer(EVENTS[:-2] + BEARER + b"\r\n")
        peers += [*named.values(), stream]
        until = time.monotonic() + 60
        for name, peer in named.items():
            with subtests.test(name):
                wait_until(partial(has_ended, peer), max(1.0, until - time.monotonic()))
        assert not has_ended(stream)
        assert served.ask("/healthz")[0] == 200
        begin = time.monotonic()
        assert served.stop() == 0
        assert time.monotonic() - begin < 15 * busyness()


BEARER = b"Authorization: Bearer 0123456789abcdef-secret\r\n"


def token_in(folder: Path) -> Path:
    token = folder / "token"
    token.write_text("0123456789abcdef-secret\n")
    token.chmod(0o600)
    return token


def test_who_is_unread_takes_little_memory(tmp_path: Path, peers: list[socket.socket]) -> None:
    """Answers of 100 clients that read nothing, each of ten megabytes; and their headers are short."""
    with serving(tmp_path, GONE) as served:
        assert served.ask("/")[0] == 200
        begin, most = served.memory(), 0
        for _ in range(100):
            with contextlib.suppress(OSError):
                peers.append(served.peer(FILE * 200, receives=4096))
            most = max(most, served.memory() - begin)
        for _ in range(10):
            for path in ALWAYS:
                assert served.ask(path)[0] == 200
            most = max(most, served.memory() - begin)
        for _ in range(100):
            peer = served.peer()
            peers.append(peer)
            with contextlib.suppress(OSError):
                peer.sendall(b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * (1 << 20))
        most = max(most, served.memory() - begin)
        assert most < 100 << 20
        assert served.ask("/")[0] == 200


def test_requests_that_are_reset_leave_nothing(tmp_path: Path) -> None:
    """As proxies end connections; uvicorn kept each for the time between requests."""
    with serving(tmp_path, GONE) as served:

        def ask() -> None:
            peer = served.peer(get("/healthz")[:-2] + b"X: " + b"a" * 12_000 + b"\r\n\r\n")
            assert status_of(peer) == 200
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()

        for _ in range(200):
            ask()
        begin = served.memory()
        for _ in range(1500):
            ask()
        assert served.memory() - begin < 20 << 20


def test_an_address_that_takes_all_it_may_leaves_others_theirs(
    tmp_path: Path, peers: list[socket.socket]
) -> None:
    options = limited(tmp_path, most=64, of_one=16)
    with serving(tmp_path, options=options) as served:
        first = served.peer()
        peers.append(first)
        many = [served.peer(source="127.0.0.2") for _ in range(200)]
        peers += many
        wait_until(lambda: sum(not has_ended(peer) for peer in many) <= 16)
        assert not has_ended(first), "it has waited longer, at another address"
        many.append(served.peer(get("/"), source="127.0.0.2"))
        peers.append(many[-1])
        assert status_of(many[-1]) == 200


def test_streams_do_not_take_everything(tmp_path: Path, peers: list[socket.socket]) -> None:
    with serving(tmp_path, options=limited(tmp_path, most=64, of_one=16)) as served:
        found = []
        for _ in range(20):
            peers.append(served.peer(EVENTS))
            found.append(status_of(peers[-1]))
        assert found == [200] * 12 + [503] * 8
        for peer in peers:
            peer.close()
        wait_until(lambda: served.ask("/events?server=nosuch")[0] == 404)
        with served.peer(EVENTS) as again:
            wait_until(lambda: status_of(again) == 200)


@pytest.mark.parametrize("most", [16, 32])
def test_health_and_metrics_are_answered_where_nothing_is_free(
    tmp_path: Path, peers: list[socket.socket], most: int
) -> None:
    """All connections are taken by streams, and by maps of a server that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        options = limited(tmp_path, f"host=127.0.0.1 port={port} dbname=x", most=most, of_one=16)
        with serving(tmp_path, options=options) as served:
            map_of = get("/servers/s0/map?schema=public&relation=t")
            maps = [served.peer(map_of, source=f"127.0.0.{2 + n // 4}") for n in range(most // 4)]
            streams = [served.peer(EVENTS, source=f"127.0.0.{2 + n // 12}") for n in range(most * 3 // 4)]
            peers += maps + streams
            assert {status_of(peer) for peer in streams} == {200}
            asked = served.peer(get("/"), source="127.0.0.2")
            peers.append(asked)
            assert status_of(asked) == 503
            assert b"max-connections" in read_all(asked)
            for _ in range(3):
                for path in ALWAYS:
                    peers.append(served.peer(get(path), source="127.0.0.2"))
                    assert status_of(peers[-1]) == 200, path
            assert not any(has_ended(peer) for peer in streams + maps)


def test_maps_of_a_server_that_hangs_delay_no_page(tmp_path: Path, peers: list[socket.socket]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        conninfo = f"host=127.0.0.1 port={silent.getsockname()[1]} dbname=x"
        with serving(tmp_path, options=limited(tmp_path, conninfo, most=256, of_one=128)) as served:
            peers += [served.peer(get("/servers/s0/map?schema=public&relation=t")) for _ in range(60)]
            begin = time.monotonic()
            for path in ("/", "/servers/s0", *ALWAYS):
                assert served.ask(path)[0] == 200, path
            assert time.monotonic() - begin < 4 * busyness()


def test_ten_tabs_behind_one_proxy(served: Served, peers: list[socket.socket]) -> None:
    """Each has a stream, and six connections that ask at the same time, and then stay open."""
    for _ in range(10):
        peers.append(served.peer(EVENTS))
        asked = [served.peer(get("/")) for _ in range(6)]
        peers += asked
        assert {status_of(peer) for peer in [peers[-7], *asked]} == {200}


def test_addresses_are_counted_by_what_one_client_has() -> None:
    assert address_of("192.0.2.1") == address_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert address_of("2001:db8::1") == address_of("2001:db8::ffff:1") != address_of("2001:db8:0:1::1")
    assert address_of("fe80::1%eth0") == address_of("fe80::2")


@pytest.mark.parametrize(("most", "of_one"), [(0, 0), (-1, 16), (100, 8), (10**9, 100)])
def test_limits_that_cannot_be_are_refused(tmp_path: Path, most: int, of_one: int) -> None:
    options = limited(tmp_path, most=most, of_one=of_one)
    done = run("serve", *options, "--listen", "127.0.0.1:0", "--history", str(tmp_path / "h"))
    assert done.returncode == 2, done.stderr
    assert "max-connections" in done.stderr


def test_a_flood_from_ones_own_address_keeps_nobody_out(served: Served) -> None:
    """More connections than may be open, each time at once: what was accepted is read before it gives way."""
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            with contextlib.ExitStack() as held, contextlib.suppress(OSError):
                for _ in range(300):
                    held.enter_context(served.peer())

    flooding = [threading.Thread(target=flood) for _ in range(2)]
    for thread in flooding:
        thread.start()
    try:
        found = [served.ask(path)[0] for _ in range(10) for path in (*ALWAYS, "/")]
    finally:
        over.set()
        for thread in flooding:
            thread.join()
    assert set(found) == {200}


# Requests that are none.


@pytest.mark.parametrize("said", ["Transfer-Encoding: chunked", "Content-Length: 4097"])
def test_a_long_body_is_refused_before_it_comes(served: Served, said: str) -> None:
    """A body of chunks of one byte takes much processor time: 64 kB a third of a second."""
    for begun in (b"POST /login", b"GET /"):
        with served.peer(begun + b" HTTP/1.1\r\n" + HOST + said.encode() + b"\r\n\r\n") as peer:
            assert status_of(peer) == 400
            assert b"Invalid HTTP request" in read_all(peer)


def test_requests_that_are_none_leave_it_as_it_was(tmp_path: Path, peers: list[socket.socket]) -> None:
    """Nothing in its log, and no answer of 500; `serving` looks for tracebacks."""
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    with serving(tmp_path, GONE) as served:
        for sent in (
            get("/")[:-2] + chunked + b"nonsense\r\n",  # a body that is wrong, once the answer is there
            b"POST /logout HTTP/1.1\r\n" + HOST + chunked + b"ffffffffffffffffffffff\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),  # TLS
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET / HTTP/1.0\r\n\r\n",
            get("/events")[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            b"CONNECT localhost:1 HTTP/1.1\r\n" + HOST + b"\r\n",
            b"GET http://evil.example/ HTTP/1.1\r\n" + HOST + b"\r\n",
            b"GET [ HTTP/1.1\r\n" + HOST + b"\r\n",
            b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
            get("/healthz") * 500,
            b"POST /login HTTP/1.1\r\n" + HOST + b"Content-Length: 100\r\n\r\ntoken=",
            b"GET / HTTP/1.1\r\nHost: localhost:\xb2\r\n\r\n",
            get("/")[:-2] + b"Cookie: " + b"a=\\" * 4000 + b"\r\n\r\n",
        ):
            peer = served.peer(sent)
            time.sleep(0.1)
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_WR)
            answer = read_all(peer)
            peer.close()
            assert b"HTTP/1.1 500" not in answer, sent
            assert served.ask("/healthz")[0] == 200
    assert len(served.said.splitlines()) == 1, served.said


def test_a_wrong_token_costs_no_place_for_long(tmp_path: Path, peers: list[socket.socket]) -> None:
    """The delay of a wrong one cannot be used to take all connections; a right one has none."""
    body = b"token=wrong"
    login = b"POST /login HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with serving(tmp_path, GONE, options=("--token-file", str(token_in(tmp_path)))) as served:
        peers += [served.peer(login) for _ in range(100)]
        assert served.ask("/login", method="POST", body="token=0123456789abcdef-secret")[0] == 303
        found = [status_of(peer) for peer in peers]
        assert set(found) <= {403, 429}
        assert 429 in found


# Parameters.

ROUTES = {
    "/servers/KEY/relations.json": ("limit", "sort", "reverse", "catalogs", "filter"),
    "/servers/KEY/relations": ("limit", "sort", "reverse", "catalogs", "filter"),
    "/servers/KEY/series.json": ("begin", "end", "range"),
    "/servers/KEY/series.csv": ("begin", "end", "range"),
    "/servers/KEY/curves.json": ("begin", "end", "range"),
    "/servers/KEY/shares.json": ("begin", "end", "range"),
    "/servers/KEY/consumers": ("begin", "end", "range", "by"),
    "/servers/KEY/consumers.csv": ("begin", "end", "range"),
    "/servers/KEY": ("begin", "end", "range", "by", "limit", "sort", "filter"),
    "/servers/KEY/map": ("database", "schema", "relation"),
    "/servers/KEY/map.json": ("database", "schema", "relation"),
    "/servers/KEY/memory.csv": (),
    "/events": ("server",),
    "/static/KEY": (),
}
ODD = (
    "0", "-1", "1e3", "1_0", " 1", "+1", "0x1", "1.5", "nan", "inf", "١", "１２", "²", "9" * 400, "9" * 5000,
    "000000001999999999", "", "\0", "a\0b", "\n", "50", "'", "%", "\U0001f600", "pool", "1h", "1700000000",
)  # fmt: skip
BYTES = st.one_of(
    st.sampled_from(ODD).map(str.encode),
    st.sampled_from([b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"%", b"%zz"]),
    st.binary(max_size=20),
    st.text(max_size=20).map(lambda text: text.encode(errors="surrogatepass")),
)


@st.composite
def addresses(draw: st.DrawFn) -> str:
    route = draw(st.sampled_from(sorted(ROUTES)))
    key = draw(st.one_of(st.just("s0"), BYTES.map(quote_from_bytes)))
    names = ROUTES[route] or ("x",)
    pairs = draw(st.lists(st.tuples(st.sampled_from(names), BYTES), max_size=4))
    query = "&".join(f"{name}={quote_from_bytes(value)}" for name, value in pairs)
    return route.replace("KEY", key) + (f"?{query}" if query else "")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(address=f"/servers/s0/relations.json?limit=000000001{'9' * 5000}")
@given(address=addresses())
def test_no_address_ends_in_a_500(served: Served, address: str) -> None:
    """What is not as it should be is refused in a sentence; a server that is not known is not found."""
    if address.partition("?")[0] == "/events":  # a stream does not end
        with served.peer(get(address)) as peer:
            status, text = status_of(peer), "a sentence"
    else:
        status, _, text = served.ask(address)
    assert status in (200, 303, 307, 400, 404, 503), (status, address)
    if status >= 400:
        assert 0 < len(text) < 2000
        assert "Traceback" not in text


@pytest.mark.parametrize(
    "query",
    [
        "limit=000000001999999999", f"limit={'9' * 3000}", f"limit={'0' * 3000}1", "limit=0", "limit=-1",
        "limit=%D9%A1", "limit=1e2", "limit=1_0", "limit=", "limit=1&limit=2", "reverse=2", "catalogs=yes",
        "filter=%00", "filter=%ff", "filter=%ed%a0%80", f"filter={'x' * 201}", "sort=", "a=1" + "&b=1" * 30,
    ],
)  # fmt: skip
def test_a_parameter_that_cannot_be_is_refused(served: Served, query: str) -> None:
    status, _, text = served.ask(f"/servers/s0/relations.json?{query}")
    assert status == 400, text
    assert 5 < len(text) < 300


@pytest.mark.parametrize(
    "query", ["begin=1e9", "begin=1_7", "begin=%D9%A1", "begin=-5", "end=5&begin=", f"begin={'1' * 3000}",
              "begin=1&begin=2", "range=1h&range=1h", "begin=99999999999999", "begin= 5",
              "begin=2026-13-01", "begin=1000-01-01T00:00:00Z", "begin=9999-12-31T23:59:59-23:00",
              "range=%00"],
)  # fmt: skip
def test_a_time_that_cannot_be_is_refused(served: Served, query: str) -> None:
    status, _, text = served.ask(f"/servers/s0/series.json?{query.replace(' ', '%20')}")
    assert status == 400, text


def test_a_stream_of_a_server_that_is_not_known_is_refused(served: Served) -> None:
    assert served.ask("/events?server=nosuch")[0] == 404
    assert served.ask("/events?server=a&server=b")[0] == 400


# Errors of pgsweep itself.


def test_an_unforeseen_error_is_a_short_answer_and_a_line_of_the_log(tmp_path: Path) -> None:
    """The line is there once, however often it happens, and has nothing of the client that disturbs a log."""
    broken = (
        "from pgsweep.serve.service import Service\n"
        "def fails(self, key): raise KeyError('inner \\x1b[31m words')\n"
        "from pgsweep.serve.board import Board\nBoard.memory = fails\n"
        "Service.metrics = lambda self: 1 / 0\n"
    )
    with serving(tmp_path, options=limited(tmp_path, most=256, of_one=128), first=broken) as served:
        for _ in range(5):
            status, headers, text = served.ask("/servers/s0/memory.json")
            assert (status, headers["content-type"]) == (500, "text/plain; charset=utf-8")
            assert "content-security-policy" in headers
            assert "its log" in text
            assert "inner" not in text
        assert served.ask("/metrics")[0] == 500
        assert served.ask("/")[0] == 200
    said = [line for line in served.said.splitlines() if "Error" in line]
    assert len(said) == 2, said
    assert "GET /servers/s0/memory.json: KeyError" in said[0]
    assert "\x1b" not in said[0]
    assert "ZeroDivisionError" in said[1]
