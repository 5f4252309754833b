"""One line of the book as one FOCUS row.  Pure; exact decimals, no floats anywhere.

Prices are nano-USD per 1M tokens, so a token costs a whole multiple of 1e-15 dollars: ListCost and
ContractedCost are the exact product of unit price and quantity.  BilledCost is what the ledger has, each
of its lines rounded half-up to a nano-dollar; the difference, under half a nano-dollar for each of its
lines, is `x_RoundingCost`.  Source: MONEY.md §2's table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal, Inexact, Rounded

from policies.periods import Month
from tenants import tags
from tenants.focus.lines import Line
from tenants.postings import ESTIMATE, REVERSAL
from tenants.reports.facts import ADJUSTMENT

Value = str | Decimal | int | datetime | None
Row = dict[str, Value]

EXACT = Context(prec=80, traps=[Inexact, Rounded])
"""The default context would round what has more than 28 digits."""
CREDITS = ("credit", "top-up", "top_up")
"""Kinds of ledger entries that FOCUS calls Credit; any other given by hand is an Adjustment."""
_SAYS = {
    ESTIMATE: "reserved and not yet measured",
    REVERSAL: "taken back, since it was measured",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What every row says alike.  `device`: whoever reads it may see device time."""

    period: Month
    span_ms: int
    final: bool
    operator: str
    host: str
    device: bool


def scaled(whole: int, exponent: int) -> Decimal:
    return EXACT.scaleb(Decimal(whole), exponent)


def row_of(line: Line, terms: Terms) -> Row:
    billed = scaled(line.nano_usd, -9)
    usage = line.entry != ADJUSTMENT
    unit = scaled(line.unit_price, -15) if usage else None
    quantity = Decimal(line.tokens) if usage else None
    exact = scaled(line.unit_price * line.tokens, -15) if usage else billed
    invoice = f"{terms.period.name}/{line.tenant}"
    row: Row = {
        "BilledCost": billed,
        "EffectiveCost": billed,
        "ListCost": exact,
        "ContractedCost": exact,
        "ListUnitPrice": unit,
        "ContractedUnitPrice": unit,
        "PricingCurrency": "USD",
        "PricingCurrencyListUnitPrice": unit,
        "PricingCurrencyContractedUnitPrice": unit,
        "PricingCurrencyEffectiveCost": billed,
        "PricingQuantity": quantity,
        "PricingUnit": "Tokens" if usage else None,
        "ConsumedQuantity": quantity,
        "ConsumedUnit": "Tokens" if usage else None,
        "PricingCategory": "Standard" if usage else None,
        "BillingAccountId": line.tenant,
        "BillingAccountName": line.tenant,
        "SubAccountId": line.project,
        "SubAccountName": line.project,
        "BillingCurrency": "USD",
        "BillingPeriodStart": _time(terms.period.start_ms),
        "BillingPeriodEnd": _time(terms.period.end_ms),
        "ChargePeriodStart": _time(line.start_ms),
        "ChargePeriodEnd": _time(line.start_ms + terms.span_ms),
        "ChargeCategory": _category(line),
        "ChargeClass": "Correction" if line.late else None,
        "ChargeDescription": _description(line),
        "ChargeFrequency": "Usage-Based" if usage else "One-Time",
        "InvoiceIssuerName": terms.operator,
        "ProviderName": terms.operator,
        "PublisherName": terms.operator,
        "ServiceProviderName": terms.operator,
        "HostProviderName": terms.host,
        "InvoiceId": invoice if terms.final else f"provisional/{invoice}",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceSubcategory": "Generative AI",
        "ServiceName": "Lockgate",
        "CommitmentDiscountStatus": None,
        "Tags": _tags(line),
        "x_UserId": line.user,
        "x_UserIssuer": line.issuer,
        "x_ApiKeyId": line.key_id,
        "x_Model": line.model,
        "x_PriorityClass": line.service_class,
        "x_PriceVersion": line.price_id,
        "x_BatchId": None,
        "x_Entry": line.entry if usage else line.meter,
        "x_RequestCount": line.requests,
        "x_GpuNanoseconds": line.device_ns if terms.device else None,
        "x_RoundingCost": EXACT.subtract(billed, exact),
    }
    return _NOT_SPLIT | row | (_sku(line) if usage else dict.fromkeys(_SKU))


_NOT_SPLIT: Row = dict.fromkeys(
    ("AllocatedMethodDetails", "AllocatedMethodId", "AllocatedResourceId", "AllocatedTags")
)
_SKU = ("SkuId", "SkuMeter", "SkuPriceDetails", "SkuPriceId")


def _sku(line: Line) -> Row:
    """An assumed amount is at the dearest price that could have applied: a price of its own."""
    ends = f"{line.meter}/{line.service_class or '-'}"
    assumed = line.entry in {ESTIMATE, REVERSAL}
    details = {
        "x_Meter": line.meter,
        "x_Model": line.model,
        "x_PriorityClass": line.service_class,
        **({"x_Estimated": True} if assumed else {}),
    }
    return {
        "SkuId": f"{line.model}/{ends}",
        "SkuMeter": line.meter,
        "SkuPriceDetails": json.dumps(details, ensure_ascii=False, sort_keys=True),
        "SkuPriceId": f"{line.price_id}/{ends}" + (f"/{ESTIMATE}" if assumed else ""),
    }


def _tags(line: Line) -> str | None:
    """An object of names and values: keys', claims' and clients', as one."""
    filed = {tag.name: tag.value for tag in tags.read(line.tags)}
    return json.dumps(filed, ensure_ascii=False, sort_keys=True) if filed else None


def _category(line: Line) -> str:
    if line.entry != ADJUSTMENT:
        return "Usage"
    return "Credit" if line.meter in CREDITS else "Adjustment"


def _description(line: Line) -> str:
    if line.entry == ADJUSTMENT:
        return f"Entry of the ledger: {line.meter}"
    words = f"{line.meter.replace('_', ' ')} tokens of {line.model}"
    return f"{words}, {_SAYS[line.entry]}" if line.entry in _SAYS else words


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1000, UTC)
