"""The house: everything a request meets on its way, wired once in `bootstrap` and handed around.

Frozen; holds no state of its own.  What changes while serving lives in the parts: the book, the
tempo, the directory, the executor, the audit log, the register of live requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from executor.contract import Executor, ModelCard
from gateway.caching import Caches
from gateway.device_time import DeviceAccounts
from gateway.door import Door
from gateway.end_users import EndUsers
from gateway.errors import unavailable
from gateway.idempotency import Digests
from gateway.live import Live
from gateway.metrics import Metrics
from gateway.promises import Promises
from gateway.purging import Purges
from gateway.registered import Registered
from gateway.rotation import Rotations
from gateway.runs import Runs
from gateway.service_classes import ServiceClasses
from gateway.stored import Stored
from gateway.text.templates import ChatTemplate
from gateway.text.tokenizer import Vocabulary
from gateway.tools.formats import Format, Style
from gateway.warmth import Warmth
from policies.facts import Price
from policies.price import PriceList
from policies.verdict import Allow, Deny
from security.api_keys import NewKey
from security.audit_log import AuditLog
from security.authenticate import Authenticator
from security.keyring_tenants import TenantSecrets
from security.pseudonyms import Pseudonyms
from tenants.book import Book
from tenants.directory import Directory
from tenants.finance import Finance
from tenants.retention import Retention
from tenants.tempo import Tempo


@dataclass(frozen=True, slots=True)
class Clock:
    """Wall time for records and windows, monotonic time for durations."""

    wall_ms: Callable[[], int]
    monotonic_ns: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Timings:
    """Deadlines of the front, in milliseconds.  Tests shorten them."""

    keepalive_ms: int = 10_000  # a queued stream's first byte, and between bytes (API.md §3)
    queue_ms_max: int = 120_000  # longest wait for a place in the executor
    stall_ms_max: int = 30_000  # a reader that takes nothing for so long is left
    linger_ms: int = 15_000  # work by an idempotency key outlives its last reader by this much
    expiry_grace_ms: int = 5_000  # a running stream outlives its token by this much (J22)


@dataclass(frozen=True, slots=True)
class Reading:
    """How one model's text becomes ids and back.  Made from the executor's card, remade when a
    restarted executor shows another.  `style`: how it calls tools, None where that is not known."""

    card: ModelCard
    vocabulary: Vocabulary
    template: ChatTemplate | None
    fingerprint: str
    style: Style | None = None


@dataclass(slots=True)
class Deployment:
    """One model that is served: its name, its executor, and its reading once the card is known."""

    name: str
    aliases: tuple[str, ...]
    executor: Executor
    numerics: str
    created_s: int
    batching: str = "continuous"
    tool_format: Format | None = None  # where it is not to be told by the template
    _reading: Reading | None = field(default=None, repr=False)

    def reading(self) -> Reading:
        """Raises ApiError 503 `model_loading` while there is no card."""
        card = self.executor.card
        if card is None:
            if self._reading is not None:  # being restarted; the text side has not changed
                return self._reading
            raise unavailable(
                "The model is still loading. Try again shortly.", code="model_loading"
            )
        if self._reading is None or self._reading.card is not card:
            vocabulary = Vocabulary.from_card(card)
            template = ChatTemplate.compile(card, vocabulary)
            fingerprint = f"lg_{card.weights_digest[:12]}_{self.numerics}"
            style = None if template is None else template.style(self.tool_format)
            self._reading = Reading(card, vocabulary, template, fingerprint, style)
        return self._reading


@dataclass(slots=True)
class Prices:
    """The price list in force, replaced whole when the configuration is read again."""

    listed: PriceList

    def at(self, model: str, at_s: int) -> Allow[Price] | Deny:
        return self.listed.at(model, at_s)


@dataclass(frozen=True, slots=True)
class House:
    clock: Clock
    timings: Timings
    authenticator: Authenticator
    directory: Directory
    prices: Prices
    tempo: Tempo
    book: Book
    finance: Finance
    retention: Retention
    deployments: Mapping[str, Deployment]  # by name and by alias
    devices: DeviceAccounts
    audit: AuditLog
    live: Live
    metrics: Metrics
    caches: Caches
    registered: Registered
    classes: ServiceClasses
    promises: Promises
    log: Callable[..., None]
    pseudonym: Callable[[str], str]  # for the executor; the audit log's are `names`
    secrets: TenantSecrets
    names: Pseudonyms
    retry_key: Callable[[tuple[str, ...]], bytes]
    digests: Digests
    runs: Runs
    stored: Stored
    mint_key: Callable[[], NewKey]
    draining: Callable[[], bool]
    door: Door = field(default_factory=Door)
    end_users: EndUsers = field(default_factory=EndUsers)
    purges: Purges = field(default_factory=Purges)
    rotations: Rotations = field(default_factory=Rotations)
    warmth: Warmth = field(default_factory=Warmth)
