"""What a test in a browser needs: Chromium, a page's own server, a wire that can be cut, an echo that speaks
when it is told to.

Screenshots are artefacts of the run, in var/artefacts/browser.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from executor.contract import Submit
from tests.clients.serving import Serving
from tests.gateway.once_kit import turns

ROOT: Final = Path(__file__).parents[2]
STATIC: Final = ROOT / "gateway" / "console" / "static"
ARTEFACTS: Final = ROOT / "var" / "artefacts" / "browser"
MISSING: Final = "there is no Chromium: apt-get install chromium"
FLAGS: Final = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium_path() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium", path="/usr/bin")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Skips where there is none."""
    path = chromium_path()
    if path is None:
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def picture(page: Page, name: str) -> None:
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=ARTEFACTS / f"{name}.png")


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 — the base's name
        """Says nothing."""


@contextmanager
def page_server() -> Iterator[str]:
    """The origin of the product's page: the files as they are shipped."""
    handler = partial(_Files, directory=str(STATIC))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="pages")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class Steps:
    """A gate that lets as many tokens through as it is told to, in the server's loop."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(0)
        self._open = False

    async def __call__(self, job: Submit, token: int) -> None:
        if not self._open:
            await self._free.acquire()

    def allow(self, served: Serving, tokens: int | None = None) -> None:
        """None: all there are, from now on."""

        async def run() -> None:
            self._open = tokens is None
            for _ in range(10_000 if tokens is None else tokens):
                self._free.release()

        served.call(run)


class Wire:
    """A way to a server that can be cut and refused, in the server's loop."""

    def __init__(self, served: Serving) -> None:
        self._served = served
        self._port = int(served.base_url.split(":")[2].split("/")[0])
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.connections = 0
        self.refusing = False
        self.base_url = ""

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.base_url = self._served.base_url.replace(str(self._port), str(port))

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refusing:
            _reset(writer)
            return
        there = await asyncio.open_connection("127.0.0.1", self._port)
        self._ends |= {writer, there[1]}
        for source, sink in ((reader, there[1]), (there[0], writer)):
            task = asyncio.create_task(_carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _cut(self) -> None:
        ends, self._ends = self._ends, set()
        for each in ends:
            _reset(each)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, *, refuse: bool = False) -> None:
        """Every connection breaks off, with a reset; `refuse`: new ones do, too."""
        self.refusing = refuse
        self._served.call(self._cut)

    def opened(self, before: int) -> None:
        """Until somebody has come anew."""
        self._served.call(lambda: turns(lambda: self.connections > before, 3_000))

    @classmethod
    @contextmanager
    def to(cls, served: Serving) -> Iterator[Wire]:
        wire = cls(served)
        served.call(wire._start)
        try:
            yield wire
        finally:
            served.call(wire._close)


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()
    except ConnectionError:
        pass
    finally:
        sink.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    if writer.transport.is_closing():
        return
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
