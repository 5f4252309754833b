"""A scheduler that raises ends what it scheduled, and the process only if it goes on so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from structlog.testing import capture_logs

from executor.contract import Cause, Ended, Report, Update, Workload
from executor.engine import FAILURES_MAX
from executor.scheduler.fair import Fair
from executor.scheduler.promises import Refusal
from executor.scheduler.protocol import Charge, Limits, Moment, Plan
from executor.sequence import Sequence
from executor.server import Io, Mailbox, _drive
from executor.settings import Settings
from tests.executor.fakes import FakeRunner, Harness, job

SECRET = "the prompt is 17 4 2"


class Raises(Fair[Sequence]):
    """Where it is told to, as often as it is told to."""

    where = ""
    left = 0

    def _raise(self, where: str) -> None:
        if Raises.where == where and Raises.left:
            Raises.left -= 1
            raise RuntimeError(SECRET)

    def add(self, seq: Sequence, now_ns: int) -> None:
        super().add(seq, now_ns)
        self._raise("add")

    def refuses(self, seq: Sequence, moment: Moment) -> Refusal | None:
        self._raise("refuses")
        return super().refuses(seq, moment)

    def remove(self, seq: Sequence, now_ns: int) -> None:
        super().remove(seq, now_ns)
        self._raise("remove")

    def renew(self, limits: Limits) -> None:
        self._raise("renew")
        super().renew(limits)

    def plan(self, moment: Moment) -> Plan[Sequence]:
        """When half of it is done."""
        plan = super().plan(moment)
        self._raise("plan")
        return (
            Plan(()) if Raises.where == "idle" and self.waiting_count + self.running_count else plan
        )

    def charge(self, bill: Iterable[Charge[Sequence]]) -> None:
        self._raise("charge")
        super().charge(bill)


def house_of(where: str, times: int = 0) -> Harness:
    Raises.where, Raises.left = where, times
    settings = Settings(seqs_max=2, check_invariants=True)
    return Harness(FakeRunner(kv_blocks=32), settings=settings, policy=Raises)


@pytest.mark.parametrize("where", ("plan", "add", "refuses", "remove", "charge", "renew"))
def test_one_that_raises_once_ends_whom_it_knew_and_serves_on(where: str) -> None:
    house = house_of("")
    for request in (1, 2, 3):
        house.submit(job(request, max_new_tokens=6 if request == 1 else 20))
    house.step()
    house.step()
    Raises.where, Raises.left = where, 1
    house.submit(job(4))
    house.terms(Workload(name="x"))
    with capture_logs() as logs:
        for _ in range(12):
            house.step()
    (failed,) = (each for each in logs if each["event"] == "scheduler_failed")
    assert (failed["kind"], failed["log_level"]) == ("RuntimeError", "error")
    assert SECRET not in repr(logs)
    for request in (2, 3):
        ended = house.ended(request)
        assert (ended.cause, ended.detail) == (Cause.CRASHED, "the scheduler failed")
    assert house.engine.gauges.blocks_free == house.engine.gauges.blocks_total
    house.submit(job(5, max_new_tokens=4))
    house.run()
    assert (house.ended(5).cause, len(house.tokens(5))) == (Cause.LENGTH, 4)
    assert not house.engine.failed
    house.assert_empty()


@pytest.mark.parametrize("where", ("plan", "remove", "charge", "idle"))
def test_one_that_always_raises_asks_for_a_new_process(where: str) -> None:
    house = house_of(where, 10**9)
    expected = Cause.LENGTH if where == "remove" else Cause.CRASHED
    for request in range(1, FAILURES_MAX + 1):
        assert not house.engine.failed
        house.submit(job(request, max_new_tokens=2))
        house.run()
        assert house.ended(request).cause is expected
    assert house.engine.failed
    house.assert_empty()


def test_whoever_drives_it_delivers_the_last_words_and_gives_up_loudly() -> None:
    house = house_of("plan", 10**9)
    heard: list[Update] = []

    class Feed(Mailbox):
        """One more request each time that there is nothing to do."""

        asked = 0

        def wait(self, timeout_s: float | None = None) -> None:
            self.asked += 1
            house.submit(job(self.asked))

    class Ears(Io):
        def __init__(self) -> None: ...

        def send(self, reports: Mapping[int, Report]) -> None:
            heard.extend(update for report in reports.values() for update in report.updates)

    with capture_logs() as logs:
        _drive(house.engine, Feed(), Ears(), house.clock)
    assert [each["event"] for each in logs] == ["scheduler_failed"] * FAILURES_MAX + [
        "engine_gives_up"
    ]
    last = [update for update in heard if isinstance(update, Ended)]
    assert [each.request for each in last] == list(range(1, FAILURES_MAX + 1))


def test_who_stands_outside_was_not_known_to_it_and_goes_on() -> None:
    """A choice that waits for another to compute the prompt."""
    house = house_of("plan", 1)
    prompt = range(1, 12)
    house.submit(job(1, prompt))
    house.submit(job(2, prompt, sibling=1, part=True))
    house.run()
    assert [house.ended(n).cause for n in (1, 2)] == [Cause.CRASHED, Cause.LENGTH]
    house.assert_empty()


def test_failures_with_somebody_served_in_between_are_lived_with() -> None:
    house = house_of("plan")
    for request in range(1, 3 * FAILURES_MAX):
        Raises.left = request % 2
        house.submit(job(request, max_new_tokens=2))
        house.run()
        assert house.ended(request).cause is (Cause.CRASHED if request % 2 else Cause.LENGTH)
    assert not house.engine.failed
    house.assert_empty()
