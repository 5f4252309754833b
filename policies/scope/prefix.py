"""Which beginning of a prompt may be shared, from who supplied its pieces.

    [registered template][one registered document]   the scaffold before and between them included

keeps its labels; everything after it is the user's, further documents too, and the scaffold behind it.
A label never depends on what a piece says.  The scaffold has no label of its own: it takes that of
whoever supplied what follows it, and what it is, is part of the context (`context.Asked`).

Refuses to know: text, tokens beyond their number.  Source: DESIGN.md, settled 2 to 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from policies.scope.blocks import Segment, Step, rising
from policies.scope.labels import BOTTOM, Label, Level, join


class Supplier(StrEnum):
    SCAFFOLD = "scaffold"  # the model's chat template
    REGISTERED = "registered"
    CLIENT = "client"
    MIXED = "mixed"  # the template changed what it was given: nobody can tell any more


@dataclass(frozen=True, slots=True)
class Supplied:
    """Consecutive tokens.  `label`: of whom registered text is for; of mixed text, the join of all that
    is in it; None for the rest."""

    tokens: int
    supplier: Supplier
    label: Label | None = None


Kept = Callable[[Label], bool]
"""Whether there may be entries of a registered beginning with this label at all.  Where there can be
none the text is better the user's: behind blocks that are never there no others are found."""


def computed_beforehand(label: Label) -> bool:
    """Each by itself: a tenant's template, a document (`gateway.warming`)."""
    return label.tenant is not None and not (label.templates and label.documents)


def _anything(_: Label) -> bool:
    return True


def shared_until(pieces: Sequence[Supplied], kept: Kept = _anything) -> int:
    """How many of the pieces keep their labels.  The last of these is registered text."""
    until, lower = 0, BOTTOM
    template: Label | None = None
    document: Label | None = None
    for place, piece in enumerate(pieces):
        if piece.supplier is Supplier.SCAFFOLD:
            continue
        label = piece.label
        if piece.supplier is not Supplier.REGISTERED or label is None:
            break
        if label.level is Level.DOCUMENTS:
            if document not in {None, label} or len(label.documents) != 1:
                break
            document = label
        elif document is None and template in {None, label} and label.level <= Level.TENANT:
            template = label
        else:
            break
        lower = join(lower, label)
        if not kept(lower):
            break
        until = place + 1
    return until


def steps(pieces: Sequence[Supplied], user: Label, kept: Kept = _anything) -> tuple[Step, ...]:
    """The labels of a prompt, lowest first.  The last one is the user's, of no tokens at all where
    registered text is the end of the prompt: what is generated has it."""
    until = shared_until(pieces, kept)
    rest = [Segment(_above(user, piece), piece.tokens) for piece in pieces[until:]]
    return _named(rising([*_shared(pieces[:until]), *rest, Segment(user, 0)]))


def registered_steps(pieces: Sequence[Supplied]) -> tuple[Step, ...]:
    """Of the beginning that may be shared alone, to compute it at registration.  None where nothing may."""
    return _named(rising(_shared(pieces[: shared_until(pieces)])))


def _shared(pieces: Iterable[Supplied]) -> list[Segment]:
    return [Segment(piece.label or BOTTOM, piece.tokens) for piece in pieces]


def _above(user: Label, piece: Supplied) -> Label:
    return user if piece.label is None else join(user, piece.label)


def _named(found: tuple[Step, ...]) -> tuple[Step, ...]:
    """Without the scaffold's step: a step reaches back to where the one before it ends."""
    return found[1:] if found and found[0].label == BOTTOM else found
