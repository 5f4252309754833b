"""From labelled segments to the labels that a prompt's tokens, and its blocks, have.

KV at a position depends on all tokens before it, so a label is the join of all up to there: it only
rises.  A block has that of its last token, so one across a boundary takes the higher (C7); a block that
is not full has none, and is never shared.  Refuses to know: tokens.  Source: SECURITY.md §2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from policies.scope.chain import full_blocks
from policies.scope.labels import BOTTOM, Label, join


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens that one supplier gave.  `tokens` is how many; of none, it still counts for
    what comes after."""

    label: Label
    tokens: int

    def __post_init__(self) -> None:
        assert self.tokens >= 0


@dataclass(frozen=True, slots=True)
class Step:
    """From where the last one ended, up to `until` tokens of the prompt.  The last one's label is also
    that of whatever is generated."""

    label: Label
    until: int


def rising(segments: Iterable[Segment]) -> tuple[Step, ...]:
    """The labels of a prompt, each once, lowest first."""
    found: list[Step] = []
    label, until = BOTTOM, 0
    for segment in segments:
        label = join(label, segment.label)
        until += segment.tokens
        if found and found[-1].label == label:
            found.pop()
        found.append(Step(label, until))
    return tuple(found)


def block_labels(segments: Iterable[Segment], block_tokens: int) -> tuple[Label, ...]:
    """One label a full block."""
    steps = rising(segments)
    counts = full_blocks([step.until for step in steps], block_tokens)
    return tuple(
        step.label for step, count in zip(steps, counts, strict=True) for _ in range(count)
    )
