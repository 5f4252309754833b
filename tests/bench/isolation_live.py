"""A registered document over a whole server: how long its readers wait, and what others can tell of it.

One document, computed beforehand, and readers of one tenant: the time to the first token of a question about it, beside
that of one about as long a text of the reader's own that nobody computed.  And for one who may not read it:
404, whose time is compared pair by pair with that for an id that is nowhere.
Refuses to know: options, printing, how the server was started.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from random import Random

import msgspec

from security import timing_audit_stats as stats
from tests.bench.load import WORDS
from tests.bench.server import Site
from tests.bench.wire import Client, Endpoint

OWNER, STRANGER, TENANT = "owner", "stranger", "acme"
WARM_S_MAX = 120.0
POLL_S = 0.25
QUESTION = "When does it end?"


def people(readers: int) -> tuple[tuple[str, str], ...]:
    return (
        (TENANT, OWNER),
        (TENANT, STRANGER),
        *((TENANT, f"reader-{n}") for n in range(readers)),
    )


@dataclass(frozen=True, slots=True)
class Waits:
    """Medians over the readers, milliseconds.  `cached`: the least that an answer said was there."""

    readers: int
    prompt_tokens: int
    cached: int
    warm_ms: float
    cold_ms: float
    ready_s: float  # from registration to warm

    @property
    def ratio(self) -> float:
        return self.warm_ms / self.cold_ms


@dataclass(frozen=True, slots=True)
class Hidden:
    """One route.  `p`: of both paired tests on both sides; the interval is of the median difference
    absent − forbidden, at 99 %."""

    route: str
    pairs: int
    median_ms: float
    p: float
    low_us: float
    high_us: float


@dataclass(frozen=True, slots=True)
class Seen:
    waits: Waits
    hidden: tuple[Hidden, ...]
    faults: tuple[str, ...]


async def measure(site: Site, *, tokens: int, readers: int, pairs: int, seed: int) -> Seen:
    random = Random(seed)
    clients = {
        name: Client(Endpoint.parse(site.base_url), token) for name, token in site.tokens.items()
    }
    of: Callable[[str], Client] = lambda user: clients[f"{TENANT}/{user}"]  # noqa: E731 — a short name
    names = [f"reader-{n}" for n in range(readers)]
    faults: list[str] = []
    try:
        id_, ready_s = await _registered(of(OWNER), _text(random, tokens), names)
        await _ask(
            of(OWNER), site.model, _pasted(_text(random, tokens))
        )  # connections, code, caches
        warm: list[_First] = []
        cold: list[_First] = []
        for name in names:
            asks: list[tuple[list[_First], list[object]]] = [
                (warm, _named(id_)),
                (cold, _pasted(_text(random, tokens))),
            ]
            random.shuffle(asks)
            for into, content in asks:
                into.append(await _ask(of(name), site.model, content))
        waits = Waits(
            readers=readers,
            prompt_tokens=min(each.prompt_tokens for each in warm),
            cached=min(each.cached for each in warm),
            warm_ms=stats.median([each.ms for each in warm]),
            cold_ms=stats.median([each.ms for each in cold]),
            ready_s=ready_s,
        )
        if not waits.cached:
            faults.append("a reader did not find the document")
        if any(each.cached for each in cold):
            faults.append("what nobody computed was found")
        hidden = [
            await _hidden("GET /v1/documents/{id}", _get(of(STRANGER)), id_, pairs, random, faults),
            await _hidden(
                "POST /v1/chat/completions",
                _chat(of(STRANGER), site.model),
                id_,
                pairs,
                random,
                faults,
            ),
        ]
    finally:
        for client in clients.values():
            client.close()
    return Seen(waits, tuple(hidden), tuple(faults))


def _text(random: Random, tokens: int) -> str:
    """About as many tokens as words, each once in a while."""
    return " ".join(random.choices(WORDS, k=tokens))


def _named(id_: str) -> list[object]:
    return [{"type": "file", "file": {"file_id": id_}}, {"type": "text", "text": QUESTION}]


def _pasted(text: str) -> list[object]:
    return [{"type": "text", "text": f"{text}\n{QUESTION}"}]


async def _registered(owner: Client, text: str, readers: list[str]) -> tuple[str, float]:
    """Its id, once it is warm, and after how long."""
    acl = {"users": [{"subject": name} for name in readers]}
    begun = time.perf_counter()
    status, made = await owner.post("/documents", {"text": text, "acl": acl})
    if status != 200:
        raise RuntimeError(f"the document was not registered: {status} {made}")
    id_ = str(made["id"])  # type: ignore[index]
    async with asyncio.timeout(WARM_S_MAX):
        while True:
            _, shown = await owner.get(f"/documents/{id_}")
            if shown["warm"]:  # type: ignore[index]
                return id_, time.perf_counter() - begun
            await asyncio.sleep(POLL_S)


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


@dataclass(frozen=True, slots=True)
class _First:
    ms: float
    prompt_tokens: int
    cached: int


def _body(model: str, content: list[object]) -> bytes:
    return msgspec.json.encode(
        {
            "model": model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 1,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


async def _ask(client: Client, model: str, content: list[object]) -> _First:
    body, first_s, usage = _body(model, content), None, _Usage()
    sent_s = time.perf_counter()
    async with client.request("POST", "/chat/completions", body) as reply:
        if reply.status != 200:
            raise RuntimeError(f"a question was answered {reply.status}: {await reply.read()!r}")
        async with aclosing(reply.events()) as events:
            async for event in events:
                if event.data is None or event.data == b"[DONE]":
                    continue
                chunk = _CHUNK.decode(event.data)
                usage = chunk.usage or usage
                said = any(each.delta.content or each.finish_reason for each in chunk.choices)
                if first_s is None and said:  # a token may be no whole character
                    first_s = time.perf_counter()
    if first_s is None:
        raise RuntimeError("an answer had no first token")
    details = usage.prompt_tokens_details
    cached = 0 if details is None else details.cached_tokens
    return _First((first_s - sent_s) * 1000, usage.prompt_tokens, cached)


_Try = Callable[[str], Awaitable[tuple[int, bytes]]]


def _get(client: Client) -> _Try:
    async def once(id_: str) -> tuple[int, bytes]:
        async with client.request("GET", f"/documents/{id_}") as reply:
            return reply.status, await reply.read()

    return once


def _chat(client: Client, model: str) -> _Try:
    async def once(id_: str) -> tuple[int, bytes]:
        async with client.request("POST", "/chat/completions", _body(model, _named(id_))) as reply:
            return reply.status, await reply.read()

    return once


async def _hidden(
    route: str, once: _Try, id_: str, pairs: int, random: Random, faults: list[str]
) -> Hidden:
    """By coin flip one or the other first, so that what changes with time meets both alike."""
    forbidden_ns: list[int] = []
    gaps_ns: list[int] = []
    answers: set[tuple[int, bytes]] = set()
    for at in range(-pairs // 10, pairs):  # the first tenth warms up
        absent = f"doc_{random.getrandbits(128):032x}"
        took: dict[str, int] = {}
        for each in random.sample((id_, absent), 2):
            begun = time.perf_counter_ns()
            answers.add(await once(each))
            took[each] = time.perf_counter_ns() - begun
        if at >= 0:
            forbidden_ns.append(took[id_])
            gaps_ns.append(took[absent] - took[id_])
    if len(answers) != 1 or next(iter(answers))[0] != 404:
        faults.append(f"{route}: forbidden and absent are not one 404: {sorted(answers)[:2]}")
    back = [-gap for gap in gaps_ns]
    sides = [min(stats.signed_rank(each), stats.sign(each)) for each in (gaps_ns, back)]
    low_ns, high_ns = stats.median_interval(gaps_ns)
    return Hidden(
        route=route,
        pairs=pairs,
        median_ms=stats.median(forbidden_ns) / 1e6,
        p=min(1.0, 4 * min(sides)),
        low_us=low_ns / 1e3,
        high_us=high_ns / 1e3,
    )
