"""What the tables of the book have in common: one `metadata`, and the kinds of columns.

Money is BIGINT nano-USD; times are integers of the database's own clock; no floats but weights.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, MetaData, Text

metadata = MetaData()


def whole(name: str, *, primary_key: bool = False) -> Column[int]:
    """An amount, a count or a time, always there."""
    return Column(name, BigInteger, nullable=False, primary_key=primary_key)


def whole_or_none(name: str) -> Column[int]:
    return Column(name, BigInteger)


def text(name: str, *, primary_key: bool = False) -> Column[str]:
    return Column(name, Text, nullable=False, primary_key=primary_key)


def text_or_none(name: str) -> Column[str]:
    return Column(name, Text)
