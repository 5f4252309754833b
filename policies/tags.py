"""What a request's cost is filed under beside who asked: tags, each a name and a value.

A tag comes from the key that asks (given when it was made), from the token that asks (a claim of its
issuer's), or from the request itself (the client's `metadata`).  Only the first two bind budgets: what a
client says of itself is for reports (DESIGN.md, settled question 9).

Refuses to know: where tags are kept, what has been spent under them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from policies.facts import CredentialKind, Principal

TAGS_MAX = 16
NAME_CHARS_MAX = 64
VALUE_CHARS_MAX = 128
CLIENT_VALUE_CHARS_MAX = 512
"""OpenAI's bound for `metadata`; a value that a budget is kept under is shorter, like any id."""
_SEPARATORS = frozenset("=,")
"""A budget is named `name=value`, and what a report is cut by is a list with commas."""


class Origin(StrEnum):
    """Who says so, the one that is believed most first."""

    KEY = "key"
    CLAIM = "claim"
    CLIENT = "client"


class Tag(NamedTuple):
    name: str
    value: str
    origin: Origin

    @property
    def binding(self) -> bool:
        """Whether a budget may hang on it."""
        return self.origin is not Origin.CLIENT


def of_request(principal: Principal, metadata: Mapping[str, str]) -> tuple[Tag, ...]:
    """What a request is filed under, by name: one value each, and no client has a word over its key or its
    token."""
    if not principal.tags and not metadata:
        return ()
    is_key = principal.credential.kind is CredentialKind.KEY
    own = Origin.KEY if is_key else Origin.CLAIM
    return merged(
        (
            *(Tag(name, value, Origin.CLIENT) for name, value in metadata.items()),
            *(Tag(name, value, own) for name, value in principal.tags),
        )
    )


def merged(tags: Iterable[Tag]) -> tuple[Tag, ...]:
    """One a name, in their order: a key's over a claim's over the client's."""
    found: dict[str, Tag] = {}
    rank = {origin: place for place, origin in enumerate(Origin)}
    for tag in tags:
        there = found.get(tag.name)
        if there is None or rank[tag.origin] < rank[there.origin]:
            found[tag.name] = tag
    return tuple(found[name] for name in sorted(found))


def spelt(name: str, value: str) -> str:
    """As budgets are named."""
    return f"{name}={value}"


def parse(text: str) -> tuple[str, str]:
    """Name and value of `name=value`.  ValueError, which says what is wrong, where it is no binding tag."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError("a tag is a name and a value with '=' between, such as team=search")
    if why := fault(name, value):
        raise ValueError(why)
    return name, value


def fault(name: str, value: str) -> str | None:
    """What keeps this from being a tag that binds budgets."""
    if not _is_line(name, NAME_CHARS_MAX) or _SEPARATORS & set(name):
        return (
            f"a tag's name has 1 to {NAME_CHARS_MAX} printable characters without '=' and ',', "
            "and no space at either end"
        )
    if not _is_line(value, VALUE_CHARS_MAX):
        return (
            f"a tag's value has 1 to {VALUE_CHARS_MAX} printable characters, and no space at either "
            "end"
        )
    return None


def _is_line(text: str, most: int) -> bool:
    return 0 < len(text) <= most and text.isprintable() and text == text.strip()
