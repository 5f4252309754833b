"""An invoice of somebody else's beside the ledger: by day, or by day and model, to the last digit.

Reads a CSV with a header: `day` (or `date`), `amount_usd` (or `usd`, `amount`, `cost`), and `model` where the
invoice tells it.  Several rows of one day add up.  Refuses to guess: what it cannot read is an error with
its line.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Context, Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from gateway.cli.client import Server
from gateway.cli.credentials import rows_of
from gateway.cli.show import Refusal

BYTES_MAX = 64 << 20
PAGES_MOST = 1000
DIGITS_MAX = 30
DAY, AMOUNT, MODEL = ("day", "date"), ("amount_usd", "usd", "amount", "cost"), ("model",)
_EXACT = Context(prec=80)

Key = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Invoice:
    """Amounts by day and, where `by_model`, by model."""

    amounts: Mapping[Key, Decimal]
    by_model: bool


def read_invoice(path: Path) -> Invoice:
    """Refusal for what is no such file, with the line."""
    try:
        if path.stat().st_size > BYTES_MAX:
            raise Refusal(f"{path} is larger than 64 MiB. Split it by month.")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise Refusal(f"There is no file {path}.") from None
    except UnicodeDecodeError:
        raise Refusal(f"{path} is no UTF-8 text.") from None
    reader = csv.DictReader(text.splitlines(), strict=True)
    names = {name.strip().lower(): name for name in reader.fieldnames or ()}
    day, amount = _named(names, DAY, path), _named(names, AMOUNT, path)
    model = names.get(MODEL[0])
    amounts: dict[Key, Decimal] = {}
    try:
        for row in reader:
            at = f"{path}, line {reader.line_num}"
            key = _day(row[day], at), None if model is None else (row[model] or "")
            amounts[key] = _EXACT.add(amounts.get(key, Decimal(0)), _amount(row[amount], at))
    except csv.Error as why:
        raise Refusal(f"{path}, line {reader.line_num}: {why}.") from None
    if not amounts:
        raise Refusal(f"{path} has no rows.")
    return Invoice(amounts, model is not None)


def _named(names: Mapping[str, str], wanted: tuple[str, ...], path: Path) -> str:
    for name in wanted:
        if name in names:
            return names[name]
    raise Refusal(f"{path} has no column {' or '.join(wanted)}.")


def _day(text: str | None, at: str) -> str:
    try:
        return date.fromisoformat((text or "").strip()[:10]).isoformat()
    except ValueError:
        raise Refusal(f"{at}: {text!r} is no day like 2026-11-01.") from None


def _amount(text: str | None, at: str) -> Decimal:
    try:
        found = Decimal((text or "").strip().removeprefix("$"))
    except InvalidOperation:
        found = Decimal("NaN")
    if (
        not found.is_finite()
        or len(found.as_tuple().digits) > DIGITS_MAX
        or abs(found.adjusted()) > DIGITS_MAX
    ):
        raise Refusal(f"{at}: {text!r} is no amount like 12.34.")
    return found


def compared(
    server: Server, invoice: Invoice, since: str | None, until: str | None, tenant: str | None
) -> dict[str, Any]:
    """Each day (and model), what the invoice says, what the ledger says, and the difference that nothing
    explains.  Without dates, the days of the invoice."""
    days = [day for day, _ in invoice.amounts]
    asked = {
        "by": "day,model" if invoice.by_model else "day",
        "from": since or min(days),
        "to": until or (date.fromisoformat(max(days)) + timedelta(days=1)).isoformat(),
        "tenant": tenant,
    }
    ledger: dict[Key, Decimal] = {}
    for row in _all_rows(server, asked):
        model = str(row.get("model") or "") if invoice.by_model else None
        ledger[(str(row["day"]), model)] = Decimal(str(row["usd"]))
    rows = [
        {
            "day": day,
            **({} if model is None else {"model": model}),
            "invoice_usd": f"{theirs:f}",
            "ledger_usd": f"{ours:f}",
            "delta_usd": f"{_EXACT.subtract(theirs, ours):f}",
        }
        for day, model in sorted({*invoice.amounts, *ledger}, key=str)
        for theirs in [invoice.amounts.get((day, model), Decimal(0))]
        for ours in [ledger.get((day, model), Decimal(0))]
    ]
    theirs, ours = _sum(invoice.amounts), _sum(ledger)
    differing = [row for row in rows if Decimal(row["delta_usd"]) != 0]
    return {
        "agrees": not differing,
        "invoice_usd": f"{theirs:f}",
        "ledger_usd": f"{ours:f}",
        "unexplained_usd": f"{_EXACT.subtract(theirs, ours):f}",
        "rows": differing,
    }


def _all_rows(server: Server, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    page = None
    for _ in range(PAGES_MOST):
        found = server.get("/v1/admin/usage", {**asked, "page": page})
        rows += rows_of(found, "rows")
        page = found.get("next_page") if isinstance(found, dict) else None
        if page is None:
            return rows
    raise Refusal("The ledger has more rows than can be compared. Narrow it by --from and --to.")


def _sum(amounts: Mapping[Key, Decimal]) -> Decimal:
    total = Decimal(0)
    for amount in amounts.values():
        total = _EXACT.add(total, amount)
    return total
