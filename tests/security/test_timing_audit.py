"""The verdict for samples of known kinds, and the plan that makes such samples."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from security.timing_audit import (
    CellName,
    Design,
    Level,
    Outcome,
    Pair,
    Verdict,
    judge,
    sigmas_min,
)
from security.timing_audit_plan import Act, Role, Step, Trial, letters, requests_of, trials
from tests.security.timing_noise import MACHINE, Machine

LEVELS = (Level.SAME_USER, Level.SAME_TENANT, Level.CROSS_TENANT)
DESIGN = Design(pairs=250, levels=LEVELS, victims=(1,), prefix_tokens=2048, seed=1)
CROSS, TENANT = CellName(Level.CROSS_TENANT, 1), CellName(Level.SAME_TENANT, 1)
OWN, FRESH = CellName(Level.SAME_USER, 1), CellName(Level.FRESH, 0)


def samples(machine: Machine = MACHINE, **hits: float) -> dict[CellName, list[Pair]]:
    """`hits`: for cells by name (`cross`, `tenant`, `own`, `fresh`) what a hit saves, in ms."""
    names = {"own": OWN, "tenant": TENANT, "cross": CROSS, "fresh": FRESH}
    saved = {"own": 40.0, **hits}
    return {
        name: machine.pairs(DESIGN.pairs, saved.get(word, 0.0), seed=at)
        for at, (word, name) in enumerate(names.items())
    }


def test_isolated_and_seen_to_be_so_is_a_pass() -> None:
    verdict = judge(DESIGN, samples())
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert "same-tenant, cross-tenant" in verdict.reason
    assert "smoke" in verdict.reason
    assert verdict.gap_ns == pytest.approx(40e6, rel=0.02)
    assert verdict.sigma_ns == pytest.approx(MACHINE.sigma_ms * 1e6, rel=0.25)
    assert verdict.detectable_ns is not None
    assert verdict.detectable_ns < 0.02 * 40e6
    assert judge(DESIGN, samples()) == verdict, "the same samples, the same verdict"


def test_a_leak_is_a_fail_and_names_its_level() -> None:
    verdict = judge(DESIGN, samples(cross=40.0))
    assert verdict.outcome is Outcome.FAIL
    assert "cross-tenant/1" in verdict.reason
    assert "same-tenant" not in verdict.reason
    assert judge(DESIGN, samples(cross=1.5)).outcome is Outcome.FAIL, "one request in many"


def test_a_leak_is_a_fail_even_where_the_positive_control_is_not_seen() -> None:
    assert judge(DESIGN, samples(own=0.0, tenant=40.0)).outcome is Outcome.FAIL


def test_a_cache_that_is_off_proves_nothing() -> None:
    verdict = judge(DESIGN, samples(own=0.0))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "is the cache on?" in verdict.reason


def test_hits_that_save_too_little_prove_nothing() -> None:
    verdict = judge(DESIGN, samples(own=10.0 * MACHINE.sigma_ms))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "15 times are needed" in verdict.reason
    assert (sigmas_min(250), sigmas_min(4000), sigmas_min(100) > 20) == (15, 10, True)


def test_two_fresh_prompts_that_differ_accuse_the_instrument() -> None:
    for saved in (5.0, -5.0):
        verdict = judge(DESIGN, samples(fresh=saved, cross=5.0))
        assert verdict.outcome is Outcome.INCONCLUSIVE
        assert "fresh prompts" in verdict.reason


def test_a_difference_below_what_rejects_is_not_called_equal() -> None:
    """A secret that is slower rejects no one-sided test; nor is it equal."""
    verdict = judge(DESIGN, samples(cross=-3.0))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "There is a difference, in cross-tenant/1" in verdict.reason


def test_noise_that_hides_two_percent_is_not_called_equal() -> None:
    noisy = samples()
    noisy[CROSS] = replace(MACHINE, sigma_ms=8 * MACHINE.sigma_ms).pairs(250, 0.0, seed=11)
    verdict = judge(DESIGN, noisy)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "Measure more pairs" in verdict.reason


def test_a_run_that_was_stopped_never_passes() -> None:
    for stopped in (samples(), samples(cross=40.0)):
        verdict = judge(DESIGN, stopped, stopped="stopped after 9 trials")
        assert verdict.outcome is Outcome.INCONCLUSIVE
        assert "stopped after 9 trials" in verdict.reason


def test_cached_tokens_of_another_are_a_fail_without_statistics() -> None:
    told = samples()
    told[TENANT][3] = told[TENANT][3]._replace(secret_cached=2048)
    for stopped in (None, "interrupted"):
        assert judge(DESIGN, told, stopped=stopped).outcome is Outcome.FAIL
    everywhere = samples()  # a registered scaffold, cached for everybody
    everywhere[TENANT] = [
        p._replace(secret_cached=16, control_cached=16) for p in samples()[TENANT]
    ]
    assert judge(DESIGN, everywhere).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("design", "says"),
    (
        (replace(DESIGN, pairs=249), "too little"),
        (replace(DESIGN, prefix_tokens=2047), "too little"),
        (replace(DESIGN, levels=(*LEVELS, Level.AFTER_REVOKE)), "Not measured: after-revoke/1"),
        (replace(DESIGN, victims=(1, 5)), "Not measured"),
        (replace(DESIGN, levels=LEVELS[1:]), "no positive control"),
        (replace(DESIGN, levels=LEVELS[:1]), "no protected level"),
    ),
)
def test_what_was_not_measured_is_not_proven(design: Design, says: str) -> None:
    verdict = judge(design, samples())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert says in verdict.reason


def test_nothing_measured_is_a_verdict_too() -> None:
    empty: Verdict = judge(DESIGN, {})
    assert (empty.outcome, empty.findings) == (Outcome.INCONCLUSIVE, ())


def test_the_plan_is_the_seeds_and_balanced_at_every_round() -> None:
    design = replace(DESIGN, pairs=6, victims=(1, 5, 25))
    plan = list(trials(design))
    assert plan == list(trials(design))
    assert plan != list(trials(replace(design, seed=2)))
    per_round = len(design.cells)
    for at in range(0, len(plan), per_round):
        assert {trial.cell for trial in plan[at : at + per_round]} == set(design.cells)
    assert Counter(trial.cell for trial in plan) == dict.fromkeys(design.cells, 6)
    assert 0 < sum(trial.secret_first for trial in plan) < len(plan)
    assert requests_of(design) == sum(len(trial.steps()) for trial in plan)


def test_a_trial_warms_as_its_level_says_then_measures_both() -> None:
    trial = Trial(0, CellName(Level.SAME_TENANT, 5), secret_first=True)
    measured = (Step(Act.SECRET, Role.ATTACKER), Step(Act.CONTROL, Role.ATTACKER))
    assert trial.steps() == (Step(Act.WARM, Role.COLLEAGUE),) * 5 + measured
    assert Trial(0, FRESH, secret_first=False).steps() == measured[::-1]
    revoked = Trial(0, CellName(Level.AFTER_REVOKE, 1), secret_first=True)
    first = [Act.WARM, Act.WITHDRAW, Act.SETTLE]
    assert [step.act for step in revoked.steps()] == [*first, Act.SECRET, Act.CONTROL]
    texts = [revoked.text(act, DESIGN)[:40] for act in (Act.WARM, Act.SETTLE, Act.CONTROL)]
    assert len(set(texts)) == 3, "the third warms neither of the measured"


def test_secret_and_control_have_one_shape_and_nothing_else_in_common() -> None:
    one, other = Trial(0, CROSS, secret_first=True), Trial(1, CROSS, secret_first=True)
    secret, control = (one.text(act, DESIGN) for act in (Act.SECRET, Act.CONTROL))
    assert secret.startswith(one.text(Act.WARM, DESIGN) + " ")
    assert len(secret) == len(control) == 2 * (2048 + 16) - 1
    assert secret[-32:] == control[-32:], "the same end"
    assert len({secret[:40], control[:40], other.text(Act.SECRET, DESIGN)[:40]}) == 3
    assert letters("x", 3) == letters("x", 3)
