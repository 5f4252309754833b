"""Everything that a bad client does, at once, beside a good one: nothing may be left, and the good one be served.

Slow readers, resets before and amid an answer, half-closed connections, bad credentials, bodies too large,
bodies that drip, and connections on which nothing is asked.  Before, meanwhile and after: asyncio tasks, file descriptors, memory, what requests hold; and how
long another tenant waits for a short answer, alone and meanwhile.
Refuses to know: how the server was started, printing.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

from tests.bench.admin import until
from tests.bench.figures import percentile
from tests.bench.processes import Cost
from tests.bench.server import Site
from tests.bench.wire import Client, Endpoint

ATTACKER, VICTIM = "acme/alice", "globex/carol"
BACK_S_MAX = 5.0
RATIO_MAX = 1.2
RSS_MIB_MAX = 48.0
"""What an allocator keeps of a first flood; a leak of connections is more."""
FDS_ONCE = 4
"""What a store opens once, when many ask at the same time; a leak is one for each of hundreds."""
EACH = 6
OWN_S = 0.2
"""After so long the connection by which we ask is closed on the other side too."""
BAD = (
    "",
    "x",
    "Bearer",
    "Bearer x",
    "Bearer eyJhbGciOiJub25lIn0.e30.",
    "Bearer lg_" + "a" * 60,
    "Basic eDp5",
)


@dataclass(frozen=True, slots=True)
class Vitals:
    tasks: int
    fds: int
    rss_mib: float


@dataclass(frozen=True, slots=True)
class Survived:
    """`back_s` None: never within `wait_s`, and `left` says of what there was too much."""

    before: Vitals
    after: Vitals
    back_s: float | None
    left: dict[str, int]
    done: dict[str, int]
    alone_ms: tuple[float, ...]
    meanwhile_ms: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Of medians."""
        alone, meanwhile = (
            percentile(each, 50) or 0.0 for each in (self.alone_ms, self.meanwhile_ms)
        )
        return meanwhile / alone if alone else float("inf")

    @property
    def faults(self) -> tuple[str, ...]:
        found = [f"{count} {what} left over" for what, count in self.left.items()]
        grown = self.after.rss_mib - self.before.rss_mib
        if grown > RSS_MIB_MAX:
            found.append(f"memory grew by {grown:.0f} MiB; at most {RSS_MIB_MAX:g}")
        if not self.meanwhile_ms:
            found.append("nobody else was served")
        return tuple(found)


async def vitals(site: Site) -> Vitals:
    status = await site.admin.status()
    await asyncio.sleep(OWN_S)
    fds = psutil.Process(status.pid).num_fds()
    return Vitals(status.tasks, fds, Cost.of(status.pid).rss_mib)


async def survived(
    site: Site, *, seconds: float, seed: int = 1, wait_s: float = BACK_S_MAX
) -> Survived:
    rng = random.Random(seed)
    await _asked(site, 1.0)  # what is made once is there
    await _attacked(site, min(1.0, seconds), random.Random(seed), Counter())
    await until(lambda: _quiet(site), deadline_s=wait_s)
    before = await vitals(site)
    alone_ms = await _asked(site, seconds / 3)
    done: Counter[str] = Counter()
    meanwhile_ms, _ = await asyncio.gather(
        _asked(site, seconds), _attacked(site, seconds, rng, done)
    )
    left: dict[str, int] = {}

    async def back() -> bool:
        nonlocal left
        left = (await site.admin.status()).leftovers(before.tasks)
        now = await vitals(site)
        if now.fds > before.fds + FDS_ONCE:
            left["file descriptors"] = now.fds - before.fds
        return not left

    back_s = await until(back, deadline_s=wait_s)
    return Survived(
        before, await vitals(site), back_s, left, dict(done), tuple(alone_ms), tuple(meanwhile_ms)
    )


async def _quiet(site: Site) -> bool:
    return not (await site.admin.status()).leftovers()


