"""The executor as a gateway has it (this and `contract` are all that it imports of one).
`ExecutorProcess` starts the process, connects, and starts it again when it dies.

Theory of operation.  One task loops: start → connect → carry messages until the connection ends →
kill what is left → wait → again.  The wait doubles from `first_s` and starts over after
`healthy_s` of service.  An executor that calls itself broken is not hopeless (an operator may put
the file right), but is tried ever more rarely.  The child's standard input is a pipe that only we
hold: should this process die without a word, the child reads its end and goes too.

Refuses to know: what the command does beyond serving the socket named by `--socket`.  No torch in
here or below: the public image carries none.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import Final, Self

from executor.connection import ABORT_WAIT_S, SocketExecutor
from executor.contract import (
    Broken,
    DeviceTime,
    ExecutorLost,
    Gauges,
    Listed,
    Loading,
    Message,
    ModelCard,
    Overview,
    Purged,
    Quota,
    Ready,
    Revoked,
    Submit,
    Turn,
    Workload,
)

__all__ = ["Backoff", "ExecutorProcess", "SocketExecutor", "State", "StateKind"]

_CONNECT_EVERY_S: Final = 0.05
_CONNECT_S_MAX: Final = 120.0
_TERMINATE_S_MAX: Final = 5.0


class StateKind(StrEnum):
    LOADING = "loading"
    READY = "ready"
    BROKEN = "broken"
    RESTARTING = "restarting"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class State:
    """`stage` and `fraction` (0..1 or None) while loading; `reason`, a sentence for the operator,
    when broken or restarting."""

    kind: StateKind
    stage: str = ""
    fraction: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the n-th start in a row (n from 0) that follows no healthy one."""

    first_s: float = 0.2
    crashed_max_s: float = 5.0
    broken_max_s: float = 30.0
    healthy_s: float = 30.0

    def wait_s(self, failures: int, *, broken: bool) -> float:
        most = self.broken_max_s if broken else self.crashed_max_s
        return min(most, self.first_s * 2.0 ** min(failures, 16))


