"""The frozen facts that policies decide over.  Built by the gateway, complete once built."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """What a credential may do beyond asking a model.  Operators belong to no tenant."""

    TENANT_ADMIN = "tenant_admin"
    FINANCE = "finance"
    OPERATOR = "operator"
    OPERATOR_FINANCE = "operator_finance"
    OPERATOR_SECURITY = "operator_security"


class CredentialKind(StrEnum):
    TOKEN = "token"  # noqa: S105 — the name of a kind, no secret
    KEY = "key"


@dataclass(frozen=True, slots=True)
class Credential:
    """`id` is a key's public id or a token's `jti`: safe to store and show, never the secret."""

    kind: CredentialKind
    id: str | None
    expires_at_s: int | None = None
    issued_at_s: int | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking, as the authenticator established it.  `issuer` names the identity provider
    (or `lockgate:keys`), so equal subjects of two issuers are two people.  `tags`: names and values that its
    credential says its cost is filed under."""

    tenant: str | None
    project: str | None
    user: str
    issuer: str
    credential: Credential
    groups: frozenset[str] = frozenset()
    roles: frozenset[Role] = frozenset()
    service_class: str | None = None
    tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """A plan's numbers; None means no limit of that kind.  Rates are per minute."""

    rpm: int | None = None
    input_tpm: int | None = None
    output_tpm: int | None = None
    concurrent: int | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """`limit_nano_usd` per window.  `window` is `calendar_month`, `calendar_week`, `calendar_day`
    (in the IANA `zone`), `rolling_24h`, or `total`.  `hard` refuses; else it only reports, and with
    `shadow` also what it would have refused.  `till`: part of a hard one is drawn from Redis."""

    limit_nano_usd: int
    window: str = "calendar_month"
    zone: str = "UTC"
    hard: bool = True
    notify_at: tuple[float, ...] = ()
    shadow: bool = False
    till: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """What one tenant, project and user may do, resolved from plan, configuration and the directory
    at one instant.  Budgets and limits are keyed by scope: `key`, `user`, `project`, `tenant`;
    `tag_budgets` by the tags of this credential that have one, spelt `name=value`."""

    tenant: str
    suspended: bool
    models: frozenset[str]
    classes: tuple[str, ...]
    weight: float = 1.0
    limits: dict[str, Limits] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)
    tag_budgets: dict[str, Budget] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request wants, in tokens.  `max_output_tokens` is None where the client named none."""

    model: str
    prompt_tokens: int
    max_output_tokens: int | None
    n: int = 1
    service_class: str | None = None


@dataclass(frozen=True, slots=True)
class Meters:
    """Disjoint token counts of one request (MONEY.md §2); their sum is what was processed."""

    input: int = 0
    cached_input: int = 0
    cache_write: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True)
class Price:
    """Integer nano-USD per 1M tokens, immutable once effective.  `id` is carried on every event."""

    id: str
    model: str
    effective_s: int
    input: int
    cached_input: int
    cache_write: int
    output: int
    batch_factor: float = 1.0
