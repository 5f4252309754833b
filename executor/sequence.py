"""One request inside the engine: its tokens, how far they are computed, its blocks, its account.

Theory of operation.  `tokens` are the prompt and what was generated; `computed` of them have keys
and values in `blocks`.  Each step computes some more; when all are computed one more is sampled.
Prefill, decode and recompute after a preemption are the same thing at different distances.
`high_water` is how far it ever got: what lies below it and is computed again is lost work.

Refuses to know: the model, the queue it stands in, the wire.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from enum import IntEnum
from math import isfinite
from typing import TYPE_CHECKING, Final

from executor.choice import Ask, is_plain_greedy
from executor.contract import GRAMMAR_BYTES_MAX, Cause, Ended, Submit
from executor.contract_cache import held_for
from executor.scheduler.protocol import NOTHING, Found, Turn

if TYPE_CHECKING:
    from executor.caching import Trail

_ADDEND_MAX: Final = 1e6
_FACTORS: Final = (1e-3, 1e3)
"""Of logits: what stays within these stays finite in float32, temperature included.  Where one
logit is infinite the distribution is no numbers, and nothing can be drawn."""

Key = tuple[int, int]
"""(owner: the connection, request: the number that its gateway minted)."""


class Phase(IntEnum):
    """Where the time goes.  Indexes `Sequence.spans_ns`."""

    QUEUED = 0
    PREFILL = 1
    DECODE = 2


class Sequence:
    """Mutable, owned by the engine loop.  `ticket` is the order of arrival and is kept for life."""

    __slots__ = (
        "blocks",
        "cached",
        "computed",
        "deadline_ns",
        "device_ns",
        "generation",
        "hidden",
        "high_water",
        "job",
        "key",
        "leader",
        "phase",
        "pinned",
        "plain_greedy",
        "pooled",
        "position",
        "preemptions",
        "promised",
        "prompt_tokens",
        "recomputed_ns",
        "said_ns",
        "shared",
        "since_ns",
        "spans_ns",
        "stop_ids",
        "tenant",
        "tenant_weight",
        "ticket",
        "tokens",
        "trail",
        "turn",
        "user",
        "user_weight",
        "workload",
    )

    def __init__(self, key: Key, job: Submit, ticket: int, now_ns: int) -> None:
        self.key = key
        self.job = job
        self.ticket = ticket
        self.turn: Turn | None = None
        self.workload = job.workload
        self.tenant, self.tenant_weight = job.share[0] if job.share else ("", 1.0)
        self.user, self.user_weight = job.share[1] if len(job.share) > 1 else ("", 1.0)
        self.tokens = list(job.prompt)
        self.prompt_tokens = len(job.prompt)
        self.stop_ids = frozenset(job.stop_token_ids)
        self.plain_greedy = is_plain_greedy(job.sampling)
        self.computed = 0
        self.high_water = 0
        self.shared = 0  # prompt tokens that another computed for it
        self.cached = 0  # of these, what was kept; `pinned` of it was registered
        self.pinned = 0
        self.leader: Sequence | None = None  # a living one, whose prompt it may read
        self.trail: Trail | None = None  # what is kept of its prompt, if anything may be
        self.blocks: list[int] = []
        self.pooled = 0  # the first so many belong to the pool
        self.hidden: list[int] = []  # kept ones that come next, of which nobody may know
        self.generation = 0
        self.position: int | None = None  # what the gateway was last told
        self.preemptions = 0
        self.promised = True  # nothing, or what can be kept for a prompt of its length
        self.phase = Phase.QUEUED
        self.since_ns = now_ns
        self.spans_ns = [0, 0, 0]
        self.device_ns = 0
        self.recomputed_ns = 0
        self.said_ns: int | None = None  # when it last said something
        wait_ms = job.queue_ms_max
        self.deadline_ns = None if wait_ms is None else now_ns + wait_ms * 1_000_000

    @property
    def place(self) -> int:
        """In the order of first comings."""
        return self.ticket if self.turn is None else self.turn.ticket

    @property
    def known(self) -> int:
        """Its prompt and what was generated."""
        return len(self.tokens)

    @property
    def max_new_tokens(self) -> int:
        return self.job.max_new_tokens

    @property
    def retry_key(self) -> bytes | None:
        return self.job.retry_key

    @property
    def todo(self) -> int:
        """Tokens known but not computed; at least one while it lives."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def prompt_done(self) -> int:
        """Prompt tokens that have keys and values, or had them before a preemption."""
        return min(self.high_water, self.prompt_tokens)

    @property
    def prefilled(self) -> int:
        """Those of them that were computed for this request."""
        return self.prompt_done - self.shared

    @property
    def started(self) -> bool:
        """Also by a leader that is at its prompt: then no deadline in a queue is meant any more."""
        return self.high_water > 0 or (self.leader is not None and self.leader.started)

    def ask(self, allowed: bytes | None = None, said: Seq[int] = ()) -> Ask:
        """What the sampler must know for the next token, after it will have `said` these.
        `allowed`: its grammar's mask."""
        early = self.generated + len(said) < self.job.min_tokens
        return Ask(
            sampling=self.job.sampling,
            tokens=[*self.tokens, *said] if said else self.tokens,
            prompt_tokens=self.prompt_tokens,
            banned=self.job.stop_token_ids if early else (),
            plain_greedy=self.plain_greedy and not (early and self.stop_ids) and allowed is None,
            allowed=allowed,
        )

    def enter(self, phase: Phase, now_ns: int) -> None:
        """Book the time since the last change of phase, so that the spans add up to its life."""
        self.spans_ns[self.phase] += now_ns - self.since_ns
        self.since_ns = now_ns
        self.phase = phase

    def sharable(self, block_tokens: int) -> int:
        """Full blocks before its last prompt token, which is always computed: its logits are wanted."""
        return (self.prompt_tokens - 1) // block_tokens

    @property
    def places(self) -> Seq[int]:
        """Where its keys and values are, hidden ones too."""
        if not self.hidden:
            return self.blocks
        after = self.pooled + len(self.hidden)
        return [*self.blocks[: self.pooled], *self.hidden, *self.blocks[after:]]

    def follows(self, block_tokens: int) -> bool:
        """Whether it can read its leader's prompt now."""
        ready = self.sharable(block_tokens) * block_tokens
        return self.leader is not None and self.leader.computed >= ready

    def found(self, block_tokens: int) -> Found:
        """What it can take now, instead of computing it: from its leader, or of what is kept."""
        if self.follows(block_tokens):
            return Found(self.sharable(block_tokens))
        return NOTHING if self.trail is None else Found(self.trail.look())

    def attach(self, count: int) -> None:
        """`count` tokens came with blocks of another."""
        assert self.computed == 0
        self.shared += max(0, count - self.high_water)
        self.computed = count
        self.high_water = max(self.high_water, count)

    def attach_kept(self, count: int, pinned: int) -> None:
        """`count` tokens came with blocks that were kept, the first `pinned` of them registered."""
        self.cached += max(0, count - self.high_water)
        self.pinned += max(0, pinned - self.high_water)
        self.attach(count)

    def advance(self, count: int) -> None:
        """`count` more tokens have keys and values."""
        self.computed += count
        assert self.computed <= len(self.tokens)
        self.high_water = max(self.high_water, self.computed)

    def extend(
        self, sampled: Seq[int | None], context_tokens: int, kv_tokens: int
    ) -> tuple[tuple[int, ...], Cause | None]:
        """Append what was sampled, up to its end: what was said, and the verdict.  All but the last
        were guesses that held, so they are computed.  None: the model gave no numbers."""
        before = len(self.tokens)
        cause: Cause | None = None
        for at, token in enumerate(sampled):
            if at:
                self.advance(1)
            if token is None:
                cause = Cause.CRASHED
                break
            self.tokens.append(token)
            cause = self.verdict(token, context_tokens, kv_tokens)
            if cause is not None:
                break
        return tuple(self.tokens[before:]), cause

    def rewind(self, now_ns: int) -> None:
        """Preempted: everything is to be computed again, nothing generated is lost.  The blocks
        were taken by the block manager."""
        assert not self.blocks
        self.computed = 0
        self.generation += 1
        self.preemptions += 1
        self.enter(Phase.QUEUED, now_ns)

    def verdict(self, token: int, context_tokens: int, kv_tokens: int) -> Cause | None:
        """Whether the token just appended was its last.  A sequence that could not be computed
        further in the whole of the KV memory ends as if the context were full: it is the same for
        a sequence alone and among others, and nobody is preempted for it in vain."""
        if token in self.stop_ids:  # the sampler kept them out until min_tokens
            return Cause.STOP
        length = len(self.tokens)
        if self.generated >= self.job.max_new_tokens or length >= context_tokens:
            return Cause.LENGTH
        return Cause.LENGTH if length > kv_tokens else None

    def ended(
        self,
        cause: Cause,
        detail: str = "",
        retry_ms: int | None = None,
        *,
        displaced: bool = False,
    ) -> Ended:
        return Ended(
            request=self.key[1],
            cause=cause,
            prefilled=self.prefilled,
            generated=self.generated,
            queued_ns=self.spans_ns[Phase.QUEUED],
            prefill_ns=self.spans_ns[Phase.PREFILL],
            decode_ns=self.spans_ns[Phase.DECODE],
            device_ns=self.device_ns,
            recomputed_ns=self.recomputed_ns,
            preemptions=self.preemptions,
            detail=detail,
            retry_ms=retry_ms,
            displaced=displaced,
            promised=self.promised,
            cached=self.cached,
            pinned=self.pinned,
        )


