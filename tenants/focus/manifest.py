"""What an export is asked for, and what it turned out to be.  Pure but for the hash it carries along.

An export has no state on the server.  Rows are only ever appended and say when they were, so an export
`as_of_ms` is the same bytes whenever it is asked for: once for the manifest, once for the file, whose
hash the receiver compares.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from policies.periods import Month
from tenants.focus.columns import MAPPING_VERSION
from tenants.focus.files import plain
from tenants.focus.rows import EXACT, Row, scaled

SCHEMA = "lockgate-focus-manifest-1"
RULES = {
    "line_rounding": "half-up-per-line-1",
    "estimate": "reserved-amount-1",
}
"""Versions of the rules behind the numbers; how device time was split is the executors' to say."""
_COSTS = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost", "x_RoundingCost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """`as_of_ms`: leaves out what was written since; None for a closed month, which nothing enters."""

    period: Month
    version: str
    kind: str
    grain: str
    tenant: str | None
    as_of_ms: int | None
    operator: str
    host: str
    device: bool

    @property
    def splits_devices(self) -> bool:
        """Whether it has all device time, that of nobody too: the operator's, of all tenants."""
        return self.device and self.tenant is None

    @property
    def name(self) -> str:
        """Of the file; never a path, whatever a tenant is called."""
        whose = "" if self.tenant is None else "-" + re.sub(r"[^A-Za-z0-9_.-]", "_", self.tenant)
        return f"focus-{self.version}-{self.period.name}{whose}.{self.kind}"


@dataclass(slots=True)
class Manifest:
    """Sums taken while rows and bytes go by."""

    rows: int = 0
    size: int = 0
    costs: dict[str, Decimal] = field(default_factory=lambda: dict.fromkeys(_COSTS, Decimal(0)))
    tokens: dict[str, Decimal] = field(default_factory=dict)
    seconds: dict[str, Decimal] = field(default_factory=dict)
    prices: set[str] = field(default_factory=set)
    _hash: Any = field(default_factory=hashlib.sha256, repr=False)

    def take_rows(self, rows: list[Row]) -> None:
        self.rows += len(rows)
        for row in rows:
            for name in _COSTS:
                cost = row[name]
                assert isinstance(cost, Decimal)
                self.costs[name] = EXACT.add(self.costs[name], cost)
            meter, quantity, price = row["SkuMeter"], row["PricingQuantity"], row["x_PriceVersion"]
            if isinstance(meter, str) and isinstance(quantity, Decimal):
                into = self.tokens if row["PricingUnit"] == "Tokens" else self.seconds
                into[meter] = EXACT.add(into.get(meter, Decimal(0)), quantity)
            if isinstance(price, str):
                self.prices.add(price)

    def take_bytes(self, data: bytes) -> None:
        self.size += len(data)
        self._hash.update(data)

    def told(
        self,
        of: Export,
        *,
        escaped: int,
        period_sha256: str | None,
        ledger_nano_usd: int,
        device_rules: Sequence[str] = (),
    ) -> dict[str, object]:
        """`ledger_usd` is the ledger's own sum; it and `BilledCost` are one number."""
        ledger = scaled(ledger_nano_usd, -9)
        return {
            "schema": SCHEMA,
            "focus_version": of.version,
            "mapping_version": MAPPING_VERSION,
            "state": "provisional" if period_sha256 is None else "final",
            "period": of.period.name,
            "period_sha256": period_sha256,
            "granularity": of.grain,
            "tenant": of.tenant,
            "as_of_ms": of.as_of_ms,
            "rows": self.rows,
            "totals": {name: plain(cost) for name, cost in self.costs.items()},
            "tokens": {meter: plain(count) for meter, count in sorted(self.tokens.items())},
            "device_seconds": {meter: plain(time) for meter, time in sorted(self.seconds.items())},
            "ledger_usd": plain(ledger),
            "agrees": ledger == self.costs["BilledCost"],
            "price_versions": sorted(self.prices),
            "rule_versions": {**RULES, "cost_attribution": sorted(device_rules) or None},
            "escaped_rows": escaped,
            "files": [
                {
                    "name": of.name,
                    "format": of.kind,
                    "rows": self.rows,
                    "bytes": self.size,
                    "sha256": self._hash.hexdigest(),
                }
            ],
        }
