from __future__ import annotations

from executor.scheduler.prediction import TENANTS_KEPT, USERS_KEPT, Outputs


def test_a_stranger_is_guessed_and_a_user_known_by_its_last_answers() -> None:
    outputs = Outputs(spread=0.5)
    assert (outputs.expect("a", "u", 1000), outputs.mean("a", "u", 100)) == (256, 100)
    for tokens in (10, 30) * 40:
        outputs.saw("a", "u", tokens)
    assert outputs.mean("a", "u", 1000) == 20
    assert 20 < outputs.expect("a", "u", 1000) < 35, "with some of the spread"
    assert outputs.expect("a", "u", 5) == 5
    assert outputs.mean("a", "v", 1000) == outputs.mean("b", "u", 1000) == 256


def test_15_a_tenant_with_many_users_makes_nobody_forget_anothers() -> None:
    outputs = Outputs()
    outputs.saw("mine", "u", 7)
    for number in range(3 * TENANTS_KEPT):
        outputs.saw("many", f"u{number}", 900)
    assert outputs.mean("mine", "u", 1000) == 7
    assert len(outputs._known["many"]) == USERS_KEPT


def test_tenants_are_bounded() -> None:
    outputs = Outputs()
    for number in range(TENANTS_KEPT + 5):
        outputs.saw(f"t{number}", "u", 1)
    assert len(outputs._known) == TENANTS_KEPT
