"""What the timing audit sends, in which order: trials drawn from a seed, as data.

Each round has one trial of every cell, in an order of its own, so that drift meets all cells alike and a
run that is stopped is still balanced.  In a trial the victim sends a fresh secret prefix, or nobody does;
then the attacker sends secret and control, each with the same end, in an order that a coin decides.
Refuses to know addresses, tokens of tenants, and time.  Source: SECURITY.md §3.1–2; Gu et al. 2025 (letters
separated by spaces: a letter is at least one token of any tokeniser).
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from security.timing_audit import CellName, Design, Level

END_LETTERS: Final = 16


class Role(StrEnum):
    """Whose token, and whose connection."""

    ATTACKER = "attacker"
    COLLEAGUE = "colleague"  # another user of the attacker's tenant
    STRANGER = "stranger"  # a user of another tenant


VICTIM: Final = {
    Level.SAME_USER: Role.ATTACKER,
    Level.SAME_TENANT: Role.COLLEAGUE,
    Level.CROSS_TENANT: Role.STRANGER,
    Level.AFTER_REVOKE: Role.ATTACKER,
}


class Act(StrEnum):
    WARM = "warm"  # the victim's request
    WITHDRAW = "withdraw"  # the document's right is taken, acknowledged and given again
    SETTLE = (
        "settle"  # another text behind the document: from here on its own pages are there for both
    )
    SECRET = "secret"  # noqa: S105 — measured
    CONTROL = "control"  # measured


@dataclass(frozen=True, slots=True)
class Step:
    """`role` None: the owner of the document."""

    act: Act
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """`index` is unique in a run; with the seed it gives the texts."""

    index: int
    cell: CellName
    secret_first: bool

    @property
    def uses_document(self) -> bool:
        return self.cell.level is Level.AFTER_REVOKE

    def steps(self) -> tuple[Step, ...]:
        warm: tuple[Step, ...] = ()
        if self.cell.level is not Level.FRESH:
            warm = (Step(Act.WARM, VICTIM[self.cell.level]),) * self.cell.victims
        if self.uses_document:
            warm += (Step(Act.WITHDRAW), Step(Act.SETTLE, Role.ATTACKER))
        secret, control = Step(Act.SECRET, Role.ATTACKER), Step(Act.CONTROL, Role.ATTACKER)
        return (*warm, *((secret, control) if self.secret_first else (control, secret)))

    def text(self, act: Act, design: Design) -> str:
        """What a step sends.  The victim's prefix is the secret's, to the letter."""
        if act is Act.CONTROL:
            return f"{self._letters('control', design)} {self._end(design)}"
        if act is Act.SETTLE:
            return self._letters("settle", design)
        secret = self._letters("secret", design)
        return secret if act is Act.WARM else f"{secret} {self._end(design)}"

    def _letters(self, kind: str, design: Design) -> str:
        return letters(f"{design.seed}/{self.index}/{kind}", design.prefix_tokens)

    def _end(self, design: Design) -> str:
        return letters(f"{design.seed}/{self.index}/end", END_LETTERS)


def trials(design: Design) -> Iterator[Trial]:
    rng = random.Random(f"{design.seed}/order")  # noqa: S311 — drawn again from the report's seed
    index = 0
    for _ in range(design.pairs):
        cells = list(design.cells)
        rng.shuffle(cells)
        for cell in cells:
            yield Trial(index, cell, rng.random() < 0.5)
            index += 1


def requests_of(design: Design) -> int:
    """How many requests a whole run makes, without those that register and withdraw."""
    settling = sum(cell.level is Level.AFTER_REVOKE for cell in design.cells)
    return design.pairs * (settling + sum(cell.victims + 2 for cell in design.cells))


def letters(seed: str, count: int) -> str:
    rng = random.Random(seed)  # noqa: S311 — who has the seed may know it; nobody guesses the seed
    return " ".join(rng.choices(string.ascii_lowercase, k=count))
