"""Whose accounts there are: the issuers at which a user of one name has spent under a budget.

Refuses to know: which budgets stand (known), what is in an account (windows).
"""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, select

from tenants import schema

_W = schema.budget_window


def issuers(conn: Connection, tenant: str, user: str) -> tuple[str, ...]:
    """In order.  Read off the accounts, which are spelt tenant, issuer, user (`scopes.scope_id`)."""
    begins = msgspec.json.encode([tenant]).decode().removesuffix("]") + ","
    query = select(_W.c.account).where(
        _W.c.scope == "user", _W.c.account.startswith(begins, autoescape=True)
    )
    found = (
        msgspec.json.decode(account, type=list[str])
        for account in conn.execute(query.distinct()).scalars()
    )
    return tuple(sorted(each[1] for each in found if [each[0], *each[2:]] == [tenant, user]))
