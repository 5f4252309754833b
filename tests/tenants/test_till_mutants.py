"""Tills that were broken on purpose, and the test that each is caught by.

What protects money is the guard in SQL; much of the rest keeps budgets from standing idle, and is caught by what
a till says it has.  Source: MONEY.md §1 (model check: mutation-test the harness itself).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from policies import till as till_policy
from policies.till import Float, Seen
from policies.verdict import Deny
from tenants import floats, windows
from tenants.asks import HoldAsk, Worded
from tenants.tempo.link import Failed
from tenants.tempo.scripts import shipped
from tenants.till.contract import DrawAsk, Told
from tenants.till.front import Front
from tenants.till.memory import MemoryTills, Till
from tests.servers_valkey import Valkey
from tests.tenants import redis_kit
from tests.tenants import test_till as by_hand
from tests.tenants import test_till_front as at_the_front
from tests.tenants import test_till_machine as machine
from tests.twins import test_till as twins

Break = Callable[[pytest.MonkeyPatch], None]
Test = Callable[[], None]


def story(name: str) -> Test:
    async def go() -> None:
        async with twins.memory() as world:
            await twins.tell(world, twins.STORIES[name])

    return lambda: asyncio.run(go())


def any_order() -> None:
    machine.check(60, 35, shrink=False)


def _dispatches_before_it_journals(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine.Tills, "dispatches_what_is_drawn", True)


def _journals_without_a_guard(patch: pytest.MonkeyPatch) -> None:
    """Whatever was drawn counts."""
    patch.setattr(floats, "covers", lambda kept, seen: seen.drawn_nano_usd > 0)
    patch.setattr(floats, "over_issued", lambda kept, seen: False)
    patch.setattr(
        floats,
        "journalled",
        lambda kept, drawn: replace(kept, nano_usd=max(0, kept.nano_usd - drawn)),
    )


def _a_recall_keeps_the_epoch(patch: pytest.MonkeyPatch) -> None:
    def recalled(kept: Float, now_us: int) -> Float:
        return Float(kept.epoch or now_us)

    for where in (floats, windows, till_policy):
        patch.setattr(where, "recalled", recalled)


def _a_draw_of_any_epoch_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(floats, "covers", lambda kept, seen: 0 < seen.drawn_nano_usd <= kept.nano_usd)


def _what_is_set_aside_is_room(patch: pytest.MonkeyPatch) -> None:
    """The policy forgets the float, and nothing is taken back: then the guard in SQL must stop it."""
    patch.setattr("tenants.window_row.Row.over", False)
    account = windows.Windows.account

    def roomy(self: Any, budget: Any) -> Any:
        return replace(account(self, budget), floated_nano_usd=0)

    patch.setattr(windows.Windows, "account", roomy)


def _what_is_set_aside_is_kept(patch: pytest.MonkeyPatch) -> None:
    """No recall: who comes when all is set aside is refused."""
    decide = floats.Floats.decide

    def stubborn(self: Any, fits: Any) -> Any:
        first: list[Any] = []

        def once(accounts: Any) -> Any:
            first.append(fits(accounts))
            return first[0]

        return decide(self, once)

    patch.setattr(floats.Floats, "decide", stubborn)


def _more_is_set_aside_than_is_left(patch: pytest.MonkeyPatch) -> None:
    def generous(kept: Float, seen: Seen, limit: int, *_: int) -> Float:
        return Float(kept.epoch + 1, limit, limit)

    patch.setattr(floats, "filled", generous)
    patch.setattr("tenants.window_row.Row.over", False)  # then the guard in SQL must stop it


def _what_was_drawn_stays_set_aside(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(floats, "journalled", lambda kept, drawn: kept)


def _a_lowered_limit_leaves_what_is_set_aside(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tenants.window_row.Row.over", False)


def _gives_back_twice(patch: pytest.MonkeyPatch) -> None:
    give_back = MemoryTills.give_back

    async def again(self: MemoryTills, ask: DrawAsk) -> None:
        mark = self.marks.get(ask.request_id)
        await give_back(self, ask)
        if mark is not None:
            self.marks[ask.request_id] = mark

    patch.setattr(MemoryTills, "give_back", again)


def _gives_back_into_any_epoch(patch: pytest.MonkeyPatch) -> None:
    give_back = MemoryTills.give_back

    async def anywhere(self: MemoryTills, ask: DrawAsk) -> None:
        mark = self.marks.get(ask.request_id)
        if mark is not None and mark.drawn is not None:
            tills = [self._till((ask.tenant, place)) for place in ask.places]
            drawn = tuple(
                replace(seen, epoch=till.epoch)
                for seen, till in zip(mark.drawn, tills, strict=True)
            )
            self.marks[ask.request_id] = replace(mark, drawn=drawn)
        await give_back(self, ask)

    patch.setattr(MemoryTills, "give_back", anywhere)


def _fills_twice(patch: pytest.MonkeyPatch) -> None:
    fill = MemoryTills._fill

    def again(self: MemoryTills, key: Any, told: Told) -> None:
        kept = self.tills.get(key)
        fill(self, key, told)
        if kept is not None and kept.epoch == told.epoch and kept.issued >= told.issued > 0:
            self.tills[key] = replace(kept, left=kept.left + told.issued - told.since)

    patch.setattr(MemoryTills, "_fill", again)


def _a_lost_till_takes_all_for_new(patch: pytest.MonkeyPatch) -> None:
    fill = MemoryTills._fill
    patch.setattr(
        MemoryTills, "_fill", lambda self, key, told: fill(self, key, replace(told, since=0))
    )


def _an_earlier_epoch_takes_over(patch: pytest.MonkeyPatch) -> None:
    fill = MemoryTills._fill

    def last(self: MemoryTills, key: Any, told: Told) -> None:
        if self._till(key).epoch > told.epoch:
            self.tills[key] = Till()
        fill(self, key, told)

    patch.setattr(MemoryTills, "_fill", last)


def _dry_is_dry_for_all(patch: pytest.MonkeyPatch) -> None:
    dry = MemoryTills._dry
    patch.setattr(MemoryTills, "_dry", lambda self, key: None if dry(self, key) is None else 0)


def _what_is_held_is_given_back_too(patch: pytest.MonkeyPatch) -> None:
    """To the budget when it ends, and to the till at once."""
    hear = Front.hear

    def generous(self: Front, ask: HoldAsk, answer: Worded) -> None:
        self.give_back(ask)
        hear(self, ask, answer)

    patch.setattr(Front, "hear", generous)


def _what_is_refused_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Front, "give_back", lambda *_: None)


def _a_failed_draw_is_left_to_itself(patch: pytest.MonkeyPatch) -> None:
    begin = Front._begin

    def tells_only(self: Front, call: Any) -> Any:
        if call.__name__ == "give_back":
            call.close()
            return None
        return begin(self, call)

    patch.setattr(Front, "_begin", tells_only)


def _a_broken_till_is_asked_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Front, "_may_ask", lambda _: True)


def _who_cannot_draw_is_refused(patch: pytest.MonkeyPatch) -> None:
    draw = Front.draw

    async def strict(self: Front, ask: HoldAsk) -> Any:
        said = await draw(self, ask)
        return said if isinstance(said, Deny) or said.till else at_the_front.REFUSED

    patch.setattr(Front, "draw", strict)


CAUGHT: tuple[tuple[Break, Test], ...] = (
    (_dispatches_before_it_journals, any_order),
    (_journals_without_a_guard, any_order),
    (_a_recall_keeps_the_epoch, any_order),
    (
        _a_draw_of_any_epoch_counts,
        by_hand.test_a_draw_of_another_epoch_is_void_and_the_request_is_not,
    ),
    (_what_is_set_aside_is_room, any_order),
    (_what_is_set_aside_is_kept, any_order),
    (_what_was_drawn_stays_set_aside, by_hand.test_a_draw_becomes_a_hold_once),
    (_fills_twice, any_order),
    (_what_is_set_aside_is_kept, by_hand.test_what_is_set_aside_keeps_nobody_out),
    (_more_is_set_aside_than_is_left, by_hand.test_what_is_set_aside_keeps_nobody_out),
    (
        _a_lowered_limit_leaves_what_is_set_aside,
        by_hand.test_an_overrun_takes_back_what_does_not_fit_any_more,
    ),
    (_gives_back_twice, story("what was not held comes back once")),
    (_gives_back_into_any_epoch, story("nor into another epoch")),
    (_fills_twice, story("a word that is repeated fills once")),
    (_a_lost_till_takes_all_for_new, story("a till that was lost begins with what is new alone")),
    (
        _an_earlier_epoch_takes_over,
        story("a later epoch takes the place of an earlier one and never the reverse"),
    ),
    (_dry_is_dry_for_all, story("and what is less is not")),
    (_what_is_held_is_given_back_too, at_the_front.test_the_first_fills_and_the_next_draw),
    (
        _what_is_refused_is_not_given_back,
        at_the_front.test_what_another_ancestor_refuses_goes_back_to_the_till,
    ),
    (
        _a_failed_draw_is_left_to_itself,
        lambda: (
            at_the_front.test_a_draw_of_which_nobody_heard_is_given_back_and_the_request_goes_on(
                done_first=True
            )
        ),
    ),
    (
        _a_broken_till_is_asked_for_ever,
        at_the_front.test_tills_that_fail_are_given_up_and_tried_now_and_then,
    ),
    (
        _who_cannot_draw_is_refused,
        at_the_front.test_tills_that_fail_are_given_up_and_tried_now_and_then,
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "test"),
    CAUGHT,
    ids=[f"{broken.__name__.strip('_')}-{at}" for at, (broken, _) in enumerate(CAUGHT)],
)
def test_a_broken_till_is_caught(
    broken: Break, test: Test, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises((AssertionError, IntegrityError, ExceptionGroup)):
        test()


@dataclass(frozen=True)
class Script:
    """`old` stands in the file exactly once."""

    name: str
    file: str
    old: str
    new: str
    killed_by: str


SCRIPTS = (
    Script(
        "draws_again_for_the_same_request", "till_draw",
        "  if first then\n", "  if first and false then\n",
        "the same request draws once and hears the first answer",
    ),
    Script(
        "draws_after_its_return", "till_draw",
        "  if kept == 'ended' then\n", "  if kept == 'never' then\n",
        "a draw that arrives after its return takes nothing",
    ),
    Script(
        "drawing_keeps_a_till", "till_draw",
        "redis.call('SET', each.key, each.text, 'KEEPTTL')",
        "redis.call('SET', each.key, each.text, 'PX', text(9 * 10 ^ 9))",
        "a till that is not filled goes away, and drawing keeps it not",
    ),
    Script(
        "gives_back_twice", "till_return",
        "redis.call('SET', KEYS[1], 'ended', 'PX', text(mark_ms))", "redis.call('GET', KEYS[1])",
        "what was not held comes back once",
    ),
    Script(
        "a_lost_till_takes_all_for_new", "till_fill",
        "issued = math.min(since, issued)", "issued = 0",
        "a till that was lost begins with what is new alone",
    ),
    Script(
        "adds_up_doubles_as_text", "till",
        "return text(of.epoch) .. ' ' .. text(of.left) .. ' ' .. text(of.issued)",
        "return of.epoch .. ' ' .. of.left .. ' ' .. of.issued",
        "21 amounts near 2^53 are exact",
    ),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_broken_script_is_caught(
    script: Script, valkey_server: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shipped(script.file)
    assert text.count(script.old) == 1
    broken = text.replace(script.old, script.new)
    monkeypatch.setattr(
        redis_kit, "source", lambda name: broken if name == script.file else shipped(name)
    )

    async def go() -> None:
        async with twins.in_redis(valkey_server) as world:
            await twins.tell(world, twins.STORIES[script.killed_by])

    with pytest.raises((AssertionError, Failed)):
        asyncio.run(go())
    valkey_server.say("FLUSHALL")
