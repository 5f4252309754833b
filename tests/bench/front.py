"""How the front bears load: what it holds, what it adds, and what it does with more than it can serve.

- **Held**: idle kept connections and open streams of one process, and what each takes of its memory.
- **Added**: what a client waits for each endpoint, less what it waits for a bare ASGI app on the same
  listener, one request at a time, the two in turn.
- **Beyond capacity**: capacity is what a closed loop gets; then arrivals at 1, 2 and 3 times as many, of three
  classes of work.  Goodput is what was answered with 200; a refusal's time counts from when the request
  should have been sent.  And a flood of bad credentials beside half of what can be served.

Refuses to know: printing, which servers there are.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.admin import until_idle
from tests.bench.arrivals import End, Job, Seen, seen_apart
from tests.bench.figures import percentile
from tests.bench.processes import Cost
from tests.bench.server import Site
from tests.bench.wire import Client, Connection, Endpoint

GOODPUT_MIN, REFUSED_P99_MS_MAX = 0.9, 100.0
PART_OF_CAPACITY = 0.5  # of good requests, beside a flood of bad ones
IDLE_S_MAX, CONNECT_AT_ONCE = 20.0, 64
SERVED, REFUSED = 200, 503


# Held


@dataclass(frozen=True, slots=True)
class Held:
    """`kib_each`: of the gateway's memory."""

    what: str
    count: int
    kib_each: float


async def held_idle(site: Site, pid: int, count: int) -> Held:
    endpoint = Endpoint.parse(site.base_url)
    message = f"GET /health HTTP/1.1\r\nHost: {endpoint.host}\r\n\r\n".encode()
    return await _held("idle connections", endpoint, pid, [message] * count)


async def held_streams(site: Site, pid: int, tokens: Sequence[str], body: str, count: int) -> Held:
    """Each gets its first words and reads no further."""
    endpoint = Endpoint.parse(f"{site.base_url}/chat/completions")
    messages = [_post(endpoint, tokens[k % len(tokens)], body) for k in range(count)]
    found = await _held("open streams", endpoint, pid, messages)
    _, left = await until_idle(site.admin, deadline_s=IDLE_S_MAX)
    if left:
        raise RuntimeError(f"after {count} streams were closed there is left: {left}")
    return found


async def _held(what: str, endpoint: Endpoint, pid: int, messages: Sequence[bytes]) -> Held:
    """What comes back first must be a 200."""
    before_mib = Cost.of(pid).rss_mib
    gate = asyncio.Semaphore(CONNECT_AT_ONCE)
    opened: list[Connection] = []

    async def one(message: bytes) -> None:
        async with gate:
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            opened.append(Connection(reader, writer))
            writer.write(message)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(f"{what}: {head[:60]!r} after {len(opened)} of them")

    try:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for message in messages:
                group.create_task(one(message))
        grown_mib = Cost.of(pid).rss_mib - before_mib
    finally:
        for each in opened:
            each.close()
    return Held(what, len(messages), grown_mib * 1024 / len(messages))


