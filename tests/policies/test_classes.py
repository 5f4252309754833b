"""A wish never elevates; a promise is judged by what the client saw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.classes import (
    Fate,
    Judged,
    Kind,
    ServiceClass,
    Tier,
    Times,
    Verdict,
    judge,
    tier_used,
    wished,
)
from policies.facts import Credential, CredentialKind, Principal, Standing

CLASSES = {
    each.name: each
    for each in (
        ServiceClass("critical", reserved=0.2, ttft_ms=500, itl_ms=80),
        ServiceClass("interactive", ttft_ms=2000, itl_ms=120),
        ServiceClass("batch", weight=None, floor=0.05),
    )
}
ALICE = Principal("acme", None, "alice", "idp", Credential(CredentialKind.TOKEN, None))
PRO = Standing("acme", suspended=False, models=frozenset(), classes=("interactive", "batch"))
GOLD = replace(PRO, classes=("interactive", "critical"))
KEPT, BROKEN, NONE = Verdict


@pytest.mark.parametrize(
    ("tier", "bound", "standing", "comes_to"),
    (
        (None, None, PRO, None),
        ("auto", None, PRO, None),
        ("default", None, GOLD, None),
        ("scale", None, GOLD, None),
        ("flex", None, PRO, "batch"),
        ("flex", None, GOLD, None),
        ("priority", None, PRO, None),  # the plan has none: never an elevation
        ("priority", None, GOLD, "critical"),
        ("fast", None, GOLD, "critical"),
        ("priority", "batch", GOLD, None),  # a credential's class binds
        ("flex", "interactive", PRO, None),
        ("priority", None, replace(PRO, classes=("unknown",)), None),
    ),
)
def test_a_wish_is_had_within_the_plan_and_the_credential(
    tier: str | None, bound: str | None, standing: Standing, comes_to: str | None
) -> None:
    assert wished(tier, replace(ALICE, service_class=bound), standing, CLASSES) == comes_to


def test_the_tier_used_is_the_kind_of_the_class() -> None:
    assert [each.kind for each in CLASSES.values()] == list(Kind)
    used = [tier_used(name, CLASSES) for name in (*CLASSES, "unknown")]
    assert used == [Tier.PRIORITY, Tier.DEFAULT, Tier.FLEX, Tier.DEFAULT]


MS = 1_000_000
IN_TIME = Times(life_ns=9000 * MS, ttft_ns=2000 * MS, decode_ns=1200 * MS, tokens=11)


@pytest.mark.parametrize(
    ("fate", "times", "judged"),
    (
        (Fate.SERVED, IN_TIME, Judged(KEPT, KEPT)),
        (Fate.SERVED, replace(IN_TIME, ttft_ns=2000 * MS + 1), Judged(BROKEN, KEPT)),
        (Fate.SERVED, replace(IN_TIME, decode_ns=1200 * MS + 10), Judged(KEPT, BROKEN)),
        (Fate.SERVED, replace(IN_TIME, tokens=1), Judged(KEPT, NONE)),
        (Fate.SERVED, replace(IN_TIME, ttft_ns=9000 * MS, promised=False), Judged(NONE, KEPT)),
        (Fate.PLATFORM, Times(life_ns=1), Judged(ttft=BROKEN)),
        (Fate.PLATFORM, IN_TIME, Judged(KEPT, KEPT)),  # lost later: what was promised was kept
        (Fate.LEFT, IN_TIME, Judged(KEPT, KEPT)),
        (Fate.LEFT, Times(life_ns=1999 * MS), Judged()),  # it proves nothing
        (Fate.LEFT, Times(life_ns=2001 * MS), Judged(ttft=BROKEN)),
        (Fate.BACKLOG, Times(life_ns=1), Judged()),
        (Fate.DISPLACED, Times(life_ns=9000 * MS), Judged()),
        (Fate.OTHER, Times(life_ns=9000 * MS), Judged()),
    ),
)
def test_kept_or_broken(fate: Fate, times: Times, judged: Judged) -> None:
    assert judge(CLASSES["interactive"], fate, times) == judged


def test_who_was_promised_nothing_has_nothing_kept_or_broken() -> None:
    for fate in Fate:
        assert judge(CLASSES["batch"], fate, IN_TIME) == Judged()


def test_a_request_is_broken_if_any_of_its_promises_is() -> None:
    whole = {(ttft, itl): Judged(ttft, itl).whole for ttft in Verdict for itl in Verdict}
    assert [pair for pair, verdict in whole.items() if verdict is NONE] == [(NONE, NONE)]
    assert all(verdict is BROKEN for pair, verdict in whole.items() if BROKEN in pair)
    assert whole[KEPT, NONE] is whole[NONE, KEPT] is whole[KEPT, KEPT] is KEPT
