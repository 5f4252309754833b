"""Exports of a month as FOCUS rows, on the admin listener: the file, streamed, and its manifest.

Neither leaves anything on the server: the manifest says `as_of_ms`, and with it the file is those bytes.
Device time stands in an operator's export alone (DESIGN.md, settled question 5).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from gateway.api.administration.call import Call, Streamed
from gateway.api.administration.finance import period, readable
from gateway.api.wire import query
from gateway.errors import invalid
from policies import access
from tenants.focus import FORMATS, VERSIONS, Export, NoParquet
from tenants.focus.lines import GRAINS

SETTLED_MS = 60_000
"""What was written this long ago is committed, wherever it was written."""
NAME_CHARS_MAX = 128
OPERATOR = "Lockgate operator"
NAMES = frozenset(
    {"period", "focus", "format", "granularity", "tenant", "as_of_ms", "operator", "host"}
)
TYPES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


async def export(call: Call) -> object:
    of = await _asked(call)
    chunks = call.house.finance.export(of)
    try:
        first = await anext(chunks)  # so that what cannot be made is told as an error
    except NoParquet as why:
        raise _no_parquet() from why
    return Streamed(TYPES[of.kind], of.name, _joined(first, chunks))


async def manifest(call: Call) -> object:
    try:
        return await call.house.finance.manifest(await _asked(call))
    except NoParquet as why:
        raise _no_parquet() from why


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


async def _asked(call: Call) -> Export:
    asked = query(call.scope, NAMES)
    tenant = await readable(call, asked)
    if "period" not in asked:
        raise invalid("Name the month: ?period=2026-10", param="period")
    month = period(asked["period"])
    operator = _name(asked, "operator", OPERATOR)
    return Export(
        period=month,
        version=_one_of(asked, "focus", VERSIONS),
        kind=_one_of(asked, "format", FORMATS),
        grain=_one_of(asked, "granularity", ("day", *(name for name in GRAINS if name != "day"))),
        tenant=tenant,
        as_of_ms=await _as_of(call, asked, closed=await call.house.finance.closed(month)),
        operator=operator,
        host=_name(asked, "host", operator),
        device=access.may_read_cost(call.who),
    )


async def _as_of(call: Call, asked: Mapping[str, str], *, closed: bool) -> int | None:
    text = asked.get("as_of_ms")
    if closed:
        return None  # nothing enters it any more
    if text is None:
        return call.house.clock.wall_ms() - SETTLED_MS
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise invalid("'as_of_ms' is what a manifest told, in milliseconds.", param="as_of_ms")
    return int(text)


def _one_of(asked: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    value = asked.get(name, values[0])
    if value not in values:
        raise invalid(f"'{name}' is one of: " + ", ".join(values) + ".", param=name)
    return value


def _name(asked: Mapping[str, str], name: str, default: str) -> str:
    value = asked.get(name, default)
    if not (value.strip() and value.isprintable() and len(value) <= NAME_CHARS_MAX):
        raise invalid(f"'{name}' is a name of up to {NAME_CHARS_MAX} characters.", param=name)
    return value


def _no_parquet() -> Exception:
    return invalid(
        "This server writes no Parquet, since pyarrow is not installed with it. Install "
        "'lockgate[parquet]' there, or ask for format=csv.",
        param="format",
        code="parquet_unavailable",
    )
