"""What the public API answers of models, of the caller, of registered texts and of itself.  As `answers`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from gateway.openapi.answers import Told, Unix

Money = Annotated[str, Meta(description="US dollars, as an exact decimal number.")]
Instant = Annotated[str, Meta(description="An instant, by RFC 3339.")]

# Models


class Capabilities(Told):
    tools: bool
    structured_outputs: bool


class Model(Told):
    """Null: not known while the model loads."""

    id: str
    object: Literal["model"]
    created: Unix
    owned_by: str
    max_model_len: int | None
    max_prompt_tokens: int | None
    max_output_tokens: int | None
    numerics: str
    aliases: list[str]
    ready: bool
    service_classes: list[str]
    service_tiers: list[str]
    endpoints: list[str]
    capabilities: Capabilities


class Models(Told):
    object: Literal["list"]
    data: list[Model]


class MessagesModel(Told):
    type: Literal["model"]
    id: str
    display_name: str
    created_at: Instant
    lifecycle: Literal["active"]
    max_input_tokens: int | None
    max_tokens: int | None


class MessagesModels(Told):
    data: list[MessagesModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


# The caller


class Credential(Told):
    kind: str
    id: str | None
    expires_at: Unix | None


class Left(Told):
    limit: int
    remaining: int
    reset_ms: int


class Budget(Told):
    scope: str
    id: str
    window: str
    hard: bool
    mode: str
    till: bool
    limit_usd: Money
    topped_up_usd: Money
    spent_usd: Money
    held_usd: Money
    remaining_usd: Money
    resets_at: Instant | None


class Me(Told):
    object: Literal["me"]
    tenant: str | None
    project: str | None
    user: str
    issuer: str
    groups: list[str]
    roles: list[str]
    tags: dict[str, str]
    credential: Credential
    models: list[str]
    classes: list[str]
    limits: dict[str, dict[str, int]]
    budgets: list[Budget]
    service_class: str | UnsetType | None = UNSET
    class_terms: dict[str, dict[str, Any]] | UnsetType = UNSET
    left: dict[str, Left | None] | UnsetType = UNSET


class PriceLine(Told):
    meter: str
    tokens: int
    usd_per_million: Money
    usd: Money


class Stage(Told):
    name: str
    at: Instant
    ms: float


class Tag(Told):
    name: str
    value: str
    source: str


class Explanation(Told):
    """How a request went, and what it cost."""

    request_id: str
    tenant: str | None
    project: str | None
    user: str | None
    model: str
    service_class: str | None
    tags: list[Tag]
    state: str
    estimated: bool
    reserved_usd: Money
    refunded_usd: Money
    price_usd: Money | None
    price_lines: list[PriceLine]
    outcome: str
    stages: list[Stage]
    tokens: dict[str, int]
    route: str | UnsetType = UNSET
    received_at: Instant | UnsetType = UNSET
    reason: str | UnsetType | None = UNSET
    finish_reason: str | UnsetType | None = UNSET
    total_ms: float | UnsetType = UNSET
    cost_ms: float | UnsetType = UNSET
    overhead_ms: float | UnsetType = UNSET
    recomputed_ms: float | UnsetType = UNSET
    preemptions: int | UnsetType = UNSET


class Cancelled(Told):
    cancelled: bool


# Registered texts


class Reader(Told):
    issuer: str
    subject: str


class ReadingGroup(Told):
    issuer: str
    name: str


class Readers(Told):
    users: list[Reader]
    groups: list[ReadingGroup]
    roles: list[str]


class Document(Told):
    """`tokens` by model.  Who else reads is shown to its owner alone."""

    id: str
    object: Literal["document"]
    created_at: Unix
    updated_at: Unix
    version: int
    title: str | None
    tokens: dict[str, int]
    expires_at: Unix | None
    owned: bool
    warm: bool | UnsetType = UNSET
    acl_version: int | UnsetType = UNSET
    acl: Readers | UnsetType = UNSET


class Template(Told):
    id: str
    object: Literal["template"]
    created_at: Unix
    updated_at: Unix
    version: int
    title: str | None
    tokens: dict[str, int]
    variables: list[str]
    versions: list[int]
    public: bool


class _Page(Told):
    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Documents(_Page):
    data: list[Document]


class Templates(_Page):
    data: list[Template]


class Deleted(Told):
    id: str
    object: Literal["document", "template", "response"]
    deleted: Literal[True]


# The server


class Health(Told):
    status: Literal["ok"]


class Ready(Told):
    """Beside `ready`, what does not keep it from serving and should be looked at."""

    status: str
    audit: str | UnsetType = UNSET
    tempo: str | UnsetType = UNSET
    till: str | UnsetType = UNSET


class Version(Told):
    version: str
