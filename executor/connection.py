"""The gateway's side of the socket, for an executor that is there (`client` makes one be there).

`SocketExecutor` keeps a table of open turns for each connection.  Numbers are minted here and never
used again within a connection, so an update that comes late finds no turn and is dropped.  When the
connection goes, every open turn hears `Ended(cause=CRASHED)` at once.

Refuses to know: the model (no torch here: the public image carries none), HTTP, money, what the
process is beyond a command that serves a socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final, TypeVar

import msgspec

from executor.contract import (
    Abort,
    Broken,
    Cause,
    DeviceTime,
    ExecutorLost,
    Gauges,
    Listed,
    ListKept,
    Loading,
    Look,
    Measure,
    Message,
    ModelCard,
    Overview,
    Purge,
    Purged,
    Quota,
    Quotas,
    Ready,
    Report,
    Revoke,
    Revoked,
    Submit,
    Terms,
    Workload,
)
from executor.turn import MailboxTurn
from executor.wire import WireError, encode_command, read_message

T = TypeVar("T")
ABORT_WAIT_S: Final = 10.0
LOOK_WAIT_S: Final = 5.0
PAST_MOST: Final = 1024
"""Starts that are over and not yet accounted for; of more the oldest are forgotten."""
_UNSENT_BYTES_MAX: Final = 64 * 2**20


class _Connection:
    """One connection and its turns.  Ends once, with all of them."""

    def __init__(self, writer: asyncio.StreamWriter, clock_ns: Callable[[], int]) -> None:
        self._writer = writer
        self._clock_ns = clock_ns
        self._turns: dict[int, MailboxTurn] = {}
        self._minted = 0
        self._open = True
        self._looks: dict[str | None, asyncio.Future[Overview | None]] = {}
        self._numbers = count(1)
        self._orders: dict[int, asyncio.Future[Any]] = {}
        self._measured: asyncio.Future[Gauges | None] | None = None
        self.start = ""  # of the executor at the other end

    @property
    def turns(self) -> int:
        return len(self._turns)

    def submit(self, job: Submit) -> MailboxTurn:
        self._check_room()
        numbered = msgspec.structs.replace(job, request=self._minted + 1)
        try:
            frame = encode_command(numbered)
        except WireError as fault:  # nothing was minted or sent; the gateway's limits are far below
            raise ExecutorLost(f"the request cannot be sent: {fault}") from None
        self._minted += 1
        turn = MailboxTurn(numbered, clock_ns=self._clock_ns, start=self.start)
        self._turns[turn.request] = turn
        self._writer.write(frame)
        return turn

    def renew(self, workloads: tuple[Workload, ...]) -> None:
        self._writer.write(encode_command(Terms(workloads=workloads)))

    def ration(self, quotas: tuple[Quota, ...]) -> None:
        self._writer.write(encode_command(Quotas(quotas=quotas)))

    def order(
        self, numbered: Callable[[int], Revoke | Purge | ListKept]
    ) -> asyncio.Future[Any | None]:
        """Its answer, or None when the connection ends first.  Who waits no longer cancels it."""
        self._check_room()
        number = next(self._numbers)
        told = self._orders[number] = asyncio.get_running_loop().create_future()
        told.add_done_callback(lambda _: self._orders.pop(number, None))
        self._writer.write(encode_command(numbered(number)))
        return told

    def _check_room(self) -> None:
        """Raises ExecutorLost where nothing more can be sent."""
        if not self._open or self._writer.is_closing():
            raise ExecutorLost("the executor is gone; try again in a few seconds")
        if self._writer.transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            raise ExecutorLost("the executor does not read what it is sent")

    def look(self, tenant: str | None) -> asyncio.Future[Overview | None]:
        """What the next report will show, the same for all who ask for `tenant` until it comes; None when
        the connection ends first.  Not theirs to cancel."""
        looked = self._looks.get(tenant)
        if looked is None:
            looked = self._looks[tenant] = asyncio.get_running_loop().create_future()
            self._writer.write(encode_command(Look(tenant=tenant)))
        return looked

    def measure(self) -> asyncio.Future[Gauges | None]:
        """The next report's, the same for all who ask until it comes; else as `look`."""
        if self._measured is None:
            self._measured = asyncio.get_running_loop().create_future()
            self._writer.write(encode_command(Measure()))
        return self._measured

    async def leave(self, turn: MailboxTurn, wait_s: float) -> None:
        """Let go of a turn, ended or not.  However this is left, by a second cancellation too, the
        turn is out of the table and has its last word."""
        try:
            if turn.ended is None:
                if self._open and not self._writer.is_closing():
                    self._writer.write(encode_command(Abort(request=turn.request)))
                async with asyncio.timeout(wait_s):
                    await turn.wait_ended()
        except TimeoutError:
            pass
        finally:
            self._turns.pop(turn.request, None)
            turn.lose(Cause.ABORTED, "the executor did not confirm the abort")

    def deliver(self, report: Report) -> None:
        for update in report.updates:
            if (turn := self._turns.get(update.request)) is not None:
                turn.push(update)
        measured, self._measured = self._measured, None
        _tell(measured, report.gauges)
        for each in report.overviews:
            if (looked := self._looks.pop(each.tenant, None)) is not None:
                looked.set_result(each)
        answers: tuple[Revoked | Purged | Listed, ...] = (
            *report.revoked,
            *report.purged,
            *report.listed,
        )
        for answer in answers:
            _tell(self._orders.pop(answer.number, None), answer)

    def lose(self, why: str) -> None:
        self._open = False
        for looked in self._looks.values():
            looked.set_result(None)
        self._looks.clear()
        _tell(self._measured, None)
        for asked in self._orders.values():
            _tell(asked, None)
        self._orders.clear()
        for turn in self._turns.values():
            turn.lose(Cause.CRASHED, why)
        self._turns.clear()
        self._writer.close()


