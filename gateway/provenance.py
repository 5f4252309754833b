"""What registered text a request begins with, piece by piece, and by which right.

    [template, to the line of its first variable][documents, the widest ACL first][rest of the template]

All of it stands before any text of the client's own messages.  Pieces are never joined: each is tokenised
on its own with special tokens disabled.  A piece's label says who supplied it; what a block gets is the
join of all up to there (`policies.scope.blocks`).  Where a piece is set off from the one before, the white
space stands at its own beginning, so that a piece never depends on what follows it.

Refuses to know: tokens, chat templates, where texts are kept.  Source: DESIGN.md, settled 2–4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from policies.scope.decision import Decision
from policies.scope.labels import Label

GAP = "\n\n"
"""Between registered texts, and between them and the client's."""


class PartKind(StrEnum):
    TEMPLATE = "template"
    DOCUMENT = "document"
    VARIABLE = "variable"  # a client's value, put into a template


@dataclass(frozen=True, slots=True)
class Part:
    """`id` names the template or document; a variable's value carries its template's."""

    kind: PartKind
    id: str
    label: Label
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Resolved:
    """`decision` covers the label of every part; `expires_ns` (monotonic) is when the first of the
    documents lapses."""

    parts: tuple[Part, ...]
    decision: Decision
    expires_ns: int | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)
