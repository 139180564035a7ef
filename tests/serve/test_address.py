"""`pgsweep serve` below a path behind a proxy, and by https."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from pgsweep.errors import UsageError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.serve.config import WebOptions, load_config, parse_base_path
from tests.fix_cli import run
from tests.fix_serve import Tab, serving

TOKEN = "a secret of more than sixteen".replace(" ", "-")


def certificate(folder: Path) -> tuple[Path, Path]:
    """Return a certificate of this machine's own, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on this machine")
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj"]
    words += [
        "/CN=localhost",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(cert),
    ]
    subprocess.run(words, check=True, capture_output=True)
    key.chmod(0o600)
    return cert, key


def test_below_a_path(wheel18: Cluster, tmp_path: Path) -> None:
    """A proxy may take the path away or leave it; browsers stay below it."""
    secret = tmp_path / "token"
    secret.write_text(TOKEN)
    secret.chmod(0o600)
    options = ("--base-path", "/tools/pgsweep/", "--token-file", str(secret))
    with serving(tmp_path, wheel18.conninfo(), options=options) as served:
        assert served.address.endswith("/tools/pgsweep")
        shown = {"authorization": f"Bearer {TOKEN}"}
        [key] = [one["key"] for one in json.loads(served.ask("/overview.json", headers=shown)[2])["servers"]]
        for path in ("/", f"/servers/{key}"):
            texts = [served.ask(f"{base}{path}", headers=shown) for base in ("/tools/pgsweep", "")]
            assert [status for status, _, _ in texts] == [200, 200]
            links = re.findall(r'(?:href|src|action|hx-get)="(/[^"]*)"', texts[0][2])
            assert len(links) > 5
            assert all(link.startswith("/tools/pgsweep/") for link in links), links
        status, headers, _ = served.ask("/tools/pgsweep/", headers={"accept": "text/html"})
        assert (status, headers["location"]) == (303, "/tools/pgsweep/login")
        status, headers, _ = served.ask("/tools/pgsweep/login", method="POST", body=f"token={TOKEN}")
        assert (status, headers["location"]) == (303, "/tools/pgsweep/")
        assert "Path=/tools/pgsweep/" in headers["set-cookie"]
        assert served.ask("/tools/pgsweeper/", headers=shown)[0] == 404


def test_a_browser_below_a_path(wheel18: Cluster, tmp_path: Path, browser: object) -> None:
    with serving(tmp_path, wheel18.conninfo(), options=("--base-path", "/pg")) as served:
        [key] = [one["key"] for one in served.json("/overview.json")["servers"]]
        served.wait_for(f"/servers/{key}/series.json", lambda s: len(s["at"]) >= 2)
        tab = Tab(browser, served)
        tab.page.goto(f"{served.address}/servers/{key}")
        tab.page.locator("[data-chart] canvas").first.wait_for()
        tab.page.click("a.brand")
        tab.page.locator("#overview").first.wait_for()
        assert tab.page.url == f"{served.address}/"
        tab.context.close()
        assert tab.elsewhere == [], "nothing is asked for beside the path"
        assert tab.complaints == []


