"""Small change of the endpoints: bytes of JSON, the variable end of a path, a query's values."""

from __future__ import annotations

from urllib.parse import parse_qsl

import msgspec
from starlette.types import Scope

from gateway.errors import invalid
from gateway.quoting import fit


def json_bytes(value: object) -> bytes:
    return msgspec.json.encode(value)


def path_value(scope: Scope, prefix: str) -> str:
    """What follows `prefix` in a path that the router has matched."""
    path = scope["path"]
    assert isinstance(path, str)
    assert path.startswith(prefix)
    return path[len(prefix) :]


def query(scope: Scope, allowed: frozenset[str]) -> dict[str, str]:
    """The query's values by name.  Raises ApiError 400 on an unknown or repeated name."""
    text = scope.get("query_string", b"").decode("latin-1")
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=32
        )
    except ValueError as why:
        raise invalid("The query string is not of the form name=value&name=value.") from why
    for name, value in pairs:
        if name not in allowed:
            expected = ", ".join(sorted(allowed)) or "none"
            raise invalid(
                f"The query has the unknown name '{fit(name)}'. Expected: {expected}.",
                param=name,
            )
        if name in found:
            raise invalid(f"The query names '{name}' twice.", param=name)
        found[name] = value
    return found
