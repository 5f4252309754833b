"""JSON as RFC 8259 and I-JSON (RFC 7493) mean it: `loads` gives one value, `decode` a typed one.

Refuses what msgspec alone lets through: an object that repeats a key (two readers would disagree on
its meaning), integers beyond 19 digits, nesting beyond `DEPTH`, bodies that are structure rather than
content.  msgspec itself refuses bad UTF-8, NaN, lone surrogates, floats that overflow, trailing data.
Refuses to know: HTTP, fields, models.  Every refusal is an `ApiError` 400 that says where, by offset
or by key, and never repeats a value.

Theory of operation.  Cheap counts over the raw bytes are upper bounds of the counts over the
structure, since text inside strings can only add.  Where the upper bound is within the limit,
nothing more is looked at; otherwise the strings are cut out and the exact count decides.  A repeated
key shows as fewer keys in the decoded value than key positions in the source.
Source: SECURITY.md §4 W14, API.md §2 (1, 4).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from gateway.errors import ApiError, invalid
from gateway.quoting import WORD_CHARS_MAX, fit

DEPTH = 64
NESTS = 20_000
"""Objects and arrays together: each costs far more memory than its two bytes on the wire."""
STRINGS = 65_536
"""Keys included."""
DIGITS = 19
FRACTION_DIGITS = 64
LONG_FRACTIONS = 1_000

_T = TypeVar("_T")
_CODE = "invalid_json"
_BOM = b"\xef\xbb\xbf"
_KEY_END = re.compile(rb'"[ \t\r\n]*:')
"""The end of a key, and of some strings: an upper bound, quicker than cutting out few strings."""
_FEW_QUOTES = 2_000
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_TOO_MANY_ZEROS = b"0" * (DIGITS + 1)
_DIGIT_RUN = re.compile(rb"[0-9]{%d,}" % (DIGITS + 1))
_OFFSET = re.compile(r"^JSON is malformed: (.*) \(byte (\d+)\)$")
_PATH = re.compile(r"^(.*?)(?: - at (`key` in )?`\$\.?(.*)`)?$", re.DOTALL)
_NAME_KEY_BYTES = 65_536  # above this a repeated key is refused without looking up its name


def loads(body: bytes) -> object:
    """The one JSON value that `body` is, or ApiError 400."""
    if not body:
        raise _bad("The request body is empty; a JSON value was expected.")
    if body.startswith(_BOM):
        raise _bad("The request body begins with a byte order mark; send plain UTF-8.")
    outside: bytes | None = None
    quotes = body.count(b'"')
    if quotes > 2 * STRINGS and _without_escapes(body).count(b'"') > 2 * STRINGS:
        raise _bad(f"The JSON holds more than {STRINGS} strings; send fewer.")
    nests = body.count(b"[") + body.count(b"{")
    if nests > NESTS:
        outside = _outside_strings(body)
        nests = outside.count(b"[") + outside.count(b"{")
        if nests > NESTS:
            raise _bad(f"The JSON holds more than {NESTS} objects and arrays; send fewer.")
    if _TOO_MANY_ZEROS in body.translate(_ZEROS):
        outside = _outside_strings(body) if outside is None else outside
        _check_digits(outside)
    value = _parse(body)
    keys = _count_keys(value, nests)
    if quotes > _FEW_QUOTES or keys != len(_KEY_END.findall(body)):
        outside = _outside_strings(body) if outside is None else outside
        if keys != outside.count(b":"):
            raise _repeated(body)
    return value


def decode(body: bytes, type_: type[_T]) -> _T:
    """`body` as a `type_`, usually a msgspec struct, or ApiError 400 with `param` where one field is
    at fault ("messages[0].role")."""
    loads(body)
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError as fault:
        raise misfit(str(fault), type_) from None
    except msgspec.DecodeError as fault:  # `loads` has passed it: only a stricter type can object
        raise _malformed(str(fault)) from None


def _parse(body: bytes) -> object:
    try:
        value: object = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.ValidationError:
        raise _bad("The JSON holds a number too large for a 64-bit float.") from None
    except msgspec.DecodeError as fault:
        raise _malformed(str(fault)) from None
    return value


def _count_keys(value: object, nests: int) -> int:
    """Keys of all objects in `value`, walked a level at a time.  `nests` is an upper bound of the
    objects and arrays in it: once all are found, what is left can only be plain values."""
    keys = depth = found = 0
    level: list[Any] = [value] if type(value) is dict or type(value) is list else []
    while level:
        depth += 1
        if depth > DEPTH:
            raise _too_deep()
        found += len(level)
        keys += sum(len(item) for item in level if type(item) is dict)
        if found == nests:
            break
        level = [
            inner
            for item in level
            for inner in (item.values() if type(item) is dict else item)
            if type(inner) is dict or type(inner) is list
        ]
    return keys


def _without_escapes(body: bytes) -> bytes:
    """`body` less its escaped backslashes and quotes, so that each quote left opens or ends a string.
    Pairs are taken from the left of each run of backslashes, as a reader does."""
    return body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body


def _outside_strings(body: bytes) -> bytes:
    return b"".join(_without_escapes(body).split(b'"')[::2])


def _check_digits(outside: bytes) -> None:
    """A long fraction is precise, a long integer is wrong, and megabytes of either are an attack:
    turning digits into an integer costs their number squared."""
    for seen, run in enumerate(_DIGIT_RUN.finditer(outside)):
        if seen == LONG_FRACTIONS:
            raise _bad(
                f"The JSON holds more than {LONG_FRACTIONS} numbers of over {DIGITS} digits."
            )
        is_fraction = outside[run.start() - 1 : run.start()] == b"."
        if not is_fraction or run.end() - run.start() > FRACTION_DIGITS:
            raise _bad(
                f"The JSON holds a number of {run.end() - run.start()} digits; "
                f"at most {DIGITS} are accepted."
            )


def _bad(message: str) -> ApiError:
    return invalid(message, code=_CODE)


def _too_deep() -> ApiError:
    return _bad(f"The JSON is nested deeper than {DEPTH} levels.")


def _malformed(says: str) -> ApiError:
    if match := _OFFSET.match(says):
        return _bad(f"The body is not valid JSON: {match[1]} near byte {match[2]}.")
    if "UTF-8" in says:
        return _bad("The body is not valid UTF-8.")
    return _bad("The body is not valid JSON: it ends too early.")


def _repeated(body: bytes) -> ApiError:
    if len(body) > _NAME_KEY_BYTES:
        return _bad("The JSON holds an object that repeats a key; each may stand once.")
    names: list[str] = []

    def note(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                names.append(name)
            seen.add(name)

    json.loads(body, object_pairs_hook=note)
    name = json.dumps(names[0][:WORD_CHARS_MAX] if names else "")
    return _bad(f"The JSON holds an object that repeats the key {name}.")


_MISSING = re.compile(r"^Object missing required field `(.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)


def misfit(says: str, kind: object) -> ApiError:
    """Word a msgspec fault at a `kind`.  Its own words quote the value where a choice is wrong; ours name
    the choices instead."""
    match = _PATH.match(says)
    assert match is not None  # the pattern accepts every string
    what, in_key, path = match[1], match[2], match[3] or ""
    param = path.replace("[...]", "") or None
    if missing := _MISSING.match(what):
        param = f"{param}.{missing[1]}" if param else missing[1]
        return invalid(f"'{param}' is required and was not given.", param=param)
    if unknown := _UNKNOWN.match(what):
        name = fit(unknown[1])
        param = f"{param}.{name}" if param else name
        return invalid(f"'{param}' is not a known field here.", param=param)
    where = f"A key of '{param}'" if in_key else f"'{param}'" if param else "The body"
    if what.startswith("Invalid "):
        accepted = ", ".join(_choices(kind, param))
        listed = f": {accepted}" if accepted else ""
        return invalid(f"{where} is not one of the accepted values{listed}.", param=param)
    if what.startswith("Expected "):
        asked = what.removeprefix("Expected ").replace("`", "")
        return invalid(f"{where} is of the wrong kind: expected {asked}.", param=param)
    return invalid(f"{where} was not accepted.", param=param)


def _choices(kind: object, param: str | None) -> Iterator[str]:
    """What a field of `kind` may be, where that is a closed set."""
    for each in msgspec.structs.fields(kind) if msgspec.inspect.is_struct_type(kind) else ():
        if each.encode_name == param:
            for option in (each.type, *get_args(each.type)):
                if get_origin(option) is Literal:
                    yield from map(str, get_args(option))
