"""The price list as it is kept: a row each, immutable, carried by its id on every line.

Refuses to know: which price applies when (`policies.price`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, select

from policies.facts import Price
from tenants import schema
from tenants.asks import BookFault
from tenants.sql import insert_new, within

_P = schema.price
_FIND = select(_P).where(within(_P.c.id, "ids"))


def keep(conn: Connection, prices: Iterable[Price]) -> None:
    """BookFault where an id was used with other numbers."""
    kept = tuple(prices)
    found = known(conn, kept, (), {})
    for price in kept:
        if fault := differs(found, price):
            raise fault


def known(
    conn: Connection, asked: Iterable[Price], ids: Iterable[str], published: Mapping[str, Price]
) -> dict[str, Price]:
    """The prices of `ids`, and of those `asked` for, which are kept where they are new."""
    wanted = {price.id: price for price in asked}
    there = {each: published[each] for each in (*wanted, *ids) if each in published}
    if missing := sorted({*wanted, *ids} - set(there)):
        there |= _find(conn, missing)
        if new := [price for each, price in wanted.items() if each not in there]:
            insert_new(conn, _P, [_row(price) for price in new])
            there |= _find(conn, sorted(price.id for price in new))
    return there


def differs(found: Mapping[str, Price], price: Price) -> BookFault | None:
    if found[price.id] == price:
        return None
    return BookFault(
        f"price {price.id!r} is already in effect with other numbers; "
        "leave it as it was and add a new one with a later date"
    )


def _find(conn: Connection, ids: Sequence[str]) -> dict[str, Price]:
    return {row["id"]: _price(row) for row in conn.execute(_FIND, {"ids": ids}).mappings()}


def _row(price: Price) -> dict[str, Any]:
    return asdict(price) | {"batch_factor": repr(price.batch_factor)}


def _price(row: Mapping[Any, Any]) -> Price:
    return Price(**dict(row) | {"batch_factor": float(row["batch_factor"])})