def _post(endpoint: Endpoint, token: str, body: str) -> bytes:
    return (
        f"POST {endpoint.prefix} HTTP/1.1\r\nHost: {endpoint.host}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


# Added


@dataclass(frozen=True, slots=True)
class Ask:
    name: str
    method: str
    path: str
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Added:
    """Milliseconds beyond the bare app's at the same quantile; `bare`: that."""

    name: str
    p50: float
    p99: float
    bare_p50: float
    bare_p99: float


def asks(model: str, tokens: int) -> tuple[Ask, ...]:
    def chat(*, stream: bool) -> bytes:
        message = {"role": "user", "content": "Say what the river says to the stone."}
        asked = {"model": model, "messages": [message], "max_tokens": tokens, "stream": stream}
        return json.dumps(asked).encode()

    return (
        Ask("/health", "GET", "/health"),
        Ask("/v1/models", "GET", "/v1/models"),
        Ask("chat, whole", "POST", "/v1/chat/completions", chat(stream=False)),
        Ask("chat, stream", "POST", "/v1/chat/completions", chat(stream=True)),
    )


async def added(ours: Client, bare: Client, ask: Ask, *, turns: int, each: int) -> Added:
    """In turn, `each` of one and `each` of the other."""
    of_ours: list[float] = []
    of_bare: list[float] = []
    for turn in range(turns + 1):
        for client, kept in ((ours, of_ours), (bare, of_bare)):
            found = [await _took_ms(client, ask) for _ in range(each)]
            if turn:  # the first is to warm up
                kept.extend(found)
    bare_p50, bare_p99 = (percentile(of_bare, q) or 0.0 for q in (50, 99))
    p50, p99 = (percentile(of_ours, q) or 0.0 for q in (50, 99))
    return Added(ask.name, p50 - bare_p50, p99 - bare_p99, bare_p50, bare_p99)


async def _took_ms(client: Client, ask: Ask) -> float:
    begun = time.perf_counter()
    async with client.request(ask.method, ask.path, ask.body) as reply:
        await reply.read()
        if reply.status != SERVED:
            raise RuntimeError(f"{ask.name} answered {reply.status}")
    return (time.perf_counter() - begun) * 1000


# Beyond capacity


@dataclass(frozen=True, slots=True)
class Party:
    """Who asks, in which class, and for what part of what arrives (in tokens of one each)."""

    name: str
    tokens: tuple[str, ...]
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Fared:
    """How a party fared.  Refusals are 503; `other`: neither that nor served."""

    name: str
    arrived: int
    served: int
    refused: int
    other: int
    served_p50_ms: float | None
    served_p99_ms: float | None
    refused_p50_ms: float | None
    refused_p99_ms: float | None

    @property
    def share(self) -> float:
        return self.served / max(1, self.arrived)


@dataclass(frozen=True, slots=True)
class Beyond:
    """One load: `times` capacity, and what was served a second."""

    name: str
    arrived_per_s: float
    goodput_per_s: float
    parties: tuple[Fared, ...]
    whole: Fared
    late_p99_ms: float


async def capacity(
    url: str, parties: Sequence[Party], body: str, *, seconds: float, seed: str
) -> float:
    """What a closed loop gets a second."""
    best = 0.0
    for concurrency in (32, 64):
        seen = await seen_apart(
            _job(url, parties, body, seconds=seconds, concurrency=concurrency, seed=seed)
        )
        best = max(best, sum(end.status == SERVED for end in seen.ends) / seen.wall_s)
    return best


async def beyond(
    name: str,
    url: str,
    parties: Sequence[Party],
    body: str,
    *,
    rate_per_s: float,
    seconds: float,
    seed: str,
) -> Beyond:
    job = _job(url, parties, body, seconds=seconds, rate_per_s=rate_per_s, seed=seed)
    seen = await seen_apart(job)
    return beyond_of(name, seen, parties, seconds)


def _job(url: str, parties: Sequence[Party], body: str, **how: float | str | int) -> Job:
    tokens = tuple(token for _, token in _lot(parties))
    return Job(url=url, tokens=tokens, bodies=(body,) * len(tokens), each=True, **how)  # type: ignore[arg-type]


def _lot(parties: Sequence[Party]) -> list[tuple[str, str]]:
    """In the order of sending: each party spread evenly over the round."""
    spread = []
    for number, party in enumerate(parties):
        for k in range(party.weight):
            at = ((k + 0.5) / party.weight, number)
            spread.append((at, (party.name, party.tokens[k % len(party.tokens)])))
    return [each for _, each in sorted(spread)]


def beyond_of(name: str, seen: Seen, parties: Sequence[Party], seconds: float) -> Beyond:
    names = [of for of, _ in _lot(parties)]
    served = sum(end.status == SERVED for end in seen.ends)
    return Beyond(
        name,
        len(seen.ends) / seconds,
        served / seen.wall_s,
        tuple(
            fared(each.name, [end for end in seen.ends if names[end.of] == each.name])
            for each in parties
        ),
        fared("all", seen.ends),
        percentile(seen.late_ms, 99) or 0.0,
    )


def fared(name: str, ends: Sequence[End]) -> Fared:
    good = [end.took_ms for end in ends if end.status == SERVED]
    refused = [end.took_ms for end in ends if end.status == REFUSED]
    return Fared(
        name,
        len(ends),
        len(good),
        len(refused),
        len(ends) - len(good) - len(refused),
        percentile(good, 50),
        percentile(good, 99),
        percentile(refused, 50),
        percentile(refused, 99),
    )


def middle(rounds: Sequence[Beyond]) -> Beyond:
    """The round with the median goodput, whole: its parts belong together."""
    ordered = sorted(rounds, key=lambda each: each.goodput_per_s)
    return ordered[(len(ordered) - 1) // 2]


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    value: float
    least: float | None = None
    most: float | None = None

    @property
    def holds(self) -> bool:
        above = self.least is None or self.value >= self.least
        return above and (self.most is None or self.value <= self.most)


def bars(loads: Sequence[Sequence[Beyond]]) -> tuple[Bar, ...]:
    """Issue 7's, of the highest load: its goodput beside the best of any, and how long its refusals took.
    Each a median over rounds of what one round says."""
    rounds = list(zip(*loads, strict=True))
    kept = [each[-1].goodput_per_s / max(load.goodput_per_s for load in each) for each in rounds]
    waited = [each[-1].whole.refused_p99_ms or 0.0 for each in rounds]
    return (
        Bar("goodput at the highest load, of its peak", statistics.median(kept), least=GOODPUT_MIN),
        Bar("refused p99 ms there", statistics.median(waited), most=REFUSED_P99_MS_MAX),
    )