async def _asked(site: Site, seconds: float) -> list[float]:
    """Milliseconds of each short answer, one after the other; refusals are tried again and count in."""
    client = Client(Endpoint.parse(site.base_url), site.tokens[VICTIM])
    body = {"model": site.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    took: list[float] = []
    until_s = time.perf_counter() + seconds
    try:
        while (begun_s := time.perf_counter()) < until_s:
            status, said = await client.post("/chat/completions", body)
            while status == 503 and time.perf_counter() < until_s:
                status, said = await client.post("/chat/completions", body)
            if status not in {200, 503}:
                raise RuntimeError(f"the other tenant was answered {status}: {said}")
            took.append((time.perf_counter() - begun_s) * 1000)
            await asyncio.sleep(0.01)
    finally:
        client.close()
    return took


async def _attacked(site: Site, seconds: float, rng: random.Random, done: Counter[str]) -> None:
    until_s = time.perf_counter() + seconds
    at = Endpoint.parse(site.base_url)

    async def worker(name: str, act: Act) -> None:
        while time.perf_counter() < until_s:
            done[name] += 1
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            try:
                async with asyncio.timeout(10):
                    with suppress(OSError, TimeoutError):
                        await asyncio.get_running_loop().sock_connect(sock, (at.host, at.port))
                        await act(site, sock, rng)
            finally:
                sock.close()

    async with asyncio.TaskGroup() as group:
        for name, act in ACTS.items():
            for _ in range(EACH):
                group.create_task(worker(name, act))


Act = Callable[[Site, socket.socket, random.Random], Awaitable[None]]


def _head(site: Site, length: str, authorization: str | None = None) -> bytes:
    authorization = f"Bearer {site.tokens[ATTACKER]}" if authorization is None else authorization
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {authorization}\r\n"
        f"{length}\r\n\r\n"
    ).encode()


def _stream(site: Site) -> bytes:
    ask = {"model": site.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 64}
    body = json.dumps(ask | {"stream": True}).encode()
    return _head(site, f"Content-Length: {len(body)}") + body


async def _send(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)


async def _read(sock: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(sock, 65536)


def _reset(sock: socket.socket) -> None:
    """Closing it says RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _slow_reader(site: Site, sock: socket.socket, rng: random.Random) -> None:
    await _send(sock, _stream(site))
    await asyncio.sleep(rng.uniform(0.2, 1.0))
    _reset(sock)


async def _resets(site: Site, sock: socket.socket, rng: random.Random) -> None:
    data = _stream(site)
    await _send(sock, data[: rng.choice((1, 40, len(data) - 3, len(data)))])
    await asyncio.sleep(rng.choice((0.0, 0.005, 0.05)))
    _reset(sock)


async def _half_closes(site: Site, sock: socket.socket, rng: random.Random) -> None:
    data = _stream(site)
    await _send(sock, data[: rng.choice((len(data) - 3, len(data)))])
    sock.shutdown(socket.SHUT_WR)
    while await _read(sock):
        pass


async def _bad_credentials(site: Site, sock: socket.socket, rng: random.Random) -> None:
    for _ in range(20):
        await _send(sock, _head(site, "Content-Length: 2", rng.choice(BAD)) + b"{}")
        await _read(sock)


async def _too_large(site: Site, sock: socket.socket, rng: random.Random) -> None:
    if rng.random() < 0.5:
        await _send(sock, _head(site, "Content-Length: 50000000") + b"x" * 100_000)
    else:
        await _send(sock, _head(site, "Transfer-Encoding: chunked"))
        for _ in range(80):
            await _send(sock, b"10000\r\n" + b"x" * 65536 + b"\r\n")
    while await _read(sock):
        pass


async def _drips(site: Site, sock: socket.socket, rng: random.Random) -> None:
    data = _stream(site)
    await _send(sock, data[: len(data) - 12])
    for byte in data[len(data) - 12 : len(data) - 2]:
        await _send(sock, bytes([byte]))
        await asyncio.sleep(0.05)
    _reset(sock)


async def _stands_still(site: Site, sock: socket.socket, rng: random.Random) -> None:
    """Without a byte, with a part of a head, or between two requests."""
    probe = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    await _send(sock, rng.choice((b"", b"G", probe[:-1], probe, probe + probe[:9])))
    await asyncio.sleep(rng.uniform(0.0, 0.5))
    if rng.random() < 0.5:
        _reset(sock)


ACTS: dict[str, Act] = {
    "standing still": _stands_still,
    "slow readers": _slow_reader,
    "resets": _resets,
    "half-closed": _half_closes,
    "bad credentials": _bad_credentials,
    "too large": _too_large,
    "dripped": _drips,
}
