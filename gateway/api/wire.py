"""Small change of the endpoints: bytes of JSON, the variable end of a path, a query's values."""

from __future__ import annotations

import unicodedata
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Scope

from gateway.errors import invalid
from gateway.quoting import fit
from security.api_keys import names_credential

VALUES_MAX = 500
_NO_TEXT = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Control characters, halves of surrogates, ends of lines and of paragraphs (Unicode's categories)."""
_UNSEEN = frozenset(
    "\ufeff\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
"""The mark of a byte order, and what turns the direction of all that follows (UAX #9)."""


def json_bytes(value: object) -> bytes:
    return msgspec.json.encode(value)


def path_value(scope: Scope, prefix: str) -> str:
    """What follows `prefix` in a path that the router has matched."""
    path = scope["path"]
    assert isinstance(path, str)
    assert path.startswith(prefix)
    return path[len(prefix) :]


def check_line(text: str, param: str) -> None:
    """Whatever a client names or notes is one line of text: a database need not keep a NUL (PostgreSQL does
    not), and nobody looks for what they cannot see.  Raises ApiError 400."""
    if not text.isprintable() and any(map(_is_no_text, text)):
        raise invalid(f"{fit(param)}: expected one line without control characters.", param=param)


def _is_no_text(char: str) -> bool:
    return unicodedata.category(char) in _NO_TEXT or char in _UNSEEN


def check_kept(text: str, param: str) -> None:
    """What is kept and shown for years is one line, and no credential.  Raises ApiError 400."""
    if names_credential(text):
        raise invalid(
            f"{param}: this is a credential, which is kept nowhere. Send the id of a key (the part "
            "after 'lg_'), the jti of a token, or a name.",
            param=param,
        )
    check_line(text, param)


def query_lists(scope: Scope, one: frozenset[str], many: frozenset[str]) -> dict[str, list[str]]:
    """The query's values by name, where those of `many` may come more than once, as `name=a&name=b` and
    as `name[]=a&name[]=b`.  Raises ApiError 400 as `query`, and for more than 500 values."""
    text = scope.get("query_string", b"").decode("latin-1")
    found: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(
            text,
            keep_blank_values=True,
            strict_parsing=bool(text),
            max_num_fields=VALUES_MAX,
            errors="strict",
        )
    except ValueError as why:
        raise invalid(
            f"The query string is not of the form name=value&name=value in UTF-8, of at most {VALUES_MAX} values."
        ) from why
    for given, value in pairs:
        name = given.removesuffix("[]") if given.removesuffix("[]") in many else given
        if name not in one | many:
            expected = ", ".join(sorted(one | many))
            raise invalid(
                f"The query has the unknown name '{fit(name)}'. Expected: {expected}.", param=name
            )
        if name in found and name in one:
            raise invalid(f"The query names '{name}' twice.", param=name)
        check_line(value, name)
        found.setdefault(name, []).append(value)
    return found


def query(scope: Scope, allowed: frozenset[str], *, begins: str | None = None) -> dict[str, str]:
    """The query's values by name.  Raises ApiError 400 on a repeated name, and on one that is neither in
    `allowed` nor `begins` so."""
    text = scope.get("query_string", b"").decode("latin-1")
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(
            text,
            keep_blank_values=True,
            strict_parsing=bool(text),
            max_num_fields=32,
            errors="strict",
        )
    except ValueError as why:
        raise invalid(
            "The query string is not of the form name=value&name=value in UTF-8."
        ) from why
    for name, value in pairs:
        if name not in allowed and not (begins and name.startswith(begins)):
            expected = (
                ", ".join([*sorted(allowed), *([f"{begins}NAME"] if begins else ())]) or "none"
            )
            raise invalid(
                f"The query has the unknown name '{fit(name)}'. Expected: {expected}.",
                param=name,
            )
        if name in found:
            raise invalid(f"The query names '{name}' twice.", param=name)
        check_line(value, name)
        found[name] = value
    return found
