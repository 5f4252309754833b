"""What a gateway and an executor say to each other, and nothing else: a closed set of messages.

The gateway knows an executor only by `Executor` and `Turn` below.  Behind them stand `client`
(a Unix socket to the executor process) and `echo` (no model: tests, demonstrations).
Refuses to know: HTTP, tenants by name, text.  Token ids in, token ids out.

Theory of operation.  The gateway submits a `Submit` under a request number that it minted; numbers
are never reused within a connection.  The executor answers with any number of `Report`s, one a step
for all requests together, and exactly one `Ended` for each request it was sent, also after an
`Abort`.  A gateway that stops listening aborts; the `Ended` that follows carries what was generated,
and that is what is billed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from executor.contract_billed import WORDS_SUFFIX as WORDS_SUFFIX
from executor.contract_billed import Billed as Billed
from executor.contract_billed import Cause as Cause
from executor.contract_billed import Ended as Ended
from executor.contract_billed import Word as Word
from executor.contract_cache import COVERS_MAX as COVERS_MAX
from executor.contract_cache import Allotted as Allotted
from executor.contract_cache import Caching as Caching
from executor.contract_cache import Kept as Kept
from executor.contract_cache import Listed as Listed
from executor.contract_cache import ListKept as ListKept
from executor.contract_cache import Purge as Purge
from executor.contract_cache import Purged as Purged
from executor.contract_cache import Quota as Quota
from executor.contract_cache import Quotas as Quotas
from executor.contract_cache import Revoke as Revoke
from executor.contract_cache import Revoked as Revoked
from executor.contract_cache import Scope as Scope
from executor.contract_cache import allotted as allotted
from executor.contract_device import OVERHEAD as OVERHEAD
from executor.contract_device import DeviceTime as DeviceTime
from executor.contract_views import GAPS_NS as GAPS_NS
from executor.contract_views import LANES_MAX as LANES_MAX
from executor.contract_views import STEP_TOKENS as STEP_TOKENS
from executor.contract_views import ClassSum as ClassSum
from executor.contract_views import Gauges as Gauges
from executor.contract_views import Lane as Lane
from executor.contract_views import ModelCard as ModelCard
from executor.contract_views import Overview as Overview
from executor.contract_views import Spread as Spread


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose the next token.  Every default is neutral.  `temperature` below 1e-5 is greedy.
    `seed` is always given: where the client named none, the gateway drew one."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int | None = None
    """None: no log-probabilities.  0: the chosen token's.  k ≤ 20: and those of the k likeliest."""


GRAMMAR_BYTES_MAX: Final = 128 * 1024


class GrammarKind(StrEnum):
    """What `Grammar.text` is."""

    JSON_OBJECT = "json_object"  # any JSON object; no text
    JSON_SCHEMA = "json_schema"  # a JSON Schema, as JSON
    REGEX = "regex"  # matches the whole answer
    LARK = "lark"  # a context-free grammar in the Lark dialect of llguidance
    CHOICE = "choice"  # a JSON array of strings, one of which is the answer


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer must look like.  `text` is at most `GRAMMAR_BYTES_MAX` bytes of UTF-8."""

    kind: GrammarKind
    text: str = ""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A class of work and its terms.  `weight`: what a tenant's unit of weight counts for in it; None:
    what others leave.  `reserved`: the part of time, slots and KV memory kept free for it.  `floor`: the
    part of the time that it gets whatever others want.  `ttft_ms`, `itl_ms`: what it is promised for the
    first token and between tokens."""

    name: str
    weight: float | None = 1.0
    reserved: float = 0.0
    floor: float = 0.0
    ttft_ms: int | None = None
    itl_ms: int | None = None


