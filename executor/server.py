"""The executor's side of the socket: an io thread that decodes and encodes, and the engine loop in
the thread that called `serve`.

Theory of operation.  The two meet in `Mailbox` (commands in, under one lock) and in
`Io.send` (one call into the io loop a step).  The engine never waits for a socket: what a gateway
does not read is buffered up to a bound, then the connection is dropped and its requests aborted.
The io thread never waits for the engine either, except that it stops reading when the mailbox is
full.  Request numbers must rise within a connection; anything else is a broken peer.

Refuses to know: the model (`load` brings it), who is on the other side: the folder is 0700, so
whoever can connect is us.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import msgspec
import structlog

from executor import last_words
from executor.batch import Runner
from executor.block_manager import NotWiped
from executor.contract import Broken, Command, Loading, Message, ModelCard, Ready, Report, Submit
from executor.engine import Engine
from executor.grammar.desk import Desk
from executor.grammar.worker_setup import setup_of
from executor.inbox import Gone
from executor.keeper import computes_with
from executor.life import Opening
from executor.sequence import held_bytes
from executor.settings import Settings, memory_line, pool_blocks
from executor.wire import WireError, encode_message, read_command

UNSENT_BYTES_MAX: Final = 64 * 2**20
"""On top of it one message may stand, so that a model card always passes."""
CONNECTIONS_MAX: Final = 64
_INBOX_MAX: Final = 8192
_INBOX_BYTES_MAX: Final = 256 * 2**20  # of memory; one more may come on top of it
_SPARE_GRAMMARS: Final = 16
_SOCKET_PATH_BYTES_MAX: Final = 100
_log = structlog.get_logger()

Progress = Callable[[str, float | None], None]
Load = Callable[[Progress], tuple[ModelCard, Runner]]
"""Bring the model, telling progress.  ValueError with a sentence for the operator: it cannot be."""

Item = tuple[int, Command | Gone]


class Mailbox:
    """Commands on their way from the io thread to the engine loop."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._items: list[Item] = []
        self._bytes = 0
        self._resume: Callable[[], None] | None = None
        self._woken = False
        self._driven = False
        self.closed = False

    def put(self, item: Item, resume: Callable[[], None]) -> bool:
        """File it; False if the sender should pause until `resume` is called."""
        with self._lock:
            self._items.append(item)
            self._bytes += held_bytes(item[1]) if isinstance(item[1], Submit) else 0
            self._lock.notify()
            if len(self._items) < _INBOX_MAX and self._bytes < _INBOX_BYTES_MAX:
                return True
            self._resume = resume
            return False

    def take(self) -> Sequence[Item]:
        """Everything that has come.  Never waits."""
        if not self._items:  # racy and harmless: what is missed now is there the next time
            return ()
        with self._lock:
            items, self._items, self._bytes = self._items, [], 0
            resume, self._resume = self._resume, None
        if resume is not None:
            resume()
        return items

    def wake(self) -> None:
        """There is something for the engine elsewhere."""
        with self._lock:
            self._woken = True
            self._lock.notify()

    def open(self) -> None:
        """From now on there is an engine that takes."""
        self._driven = True

    def close(self) -> bool:
        """Nothing more will come.  Whether there is an engine to hear it."""
        with self._lock:
            self.closed = self._woken = True
            self._lock.notify()
        return self._driven

    def wait(self, timeout_s: float | None = None) -> None:
        """Until there is something to take, or `wake` was called since the last wait, or for so long."""
        with self._lock:
            self._lock.wait_for(lambda: self._items or self._woken, timeout_s)
            self._woken = False


class _Peer:
    """One connection, seen from the io loop."""

    def __init__(self, owner: int, writer: asyncio.StreamWriter) -> None:
        self.owner = owner
        self.writer = writer
        self.last_request = 0

    def write(self, frame: bytes) -> None:
        """Never waits.  A peer that leaves too much unread loses the connection."""
        if self.writer.is_closing():
            return
        if self.writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            _log.warning("gateway_does_not_read", connection=self.owner)
            self.writer.transport.abort()
            return
        self.writer.write(frame)


