"""Which columns an export has, in which version, and what each holds.

Refuses to know: rows.  Source: MONEY.md §2's table.  1.2 is what validators know; 1.4 drops ProviderName
and PublisherName for ServiceProviderName and HostProviderName, and has how device time was split
(AllocatedMethodId and its like are of 1.3 and later): filled in an operator's export of all tenants alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

VERSIONS = ("1.2", "1.4")
MAPPING_VERSION = "3"
"""Of what a column is filled with; goes up whenever that changes."""


class Kind(Enum):
    TEXT = "text"
    DECIMAL = "decimal"
    WHOLE = "whole"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind = Kind.TEXT
    versions: tuple[str, ...] = VERSIONS
    required: bool = False


def _must(name: str, kind: Kind = Kind.TEXT, *versions: str) -> Column:
    return Column(name, kind, versions or VERSIONS, required=True)


COLUMNS = (
    Column("AllocatedMethodDetails", versions=("1.4",)),
    Column("AllocatedMethodId", versions=("1.4",)),
    Column("AllocatedResourceId", versions=("1.4",)),
    Column("AllocatedTags", versions=("1.4",)),
    _must("BilledCost", Kind.DECIMAL),
    _must("BillingAccountId"),
    Column("BillingAccountName"),
    _must("BillingCurrency"),
    _must("BillingPeriodEnd", Kind.TIME),
    _must("BillingPeriodStart", Kind.TIME),
    _must("ChargeCategory"),
    Column("ChargeClass"),
    _must("ChargeDescription"),
    _must("ChargeFrequency"),
    _must("ChargePeriodEnd", Kind.TIME),
    _must("ChargePeriodStart", Kind.TIME),
    Column("CommitmentDiscountStatus", versions=("1.2",)),
    Column("ConsumedQuantity", Kind.DECIMAL),
    Column("ConsumedUnit"),
    _must("ContractedCost", Kind.DECIMAL),
    Column("ContractedUnitPrice", Kind.DECIMAL),
    _must("EffectiveCost", Kind.DECIMAL),
    _must("HostProviderName", Kind.TEXT, "1.4"),
    Column("InvoiceId"),
    _must("InvoiceIssuerName"),
    _must("ListCost", Kind.DECIMAL),
    Column("ListUnitPrice", Kind.DECIMAL),
    Column("PricingCategory"),
    Column("PricingCurrency", versions=("1.2",)),
    Column("PricingCurrencyContractedUnitPrice", Kind.DECIMAL, ("1.2",)),
    Column("PricingCurrencyEffectiveCost", Kind.DECIMAL, ("1.2",)),
    Column("PricingCurrencyListUnitPrice", Kind.DECIMAL, ("1.2",)),
    Column("PricingQuantity", Kind.DECIMAL),
    Column("PricingUnit"),
    _must("ProviderName", Kind.TEXT, "1.2"),
    _must("PublisherName", Kind.TEXT, "1.2"),
    _must("ServiceCategory"),
    _must("ServiceName"),
    _must("ServiceProviderName", Kind.TEXT, "1.4"),
    _must("ServiceSubcategory"),
    Column("SkuId"),
    Column("SkuMeter"),
    Column("SkuPriceDetails"),
    Column("SkuPriceId"),
    Column("SubAccountId"),
    Column("SubAccountName"),
    Column("Tags"),
    Column("x_ApiKeyId"),
    Column("x_BatchId"),
    _must("x_Entry"),
    Column("x_GpuNanoseconds", Kind.WHOLE),
    Column("x_Model"),
    Column("x_PriceVersion"),
    Column("x_PriorityClass"),
    _must("x_RequestCount", Kind.WHOLE),
    _must("x_RoundingCost", Kind.DECIMAL),
    Column("x_UserId"),
    Column("x_UserIssuer"),
)


def columns_of(version: str) -> tuple[Column, ...]:
    assert version in VERSIONS
    return tuple(column for column in COLUMNS if version in column.versions)
