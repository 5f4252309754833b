"""Two whole gateways, processes of their own, on one PostgreSQL and one Valkey: to a client they are one.

See `tests.bench.pair`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from security.dpop import Asked
from security.jwks import thumbprint
from tests.bench.pair import URL, Pair
from tests.bench.pair import pair as pair_of
from tests.security import proof_kit
from tests.servers_postgres import needs_postgres

pytestmark = [pytest.mark.slow, needs_postgres]

STEPS, STEP_MS = 16, 40
PRICE_INPUT, PRICE_OUTPUT = 200, 600  # nano-USD a token


def until(told: Callable[[], bool], within_s: float = 6.0) -> None:
    """The bound of epochs, and what a busy machine adds."""
    deadline_s = time.monotonic() + within_s
    while not told():
        assert time.monotonic() < deadline_s, "the other gateway has not heard"
        time.sleep(0.05)


@pytest.fixture(scope="module", name="pair")
def both() -> Iterator[Pair]:
    with pair_of(steps=STEPS, step_ms=STEP_MS) as found:
        yield found


async def chat(
    client: httpx2.AsyncClient, base: str, token: str, *, key: str | None = None, **more: Any
) -> httpx2.Response:
    return await client.post(
        f"{base}/chat/completions",
        headers={"Authorization": f"Bearer {token}"} | ({"Idempotency-Key": key} if key else {}),
        json={
            "model": "smollm2-135m",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": STEPS,
            **more,
        },
    )


def spent(pair: Pair) -> tuple[int, int]:
    """Requests, nano-USD."""
    used = asyncio.run(pair.servers[1].site.admin.usage())
    return used.requests, used.nano_usd


def test_26_of_one_key_at_both_one_runs_and_is_billed(pair: Pair) -> None:
    async def both() -> list[httpx2.Response]:
        async with httpx2.AsyncClient(timeout=60) as client:
            asked = (
                chat(client, base, pair.token(), key="one-key")
                for _ in range(10)
                for base in pair.bases
            )
            return await asyncio.gather(*asked)

    async def again() -> list[httpx2.Response]:
        async with httpx2.AsyncClient(timeout=60) as client:
            asked = [chat(client, base, pair.token(), key="one-key") for base in pair.bases]
            asked.append(chat(client, pair.bases[1], pair.token(), key="one-key", max_tokens=3))
            return await asyncio.gather(*asked)

    requests, before = spent(pair)
    answers = asyncio.run(both())
    assert Counter(each.status_code for each in answers) == {200: 1, 409: 19}
    assert all(int(each.headers["retry-after"]) >= 1 for each in answers if each.status_code == 409)
    (ran,) = [each for each in answers if each.status_code == 200]
    replayed, elsewhere, other = asyncio.run(again())
    assert replayed.json() == elsewhere.json() == ran.json()
    assert elsewhere.headers["idempotent-replayed"] == "true"
    assert other.status_code == 422
    usage = ran.json()["usage"]
    cost = usage["prompt_tokens"] * PRICE_INPUT + usage["completion_tokens"] * PRICE_OUTPUT
    assert spent(pair) == (requests + 1, before + cost)


def test_a_cap_set_at_one_holds_at_both(pair: Pair) -> None:
    """Room for five of these: five run, wherever they were asked, and no more is spent."""

    async def burst() -> list[httpx2.Response]:
        async with httpx2.AsyncClient(
            timeout=60, limits=httpx2.Limits(max_connections=80)
        ) as client:
            asked = (
                chat(client, base, pair.token("globex/carol"))
                for _ in range(20)
                for base in pair.bases
            )
            return await asyncio.gather(*asked)

    probe = asyncio.run(_one(pair, pair.bases[0], pair.token("globex/carol")))
    usage = probe.json()["usage"]
    one = usage["prompt_tokens"] * PRICE_INPUT + STEPS * PRICE_OUTPUT
    cap = f"{6 * one / 1e9:.9f}"
    pair.admin(0, "/budgets", {"tenant": "globex", "usd": cap, "reason": "test"})
    until(lambda: cap.rstrip("0") in str(pair.admin(1, "/budgets?tenant=globex")))
    answers = asyncio.run(burst())
    told = Counter(each.status_code for each in answers)
    assert told == {200: 5, 429: 35}, told
    assert {each.json()["error"]["code"] for each in answers if each.status_code == 429} == {
        "insufficient_quota"
    }


async def _one(pair: Pair, base: str, token: str) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=60) as client:
        answer = await chat(client, base, token)
        assert answer.status_code == 200, answer.text
        return answer


def test_who_is_suspended_at_one_is_out_at_both(pair: Pair) -> None:
    async def until_refused() -> None:
        async with asyncio.timeout(5), httpx2.AsyncClient(timeout=60) as client:
            while (await chat(client, pair.bases[1], pair.token())).status_code == 200:
                pass

    asyncio.run(_one(pair, pair.bases[1], pair.token()))
    pair.admin(0, "/tenants/acme/suspend", {"reason": "test"})
    asyncio.run(until_refused())
    pair.admin(1, "/tenants/acme/resume", {"reason": "test"})


def test_a_secret_replaced_or_destroyed_at_one_is_so_at_both(pair: Pair) -> None:
    def versions(at: int) -> list[int]:
        told = pair.admin(at, "/tenants/globex/secret")
        return [each["version"] for each in told["versions"]]

    assert versions(0) == versions(1) == [1]
    pair.admin(0, "/tenants/globex/secret/rotate", {"reason": "test"})
    until(lambda: versions(1) == [1, 2])
    pair.admin(1, "/tenants/globex/secret/rotate", {"reason": "test"})
    until(lambda: versions(0) == [1, 2, 3])
    pair.admin(0, "/tenants/globex/shred", {"reason": "test", "confirm": "globex"})
    until(lambda: versions(1) == [])


def test_a_proof_that_was_used_at_one_is_used_at_both(pair: Pair) -> None:
    token = pair.issuer.token(
        tenant="globex",
        user="dave",
        now_s=int(time.time()),
        bound_to=thumbprint(proof_kit.jwk()),
    )

    def asked(at: int, jti: str) -> int:
        me = Asked("GET", "/v1/me", "")
        shown = proof_kit.proof(token, {"jti": jti}, asked=me, url=URL, now_s=int(time.time()))
        headers = {"Authorization": f"DPoP {token}", "DPoP": shown}
        return httpx2.get(pair.bases[at] + "/me", headers=headers).status_code

    assert [asked(at, "one") for at in (0, 1, 0, 1)] == [200, 401, 401, 401]
    assert [asked(at, "two") for at in (1, 0)] == [200, 401]


def test_at_rest_nothing_is_held(pair: Pair) -> None:
    for server in pair.servers:
        status = asyncio.run(server.site.admin.status())
        assert status.open_holds == 0
        assert status.live_requests == 0
    for server in pair.servers:
        assert "Traceback" not in (server.folder / "server.log").read_text()
