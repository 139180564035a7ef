"""Take the pictures in docs/guides/images: `make screenshots`, with Debian's chromium and ten minutes.

A private PostgreSQL runs a mixed load while `pgsweep serve` watches it. After some minutes of evidence its
page is photographed at the widths of a desk, a tablet and a phone, from the top to the end of the predicted
curve; besides, the panels that the guide explains. Look at each picture before it is committed.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psycopg

from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.pgbench import DATABASE, RunningWorkload, create_database, prepare
from pgsweep.testbed.workloads import MIX
from tools.reference import ROOT

FOLDER: Final = ROOT / "docs/guides/images"
WIDTHS: Final = (1440, 800, 390)
SCALE: Final = 20
PER_SECOND: Final = 600.0
SETTINGS: Final = {
    "shared_buffers": "64MB",
    "shared_preload_libraries": "pg_stat_statements",
    "track_io_timing": "on",
}
SERVE_TOML: Final = """
[serve]
show-queries = true
[[server]]
name = "shop"
conninfo = "service=shop"
"""
COLOURS: Final = 256


def say(text: str) -> None:
    """Write a line for whoever waits."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def write_png(path: Path, pixels: npt.NDArray[np.uint8]) -> None:
    """Write rows of red, green and blue as a PNG with a palette: a quarter of the size, the same to the eye.

    The most frequent colours are kept as they are; each other one becomes the nearest of them.
    """
    flat = pixels.reshape(-1, 3).astype(np.int64)
    known, where, counts = np.unique(
        flat @ np.array([65536, 256, 1]), return_inverse=True, return_counts=True
    )
    order = np.argsort(-counts, kind="stable")
    colours = np.stack([known >> 16, known >> 8 & 255, known & 255], axis=1)
    kept = order[:COLOURS]
    becomes = np.empty(len(known), dtype=np.uint8)
    becomes[kept] = np.arange(len(kept))
    for other in order[COLOURS:]:
        becomes[other] = np.argmin(((colours[kept] - colours[other]) ** 2).sum(axis=1))
    rows = becomes[where].reshape(pixels.shape[:2])
    # Each row begins with the number of its filter: none.
    body = np.concatenate([np.zeros((len(rows), 1), dtype=np.uint8), rows], axis=1).tobytes()
    head = struct.pack(">2I5B", pixels.shape[1], pixels.shape[0], 8, 3, 0, 0, 0)
    palette = colours[kept].astype(np.uint8).tobytes()
    parts = [(b"IHDR", head), (b"PLTE", palette), (b"IDAT", zlib.compress(body, 9)), (b"IEND", b"")]
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
            for name, data in parts
        )
    )


_DECODED: Final = """async (png) => {
  const picture = new Image();
  picture.src = "data:image/png;base64," + png;
  await picture.decode();
  const canvas = new OffscreenCanvas(picture.width, picture.height), context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0);
  const bytes = context.getImageData(0, 0, picture.width, picture.height).data;
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768)
    text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return [picture.width, picture.height, btoa(text)];
}"""


def decoded(browser: Any, png: bytes) -> npt.NDArray[np.uint8]:
    """Return the pixels of a picture; the browser decodes it."""
    page = browser.new_page()
    width, height, text = page.evaluate(_DECODED, base64.b64encode(png).decode())
    page.close()
    return np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(height, width, 4)[:, :, :3]


@contextmanager
def serving(folder: Path, cluster: Cluster) -> Iterator[str]:
    """Yield the address of `pgsweep serve` watching a cluster."""
    (folder / "services").write_text(f"[shop]\n{cluster.conninfo(DATABASE).replace(' ', chr(10))}\n")
    (folder / "serve.toml").write_text(SERVE_TOML)
    process = subprocess.Popen(
        [Path(sys.executable).with_name("pgsweep"), "serve", "--quiet", "--config", folder / "serve.toml",
         "--listen", "127.0.0.1:0", "--history", folder / "history", "--interval", "5s"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PGSERVICEFILE": str(folder / "services")},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip().rstrip("/")
    finally:
        process.terminate()
        process.wait(30)


def take(browser: Any, address: str, folder: Path) -> None:
    """Take all pictures."""
    shots: dict[str, bytes] = {}
    for width in WIDTHS:
        context = browser.new_context(viewport={"width": width, "height": 900}, locale="en-GB")
        page = context.new_page()
        complaints: list[str] = []
        page.on("console", lambda said, into=complaints: into.append(f"{said.type}: {said.text}"))
        page.goto(f"{address}/servers/shop?range=15m")
        for name in ("curve", "reads", "sweep"):
            page.wait_for_selector(f"[data-chart={name}] canvas")
        page.mouse.move(0, 0)
        end = page.locator("section[aria-labelledby=h-curve]").bounding_box()
        height = end["y"] + end["height"] + 12
        clip = {"x": 0, "y": 0, "width": width, "height": height}
        shots[f"serve-{width}"] = page.screenshot(full_page=True, clip=clip)
        overflow = page.evaluate("document.documentElement.scrollWidth") - width
        say(f"{width}: {complaints}, {overflow} px beyond the width")
        if width == WIDTHS[0]:
            shots["serve-advice"] = page.locator("section[aria-labelledby=h-advice]").screenshot()
            with page.expect_response(lambda answer: "by=statement" in answer.url):
                page.select_option("#by", "statement")
            page.wait_for_selector("[data-consumers=statement]")
            shots["serve-consumers"] = page.locator("section[aria-labelledby=h-consumers]").screenshot()
        context.close()
    for name, png in shots.items():
        write_png(folder / f"{name}.png", decoded(browser, png))
        say(f"{name}.png: {(folder / f'{name}.png').stat().st_size} bytes")


def main() -> None:
    """Take them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0, help="of evidence before they are taken")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("no chromium on this machine: apt-get install chromium")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(Cluster.create(None, SETTINGS))
        create_database(cluster, SCALE)
        with psycopg.connect(cluster.conninfo(DATABASE), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_stat_statements")
        prepare(cluster, MIX)
        stack.enter_context(RunningWorkload(cluster, MIX, seed=1, rate_per_second=PER_SECOND))
        address = stack.enter_context(serving(folder, cluster))
        say(f"{address}: {options.minutes:.0f} minutes of evidence")
        time.sleep(60 * options.minutes)
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        take(browser, address, options.folder)
        browser.close()


if __name__ == "__main__":
    main()
