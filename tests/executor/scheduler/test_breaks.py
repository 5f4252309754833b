"""Each deliberate break is caught by the test that is named for it; so those tests can fail."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from executor.scheduler.accounts import Accounts
from executor.scheduler.admission import Admission, Held
from executor.scheduler.fair import Fair
from executor.scheduler.filling import Filling
from executor.scheduler.foresight import Foresight, key_of
from executor.scheduler.lanes import Band, Entry, Order, Place
from executor.scheduler.locality import Window
from executor.scheduler.promises import Ahead, Own
from executor.scheduler.protocol import Limits, Turn
from executor.scheduler.reclaim import Allowance
from executor.scheduler.residency import Residency
from policies.fairness import Flow, Level
from tests.executor.scheduler import test_admission as admission
from tests.executor.scheduler import test_invariants as invariants
from tests.executor.scheduler import test_locality as locality
from tests.executor.scheduler import test_returns as returns
from tests.executor.scheduler import test_shares as shares
from tests.executor.scheduler.driver import Job

pytestmark = pytest.mark.slow
Patch = pytest.MonkeyPatch
Break = Callable[[Patch], None]


def drop_the_lift(patch: Patch) -> None:
    def wait(level: Level[str], flow: Flow[str]) -> None:
        level.waiting += not flow.waits
        flow.waits += 1

    patch.setattr(Level, "wait", wait)


def charge_on_dispatch_count(patch: Patch) -> None:
    """As turns are counted: the same for each request, whatever it costs."""
    charge = Accounts._charge

    def one(accounts: Accounts[Job], entry: Entry[Job], cost_ns: float) -> None:
        charged = entry.charged_ns
        if not charged:
            charge(accounts, entry, 1e8)
        entry.charged_ns = charged + cost_ns

    patch.setattr(Accounts, "_charge", one)


def skip_the_refund(patch: Patch) -> None:
    charge = Accounts._charge

    def only_up(accounts: Accounts[Job], entry: Entry[Job], cost_ns: float) -> None:
        if cost_ns > 0:
            charge(accounts, entry, cost_ns)

    patch.setattr(Accounts, "_charge", only_up)


def reclaim_without_budget(patch: Patch) -> None:
    patch.setattr(Allowance, "spend", lambda allowance, lost_ns: None)


def first_come_inside_a_class(patch: Patch) -> None:
    def head(fair: Fair[Job], filling: Filling[Job]) -> Entry[Job] | None:
        able = [each for each in fair._waiting.values() if each.tenant.key in each.band.tenants]
        return min(able, key=lambda each: each.ticket, default=None)

    def place(fair: Fair[Job], entry: Entry[Job]) -> Place:
        return Order.WEIGHTED, 0.0, 0.0, entry.ticket

    patch.setattr(Fair, "_head", head)
    patch.setattr(Fair, "_place", place)
    patch.setattr(Fair, "_goes_on", place)


def a_clock_for_each_class(patch: Patch) -> None:
    """A class that nobody used began at nothing."""
    wait = Level.wait
    known: list[Flow[str]] = []

    def low(level: Level[str], flow: Flow[str]) -> None:
        wait(level, flow)
        if flow.key == "trick" and flow not in known:
            known.append(flow)
            flow.start = 0.0

    patch.setattr(Level, "wait", low)


def place_begun_prompts_by_what_was_charged_ahead(patch: Patch) -> None:
    patch.setattr(Entry, "reached", property(lambda entry: entry.tenant.start))


def pass_for_ever(patch: Patch) -> None:
    def block(filling: Filling[Job], head: Entry[Job], *, drains: bool) -> None:
        filling.blocked.append(head)

    patch.setattr(Filling, "block", block)
    patch.setattr(Filling, "passed", lambda *_: None)


def keep_nothing_for_the_reserved(patch: Patch) -> None:
    short = Residency.short

    def all_of_it(residency: Residency[Job], entry: Entry[Job], *, over: bool) -> tuple[int, int]:
        blocks, rows = short(residency, entry, over=over)
        return blocks - residency.limits.blocks_total, rows - residency.limits.seqs

    patch.setattr(Residency, "short", all_of_it)
    patch.setattr(Fair, "_reclaim", lambda *_: False)


def locality_without_window(patch: Patch) -> None:
    def choose(window: Window[Job], first: Entry[Job], bands: Collection[Band[Job]]) -> Entry[Job]:
        waiting = [each for band in bands for each in band.entries() if window._fits(each)]
        return max(waiting, key=lambda each: (window._found(each), -each.ticket), default=first)

    patch.setattr(Window, "choose", choose)


def never_forget(patch: Patch) -> None:
    patch.setattr(Level, "_settle", lambda *_: None)


def count_what_rests_as_waiting(patch: Patch) -> None:
    patch.setattr(Band, "aside", lambda band, tenant: band.tenants.drop(tenant))


def share_by_what_waits(patch: Patch) -> None:
    """Each request another tenant, as if it were."""
    held = Fair._held

    def crowded(fair: Fair[Job], work: Job) -> Held:
        found = held(fair, work)
        return Held(found.rows, found.peak, found.weight + len(fair._waiting))

    patch.setattr(Fair, "_held", crowded)


def predict_from_the_whole_queue(patch: Patch) -> None:
    own = Foresight.own

    def all_of_it(seen: Foresight[Job], work: Job, place: int, absent: Sequence[Ahead]) -> Own:
        return own(seen, work, place, absent)._replace(waiting=[each.ahead for each in seen.whole])

    patch.setattr(Foresight, "own", all_of_it)
    patch.setattr(Foresight, "has", lambda *_: True)


def look_at_who_comes_early(patch: Patch) -> None:
    returns = Admission.returns

    def early(one: Admission[Job], work: Job, now_ns: int) -> Turn | None:
        turn = one._tickets._places.get(key_of(work), {}).get(work.retry_key or b"")
        if turn is not None:
            one._tickets._places[key_of(work)][work.retry_key or b""] = turn._replace(next_ns=0)
        return returns(one, work, now_ns)

    patch.setattr(Admission, "returns", early)


def draw_a_ticket_each_time(patch: Patch) -> None:
    patch.setattr(Job, "place", property(lambda job: job.ticket))


def forget_who_rests_on_renewal(patch: Patch) -> None:
    renew, rest = Fair.renew, Band.rest

    def forgetful(fair: Fair[Job], limits: Limits) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Band, "rest", lambda *_: None)
            renew(fair, limits)
        assert Band.rest is rest

    patch.setattr(Fair, "renew", forgetful)


BREAKS: tuple[tuple[Break, Callable[[], None]], ...] = (
    (
        drop_the_lift,
        invariants.test_03_time_goes_on_and_a_start_falls_by_its_own_refund_only,
    ),
    (
        charge_on_dispatch_count,
        shares.test_06_gap_between_backlogged_tenants_is_bounded_where_time_is_short,
    ),
    (charge_on_dispatch_count, invariants.test_04_05_charges_less_refunds_are_what_was_measured),
    (skip_the_refund, invariants.test_04_05_charges_less_refunds_are_what_was_measured),
    (reclaim_without_budget, shares.test_12_no_more_is_computed_twice_than_is_allowed),
    (
        first_come_inside_a_class,
        shares.test_06_gap_between_backlogged_tenants_is_bounded_where_time_is_short,
    ),
    (
        a_clock_for_each_class,
        shares.test_16_a_class_that_nobody_used_is_no_way_past_the_others,
    ),
    (
        place_begun_prompts_by_what_was_charged_ahead,
        shares.test_08_a_begun_prompt_of_small_weight_goes_on,
    ),
    (pass_for_ever, shares.test_08_a_large_request_is_not_passed_for_ever),
    (
        keep_nothing_for_the_reserved,
        lambda: shares.test_09_critical_work_starts_within_two_steps_of_a_full_house(16),
    ),
    (locality_without_window, locality.test_08_who_has_nothing_kept_is_never_starved),
    (locality_without_window, locality.test_06_gap_grows_by_no_more_than_the_window),
    (
        locality_without_window,
        locality.test_06_nobody_goes_before_others_who_are_further_behind_than_the_window,
    ),
    (never_forget, shares.test_tenants_that_come_once_leave_nothing_behind),
    (
        count_what_rests_as_waiting,
        invariants.test_01_each_request_ends_once_and_nothing_is_left_of_it,
    ),
    (
        share_by_what_waits,
        admission.test_15_arrivals_of_who_is_here_already_change_nobody_elses_answer,
    ),
    (
        predict_from_the_whole_queue,
        admission.test_15_whoever_is_within_its_part_is_taken_whatever_others_do,
    ),
    (predict_from_the_whole_queue, admission.test_18_a_flood_refuses_itself_alone),
    (look_at_who_comes_early, admission.test_17_before_its_time_it_is_told_the_rest_of_it),
    (look_at_who_comes_early, returns.test_17_asking_always_is_coming_when_told),
    (look_at_who_comes_early, returns.test_17_early_comings_are_as_if_they_were_not),
    (draw_a_ticket_each_time, admission.test_17_asking_often_changes_no_start_time_and_no_ticket),
    (
        forget_who_rests_on_renewal,
        lambda: admission.test_a_class_that_becomes_another_sort_knows_of_whom_nothing_runs(
            (None, 1.0)
        ),
    ),
)


@pytest.mark.parametrize(
    ("broken", "check"), BREAKS, ids=[f"{b.__name__}-{c.__name__}" for b, c in BREAKS]
)
def test_a_break_is_caught(broken: Break, check: Callable[[], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        broken(patch)
        with pytest.raises(AssertionError) as caught:
            check()
    assert Path(caught.traceback[-1].path).parent == Path(__file__).parent, "by chance"
