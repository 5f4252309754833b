"""Reading groups on from where one stopped: their order, and a place in it.

Refuses to know: what is grouped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Integer, case, func, literal, literal_column

FOREIGN = "the cursor belongs to another question"


def ordered(key: ColumnElement[Any]) -> tuple[ColumnElement[Any], ...]:
    """Two keys for one, since databases differ in where what is absent stands."""
    if isinstance(key.type, Integer):
        return (key,)
    return case((key.is_(None), 0), else_=1), func.coalesce(key, literal_column("''"))


def place(
    keys: Mapping[str, ColumnElement[Any]], after: tuple[str | int | None, ...]
) -> list[ColumnElement[Any]]:
    """After the group of these values.  ValueError where they are no group of these keys."""
    if len(after) != len(keys):
        raise ValueError(FOREIGN)
    found: list[ColumnElement[Any]] = []
    for key, value in zip(keys.values(), after, strict=True):
        if isinstance(key.type, Integer):
            if not (isinstance(value, int) and 0 <= value < 2**63):
                raise ValueError(FOREIGN)
            found.append(literal(value, BigInteger))
        else:
            if not (value is None or isinstance(value, str)):
                raise ValueError(FOREIGN)
            found += [literal(0 if value is None else 1), literal(value or "")]
    return found
