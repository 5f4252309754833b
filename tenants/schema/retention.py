"""What is to be forgotten and what was: salts of pseudonyms, people who are to be renamed, tenants that were
deleted, months that were sealed anew."""

from __future__ import annotations

from sqlalchemy import Column, Integer, LargeBinary, Table

from tenants.schema.columns import metadata, text, text_or_none, whole, whole_or_none

pseudonym_salt = Table(
    "pseudonym_salt",
    metadata,
    text("tenant", primary_key=True),
    Column("salt", LargeBinary, nullable=False),
)

erasure = Table(
    "erasure",
    metadata,
    text("tenant", primary_key=True),
    text("issuer", primary_key=True),
    text("user", primary_key=True),
    whole("at_ms"),
    text("actor"),
)

tenant_deletion = Table(
    "tenant_deletion",
    metadata,
    text("digest", primary_key=True),
    text("pseudonym"),
    text_or_none("tenant"),
    text_or_none("export_sha256"),
    whole("at_ms"),
    whole_or_none("ended_at_ms"),
    text("actor"),
    text("reason"),
)

period_seal = Table(
    "period_seal",
    metadata,
    text("name", primary_key=True),
    Column("number", Integer, primary_key=True),
    whole("at_ms"),
    text("old_sha256"),
    text("new_sha256"),
    whole("changed"),
    whole("entries"),
    whole("lines"),
    whole("spend_nano_usd"),
    text("actor"),
    text("reason"),
)
