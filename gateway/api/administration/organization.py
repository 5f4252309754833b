"""`GET /v1/organization/costs` and `/usage/completions`, in OpenAI's shapes, on the admin listener.

An organization is a tenant; operators see all, or one with `tenant`.  Buckets are whole UTC minutes, hours
or days: a time that is given is widened to them.  Beyond OpenAI's own fields a result by user names the
`issuer`, since equal names of two issuers are two people.  Refuses to know: how facts are grouped
(tenants.reports).  Source: the OpenAI API reference; the official Python client's types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

import msgspec

from gateway import finance_views
from gateway.api.administration.call import Call
from gateway.api.administration.finance import number, readable
from gateway.api.wire import query_lists
from gateway.errors import invalid
from policies.price import BATCH, Meter
from tenants.reports import Asked, UsageRow
from tenants.reports.facts import Slice

SECOND_MS = 1000
END_S_MAX = 253_402_300_799
ROWS_MOST = 50_000
WIDTHS = {"1m": ("minute", 60), "1h": ("hour", 3600), "1d": ("day", 86_400)}
# The most buckets of a page, and how many without a word.
USAGE_LIMITS = {"1m": (1440, 60), "1h": (168, 24), "1d": (31, 7)}
COST_LIMITS = {"1d": (180, 7)}

# What a result can be grouped by, and what it takes of a report.
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "project_id": ("project",),
    "user_id": ("user",),
    "api_key_id": ("key",),
    "model": ("model",),
    "batch": ("class",),
    "service_tier": ("class",),
    "line_item": ("model", "meter"),
    "api_source": (),
}
FIELDS = {"project_id": "project", "user_id": "user", "api_key_id": "key_id", "model": "model"}
USAGE_BY = ("project_id", "user_id", "api_key_id", "model", "batch", "service_tier", "api_source")
COSTS_BY = ("project_id", "user_id", "line_item", "api_key_id", "api_source")
NARROWED = {
    "project_ids": "project",
    "user_ids": "user",
    "api_key_ids": "key",
    "models": "model",
}
PAGED = frozenset({"start_time", "end_time", "bucket_width", "limit", "page", "tenant"})
LINE_ITEM = {
    Meter.INPUT.value: "input_tokens",
    Meter.CACHED_INPUT.value: "cached_input_tokens",
    Meter.CACHE_WRITE.value: "cache_write_tokens",
    Meter.OUTPUT.value: "output_tokens",
}


@dataclass(slots=True)
class Sums:
    """What a result adds up."""

    requests: int = 0
    tokens: dict[Meter, int] = field(default_factory=lambda: dict.fromkeys(Meter, 0))
    nano_usd: int = 0

    def add(self, row: UsageRow) -> None:
        self.requests += row.requests
        self.nano_usd += row.nano_usd
        for meter in Meter:
            self.tokens[meter] += getattr(row, f"{meter.value}_tokens")


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets of one page: [from_s, to_s) of those that go up to end_s."""

    span: str
    width_s: int
    from_s: int
    to_s: int
    end_s: int

    def page(self, results: Mapping[int, list[dict[str, object]]]) -> dict[str, object]:
        """A bucket in which nothing happened is there, and empty."""
        more = self.to_s < self.end_s
        return {
            "object": "page",
            "data": [
                {
                    "object": "bucket",
                    "start_time": start,
                    "end_time": start + self.width_s,
                    "results": results.get(start, []),
                }
                for start in range(self.from_s, self.to_s, self.width_s)
            ],
            "has_more": more,
            "next_page": finance_views.page_of((self.to_s,)) if more else None,
        }


async def completions(call: Call) -> object:
    many = frozenset({"group_by", *NARROWED})
    asked = query_lists(call.scope, PAGED | {"batch"}, many)
    single = {name: values[0] for name, values in asked.items()}
    batch = _flag(single.get("batch"))
    by = _grouped(asked, USAGE_BY)
    extra = ("class",) if batch is not None else ()
    buckets = _buckets(call, single, USAGE_LIMITS)

    def kept(row: UsageRow) -> bool:
        counts = row.requests or any(getattr(row, f"{meter.value}_tokens") for meter in Meter)
        return bool(counts) and batch in {None, row.group.get("service_class") == BATCH}

    rows = await _rows(call, asked, single, buckets, (*by, *extra), kept)
    found: dict[int, list[dict[str, object]]] = {}
    for start, group, sums in _folded(buckets, by, rows):
        tokens = sums.tokens
        found.setdefault(start, []).append(
            {
                "object": "organization.usage.completions.result",
                "input_tokens": sum(tokens[meter] for meter in Meter if meter is not Meter.OUTPUT),
                "input_uncached_tokens": tokens[Meter.INPUT],
                "input_cached_tokens": tokens[Meter.CACHED_INPUT],
                "input_cache_write_tokens": tokens[Meter.CACHE_WRITE],
                "output_tokens": tokens[Meter.OUTPUT],
                "input_audio_tokens": 0,
                "output_audio_tokens": 0,
                "num_model_requests": sums.requests,
                **dict.fromkeys(USAGE_BY),
                **group,
            }
        )
    return buckets.page(found)


