"""What budgets have set aside for their tills, within a turn: draws journalled, floats filled and recalled.

A draw is room that was set aside for one request.  It becomes part of a hold here, before anything is
dispatched, or is void.  Nothing that is set aside keeps a request out: what is in the way of one that would
fit without it is recalled, so that every decision is the strict one, whatever became of the till.

Refuses to know: Redis, rows (windows), what a request costs (ledger).  Decided by `policies.till`.
Source: MONEY.md §1 ("Two enforcement modes", "Crash recovery").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from policies.budget import Account, Fit
from policies.price import affordable_output
from policies.till import (
    SETTLE_US,
    Float,
    Seen,
    covers,
    filled,
    journalled,
    over_issued,
    recalled,
)
from policies.verdict import Allow, Deny
from tenants.asks import HoldAsk, Word
from tenants.scopes import BudgetAccount
from tenants.windows import Windows

Fits = Callable[[Sequence[Account]], Allow[Fit] | Deny]


class Floats:
    """Of the budgets above one request, in the order in which they are asked."""

    def __init__(
        self, book: Windows, budgets: Sequence[BudgetAccount], ask: HoldAsk, now_us: int
    ) -> None:
        self._book, self._budgets, self._ask, self._now_us = book, budgets, ask, now_us
        self._seen = {(each.scope, each.account): each.seen for each in ask.till}
        self._drawn: dict[int, int] = {}  # what counts, by the budget's place
        self._mine: set[int] = set()  # begun anew by this request
        self._spent: set[int] = set()

    def decide(self, fits: Fits) -> Allow[Fit] | Deny:
        """As if nothing were set aside but what others have drawn or may draw, which is taken back where it
        is all that is in the way."""
        accounts = [self._looked(at) for at in range(len(self._budgets))]
        while True:
            verdict = fits(accounts)
            scope = verdict.scope if isinstance(verdict, Deny) else verdict.value.limited_by
            for at, each in enumerate(accounts):
                if each.floated_nano_usd and each.scope == scope:
                    without = replace(each, floated_nano_usd=0)
                    if fits([*accounts[:at], without, *accounts[at + 1 :]]) != verdict:
                        self._recall(at)
                        accounts[at] = without
                        break
            else:
                break
        if isinstance(verdict, Deny):
            self._spent = {
                at for at, each in enumerate(accounts) if each.scope == scope and self._full(each)
            }
        return verdict

    def journal(self) -> None:
        """What was drawn for it is set aside no longer: it is held."""
        for at, drawn in self._drawn.items():
            budget = self._budgets[at]
            self._book.set_aside(budget, journalled(self._book.float_of(budget), drawn))

    def refill(self, amount: int) -> None:
        """After the hold, where a till held too little for it."""
        for at, seen in self._tills():
            if at in self._drawn:
                continue
            budget = self._budgets[at]
            kept, account = self._book.float_of(budget), self._book.account(budget)
            limit, room = account.limit_nano_usd, account.room_nano_usd
            after = filled(kept, seen, limit, room, amount, self._now_us)
            if after.epoch != kept.epoch:
                self._mine.add(at)
            self._book.set_aside(budget, after)

    def words(self) -> Iterator[Word]:
        """What tills should hear.  Of an epoch that another has begun, he tells what is in it."""
        for at, seen in self._tills():
            budget = self._budgets[at]
            kept = self._book.float_of(budget)
            since = self._since(at, kept, seen)
            spent = at in self._spent
            if since is not None or spent:
                known = kept.issued if since is None else since
                yield Word(budget.scope, budget.id, kept.epoch, known, kept.issued, spent)

    def _since(self, at: int, kept: Float, seen: Seen) -> int | None:
        """What the till knows of `issued`; None where there is nothing to tell."""
        if kept.epoch == seen.epoch:
            return seen.issued if kept.issued > seen.issued else None
        if at in self._mine:
            return 0
        return kept.issued if self._now_us - kept.epoch >= SETTLE_US else None

    def _looked(self, at: int) -> Account:
        budget = self._budgets[at]
        account, kept = self._book.account(budget), self._book.float_of(budget)
        seen = self._seen.get((budget.scope, budget.id))
        if not budget.budget.till or (seen is not None and over_issued(kept, seen)):
            if kept.nano_usd:
                self._recall(at)
            return replace(account, floated_nano_usd=0)
        if seen is not None and covers(kept, seen):
            self._drawn[at] = seen.drawn_nano_usd
            return replace(account, floated_nano_usd=kept.nano_usd - seen.drawn_nano_usd)
        return account

    def _recall(self, at: int) -> None:
        budget = self._budgets[at]
        self._book.set_aside(budget, recalled(self._book.float_of(budget), self._now_us))
        self._drawn.pop(at, None)
        self._mine.add(at)

    def _full(self, account: Account) -> bool:
        """Whether this is a budget that is in the way, whatever is set aside."""
        ask, room = self._ask, replace(account, floated_nano_usd=0).room_nano_usd
        most = affordable_output(ask.price, ask.prompt_tokens, ask.output_tokens, ask.n, room)
        least = min(ask.output_tokens_least, ask.output_tokens)
        return account.hard and (most is None or most < least)

    def _tills(self) -> Iterator[tuple[int, Seen]]:
        for at, budget in enumerate(self._budgets):
            seen = self._seen.get((budget.scope, budget.id))
            if budget.budget.till and seen is not None:
                yield at, seen
