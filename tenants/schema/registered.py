"""The tables of registered texts."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, Integer, LargeBinary, Table

from tenants.schema.columns import metadata, text, text_or_none, whole, whole_or_none

registration = Table(
    "registration",
    metadata,
    text("id", primary_key=True),
    text("kind"),
    text_or_none("tenant"),
    text("issuer"),
    text("owner"),
    Column("content_version", Integer, nullable=False),
    Column("acl_version", Integer, nullable=False),
    whole("created_at_s"),
    whole("changed_at_s"),
    whole_or_none("expires_at_s"),
    whole_or_none("deleted_at_s"),
    CheckConstraint("kind IN ('document','template')", name="known_kind"),
    CheckConstraint("kind = 'template' OR tenant IS NOT NULL", name="only_templates_are_public"),
    Index("registration_tenant", "tenant", "kind"),
)

registration_text = Table(
    "registration_text",
    metadata,
    text("id", primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("sealed_text", LargeBinary, nullable=False),
    Column("sealed_about", LargeBinary, nullable=False),
    text("tokens"),
)

registration_reader = Table(
    "registration_reader",
    metadata,
    text("id", primary_key=True),
    text("kind", primary_key=True),
    text("issuer", primary_key=True),
    text("name", primary_key=True),
    CheckConstraint("kind IN ('user','group','role')", name="known_reader"),
)

registration_state = Table(
    "registration_state",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    whole("generation"),
)
