"""Whose prompt is kept: E10 of SCHEDULER.md §3.

Eight tenants ask about long documents, each user about one of its own, together more than the memory
holds; a ninth sends prompts that nobody has sent before.  `hit_part`: of all prompt tokens, those that were
taken from what was kept and not computed.  The longest prefix first, without a window, computes least and
lets the ninth wait.

Refuses to know: files, tables.  Source: SCHEDULER.md §3, §5; DLPM.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count, islice
from random import Random
from typing import Final

from executor.scheduler.fair import Tuning
from executor.simulation.experiments import (
    Bar,
    Contender,
    Experiment,
    Figures,
    mean,
    of_tenants,
    play,
    tail,
    ttfts_s,
    tuned,
)
from executor.simulation.longest import Longest
from executor.simulation.machine import A10G
from executor.simulation.metrics import served
from executor.simulation.work import NS, Request, SimWork
from executor.simulation.workloads import merged

LPM: Final = Contender("lpm", Longest[SimWork])
WINDOWS_MS: Final = (0, 100, 300, 1_000, 10_000)
"""Besides the one that is the default."""
MACHINE: Final = replace(A10G, kv_blocks=35_000 // A10G.block_tokens)
ID_TOKENS: Final = A10G.block_tokens


def windowed(ms: int) -> Contender:
    return tuned(Tuning(locality_ms=ms), f"fair {ms} ms")


def asked(
    duration_s: float,
    seed: int,
    *,
    per_s: float,
    sharing: int = 8,
    documents: int = 8,
    document_tokens: int = 768,
    cold_per_s: float = 0.25,
) -> list[Request]:
    """`per_s` of each sharing tenant, from one of its users at random, about that one's document."""
    rng = Random(seed)  # noqa: S311  # a simulation, not a secret
    fresh = count(sharing * documents * document_tokens)  # ids that stand for nothing else
    found: list[Request] = []
    for number in range(sharing + 1):
        cold = number == sharing
        tenant, rate = ("cold", cold_per_s) if cold else (f"t{number}", per_s)
        at_s = rng.expovariate(rate)
        while at_s < duration_s:
            user, own = rng.randrange(documents), rng.randint(32, 96)
            first = user * document_tokens
            length = document_tokens // ID_TOKENS
            document = islice(fresh, length) if cold else range(first, first + length)
            question = islice(fresh, own // ID_TOKENS)
            found.append(
                Request(
                    round(at_s * NS),
                    tenant,
                    document_tokens + own,
                    rng.randint(16, 64),
                    user=f"u{user}",
                    prefix=(*document, *question),
                    prefix_id_tokens=ID_TOKENS,
                )
            )
            at_s += rng.expovariate(rate)
    return merged([found])


def e10(duration_s: float = 180.0, per_s: float = 0.9, seed: int = 10) -> Experiment:
    requests = asked(duration_s, seed, per_s=per_s)
    whole = sum(each.prompt_tokens for each in requests)

    def run(contender: Contender) -> Figures:
        seen = play(contender, requests, machine=MACHINE, prefixes=True)
        cold = of_tenants(seen, {"cold"})
        others = [each for each in seen.outcomes if each.request.tenant != "cold"]
        parts = served(seen.in_device_ms(), (duration_s / 3, duration_s))
        shares = [parts[tenant] for tenant in parts if tenant != "cold"]
        return {
            "hit_part": sum(each.cached_tokens for each in seen.outcomes) / whole,
            "cold_ttft_mean_s": mean(ttfts_s(cold)),
            "cold_ttft_p99_s": tail(ttfts_s(cold)),
            "others_ttft_mean_s": mean(ttfts_s(others)),
            "others_ttft_p99_s": tail(ttfts_s(others)),
            "others_least_of_most": min(shares) / max(shares),
            "took_s": seen.end_ns / NS,
            "recomputed_part": seen.recomputed_part,
        }

    return Experiment(
        "E10",
        "8 tenants whose prompts are kept, a ninth whose are not: windows for the longest prefix",
        run,
        (
            Bar(
                "fair: ≥ 90 % of lpm's hits",
                lambda f: f["fair"]["hit_part"] >= 0.9 * f["lpm"]["hit_part"],
            ),
            Bar(
                "fair's cold p99 ≤ 2 x fcfs",
                lambda f: f["fair"]["cold_ttft_p99_s"] <= 2 * f["fcfs"]["cold_ttft_p99_s"],
            ),
            Bar(
                "fair's cold p99 ≤ 1.2 x without a window",
                lambda f: f["fair"]["cold_ttft_p99_s"] <= 1.2 * f["fair 0 ms"]["cold_ttft_p99_s"],
            ),
            Bar(
                "fair: those who share differ by ≤ 10 %",
                lambda f: f["fair"]["others_least_of_most"] >= 0.9,
            ),
        ),
        reported="DLPM ≤ 2.87 x VTC's tokens/s; SGLang's lpm: 5 % of requests, cold, had 75 % of all TTFT",
        beside=(LPM, *map(windowed, WINDOWS_MS)),
    )
