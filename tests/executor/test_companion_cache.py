"""P3 with the prefix cache on: what victims leave in it is nothing to the attacker; and label by label
broken, it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import pytest

from executor.contract import Caching, Quota, Quotas, Scope, Submit
from executor.settings import Policy
from tests.executor.companion import (
    Arrival,
    Play,
    Stage,
    World,
    candidates_of,
    play_of,
    random_world,
    saying_once,
    traces,
)
from tests.executor.labelled import CONTEXT, HOUR_MS, scope
from tests.executor.test_companion import DUMMIES, SECRET, SECRETS, VICTIMS, settings

QUOTAS = Quotas(quotas=tuple(Quota(owner=name, part=0.5) for name in ("acme", "globex")))
STRANGERS = ("globex/carol", "globex/dave")
Labels = Callable[[Arrival], tuple[str, tuple[Scope, ...]]]
"""Whose entries, and under which labels."""


def by_user(each: Arrival) -> tuple[str, tuple[Scope, ...]]:
    return each.tenant, (scope(each.who, each.shape),)


def by_tenant(each: Arrival) -> tuple[str, tuple[Scope, ...]]:
    return each.tenant, (scope(each.tenant, each.shape),)


def unscoped(each: Arrival) -> tuple[str, tuple[Scope, ...]]:
    """The owner, too: entries are looked for among the owner's alone, whatever their label."""
    return "acme", (scope("everybody", each.shape),)


def one_key(each: Arrival) -> tuple[str, tuple[Scope, ...]]:
    """Labels as they should be, and one key for all: the comparison on a hit still holds."""
    return "acme", (scope(each.who, each.shape, key="everybody"),)


def dress(labels: Labels, plain: Submit, each: Arrival) -> Submit:
    owner, scopes = labels(each)
    caching = Caching(
        owner=owner,
        context=CONTEXT,
        scopes=scopes,
        snapshot=1,
        idle_ms=HOUR_MS,
        absolute_ms=HOUR_MS,
    )
    share = ((owner, 1.0), *plain.share[1:])  # the engine refuses an owner who does not pay
    return msgspec.structs.replace(plain, caching=caching, share=share)


def cached(labels: Labels, pool_part: float = 0.5, **more: int) -> Callable[[], Stage]:
    given = settings(Policy.FAIR, pool_part=pool_part, **more)
    return partial(Stage, given, dress=partial(dress, labels), first=(QUOTAS,), kv_blocks=256)


def worlds(play: Play) -> Sequence[World]:
    return random_world(1), random_world(2), *(saying_once(SECRET, play, n) for n in (3, 4))


def heard(stage: Callable[[], Stage], seed: int, victims: Sequence[str]) -> int:
    play = play_of(seed, SECRET, victims=victims)
    return len(traces(stage, play, worlds(play)))


@pytest.mark.parametrize("labels", (by_user, one_key))
def test_what_others_left_is_nothing_to_the_attacker(labels: Labels) -> None:
    for victims in (VICTIMS, STRANGERS):
        assert heard(cached(labels), 0, victims) == 1


def test_the_attacker_finds_its_own() -> None:
    """Else all would be equal for want of a cache."""
    play = play_of(0, SECRET, victims=VICTIMS)
    (trace,) = traces(cached(by_user), play, [random_world(1)])
    assert b'"cached":32' in trace


@pytest.mark.slow
@pytest.mark.parametrize("pool_part", (0.5, 0.1))
def test_nothing_is_in_many_plays_with_much_room_and_little(pool_part: float) -> None:
    """P5, too: what others keep evicts nothing of the attacker's that tells of content."""
    for seed in range(20):
        stage = cached(by_user, pool_part, seqs_max=2 + seed % 5)
        assert heard(stage, 200 + seed, VICTIMS) == 1, seed


@pytest.mark.parametrize(
    ("labels", "victims"),
    ((unscoped, STRANGERS), (unscoped, ("acme/alice",)), (by_tenant, ("acme/alice",))),
)
def test_a_label_for_several_is_caught(labels: Labels, victims: Sequence[str]) -> None:
    assert heard(cached(labels), 0, victims) > 1


def test_the_order_among_dummies_tells_nothing_and_would_without_labels() -> None:
    play = candidates_of(DUMMIES, "globex/carol")
    isolated, broken = (
        len(traces(cached(labels, seqs_max=2), play, SECRETS)) for labels in (by_user, unscoped)
    )
    assert isolated == 1
    assert broken == len(DUMMIES)
