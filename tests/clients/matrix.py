"""Which endpoint works with which client: what the tests declare, what a run found, and the table of it.

`summary` is for who wants to know whether their client works, `table` for who wants to know what was tried.
A test says `@pytest.mark.covers(what)`; its endpoint and its client are its parameters `api` and `client`, or the
mark's.  A cell is a deviation where DEVIATIONS has it: the test then asserts how that client differs.  Refuses to know: pytest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Final, NamedTuple


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Cell(NamedTuple):
    endpoint: str
    what: str
    client: str


NONE: Final = "–"  # noqa: RUF001 — the sign for what there is not
FAILS: Final = "**fails**"
NOT_RUN: Final = "not run"

ENDPOINTS: Final = {
    "chat": "POST /v1/chat/completions",
    "completions": "POST /v1/completions",
    "models": "GET /v1/models, /v1/models/{id}",
    "responses": "POST /v1/responses",
    "messages": "POST /v1/messages",
    "count_tokens": "POST /v1/messages/count_tokens",
}
CLIENTS: Final = (
    "openai-python",
    "openai-node",
    "AI SDK",
    "LangChain",
    "LangChain.js",
    "anthropic-python",
)
DEVIATIONS: Final[Mapping[Cell, str]] = {
    Cell("chat", "a spent budget is not tried again", "AI SDK"): (
        "tries every 429 again, a spent budget too: it reads neither `x-should-retry` nor the code. Each try is refused "
        "at once and costs nothing."
    ),
    Cell("responses", "a model must call (`required`)", "LangChain.js"): (
        'leaves `tool_choice: "required"` out where it speaks Responses; to name the tool works.'
    ),
}


Found = Mapping[Cell, Outcome]


def summary(cells: Iterable[Cell], found: Found | None = None) -> str:
    """Endpoint by client, as Markdown."""
    declared = set(cells)
    clients = _clients(declared)
    notes: list[str] = []
    lines = _head(clients)
    for endpoint, path in ENDPOINTS.items():
        shown = []
        for client in clients:
            parts = {
                _shown(cell, declared, found, notes)
                for cell in sorted(declared)
                if (cell.endpoint, cell.client) == (endpoint, client)
            }
            shown.append(_worst(parts))
        lines.append(f"| `{path}` | " + " | ".join(shown) + " |")
    return _with_notes(lines, notes)


def _worst(parts: Collection[str]) -> str:
    for wrong in (FAILS, NOT_RUN):
        if wrong in parts:
            return wrong
    if not parts:
        return NONE
    return " ".join(["✓", *sorted(set(parts) - {"✓"})])


def table(cells: Iterable[Cell], found: Found | None = None) -> str:
    """Markdown, in the order of `cells` within an endpoint.  Without `found` every declared cell counts as passed; with it, as the run had it."""
    declared = list(dict.fromkeys(cells))
    clients = _clients(declared)
    order = list(ENDPOINTS)
    notes: list[str] = []
    rows = list(dict.fromkeys(cell[:2] for cell in declared))
    rows.sort(key=lambda row: order.index(row[0]))
    lines = _head(clients)
    for endpoint, group in groupby(rows, key=lambda row: row[0]):
        lines.append(f"| **`{ENDPOINTS[endpoint]}`** |" + " |" * len(clients))
        for _, what in group:
            shown = [_shown(Cell(endpoint, what, name), declared, found, notes) for name in clients]
            lines.append(f"| {what} | " + " | ".join(shown) + " |")
    return _with_notes(lines, notes)


def _clients(declared: Collection[Cell]) -> list[str]:
    return [name for name in CLIENTS if any(cell.client == name for cell in declared)]


def _head(clients: Sequence[str]) -> list[str]:
    return ["| | " + " | ".join(clients) + " |", "|---" * (len(clients) + 1) + "|"]


def _with_notes(lines: Sequence[str], notes: Sequence[str]) -> str:
    numbered = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return "\n".join([*lines, "", *numbered]).rstrip() + "\n"


def _shown(cell: Cell, declared: Collection[Cell], found: Found | None, notes: list[str]) -> str:
    if cell not in declared:
        return NONE
    outcome = Outcome.PASSED if found is None else found.get(cell, Outcome.SKIPPED)
    if outcome is not Outcome.PASSED:
        return FAILS if outcome is Outcome.FAILED else NOT_RUN
    if cell not in DEVIATIONS:
        return "✓"
    note = f"{cell.client} {DEVIATIONS[cell]}"
    if note not in notes:
        notes.append(note)
    return f"{notes.index(note) + 1}"
