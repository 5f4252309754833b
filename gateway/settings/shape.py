"""The configuration, field for field as in `deploy/lockgate.example.toml`.

Only shape: names, types, defaults and the bounds of single values.  What fields mean together is
`rules`; where values come from is `load`.  A default is the neutral choice, never a convenience that
would weaken security: issuer, audience, algorithms, hosts and prices have none.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.settings.units import Address, IssuerName, KeySource, Memory, RedisUrl, Usd, Zone
from policies.rate import PER_MINUTE_MAX
from security.tokens import Binding

Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
ModelName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}$")]
Text = Annotated[str, Meta(min_length=1, max_length=1024)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000_000)]
PerMinute = Annotated[int, Meta(ge=1, le=PER_MINUTE_MAX)]
NanoUsd = Annotated[int, Meta(ge=0, le=9_000_000_000_000_000)]
Share = Annotated[float, Meta(ge=0, le=1)]
Days = Annotated[int, Meta(ge=0, le=36_500)]
Weight = Annotated[float, Meta(ge=0.001, le=1000)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every table of the file is."""


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Numerics(StrEnum):
    FAST = "fast"
    INVARIANT = "invariant"
    INT8 = "int8"


class Batching(StrEnum):
    CONTINUOUS = "continuous"
    DYNAMIC = "dynamic"
    STATIC = "static"


class ToolFormat(StrEnum):
    """How a model writes calls of tools.  AUTO: as its chat template and its control tokens say."""

    AUTO = "auto"
    HERMES = "hermes"
    SMOLLM2 = "smollm2"
    LLAMA3_JSON = "llama3_json"
    MISTRAL = "mistral"


class Window(StrEnum):
    CALENDAR_MONTH = "calendar_month"
    CALENDAR_WEEK = "calendar_week"
    CALENDAR_DAY = "calendar_day"
    ROLLING_24H = "rolling_24h"
    TOTAL = "total"


class Sharing(StrEnum):
    USER = "user"
    TENANT = "tenant"


class Algorithm(StrEnum):
    """Signatures that a verifier cannot forge.  HS* and `none` are absent on purpose (P15)."""

    ES256 = "ES256"
    ES384 = "ES384"
    ES512 = "ES512"
    EDDSA = "EdDSA"
    RS256 = "RS256"
    RS384 = "RS384"
    RS512 = "RS512"
    PS256 = "PS256"
    PS384 = "PS384"
    PS512 = "PS512"


class TokenType(StrEnum):
    """RFC 9068 §2.1.  An ID token is no access token."""

    AT_JWT = "at+jwt"
    APPLICATION_AT_JWT = "application/at+jwt"


class Listen(Part, frozen=True, kw_only=True):
    """`urls`: how clients reach the two from outside; what a proof of possession (DPoP) must name."""

    public: Address = Address("127.0.0.1", 8080)
    admin: Address = Address("127.0.0.1", 8081)
    hosts: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=100)]
    workers: Annotated[int, Meta(ge=1, le=256)] = 1
    drain_s: Annotated[int, Meta(ge=0, le=3600)] = 120
    docs: bool = False
    cors_origins: Annotated[tuple[Text, ...], Meta(max_length=100)] = ()
    urls: Annotated[tuple[Text, ...], Meta(max_length=100)] = ()


class State(Part, frozen=True, kw_only=True):
    """`gateways`: processes that share `redis_url`, so that each knows its part while it is down."""

    dir: Path = Path("var")
    database_url: Text = "sqlite:///var/lockgate.db"
    redis_url: RedisUrl = RedisUrl()
    gateways: Annotated[int, Meta(ge=1, le=10_000)] = 1
    root_key_file: Path = Path("var/root.key")


class Audit(Part, frozen=True, kw_only=True):
    """`dirs`: where the log is written, each whole; empty: `audit` in the state's."""

    dirs: Annotated[tuple[Path, ...], Meta(max_length=4)] = ()


BATCH_SIZE = 16
BATCH_WAIT_MS = 50
"""What the executor takes where the file is silent."""


class Model(Part, frozen=True, kw_only=True):
    """`path` is an alias of ours, a directory, a .gguf file or a hub id: see `models_store`.
    `batch_size` (None: `BATCH_SIZE`) is of dynamic and static batching, `batch_wait_ms` (None:
    `BATCH_WAIT_MS`) of dynamic."""

    name: ModelName
    path: Text
    aliases: Annotated[tuple[ModelName, ...], Meta(max_length=100)] = ()
    device: Device = Device.AUTO
    numerics: Numerics = Numerics.FAST
    kv_memory: Memory = Memory()
    context_tokens: Annotated[int, Meta(ge=16, le=10_000_000)] = 8192
    batching: Batching = Batching.CONTINUOUS
    batch_size: Annotated[int, Meta(ge=1, le=64)] | None = None
    batch_wait_ms: Annotated[int, Meta(ge=1, le=60_000)] | None = None
    tool_format: ToolFormat = ToolFormat.AUTO


class Price(Part, frozen=True, kw_only=True):
    """Nano-USD per 1M tokens."""

    model: ModelName
    effective: Annotated[datetime, Meta(tz=True)]
    input: NanoUsd
    cached_input: NanoUsd
    cache_write: NanoUsd
    output: NanoUsd
    batch_factor: Annotated[float, Meta(gt=0, le=1)] = 1.0


class Claims(Part, frozen=True, kw_only=True):
    """Which claim of a token names what."""

    tenant: Text
    user: Text = "sub"
    project: Text | None = None
    groups: Text | None = None
    roles: Text | None = None
    service_class: Text | None = msgspec.field(default=None, name="class")
    tags: Text | None = None


