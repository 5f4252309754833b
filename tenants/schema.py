"""The tables of the book, the directory and the registered texts, and how a database comes to have them.

Refuses to know: what the rows mean (ledger, directory).  Source: MONEY.md §1 ("Tables").
Money is BIGINT nano-USD; times are integers of the database's own clock; no floats but weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    insert,
    inspect,
    select,
    update,
)

metadata = MetaData()

schema_version = Table("schema_version", metadata, Column("version", Integer, nullable=False))


def _money(name: str, *, default: int | None = None) -> Column[int]:
    return Column(name, BigInteger, nullable=False, default=default)


def _text(name: str, *, primary_key: bool = False) -> Column[str]:
    return Column(name, Text, nullable=False, primary_key=primary_key)


def _maybe(name: str) -> Column[str]:
    return Column(name, Text)


price = Table(
    "price",
    metadata,
    _text("id", primary_key=True),
    _text("model"),
    _money("effective_s"),
    _money("input"),
    _money("cached_input"),
    _money("cache_write"),
    _money("output"),
    _text("batch_factor"),
)

budget_window = Table(
    "budget_window",
    metadata,
    _text("scope", primary_key=True),
    _text("account", primary_key=True),
    _text("window_id", primary_key=True),
    _money("start_s"),
    Column("end_s", BigInteger),
    _money("limit_nano_usd"),
    Column("hard", Boolean, nullable=False),
    _money("spent"),
    _money("held"),
    CheckConstraint("spent >= 0 AND held >= 0", name="no_negative_balance"),
)

reservation = Table(
    "reservation",
    metadata,
    _text("request_id", primary_key=True),
    _text("tenant"),
    _maybe("project"),
    _text("user"),
    _text("issuer"),
    _maybe("key_id"),
    _text("model"),
    _maybe("service_class"),
    _text("user_account"),
    _maybe("project_account"),
    _text("price_id"),
    _money("prompt_tokens"),
    _money("output_tokens"),
    Column("n", Integer, nullable=False),
    _maybe("limited_by"),
    _text("over"),
    _money("amount"),
    _money("charge"),
    _text("state"),
    Column("estimated", Boolean, nullable=False),
    Column("dispatched", Boolean, nullable=False),
    _text("owner"),
    _money("at_ms"),
    _money("lease_until_ms"),
    Column("ended_at_ms", BigInteger),
    CheckConstraint("state IN ('HELD','SETTLED','VOIDED','EXPIRED')", name="known_state"),
    CheckConstraint("amount >= 0 AND charge >= 0", name="no_negative_amount"),
    Index("reservation_tenant", "tenant", "at_ms"),
    Index("reservation_user", "user_account", "at_ms"),
    Index("reservation_project", "project_account", "at_ms"),
    Index("reservation_key", "key_id", "at_ms"),
    Index("reservation_open", "state", "lease_until_ms"),
)

reservation_window = Table(
    "reservation_window",
    metadata,
    _text("request_id", primary_key=True),
    _text("scope", primary_key=True),
    _text("account", primary_key=True),
    _text("window_id", primary_key=True),
)

ledger_entry = Table(
    "ledger_entry",
    metadata,
    _text("transfer_id", primary_key=True),
    _text("request_id"),
    _text("tenant"),
    _text("kind"),
    _text("debit"),
    _text("credit"),
    _money("amount"),
    _money("at_ms"),
    _money("effective_ms"),
    CheckConstraint("amount > 0 AND debit <> credit", name="a_transfer_moves"),
    Index("ledger_request", "request_id"),
    Index("ledger_tenant", "tenant", "effective_ms"),
)

usage_event = Table(
    "usage_event",
    metadata,
    _text("request_id", primary_key=True),
    Column("attempt", Integer, primary_key=True),
    _text("meter", primary_key=True),
    _text("entry", primary_key=True),
    _money("tokens"),
    _text("price_id"),
    _money("unit_price"),
    _money("nano_usd"),
    _money("at_ms"),
)

request = Table(
    "request",
    metadata,
    _text("request_id", primary_key=True),
    _text("tenant"),
    _maybe("project"),
    _text("user"),
    _text("issuer"),
    _maybe("key_id"),
    _text("model"),
    _maybe("service_class"),
    _text("route"),
    _money("received_at_ms"),
    _text("outcome"),
    _maybe("reason"),
    _maybe("finish_reason"),
    _money("prompt_tokens"),
    _money("output_tokens"),
    _money("generated_tokens"),
    _money("delivered_tokens"),
    _money("admitted_ns"),
    _money("queued_ns"),
    _money("prefill_ns"),
    _money("decode_ns"),
    _money("total_ns"),
    _money("device_ns"),
    _money("recomputed_ns"),
    Column("preemptions", Integer, nullable=False),
    _text("trace"),
    Index("request_tenant", "tenant", "received_at_ms"),
)

api_key = Table(
    "api_key",
    metadata,
    _text("id", primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    _text("tenant"),
    _maybe("project"),
    _text("user"),
    _text("name"),
    _text("roles"),
    _text("groups"),
    _maybe("service_class"),
    _text("limits"),
    _money("created_at_s"),
    Column("expires_at_s", BigInteger),
    Column("revoked_at_s", BigInteger),
    _maybe("replaced_by"),
    UniqueConstraint("digest", name="one_key_a_digest"),
    Index("api_key_tenant", "tenant"),
)

revocation = Table(
    "revocation",
    metadata,
    _text("kind", primary_key=True),
    _text("tenant", primary_key=True),
    _text("issuer", primary_key=True),
    _text("value", primary_key=True),
    _money("at_s"),
    _money("until_s"),
    _text("actor"),
    _text("reason"),
)

suspension = Table(
    "suspension",
    metadata,
    _text("tenant", primary_key=True),
    _money("at_s"),
    _text("actor"),
    _text("reason"),
)

budget_override = Table(
    "budget_override",
    metadata,
    _text("tenant", primary_key=True),
    _text("scope", primary_key=True),
    _text("issuer", primary_key=True),
    _text("name", primary_key=True),
    _text("budget"),
)

change = Table(
    "change",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    _money("at_s"),
    _text("tenant"),
    _text("kind"),
    _text("subject"),
    _text("detail"),
    _text("actor"),
    _text("reason"),
    Index("change_tenant", "tenant", "at_s"),
)

tenant_secret = Table(
    "tenant_secret",
    metadata,
    _text("tenant", primary_key=True),
    Column("version", Integer, primary_key=True),
    _text("root"),
    Column("wrapped", LargeBinary, nullable=False),
)

registration = Table(
    "registration",
    metadata,
    _text("id", primary_key=True),
    _text("kind"),
    _maybe("tenant"),
    _text("issuer"),
    _text("owner"),
    Column("content_version", Integer, nullable=False),
    Column("acl_version", Integer, nullable=False),
    _money("created_at_s"),
    _money("changed_at_s"),
    Column("expires_at_s", BigInteger),
    Column("deleted_at_s", BigInteger),
    CheckConstraint("kind IN ('document','template')", name="known_kind"),
    CheckConstraint("kind = 'template' OR tenant IS NOT NULL", name="only_templates_are_public"),
    Index("registration_tenant", "tenant", "kind"),
)

registration_text = Table(
    "registration_text",
    metadata,
    _text("id", primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("sealed_text", LargeBinary, nullable=False),
    Column("sealed_about", LargeBinary, nullable=False),
    _text("tokens"),
)

registration_reader = Table(
    "registration_reader",
    metadata,
    _text("id", primary_key=True),
    _text("kind", primary_key=True),
    _text("issuer", primary_key=True),
    _text("name", primary_key=True),
    CheckConstraint("kind IN ('user','group','role')", name="known_reader"),
)

registration_state = Table(
    "registration_state",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("generation", BigInteger, nullable=False),
)

VERSION = 3


def _registrations(conn: Connection) -> None:
    for each in (registration, registration_text, registration_reader, registration_state):
        each.create(conn)


MIGRATIONS: Mapping[int, Callable[[Connection], None]] = {
    2: tenant_secret.create,
    3: _registrations,
}
"""From version n-1 to n, for databases made before.  A fresh one is made at `VERSION` at once."""


class SchemaMismatch(Exception):
    """The database holds something else than this program wrote, or than this version can read."""


def check(conn: Connection) -> int | None:
    """The schema version found, None for an empty database.  Touches nothing.
    SchemaMismatch where it was written by another program, or by a newer version of this one."""
    tables = set(inspect(conn).get_table_names())
    if not tables:
        return None
    if schema_version.name not in tables:
        raise SchemaMismatch("holds tables of another program; name a file of Lockgate's own")
    version: int | None = conn.execute(select(schema_version.c.version)).scalar_one_or_none()
    if version is None or version > VERSION:
        raise SchemaMismatch(
            f"has schema version {version}; this program reads up to {VERSION}: run the newer program"
        )
    missing = set(metadata.tables) - tables
    if missing and version == VERSION:
        raise SchemaMismatch(f"lacks the tables {sorted(missing)}: restore it from a backup")
    return version


def prepare(conn: Connection) -> None:
    """Make the tables, or bring them up to date."""
    version = check(conn)
    if version is None:
        metadata.create_all(conn)
        conn.execute(insert(schema_version).values(version=VERSION))
        return
    for step in range(version + 1, VERSION + 1):
        MIGRATIONS[step](conn)
        conn.execute(update(schema_version).values(version=step))
