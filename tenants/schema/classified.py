"""What every column of text or bytes can say of somebody: the one list by which people and tenants are renamed.

A column that is not here fails a test, so that whoever adds one decides.  Refuses to know: how a name is
replaced (`pseudonyms`, `deletion`).  Source: DESIGN.md, settled question 19.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final


class Says(Enum):
    TENANT = auto()
    PROJECT = auto()  # a name of the tenant's choosing
    ISSUER = auto()  # an identity provider's address may name the tenant
    PERSON = auto()  # a user's name at an issuer
    ACCOUNT = auto()  # spells tenant, project or person (`scopes`), by the scope beside it
    PAYLOAD = auto()  # JSON with an account in it
    ACTOR = auto()  # who did it, as issuer:user
    SUBJECT = auto()  # to whom or what it was done
    WORDS = auto()  # what a person wrote
    TAGS = (
        auto()
    )  # what costs are filed under (`tags`): a client's may name people and go with them
    ACCESS = auto()  # a name by which somebody is let in or kept out: replaced, it would not be
    SEALED = auto()  # bytes that nobody reads without the tenant's secret
    DIGEST = auto()  # keyed, and meaningless without the root key
    OURS = auto()  # ids that we draw, closed sets, models, prices, numbers


class Fate(Enum):
    """Of a table's rows when their tenant is deleted."""

    RENAMED = auto()
    DROPPED = auto()
    ANOTHERS = auto()  # not of tenants


_DIMS = {
    "request_id": Says.OURS,
    "tenant": Says.TENANT,
    "project": Says.PROJECT,
    "user": Says.PERSON,
    "issuer": Says.ISSUER,
    "key_id": Says.OURS,
    "model": Says.OURS,
    "service_class": Says.OURS,
}
_BY_WHOM = {"actor": Says.ACTOR, "reason": Says.WORDS}

