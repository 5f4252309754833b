"""The published experiments' workloads, by the shapes that their configurations name, and some of ours.

Evenly spaced arrivals, each tenant's first at a part of its own gap, are what the authors' generator
gives ("uniform"); "increase" raises the gap's inverse linearly from nothing; on and off by turns lets
the first tenant be silent every second period.  Lengths are 256 and 256 where nothing is said.

Refuses to know: files, schedulers, machines.  Source: ../shared/traces/vtc_artifact_runs_config.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from executor.simulation.traces import Arrival
from executor.simulation.work import NS, Request

TOKENS: Final = 256
ALLOWED_TOKENS: Final = 1024


def even(
    tenant: str,
    per_s: float,
    duration_s: float,
    *,
    prompt: int = TOKENS,
    output: int = TOKENS,
    weight: float = 1.0,
    phase: float = 0.9753,
    from_s: float = 0.0,
) -> list[Request]:
    """`per_s` of them, evenly, the first after `phase` of a gap."""
    gap_s = 1.0 / per_s
    count = int((duration_s - from_s - phase * gap_s) / gap_s) + 1
    return [
        Request(round((from_s + gap_s * (i + phase)) * NS), tenant, prompt, output, weight=weight)
        for i in range(max(0, count))
    ]


def uniform(
    rates: Sequence[float],
    duration_s: float,
    *,
    prompt: int = TOKENS,
    output: int = TOKENS,
    weights: Sequence[float] = (),
) -> list[Request]:
    """Tenants t0, t1, … at their rates."""
    return merged(
        even(
            f"t{index}",
            per_s,
            duration_s,
            prompt=prompt,
            output=output,
            weight=weights[index] if weights else 1.0,
            phase=0.3 + 0.6 * ((index * 0.618) % 1.0),
        )
        for index, per_s in enumerate(rates)
    )


def poisson(
    tenant: str,
    per_s: float,
    duration_s: float,
    rng: Random,
    *,
    prompt: tuple[int, int] = (TOKENS, TOKENS),
    output: tuple[int, int] = (TOKENS, TOKENS),
) -> list[Request]:
    """Lengths evenly within the two, both included."""
    found = []
    at_s = rng.expovariate(per_s)
    while at_s < duration_s:
        lengths = rng.randint(*prompt), rng.randint(*output)
        found.append(Request(round(at_s * NS), tenant, *lengths))
        at_s += rng.expovariate(per_s)
    return found


def increase(steady_per_s: float, most_per_s: float, duration_s: float) -> list[Request]:
    """t0 steadily; t1 from nothing to `most_per_s`, linearly."""
    rising = []
    count = 1
    while (at_s := (2 * count * duration_s / most_per_s) ** 0.5) < duration_s:
        rising.append(Request(round(at_s * NS), "t1", TOKENS, TOKENS))
        count += 1
    return merged([even("t0", steady_per_s, duration_s), rising])


def on_off(requests: Iterable[Request], tenant: str, period_s: float) -> list[Request]:
    """Without what `tenant` sends in every second period."""
    return [
        each
        for each in requests
        if each.tenant != tenant or int(each.at_ns / NS // period_s) % 2 == 0
    ]


def of_trace(
    arrivals: Iterable[Arrival],
    *,
    allowed_tokens: int = ALLOWED_TOKENS,
    weights: Mapping[str, float] | None = None,
) -> list[Request]:
    """`allowed_tokens` for each answer, or what it says if that is more."""
    return [
        Request(
            round(each.at_s * NS),
            each.tenant,
            each.prompt_tokens,
            each.output_tokens,
            max_new_tokens=max(allowed_tokens, each.output_tokens),
            weight=(weights or {}).get(each.tenant, 1.0),
            workload=each.workload,
            prefix=each.prefix,
        )
        for each in arrivals
    ]


def foretold(requests: Iterable[Request]) -> list[Request]:
    """Every client allows exactly what will be said: an oracle, as in the authors' runs."""
    return [replace(each, max_new_tokens=each.output_tokens) for each in requests]


def merged(parts: Iterable[Iterable[Request]]) -> list[Request]:
    return sorted((each for part in parts for each in part), key=lambda each: each.at_ns)


def only(requests: Iterable[Request], tenants: Iterable[str]) -> list[Request]:
    """What these would have sent alone."""
    kept = frozenset(tenants)
    return [each for each in requests if each.tenant in kept]
