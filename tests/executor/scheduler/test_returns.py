"""17: who asks often gains nothing by it.  The same random house is played with several ways of coming back; they
differ in nothing but when one request asks again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from executor.contract import Workload
from executor.scheduler.fair import Fair
from executor.scheduler.promises import RETRY_MS_MAX
from executor.scheduler.protocol import Moment
from tests.executor.scheduler.driver import House, Job, limits

MS = 1_000_000
STEPS = 250
MINE = b"m" * 16

FEW = (2, 3)

Way = Callable[[int, int], bool]
"""Of (now, the time that it was told last): whether it asks."""


def when_told(now_ns: int, told_ns: int) -> bool:
    return now_ns >= told_ns


def always(now_ns: int, told_ns: int) -> bool:
    return True


@dataclass
class Story:
    """`asked`: when, what it was told, its ticket's place.  `in_ns`: it was taken."""

    way: Way
    in_ns: int | None = None
    asked: list[tuple[int, int, int]] = field(default_factory=list)
    plans: list[tuple[tuple[int, ...], ...]] = field(default_factory=list)

    @property
    def not_early(self) -> list[tuple[int, int, int]]:
        """Its comings that were looked at."""
        found, next_ns = [], 0
        for at_ns, told_ms, place in self.asked:
            if at_ns >= next_ns:
                found.append((at_ns, told_ms, place))
                next_ns = at_ns + told_ms * MS
        return found


class Play:
    """A house of some tenants at more than it can do; their requests come when told, if they have keys."""

    def __init__(self, seed: int, way: Way) -> None:
        self._rng = Random(seed)
        rng = self._rng
        machine = limits(
            seqs=rng.choice([2, 4, 8]),
            workloads=(Workload(name="", ttft_ms=rng.choice([200, 400])),),
        )
        self.house = House(machine, Fair(machine))
        self.story = Story(way)
        self._crowd = rng.choice([0.3, 0.6])
        self._agenda: list[tuple[int, bytes, dict[str, object]]] = []
        self._tickets = 0
        self._told_ns = 0

    def run(self) -> Story:
        rng, house = self._rng, self.house
        for step in range(STEPS):
            due = [each for each in self._agenda if each[0] <= house.now_ns]
            self._agenda = [each for each in self._agenda if each[0] > house.now_ns]
            for _, key, again in due:
                self._come(key, again)
            if rng.random() < self._crowd:
                fields: dict[str, object] = {
                    "tenant": rng.choice("aab"),
                    "user": rng.choice("uv"),
                    "prompt_tokens": rng.randint(1, 60),
                    "length": rng.randint(1, 60),
                }
                self._come(b"%016d" % step, fields)
            if step >= 60 and self.story.in_ns is None and self._wants():
                self._ask({"tenant": "a", "user": "u", "prompt_tokens": 32, "length": 20})
            if house.alive:
                house.step()
            else:
                house.now_ns += 10 * MS
        self.story.plans = house.plans
        return self.story

    def _wants(self) -> bool:
        return not self.story.asked or self.story.way(self.house.now_ns, self._told_ns)

    def _job(self, key: bytes, fields: dict[str, object]) -> Job:
        return Job(1_000_000, retry_key=key, since_ns=self.house.now_ns, **fields)  # type: ignore[arg-type]

    def _answer(self, key: bytes, fields: dict[str, object]) -> tuple[int, int] | None:
        """What it is told, as an engine does it, and its place; None: it is in."""
        house, fair = self.house, self.house.fair
        job = self._job(key, fields)
        job.ticket = len(house.made)
        job.turn = fair.returns(job, house.now_ns)
        if job.turn is not None and house.now_ns < job.turn.next_ns:
            return -((house.now_ns - job.turn.next_ns) // MS), job.place
        refused = fair.refuses(job, Moment(house.now_ns, house.free, house.times.rates))
        if refused is None:
            house.add(turn=job.turn, retry_key=key, **fields)
            return None
        told_ms = fair.turns_away(job, refused.retry_ms, house.now_ns)
        house.made.append(job)  # its ticket is used
        return told_ms, job.place

    def _come(self, key: bytes, fields: dict[str, object]) -> None:
        if (answer := self._answer(key, fields)) is not None:
            self._agenda.append((self.house.now_ns + answer[0] * MS, key, fields))

    def _ask(self, fields: dict[str, object]) -> None:
        now_ns = self.house.now_ns
        answer = self._answer(MINE, fields)
        if answer is None:
            self.story.in_ns = now_ns
            return
        assert 1 <= answer[0] <= RETRY_MS_MAX
        self.story.asked.append((now_ns, *answer))
        self._told_ns = now_ns + answer[0] * MS


def play(seed: int, way: Way) -> Story:
    return Play(seed, way).run()


def now_and_then(seed: int) -> Way:
    rng = Random(seed)
    return lambda now_ns, told_ns: rng.random() < 0.4


def those(times_ns: set[int | None]) -> Way:
    return lambda now_ns, told_ns: now_ns in times_ns


def asking_always_is_coming_when_told(seed: int) -> int:
    """Each moment at which anything can change is asked at."""
    told, often = play(seed, when_told), play(seed, always)
    assert often.in_ns == told.in_ns
    assert often.plans == told.plans, "nor has it changed anything for anybody"
    assert often.not_early == told.asked
    return len(often.asked) - len(told.asked)


def early_comings_are_as_if_they_were_not(seed: int) -> Story:
    """So it is in at a moment at which who came never too early is in too; and in no other's way."""
    some = play(seed, now_and_then(seed))
    times_ns: set[int | None] = {at_ns for at_ns, _, _ in some.not_early}
    without = play(seed, those(times_ns | {some.in_ns}))
    assert without.in_ns == some.in_ns
    assert without.plans == some.plans
    assert without.asked == some.not_early
    if some.asked and some.in_ns is not None:
        at_ns, told_ms, _ = some.asked[0]
        assert some.in_ns >= at_ns + told_ms * MS, "before it was told"
    places = [place for _, _, place in some.asked]
    assert places == sorted(places), "a better place"
    return some


def test_17_asking_always_is_coming_when_told() -> None:
    assert sum(asking_always_is_coming_when_told(seed) for seed in FEW) > 50


def test_17_early_comings_are_as_if_they_were_not() -> None:
    stories = [early_comings_are_as_if_they_were_not(seed) for seed in FEW]
    assert sum(len(each.asked) - len(each.not_early) for each in stories) > 20


@pytest.mark.slow
def test_17_over_many_histories() -> None:
    sooner = later = 0
    for seed in range(100, 200):
        asking_always_is_coming_when_told(seed)
        some, told = early_comings_are_as_if_they_were_not(seed), play(seed, when_told)
        if told.asked and None not in (some.in_ns, told.in_ns):
            sooner += some.in_ns < told.in_ns  # type: ignore[operator]
            later += some.in_ns > told.in_ns  # type: ignore[operator]
    assert sooner < later, "who misses its time may be lucky, but not as a rule"