class Issuer(Part, frozen=True, kw_only=True):
    issuer: IssuerName
    audience: Text
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1, max_length=16)]
    typ: Annotated[tuple[TokenType, ...], Meta(min_length=1, max_length=16)] = (TokenType.AT_JWT,)
    jwks: KeySource
    max_stale_s: Annotated[int, Meta(ge=60, le=86_400)] = 3600
    leeway_s: Annotated[int, Meta(ge=0, le=300)] = 30
    dpop: Binding = Binding.ALLOWED
    dpop_nonce: bool = False
    claims: Claims


class ServiceClass(Part, frozen=True, kw_only=True):
    """`weight` None: 1, or, where there is nothing but a floor, what others leave."""

    reserved: Share = 0.0
    weight: Weight | None = None
    ttft_ms: Count | None = None
    itl_ms: Count | None = None
    floor: Share = 0.0


class Limits(Part, frozen=True, kw_only=True):
    """A tenant's numbers; rates are per minute.  Absent: no limit of that kind."""

    rpm: PerMinute | None = None
    input_tpm: PerMinute | None = None
    output_tpm: PerMinute | None = None
    concurrent: Count | None = None
    max_prompt_tokens: Count | None = None
    max_output_tokens: Count | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    documents: Count | None = None
    document_tokens: Count | None = None


class UserLimits(Part, frozen=True, kw_only=True):
    """The same for each user of the tenant."""

    rpm: PerMinute | None = None
    input_tpm: PerMinute | None = None
    output_tpm: PerMinute | None = None
    concurrent: Count | None = None


class BudgetMode(StrEnum):
    """`hard` refuses; `soft` reports; `shadow` also reports what it would have refused."""

    HARD = "hard"
    SOFT = "soft"
    SHADOW = "shadow"


class Budget(Part, frozen=True, kw_only=True):
    """`hard = false` is another word for `mode = "soft"`.  `till`: part of it is set aside in Redis."""

    usd: Usd
    window: Window = Window.CALENDAR_MONTH
    zone: Zone = Zone("UTC")
    hard: bool | None = None
    mode: BudgetMode | None = None
    notify_at: Annotated[tuple[Share, ...], Meta(max_length=16)] = ()
    till: bool = False

    @property
    def kind(self) -> BudgetMode:
        """What `mode` says, else `hard`, else hard."""
        return self.mode or (BudgetMode.SOFT if self.hard is False else BudgetMode.HARD)


class Cache(Part, frozen=True, kw_only=True):
    sharing: Sharing = Sharing.USER
    ttl_s: Annotated[int, Meta(ge=0, le=604_800)] = 3600
    quota: Share = 0.5


class Plan(Part, frozen=True, kw_only=True):
    models: Annotated[tuple[ModelName, ...], Meta(min_length=1, max_length=1000)]
    classes: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=32)] = ("interactive",)
    weight: Weight = 1.0
    limits: Limits = Limits()
    user_limits: UserLimits = UserLimits()
    budget: Budget | None = None
    cache: Cache = Cache()


class Project(Part, frozen=True, kw_only=True):
    budget: Budget | None = None


class Tagged(Part, frozen=True, kw_only=True):
    budget: Budget | None = None


class Tenant(Part, frozen=True, kw_only=True):
    """`tags` by `name=value`: what a key or a token's claim says, never a client."""

    plan: Name
    residency: Name | None = None
    projects: dict[Name, Project] = {}
    tags: dict[Text, Tagged] = {}


class Webhooks(Part, frozen=True, kw_only=True):
    """`allow_private`: the receiver is in one's own network.  `secret_file`: what events are signed with."""

    url: Annotated[str, Meta(max_length=2048)] = ""
    secret_file: Path | None = None
    allow_private: bool = False


class Retention(Part, frozen=True, kw_only=True):
    """In days, from when a request was made; 0: for ever.  What it cost is kept for ever in any case."""

    user_ids_days: Days = 0
    request_days: Days = 400
    notices_days: Days = 400


class File(Part, frozen=True, kw_only=True):
    """One configuration file, whole."""

    listen: Listen
    state: State = State()
    audit: Audit = Audit()
    models: Annotated[tuple[Model, ...], Meta(min_length=1, max_length=64)]
    prices: Annotated[tuple[Price, ...], Meta(max_length=10_000)]
    issuers: Annotated[tuple[Issuer, ...], Meta(max_length=64)]
    classes: dict[Name, ServiceClass] = {}
    plans: dict[Name, Plan]
    tenants: dict[Name, Tenant]
    webhooks: Webhooks = Webhooks()
    retention: Retention = Retention()


class Mode(StrEnum):
    DEVELOPMENT = "development"
    PRODUCTION = "production"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the server runs on: the file's tables and what the command line added.

    `notices` are sentences that `serve` and `check` print: fields that are accepted and change
    nothing yet.  `threads` None: as many as the machine has cores.  `vllm_metrics`: vLLM's
    metric names beside our own.  `models_dir` is where a built-in model or a fetched hub model lies."""

    mode: Mode
    source: str
    listen: Listen
    state: State
    audit: Audit = Audit()
    models: tuple[Model, ...]
    prices: tuple[Price, ...]
    issuers: tuple[Issuer, ...]
    classes: dict[str, ServiceClass]
    plans: dict[str, Plan]
    tenants: dict[str, Tenant]
    webhooks: Webhooks
    retention: Retention = Retention()
    models_dir: Path
    threads: int | None = None
    vllm_metrics: bool = False
    notices: tuple[str, ...] = ()
