"""Who may do what with a registered document or template, and what a template's variables become.

A document is its owner's: they alone read its text back, change it and widen its list of readers.  A
tenant's administrator sees that it is there, may narrow the list and delete it, and never sees what it
says, its title included; so they may not put themselves on the list either.  A reader asks a model about
it, and never sees who else may.  A template is the operator's (public) or a tenant's, by its
administrator; everybody whom it is for may use it.  Operators have no right in a tenant's texts.

Refuses to know: where texts are kept, HTTP.  Source: DESIGN.md, settled 4 and 7; SECURITY.md P8.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from policies.access import Owner
from policies.facts import Principal, Role
from policies.scope.decision import Acl, names

VARIABLES_MAX: Final = 64
VALUE_CHARS_MAX: Final = 32_768
PLACES_MAX: Final = 1024
"""Of variables in one template, counted as often as they stand there."""
FILLED_CHARS_MAX: Final = 2**20
"""What values come to in all their places together: a value that stands in a thousand is a thousand times as
long, and is counted before it is written out."""
_VARIABLE = re.compile(r"\{\{([a-z][a-z0-9_]{0,63})\}\}", re.ASCII)


class Right(StrEnum):
    SEE = "see"  # that it is there, its versions, when it ends
    TITLE = "title"
    READERS = "readers"  # see who may read it
    TEXT = "text"  # read it back
    CHANGE = "change"
    GRANT = "grant"
    NARROW = "narrow"
    DELETE = "delete"


NONE: Final = frozenset[Right]()
ALL: Final = frozenset(Right)
_ADMINISTRATOR: Final = frozenset({Right.SEE, Right.READERS, Right.NARROW, Right.DELETE})
_READER: Final = frozenset({Right.SEE, Right.TITLE})


def document_rights(principal: Principal, owner: Owner, acl: Acl, now_ns: int) -> frozenset[Right]:
    """Nothing where it has lapsed, for its owner too.  As much work for one answer as for another."""
    mine = (
        bool(principal.tenant) & (principal.tenant == owner.tenant) & (owner.tenant == acl.tenant)
    )
    live = acl.expires_ns is None or now_ns < acl.expires_ns
    owns = owner == Owner(principal.tenant or "", principal.issuer, principal.user)
    administers = Role.TENANT_ADMIN in principal.roles
    reads = names(acl, principal)
    rights = (
        ALL
        if owns
        else NONE.union(_READER if reads else NONE, _ADMINISTRATOR if administers else NONE)
    )
    return rights if mine & live else NONE


def template_rights(principal: Principal, tenant: str | None) -> frozenset[Right]:
    """`tenant`: the template's; None: it is public."""
    if may_register_template(principal, tenant):
        return ALL
    return _READER if principal.tenant and tenant in {None, principal.tenant} else NONE


def may_register_document(principal: Principal) -> bool:
    return bool(principal.tenant)


def may_register_template(principal: Principal, tenant: str | None) -> bool:
    if tenant is None:
        return principal.tenant is None and Role.OPERATOR in principal.roles
    return bool(tenant) and principal.tenant == tenant and Role.TENANT_ADMIN in principal.roles


class Listed(Protocol):
    """Who may read: an `Acl`'s part, or a registry's."""

    @property
    def users(self) -> frozenset[tuple[str, str]]: ...
    @property
    def groups(self) -> frozenset[tuple[str, str]]: ...
    @property
    def roles(self) -> frozenset[Role]: ...


def narrower(new: Listed, old: Listed) -> bool:
    """Whether nobody may read by `new` who may not by `old`."""
    return new.users <= old.users and new.groups <= old.groups and new.roles <= old.roles


def widest_first(acls: Mapping[str, Acl]) -> list[str]:
    """Ids in the order in which their texts stand in a prompt: a function of the lists alone."""

    def width(document: str) -> tuple[int, int, int, str]:
        acl = acls[document]
        return -len(acl.roles), -len(acl.groups), -len(acl.users), document

    return sorted(acls, key=width)


@dataclass(frozen=True, slots=True)
class Piece:
    """Of a template, in order: its own text, or the name of the variable that stands there."""

    text: str = field(repr=False)
    variable: str | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """`head` ends where the line of the first variable begins, so that a document put behind it tears
    no sentence.  `rest` begins with that line; what of it stands before the variable is still the
    tenant's, as its label says."""

    head: str = field(repr=False)
    rest: tuple[Piece, ...]
    variables: tuple[str, ...]

    @property
    def places(self) -> tuple[str, ...]:
        """The variable of each place, in order."""
        return tuple(each.variable for each in self.rest if each.variable is not None)


def outline(text: str) -> Outline:
    first = _VARIABLE.search(text)
    cut = len(text) if first is None else text.rfind("\n", 0, first.start()) + 1
    pieces: list[Piece] = []
    end, named = cut, dict[str, None]()
    for found in _VARIABLE.finditer(text, cut):
        pieces += [Piece(text[end : found.start()]), Piece("", found[1])]
        named[found[1]] = None
        end = found.end()
    pieces.append(Piece(text[end:]))
    kept = tuple(each for each in pieces if each.text or each.variable is not None)
    return Outline(text[:cut], kept, tuple(named))


def variables_fault(places: Iterable[str], given: Mapping[str, object]) -> str | None:
    """What is wrong with the values of a template's variables, by name, or None.  `places`: the variable of
    each place where one stands."""
    wanted = Counter(places)
    if missing := [name for name in wanted if name not in given]:
        return f"no value for {_listed(missing)}"
    if unknown := [name for name in given if name not in wanted]:
        return f"the template has no variable {_listed(unknown)}"
    for name in wanted:
        value = given[name]
        if not isinstance(value, str) or len(value) > VALUE_CHARS_MAX:
            return f"{name}: expected a string of at most {VALUE_CHARS_MAX} characters"
    chars = sum(len(str(given[name])) * count for name, count in wanted.items())
    if chars > FILLED_CHARS_MAX:
        return f"in all their places they come to {chars} characters, of at most {FILLED_CHARS_MAX}"
    return None


def _listed(names: list[str]) -> str:
    shown = ", ".join(ascii(name[:64]) for name in names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
