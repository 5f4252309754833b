"""The isolation matrix: in what two requests may differ, and whether one may then use what the other left.

A row has two halves, each a writer and a reader of one text.  The same scope must reuse *and* the other
must not: a cache that shares nothing passes every other test.  What a deployment cannot vary is shown with
the test that holds it instead; what it does not have yet is shown as such; neither is a pass.

Reuse is judged by usage: a reader's answer to the writer's text names more cached tokens than its answer
to a fresh text of the same shape.  Sharing that is not shown in usage is the timing audit's to find.
Refuses to know how requests are sent.  Source: SECURITY.md §1 (P1, P2), §2; DESIGN.md, questions 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from security.timing_audit import Outcome
from security.timing_audit_plan import Role


class Need(StrEnum):
    """What a half needs besides users of two tenants."""

    DOCUMENTS = "documents"
    TEMPLATES = "templates"
    SECOND_MODEL = "a second model"


@dataclass(frozen=True, slots=True)
class Ask:
    """`fields`: of the request.  `document`, `template`: one of two of equal text (0 or 1).  `model`: which
    of the server's.  `renewed`: the document's right is withdrawn and given again before.  `pastes`: the
    registered text stands before, as the client's own."""

    role: Role = Role.ATTACKER
    fields: Mapping[str, Any] = field(default_factory=dict)
    document: int | None = None
    template: int | None = None
    model: int = 0
    renewed: bool = False
    pastes: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """`says`: what is the same, and what is other.  `held_by`: the test that holds it on a server where
    nobody can vary it."""

    dimension: str
    says: tuple[str, str]
    same: tuple[Ask, Ask]
    other: tuple[Ask, Ask]
    needs: Need | None = None
    held_by: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A dimension that no request varies, and the test that holds it."""

    dimension: str
    by: str


def _varied(name: str, one: Any, another: Any) -> tuple[tuple[Ask, Ask], tuple[Ask, Ask]]:
    first, second = Ask(fields={name: one}), Ask(fields={name: another})
    return (first, first), (first, second)


def _tools(name: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}]


_PURE: Final = "tests/security/test_cache_matrix.py"
_OWN: Final = Ask()
_DOCUMENT, _TEMPLATE = Ask(document=0), Ask(template=0)

ROWS: Final = (
    Row(
        "user",
        ("one user", "another user of the tenant"),
        (_OWN, _OWN),
        (_OWN, Ask(Role.COLLEAGUE)),
    ),
    Row("tenant", ("one tenant", "another tenant"), (_OWN, _OWN), (_OWN, Ask(Role.STRANGER))),
    Row(
        "customer (safety_identifier)",
        ("one customer", "another, by one key"),
        *_varied("safety_identifier", "customer-a", "customer-b"),
    ),
    Row(
        "customer (user)",
        ("one customer", "another, by one key"),
        *_varied("user", "end-a", "end-b"),
    ),
    Row(
        "prompt_cache_key",
        ("one key", "another key"),
        *_varied("prompt_cache_key", "key-a", "key-b"),
    ),
    Row(
        "tools",
        ("the same tools", "another tool"),
        *_varied("tools", _tools("look_up"), _tools("look_out")),
        held_by=_PURE,
    ),
    Row(
        "document",
        ("after one document", "after another of equal text"),
        (_DOCUMENT, _DOCUMENT),
        (_DOCUMENT, Ask(document=1)),
        Need.DOCUMENTS,
    ),
    Row(
        "provenance",
        ("after a document", "after its text, pasted"),
        (_DOCUMENT, _DOCUMENT),
        (_DOCUMENT, Ask(pastes=True)),
        Need.DOCUMENTS,
    ),
    Row(
        "ACL version",
        ("one version", "withdrawn and given again"),
        (_DOCUMENT, _DOCUMENT),
        (_DOCUMENT, Ask(document=0, renewed=True)),
        Need.DOCUMENTS,
    ),
    Row(
        "template",
        ("one template", "another of equal text"),
        (_TEMPLATE, _TEMPLATE),
        (_TEMPLATE, Ask(template=1)),
        Need.TEMPLATES,
    ),
    Row(
        "model",
        ("one model", "another model"),
        (_OWN, _OWN),
        (_OWN, Ask(model=1)),
        Need.SECOND_MODEL,
        _PURE,
    ),
)
HELD: Final = tuple(
    Held(name, _PURE)
    for name in (
        "model revision (weights)",
        "adapter",
        "dtype, kernels and numerics",
        "tokeniser",
        "chat template",
        "locale",
        "region",
        "safety policy",
        "flags",
        "block size",
    )
)


class State(StrEnum):
    HOLDS = "holds"
    LEAKS = "LEAKS"
    UNPROVEN = "nothing proven"  # not even the same scope reuses
    NOT_VARIED = "not varied here"
    NOT_AVAILABLE = "not available"


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """`reused`: of `tried` readers, how many had tokens cached beyond those of a fresh text."""

    says: str
    tried: int
    reused: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`held_by`: the test that holds what is not varied.  `remark`: why it is not available."""

    dimension: str
    same: Half | None = None
    other: Half | None = None
    held_by: str | None = None
    remark: str = ""

    @property
    def state(self) -> State:
        if self.same is None or self.other is None:
            return State.NOT_AVAILABLE if self.held_by is None else State.NOT_VARIED
        if self.other.reused:
            return State.LEAKS
        if not self.same.tried or self.same.reused < self.same.tried or not self.other.tried:
            return State.UNPROVEN
        return State.HOLDS


def judge(rows: Sequence[Result]) -> tuple[Outcome, str]:
    """PASS only where every row that could be varied was, and held."""
    by_state = {state: [row.dimension for row in rows if row.state is state] for state in State}
    if leaks := by_state[State.LEAKS]:
        return Outcome.FAIL, f"What one scope left was reused in another: {', '.join(leaks)}."
    if unproven := by_state[State.UNPROVEN]:
        ask = (
            "Is there room to keep what is registered?"
            if by_state[State.HOLDS]
            else "Is the cache on?"
        )
        return Outcome.INCONCLUSIVE, (
            f"Nothing is reused even within one scope ({', '.join(unproven)}), so 'no reuse' across scopes "
            f"proves nothing. {ask}"
        )
    if absent := by_state[State.NOT_AVAILABLE]:
        return Outcome.INCONCLUSIVE, f"Not available on this server: {', '.join(absent)}."
    if not by_state[State.HOLDS]:
        return Outcome.INCONCLUSIVE, "Nothing was measured."
    return Outcome.PASS, (
        f"Reused within a scope and not across, in {len(by_state[State.HOLDS])} dimensions; "
        f"{len(by_state[State.NOT_VARIED])} more are held by tests."
    )