class Io:
    """The io thread.  `start` binds the socket before it returns; OSError or ValueError if it
    cannot."""

    def __init__(self, path: Path, mailbox: Mailbox) -> None:
        self._path = path
        self._mailbox = mailbox
        self._thread = threading.Thread(target=self._run, name="io", daemon=True)
        self._peers: dict[int, _Peer] = {}
        self._owners = 0
        self._greeting: bytes = encode_message(Loading(stage="starting"))
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    # Called by the engine's thread

    def start(self) -> None:
        _check_folder(self._path)
        self._path.unlink(missing_ok=True)
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_unix_server(self._serve, str(self._path))
        )
        self._path.chmod(0o600)
        self._thread.start()

    def announce(self, message: Message) -> None:
        """Say where we stand: to those connected, and first thing to whoever connects later."""
        frame = encode_message(message)
        self._loop.call_soon_threadsafe(self._broadcast, frame)

    def send(self, reports: Mapping[int, Report]) -> None:
        """One step's reports; one hand-over for all of them."""
        frames = deque((owner, encode_message(report)) for owner, report in reports.items())
        self._loop.call_soon_threadsafe(self._deliver, frames)

    def stop(self) -> None:
        """Flush what fits in the sockets, close them, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(timeout=5.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)
        self._path.unlink(missing_ok=True)

    def _resume(self) -> None:
        self._loop.call_soon_threadsafe(self._room.set)

    # In the io thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(_tell_fault)
        self._loop.run_forever()
        self._loop.close()

    def _broadcast(self, frame: bytes) -> None:
        self._greeting = frame
        for peer in self._peers.values():
            peer.write(frame)

    def _deliver(self, frames: deque[tuple[int, bytes]]) -> None:
        for owner, frame in frames:
            if (peer := self._peers.get(owner)) is not None:
                peer.write(frame)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        for peer in list(self._peers.values()):
            peer.writer.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if len(self._peers) >= CONNECTIONS_MAX:
            _log.warning("too_many_connections", limit=CONNECTIONS_MAX)
            writer.close()
            return
        self._owners += 1
        peer = self._peers[self._owners] = _Peer(self._owners, writer)
        try:
            peer.write(self._greeting)
            await self._read(peer, reader)
        except (WireError, OSError) as fault:
            _log.warning("gateway_lost", connection=peer.owner, fault=str(fault))
        finally:
            del self._peers[peer.owner]
            self._mailbox.put((peer.owner, Gone()), self._resume)
            writer.close()

    async def _read(self, peer: _Peer, reader: asyncio.StreamReader) -> None:
        while (command := await read_command(reader)) is not None:
            if isinstance(command, Submit):
                if command.request <= peer.last_request:
                    raise WireError("a request number was used again or went back")
                peer.last_request = command.request
            self._room.clear()
            if not self._mailbox.put((peer.owner, command), self._resume):
                await self._room.wait()


def _tell_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Not in asyncio's words, which show arguments and messages."""
    _log.error("io_failed", kind=type(context.get("exception")).__name__)


def serve(
    load: Load,
    socket: Path,
    *,
    settings: Settings,
    clock_ns: Callable[[], int],
    mailbox: Mailbox,
) -> None:
    """Load and serve until the thread is told to end (SystemExit from a signal handler).  Returns
    when step after step failed: the process should be replaced; and when `mailbox` is closed since the
    gateway is no more, with last words left beside the socket."""
    opening = Opening(clock_ns)
    io = Io(socket, mailbox)
    io.start()

    def progress(stage: str, part: float | None) -> None:
        opening.told(stage)
        io.announce(Loading(stage=stage, fraction=part))

    try:
        try:
            card, runner = load(progress)
        except (ValueError, OSError, MemoryError) as fault:
            reason = str(fault) or type(fault).__name__
            _log.error("model_not_loaded", kind=type(fault).__name__, reason=reason)
            io.announce(Broken(reason=reason))
            threading.Event().wait()  # until whoever supervises us has heard it and ends us
            return
        pool = pool_blocks(card.kv_blocks, settings.pool_part)
        card = msgspec.structs.replace(card, pool_blocks=pool)
        with Desk(
            setup_of(card),
            wake=mailbox.wake,
            clock_s=lambda: clock_ns() / 1e9,
            processes_max=2 * settings.seqs_max + _SPARE_GRAMMARS,  # some of whom wait
        ) as desk:
            life = opening.over(token_hex(8))
            engine = Engine(
                runner,
                mailbox.take,
                clock_ns=clock_ns,
                settings=settings,
                grammars=desk,
                computes=computes_with(card),
                life=life,
            )
            gc.collect()
            gc.freeze()  # the model and its tokenizer are not garbage, and are not looked at again
            io.announce(Ready(card=card, start=life.start))
            _log.info(
                "ready",
                architecture=card.architecture,
                device=card.device,
                memory=memory_line(card),
            )
            mailbox.open()
            _drive(engine, mailbox, io, clock_ns)
            if mailbox.closed:
                last_words.write(engine.last_words(), socket.parent)
    finally:
        with suppress(TimeoutError, RuntimeError):
            io.stop()


def _drive(engine: Engine, mailbox: Mailbox, io: Io, clock_ns: Callable[[], int]) -> None:
    while not engine.failed and not mailbox.closed:
        if not engine.busy:
            wake_ns = engine.wake_ns
            mailbox.wait(None if wake_ns is None else max(0.0, (wake_ns - clock_ns()) / 1e9))
        try:
            reports = engine.step()
        except NotWiped as fault:
            _log.error("engine_failed", reason=str(fault))
            return
        if reports:
            io.send(reports)
    if engine.failed:
        _log.error("engine_gives_up")


def _check_folder(path: Path) -> None:
    """Only we may reach the socket."""
    if len(bytes(path)) > _SOCKET_PATH_BYTES_MAX:
        raise ValueError(
            f"the socket path is over {_SOCKET_PATH_BYTES_MAX} bytes; use a shorter one"
        )
    mode = path.parent.stat().st_mode
    if mode & 0o077:
        raise ValueError(f"the socket's folder has mode {mode & 0o777:o}; it must be 700")
