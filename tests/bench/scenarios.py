"""Three hard evenings for a running server: aborted streams, a spent budget, a `kill -9`.

Each is a bounded, seeded function of a `Site` that returns what was seen and the faults found; the
command line prints it, the slow tests assert that there are none.  They need a server whose plan
lets one user hold as many streams as asked (that of `config`), and no other load.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from tests.bench.admin import Used, is_ready, until, until_idle
from tests.bench.figures import Answer
from tests.bench.framing import WireError
from tests.bench.load import Shape, Stream, ask, opened
from tests.bench.processes import alive
from tests.bench.server import Site
from tests.bench.wire import Client, Endpoint

USER, TENANT = "acme/alice", "acme"
IDLE_S_MAX = 30.0
RUN_S_MAX = 300.0
CRASH_OUTPUT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Aborted:
    """`streams`: afterwards no block, lease, hold or task is left, and billed = generated."""

    streams: int
    aborted: int
    completed: int
    refused: int
    billed: Used
    heard_tokens: int  # of whole answers; a lower bound of what was generated
    prefilled_tokens: int  # the executor's own counts
    generated_tokens: int
    idle_s: float | None
    leftovers: Mapping[str, int]
    faults: tuple[str, ...]


async def streams(
    site: Site,
    *,
    count: int = 64,
    abort_share: float = 0.3,
    seed: int = 1,
    input_tokens: int = 64,
    output_tokens: int = 48,
) -> Aborted:
    """`count` streams at once; a seeded `abort_share` of them hang up: some before the head, some
    while queued, most after a random number of texts."""
    rng = random.Random(seed)
    doomed = dict.fromkeys(rng.sample(range(count), round(count * abort_share)), 0)
    for number in doomed:
        doomed[number] = rng.randrange(-1, output_tokens - 1)  # −1: hang up without reading at all
    shape = Shape(site.model, input_tokens=input_tokens, output_tokens=output_tokens)
    idle_tasks = (await site.admin.status()).tasks
    before, ran_before = await site.admin.usage(), await site.admin.executed()
    client = Client(Endpoint.parse(site.base_url), site.tokens[USER])

    async def one(number: int) -> Answer | None:
        if number not in doomed:
            return await ask(client, shape, f"streams/{seed}/{number}")
        await hang_up(client, shape, f"streams/{seed}/{number}", after=doomed[number], rng=rng)
        return None

    async with asyncio.timeout(RUN_S_MAX):
        answers = await asyncio.gather(*(one(number) for number in range(count)))
    client.close()
    whole = [a for a in answers if a is not None and a.whole]
    odd = [a for a in answers if a is not None and not a.whole]
    idle_s, left = await until_idle(site.admin, idle_tasks=idle_tasks, deadline_s=IDLE_S_MAX)
    ran = await site.admin.executed()
    billed = (await site.admin.usage()).since(before)
    heard = sum(a.output_tokens for a in whole)
    prefilled = ran.prompt_tokens - ran_before.prompt_tokens
    generated = ran.generated_tokens - ran_before.generated_tokens
    faults = [f"{n} x {error}" for error, n in Counter(a.error for a in odd).items()]
    faults += [f"{n} {name} left over" for name, n in sorted(left.items())]
    if prefilled != billed.input_tokens:
        faults.append(f"prefilled {prefilled}, billed {billed.input_tokens} input tokens")
    if generated != billed.output_tokens:
        faults.append(f"generated {generated}, billed {billed.output_tokens} output tokens")
    if billed.output_tokens < heard:
        faults.append(f"clients heard {heard} tokens, billed {billed.output_tokens}")
    return Aborted(
        streams=count,
        aborted=len(doomed),
        completed=len(whole),
        refused=sum(a.status not in {None, 200} for a in odd),
        billed=billed,
        heard_tokens=heard,
        prefilled_tokens=prefilled,
        generated_tokens=generated,
        idle_s=idle_s,
        leftovers=left,
        faults=tuple(faults),
    )


async def hang_up(
    client: Client, shape: Shape, seed: str, *, after: int, rng: random.Random
) -> None:
    """Close the connection after `after` texts; −1: after a moment, without reading anything."""
    if after < 0:
        task = asyncio.create_task(ask(client, shape, seed))
        await asyncio.wait({task}, timeout=rng.random() * 0.2)
        task.cancel()
        await asyncio.wait({task})
        return
    try:
        async with opened(client, shape, seed) as stream:
            if stream.error is not None:
                return
            async with aclosing(stream.texts()) as texts:
                heard = 0
                while heard < after and await anext(texts, None) is not None:
                    heard += 1
    except (OSError, WireError):
        return


@dataclass(frozen=True, slots=True)
class Spent:
    """`budget`: exactly as many are admitted as fit."""

    asked: int
    fit: int
    admitted: int
    refused: int
    refusals: Mapping[str, int]
    overlapped: bool  # none had ended before all had asked, so that every hold stood at once
    cost_nano_usd: int  # of one request
    billed: Used
    faults: tuple[str, ...]


async def budget(
    site: Site,
    *,
    asked: int = 200,
    fit: int = 37,
    seed: int = 1,
    input_tokens: int = 16,
    output_tokens: int = 96,
) -> Spent:
    """One request first shows the exact price of its shape; then the tenant's budget is set to what
    is spent plus `fit` and a half of it, and `asked` ask at once."""
    assert 0 < fit < asked
    shape = Shape(site.model, input_tokens=input_tokens, output_tokens=output_tokens)
    client = Client(Endpoint.parse(site.base_url), site.tokens[USER])
    unspent = await site.admin.usage(TENANT)
    probe = await ask(client, shape, f"budget/{seed}/probe")
    if not probe.whole:
        raise RuntimeError(f"the request that shows the price failed: {probe.error}")
    await until_idle(site.admin, deadline_s=IDLE_S_MAX)
    before = await site.admin.usage(TENANT)
    cost = before.since(unspent).nano_usd
    if cost <= 1:
        raise RuntimeError("the ledger shows no price for a finished request")
    await site.admin.set_tenant_budget(
        TENANT, before.nano_usd + fit * cost + cost // 2, window="calendar_month"
    )
    async with asyncio.timeout(RUN_S_MAX):
        answers = await asyncio.gather(
            *(ask(client, shape, f"budget/{seed}/{number}") for number in range(asked))
        )
    client.close()
    _, left = await until_idle(site.admin, deadline_s=IDLE_S_MAX)
    billed = (await site.admin.usage(TENANT)).since(before)
    admitted = [a for a in answers if a.status == 200]
    refused = [a for a in answers if a.status != 200]
    kinds = Counter((a.error or "").split(":")[0] for a in refused)
    last_word = max((a.ended_s for a in refused), default=0.0)  # by then all had been decided
    overlapped = bool(admitted) and last_word < min(a.ended_s for a in admitted)
    faults = [f"{n} {name} left over" for name, n in sorted(left.items())]
    if len(admitted) != fit:
        faults.append(f"{len(admitted)} admitted, {fit} fit")
    if kinds != {"429 insufficient_quota": asked - fit}:
        faults.append(f"refusals were {dict(kinds)}, expected 429 insufficient_quota")
    if not overlapped:
        faults.append("one ended before all had been decided: ask for more output_tokens")
    if broken := [a.error for a in admitted if not a.whole]:
        faults.append(f"{len(broken)} of the admitted broke ({broken[0]})")
    if billed.nano_usd != cost * len(admitted):
        faults.append(f"billed {billed.nano_usd} nano-USD for {len(admitted)} x {cost}")
    return Spent(
        asked=asked,
        fit=fit,
        admitted=len(admitted),
        refused=len(refused),
        refusals=dict(kinds),
        overlapped=overlapped,
        cost_nano_usd=cost,
        billed=billed,
        faults=tuple(faults),
    )


@dataclass(frozen=True, slots=True)
class Crashed:
    """`crash_*`: what clients saw, how soon it served again, and that the book came to rest."""

    victim: str
    streams: int
    seen: Mapping[str, int]  # how many streams ended how
    ready_s: float | None  # from the kill to a whole answer
    converged_s: float | None  # from the kill to no hold, lease or block
    orphan: bool  # the executor of a killed gateway still lives
    leftovers: Mapping[str, int]
    billed: Used
    faults: tuple[str, ...]


async def crash_executor(
    site: Site, *, count: int = 8, seed: int = 1, recovery_s_max: float = 10.0
) -> Crashed:
    """`kill -9` of the executor once every stream has text.  Clients must get an explicit retryable
    error, not silence; it must serve again within `recovery_s_max`."""
    status = await site.admin.status()
    pid = status.executor.pid
    if pid is None:
        raise RuntimeError(f"the executor has no process: {status.executor.state}")
    before = await site.admin.usage()
    seen, killed_s = await _streams_then(site, count, seed, lambda: os.kill(pid, signal.SIGKILL))
    ready_s = await _serves_again(site, killed_s, deadline_s=max(60.0, recovery_s_max))
    faults: list[str] = []
    silent = {how: n for how, n in seen.items() if not how.startswith("error event, [DONE]")}
    if silent:
        faults.append(f"expected an explicit error event on each stream, saw {silent}")
    if ready_s is None or ready_s > recovery_s_max:
        faults.append(f"served again after {ready_s} s, expected at most {recovery_s_max:g}")
    return await _settled(site, "executor", count, seen, killed_s, ready_s, before, faults)


async def crash_gateway(
    site: Site,
    *,
    kill: Callable[[], None],
    restart: Callable[[], Awaitable[object]],
    count: int = 8,
    seed: int = 1,
    converge_s_max: float = 180.0,
) -> Crashed:
    """`kill -9` of the gateway in mid-stream, then a restart on the same state.  Clients see a cut
    (nobody is left to say more), never a normal end; the orphaned executor ends by itself, and what it ran
    is billed as used."""
    executor_pid = (await site.admin.status()).executor.pid
    before = await site.admin.usage()
    seen, killed_s = await _streams_then(site, count, seed, kill)
    await restart()
    ready_s = await _serves_again(site, killed_s, deadline_s=60.0)
    faults: list[str] = []
    if normal := seen.get("complete", 0):
        faults.append(f"{normal} streams looked complete although the gateway was killed")
    if ready_s is None:
        faults.append("it did not serve again")
    orphan = executor_pid is not None and alive(executor_pid)
    if orphan:
        faults.append("the old executor outlived its gateway")

    async def as_used() -> bool:
        billed = (await site.admin.usage()).since(before)
        return 0 < billed.output_tokens < count * CRASH_OUTPUT_TOKENS

    if await until(as_used, deadline_s=30.0) is None:
        faults.append("what the executor left was not billed as used")
    return await _settled(
        site,
        "gateway",
        count,
        seen,
        killed_s,
        ready_s,
        before,
        faults,
        orphan=orphan,
        converge_s_max=converge_s_max,
    )


async def _streams_then(
    site: Site, count: int, seed: int, strike: Callable[[], None]
) -> tuple[dict[str, int], float]:
    """Strike once each of `count` streams has text; how each then ended, and when it was struck."""
    shape = Shape(site.model, input_tokens=32, output_tokens=CRASH_OUTPUT_TOKENS)
    client = Client(Endpoint.parse(site.base_url), site.tokens[USER])
    talking = asyncio.Barrier(count + 1)

    async def one(number: int) -> str:
        stream: Stream | None = None
        try:
            async with opened(client, shape, f"crash/{seed}/{number}") as stream:
                if stream.error is not None:
                    raise RuntimeError(f"stream {number} was refused: {stream.error}")
                async with aclosing(stream.texts()) as texts:
                    await anext(texts)
                    await talking.wait()
                    async for _ in texts:
                        pass
        except (OSError, WireError) as error:
            return f"cut: {type(error).__name__}"
        except msgspec.DecodeError:
            return "half an event"
        if stream.error is not None:
            return f"error event, {'[DONE]' if stream.done else 'no [DONE]'}: {stream.error}"
        return "complete" if stream.finish else "end without finish_reason"

    async with asyncio.timeout(RUN_S_MAX), asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number)) for number in range(count)]
        await talking.wait()
        killed_s = time.perf_counter()
        strike()
    client.close()
    return dict(Counter(task.result() for task in tasks)), killed_s


async def _serves_again(site: Site, killed_s: float, *, deadline_s: float) -> float | None:
    """Seconds from the kill to the end of a first whole answer."""
    client = Client(Endpoint.parse(site.base_url), site.tokens[USER])
    shape = Shape(site.model, input_tokens=8, output_tokens=1)

    async def answers() -> bool:
        return await is_ready(site.base_url) and (await ask(client, shape, "again")).whole

    served = await until(answers, deadline_s=deadline_s)
    client.close()
    return None if served is None else time.perf_counter() - killed_s


async def _settled(
    site: Site,
    victim: str,
    count: int,
    seen: Mapping[str, int],
    killed_s: float,
    ready_s: float | None,
    before: Used,
    faults: list[str],
    *,
    orphan: bool = False,
    converge_s_max: float = 60.0,
) -> Crashed:
    idle_s, left = await until_idle(site.admin, deadline_s=converge_s_max)
    converged_s = None if idle_s is None else time.perf_counter() - killed_s
    if converged_s is None:
        faults.append(f"the book did not converge: {left}")
    billed = (await site.admin.usage()).since(before)
    return Crashed(
        victim=victim,
        streams=count,
        seen=seen,
        ready_s=ready_s,
        converged_s=converged_s,
        orphan=orphan,
        leftovers=left,
        billed=billed,
        faults=tuple(faults),
    )