async def costs(call: Call) -> object:
    many = frozenset({"group_by", "line_items", "project_ids", "api_key_ids"})
    asked = query_lists(call.scope, PAGED, many)
    single = {name: values[0] for name, values in asked.items()}
    by, wanted = _grouped(asked, COSTS_BY), frozenset(asked.get("line_items", ()))
    buckets = _buckets(call, single, COST_LIMITS)
    extra = ("line_item",) if wanted else ()

    def kept(row: UsageRow) -> bool:
        return not wanted or _line_item(row) in wanted

    rows = await _rows(call, asked, single, buckets, (*by, *extra), kept)
    found: dict[int, list[dict[str, object]]] = {}
    for start, group, sums in _folded(buckets, by, rows):
        counted = "line_item" in by
        found.setdefault(start, []).append(
            {
                "object": "organization.costs.result",
                "amount": {"value": _exact(sums.nano_usd), "currency": "usd"},
                **dict.fromkeys(COSTS_BY),
                **group,
                "quantity": sum(sums.tokens.values()) if counted else None,
                "quantity_unit": "tokens" if counted else None,
            }
        )
    return buckets.page(found)


def _exact(nano_usd: int) -> msgspec.Raw:
    """A JSON number with every digit: a float would lose some."""
    text = f"{Decimal(nano_usd).scaleb(-9):f}"
    return msgspec.Raw((text.rstrip("0").rstrip(".") if "." in text else text).encode())


def _flag(text: str | None) -> bool | None:
    if text not in {None, "true", "false"}:
        raise invalid("'batch' is true or false.", param="batch")
    return None if text is None else text == "true"


def _grouped(asked: Mapping[str, list[str]], allowed: tuple[str, ...]) -> tuple[str, ...]:
    by = tuple(part for given in asked.get("group_by", ()) for part in given.split(",") if part)
    if len(set(by)) != len(by) or not set(by) <= set(allowed):
        raise invalid("'group_by' is a list of: " + ", ".join(allowed) + ".", param="group_by")
    return by


def _buckets(
    call: Call, single: Mapping[str, str], limits: Mapping[str, tuple[int, int]]
) -> Buckets:
    width = single.get("bucket_width", "1d")
    if width not in limits:
        raise invalid("'bucket_width' is one of: " + ", ".join(limits) + ".", param="bucket_width")
    span, width_s = WIDTHS[width]
    if "start_time" not in single:
        raise invalid("Name the beginning: ?start_time=… in Unix seconds.", param="start_time")
    start_s = _seconds(single, "start_time")
    now_s = call.house.clock.wall_ms() // SECOND_MS + 1
    end_s = _seconds(single, "end_time") if "end_time" in single else max(now_s, start_s + 1)
    if end_s <= start_s:
        raise invalid("'end_time' must be after 'start_time'.", param="end_time")
    most, default = limits[width]
    count = number(single, "limit", default, most)
    from_s, end_s = start_s // width_s * width_s, -(-end_s // width_s) * width_s
    place = finance_views.place_of(single.get("page"))
    if place is not None:
        at_s = place[0] if len(place) == 1 else None
        if not isinstance(at_s, int) or not from_s < at_s < end_s or at_s % width_s:
            raise invalid("This page belongs to another question.", param="page")
        from_s = at_s
    return Buckets(span, width_s, from_s, min(end_s, from_s + count * width_s), end_s)


def _seconds(single: Mapping[str, str], name: str) -> int:
    text = single[name]
    if not (text.isascii() and text.isdigit() and len(text) < 13 and int(text) <= END_S_MAX):
        raise invalid(f"'{name}' is a time in Unix seconds.", param=name)
    return int(text)


async def _rows(
    call: Call,
    asked: Mapping[str, list[str]],
    single: Mapping[str, str],
    buckets: Buckets,
    by: Iterable[str],
    kept: Callable[[UsageRow], bool],
) -> list[UsageRow]:
    of = Slice(
        from_ms=buckets.from_s * SECOND_MS,
        to_ms=buckets.to_s * SECOND_MS,
        tenant=await readable(call, single),
        where={column: tuple(asked[name]) for name, column in NARROWED.items() if name in asked},
    )
    names = dict.fromkeys(part for name in by for part in DIMENSIONS.get(name, (name,)))
    found: list[UsageRow] = []
    async for row in call.house.finance.every(Asked(by=(buckets.span, *names), of=of)):
        if kept(row):
            found.append(row)
        if len(found) > ROWS_MOST:
            raise invalid(f"More than {ROWS_MOST} results; lower 'limit'.", param="limit")
    return found


def _folded(
    buckets: Buckets, by: tuple[str, ...], rows: Iterable[UsageRow]
) -> Iterator[tuple[int, dict[str, object], Sums]]:
    """Rows that differ only in what was not asked for are one."""
    sums: dict[tuple[object, ...], tuple[int, dict[str, object], Sums]] = {}
    for row in rows:
        at_ms = row.group[buckets.span]
        assert isinstance(at_ms, int)
        group = _group(row, by)
        key = (at_ms, *group.values())
        sums.setdefault(key, (at_ms // SECOND_MS, group, Sums()))[2].add(row)
    yield from sums.values()


def _group(row: UsageRow, by: tuple[str, ...]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in by:
        match name:
            case "batch":
                found[name] = row.group["service_class"] == BATCH
            case "service_tier":
                found[name] = row.group["service_class"]
            case "line_item":
                found[name] = _line_item(row)
            case "api_source":
                found[name] = "unlabeled"
            case _:
                found[name] = row.group[FIELDS[name]]
        if name == "user_id":
            found["issuer"] = row.group["issuer"]
    return found


def _line_item(row: UsageRow) -> str:
    """As `m, input_tokens`; what is no usage is called after its kind."""
    meter, model = row.group["meter"], row.group["model"]
    assert isinstance(meter, str)
    item = LINE_ITEM.get(meter, meter)
    return item if model is None else f"{model}, {item}"
