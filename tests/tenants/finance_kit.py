"""Books made at random, and the same sums by other arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from sqlalchemy import Connection, text

from policies.facts import Meters, Price
from policies.tags import Origin, Tag
from tenants.book import Book, Dimensions
from tenants.finance import Finance
from tests.tenants.house import DIMS, PRICE, Clock, ask, opened, record

ODD = Price("m@odd", "m", 0, 333_333_333, 77_777_777, 1_234_567_891, 999_999_999)
SUB = Price("m@sub", "m", 0, 333_333, 77_777, 1_234_567, 1_499_999)
PRICES = (PRICE, ODD, SUB)
PEOPLE: tuple[Dimensions, ...] = (
    DIMS,
    replace(DIMS, issuer="other-idp"),
    replace(DIMS, user="bob", project=None),
    replace(DIMS, project="", service_class=None),
    replace(DIMS, key_id="k1", model="m2"),
    replace(DIMS, user="=1+1", project="@x", service_class="batch"),
    replace(DIMS, tenant="globex"),
)
TAGS: tuple[tuple[Tag, ...], ...] = (
    (Tag("team", "search", Origin.KEY),),
    (Tag("=x", "@y", Origin.CLIENT), Tag("team", "search", Origin.CLAIM)),
    (),
    (Tag('a"b,c', "\\ß", Origin.CLIENT), Tag("team", "", Origin.CLIENT)),
    (Tag("=x", "", Origin.CLIENT),),
    (Tag("team", "ads", Origin.KEY),),
    (Tag("team", "search", Origin.KEY),),
)
"""What each of `PEOPLE` files under."""
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Story:
    """One request: who, when after the last, at what price, and what becomes of it."""

    who: int
    after_ms: int
    price: int
    meters: Meters
    fate: str


TOKENS = st.integers(0, 50)
STORIES = st.lists(
    st.builds(
        Story,
        st.integers(0, len(PEOPLE) - 1),
        st.integers(0, 20 * 24 * HOUR_MS),
        st.integers(0, len(PRICES) - 1),
        st.builds(Meters, TOKENS, TOKENS, TOKENS, TOKENS),
        st.sampled_from(("settle", "void", "open", "expire", "late")),
    ),
    max_size=8,
)


def priced(price: Price, model: str) -> Price:
    """A price is of one model, and its id with it."""
    return replace(price, id=price.id.replace(price.model, model, 1), model=model)


async def lived(book: Book, clock: Clock, stories: Iterable[Story]) -> None:
    """Each held for at most what it uses, so that settlements stay within their reservation."""
    for number, story in enumerate(stories):
        clock.ms += story.after_ms
        dims, of = PEOPLE[story.who], f"r{number}"
        meters = story.meters
        prompt = meters.input + meters.cached_input + meters.cache_write
        price = priced(PRICES[story.price], dims.model)
        asked = ask(of, prompt=prompt, out=max(1, meters.output), dims=dims, price=price)
        await book.hold(replace(asked, tags=TAGS[story.who]))
        if story.fate == "settle":
            await book.settle(of, meters, record(of, dims, device_ns=7))
        elif story.fate == "void":
            await book.void(of)
        elif story.fate in {"expire", "late"}:
            clock.ms += 61_000
            await book.sweep()
            if story.fate == "late":
                clock.ms += HOUR_MS
                await book.settle(of, meters, record(of, dims, device_ns=7))


@contextmanager
def house(clock: Clock, path: Path) -> Iterator[tuple[Book, Finance]]:
    with opened(clock, path) as book:
        yield book, Finance(book._store, clock_ms=clock)


async def rows(finance: Finance, query: str) -> list[dict[str, Any]]:
    """As the database has them."""
    return await finance._store.read(
        lambda conn: [dict(row) for row in conn.execute(text(query)).mappings()]
    )


async def edit(finance: Finance, statement: str, values: Mapping[str, Any] | None = None) -> None:
    """What nobody may do, done at the database."""

    def op(conn: Connection) -> None:
        assert conn.execute(text(statement), values or {}).rowcount

    await finance._store.write(op)


async def ledger_sum(finance: Finance) -> int:
    """By hand: into `spend` less out of it."""
    return sum(
        row["amount"] * ((row["credit"] == "spend") - (row["debit"] == "spend"))
        for row in await rows(finance, "SELECT * FROM ledger_entry")
    )


def groups(found: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [tuple(row.group.values()) for row in found]
