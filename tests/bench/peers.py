"""Ours and its peers in turn on one machine: A B C A B C, all but one at rest.

Each peer is started once (some take minutes) and stopped by signal while another is measured; ours is
started anew each round.  All get the same prompts in the same round.  Before each round the machine's
limits are measured.  A peer that fails is struck off with its reason, and the run goes on.
Refuses to know: which peers there are, printing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tests.bench.bounds import ModelSize, Rates, best
from tests.bench.figures import Row
from tests.bench.framing import WireError
from tests.bench.limits import Limits
from tests.bench.peer import Peer
from tests.bench.runs import Load, Round, summary

OURS = "lockgate"
ITS_OWN = (RuntimeError, ValueError, OSError, TimeoutError, WireError, msgspec.MsgspecError)
"""What a peer may do wrong without ending the run."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of a run.  `rounds` by name, ours first; `failed` by name, with why."""

    rounds: Mapping[str, Sequence[Round]]
    versions: Mapping[str, str]
    failed: Mapping[str, str]
    rates: Rates
    size: ModelSize


@dataclass(slots=True)
class _Run:
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def strike(self, peer: Peer, why: Exception) -> None:
        self.failed[peer.name] = f"{type(why).__name__}: {why}"
        peer.stop()


async def take_turns(
    ours: Callable[[int], Awaitable[Round]],
    peers: Sequence[Peer],
    load: Load,
    *,
    repeat: int,
    limits: Callable[[], Awaitable[Limits]],
    say: Callable[[str], None],
) -> Seen:
    """`ours` starts, measures and ends us.  What it raises ends the run, and every peer with it."""
    assert repeat > 0
    run = _Run(rounds={OURS: []})
    found: list[Limits] = []
    try:
        for peer in peers:
            await _start(run, peer, say)
        for number in range(repeat):
            found.append(await limits())
            run.rounds[OURS].append(await ours(number))
            for peer in peers:
                if peer.name not in run.failed:
                    await _turn(run, peer, load, number)
            say(f"round {number + 1} of {repeat} done")
    finally:
        for peer in peers:
            peer.stop()
    return Seen(
        rounds={name: rounds for name, rounds in run.rounds.items() if rounds},
        versions=run.versions,
        failed=run.failed,
        rates=best([each.rates for each in found]),
        size=found[0].size,
    )


async def _start(run: _Run, peer: Peer, say: Callable[[str], None]) -> None:
    try:
        took_s = await peer.started()
        run.versions[peer.name] = peer.version()
        peer.pause()
    except ITS_OWN as why:
        run.strike(peer, why)
        say(f"{peer.name} failed: {why}")
    else:
        run.rounds[peer.name] = []
        say(f"{peer.name} ready after {took_s:.1f} s")


async def _turn(run: _Run, peer: Peer, load: Load, number: int) -> None:
    try:
        peer.resume()
        run.rounds[peer.name].append(await peer.round(load, number))
        peer.pause()
    except ITS_OWN as why:
        run.strike(peer, why)


@dataclass(frozen=True, slots=True)
class Against:
    """Ours beside the best peer at one concurrency, and beside what the machine allows: output
    tokens/s with weights read as bf16, and as the file keeps them (fewer bits)."""

    concurrency: int
    ours_per_s: float
    best_peer: str | None
    best_per_s: float | None
    ratio: float | None
    bf16_limit_per_s: float
    file_limit_per_s: float


@dataclass(frozen=True, slots=True)
class Compared:
    """Medians over the rounds.  `long_ratio`: the best peer's time to first token over ours."""

    rows: Mapping[str, Sequence[Row]]
    against: tuple[Against, ...]
    long_ttft_ms: Mapping[str, float | None]
    long_ratio: float | None
    long_limit_ms: float | None


def compared(seen: Seen, load: Load) -> Compared:
    rows = {name: summary(rounds) for name, rounds in seen.rounds.items()}
    long = {name: _long(rounds) for name, rounds in seen.rounds.items()}
    theirs = [ms for name, ms in long.items() if name != OURS and ms is not None]
    ours = long[OURS]
    limit = None
    if load.long_tokens is not None:
        least = min(seen.size.bf16_bytes, seen.size.file_bytes)
        limit = 1000 * seen.size.prefill_s(seen.rates, weight_bytes=least, tokens=load.long_tokens)
    return Compared(
        rows=rows,
        against=tuple(
            _against(seen, rows, load, at, concurrency)
            for at, concurrency in enumerate(load.concurrencies)
        ),
        long_ttft_ms=long,
        long_ratio=min(theirs) / ours if theirs and ours else None,
        long_limit_ms=limit,
    )


def _against(
    seen: Seen, rows: Mapping[str, Sequence[Row]], load: Load, at: int, concurrency: int
) -> Against:
    per_s = {name: each[at].output_per_s for name, each in rows.items()}
    ours = per_s.pop(OURS)
    champion = max(per_s, key=lambda name: per_s[name], default=None)
    theirs = None if champion is None else per_s[champion]

    def limit(weight_bytes: int) -> float:
        return seen.size.closed_loop_per_s(
            seen.rates,
            weight_bytes=weight_bytes,
            concurrency=concurrency,
            input_tokens=load.input_tokens,
            output_tokens=load.output_tokens,
        )

    return Against(
        concurrency=concurrency,
        ours_per_s=ours,
        best_peer=champion,
        best_per_s=theirs,
        ratio=ours / theirs if theirs else None,
        bf16_limit_per_s=limit(seen.size.bf16_bytes),
        file_limit_per_s=limit(seen.size.file_bytes),
    )


def _long(rounds: Sequence[Round]) -> float | None:
    found = sorted(r.long_ttft_ms for r in rounds if r.long_ttft_ms is not None)
    return found[len(found) // 2] if found else None


def faults_of(seen: Seen) -> list[str]:
    """Errors of answers, ledgers that disagree, peers that failed."""
    found = [f"{name} failed: {why}" for name, why in seen.failed.items()]
    for name, rounds in seen.rounds.items():
        found += [f"{name}, {fault}" for fault in faults_of_rounds(rounds)]
    return found


def faults_of_rounds(rounds: Sequence[Round]) -> list[str]:
    found = [f"round {n + 1}: {error}" for n, r in enumerate(rounds) for error in r.errors[:3]]
    return found + [
        f"round {n + 1}: {fault}"
        for n, r in enumerate(rounds)
        if r.verdict is not None
        for fault in r.verdict.faults
    ]
