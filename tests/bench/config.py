"""The production configuration that a bench runs: every gate of the line closed, none in the way.

Each limit exists (its bucket, lease and budget are taken for every request) and is too large to
refuse the bench's own load.  Its class promises no first token, unlike that of the example: a burst of
one tenant would be refused for its own backlog, and a bench would measure refusals.  Field for field as
lockgate.example.toml.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.bench.issuer import AUDIENCE, ISSUER

MODEL = "smollm2-135m"
TENANTS = ("acme", "globex")


@dataclass(frozen=True, slots=True)
class Plan:
    """What the two tenants may use.  Numbers are a tenant's and, alike, each user's."""

    rpm: int = 1_000_000
    tokens_per_minute: int = 1_000_000_000
    concurrent: int = 1_024
    budget_usd: str = "1000000.00"


def toml(
    *,
    state_dir: Path,
    jwks: Path,
    port: int,
    admin_port: int,
    numerics: str = "fast",
    kv_memory: str = "auto",
    plan: Plan = Plan(),
    more: str = "",
) -> str:
    """`more`: tables that stand behind these."""
    tenants = "\n".join(f'[tenants.{name}]\nplan = "bench"' for name in TENANTS)
    return f"""\
[listen]
public = "127.0.0.1:{port}"
admin = "127.0.0.1:{admin_port}"
hosts = ["127.0.0.1", "localhost"]
drain_s = 10

[state]
dir = "{state_dir}"
database_url = "sqlite:///{state_dir}/lockgate.db"
root_key_file = "{state_dir}/root.key"

[[models]]
name = "{MODEL}"
path = "{MODEL}"
numerics = "{numerics}"
kv_memory = "{kv_memory}"

[[prices]]
model = "{MODEL}"
effective = 2026-10-01T00:00:00Z
input = 200_000_000
cached_input = 50_000_000
cache_write = 200_000_000
output = 600_000_000

[[issuers]]
issuer = "{ISSUER}"
audience = "{AUDIENCE}"
algorithms = ["ES256"]
jwks = "{jwks}"
claims = {{ tenant = "org", user = "sub", roles = "roles" }}

[classes.interactive]
weight = 1.0

[plans.bench]
models = ["{MODEL}"]
classes = ["interactive"]
limits = {{ rpm = {plan.rpm}, input_tpm = {plan.tokens_per_minute}, output_tpm = {plan.tokens_per_minute}, concurrent = {plan.concurrent} }}
user_limits = {{ rpm = {plan.rpm}, input_tpm = {plan.tokens_per_minute}, output_tpm = {plan.tokens_per_minute}, concurrent = {plan.concurrent} }}
budget = {{ usd = "{plan.budget_usd}", window = "calendar_month", hard = true }}

{tenants}
{more}
"""
