"""What finance is shown, as plain objects ready for JSON.  Pure translations.

Device time is the operator's to see (DESIGN.md, settled question 5).  Times are UTC.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from gateway.api.wire import check_line
from gateway.errors import invalid
from gateway.views import when
from policies.price import in_usd
from tenants.device_sums import DeviceRow
from tenants.finance import Closed, Month, Reconciliation, Seal, State
from tenants.reconcile import NAMED_MOST
from tenants.reports import Cut, UsageRow
from tenants.resealing import Resealed, chained

SPANS = {
    "minute": "%Y-%m-%dT%H:%MZ",
    "hour": "%Y-%m-%dT%H:00Z",
    "day": "%Y-%m-%d",
    "month": "%Y-%m",
}
OVERLAPPING = frozenset({"meter", "price"})
"""Dimensions of which one request may have several."""
PAGE_CHARS_MAX = 8192
NOTHING = UsageRow(
    group={},
    requests=0,
    estimated=0,
    input_tokens=0,
    cached_input_tokens=0,
    cache_write_tokens=0,
    output_tokens=0,
    nano_usd=0,
    estimated_nano_usd=0,
    adjustment_nano_usd=0,
    device_ns=0,
)

Place = tuple[str | int | None, ...]


def usage_view(
    found: Cut, total: UsageRow | None, by: Sequence[str], *, cost: bool
) -> dict[str, object]:
    """`total` is that of all pages, whatever they are grouped by.  `requests_overlap`: one request may count
    in several rows, so their `requests` come to more than the total's."""
    view: dict[str, object] = {
        "rows": [{**_group(row), **_numbers(row, cost=cost)} for row in found.rows],
        "total": _numbers(total or NOTHING, cost=cost),
        "requests_overlap": not OVERLAPPING.isdisjoint(by),
    }
    if found.next is not None:
        view["next_page"] = page_of(found.next)
    return view


def _group(row: UsageRow) -> dict[str, object]:
    return {
        name: _span(name, value) if isinstance(value, int) else value
        for name, value in row.group.items()
    }


def _span(name: str, start_ms: int) -> str:
    return datetime.fromtimestamp(start_ms // 1000, UTC).strftime(SPANS[name])


def _numbers(row: UsageRow, *, cost: bool) -> dict[str, object]:
    numbers: dict[str, object] = {
        "requests": row.requests,
        "estimated": row.estimated,
        "input_tokens": row.input_tokens,
        "cached_input_tokens": row.cached_input_tokens,
        "cache_write_tokens": row.cache_write_tokens,
        "output_tokens": row.output_tokens,
        "nano_usd": row.nano_usd,
        "usd": in_usd(row.nano_usd),
        "estimated_usd": in_usd(row.estimated_nano_usd),
        "adjustment_usd": in_usd(row.adjustment_nano_usd),
    }
    if cost and row.device_ns is not None:
        numbers["device_ns"] = row.device_ns
    return numbers


def device_view(rows: Sequence[DeviceRow], total: DeviceRow) -> dict[str, object]:
    """Nanoseconds of devices: in each row the wall clock's are all the others together."""
    return {
        "rows": [
            {
                **{
                    name: _span(name, value) if isinstance(value, int) else value
                    for name, value in row.group.items()
                },
                **_times(row),
            }
            for row in rows
        ],
        "total": _times(total),
    }


def _times(row: DeviceRow) -> dict[str, object]:
    return {
        "wall_ns": row.wall_ns,
        "attributed_ns": row.attributed_ns,
        **{f"{kind}_ns": time_ns for kind, time_ns in row.overhead_ns.items()},
        "idle_ns": row.idle_ns,
    }


def page_of(place: Place) -> str:
    """Where a reading goes on, as one word for a query."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def place_of(page: str | None) -> Place | None:
    """Raises ApiError 400."""
    if page is None:
        return None
    try:
        raw = base64.urlsafe_b64decode(page[:PAGE_CHARS_MAX] + "=" * (-len(page) % 4))
        place = tuple(msgspec.json.decode(raw, type=list[str | int | None]))
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError) as why:
        raise invalid("'page' is not one that 'next_page' told.", param="page") from why
    for each in place:
        if isinstance(each, str):
            check_line(each, "page")
    return place


def periods_view(
    found: Sequence[tuple[Month, State, Closed | None]], *, hashes: bool
) -> dict[str, object]:
    """`hashes`: a month's sums are of all tenants, so a tenant sees its state alone."""
    return {
        "periods": [
            {
                "period": period.name,
                "state": state.value,
                "closable_at": when(period.closable_ms),
                **({} if shut is None or not hashes else closed_view(shut)),
            }
            for period, state, shut in found
        ]
    }


def closed_view(shut: Closed) -> dict[str, object]:
    return {
        "period": shut.name,
        "closed_at": None if shut.closed_at_ms is None else when(shut.closed_at_ms),
        "sha256": shut.sha256,
        "entries": shut.entries,
        "lines": shut.lines,
        "usd": None if shut.spend_nano_usd is None else in_usd(shut.spend_nano_usd),
        "actor": shut.actor,
        "reason": shut.reason,
    }


def verified_view(kept: Closed, now: Seal, links: Sequence[Resealed] = ()) -> dict[str, object]:
    """`seals`: what it was sealed with before, each link from the one before to the one after."""
    whole = chained(links, kept.sha256)
    return {
        "period": kept.name,
        "agrees": kept.sha256 == now.sha256 and whole,
        "seals": [
            {
                "at": when(each.at_ms),
                "old_sha256": each.old_sha256,
                "new_sha256": each.new_sha256,
                "renamed": each.changed,
                "usd": in_usd(each.spend_nano_usd),
                "actor": each.actor,
                "reason": each.reason,
            }
            for each in links
        ],
        "kept": {
            "sha256": kept.sha256,
            "entries": kept.entries,
            "lines": kept.lines,
            "usd": in_usd(kept.spend_nano_usd or 0),
        },
        "now": {
            "sha256": now.sha256,
            "entries": now.entries,
            "lines": now.lines,
            "usd": in_usd(now.spend_nano_usd),
        },
    }


def reconciliation_view(done: Reconciliation) -> dict[str, object]:
    """`agrees` is everything together."""
    count, found, device = done.count, done.found, done.device
    return {
        "agrees": done.requests_agree and done.ledger_agrees and device.agree,
        "requests": {
            "agrees": done.requests_agree,
            "admitted": count.admitted,
            "settled": count.settled,
            "voided": count.voided,
            "expired": count.expired,
            "open": count.open,
            "whose_sums_differ": found.request_faults,
        },
        "ledger": {
            "agrees": done.ledger_agrees,
            "lines": found.lines,
            "lines_off_their_price": found.line_faults,
            "lines_usd": in_usd(found.line_nano_usd),
            "by_hand_usd": in_usd(done.by_hand_nano_usd),
            "ledger_usd": in_usd(done.ledger_nano_usd),
        },
        "device_time": {
            "agrees": device.agree,
            "starts": device.starts,
            "running": device.running,
            **_times(device.sums),
            "requests_ns": device.requests_ns,
            "in_flight_ns": device.in_flight_ns,
            "difference_ns": device.difference_ns,
        },
        "disagreements": [*found.named, *device.named][:NAMED_MOST],
    }
