"""Strict readings of the two encodings that tokens and key sets are made of.

Pure.  Refuses to know what a token is.  Each function takes what a stranger sent and either returns
exactly what one careful reader would see, or raises `NotStrict`; work is linear in the input, whose
length the caller has bounded.  Source: RFC 4648 §3.5 and §5, RFC 8259, SECURITY.md §0 and §4 (J16).
"""

from __future__ import annotations

import base64
import json
import math
import re

_ALPHABET = re.compile(r"[A-Za-z0-9_-]*", re.ASCII)
# A quote opens a string that runs to its close or to the end: always a match, so never quadratic.
_STRING = re.compile(r'"(?:[^"\\]+|\\.)*+"?', re.DOTALL)
_UNFIT = re.compile("[\x00\ud800-\udfff]")
_BRACKET = re.compile(r"[\[\]{}]")
_INT_DIGITS_MAX = 18


class NotStrict(ValueError):
    """The text is not in the one form we accept.  The message never quotes it."""


def base64url(text: str) -> bytes:
    """Decode unpadded base64url.  Every byte string has one encoding: a last character with stray
    bits is refused, and so is whatever lies outside the alphabet, `=` and white space included."""
    if len(text) % 4 == 1 or not _ALPHABET.fullmatch(text):
        raise NotStrict("not unpadded base64url")
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if base64.urlsafe_b64encode(data).rstrip(b"=") != text.encode("ascii"):
        raise NotStrict("not canonical base64url")
    return data


def to_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def json_object(data: bytes, *, depth_max: int) -> dict[str, object]:
    """Parse one JSON object: UTF-8 without BOM, no member named twice, no NaN or infinity, no
    integer above 18 digits, no NUL and no lone surrogate in any string, nested at most `depth_max`."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotStrict("not UTF-8") from error
    _check_depth(text, depth_max)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_int,
        )
    except NotStrict:
        raise
    except ValueError as error:
        raise NotStrict("not JSON") from error
    if not isinstance(value, dict):
        raise NotStrict("not a JSON object")
    if "\\u" in text:  # decoding and parsing have refused what is not escaped
        _check_strings(value)
    return value


def _check_depth(text: str, depth_max: int) -> None:
    """Before the parser recurses: count brackets outside strings."""
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > depth_max:
            raise NotStrict("nested too deeply")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise NotStrict("a member is named twice")
    return value


def _constant(_: str) -> object:
    raise NotStrict("NaN and infinity are not JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise NotStrict("a number is out of range")
    return value


def _int(text: str) -> int:
    if len(text) > _INT_DIGITS_MAX:
        raise NotStrict("an integer is out of range")
    return int(text)


def _check_strings(value: object) -> None:
    """Recursion is bounded by the depth that was checked."""
    if isinstance(value, str):
        if _UNFIT.search(value):
            raise NotStrict("a string holds NUL or a lone surrogate")
    elif isinstance(value, list):
        for item in value:
            _check_strings(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_strings(name)
            _check_strings(item)
