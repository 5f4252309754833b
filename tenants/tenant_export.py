"""All that is kept of one tenant, as JSON lines: taken out before it is deleted.

    {"lockgate_export": 1, "tenant": …}
    {"table": …, "row": {…}}            by table, in the order of their keys
    {"end": true, "rows": {table: count}}

What is sealed, a digest or a secret is not in it, and no text: its tenant has those.  Read a page at a time; the same
rows make the same bytes.  Refuses to know: where it is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

import msgspec
from sqlalchemy import Column, Connection, Select, Table, select, tuple_

from tenants import schema
from tenants.schema.classified import COLUMNS, Says
from tenants.store import Store

PAGE: Final = 1000
_R, _D = schema.reservation, schema.registration
_SECRET = {Says.SEALED, Says.DIGEST}
_OF_THE_TENANT: Final = (
    *(schema.reservation, schema.request, schema.ledger_entry, schema.adjustment, schema.change),
    *(schema.api_key, schema.budget_override, schema.revocation, schema.registration),
)
_OF_A_REQUEST: Final = (schema.usage_event,)
_OF_A_TEXT: Final = (schema.registration_reader,)
TABLES: Final = (*_OF_THE_TENANT, *_OF_A_REQUEST, *_OF_A_TEXT)


async def stream(store: Store, tenant: str) -> AsyncIterator[bytes]:
    yield _line({"lockgate_export": 1, "tenant": tenant})
    rows: dict[str, int] = {}
    for table in TABLES:
        count, after = 0, None
        while True:
            page = await store.read(partial(_page, table=table, tenant=tenant, after=after))
            if not page:
                break
            count += len(page)
            yield b"".join(_line({"table": _plain(table.name), "row": row}) for row in page)
            after = tuple(page[-1][column.name] for column in table.primary_key.columns)
        rows[_plain(table.name)] = count
    yield _line({"end": True, "rows": rows})


async def sha256(store: Store, tenant: str) -> str:
    """Of what `stream` gives."""
    hashed = hashlib.sha256()
    async for part in stream(store, tenant):
        hashed.update(part)
    return hashed.hexdigest()


def _line(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _plain(name: str) -> str:
    """SQLAlchemy's names are strings of a kind of its own."""
    return name.encode().decode()


def _page(
    conn: Connection, *, table: Table, tenant: str, after: tuple[Any, ...] | None
) -> list[dict[str, Any]]:
    says = COLUMNS[table.name]
    shown: list[Column[Any]] = [
        column for column in table.columns if says.get(column.name) not in _SECRET
    ]
    query: Select[Any] = select(*shown)
    if table in _OF_A_REQUEST:
        query = query.join(_R, _R.c.request_id == table.c.request_id)
        query = query.where(_R.c.tenant == tenant)
    elif table in _OF_A_TEXT:
        query = query.join(_D, _D.c.id == table.c.id).where(_D.c.tenant == tenant)
    else:
        query = query.where(table.c.tenant == tenant)
    keys = list(table.primary_key.columns)
    if after is not None:
        query = query.where(tuple_(*keys) > tuple_(*after))
    found = conn.execute(query.order_by(*keys).limit(PAGE))
    return [{_plain(name): value for name, value in row.items()} for row in found.mappings()]
