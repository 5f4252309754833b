"""Why a request ended, and what is left of it where its gateway is lost.  A part of the contract."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

WORDS_SUFFIX: Final = ".words"
"""Of a file beside an executor's socket: `Word`s, each a line of JSON, for the next gateway."""


class Cause(StrEnum):
    """Why a request ended.  STOP and LENGTH are normal; the rest are the gateway's to explain."""

    STOP = "stop"  # a stop token
    LENGTH = "length"  # max_new_tokens, or the context was full
    ABORTED = "aborted"
    QUEUE_DEADLINE = "queue_deadline"
    REFUSED = "refused"  # can never fit, malformed: the gateway should have caught it
    GRAMMAR = "grammar"  # it cannot be compiled; `detail` says why, in a sentence for the caller
    GRAMMAR_BUDGET = "grammar_budget"  # it took more processor time or memory than one may
    BACKLOG = (
        "backlog"  # too much of its own tenant's waits: it would be late, or made room for others
    )
    OVERLOADED = (
        "overloaded"  # it would be late, or there is no room, though within its share: our doing
    )
    REVOKED = "revoked"  # its right to read something that it names ended
    QUOTA = (
        "quota"  # of a warm submit: what is to be pinned is more than its owner's part has room for
    )
    CRASHED = "crashed"  # a fault of ours; retryable


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The last word on a request.  Tokens, then nanoseconds.

    `prefilled` counts prompt tokens whose prefill ran, each once however often it was recomputed, and
    not those that a sibling computed: the most that any of several siblings has is their prompt's;
    `cached` counts those that were taken from what was kept instead, as far as it may be told, and `pinned` how
    many of these were registered (of siblings: that one's which prefilled most);
    `generated` all tokens sampled, delivered or not.  The three spans add up to the life of the
    request in the executor; a span that was never entered is 0.  `device_ns` is this request's part
    of the measured step times; `recomputed_ns` the part spent on work lost to preemption and on
    guesses that did not hold, which is charged to nobody."""

    request: int
    cause: Cause
    prefilled: int = 0
    generated: int = 0
    queued_ns: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    device_ns: int = 0
    recomputed_ns: int = 0
    preemptions: int = 0
    detail: str = ""
    promised: bool = True  # False: its prompt alone takes longer than its class is promised
    retry_ms: int | None = None  # of BACKLOG and OVERLOADED: when it would be taken
    displaced: bool = False  # of BACKLOG: it waited, and made room for another tenant's
    cached: int = 0
    pinned: int = 0


class Billed(msgspec.Struct, frozen=True, array_like=True):
    """What a sequence is billed under, opaque to the executor, and which of its request's prompts it has."""

    id: str
    prompt: int = 0


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """What an executor whose gateway is lost leaves of a sequence, by what it is billed under (`Billed`): its
    last word, with the cause ABORTED where it ran still.  `start`: of the executor's life, as `DeviceTime` has it."""

    id: str
    prompt: int
    prompt_tokens: int
    ended: Ended
    warm: bool = False
    start: str = ""
