"""Why a store is not opened."""

from __future__ import annotations


class StoreRefused(Exception):
    """The store cannot be opened at all; says what was found, what was expected, what to do."""
