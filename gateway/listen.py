"""Serve several ASGI apps on several sockets in one process: HTTP/1.1 only, guarded, drained at the
end.

Refuses to know: what the apps do, signals (the caller sets `shutdown`), TLS (terminate it in front),
ASGI lifespan (the composition root starts and stops what it made).
Why not `hypercorn.asyncio.serve`: it serves one app, cuts streams 3 s after the signal, speaks HTTP/2
when asked, and waits for ever on a peer that does not read.
Source: API.md §0 (1, 2), SECURITY.md §0.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.typing import ASGIFramework

from gateway.connection import READ_BYTES, Bounds, GuardedConnection, TurnAway, check_hypercorn
from gateway.wire_guard import Fault, Refusal

ASGIApp = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[MutableMapping[str, Any]]],
        Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ],
    Awaitable[None],
]
CUT_S = 5.0
"""How long cancelled handlers may take to unwind (settle, audit) before their sockets are dropped."""
BACKLOG = 512
ACCEPTS = 16
"""How many connections are accepted in one turn of the loop: libuv accepts one by each handle (since 1.45), and
under load a turn is long."""


class BindError(Exception):
    """A listener's address cannot be used; the message says which, why and what to do."""


@dataclass(frozen=True, slots=True)
class Listener:
    """`bind` is "host:port" or "[v6]:port"; port 0 takes a free one.  `door`: asked of each request before
    anything is done for it."""

    name: str
    app: ASGIApp
    bind: str
    door: TurnAway | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    name: str
    host: str
    port: int

    @property
    def url(self) -> str:
        return (
            f"http://[{self.host}]:{self.port}"
            if ":" in self.host
            else f"http://{self.host}:{self.port}"
        )


@dataclass(frozen=True, slots=True)
class Reports:
    """What happens out of sight of the apps.  `failed` gets a connection's unexpected exception."""

    refused: Callable[[Fault], None]
    failed: Callable[[BaseException], None]


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """For `asyncio.Runner`: uvloop's where it is installed, else None (the standard loop)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def serve(
    listeners: Sequence[Listener],
    *,
    shutdown: asyncio.Event,
    drain_s: float,
    on_ready: Callable[[Sequence[Bound]], None],
    mint: Callable[[], str],
    reports: Reports,
    bounds: Bounds | None = None,
) -> None:
    """Serve until `shutdown` is set, then refuse new connections, close idle ones, let running
    requests go on for `drain_s`, and cancel what is left, once.  BindError before anything is served.
    Cancelling `serve` is a shutdown without drain."""
    check_hypercorn()
    bounds = bounds or Bounds()
    sockets = _bind_all(listeners, bounds)
    house = _House(bounds, mint, reports)
    servers: list[asyncio.Server] = []
    try:
        for listener, sock in zip(listeners, sockets, strict=True):
            enter = house.door(listener)
            for _ in range(ACCEPTS):
                twin = sock.dup()
                servers.append(
                    await asyncio.start_server(enter, sock=twin, backlog=BACKLOG, limit=READ_BYTES)
                )
        on_ready(
            [_bound(listener, sock) for listener, sock in zip(listeners, sockets, strict=True)]
        )
        await shutdown.wait()
        for server in servers:
            server.close()
        for sock in sockets:
            sock.close()
        await house.drain(drain_s)
    finally:
        for server in servers:
            server.close()
        for sock in sockets:
            sock.close()
        await house.cut()


class _House:
    """All connections of all listeners."""

    def __init__(self, bounds: Bounds, mint: Callable[[], str], reports: Reports) -> None:
        self._bounds = bounds
        self._mint = mint
        self._reports = reports
        self._context = WorkerContext(None)
        self._connections: dict[asyncio.Task[None], GuardedConnection] = {}
        self._config = Config()
        self._config.alpn_protocols = ["http/1.1"]
        self._config.include_server_header = False
        self._config.accesslog = None
        self._config.errorlog = None
        self._config.keep_alive_timeout = bounds.keep_alive_s
        self._config.keep_alive_max_requests = 10_000
        self._config.max_app_queue_size = 4
        limits = bounds.limits
        self._config.h11_max_incomplete_size = (
            limits.request_line_bytes_max + limits.header_bytes_max + 8
        )

    def door(
        self, listener: Listener
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        wrapped = ASGIWrapper(cast("ASGIFramework", listener.app))
        loop = asyncio.get_running_loop()

        def enter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(self._connections) >= self._bounds.connections_max:
                self._reports.refused(Fault.CONNECTIONS)
                writer.write(Refusal(Fault.CONNECTIONS, starts=True).response(self._mint()))
                writer.close()
                return
            connection = GuardedConnection(
                wrapped,
                loop,
                self._config,
                self._context,
                reader,
                writer,
                bounds=self._bounds,
                mint=self._mint,
                refused=self._reports.refused,
                door=listener.door,
            )
            task = loop.create_task(connection.run())
            self._connections[task] = connection
            task.add_done_callback(self._leave)

        return enter

    def _leave(self, task: asyncio.Task[None]) -> None:
        writer = self._connections.pop(task).writer
        if not writer.transport.is_closing():
            writer.transport.abort()
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._reports.failed(fault)

    async def drain(self, drain_s: float) -> None:
        await self._context.terminated.set()  # busy connections close after their answer
        for connection in self._connections.values():
            connection.hang_up()
        if self._connections:
            await asyncio.wait(set(self._connections), timeout=drain_s)

    async def cut(self) -> None:
        await self._context.terminated.set()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(set(self._connections), timeout=CUT_S)
        for connection in self._connections.values():
            connection.writer.transport.abort()


def _bind_all(listeners: Sequence[Listener], bounds: Bounds) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for listener in listeners:
            sockets.append(_bind(listener, bounds))  # noqa: PERF401  (what was bound must be closed)
    except BindError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bind(listener: Listener, bounds: Bounds) -> socket.socket:
    host, colon, port = listener.bind.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    where = f"The {listener.name} listener cannot use {listener.bind}"
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BindError(f"{where}: expected 'host:port' with a port of 0 to 65535.")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise BindError(f"{where}: '{host}' is no address of this machine.") from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, bounds.send_buffer_bytes)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as fault:
        sock.close()
        raise BindError(f"{where}: {_reason(fault)}") from None
    return sock


def _reason(fault: OSError) -> str:
    match fault.errno:
        case errno.EADDRINUSE:
            return "another program listens there. Stop it, or choose another port with --port."
        case errno.EACCES:
            return "ports below 1024 need a privilege. Choose another port with --port."
        case errno.EADDRNOTAVAIL:
            return "no interface of this machine has that address."
        case _:
            return f"{fault.strerror or 'the system refused'}."


def _bound(listener: Listener, sock: socket.socket) -> Bound:
    host, port = sock.getsockname()[:2]
    return Bound(listener.name, host, port)
