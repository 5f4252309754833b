"""The verdict of the timing audit: what pairs of measured times prove, and what they do not.

    level          who sent the secret prefix before            it should be
    same-user      the attacker's own user                      faster: the positive control
    same-tenant    another user of its tenant                   no different
    cross-tenant   a user of another tenant                     no different
    after-revoke   itself, under a right withdrawn since        no different
    fresh          nobody: both prompts are new (A/A)           no different, or the instrument lies

"Nothing seen" proves nothing by itself: it is PASS only where the same instrument, in the same run, sees
the reuse that is there, sees none between two fresh prompts, and is fine enough to call a difference of
±2 % of the real one none.  Refuses to know clocks, sockets and how the pairs came about
(`timing_audit_plan`).  Source: SECURITY.md §3; the limits below are its figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from security import timing_audit_stats as stats

FAMILY_ALPHA: Final = 0.001
POSITIVE_P_MAX: Final = 1e-8
EQUIVALENCE: Final = 0.02
"""Part of the positive control's median gap within which a difference is none."""
PAIRS_MIN: Final = 250
RELEASE_PAIRS: Final = 1000
PREFIX_TOKENS_MIN: Final = 2048


class Level(StrEnum):
    SAME_USER = "same-user"
    SAME_TENANT = "same-tenant"
    CROSS_TENANT = "cross-tenant"
    AFTER_REVOKE = "after-revoke"
    FRESH = "fresh"


PROTECTED: Final = (Level.SAME_TENANT, Level.CROSS_TENANT, Level.AFTER_REVOKE)


class Outcome(StrEnum):
    PASS = "PASS"  # noqa: S105 — a verdict
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


class Pair(NamedTuple):
    """One trial: time to the first token with the secret and with its control, and how many prompt tokens
    the answers say were cached."""

    secret_ns: int
    control_ns: int
    secret_cached: int = 0
    control_cached: int = 0


class CellName(NamedTuple):
    """`victims`: how often the secret was sent before; 0 for `fresh`."""

    level: Level
    victims: int

    def __str__(self) -> str:
        return f"{self.level}/{self.victims}" if self.victims else str(self.level)


