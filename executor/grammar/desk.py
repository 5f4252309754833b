"""The desk between the engine and the grammars' processes: which tokens may come next is worked out
there while the model runs.

Theory of operation.  `Desk` starts one worker (`grammar.worker`), which forks a process for each
grammar that is opened; they talk over a socket of their own.  A thread in here carries frames: the
engine's thread leaves orders and finds masks and news, and never waits.  A grammar that takes too much
time or memory ends its own process, and so is refused; the others do not notice.  Nothing compiled is
kept or shared, so nobody can tell by the time it takes what another has compiled.  Who is next: `lines`.

A worker that dies is started again.  Processes that it forked live on; those it was about to fork are
asked for once more.

Refuses to know: llguidance, logits, sequences.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from selectors import EVENT_READ, DefaultSelector
from typing import Final, Self

import structlog

from executor.contract import Cause, Grammar
from executor.grammar.frames import Alive, Compile, FrameError, Frames, Mask, Next, encode, word
from executor.grammar.host import Worker
from executor.grammar.lines import Lines, Room
from executor.grammar.protocol import Key, News, User
from executor.grammar.worker_setup import Setup

STARTS_MAX: Final = 2
"""How often a process is asked for before its request is told that the fault is ours."""
_START_S_MAX: Final = 30.0
_RECEIVE_BYTES: Final = 262_144
_SEND_S_MAX: Final = 5.0
_log = structlog.get_logger()


@dataclass(slots=True)
class _Process:
    """One grammar's."""

    key: Key
    user: User
    grammar: Grammar
    starts: int = 0
    worker: int = 0
    started_s: float = 0.0
    channel: socket.socket | None = None
    frames: Frames = field(default_factory=Frames)
    alive: bool = False
    compiled: bool = False


