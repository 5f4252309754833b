"""Send whole completions at a fixed arrival rate or a fixed concurrency, and time them.

    python -m tests.bench.arrivals < JOB > SEEN      (a `Job` and a `Seen`, as JSON)

A process of its own, so that what it costs is told apart.  Open loop: arrivals are Poisson, drawn from a
seed before the first is sent, and a request's time counts from when it should have been sent, whether or
not a connection was free: a server that stalls makes all wait who should have come meanwhile (no
coordinated omission).  What has no answer at the end counts as having waited until then.
Sends by a loop over `select`, whose timer counts microseconds; epoll's and libuv's count milliseconds.
Refuses to know: who serves, what a ledger is, any address that is not loopback.
Source: G. Tene, "How NOT to measure latency" (coordinated omission).
"""

from __future__ import annotations

import asyncio
import random
import re
import selectors
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec

from tests.bench.framing import Chunked, Sized, WireError
from tests.bench.wire import Endpoint

REPOSITORY = Path(__file__).resolve().parents[2]
CONNECTIONS_MAX = 512  # select knows 1,024 descriptors
GRACE_S = 10.0
"""For what is unanswered when the last has arrived."""
ERRORS_TOLD, ERROR_BYTES_MAX = 5, 200
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_USAGE = re.compile(rb'"usage": ?(\{(?:[^{}]|\{[^{}]*\})*\})')


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """`url`: of the endpoint.  Request k bears `tokens[k % n]` and `bodies[k % n]`.  `rate_per_s`: so many
    arrive for `seconds`; None: `concurrency` are under way for so long.  `each`: how every single one ended is
    told too."""

    url: str
    tokens: tuple[str, ...]
    bodies: tuple[str, ...]
    seconds: float
    rate_per_s: float | None = None
    concurrency: int = 1
    seed: str = "bench"
    each: bool = False


class End(msgspec.Struct, frozen=True, array_like=True):
    """`of`: which of the job's tokens it bore.  `status` 0: no answer, or none that is whole."""

    of: int
    status: int
    took_ms: float


class Seen(msgspec.Struct, kw_only=True):
    """`took_ms`: of every request, answered or not, from when it should have been sent.  `late_ms`: how
    late each was sent though a connection was free: the generator's own doing.  `failed` counts all that
    did not end whole; `errors` are the first of them in words."""

    took_ms: list[float] = []
    late_ms: list[float] = []
    failed: int = 0
    errors: list[str] = []
    ends: list[End] = []
    input_tokens: int = 0
    output_tokens: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def requests(self) -> int:
        return len(self.took_ms)

    @property
    def whole(self) -> int:
        return self.requests - self.failed


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


_USAGE_OF = msgspec.json.Decoder(_Usage)


def arrivals(job: Job) -> Iterator[float]:
    """Seconds from the start at which requests arrive."""
    assert job.rate_per_s is not None
    rng = random.Random(job.seed)
    at_s = rng.expovariate(job.rate_per_s)
    while at_s < job.seconds:
        yield at_s
        at_s += rng.expovariate(job.rate_per_s)