class ExecutorProcess:
    """Implements `contract.Executor` by a child process.  `command` is an argument list, to which
    `--socket PATH` is added; `socket_dir` is made with mode 0700 if it is not there."""

    def __init__(
        self,
        command: Sequence[str],
        socket_dir: Path,
        *,
        on_event: Callable[[State], None] | None = None,
        backoff: Backoff | None = None,
        clock_s: Callable[[], float] = monotonic,
        clock_ns: Callable[[], int] = monotonic_ns,
        abort_wait_s: float = ABORT_WAIT_S,
    ) -> None:
        self._command = tuple(command)
        self._dir = socket_dir
        self._on_event = on_event
        self._backoff = backoff or Backoff()
        self._clock_s = clock_s
        self._socket = SocketExecutor(
            on_message=self._hear, clock_ns=clock_ns, abort_wait_s=abort_wait_s
        )
        self._state = State(StateKind.LOADING, stage="starting")
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._process: Process | None = None
        self._broken: str | None = None
        self._starts = 0
        self._ready_at_s: float | None = None

    # contract.Executor

    @property
    def card(self) -> ModelCard | None:
        return self._socket.card

    @property
    def gauges(self) -> Gauges:
        return self._socket.gauges

    async def measure(self) -> Gauges:
        return await self._socket.measure()

    def take_past(self) -> tuple[DeviceTime, ...]:
        return self._socket.take_past()

    def set_terms(self, workloads: tuple[Workload, ...]) -> None:
        self._socket.set_terms(workloads)

    def set_quotas(self, quotas: tuple[Quota, ...]) -> None:
        self._socket.set_quotas(quotas)

    async def revoke(self, tags: tuple[bytes, ...], snapshot: int) -> Revoked:
        return await self._socket.revoke(tags, snapshot)

    async def purge(
        self, owner: str | None = None, tags: tuple[bytes, ...] = (), *, spare: bool = False
    ) -> Purged:
        return await self._socket.purge(owner, tags, spare=spare)

    async def list_kept(self, owner: str | None = None, *, by_label: bool = False) -> Listed:
        return await self._socket.list_kept(owner, by_label=by_label)

    async def look(self, tenant: str | None = None) -> Overview:
        return await self._socket.look(tenant)

    def turn(self, job: Submit) -> AbstractAsyncContextManager[Turn]:
        return self._socket.turn(job)

    # Life

    @property
    def state(self) -> State:
        return self._state

    @property
    def restarts(self) -> int:
        """Starts beyond the first."""
        return max(0, self._starts - 1)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def open_turns(self) -> int:
        return self._socket.open_turns

    async def start(self) -> None:
        """Begin to supervise; does not wait for the model.  ValueError for an unusable folder."""
        assert self._task is None, "started twice"
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._dir.stat().st_mode & 0o077:
            raise ValueError(f"{self._dir} is open to others; it must have mode 0700")
        self._task = asyncio.create_task(self._supervise(), name="executor-supervisor")

    async def wait_ready(self, timeout_s: float) -> ModelCard:
        """The card, once the executor serves.  ExecutorLost with the reason if it is broken, closed
        or not ready in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if (card := self.card) is not None:
                        return card
                    if self._state.kind in {StateKind.BROKEN, StateKind.CLOSED}:
                        raise ExecutorLost(self._state.reason)
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            state = self._state
            last = state.stage or state.reason
            raise ExecutorLost(f"not ready within {timeout_s:g} s ({state.kind}: {last})") from None

    async def close(self) -> None:
        """End the executor and every open turn.  Again is fine."""
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and (fault := task.exception()) is not None:
                raise fault
        self._enter(State(StateKind.CLOSED, reason="the executor was closed"))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _supervise(self) -> None:
        failures = 0
        while True:
            self._starts += 1
            self._broken = self._ready_at_s = None
            why = await self._one_life(self._dir / f"executor-{self._starts}.sock")
            ready_at_s = self._ready_at_s
            if ready_at_s is not None and self._clock_s() - ready_at_s >= self._backoff.healthy_s:
                failures = 0
            wait_s = self._backoff.wait_s(failures, broken=self._broken is not None)
            failures += 1
            if self._broken is None:
                self._enter(State(StateKind.RESTARTING, reason=why))
            await asyncio.sleep(wait_s)

    async def _one_life(self, path: Path) -> str:
        """Start, serve, clean up; returns why it ended."""
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command,
                "--socket",
                str(path),
                stdin=PIPE,
                stdout=DEVNULL,
                start_new_session=True,  # Ctrl-C is the gateway's to hear, and then to close us
            )
        except OSError as fault:
            return f"the executor could not be started: {fault.strerror}"
        try:
            return await self._connect(process, path)
        finally:
            self._process = None
            ending = asyncio.create_task(_end(process), name="executor-ending")
            try:
                await asyncio.shield(ending)
            finally:
                await ending  # `close` may cancel us just here
                path.unlink(missing_ok=True)  # noqa: ASYNC240 — a local name, microseconds

    async def _connect(self, process: Process, path: Path) -> str:
        """Knock until the process opens its socket, then carry messages."""
        exited = asyncio.create_task(process.wait())
        try:
            give_up_s = self._clock_s() + _CONNECT_S_MAX
            while self._clock_s() < give_up_s:
                if exited.done():
                    return f"the executor ended with status {process.returncode} before it served"
                try:
                    why = await self._socket.serve(path)
                except (FileNotFoundError, ConnectionRefusedError):
                    await asyncio.wait({exited}, timeout=_CONNECT_EVERY_S)
                    continue
                return self._broken or why
            return f"the executor opened no socket within {_CONNECT_S_MAX:g} s"
        finally:
            exited.cancel()

    def _hear(self, message: Message) -> None:
        match message:
            case Loading(stage=stage, fraction=fraction):
                if self._broken is None:
                    self._enter(State(StateKind.LOADING, stage=stage, fraction=fraction))
            case Ready():
                self._ready_at_s = self._clock_s()
                self._enter(State(StateKind.READY))
            case Broken(reason=reason):
                self._broken = reason
                self._enter(State(StateKind.BROKEN, reason=reason))
                if self._process is not None and self._process.returncode is None:
                    self._process.terminate()  # it has said all it will

    def _enter(self, state: State) -> None:
        if state == self._state:
            return
        self._state = state
        self._changed.set()
        if self._on_event is not None:
            self._on_event(state)


async def _end(process: Process) -> None:
    """Ask, wait, then make sure."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()  # before its input ends, which would say that we were killed
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_TERMINATE_S_MAX):
                await process.wait()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
