"""The accounts under which a reservation is counted.

Refuses to know: what is counted there (windows).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from tenants import schema, tags
from tenants.scopes import SCOPES, TAG
from tenants.sql import Find, within

_K = schema.api_key


class Place(NamedTuple):
    """An account: what a budget is kept for."""

    scope: str
    account: str


# Built once: putting a statement together costs more than running it.
_NEXT = Find(select(_K.c.id, _K.c.replaced_by).where(within(_K.c.id, "ids")))


def places_of(row: Mapping[Any, Any], keys: Mapping[str, tuple[str, ...]]) -> list[Place]:
    """The accounts under which a reservation is counted."""
    found = [Place("key", key) for key in keys.get(row["key_id"], ())]
    accounts = (row["user_account"], row["project_account"], row["tenant"])
    found += [
        Place(scope, account)
        for scope, account in zip(SCOPES[1:], accounts, strict=True)
        if account is not None
    ]
    if row["tags"] is not None:
        found += [Place(TAG, account) for account in tags.accounts(row["tenant"], row["tags"])]
    return found


def successors(conn: Connection, key_ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Each key with those that replaced it: what was reserved by a key that was rotated is spent under
    its successor's budget too."""
    next_of: dict[str, str | None] = {}
    asked = set(key_ids)
    while asked:
        found = {row["id"]: row["replaced_by"] for row in _NEXT.rows(conn, {"ids": sorted(asked)})}
        next_of |= found
        asked = set(filter(None, found.values())) - set(next_of)
    chains = {}
    for key_id in set(key_ids):
        chain = [key_id]
        while (after := next_of.get(chain[-1])) and after not in chain:
            chain.append(after)
        chains[key_id] = tuple(chain)
    return chains