def _tell(asked: asyncio.Future[T | None] | None, word: T | None) -> None:
    if asked is not None and not asked.done():
        asked.set_result(word)


class SocketExecutor:
    """Implements `contract.Executor` over one socket at a time.  `serve` is its life; without it
    there is no executor, and turns raise ExecutorLost."""

    def __init__(
        self,
        *,
        on_message: Callable[[Message], None] | None = None,
        clock_ns: Callable[[], int] = monotonic_ns,
        abort_wait_s: float = ABORT_WAIT_S,
        look_wait_s: float = LOOK_WAIT_S,
    ) -> None:
        self._on_message = on_message
        self._clock_ns = clock_ns
        self._abort_wait_s = abort_wait_s
        self._look_wait_s = look_wait_s
        self._workloads: tuple[Workload, ...] | None = None
        self._quotas: tuple[Quota, ...] | None = None
        self._connection: _Connection | None = None
        self._card: ModelCard | None = None
        self._gauges = Gauges()
        self._past: deque[DeviceTime] = deque(maxlen=PAST_MOST)

    @property
    def card(self) -> ModelCard | None:
        return self._card

    @property
    def gauges(self) -> Gauges:
        return self._gauges

    async def measure(self) -> Gauges:
        return await self._word(self._ready().measure(), "what it has done")

    def take_past(self) -> tuple[DeviceTime, ...]:
        past = tuple(self._past)
        self._past.clear()
        return past

    @property
    def open_turns(self) -> int:
        """Turns in the table; 0 when nobody is inside `turn`.  For leak checks."""
        return self._connection.turns if self._connection is not None else 0

    def set_terms(self, workloads: tuple[Workload, ...]) -> None:
        self._workloads = workloads
        if self._connection is not None and self._card is not None:
            self._connection.renew(workloads)

    def set_quotas(self, quotas: tuple[Quota, ...]) -> None:
        self._quotas = quotas
        if self._connection is not None and self._card is not None:
            self._connection.ration(quotas)

    async def look(self, tenant: str | None = None) -> Overview:
        return await self._word(self._ready().look(tenant), "who holds it")

    async def revoke(self, tags: tuple[bytes, ...], snapshot: int) -> Revoked:
        def order(number: int) -> Revoke:
            return Revoke(number=number, tags=tags, snapshot=snapshot)

        revoked: Revoked = await self._ordered(order, "that it is revoked")
        return revoked

    async def purge(
        self, owner: str | None = None, tags: tuple[bytes, ...] = (), *, spare: bool = False
    ) -> Purged:
        def order(number: int) -> Purge:
            return Purge(number=number, owner=owner, tags=tags, spare=spare)

        purged: Purged = await self._ordered(order, "that it is purged")
        return purged

    async def list_kept(self, owner: str | None = None, *, by_label: bool = False) -> Listed:
        def order(number: int) -> ListKept:
            return ListKept(number=number, owner=owner, by_label=by_label)

        listed: Listed = await self._ordered(order, "what is kept")
        return listed

    async def _ordered(
        self, numbered: Callable[[int], Revoke | Purge | ListKept], what: str
    ) -> Any:
        told = self._ready().order(numbered)
        try:
            return await self._word(told, what)
        finally:
            told.cancel()  # asked again, it is another: a silent executor gathers none of them

    def _ready(self) -> _Connection:
        if self._connection is None or self._card is None:
            raise ExecutorLost("no executor is ready; try again in a few seconds")
        return self._connection

    async def _word(self, told: asyncio.Future[T | None], what: str) -> T:
        """Its answer, which others may wait for too."""
        try:
            async with asyncio.timeout(self._look_wait_s):
                said = await asyncio.shield(told)
        except TimeoutError:
            raise ExecutorLost(
                f"the executor did not say within {self._look_wait_s:g} s {what}; try again"
            ) from None
        if said is None:
            raise ExecutorLost("the executor is gone; try again in a few seconds")
        return said

    @asynccontextmanager
    async def turn(self, job: Submit) -> AsyncIterator[MailboxTurn]:
        connection = self._ready()
        turn = connection.submit(job)
        try:
            yield turn
        finally:
            await connection.leave(turn, self._abort_wait_s)

    async def serve(self, path: Path) -> str:
        """Connect, and carry messages until the connection ends; returns why it did.  OSError if
        nobody listens at `path`."""
        assert self._connection is None, "one connection at a time"
        reader, writer = await asyncio.open_unix_connection(str(path))
        self._connection = connection = _Connection(writer, self._clock_ns)
        why = "the executor died under this request"
        try:
            while (message := await read_message(reader)) is not None:
                self._hear(connection, message)
        except WireError as fault:
            why = f"the executor's connection broke: {fault}"
        except OSError as fault:
            why = f"the executor's connection broke: {fault.strerror or type(fault).__name__}"
        finally:
            if self._gauges.device is not None:
                self._past.append(self._gauges.device)
            self._connection, self._card, self._gauges = None, None, Gauges()
            connection.lose(why)
        return why

    def _hear(self, connection: _Connection, message: Message) -> None:
        match message:
            case Report():
                self._gauges = message.gauges
                connection.deliver(message)
            case Ready(card=card, start=start):
                self._card = card
                connection.start = start
                if self._workloads is not None:  # before anything can be submitted
                    connection.renew(self._workloads)
                if self._quotas is not None:
                    connection.ration(self._quotas)
            case Loading() | Broken():
                self._card = None
        if self._on_message is not None:
            self._on_message(message)