class Terms(msgspec.Struct, frozen=True, kw_only=True, tag="terms"):
    """The classes of work from now on.  Work of a class that is not among them has neutral terms."""

    workloads: tuple[Workload, ...]


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """One sequence to run.  `max_new_tokens` is what was reserved: the executor stops there.

    `stop_token_ids` ends generation (the id is emitted as the last of `generated`, and the gateway
    does not print it), but not before `min_tokens` tokens; until then those ids are not sampled.
    `share` is the opaque path, widest first, whose fair share is charged, with its weights: the tenant,
    then the user.  `workload` names the class.
    `queue_ms_max`: not started by then, it ends with `Cause.QUEUE_DEADLINE`, nothing prefilled.
    `grammar`: only tokens that it allows are sampled; where it allows nothing but end tokens, it
    wins over `min_tokens`.  `stop_token_ids` must hold the model's end tokens then.
    `part`: it belongs to a request of which another was submitted before; whether it can be in time was
    asked for that one.
    `retry_key`: by which it is known when its client comes again after a refusal; opaque, made by the gateway
    of more than what the client said, so no two principals have the same.
    `sibling`: the number of an earlier request of this connection with the same prompt, whose
    prompt need not be computed twice.  Where there is none such, it is as if none was named.
    `caching`: under which labels blocks of its prompt are found and kept; None: none are.
    `billed`: by which its counts are left for the next gateway, should this one be lost (`Word`); None: not.
    `warm`: only to keep its pinned scopes: it ends STOP with nothing generated, or QUOTA with nothing kept; at
    once, and with nothing computed, where all of it is pinned already or its owner's part has no room."""

    request: int
    prompt: tuple[int, ...]
    max_new_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    sampling: Sampling = Sampling()
    share: tuple[tuple[str, float], ...] = ()
    workload: str = ""
    queue_ms_max: int | None = None
    grammar: Grammar | None = None
    sibling: int | None = None
    retry_key: bytes | None = None
    part: bool = False
    caching: Caching | None = None
    warm: bool = False
    billed: Billed | None = None


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Stop `request` within one step.  An unknown or ended number is ignored."""

    request: int


class Look(msgspec.Struct, frozen=True, kw_only=True, tag="look"):
    """Who holds the executor, and who waits?  The next report says it, in `overviews`.  `tenant`: of this
    one alone, by the name that its `Submit.share` has; None: of all."""

    tenant: str | None = None


class Measure(msgspec.Struct, frozen=True, kw_only=True, tag="measure"):
    """Report, though nobody has anything to hear: an idle executor says nothing by itself."""


Command = Submit | Abort | Terms | Look | Measure | Revoke | Purge | ListKept | Quotas
"""Gateway → executor."""


class Logprob(msgspec.Struct, frozen=True, array_like=True):
    """A token id and its log-probability under the distribution before temperature and truncation."""

    token: int
    logprob: float


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    chosen: Logprob
    top: tuple[Logprob, ...] = ()


class Waiting(msgspec.Struct, frozen=True, kw_only=True, tag="waiting"):
    """`position` within the widest share (the tenant), 0 = next; never a global place, which would
    leak load.  Sent when it changes, also when a running sequence was preempted back into the queue.
    `eta_ms`: until it starts, as that share's own waiting requests lately came to start (`starts`);
    None: too few did to tell."""

    request: int
    position: int
    eta_ms: int | None = None


class Prefilling(msgspec.Struct, frozen=True, kw_only=True, tag="prefilling"):
    request: int
    done_tokens: int
    total_tokens: int


class Emitted(msgspec.Struct, frozen=True, kw_only=True, tag="emitted"):
    """New token ids of one request, in order; `logprobs` has one entry a token where asked for."""

    request: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


Update = Waiting | Prefilling | Emitted | Ended
"""What one request hears, in this order: waiting*, prefilling*, emitted*, ended."""


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """Everything that one engine step has to say, in one frame.  `overviews` and what follows: to
    who asked for them."""

    updates: tuple[Update, ...] = ()
    gauges: Gauges = Gauges()
    overviews: tuple[Overview, ...] = ()
    revoked: tuple[Revoked, ...] = ()
    purged: tuple[Purged, ...] = ()
    listed: tuple[Listed, ...] = ()


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The first message of an executor, once it can serve.  `start`: as in `DeviceTime`; empty: nobody
    counts its time."""

    card: ModelCard
    start: str = ""


