"""How long a revocation that one gateway has acknowledged takes to be in force at another.

A credential asks the one without a pause and has a stream open there; it is revoked at the other; counted is
from the acknowledgement to the first refusal, and to the stream's end.  0 where that was before it.
Refuses to know: processes (`pair`), bars.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import httpx2

from tests.bench.issuer import ISSUER
from tests.bench.pair import Pair

PROBE_S = 0.005
REFUSED = frozenset({401, 403})
_names = count(1)


@dataclass(frozen=True)
class Seen:
    """After the acknowledgement; the stream's end said that it was revoked."""

    refused_s: float
    ended_s: float
    told: bool


@dataclass(frozen=True)
class Row:
    what: str
    count: int
    refused_p50_s: float
    refused_max_s: float
    ended_p50_s: float
    ended_max_s: float
    untold: int

    @property
    def worst_s(self) -> float:
        return max(self.refused_max_s, self.ended_max_s)


@dataclass(frozen=True)
class Credential:
    """`revoke`: path and body for the admin listener.  `undo` brings it back."""

    secret: str
    revoke: tuple[str, Mapping[str, object]]
    undo: str | None = None


Maker = Callable[[Pair, httpx2.AsyncClient], Awaitable[Credential]]


async def _key(pair: Pair, client: httpx2.AsyncClient) -> Credential:
    made = await _post(pair, client, "/keys", {"tenant": "acme", "user": f"svc-{next(_names)}"})
    return Credential(str(made["secret"]), (f"/keys/{made['id']}/revoke", {"reason": "bench"}))


async def _token(pair: Pair, _: httpx2.AsyncClient) -> Credential:
    user, now_s = f"token-{next(_names)}", int(time.time())
    raw = pair.issuer.token(tenant="acme", user=user, now_s=now_s)
    return Credential(raw, ("/tokens/revoke", {"token_id": f"acme-{user}-{now_s}"}))


async def _subject(pair: Pair, _: httpx2.AsyncClient) -> Credential:
    user = f"subject-{next(_names)}"
    raw = pair.issuer.token(tenant="acme", user=user, now_s=int(time.time()))
    return Credential(
        raw, ("/tokens/revoke", {"subject": user, "tenant": "acme", "issuer": ISSUER})
    )


async def _tenant(pair: Pair, _: httpx2.AsyncClient) -> Credential:
    return Credential(
        pair.token("globex/carol"),
        ("/tenants/globex/suspend", {"reason": "bench"}),
        "/tenants/globex/resume",
    )


KINDS: Mapping[str, Maker] = {
    "API key": _key,
    "token": _token,
    "person": _subject,
    "tenant": _tenant,
}


async def measure(
    pair: Pair, *, rounds: int, seed: int, at_once: bool, phase_s: float
) -> list[Row]:
    """`at_once`: the kinds beside each other, where one's news does not hasten another's.  `phase_s`: each
    begins at some moment of the other's look, not always at the same."""
    rng = random.Random(seed)
    async with httpx2.AsyncClient(timeout=30) as client:
        lanes = [
            _lane(pair, client, what, [phase_s * rng.random() for _ in range(rounds)])
            for what in KINDS
        ]
        if at_once:
            return list(await asyncio.gather(*lanes))
        return [await each for each in lanes]


async def _lane(
    pair: Pair, client: httpx2.AsyncClient, what: str, pauses_s: Sequence[float]
) -> Row:
    return row(what, [await _once(pair, client, KINDS[what], pause_s) for pause_s in pauses_s])


def row(what: str, seen: Sequence[Seen]) -> Row:
    refused, ended = [each.refused_s for each in seen], [each.ended_s for each in seen]
    return Row(
        what,
        len(seen),
        statistics.median(refused),
        max(refused),
        statistics.median(ended),
        max(ended),
        sum(not each.told for each in seen),
    )


async def _once(pair: Pair, client: httpx2.AsyncClient, make: Maker, pause_s: float) -> Seen:
    made = await make(pair, client)
    header = {"Authorization": f"Bearer {made.secret}"}
    await _until(pair, client, header, accepted=True)
    begun = asyncio.Event()
    stream = asyncio.create_task(_stream(pair, client, header, begun))
    await begun.wait()
    await asyncio.sleep(pause_s)
    refusal = asyncio.create_task(_until(pair, client, header, accepted=False))
    path, body = made.revoke
    await _post(pair, client, path, body)
    acknowledged_s = time.perf_counter()
    refused_s = await refusal
    ended_s, told = await stream
    if made.undo is not None:
        await _post(pair, client, made.undo, {"reason": "bench"})
    return Seen(max(0.0, refused_s - acknowledged_s), max(0.0, ended_s - acknowledged_s), told)


async def _until(
    pair: Pair, client: httpx2.AsyncClient, header: Mapping[str, str], *, accepted: bool
) -> float:
    """When the second gateway first answered so.  RuntimeError where it answers anything else."""
    while True:
        answer = await client.get(pair.bases[1] + "/me", headers=dict(header))
        if answer.status_code not in {200, *REFUSED}:
            raise RuntimeError(f"/v1/me answered {answer.status_code}: {answer.text[:200]}")
        if (answer.status_code == 200) is accepted:
            return time.perf_counter()
        await asyncio.sleep(PROBE_S)


async def _stream(
    pair: Pair, client: httpx2.AsyncClient, header: Mapping[str, str], begun: asyncio.Event
) -> tuple[float, bool]:
    """When it ended, and whether it said why."""
    body = {
        "model": pair.servers[1].site.model,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 1000,
        "stream": True,
    }
    told = False
    async with client.stream(
        "POST", pair.bases[1] + "/chat/completions", headers=dict(header), json=body
    ) as answer:
        async for line in answer.aiter_lines():
            begun.set()
            told = told or "authorization_revoked" in line
    begun.set()  # also where it was refused, so that the round fails and does not hang
    return time.perf_counter(), told


async def _post(
    pair: Pair, client: httpx2.AsyncClient, path: str, body: Mapping[str, object]
) -> dict[str, object]:
    answer = await client.post(
        f"{pair.servers[0].site.admin_url}/v1/admin{path}",
        headers={"Authorization": f"Bearer {pair.token('operator')}"},
        json=dict(body),
    )
    if answer.status_code >= 300:
        raise RuntimeError(f"{path} answered {answer.status_code}: {answer.text[:200]}")
    found: dict[str, object] = answer.json()
    return found
