"""An export, driven: pages of the book, to rows, to bytes, to its manifest.

Refuses to know: HTTP.  Memory holds one page of lines whatever the book holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

from sqlalchemy import Connection

from tenants import closing, reports
from tenants.focus.columns import columns_of
from tenants.focus.files import File, open_file
from tenants.focus.lines import GRAINS, Line, Place, next_span, page
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
    return found.told(
        of,
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
    async for lines in _lines(store, of):
        rows = [row_of(line, terms) for line in lines]
        yield rows, await asyncio.to_thread(file.rows, rows)
    yield [], await asyncio.to_thread(file.end)


async def _lines(store: Store, of: Export) -> AsyncIterator[list[Line]]:
    """Span by span, so that one reading looks at little and others are heard between two."""
    month = Slice(
        from_ms=of.period.start_ms,
        to_ms=of.period.end_ms,
        tenant=of.tenant,
        posted_before_ms=of.as_of_ms,
    )
    while (span := await store.read(partial(_next_span, of=month, grain=of.grain))) is not None:
        after: Place | None = None
        while True:
            read = partial(_page, of=span, after=after, since_ms=of.period.start_ms)
            lines, after = await store.read(read)
            if lines:
                yield lines
            if after is None:
                break
        month = replace(month, from_ms=span.to_ms)


def _next_span(conn: Connection, *, of: Slice, grain: str) -> Slice | None:
    return next_span(conn, of, grain)


def _page(
    conn: Connection, *, of: Slice, after: Place | None, since_ms: int
) -> tuple[list[Line], Place | None]:
    return page(conn, of, after, since_ms=since_ms)
