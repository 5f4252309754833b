"""FOCUS rows checked from the file alone, by the arithmetic of fractions.  Borrows nothing of what it
checks: not its columns, not its decimals.  Source: MONEY.md §2; FOCUS 1.2's rules for each column."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

MANDATORY = {
    "1.2": {"ProviderName", "PublisherName"},
    "1.4": {"ServiceProviderName", "HostProviderName"},
}
ALWAYS = {
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency"),
    *("BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass"),
    *("ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart", "ContractedCost"),
    *("EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit"),
    *("ServiceCategory", "ServiceName"),
}
NULLABLE = {"ChargeClass", "PricingQuantity", "PricingUnit"}
COSTS = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
NUMBER = re.compile(r"-?\d+(\.\d+)?")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:00:00Z")
ALLOWED = {
    "ChargeCategory": {"Usage", "Credit", "Adjustment"},
    "ChargeClass": {"", "Correction"},
    "ChargeFrequency": {"Usage-Based", "One-Time"},
    "PricingCategory": {"", "Standard"},
    "BillingCurrency": {"USD"},
    "ServiceCategory": {"AI and Machine Learning"},
    "ServiceSubcategory": {"Generative AI"},
}


def read(data: bytes) -> list[dict[str, str]]:
    """As a program reads it: the apostrophes that the row owns up to are taken off."""
    found = list(csv.DictReader(io.StringIO(data.decode(), newline=""), strict=True))
    for row in found:
        for name in filter(None, row["x_EscapedColumns"].split(";")):
            assert row[name][0] == "'"
            row[name] = row[name][1:]
    return found


def formulas(data: bytes) -> list[str]:
    """Cells that a spreadsheet would run."""
    return [
        cell
        for row in csv.reader(io.StringIO(data.decode(), newline=""))
        for cell in row
        if cell[:1] in {"=", "+", "-", "@", "\t", "\r"} and not NUMBER.fullmatch(cell)
    ]


def exact(text: str) -> Fraction:
    assert NUMBER.fullmatch(text), text
    assert len(text.partition(".")[2]) <= 18
    return Fraction(text)


def faults(rows: list[dict[str, str]], version: str, month: str) -> Iterator[str]:
    other = "1.4" if version == "1.2" else "1.2"
    parents: dict[str, tuple[str, str, str]] = {}
    for place, row in enumerate(rows):
        for name in ALWAYS | MANDATORY[version]:
            if name not in row:
                yield f"{name} is missing"
            elif not row[name] and name not in NULLABLE:
                yield f"{place}: {name} is null"
        yield from (f"{name} is not of {version}" for name in MANDATORY[other] if name in row)
        for name, allowed in ALLOWED.items():
            if row[name] not in allowed:
                yield f"{place}: {name} is {row[name]!r}"
        yield from (f"{place}: {why}" for why in _amounts(row))
        yield from (f"{place}: {why}" for why in _times(row, month))
        if sku := row["SkuPriceId"]:
            mine = row["SkuId"], row["SkuPriceDetails"], row["ContractedUnitPrice"]
            if parents.setdefault(sku, mine) != mine:
                yield f"{place}: {sku} is two prices"
            details = json.loads(row["SkuPriceDetails"])
            if any(isinstance(value, dict | list) for value in details.values()):
                yield f"{place}: {details} is nested"
            if not all(key.startswith("x_") for key in details):
                yield f"{place}: {details} has a key of nobody's"


def _amounts(row: Mapping[str, str]) -> Iterator[str]:
    billed, contracted, effective, listed = (exact(row[name]) for name in COSTS)
    if effective != billed:
        yield "EffectiveCost is not BilledCost, and there are no commitments"
    if (billed * 10**9).denominator != 1:
        yield "BilledCost is no whole nano-dollar"
    if exact(row["x_RoundingCost"]) != billed - contracted:
        yield "x_RoundingCost is not the difference"
    if row["ChargeCategory"] != "Usage":
        if not billed == contracted == listed:
            yield "a cost that is no usage differs from what is billed"
        if any(row[name] for name in ("PricingQuantity", "ConsumedQuantity", "SkuId", "SkuMeter")):
            yield "what is no usage has a quantity"
        return
    quantity = exact(row["PricingQuantity"])
    if row["PricingUnit"] == "Seconds":
        yield from _device(row, billed, quantity)
        return
    if quantity.denominator != 1 or exact(row["ConsumedQuantity"]) != quantity:
        yield "tokens are whole, and those that were used are those that are priced"
    if (row["PricingUnit"], row["ConsumedUnit"]) != ("Tokens", "Tokens"):
        yield "the unit is Tokens"
    if exact(row["ContractedUnitPrice"]) * quantity != contracted:
        yield "ContractedUnitPrice by PricingQuantity is not ContractedCost"
    if exact(row["ListUnitPrice"]) * quantity != listed:
        yield "ListUnitPrice by PricingQuantity is not ListCost"
    for name in ("PricingCategory", "SkuId", "SkuMeter", "SkuPriceId", "x_Model"):
        if not row[name]:
            yield f"{name} of usage is null"


def _device(row: Mapping[str, str], billed: Fraction, quantity: Fraction) -> Iterator[str]:
    """Time of devices that is nobody's: an operator's, without a price."""
    if row["x_Entry"] not in {"idle", "overhead"} or row["SubAccountId"] != "platform":
        yield "seconds of somebody's"
    if billed or exact(row["ContractedUnitPrice"]) or exact(row["ListUnitPrice"]):
        yield "device time has a price"
    if row["ConsumedUnit"] != "Seconds" or exact(row["ConsumedQuantity"]) != quantity:
        yield "seconds that were used are those that are told"
    if quantity * 10**9 != int(row["x_GpuNanoseconds"]):
        yield "x_GpuNanoseconds is not the quantity"
    if not all(row[name] for name in ("PricingCategory", "SkuId", "SkuMeter", "x_Model")):
        yield "a device of no model"


def splits(rows: list[dict[str, str]]) -> dict[tuple[str, str], Fraction]:
    """By span and model of 1.4's rows, what the ratios of their allocation come to; each checked beside the
    nanoseconds that it is of."""
    sums: dict[tuple[str, str], Fraction] = {}
    times: dict[tuple[str, str], list[tuple[Fraction, int]]] = {}
    for row in rows:
        known = [
            bool(row[f"Allocated{name}"]) for name in ("MethodId", "MethodDetails", "ResourceId")
        ]
        assert len(set(known)) == 1, row
        if not known[0]:
            continue
        assert row["AllocatedTags"] == row.get("Tags", "")
        (element,) = json.loads(row["AllocatedMethodDetails"], parse_float=Fraction)["Elements"]
        assert element["UsageUnit"] == "Nanoseconds"
        assert element["UsageQuantity"] == int(row["x_GpuNanoseconds"]) != 0
        of, ratio = (row["ChargePeriodStart"], row["x_Model"]), Fraction(element["AllocatedRatio"])
        sums[of] = sums.get(of, Fraction(0)) + ratio
        times.setdefault(of, []).append((ratio, element["UsageQuantity"]))
    for parts in times.values():
        whole = sum(ns for _, ns in parts)
        assert all(abs(ratio - Fraction(ns, whole)) < Fraction(2, 10**15) for ratio, ns in parts)
    return sums


def _times(row: Mapping[str, str], month: str) -> Iterator[str]:
    names = ("BillingPeriodStart", "ChargePeriodStart", "ChargePeriodEnd", "BillingPeriodEnd")
    times = [row[name] for name in names]
    if not all(TIME.fullmatch(each) for each in times):
        yield f"{times} are not whole hours of UTC"
    if not times[0] <= times[1] < times[2] <= times[3]:
        yield f"{times} are not in order"
    if times[0] != f"{month}-01T00:00:00Z" or not times[3].endswith("-01T00:00:00Z"):
        yield f"{times[0]} to {times[3]} is not {month}"


def total(rows: list[dict[str, Any]], name: str) -> Fraction:
    return sum((exact(row[name]) for row in rows), Fraction(0))
