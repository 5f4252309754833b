"""An export, driven: pages of the book, to rows, to bytes, to its manifest.

Refuses to know: HTTP.  Memory holds one page of lines whatever the book holds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial

from sqlalchemy import Connection

from tenants import closing, reports
from tenants.focus import devices
from tenants.focus.columns import columns_of
from tenants.focus.devices import PLATFORM
from tenants.focus.files import File, open_file
from tenants.focus.lines import GRAINS, Line, Place, device_by_model, next_span, page
from tenants.focus.manifest import Export, Manifest
from tenants.focus.rows import Row, Terms, row_of
from tenants.reports.facts import Slice
from tenants.store import Store


async def stream(store: Store, of: Export) -> AsyncIterator[bytes]:
    """The file.  Raises NoParquet before its first byte."""
    file = open_file(of.kind, columns_of(of.version))
    terms = await _terms(store, of)
    async for _, data in _written(store, of, terms, file):
        yield data


async def manifest(store: Store, of: Export) -> dict[str, object]:
    """What `stream` sends for the same question, summed and hashed."""
    file, found = open_file(of.kind, columns_of(of.version)), Manifest()
    terms = await _terms(store, of)
    async for rows, data in _written(store, of, terms, file):
        found.take_rows(rows)
        found.take_bytes(data)
    kept = await store.read(lambda conn: closing.find(conn, of.period.name))
    ledger = await store.read(
        partial(
            reports.spend,
            from_ms=of.period.start_ms,
            to_ms=of.period.end_ms,
            tenant=of.tenant,
            posted_before_ms=of.as_of_ms,
        )
    )
    rules = await store.read(partial(devices.rules, of=_month(of))) if of.splits_devices else {}
    return found.told(
        of,
        device_rules=sorted(set(rules.values())),
        escaped=file.escaped,
        period_sha256=kept.sha256 if kept is not None and terms.final else None,
        ledger_nano_usd=ledger,
    )


async def _terms(store: Store, of: Export) -> Terms:
    kept = await store.read(lambda conn: closing.find(conn, of.period.name))
    return Terms(
        period=of.period,
        span_ms=GRAINS[of.grain],
        final=of.as_of_ms is None and kept is not None and kept.sha256 is not None,
        operator=of.operator,
        host=of.host,
        device=of.device,
    )


async def _written(
    store: Store, of: Export, terms: Terms, file: File
) -> AsyncIterator[tuple[list[Row], bytes]]:
    async for rows in _rows(store, of, terms):
        yield rows, await asyncio.to_thread(file.rows, rows)
    yield [], await asyncio.to_thread(file.end)


async def _rows(store: Store, of: Export, terms: Terms) -> AsyncIterator[list[Row]]:
    """Span by span, so that one reading looks at little and others are heard between two.  What is nobody's
    comes after what is somebody's."""
    month = _month(of)
    rules = await store.read(partial(devices.rules, of=month)) if of.splits_devices else {}
    while (span := await store.read(partial(_next_span, of=month, export=of))) is not None:
        nobodys, allocation = await store.read(partial(_devices, of=span, export=of, rules=rules))
        after: Place | None = None
        while True:
            read = partial(_page, of=span, after=after, since_ms=of.period.start_ms)
            lines, after = await store.read(read)
            if lines:
                yield [_row(line, terms, allocation) for line in lines]
            if after is None:
                break
        if nobodys:
            yield [
                devices.device_row(line, terms)
                | allocation.columns(line.model, line.device_ns, (PLATFORM, line.account))
                for line in nobodys
            ]
        month = replace(month, from_ms=span.to_ms)


def _month(of: Export) -> Slice:
    return Slice(
        from_ms=of.period.start_ms,
        to_ms=of.period.end_ms,
        tenant=of.tenant,
        posted_before_ms=of.as_of_ms,
    )


def _row(line: Line, terms: Terms, allocation: devices.Allocation) -> Row:
    row = row_of(line, terms)
    to = (line.tenant, line.project, line.issuer, line.user, line.key_id)
    return row | allocation.columns(line.model, line.device_ns, to, row["Tags"])


def _next_span(conn: Connection, *, of: Slice, export: Export) -> Slice | None:
    """With anything in it, be it nobody's."""
    found = next_span(conn, of, export.grain)
    first_ms = devices.first_ms(conn, of) if export.splits_devices else None
    if first_ms is None or (found is not None and found.from_ms <= first_ms):
        return found
    length_ms = GRAINS[export.grain]
    start_ms = first_ms // length_ms * length_ms
    return replace(of, from_ms=start_ms, to_ms=start_ms + length_ms)


def _devices(
    conn: Connection, *, of: Slice, export: Export, rules: Mapping[str, str]
) -> tuple[list[devices.DeviceLine], devices.Allocation]:
    if not export.splits_devices:
        return [], devices.Allocation({}, {})
    nobodys, totals = devices.lines(conn, of), Counter(device_by_model(conn, of))
    for line in nobodys:
        totals[line.model] += line.device_ns
    return nobodys, devices.Allocation(totals, rules)


def _page(
    conn: Connection, *, of: Slice, after: Place | None, since_ms: int
) -> tuple[list[Line], Place | None]:
    return page(conn, of, after, since_ms=since_ms)
