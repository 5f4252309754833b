"""What the book is asked, and what it answers.  Frozen values; nothing is done here."""

from __future__ import annotations

from dataclasses import dataclass

from policies.facts import Meters, Price
from policies.price import Charge
from policies.tags import Tag
from policies.till import Seen
from policies.verdict import Allow, Deny
from tenants.scopes import BudgetAccount, Dimensions
from tenants.usage import UsageRecord

LEASE_S = 60


class BookFault(Exception):
    """The caller broke the book's rules: an id used twice, a price that changed.  Our mistake."""


class ClaimLost(Exception):
    """The idempotency key by which a hold is asked is another request's by now."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was found in the till of one budget, and drawn from it for one request."""

    scope: str
    account: str
    seen: Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldAsk:
    """`output_tokens` is wanted for each of `n` choices; `output_tokens_least` equals it where the
    client named the length, else is what makes an answer worth beginning.  `prompt_tokens` is
    billed once, however many choices.  `dispatched`: work may start as soon as the hold is durable,
    so a crash leaves it unknown; False where `mark_dispatched` will come between.  `claim`: the digest of the
    idempotency key by which it is asked; held only while that is this request's.  `tags`: what it is filed
    under, one a name.  `till`: of budgets that have one, and could be asked."""

    request_id: str
    dims: Dimensions
    budgets: tuple[BudgetAccount, ...]
    price: Price
    prompt_tokens: int
    output_tokens: int
    output_tokens_least: int
    n: int = 1
    lease_s: int = LEASE_S
    dispatched: bool = True
    claim: str | None = None
    tags: tuple[Tag, ...] = ()
    till: tuple[Drawn, ...] = ()


@dataclass(frozen=True, slots=True)
class SettleAsk:
    """Bill what was used."""

    request_id: str
    meters: Meters
    record: UsageRecord | None = None


@dataclass(frozen=True, slots=True)
class VoidAsk:
    """Nothing ran."""

    request_id: str
    record: UsageRecord | None = None


@dataclass(frozen=True, slots=True)
class LapseAsk:
    """Whoever held it has not been heard of: nobody knows what ran.  `until_ms`: only if its lease has
    lapsed by then; None: whatever its lease."""

    request_id: str
    until_ms: int | None = None


Ask = HoldAsk | SettleAsk | VoidAsk | LapseAsk


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What was reserved.  The executor stops at `output_tokens` for each choice.  `limited_by` is
    the scope whose budget cut it; `over` the soft budgets that are exceeded; `shadowed` those that
    would have refused it, were they hard."""

    request_id: str
    dims: Dimensions
    price_id: str
    output_tokens: int
    amount_nano_usd: int
    limited_by: str | None = None
    over: tuple[str, ...] = ()
    shadowed: tuple[str, ...] = ()

    @property
    def limited(self) -> bool:
        return self.limited_by is not None


@dataclass(frozen=True, slots=True)
class Word:
    """What a budget's till should hear: that its epoch is `epoch` and `issued` nano-USD were set aside in it,
    of which it can know up to `since`.  `spent`: a request was refused."""

    scope: str
    account: str
    epoch: int
    since: int
    issued: int
    spent: bool


@dataclass(frozen=True, slots=True)
class Worded:
    """The answer to a hold whose budgets have tills."""

    verdict: Allow[Hold] | Deny
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """`repeat`: it had ended before, and this is the first result.  `alarm`: more was used than
    reserved, or something was used that had been voided; a person should look."""

    charge: Charge
    repeat: bool = False
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class Swept:
    """Request ids whose holds were resolved without their request's word."""

    expired: tuple[str, ...] = ()
    voided: tuple[str, ...] = ()