def held_bytes(job: Submit) -> int:
    """About the memory that it takes while it waits: mostly numbers, each an object and twice named."""
    return (
        2_000
        + 48 * (len(job.prompt) + len(job.stop_token_ids))
        + 120 * len(job.sampling.logit_bias)
        + (0 if job.grammar is None else 4 * len(job.grammar.text))
        + (0 if job.caching is None else held_for(job.caching, len(job.prompt)))
    )


def fault(job: Submit, *, vocab_size: int, context_tokens: int, kv_tokens: int) -> str | None:
    """Why `job` can never run here, or None.  The gateway should have caught all of it; what it
    let through is answered, never retried and never dropped.  Names numbers, no token ids."""
    prompt, sampling = job.prompt, job.sampling
    room = min(context_tokens, kv_tokens)
    if not prompt:
        return "the prompt is empty; at least one token is needed"
    if len(prompt) + 1 > room:
        return f"a prompt of {len(prompt)} tokens and one more do not fit in {room} tokens"
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        return f"a prompt token is outside the vocabulary of {vocab_size}"
    if job.max_new_tokens < 1 or job.min_tokens < 0:
        return "max_new_tokens must be at least 1 and min_tokens at least 0"
    if job.grammar is not None and len(job.grammar.text.encode()) > GRAMMAR_BYTES_MAX:
        return f"a grammar must be at most {GRAMMAR_BYTES_MAX} bytes"
    if job.retry_key is not None and not 16 <= len(job.retry_key) <= 32:
        return "retry_key must have 16 to 32 bytes"
    if job.queue_ms_max is not None and job.queue_ms_max < 0:
        return "queue_ms_max must not be negative"
    if any(not 0 <= token < vocab_size for token in job.stop_token_ids):
        return f"a stop token is outside the vocabulary of {vocab_size}"
    if any(
        not (0 <= token < vocab_size and abs(add) <= _ADDEND_MAX)
        for token, add in sampling.logit_bias
    ):
        return f"logit_bias needs tokens within the vocabulary of {vocab_size} and bounded numbers"
    if not (isfinite(sampling.temperature) and sampling.temperature >= 0):
        return "temperature must be a number ≥ 0"
    if not (0 <= sampling.top_p <= 1 and 0 <= sampling.min_p <= 1):
        return "top_p and min_p must be within 0 and 1"
    if sampling.top_k is not None and sampling.top_k < 1:
        return "top_k must be at least 1; absent means no limit"
    if sampling.top_logprobs is not None and not 0 <= sampling.top_logprobs <= 20:
        return "top_logprobs must be within 0 and 20"
    penalties = (sampling.presence_penalty, sampling.frequency_penalty)
    low, high = _FACTORS
    if any(not abs(add) <= _ADDEND_MAX for add in penalties):
        return f"penalties must be numbers within ±{_ADDEND_MAX:g}"
    if not low <= sampling.repetition_penalty <= high:
        return f"repetition_penalty must be within {low:g} and {high:g}"
    if any(not (isfinite(weight) and weight > 0) for _, weight in job.share):
        return "every weight in share must be above 0"
    return None
