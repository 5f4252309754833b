"""A whole server under mixed load for a long time: nothing may grow, nothing may be left, nothing slow.

Prompts and answers of all lengths, all temperatures, structured output where the server has it, and
one in five hangs up, before the head or in mid-answer.  The time is cut into windows (a minute each);
after each the load ends, and then the blocks, leases, holds and tasks are back where they began, the
book agrees with the executor, and a fixed probe measures the step time.  First of all comes the widest
load at once: memory that is touched for the first time is no leak.
Refuses to know: how the server was started, printing.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.bench.admin import Status, Used, until_idle
from tests.bench.load import Shape, closed_loop
from tests.bench.mixed_load import USUAL, Ends, Mix, Tally, has_structure, mixed, widest
from tests.bench.processes import Cost, busy_s
from tests.bench.scenarios import IDLE_S_MAX, USER
from tests.bench.server import Site
from tests.bench.trend import Trend, trend
from tests.bench.wire import Client, Endpoint

RSS_MIB_MIN, RSS_SHARE = 8.0, 0.03  # growth that passes, whichever is more
STEP_SHARE = 0.10
OTHERS_CORES_MAX = 0.1  # on average; beside busier neighbours a step time says nothing
SETTLE_SHARE = 1 / 6  # of the samples: caches fill, the step-time model learns
WINDOW_S_MAX = 300.0  # a window's last answers included


@dataclass(frozen=True, slots=True)
class Sample:
    """After a window, when all was quiet."""

    at_min: float
    requests: int  # since the last sample
    hung_up: int
    generated: int  # tokens, since the last sample
    gateway_mib: float
    executor_mib: float
    step_ms: float  # of the probe
    others_cores: float  # what processes that are not ours had meanwhile
    idle_s: float | None


@dataclass(frozen=True, slots=True)
class Soaked:
    minutes: float
    requests: int
    hung_up: int
    structured: bool
    billed: Used
    samples: Sequence[Sample]
    trends: Mapping[str, Trend | None]
    faults: tuple[str, ...]


async def soak(
    site: Site,
    *,
    seconds: float,
    window_s: float = 60.0,
    mix: Mix = USUAL,
    seed: int = 1,
    clock_s: Callable[[], float] = time.perf_counter,
    say: Callable[[Sample], None] = lambda _: None,
) -> Soaked:
    """Faults are found, not raised."""
    assert 0 < window_s <= seconds
    rng = random.Random(seed)
    client = Client(Endpoint.parse(site.base_url), site.tokens[USER])
    first = await site.admin.status()
    structured = await has_structure(client, site.model, mix, seed)
    await widest(client, site.model, mix, seed)
    client.close()
    await until_idle(site.admin, idle_tasks=first.tasks, deadline_s=IDLE_S_MAX)
    begun_s = clock_s()
    before, ran_before = await site.admin.usage(), await site.admin.executed()
    samples: list[Sample] = []
    faults: list[str] = []
    tally, ran = Tally(), ran_before
    while (at_s := clock_s() - begun_s) < seconds:
        asked = (tally.requests, tally.hung_up)
        until_s = begun_s + min(seconds, at_s + window_s)
        name = f"soak/{seed}/{len(samples)}"
        async with asyncio.timeout(window_s + WINDOW_S_MAX):
            ends = Ends(until_s, clock_s)
            await mixed(client, site.model, mix, name, rng, tally, ends, structured=structured)
        client.close()  # idle connections are tasks over there
        idle_s, left = await until_idle(site.admin, idle_tasks=first.tasks, deadline_s=IDLE_S_MAX)
        at_min = (clock_s() - begun_s) / 60
        faults += [f"minute {at_min:.1f}: {n} {what} left over" for what, n in left.items()]
        generated = (await site.admin.executed()).generated_tokens - ran.generated_tokens
        step_ms, others = await _probe(site, client, mix, name, _pids(first))
        ran = await site.admin.executed()
        status = await site.admin.status()
        samples.append(
            Sample(
                at_min=at_min,
                requests=tally.requests - asked[0],
                hung_up=tally.hung_up - asked[1],
                generated=generated,
                gateway_mib=Cost.of(status.pid).rss_mib,
                executor_mib=_rss(status),
                step_ms=step_ms,
                others_cores=others,
                idle_s=idle_s,
            )
        )
        say(samples[-1])
        faults += _lives(first, status, at_min)
    client.close()
    billed = (await site.admin.usage()).since(before)
    for what, executed, booked in (
        ("input", ran.prompt_tokens - ran_before.prompt_tokens, billed.input_tokens),
        ("output", ran.generated_tokens - ran_before.generated_tokens, billed.output_tokens),
    ):
        if executed != booked:
            faults.append(f"executed {executed} {what} tokens, billed {booked}")
    faults += [f"{n} x {error}" for error, n in tally.errors.most_common(5)]
    trends = trends_of(samples)
    return Soaked(
        minutes=(clock_s() - begun_s) / 60,
        requests=tally.requests,
        hung_up=tally.hung_up,
        structured=structured,
        billed=billed,
        samples=samples,
        trends=trends,
        faults=(*faults, *rises(samples, trends)),
    )


def trends_of(samples: Sequence[Sample]) -> dict[str, Trend | None]:
    """A minute; what came first, while caches filled, is left out."""
    settled = samples[math.ceil(len(samples) * SETTLE_SHARE) :]
    minutes = [each.at_min for each in settled]
    return {
        "gateway_mib": trend(minutes, [each.gateway_mib for each in settled]),
        "executor_mib": trend(minutes, [each.executor_mib for each in settled]),
        "step_ms": trend(minutes, [each.step_ms for each in settled]),
    }


def rises(samples: Sequence[Sample], trends: Mapping[str, Trend | None]) -> list[str]:
    """What grew by more than it may, and not by chance."""
    if any(each is None for each in trends.values()):
        return [
            f"{len(samples)} samples are too few for a trend; soak longer, or in shorter windows"
        ]
    found = []
    for name, each in trends.items():
        assert each is not None
        if name == "step_ms" and others_cores(samples) > OTHERS_CORES_MAX:
            continue
        most = STEP_SHARE * each.mean
        if name != "step_ms":
            most = max(RSS_MIB_MIN, RSS_SHARE * each.mean)
        if each.rises_by(most):
            found.append(
                f"{name} rises by {each.growth:.2f} over the run ({each.slope:.3f} a minute, "
                f"± {each.error:.3f}); at most {most:.2f}"
            )
    return found


def others_cores(samples: Sequence[Sample]) -> float:
    return sum(each.others_cores for each in samples) / len(samples)


def _pids(status: Status) -> list[int]:
    return [pid for pid in (status.pid, status.executor.pid) if pid is not None]


def _lives(first: Status, now: Status, at_min: float) -> list[str]:
    same = (first.pid, first.executor.pid, first.executor.restarts)
    if (now.pid, now.executor.pid, now.executor.restarts) == same:
        return []
    return [f"minute {at_min:.1f}: gateway or executor is another process than at the begin"]


def _rss(status: Status) -> float:
    if status.executor.pid is None:
        return 0.0
    return Cost.of(status.executor.pid).rss_mib


async def _probe(
    site: Site, client: Client, mix: Mix, name: str, pids: Sequence[int]
) -> tuple[float, float]:
    """Always the same work: milliseconds a step as the executor measured it, and how many cores
    processes other than these and ourselves had meanwhile."""
    before, ours, busy, begun_s = (
        await site.admin.executed(), _cpu_s(pids), busy_s(), time.perf_counter(),
    )  # fmt: skip
    shape = Shape(site.model, mix.probe_input, mix.probe_output, words=mix.words)
    await closed_loop(
        [client],
        shape,
        concurrency=mix.probe_streams,
        requests=2 * mix.probe_streams,
        seed=f"{name}/probe",
        deadline_s=WINDOW_S_MAX,
    )
    await until_idle(site.admin, deadline_s=IDLE_S_MAX)
    others_s = busy_s() - busy - (_cpu_s(pids) - ours)
    after = await site.admin.executed()
    steps = after.steps - before.steps
    step_ms = 1000 * (after.device_s - before.device_s) / steps if steps else 0.0
    return step_ms, max(0.0, others_s / (time.perf_counter() - begun_s))


def _cpu_s(pids: Sequence[int]) -> float:
    return time.process_time() + sum(Cost.of(pid).cpu_s for pid in pids)
