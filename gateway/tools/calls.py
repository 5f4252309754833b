"""A call of a tool, whole and in the pieces in which it is streamed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is the text of a JSON object, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """`index`: of the call among its choice's.  The first part of each has `id` and `name`; the `arguments` of
    all, joined, are the call's."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None
