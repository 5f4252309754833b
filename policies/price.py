"""What tokens cost, in integer nano-USD.

Refuses to know: who pays, what was reserved.  Source: MONEY.md §1 (units), §2 (disjoint meters);
DESIGN.md, settled question 9.

Prices are nano-USD per 1M tokens.  A settlement rounds half-up once a meter line.  A reservation
rounds up, at the dearest price that could apply, so that no settlement within its token counts is
above it.  Where every price is a whole number of nano-USD a token, nothing is ever rounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from policies.facts import Meters, Price
from policies.verdict import Allow, Deny, Reason

PER_TOKENS = 1_000_000
NANO_USD_MAX = 2**62
"""No amount and no limit reaches this ($4.6 thousand million): sums of two stay within a BIGINT."""

BATCH = "batch"


def in_usd(nano_usd: int) -> str:
    """Exact, with nine places and without an exponent."""
    whole, places = divmod(abs(nano_usd), 10**9)
    return f"{'-' if nano_usd < 0 else ''}{whole}.{places:09}"


class Meter(StrEnum):
    """The fields of `facts.Meters` and `facts.Price`."""

    INPUT = "input"
    CACHED_INPUT = "cached_input"
    CACHE_WRITE = "cache_write"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Line:
    meter: Meter
    tokens: int
    unit_price: int
    nano_usd: int


@dataclass(frozen=True, slots=True)
class Charge:
    """One line a meter that counted anything."""

    price_id: str
    lines: tuple[Line, ...]
    total_nano_usd: int


def charge(price: Price, meters: Meters) -> Charge:
    """What is billed: tokens × price, rounded half-up a line."""
    lines = []
    for meter in Meter:
        tokens, unit = int(getattr(meters, meter)), int(getattr(price, meter))
        assert tokens >= 0
        if tokens:
            nano_usd = (2 * tokens * unit + PER_TOKENS) // (2 * PER_TOKENS)
            lines.append(Line(meter, tokens, unit, nano_usd))
    return Charge(price.id, tuple(lines), sum(line.nano_usd for line in lines))


def dearest_input(price: Price) -> int:
    """The unit price at which a prompt is reserved: nobody knows yet on which meter it will fall."""
    return max(price.input, price.cached_input, price.cache_write)


def worst_case_input(price: Price, prompt_tokens: int) -> int:
    """The most that `prompt_tokens` can come to, however they fall over the three input meters.

    Each line may gain half a nano-USD by rounding, so three lines may come to one more than the
    prompt in a single line rounded up; where prices are whole a token no line gains anything."""
    assert prompt_tokens >= 0
    units = (price.input, price.cached_input, price.cache_write)
    exact = prompt_tokens * dearest_input(price)
    up = -(-exact // PER_TOKENS)
    if all(unit % PER_TOKENS == 0 for unit in units):
        return up
    lines = min(len(units), prompt_tokens)
    return max(up, (2 * exact + lines * PER_TOKENS) // (2 * PER_TOKENS))


def worst_case(price: Price, prompt_tokens: int, output_tokens: int, n: int = 1) -> int:
    """What to reserve for one prompt and `n` choices of `output_tokens` each."""
    assert output_tokens >= 0
    assert n >= 1
    output = -(-(output_tokens * n * price.output) // PER_TOKENS)
    return worst_case_input(price, prompt_tokens) + output


def affordable_output(
    price: Price, prompt_tokens: int, wanted: int, n: int, room_nano_usd: int
) -> int | None:
    """The most output tokens a choice, up to `wanted`, that `room_nano_usd` covers with the prompt;
    None where not even the prompt is covered."""
    left = room_nano_usd - worst_case_input(price, prompt_tokens)
    if left < 0:
        return None
    if price.output == 0:
        return wanted
    return min(wanted, left * PER_TOKENS // (price.output * n))


def for_class(price: Price, service_class: str | None) -> Price:
    """The price that a class pays: batch is a SKU of its own, whole nano-USD per 1M, half-up."""
    if service_class != BATCH or price.batch_factor == 1.0:
        return price
    factor = Fraction(repr(price.batch_factor))  # the decimal that was written, not its binary
    assert factor > 0

    def part(unit: int) -> int:
        return int(unit * factor + Fraction(1, 2))

    return replace(
        price,
        id=f"{price.id}/{BATCH}",
        input=part(price.input),
        cached_input=part(price.cached_input),
        cache_write=part(price.cache_write),
        output=part(price.output),
        batch_factor=1.0,
    )


@dataclass(frozen=True, slots=True)
class PriceList:
    """Dated and immutable: the newest price that is already effective applies.

    ValueError, all faults at once, where two prices claim one id or one moment, or one is negative."""

    prices: tuple[Price, ...]

    def __post_init__(self) -> None:
        if faults := tuple(_faults(self.prices)):
            raise ValueError("price list: " + "; ".join(faults))

    def at(self, model: str, at_s: int) -> Allow[Price] | Deny:
        effective = [p for p in self.prices if p.model == model and p.effective_s <= at_s]
        if not effective:
            return Deny(Reason.UNPRICED)
        return Allow(max(effective, key=lambda price: price.effective_s))


def _faults(prices: Iterable[Price]) -> Iterable[str]:
    ids: set[str] = set()
    moments: set[tuple[str, int]] = set()
    for price in prices:
        if price.id in ids:
            yield f"id {price.id!r} is used twice; each price needs its own"
        if (price.model, price.effective_s) in moments:
            yield f"model {price.model!r} has two prices from the same moment; keep one"
        for meter in Meter:
            if not 0 <= int(getattr(price, meter)) < NANO_USD_MAX:
                yield f"{price.id!r}: {meter} must be within 0 and {NANO_USD_MAX}, in nano-USD per 1M"
        if not 0 < price.batch_factor < float("inf"):
            yield f"{price.id!r}: batch_factor must be a positive number"
        ids.add(price.id)
        moments.add((price.model, price.effective_s))