def test_by_https(wheel18: Cluster, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    options = ("--tls-cert", str(cert), "--tls-key", str(key))
    with serving(tmp_path / "history", wheel18.conninfo(), options=options) as served:
        assert served.address.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(cert))
        connection = http.client.HTTPSConnection(served.host, int(served.port), context=trusted, timeout=30)
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok\n"
        connection.close()
        plain = http.client.HTTPConnection(served.host, int(served.port), timeout=30)
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.request("GET", "/healthz")
            plain.getresponse()
        plain.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[serve]\n\nlisten = 'abc'\n", "line 3: `abc`"),
        ("[serve]\nlisten = 5\n", "line 2: `listen`"),
        ("[serve]\nsource = 'peak'\n", "line 2: `source` is none of: auto, peek, sql"),
        ("[serve]\nhistroy = 'x'\n", "line 2: there is no option `histroy`"),
        ("[sevre]\nlisten = 'x'\n", "line 1: there is no option `sevre`"),
        ("[serve]\nhistory-size = '12XB'\n", "line 2: `12XB`"),
        ("[serve]\ntoken-file = '/absent'\n", "line 2: the token file `/absent`"),
        ("[[server]]\nconninfo = 'x'\n[[server]]\nname = 'z'\n", "line 3: `server` has no `conninfo`"),
        ("[[server]]\nconninfo = 'x'\n[[server]]\nconninfo = 'host=a bogus=b'\n", "line 4: "),
        # What looks like it stands within a text of several lines.
        ('[[metric]]\nquery = """\nname = 3\n"""\nname = \'B\'\n', "line 5: the metric `B`"),
    ],
)
def test_a_fault_of_the_file_names_its_line(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_config([], file=file, home=tmp_path)
    assert caught.value.message.startswith(f"`{file}`, {words}")


def test_what_others_may_write_is_refused(tmp_path: Path) -> None:
    file, token = tmp_path / "serve.toml", tmp_path / "token"
    file.write_text("[serve]\n")
    token.write_text("t" * 32)
    token.chmod(0o600)
    assert load_config([], file=file, token_file=token, home=tmp_path).token == "t" * 32
    for path, mode in ((token, 0o620), (file, 0o646)):
        path.chmod(mode)
        with pytest.raises(UsageError, match=f"its mode is {mode:04o}") as caught:
            load_config([], file=file, token_file=token, home=tmp_path)
        assert str(path) in (caught.value.hint or "")
        path.chmod(0o600)


def test_what_cannot_be(tmp_path: Path) -> None:
    assert [parse_base_path(text) for text in ("", "/", "/a", "/a/b-c/")] == ["", "", "/a", "/a/b-c"]
    for text in ("a", "/a b", "/a//b", "/../x", "/a?b", "http://x/a"):
        with pytest.raises(UsageError, match="is not the path of an address"):
            parse_base_path(text)
    cert, key = certificate(tmp_path)

    def load(tls_cert: Path | None = None, tls_key: Path | None = None) -> object:
        return load_config([], web=WebOptions(tls_cert=tls_cert, tls_key=tls_key), home=tmp_path).tls

    assert load(tls_cert=cert, tls_key=key) == (cert, key)
    for wrong in ({"tls_cert": cert}, {"tls_key": key}):
        with pytest.raises(UsageError, match="go together"):
            load(**wrong)
    for wrong in ({"tls_cert": key, "tls_key": cert}, {"tls_cert": cert, "tls_key": tmp_path / "absent"}):
        with pytest.raises(UsageError, match="cannot be used for TLS"):
            load(**wrong)
    locked = tmp_path / "locked.pem"
    words = ["openssl", "rsa", "-aes256", "-passout", "pass:secret", "-in", str(key), "-out", str(locked)]
    subprocess.run(words, check=True, capture_output=True)
    with pytest.raises(UsageError, match="cannot be used for TLS"):
        load(tls_cert=cert, tls_key=locked)
    key.chmod(0o644)
    with pytest.raises(UsageError, match="may be read by all users: its mode is 0644"):
        load(tls_cert=cert, tls_key=key)
    key.chmod(0o660)
    os.chown(key, -1, 65534) if os.geteuid() == 0 else key.chmod(0o602)
    with pytest.raises(UsageError, match="may be written by others"):
        load(tls_cert=cert, tls_key=key)
    done = run("serve", "--tls-cert", str(cert), "x", env={"HOME": str(tmp_path)})
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_times_of_the_file_are_those_of_the_options(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    for text, wanted in (('"2min"', 120.0), ('"1500ms"', 1.5), ("10", 10.0), ("2.5", 2.5), ('"40"', 40.0)):
        metric = f"[[metric]]\nname = 'a'\nquery = 'x'\nevery = {text}\ntimeout = '500ms'\n"
        file.write_text(f"[serve]\ninterval = {text}\n{metric}")
        found = load_config([], file=file, home=tmp_path)
        assert found.interval_seconds == found.metrics[0].every == wanted
        assert found.metrics[0].timeout == 0.5
