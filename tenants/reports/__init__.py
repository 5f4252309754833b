"""What was used and what it cost, read from the book.  Every cut sums to the ledger.

Refuses to know: who may see it (access), how it is printed.  Source: MONEY.md §1, invariant 9; §2.
"""

from __future__ import annotations

from tenants.reports.cuts import Asked, Cut, UsageRow, cut, total, usage_rows
from tenants.reports.explained import Explanation, explain
from tenants.reports.facts import COLUMNS, FILTERS, TAG, is_tag, knows, spend

__all__ = [
    "COLUMNS",
    "FILTERS",
    "TAG",
    "Asked",
    "Cut",
    "Explanation",
    "UsageRow",
    "cut",
    "explain",
    "is_tag",
    "knows",
    "spend",
    "total",
    "usage_rows",
]