Samples = Mapping[CellName, Sequence[Pair]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What was to be measured.  Who has `seed` can draw the same texts and the same order."""

    pairs: int
    levels: tuple[Level, ...]
    victims: tuple[int, ...]
    prefix_tokens: int
    seed: int

    @property
    def cells(self) -> tuple[CellName, ...]:
        named = [CellName(level, n) for level in self.levels for n in self.victims]
        return (*named, CellName(Level.FRESH, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one cell of the design shows.  Times are d = control − secret: above zero, the secret was the
    faster one.  `p`: of both paired tests together (the lesser, doubled); `adjusted_p`: by Holm over the
    protected cells.  `reported`: pairs whose answers name more cached tokens for the secret."""

    level: Level
    victims: int
    pairs: int
    p: float
    adjusted_p: float | None
    wilcoxon_p: float
    sign_p: float
    ks_p: float
    ks_statistic: float
    auc: float
    median_ns: float
    low_ns: float
    high_ns: float
    reported: int

    @property
    def cell(self) -> CellName:
        return CellName(self.level, self.victims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`gap_ns`: the positive control's median gap, the least of its cells; `sigma_ns`: the noise of one
    request, by the A/A control; `detectable_ns`: what a protected cell would show nine times in ten."""

    outcome: Outcome
    reason: str
    findings: tuple[Finding, ...]
    gap_ns: float | None = None
    sigma_ns: float | None = None
    margin_ns: float | None = None
    detectable_ns: float | None = None


def judge(design: Design, samples: Samples, *, stopped: str | None = None) -> Verdict:
    """`stopped`: why not all was measured, as the end of a sentence; None: it was."""
    found = _findings(design, samples)
    of = {each.cell: each for each in found}
    positive = [each for each in found if each.level is Level.SAME_USER]
    fresh = of.get(CellName(Level.FRESH, 0))
    gap = min((each.median_ns for each in positive), default=None)
    sigma = _sigma(samples)
    outcome, reason = _decide(design, of, positive, fresh, gap, sigma, stopped)
    return Verdict(
        outcome=outcome,
        reason=reason,
        findings=found,
        gap_ns=gap,
        sigma_ns=sigma,
        margin_ns=None if gap is None else max(0.0, EQUIVALENCE * gap),
        detectable_ns=None if sigma is None else _detectable_ns(design, sigma),
    )


def sigmas_min(pairs: int) -> float:
    """How many σ of one request the positive gap must have.  With 250 pairs the interval of a median is
    ± 0.29 σ wide, which fits into ± 2 % of 15 σ; more pairs narrow it; under 10 σ is no clean machine."""
    return max(10.0, 15.0 * math.sqrt(PAIRS_MIN / pairs))


def _decide(
    design: Design,
    of: Mapping[CellName, Finding],
    positive: Sequence[Finding],
    fresh: Finding | None,
    gap: float | None,
    sigma: float | None,
    stopped: str | None,
) -> tuple[Outcome, str]:
    """The first sentence that holds."""
    protected = [each for each in of.values() if each.level in PROTECTED]
    told = [each for each in protected if each.reported]
    if told:
        return Outcome.FAIL, (
            f"Answers told of cached tokens that another's request left: {_named(told)}."
        )
    if stopped is not None:
        return Outcome.INCONCLUSIVE, f"The run is not whole: {stopped}."
    if fresh is None or sigma is None:
        return (
            Outcome.INCONCLUSIVE,
            "Two fresh prompts were not compared, so the instrument is untested.",
        )
    if fresh.p <= FAMILY_ALPHA:
        return Outcome.INCONCLUSIVE, (
            f"Two fresh prompts seem to differ (p = {fresh.p:.1e}): what is measured here is not the "
            "cache. Look for what treats the two requests of a pair differently, then measure again."
        )
    leaks = [e for e in protected if e.adjusted_p is not None and e.adjusted_p <= FAMILY_ALPHA]
    if leaks:
        least = min(each.adjusted_p or 0.0 for each in leaks)
        return Outcome.FAIL, (
            f"A prefix that another sent is answered faster: {_named(leaks)} (p = {least:.1e})."
        )
    if not protected or not positive:
        wanted = "protected level" if positive else "positive control (same-user)"
        return Outcome.INCONCLUSIVE, f"There is no {wanted} among the levels, so nothing is proven."
    blind = _blind(positive)
    if blind is not None:
        return Outcome.INCONCLUSIVE, blind
    missing = [str(name) for name in design.cells if name not in of]
    if missing:
        return Outcome.INCONCLUSIVE, f"Not measured: {', '.join(missing)}."
    if design.pairs < PAIRS_MIN or design.prefix_tokens < PREFIX_TOKENS_MIN:
        return Outcome.INCONCLUSIVE, (
            f"{design.pairs} pairs of {design.prefix_tokens:,} tokens are too little: at least "
            f"{PAIRS_MIN} of {PREFIX_TOKENS_MIN:,} are needed."
        )
    assert gap is not None, "there is a positive control"
    return _weigh(design, protected, fresh, gap, sigma)


def _blind(positive: Sequence[Finding]) -> str | None:
    """Why a leak would not have been seen: the reuse that there must be was not."""
    weak = [e for e in positive if e.wilcoxon_p >= POSITIVE_P_MAX or e.median_ns <= 0]
    if not weak:
        return None
    return (
        f"Not even a user's own prefix is answered faster ({_named(weak)}), so 'no reuse seen' proves "
        "nothing. "
        + (
            "Answers tell of cached tokens: the time they save is below the noise."
            if any(each.reported for each in weak)
            else "No answer tells of cached tokens: is the cache on?"
        )
    )


def _weigh(
    design: Design,
    protected: Sequence[Finding],
    fresh: Finding,
    gap: float,
    sigma: float,
) -> tuple[Outcome, str]:
    """Nothing was seen.  Would it have been?"""
    if gap < sigmas_min(design.pairs) * sigma:
        return Outcome.INCONCLUSIVE, (
            f"A hit saves {gap / 1e6:.2f} ms, {gap / sigma:.1f} times the noise of one "
            f"request; {sigmas_min(design.pairs):.0f} times are needed. Measure on a quieter machine, with a longer "
            "prefix, a larger model or more pairs."
        )
    margin = EQUIVALENCE * gap
    wide = [e for e in (*protected, fresh) if e.low_ns < -margin or e.high_ns > margin]
    if wide:
        apart = [e for e in wide if e.low_ns > margin or e.high_ns < -margin]
        return Outcome.INCONCLUSIVE, (
            f"Not proven equal within ±{margin / 1e6:.3f} ms: {_named(wide)}. "
            + (
                f"There is a difference, in {_named(apart)}: look into it."
                if apart
                else "Measure more pairs."
            )
        )
    kind = "release" if design.pairs >= RELEASE_PAIRS else "smoke"
    return Outcome.PASS, (
        f"No difference at {', '.join(dict.fromkeys(e.level for e in protected))}, and equal within "
        f"±{margin / 1e6:.3f} ms where a hit saves {gap / 1e6:.2f} ms ({kind} run of {design.pairs:,} pairs)."
    )


def _findings(design: Design, samples: Samples) -> tuple[Finding, ...]:
    measured = [name for name in design.cells if samples.get(name)]
    found = {name: _finding(name, samples[name]) for name in measured}
    adjusted = stats.holm({name: each.p for name, each in found.items() if name.level in PROTECTED})
    return tuple(replace(each, adjusted_p=adjusted.get(name)) for name, each in found.items())


def _finding(name: CellName, pairs: Sequence[Pair]) -> Finding:
    gaps = _gaps(pairs)
    secret = [pair.secret_ns for pair in pairs]
    control = [pair.control_ns for pair in pairs]
    wilcoxon_p, sign_p = stats.signed_rank(gaps), stats.sign(gaps)
    p = _both(wilcoxon_p, sign_p)
    if name.level is Level.FRESH:  # no side is expected to be the faster: look at both
        back = [-gap for gap in gaps]
        p = min(1.0, 2 * min(p, _both(stats.signed_rank(back), stats.sign(back))))
    low, high = stats.median_interval(gaps)
    return Finding(
        level=name.level,
        victims=name.victims,
        pairs=len(pairs),
        p=p,
        adjusted_p=None,
        wilcoxon_p=wilcoxon_p,
        sign_p=sign_p,
        ks_p=stats.ks(secret, control),
        ks_statistic=stats.ks_statistic(secret, control),
        auc=stats.auc(secret, control),
        median_ns=stats.median(gaps),
        low_ns=low,
        high_ns=high,
        reported=sum(pair.secret_cached > pair.control_cached for pair in pairs),
    )


def _both(wilcoxon_p: float, sign_p: float) -> float:
    """The two tests together, at no more than the error of one."""
    return min(1.0, 2 * min(wilcoxon_p, sign_p))


def _gaps(pairs: Sequence[Pair]) -> list[int]:
    return [pair.control_ns - pair.secret_ns for pair in pairs]


def _sigma(samples: Samples) -> float | None:
    pairs = samples.get(CellName(Level.FRESH, 0))
    return stats.deviation(_gaps(pairs)) / math.sqrt(2) if pairs else None


def _detectable_ns(design: Design, sigma: float) -> float:
    """By the asymptotic power of the signed-rank test for normal noise (efficiency 3/π)."""
    from statistics import NormalDist  # slow to import, and no other command needs it

    family = max(1, sum(name.level in PROTECTED for name in design.cells))
    normal = NormalDist()
    reach = normal.inv_cdf(1 - FAMILY_ALPHA / (2 * family)) + normal.inv_cdf(0.9)
    return reach * sigma * math.sqrt(2 * math.pi / 3 / design.pairs)


def _named(findings: Sequence[Finding]) -> str:
    return ", ".join(str(each.cell) for each in findings)
