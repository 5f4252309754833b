"""What is kept, counted for who lists: by whose it is and of which kind its labels are, or by label.

Refuses to know: what a kind means, token ids, keys; no chain value leaves here.  Source: SECURITY.md §2
(Audit-safe metadata).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from executor.contract_cache import KEPT_MAX, Kept, Listed, ListKept
from executor.prefix_cache import Entry, PrefixCache


def listed(order: ListKept, cache: PrefixCache) -> Listed:
    groups: dict[tuple[str, str, bytes], list[Entry]] = defaultdict(list)
    for owner, entry in cache.listed(order.owner):
        groups[owner, entry.kind, entry.label if order.by_label else b""].append(entry)
    rows = [
        _counted(owner, kind, label, entries, cache.now_ns)
        for (owner, kind, label), entries in groups.items()
    ]
    rows.sort(key=lambda each: (-each.blocks, each.owner, each.kind, each.label))
    left_out = max(0, len(rows) - KEPT_MAX)
    return Listed(number=order.number, rows=tuple(rows[:KEPT_MAX]), left_out=left_out)


def _counted(owner: str, kind: str, label: bytes, entries: Iterable[Entry], now_ns: int) -> Kept:
    found = list(entries)
    oldest_ns = min(entry.created_ns for entry in found)
    return Kept(
        owner=owner,
        kind=kind,
        label=label,
        labels=len({entry.label for entry in found}),
        blocks=len(found),
        pinned=sum(entry.pinned for entry in found),
        oldest_ms=(now_ns - oldest_ns) // 1_000_000,
    )