class Loading(msgspec.Struct, frozen=True, kw_only=True, tag="loading"):
    """Before `Ready`: what is being done, for a progress line.  `fraction` in 0..1, or None."""

    stage: str
    fraction: float | None = None


class Broken(msgspec.Struct, frozen=True, kw_only=True, tag="broken"):
    """Instead of `Ready`: it will never serve, and why (a sentence with the fix, for an operator)."""

    reason: str


Message = Loading | Ready | Broken | Report
"""Executor → gateway."""


class ExecutorLost(Exception):
    """The executor is not there, or died under this request.  Retryable."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How the tokens came that came so far: how many, and how long from the first to the last of them."""

    tokens: int = 0
    span_ns: int = 0


class Turn(Protocol):
    """One request's place in an executor: an async iterator over its updates.

    Updates that wait unread are merged (adjacent `Emitted` become one, stale `Waiting` and
    `Prefilling` vanish), so a slow reader bounds no memory but its own output.  Iteration ends after
    `Ended`; a lost executor yields `Ended(cause=CRASHED)`, never an exception."""

    def __aiter__(self) -> AsyncIterator[Update]: ...

    async def __anext__(self) -> Update: ...

    @property
    def request(self) -> int:
        """The number that was minted for it, for `Submit.sibling`."""
        ...

    @property
    def start(self) -> str:
        """The start of the executor in which it is, as in `DeviceTime`."""
        ...

    @property
    def ended(self) -> Ended | None:
        """The last word, once it was heard.  After the turn is closed, never None."""
        ...

    @property
    def pace(self) -> Pace:
        """As the tokens arrived here, read or not: a slow reader does not change it."""
        ...

    def interrupt(self, why: BaseException) -> None:
        """Make the reader's next step raise `why` (a revocation, say).  The reader then leaves the
        turn, which aborts it.  Called from the event loop, does not wait, does nothing once ended."""
        ...


class Executor(Protocol):
    """Where a turn can be had.  One model each."""

    @property
    def card(self) -> ModelCard | None:
        """None until the executor is ready, and while it is being restarted."""
        ...

    @property
    def gauges(self) -> Gauges: ...

    async def measure(self) -> Gauges:
        """`gauges` as they are now, though nothing runs.  ExecutorLost if there is none, or it does not say so
        in time."""
        ...

    def take_past(self) -> tuple[DeviceTime, ...]:
        """What was last heard of each start that is over, once."""
        ...

    def set_terms(self, workloads: tuple[Workload, ...]) -> None:
        """The classes of work from now on; told again to whatever executor comes."""
        ...

    def set_quotas(self, quotas: tuple[Quota, ...]) -> None:
        """Who may keep how much from now on; told again to whatever executor comes."""
        ...

    async def revoke(self, tags: tuple[bytes, ...], snapshot: int) -> Revoked:
        """`contract_cache.Revoke`.  ExecutorLost if there is none, or it does not confirm in time: then it is to
        be asked again, or ended.  What comes instead of one that died has kept nothing."""
        ...

    async def purge(
        self, owner: str | None = None, tags: tuple[bytes, ...] = (), *, spare: bool = False
    ) -> Purged:
        """`contract_cache.Purge`, else as `revoke`."""
        ...

    async def list_kept(self, owner: str | None = None, *, by_label: bool = False) -> Listed:
        """`contract_cache.ListKept`.  ExecutorLost if there is none, or it does not say so in time."""
        ...

    async def look(self, tenant: str | None = None) -> Overview:
        """Who holds it and who waits, now: of `tenant`, by the name that its share has, or of all.
        ExecutorLost if there is none, or it does not say so in time."""
        ...

    def turn(self, job: Submit) -> AbstractAsyncContextManager[Turn]:
        """Submit on entry; on exit abort if it has not ended, and wait (bounded) for `Ended`.
        The `request` number in `job` is replaced by one minted here.
        Raises ExecutorLost on entry if there is no live executor."""
        ...