COLUMNS: Final[Mapping[str, Mapping[str, Says]]] = {
    "api_key": {
        "id": Says.OURS,
        "digest": Says.DIGEST,
        "tenant": Says.TENANT,
        "project": Says.PROJECT,
        "user": Says.PERSON,
        "name": Says.WORDS,
        "roles": Says.OURS,
        "groups": Says.ACCESS,
        "service_class": Says.OURS,
        "limits": Says.OURS,
        "replaced_by": Says.OURS,
        "tags": Says.TAGS,
    },
    "revocation": {
        "kind": Says.OURS,
        "tenant": Says.TENANT,
        "issuer": Says.ISSUER,
        "value": Says.ACCESS,
        **_BY_WHOM,
    },
    "suspension": {"tenant": Says.TENANT, **_BY_WHOM},
    "budget_override": {
        "tenant": Says.TENANT,
        "scope": Says.OURS,
        "issuer": Says.ISSUER,
        "name": Says.ACCESS,
        "budget": Says.OURS,
    },
    "change": {
        "tenant": Says.TENANT,
        "kind": Says.OURS,
        "subject": Says.SUBJECT,
        "detail": Says.OURS,
        **_BY_WHOM,
    },
    "tenant_secret": {"tenant": Says.TENANT, "root": Says.OURS, "wrapped": Says.SEALED},
    "idempotency": {
        "digest": Says.DIGEST,
        "tenant": Says.TENANT,
        "body": Says.DIGEST,
        "request_id": Says.OURS,
        "state": Says.OURS,
        "owner": Says.OURS,
        "sealed": Says.SEALED,
        "why": Says.OURS,
    },
    "response": {
        "id": Says.OURS,
        "tenant": Says.TENANT,
        "project": Says.PROJECT,
        "issuer": Says.ISSUER,
        "user": Says.PERSON,
        **dict.fromkeys(("model", "status", "previous", "owner"), Says.OURS),
        "sealed": Says.SEALED,
    },
    "price": {"id": Says.OURS, "model": Says.OURS, "batch_factor": Says.OURS},
    "budget_window": {
        "scope": Says.OURS,
        "account": Says.ACCOUNT,
        "window_id": Says.OURS,
        "notify": Says.OURS,
    },
    "reservation": {
        **_DIMS,
        "user_account": Says.ACCOUNT,
        "project_account": Says.ACCOUNT,
        "price_id": Says.OURS,
        "limited_by": Says.OURS,
        "over": Says.OURS,
        "state": Says.OURS,
        "owner": Says.OURS,
        "tags": Says.TAGS,
    },
    "reservation_tag": {
        "request_id": Says.OURS,
        "name": Says.TAGS,
        "value": Says.TAGS,
        "origin": Says.OURS,
        "tenant": Says.TENANT,
    },
    "ledger_entry": {
        "transfer_id": Says.OURS,
        "request_id": Says.OURS,
        "tenant": Says.TENANT,
        "kind": Says.OURS,
        "debit": Says.OURS,
        "credit": Says.OURS,
    },
    "adjustment": {
        "id": Says.OURS,
        "kind": Says.OURS,
        "tenant": Says.TENANT,
        "scope": Says.OURS,
        "account": Says.ACCOUNT,
        "request_id": Says.OURS,
        **_BY_WHOM,
    },
    "usage_event": dict.fromkeys(("request_id", "meter", "entry", "price_id"), Says.OURS),
    "request": {
        **_DIMS,
        **dict.fromkeys(("route", "outcome", "reason", "finish_reason", "trace"), Says.OURS),
        "device_start": Says.OURS,
    },
    "device_start": dict.fromkeys(("start", "model", "rule", "owner"), Says.OURS),
    "device_minute": dict.fromkeys(("start", "model", "rule", "coefficients"), Says.OURS),
    "outbox": {
        "id": Says.OURS,
        "kind": Says.OURS,
        "scope": Says.OURS,
        "account": Says.ACCOUNT,
        "window_id": Says.OURS,
        "payload": Says.PAYLOAD,
        "outcome": Says.OURS,
    },
    "period": {"name": Says.OURS, "sha256": Says.OURS, **_BY_WHOM},
    "period_gate": {},
    "period_seal": {
        **dict.fromkeys(("name", "old_sha256", "new_sha256"), Says.OURS),
        **_BY_WHOM,
    },
    "registration": {
        "id": Says.OURS,
        "kind": Says.OURS,
        "tenant": Says.TENANT,
        "issuer": Says.ISSUER,
        "owner": Says.PERSON,
    },
    "registration_text": {
        "id": Says.OURS,
        "sealed_text": Says.SEALED,
        "sealed_about": Says.SEALED,
        "tokens": Says.OURS,
    },
    "registration_reader": {
        "id": Says.OURS,
        "kind": Says.OURS,
        "issuer": Says.ISSUER,
        "name": Says.ACCESS,
    },
    "registration_state": {},
    "pseudonym_salt": {"tenant": Says.TENANT, "salt": Says.SEALED},
    "erasure": {
        "tenant": Says.TENANT,
        "issuer": Says.ISSUER,
        "user": Says.PERSON,
        "actor": Says.ACTOR,
    },
    "tenant_deletion": {
        "digest": Says.DIGEST,
        "pseudonym": Says.OURS,
        "tenant": Says.TENANT,
        "export_sha256": Says.OURS,
        **_BY_WHOM,
    },
}

FATES: Final[Mapping[str, Fate]] = {
    **dict.fromkeys(
        ("reservation", "request", "ledger_entry", "adjustment", "change"), Fate.RENAMED
    ),
    **dict.fromkeys(
        ("budget_window", "outbox", "reservation_tag"), Fate.DROPPED
    ),  # totals, and what was told of them
    **dict.fromkeys(
        ("api_key", "revocation", "suspension", "budget_override", "tenant_secret", "idempotency"),
        Fate.DROPPED,
    ),
    **dict.fromkeys(("registration", "registration_text", "registration_reader"), Fate.DROPPED),
    **dict.fromkeys(("pseudonym_salt", "erasure", "response"), Fate.DROPPED),
    "tenant_deletion": Fate.RENAMED,
    **dict.fromkeys(
        ("price", "usage_event", "period", "period_gate", "period_seal", "registration_state"),
        Fate.ANOTHERS,
    ),
    **dict.fromkeys(("device_start", "device_minute"), Fate.ANOTHERS),
}
