"""Plain data to structs, collecting every fault instead of stopping at the first.

msgspec converts each leaf; this module only walks structs and the arrays and tables of them, so that
one mistyped field does not hide the next.  Knows no field by name.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec

from gateway.settings.faults import Fault
from gateway.settings.units import Address, IssuerName, KeySource, Memory, RedisUrl, Usd, Zone

S = TypeVar("S", bound=msgspec.Struct)
Check = Callable[[Any, str], Iterable[Fault]]
Checks = Mapping[type, Check]
_MISTYPED = re.compile(r"Expected (?P<expected>.+?), got (?P<got>.+?)(?: - at `.*)?", re.DOTALL)
_AT = re.compile(r" - at `.*", re.DOTALL)
_PATTERN = re.compile(r"Expected `str` matching regex .*", re.DOTALL)
_PARSERS: dict[type, Callable[[str], Any]] = {
    Address: Address.parse,
    Usd: Usd.parse,
    Memory: Memory.parse,
    Path: Path,
    Zone: Zone.parse,
    IssuerName: IssuerName.parse,
    KeySource: KeySource.parse,
    RedisUrl: RedisUrl.parse,
}
_MAY_BE_EMPTY = {RedisUrl: RedisUrl()}
_UNSHOWN = frozenset({RedisUrl})
"""What may hold a password."""
_AS_EXAMPLE = "Write it as in deploy/lockgate.example.toml."
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Draft(Generic[S]):
    """With faults it is fit only for finding more of them: a faulty optional field has its default,
    a faulty member of a collection is left out, a faulty section is its stand-in.  `incomplete` names
    the sections that lack a table which the file does have."""

    value: S
    faults: tuple[Fault, ...]
    incomplete: frozenset[str]


def decode(data: Mapping[str, Any], into: type[S], checks: Checks, **stand_ins: Any) -> Draft[S]:
    """`stand_ins`: one for each required field of `into`.  `checks` run on each struct of their type.
    Never raises for what is in `data`."""
    walk = _Walk(checks)
    value = walk.struct(data, into, "", stand_ins)
    assert value is not None, "a required section has no stand-in"
    return Draft(value, tuple(walk.faults), frozenset(walk.incomplete))


class _Walk:
    def __init__(self, checks: Checks) -> None:
        self.faults: list[Fault] = []
        self.incomplete: set[str] = set()
        self._checks = checks

    def struct(
        self, data: object, into: type[S], path: str, stand_ins: Mapping[str, Any] = NOTHING
    ) -> S | None:
        if not isinstance(data, dict):
            self._say(path, f"is {_kind(data)}", "a table")
            return None
        fields = {field.encode_name: field for field in msgspec.structs.fields(into)}
        for key in data:
            if key not in fields:
                near = difflib.get_close_matches(str(key), fields, n=1)
                fix = f"Did you mean {near[0]}?" if near else "Remove it."
                expected = "one of " + ", ".join(fields)
                self._say(_join(path, str(key)), "is not a field", expected, fix)
        values = dict(stand_ins)
        complete, faulty = True, False
        for key, field in fields.items():
            given = False
            if key in data:
                value = self._value(data[key], field.type, _join(path, key))
                if value is not None:
                    values[field.name] = value
                    given = True
                faulty |= not given
            elif field.required:
                self._say(_join(path, key), "is missing", "a value")
            if field.required and not given:
                complete &= field.name in values
                if not path:
                    self.incomplete.add(key)
        if not complete:
            return None
        built = into(**values)
        check = self._checks.get(into)
        if check is not None:
            found = check(built, path)
            # What a table lacks as a whole may be the very field that is at fault.
            self.faults.extend(each for each in found if not (faulty and each.path == path))
        return built

    def _value(self, data: object, kind: Any, path: str) -> Any:
        bare = _bare(kind)
        origin, args = typing.get_origin(bare), typing.get_args(bare)
        if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
            return self.struct(data, bare, path)
        if isinstance(bare, type) and bare in _PARSERS:
            return self._parsed(data, bare, path)
        if isinstance(bare, type) and issubclass(bare, Enum):
            return self._enum(data, bare, path)
        if origin is tuple and _walked(args[0]) and isinstance(data, list):
            items = [self._member(x, args[0], f"{path}[{i}]") for i, x in enumerate(data)]
            return self._leaf(tuple(x for x in items if x is not None), kind, path, len(data))
        if origin is dict and _walked(args[1]) and isinstance(data, dict):
            named = {key: self._member(x, args[1], _join(path, key)) for key, x in data.items()}
            for key in data:
                self._leaf(key, args[0], _join(path, key))
            return {key: x for key, x in named.items() if x is not None}
        return self._leaf(data, kind, path)

    def _member(self, data: object, kind: Any, path: str) -> Any:
        value = self._value(data, kind, path)
        if value is None:
            self.incomplete.add(re.split(r"[.\[]", path, maxsplit=1)[0])
        return value

    def _leaf(self, data: object, kind: Any, path: str, length: int | None = None) -> Any:
        """`length`: of the collection as written; when members were left out, their faults stand
        for it and its bounds are not judged."""
        if length is not None and isinstance(data, tuple) and len(data) != length:
            return data
        try:
            return msgspec.convert(data, kind)
        except msgspec.ValidationError as error:
            self.faults.append(_from_msgspec(path, str(error)))
            return None

    def _parsed(self, data: object, kind: type, path: str) -> Any:
        """A text that one of our own types reads."""
        if data == "" and kind in _MAY_BE_EMPTY:
            return _MAY_BE_EMPTY[kind]
        if not isinstance(data, str) or not data or "\0" in data:
            wrong = "is empty or holds NUL" if isinstance(data, str) else f"is {_kind(data)}"
            return self._say(path, wrong, "text in quotes")
        try:
            return _PARSERS[kind](data)
        except ValueError as error:
            wrong = "is no such URL" if kind in _UNSHOWN else f"is {data[:80]!r}"
            return self._say(path, wrong, str(error).removeprefix("Expected "))

    def _enum(self, data: object, kind: type[Enum], path: str) -> Any:
        options = {member.value: member for member in kind}
        if isinstance(data, str) and data in options:
            return options[data]
        wrong = f"is {data[:80]!r}" if isinstance(data, str) else f"is {_kind(data)}"
        return self._say(path, wrong, "one of " + ", ".join(f'"{value}"' for value in options))

    def _say(self, path: str, wrong: str, expected: str, fix: str = _AS_EXAMPLE) -> None:
        self.faults.append(Fault(path or "(file)", wrong, expected, fix))


def _from_msgspec(path: str, message: str) -> Fault:
    """A sentence of msgspec's, taken apart.  A pattern is explained in words, not as a regex."""
    inner = re.search(r" - at `(?:key in )?\$(.*)`", message)
    if inner is not None and inner[1] != "[...]":
        path += inner[1]
    if _PATTERN.fullmatch(message):
        expected = "a name of letters, digits, '.', '_' and '-' (tenants, plans: lower case)"
        return Fault(path, "is not a valid name", expected, "Rename it.")
    mistyped = _MISTYPED.fullmatch(message)
    if mistyped is not None:
        wrong = f"is {mistyped['got']}".replace("`", "")
        expected = mistyped["expected"].replace("`", "").removesuffix(" | null")
        return Fault(path, wrong, expected, _AS_EXAMPLE)
    text = _AT.sub("", message).replace("`", "")
    if "datetime" in text:
        text = "a date and time with its zone, such as 2026-10-01T00:00:00Z (no quotes)"
    return Fault(path, "has a wrong value", text.removeprefix("Expected "), _AS_EXAMPLE)


def _bare(kind: Any) -> Any:
    """The type inside `Annotated[…]` and `… | None`."""
    if typing.get_origin(kind) is typing.Annotated:
        return _bare(typing.get_args(kind)[0])
    options = [arg for arg in typing.get_args(kind) if arg is not type(None)]
    if type(None) in typing.get_args(kind) and len(options) == 1:
        return _bare(options[0])
    return kind


def _walked(kind: Any) -> bool:
    return isinstance(kind, type) and (kind in _PARSERS or issubclass(kind, msgspec.Struct | Enum))


def _join(path: str, key: str) -> str:
    shown = key if key.replace("-", "").replace("_", "").isalnum() else f'"{key[:80]}"'
    return f"{path}.{shown}" if path else shown


def _kind(data: object) -> str:
    names: dict[type, str] = {str: "text", list: "an array", dict: "a table"}
    return names.get(type(data), type(data).__name__)
