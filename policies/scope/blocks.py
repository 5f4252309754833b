"""From labelled segments to the label of each block.

KV at a position depends on all tokens before it, so a block's label is the join of all labels up to its
last token: it only rises, and a block across a boundary takes the higher (C7).  A block that is not
full has none, and is never shared.  Refuses to know: tokens.  Source: SECURITY.md §2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
class Run:
    """Consecutive full blocks of one label."""

    label: Label
    blocks: int


def runs(segments: Iterable[Segment], block_tokens: int) -> tuple[Run, ...]:
    """The labels of all full blocks, in order, each label once."""
    assert block_tokens > 0
    found: list[Run] = []
    label, tokens, blocks = BOTTOM, 0, 0
    for segment in segments:
        label = join(label, segment.label)
        tokens += segment.tokens
        fresh = tokens // block_tokens - blocks
        if not fresh:
            continue
        blocks += fresh
        if found and found[-1].label == label:
            found[-1] = Run(label, found[-1].blocks + fresh)
        else:
            found.append(Run(label, fresh))
    return tuple(found)


def block_labels(segments: Iterable[Segment], block_tokens: int) -> tuple[Label, ...]:
    """One label a full block."""
    return tuple(run.label for run in runs(segments, block_tokens) for _ in range(run.blocks))