def message(endpoint: Endpoint, token: str, body: str) -> bytes:
    data = body.encode()
    head = (
        f"POST {endpoint.prefix} HTTP/1.1\r\nHost: {endpoint.host}:{endpoint.port}\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    return head.encode("ascii") + data


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._buffer = bytearray()
        self._body: Chunked | Sized | None = None
        self._status = 0
        self._said = bytearray()
        self.due_s: float | None = None  # of the request under way
        self.of = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._load.made(self)

    def send(self, due_s: float, of: int, data: bytes) -> None:
        self.due_s, self.of = due_s, of
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        try:
            if self._body is None:
                self._buffer += data
                end = self._buffer.find(b"\r\n\r\n")
                if end < 0:
                    return
                head, data = bytes(self._buffer[: end + 2]), bytes(self._buffer[end + 4 :])
                self._buffer.clear()
                self._body = _framing(head)
                self._status = int(head[9:12])
            self._said += self._body.feed(data)
        except (ValueError, WireError) as fault:
            self.transport.abort()
            self._ended(f"{type(fault).__name__}: {fault}")
            return
        if self._body.done:
            told = bytes(self._said[:ERROR_BYTES_MAX]).decode("utf-8", "replace")
            self._ended(None if self._status == 200 else f"{self._status} {told}")

    def connection_lost(self, _: Exception | None) -> None:
        if self.due_s is not None:
            self._ended("the connection was closed")
        self._load.lost(self)

    def _ended(self, error: str | None) -> None:
        said, due_s = bytes(self._said), self.due_s
        status = self._status if self._body is not None and self._body.done else 0
        self._said.clear()
        self._body, self.due_s = None, None
        if due_s is not None:
            self._load.ended(self, due_s, said, error, status)


def _framing(head: bytes) -> Chunked | Sized:
    if _CHUNKED.search(head):
        return Chunked()
    length = _LENGTH.search(head)
    return Sized(None if length is None else int(length[1]))


class Load:
    """One run of one job."""

    def __init__(self, job: Job) -> None:
        endpoint = Endpoint.parse(job.url)
        pairs = zip(job.tokens, job.bodies, strict=True)
        self._messages = [message(endpoint, *pair) for pair in pairs]
        self._job = job
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._waiting: deque[tuple[float, int]] = deque()  # without a connection yet
        self._sent = 0
        self._open = 0
        self._over = False
        self._rested = asyncio.Event()
        self._seen = Seen()

    async def run(self) -> Seen:
        seen, cpu_s, begun_s = self._seen, time.process_time(), self._loop.time()
        await (self._closed_loop() if self._job.rate_per_s is None else self._open_loop())
        self._over = True
        await self._rest()
        seen.wall_s = self._loop.time() - begun_s
        seen.cpu_s = time.process_time() - cpu_s
        await self._hang_up()
        return seen

    async def _open_loop(self) -> None:
        begun_s = self._loop.time()
        for at_s in arrivals(self._job):
            due_s = begun_s + at_s
            while (left_s := due_s - self._loop.time()) > 0:
                await asyncio.sleep(left_s)
            self._arrive(due_s)

    async def _closed_loop(self) -> None:
        for _ in range(self._job.concurrency):
            self._arrive(self._loop.time())
        await asyncio.sleep(self._job.seconds)

    async def _rest(self) -> None:
        """Until all is answered; what is not in time has failed, and waited until now."""
        if self._open:
            self._rested.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await self._rested.wait()
        unanswered = list(self._waiting)
        unanswered += [
            (each.due_s, each.of) for each in self._connections if each.due_s is not None
        ]
        self._waiting.clear()
        for due_s, of in unanswered:
            self._note(due_s, of, b"", "no answer")

    async def _hang_up(self) -> None:
        while self._opening:
            await asyncio.wait(self._opening)
        for connection in list(self._connections):
            connection.transport.abort()
        while self._connections:
            await asyncio.sleep(0)  # until each has heard that it is lost

    def _arrive(self, due_s: float) -> None:
        of = self._sent % len(self._messages)
        self._sent += 1
        self._open += 1
        if self._idle:
            self._seen.late_ms.append((self._loop.time() - due_s) * 1000)
            self._idle.pop().send(due_s, of, self._messages[of])
        else:
            self._waiting.append((due_s, of))
            self._connect()

    def _connect(self) -> None:
        """One connection more, where more are needed than are coming."""
        room = CONNECTIONS_MAX - len(self._connections) - len(self._opening)
        if room > 0 and len(self._opening) < len(self._waiting):
            task = self._loop.create_task(self._connected())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _connected(self) -> None:
        try:
            await self._loop.create_connection(
                lambda: Connection(self), self._endpoint.host, self._endpoint.port
            )
        except OSError as fault:
            if self._waiting:
                due_s, of = self._waiting.popleft()
                self._note(due_s, of, b"", type(fault).__name__)

    # What connections tell

    def made(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._free(connection)

    def ended(
        self, connection: Connection, due_s: float, said: bytes, error: str | None, status: int
    ) -> None:
        self._note(due_s, connection.of, said, error, status)
        if not connection.transport.is_closing():
            self._free(connection)
        if self._job.rate_per_s is None and not self._over:
            self._arrive(self._loop.time())

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._waiting:
            self._connect()

    def _free(self, connection: Connection) -> None:
        if self._waiting:
            due_s, of = self._waiting.popleft()
            connection.send(due_s, of, self._messages[of])
        else:
            self._idle.append(connection)

    def _note(self, due_s: float, of: int, said: bytes, error: str | None, status: int = 0) -> None:
        seen = self._seen
        took_ms = (self._loop.time() - due_s) * 1000
        seen.took_ms.append(took_ms)
        if self._job.each:
            seen.ends.append(End(of, status, took_ms))
        usage = _USAGE.findall(said)
        if error is None and not usage:
            error = "no usage in the answer"
        if error is None:
            used = _USAGE_OF.decode(usage[-1])
            seen.input_tokens += used.prompt_tokens
            seen.output_tokens += used.completion_tokens
        else:
            seen.failed += 1
            if len(seen.errors) < ERRORS_TOLD:
                seen.errors.append(error)
        self._open -= 1
        if not self._open:
            self._rested.set()


def run(job: Job) -> Seen:
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    try:
        return loop.run_until_complete(_run(job))
    finally:
        loop.close()


async def _run(job: Job) -> Seen:
    return await Load(job).run()


async def seen_apart(job: Job) -> Seen:
    """`run` in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.arrivals"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
    )
    try:
        async with asyncio.timeout(job.seconds + 2 * GRACE_S):
            said, _ = await process.communicate(msgspec.json.encode(job))
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise RuntimeError("the load generator failed")
    return msgspec.json.decode(said, type=Seen)


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(run(job)))


if __name__ == "__main__":
    main()
