"""P3, exactly: victims of equal shape and any content, and an attacker that hears the same to the byte."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import pytest

from executor.scheduler.fcfs import Fcfs
from executor.scheduler.step import Draft
from executor.sequence import Sequence as Seq
from executor.settings import Policy, Settings, engine_limits
from tests.executor.companion import (
    ATTACKER,
    VOCABULARY,
    Arrival,
    ByContent,
    Cost,
    SharedCache,
    Stage,
    candidates_of,
    echoing,
    ends,
    monotone,
    play_of,
    random_world,
    traces,
)
from tests.executor.fakes import FakeRunner

SECRET = tuple(random.Random(11).choices(range(VOCABULARY), k=32))
WORLDS = (random_world(1), random_world(2), echoing(SECRET), monotone)
VICTIMS = ("acme/alice", "globex/carol", "globex/dave")
DUMMIES = tuple(tuple(random.Random(n).choices(range(VOCABULARY), k=32)) for n in range(6))
SECRETS = [lambda each, words=words: words for words in DUMMIES]


def settings(policy: Policy = Policy.FAIR, **more: object) -> Settings:
    given = {"check_invariants": True, "speculation": False, "step_ms_max": 8, **more}
    return Settings(policy=policy, chunk_tokens_min=8, **given)  # type: ignore[arg-type]


class LongestKnownFirst(Fcfs[Seq]):
    """Lets in first what begins as somebody's prompt before began: the PromptPeek channel."""

    def __init__(self) -> None:
        super().__init__(engine_limits(FakeRunner(kv_blocks=128), settings(seqs_max=1)))
        self._known: list[list[int]] = []

    def add(self, seq: Seq, now_ns: int) -> None:
        super().add(seq, now_ns)
        self._known.append(list(seq.tokens))

    def _order(self, draft: Draft[Seq]) -> Sequence[Seq]:
        return sorted(self._waiting, key=lambda seq: -self._matches(list(seq.tokens)))

    def _matches(self, tokens: list[int]) -> int:
        return sum(known[:8] == tokens[:8] for known in self._known)


@pytest.mark.parametrize("policy", Policy)
def test_nothing_of_the_victims_content_reaches_the_attacker(policy: Policy) -> None:
    stage = partial(Stage, settings(policy))
    for seed in range(2):
        play = play_of(seed, SECRET, victims=VICTIMS)
        heard = len(traces(stage, play, WORLDS))
        assert heard == 1


@pytest.mark.slow
@pytest.mark.parametrize("policy", Policy)
def test_nothing_does_in_many_plays_on_little_memory(policy: Policy) -> None:
    for seed in range(40):
        stage = partial(Stage, settings(policy, seqs_max=2 + seed % 5), kv_blocks=48)
        play = play_of(100 + seed, SECRET, victims=VICTIMS)
        heard = len(traces(stage, play, WORLDS))
        assert heard == 1, seed


def test_the_trace_tells_of_the_victims_shape() -> None:
    """Else it would be equal for want of anything in it."""
    play = play_of(0, SECRET, victims=VICTIMS)
    longer = [
        each if each.prompt is not None or each.shape > 30 else type(each)(
            each.request, each.at_ns, each.who, each.shape + 20, each.max_new_tokens
        )
        for each in play
    ]  # fmt: skip
    assert Stage().trace(play, monotone) != Stage().trace(longer, monotone)


def test_the_order_among_dummies_does_not_depend_on_the_victims_secret() -> None:
    play = candidates_of(DUMMIES, "globex/carol")
    found = traces(partial(Stage, settings(seqs_max=2)), play, SECRETS)
    heard = len(found)
    assert heard == 1
    assert sorted(ends(found.pop())) == [each.request for each in play if each.prompt is not None]


# It can fail


class Cheap(Cost):
    """Rows that cost next to nothing beside the step: guesses pay."""

    def of_row(self, start: int, tokens: Sequence[int]) -> int:
        return 2_000 * len(tokens)


def test_guesses_tell_how_repetitive_a_text_is() -> None:
    """A channel that is known and left open (THREATS.md); off, it is closed."""
    victim = Arrival(1, 0, "globex/carol", 30, 100)
    asks = [
        Arrival(2 + at, 20_000_000 * (at + 1), ATTACKER, 8, 8, tuple(range(8))) for at in range(5)
    ]
    for speculation in (False, True):
        stage = partial(Stage, settings(speculation=speculation), cost=Cheap(), habits=8.0)
        heard = len(traces(stage, [victim, *asks], WORLDS))
        assert (heard > 1) is speculation


@pytest.mark.parametrize("cost", (SharedCache, ByContent))
def test_computing_that_depends_on_content_is_caught(cost: type[SharedCache | ByContent]) -> None:
    def stage() -> Stage:
        return Stage(settings(), cost=cost())

    play = play_of(0, SECRET, victims=VICTIMS)
    heard = len(traces(stage, play, WORLDS))
    assert heard > 1


def test_an_order_by_content_is_caught_by_the_order_alone() -> None:
    play = candidates_of(DUMMIES, "globex/carol")

    def order(world: object) -> tuple[int, ...]:
        stage = Stage(settings(seqs_max=1), scheduler=LongestKnownFirst())
        return tuple(ends(stage.trace(play, world)))  # type: ignore[arg-type]

    orders = {order(world) for world in SECRETS}
    assert len(orders) > 1
    assert {each[0] for each in orders} == {2 + at for at in range(len(DUMMIES))}
