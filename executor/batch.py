"""One engine step as the model sees it: ragged rows, one a sequence, tokens laid end to end.

The seam between the engine (scheduler, blocks, sequences) and whatever runs the model: the CPU
backend, the Triton backend, and the fake of the tests all take a `Batch` and give logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from executor.choice import Ask, Choice


@dataclass(frozen=True, slots=True)
class Row:
    """The part of one sequence that this step computes: `tokens` at positions
    `start … start + len(tokens) − 1`, whose keys and values go to those places of `blocks`
    (`blocks[p // block_tokens]`, offset `p % block_tokens`); everything before `start` is there.
    `wants_logits`: this row reaches the end of its known tokens, so one token will be sampled.
    `drafted`: the last so many of `tokens` are guesses of what will be sampled; such a row gets the
    logits after its last known token and after each guess, to see where the guesses hold.  Keys and
    values of a guess that did not hold are written over before anything reads them."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    wants_logits: bool
    drafted: int = 0

    @property
    def logit_rows(self) -> int:
        return self.drafted + 1 if self.wants_logits else 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows with one token each (decodes) come first, then all others: chunks of prompts, and decodes
    with guesses."""

    rows: Sequence[Row]

    @property
    def token_count(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepBounds:
    """The most that an engine puts into one step: `rows`, each with a decode and `guesses`, and
    `prompt_tokens` of chunks beside them."""

    rows: int
    prompt_tokens: int
    guesses: int

    @property
    def logit_rows(self) -> int:
        return self.rows * (1 + self.guesses)

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.logit_rows


class Runner(Protocol):
    """A model on a device, with its paged KV memory.  Not thread-safe: the engine loop owns it."""

    @property
    def block_tokens(self) -> int: ...

    @property
    def kv_blocks(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_tokens(self) -> int: ...

    def run(self, batch: Batch) -> Tensor:
        """Write keys and values, and return float32 logits `(Σ logit_rows, vocab_size)`, in
        row order.  The tensor is the caller's until the next `run`."""
        ...

    def sample(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
        """A token for each row of `logits`, as `executor.sampler` says; they stay as they were."""
        ...

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """Make freed blocks read as zero before another sequence may hold them (property P7)."""
        ...

    def are_zero(self, blocks: Sequence[int]) -> bool:
        """Whether they do: read back from the device's memory, for a purge's record."""
        ...
