"""Serve several ASGI apps on several sockets in one process: HTTP/1.1 only, guarded, drained at the
end.

Refuses to know: what the apps do, signals (the caller sets `draining` and `shutdown`), TLS (terminate it in
front), ASGI lifespan (the composition root starts and stops what it made).
Why not `hypercorn.asyncio.serve`: it serves one app, cuts streams 3 s after the signal, speaks HTTP/2
when asked, and waits for ever on a peer that does not read.
Source: API.md §0 (1, 2), SECURITY.md §0.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.typing import ASGIFramework

from gateway.connection import READ_BYTES, Bounds, GuardedConnection, TurnAway, check_hypercorn
from gateway.connections import Connections, Counts
from gateway.wire_guard import Fault

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
FILES_KEPT = 256
"""Descriptors for what is no connection."""
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
    """`connections`: what those of this listener do at the moment."""

    name: str
    host: str
    port: int
    connections: Callable[[], Counts] = field(default=Counts, compare=False)

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
    draining: asyncio.Event | None = None,
) -> None:
    """Serve until `shutdown` is set, then refuse new connections, let running requests go on for `drain_s`, and
    cancel what is left, once.  From `draining` on (without one: from `shutdown` on) connections close behind their
    answers, which say so, and at once where nothing is asked on them.  BindError before anything is served.
    Cancelling `serve` is a shutdown without drain."""
    check_hypercorn()
    bounds = bounds or Bounds()
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY:
        most = places(bounds.connections_max, files, len(listeners))
        bounds = replace(bounds, connections_max=most)
    sockets = _bind_all(listeners, bounds)
    halls = [_Hall(listener, bounds, mint, reports) for listener in listeners]
    servers: list[asyncio.Server] = []
    try:
        for hall, sock in zip(halls, sockets, strict=True):
            for _ in range(ACCEPTS):
                twin = sock.dup()
                servers.append(
                    await asyncio.start_server(
                        hall.enter, sock=twin, backlog=BACKLOG, limit=READ_BYTES
                    )
                )
        on_ready([hall.bound(sock) for hall, sock in zip(halls, sockets, strict=True)])
        await _either(draining or shutdown, shutdown)
        for hall in halls:
            hall.drain()
        await shutdown.wait()
        for server in servers:
            server.close()
        for sock in sockets:
            sock.close()
        await _all_over([task for hall in halls for task in hall.close()], drain_s)
    finally:
        for server in servers:
            server.close()
        for sock in sockets:
            sock.close()
        await _all_over([task for hall in halls for task in hall.cut()], CUT_S)
        for hall in halls:
            hall.drop()


def places(most: int, files: int, listeners: int) -> int:
    """For each listener, of `files` descriptors: with none left, accepting fails and nobody makes room.  An eighth more
    of them belongs to who leaves (`Connections`)."""
    return max(1, min(most, (files - FILES_KEPT) * 8 // (9 * listeners)))


async def _either(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(each.wait()) for each in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()


async def _all_over(tasks: Sequence[asyncio.Task[None]], within_s: float) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=within_s)


class _Hall:
    """All connections of a listener.  Each has places of its own, so that whoever takes all of the public one's keeps no
    operator from the other."""

    def __init__(
        self, listener: Listener, bounds: Bounds, mint: Callable[[], str], reports: Reports
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._app = ASGIWrapper(cast("ASGIFramework", listener.app))
        self._bounds = bounds
        self._mint = mint
        self._reports = reports
        self._context = WorkerContext(None)
        self._tasks: dict[asyncio.Task[None], GuardedConnection] = {}
        self._connections = Connections(
            bounds.connections_max, bounds.keep_alive_s, bounds.head_grace_s
        )
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

    def bound(self, sock: socket.socket) -> Bound:
        host, port = sock.getsockname()[:2]
        return Bound(self._listener.name, host, port, self._connections.counts)

    def enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections = self._connections
        room = connections.has_room()
        connection = GuardedConnection(
            self._app,
            self._loop,
            self._config,
            self._context,
            reader,
            writer,
            bounds=self._bounds,
            mint=self._mint,
            refused=self._reports.refused,
            connections=connections,
            door=self._listener.door,
        )
        connections.comes(connection)
        if not room:
            connection.turn_away(Fault.CONNECTIONS)
        task = self._loop.create_task(connection.run())
        self._tasks[task] = connection
        task.add_done_callback(self._leave)

    def _leave(self, task: asyncio.Task[None]) -> None:
        connection = self._tasks.pop(task)
        self._connections.gone(connection)
        if not connection.writer.transport.is_closing():
            connection.writer.transport.abort()
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._reports.failed(fault)

    def drain(self) -> None:
        self._config.keep_alive_max_requests = 0  # each answer says `Connection: close`
        self._connections.drain()

    def close(self) -> list[asyncio.Task[None]]:
        """Who has sent no whole head is told; what is left is still at work."""
        self._connections.close()
        return list(self._tasks)

    def cut(self) -> list[asyncio.Task[None]]:
        self.drain()
        for task in self._tasks:
            task.cancel()
        return list(self._tasks)

    def drop(self) -> None:
        for connection in self._tasks.values():
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