class Desk:
    """Implements `Grammars` with processes.  `open` … `close` are the engine thread's; everything else
    happens in the desk's own.  `wake` is called from there when there is something to find."""

    def __init__(
        self,
        setup: Setup,
        *,
        wake: Callable[[], None],
        clock_s: Callable[[], float],
        processes_max: int = 128,
        compiling_max: int = 4,
    ) -> None:
        self._worker = Worker(setup, clock_s)
        self._wake = wake
        self._clock_s = clock_s
        self._orders: deque[Callable[[], object]] = deque()
        self._news: deque[News] = deque()
        self._masks: dict[Key, bytes] = {}
        self._processes: dict[Key, _Process] = {}  # those with a socket
        self._lines: Lines[_Process] = Lines(Room(processes_max, compiling_max))
        self._selector = DefaultSelector()
        self._poke, self._poked = socket.socketpair()
        self._poke.setblocking(False)
        self._stopping = False
        self._fresh = False
        self._thread = threading.Thread(target=self._run, name="grammars", daemon=True)

    # The engine's thread

    def open(self, key: Key, user: User, grammar: Grammar) -> None:
        self._order(lambda: self._lines.join(_Process(key, user, grammar)))

    def news(self) -> list[News]:
        if self._orders:
            self._poke_thread()
        return [self._news.popleft() for _ in range(len(self._news))]

    def mask(self, key: Key) -> bytes | None:
        return self._masks.get(key)

    def advance(self, key: Key, token: int) -> None:
        del self._masks[key]
        self._orders.append(lambda: self._say(key, token))

    def close(self, key: Key) -> None:
        self._order(lambda: self._forget(key))

    def __enter__(self) -> Self:
        """Begin, without waiting for the worker."""
        self._selector.register(self._poked, EVENT_READ)
        self._thread.start()
        self._order(self._employ)
        return self

    def __exit__(self, *_: object) -> None:
        """End every process, the worker too."""
        self._stopping = True
        self._order(lambda: None)
        self._thread.join(timeout=10.0)
        self._poke.close()
        self._poked.close()

    def _order(self, order: Callable[[], object]) -> None:
        self._orders.append(order)
        self._poke_thread()

    def _poke_thread(self) -> None:
        try:
            self._poke.send(b"!")
        except BlockingIOError:
            pass  # pokes enough are on their way

    # The desk's thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                waiting = self._lines or any(not one.alive for one in self._processes.values())
                for ready, _ in self._selector.select(timeout=1.0 if waiting else None):
                    self._attend(ready.fileobj, ready.data)
                while self._orders:
                    self._orders.popleft()()
                self._start_some()
                if self._fresh or self._news:
                    self._fresh = False
                    self._wake()
        finally:
            for key in list(self._processes):
                self._forget(key)
            self._worker.dismiss()
            self._selector.close()

    def _attend(self, readable: object, process: _Process | None) -> None:
        if readable is self._poked:
            self._poked.recv(4096)
        elif process is None:
            self._worker_lost()
        elif process.channel is readable:  # and not closed a moment ago
            self._hear(process)

    def _start_some(self) -> None:
        """Fork for those in line, as far as there is room."""
        now_s = self._clock_s()
        for one in [one for one in self._processes.values() if not one.alive]:
            if now_s - one.started_s > _START_S_MAX:
                self._again(one)
        while self._lines and self._employ():
            process = self._lines.next(self._processes.values())
            if process is None:
                break
            self._fork(process)

    def _employ(self) -> bool:
        """Whether there is a worker; start one if it is time to."""
        if self._worker.line is not None:
            return True
        if self._worker.hopeless:
            for process in self._lines.clear():
                self._news.append(News(process.key, Cause.GRAMMAR, self._worker.hopeless))
            return False
        line = self._worker.hire()
        if line is not None:
            self._selector.register(line, EVENT_READ, None)
        return line is not None

    def _worker_lost(self) -> None:
        if self._worker.line is not None:
            self._selector.unregister(self._worker.line)
            self._worker.dismiss()

    def _fork(self, process: _Process) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(_SEND_S_MAX)
        process.starts += 1
        process.worker = self._worker.hires
        process.started_s = self._clock_s()
        process.channel, process.frames = ours, Frames()
        self._processes[process.key] = process
        self._selector.register(ours, EVENT_READ, process)
        with theirs:
            self._worker.fork(theirs)  # a worker that is gone shows as the end of `ours`

    def _hear(self, process: _Process) -> None:
        assert process.channel is not None
        try:
            data = process.channel.recv(_RECEIVE_BYTES)
            for body in process.frames.feed(data):
                if process.channel is not None:  # else it was refused just now
                    self._heard(process, word(body))
        except (OSError, FrameError) as fault:
            _log.warning("grammar_process_lost", kind=type(fault).__name__)
            data = b""
        if not data:
            self._ended(process)

    def _heard(self, process: _Process, said: object) -> None:
        assert process.channel is not None
        match said:
            case Alive():
                process.alive = True
                process.channel.sendall(encode(Compile(process.grammar)))
            case Mask(allowed=allowed):
                self._masks[process.key] = allowed
                self._fresh = True
                if not process.compiled:
                    process.compiled = True
                    self._news.append(News(process.key))
            case _:
                reason = getattr(said, "reason", "")
                self._drop(process)
                self._news.append(News(process.key, Cause.GRAMMAR, reason))

    def _ended(self, process: _Process) -> None:
        """The stream is over.  Once it was alive, its own limits ended it."""
        if process.key not in self._processes:
            return
        if not process.alive:
            self._again(process)
            return
        self._drop(process)
        what = "an answer by it" if process.compiled else "compiling it"
        detail = f"{what} took more processor time or memory than a request may use"
        self._news.append(News(process.key, Cause.GRAMMAR_BUDGET, detail))

    def _again(self, process: _Process) -> None:
        """It never began, so the worker is gone, or will not be missed."""
        self._drop(process)
        if process.worker == self._worker.hires:
            self._worker_lost()
        if process.starts < STARTS_MAX:
            self._lines.join(process, first=True)
        else:
            detail = "no process for its grammar could be started"
            self._news.append(News(process.key, Cause.CRASHED, detail))

    def _say(self, key: Key, token: int) -> None:
        process = self._processes.get(key)
        if process is None or process.channel is None:
            return  # its end is among the news
        try:
            process.channel.sendall(encode(Next(token)))
        except OSError:
            self._ended(process)

    def _forget(self, key: Key) -> None:
        """Closed by the engine, wherever it stands."""
        if (process := self._processes.get(key)) is not None:
            self._drop(process)
        self._lines.leave(key)
        self._masks.pop(key, None)

    def _drop(self, process: _Process) -> None:
        """Close its socket; the process reads the end of it, or its limits end it."""
        del self._processes[process.key]
        if process.channel is not None:
            self._selector.unregister(process.channel)
            process.channel.close()
            process.channel = None
