"""A server that speaks the Redis protocol: calls of our scripts, within deadlines, retried by our own rule.

Refuses to know: buckets, leases, what an outage means.  Says what went wrong by a closed set and never
by the server's words or the URL, which may hold a password.  Source: MONEY.md §1 (Redis keys; scripts).

Theory of operation.  A call has a connection to itself and goes on when its caller has gone away, so
that no reply is ever left for the next one to read (CVE-2023-28858); each names a number that the reply
repeats.  What fails by its connection or its deadline is sent again, since every script is safe to
repeat; the library's own retries (10 times, 5 s each) are off.  A failed call is *unknown*: the server may
have done it, or may do it yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from redis import exceptions as wrong
from redis.asyncio.connection import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from policies.outage import Trouble
from tenants.tempo.scripts import Scripts


@dataclass(frozen=True, slots=True)
class Deadlines:
    """For a server on this machine or in the next rack.  `queue_ms`: for one of `connections` to be free,
    which is our own load and not the server's fault."""

    call_ms: int = 100
    connect_ms: int = 250
    queue_ms: int = 2_000
    attempts: int = 2
    connections: int = 16


class Failed(Exception):
    """The server was asked in vain; nobody knows whether it did it."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.value)
        self.trouble = trouble


class Untaken(Failed):
    """Known to have done nothing, and no fault of the server's: it was not asked, or not by this id any
    more."""


_BY_TYPE: Final[tuple[tuple[type[Exception], Trouble], ...]] = (
    (wrong.BusyLoadingError, Trouble.LOADING),
    (wrong.AuthenticationError, Trouble.REFUSED),
    (wrong.NoPermissionError, Trouble.REFUSED),
    (wrong.ReadOnlyError, Trouble.READ_ONLY),
    (wrong.OutOfMemoryError, Trouble.OUT_OF_MEMORY),
    (wrong.MasterDownError, Trouble.READ_ONLY),
    (wrong.ClusterDownError, Trouble.CLUSTER_DOWN),
    (wrong.AskError, Trouble.CLUSTER_DOWN),  # and MOVED: this server has not all slots
    (wrong.TimeoutError, Trouble.SLOW),
    (TimeoutError, Trouble.SLOW),
    (wrong.ConnectionError, Trouble.UNREACHABLE),
    (OSError, Trouble.UNREACHABLE),
)
_BY_WORD: Final = {
    "MISCONF": Trouble.MISCONFIGURED,
    "NOREPLICAS": Trouble.MISCONFIGURED,
    "BUSY": Trouble.SLOW,
}
_AGAIN: Final = frozenset({Trouble.UNREACHABLE, Trouble.SLOW})


def trouble_of(why: BaseException) -> Trouble:
    """What an exception of the library comes to; what a handshake met stands behind it."""
    if isinstance(why.__cause__, wrong.RedisError):
        return trouble_of(why.__cause__)
    first = str(why).split(" ", 1)[0]
    if isinstance(why, wrong.ResponseError) and first in _BY_WORD:
        return _BY_WORD[first]
    for kind, trouble in _BY_TYPE:
        if isinstance(why, kind):
            return trouble
    return Trouble.WRONG


class Link:
    """`url`: redis://, rediss:// or unix://."""

    def __init__(
        self, url: str, *, deadlines: Deadlines | None = None, scripts: Scripts | None = None
    ) -> None:
        self._deadlines = deadlines or Deadlines()
        self._scripts = scripts or Scripts()
        self.given_up: Trouble | None = None  # whoever waits for a connection is told at once
        self._nonces = count(1)
        self._by_function = True
        self._calls: set[asyncio.Task[Any]] = set()
        self._turns = asyncio.Semaphore(
            self._deadlines.connections
        )  # the pool's own is asked too late
        self._pool = BlockingConnectionPool.from_url(
            url,
            max_connections=self._deadlines.connections,
            timeout=self._deadlines.queue_ms / 1000,
            socket_timeout=self._deadlines.call_ms / 1000,
            socket_connect_timeout=self._deadlines.connect_ms / 1000,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=True,
            driver_info=None,
        )

    async def run(
        self, name: str, keys: Sequence[str], *args: object, forced: bool = False
    ) -> list[str]:
        """What the script of this name says.  Failed.  Goes on where the caller goes away.  `forced`: also
        while the server is given up."""
        nonce = str(next(self._nonces))
        said = await self._alone(self._run(name, keys, [nonce, *map(str, args)], forced=forced))
        first, *words = said.split(" ") if isinstance(said, str) else [""]
        if first != nonce:  # somebody else's, and so will be all that follow on that connection
            await self._pool.disconnect(inuse_connections=False)
            raise Failed(Trouble.WRONG)
        return words

    async def ask(self, *command: str) -> Any:
        """One plain command.  Failed."""
        try:
            return await self._alone(self._send(command, forced=True))
        except wrong.ResponseError as why:
            raise Failed(trouble_of(why)) from why

    async def aclose(self) -> None:
        """After the calls that are under way, which end by their deadlines."""
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._pool.disconnect()

    async def _alone(self, call: Any) -> Any:
        task = asyncio.get_running_loop().create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have gone: nobody else looks

    async def _run(
        self, name: str, keys: Sequence[str], args: Sequence[str], *, forced: bool
    ) -> Any:
        """By function; where the server has no functions, or we no right to load them, by digest."""
        for command in self._ways(name, (str(len(keys)), *keys, *args)):
            try:
                return await self._send(command, forced=forced)
            except wrong.NoScriptError:
                continue
            except wrong.ResponseError as why:
                if command[0] != "FCALL" or not await self._unknown(why, forced=forced):
                    raise Failed(trouble_of(why)) from why
        raise Failed(Trouble.WRONG)

    def _ways(self, name: str, call: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """Each is tried where the one before is not known there."""
        for _ in range(2):
            if self._by_function:
                yield ("FCALL", self._scripts.function(name), *call)
        yield ("EVALSHA", self._scripts.sha(name), *call)
        yield ("EVAL", self._scripts.script(name), *call)

    async def _unknown(self, why: wrong.ResponseError, *, forced: bool) -> bool:
        """Whether a function was refused as unknown, and not run: then load it, or go without."""
        says = str(why).lower()
        if "function not found" in says:
            try:
                await self._send(("FUNCTION", "LOAD", self._scripts.library), forced=forced)
            except wrong.ResponseError as refused:
                if "already exists" not in str(refused):  # else somebody was faster
                    self._give_up_functions(trouble_of(refused))
            return True
        if "unknown command" in says or isinstance(why, wrong.NoPermissionError):
            self._by_function = False
            return True
        return False

    def _give_up_functions(self, trouble: Trouble) -> None:
        """For good, where it is a matter of rights or versions; else the server is what fails."""
        if trouble not in {Trouble.REFUSED, Trouble.WRONG}:
            raise Failed(trouble)
        self._by_function = False

    async def _send(self, command: Sequence[str], *, forced: bool) -> Any:
        """Raises ResponseError for what the server answered, Failed for what it did not.  A second
        attempt is in the same turn: behind a crowd it would find out too late that nothing answers."""
        try:
            async with asyncio.timeout(self._deadlines.queue_ms / 1000):
                await self._turns.acquire()
        except TimeoutError:
            raise Untaken(Trouble.SLOW) from None
        try:
            if self.given_up is not None and not forced:
                raise Untaken(self.given_up)
            return await self._attempt(command)
        finally:
            self._turns.release()

    async def _attempt(self, command: Sequence[str]) -> Any:
        trouble = Trouble.UNREACHABLE
        for _ in range(self._deadlines.attempts):
            try:
                return await self._exchange(command)
            except wrong.ResponseError:
                raise
            except (wrong.RedisError, OSError) as why:
                trouble = trouble_of(why)
                if trouble not in _AGAIN:
                    break
        raise Failed(trouble)

    async def _exchange(self, command: Sequence[str]) -> Any:
        connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            await connection.send_command(*command)
            return await connection.read_response()
        except wrong.ResponseError:
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await self._pool.release(connection)
