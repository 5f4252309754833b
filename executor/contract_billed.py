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


class Billed(msgspec.Struct, frozen=True, array_like=True):
    """What a sequence is billed under, opaque to the executor, and which of its request's prompts it has."""

    id: str
    prompt: int = 0


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """What an executor whose gateway is lost leaves of a sequence: what `Ended` would say, by what it is
    billed under (`Billed`).  `cause` is ABORTED where it ran still."""

    id: str
    prompt: int
    prompt_tokens: int
    prefilled: int
    cached: int
    generated: int
    cause: Cause
    warm: bool = False
