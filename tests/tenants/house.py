"""What the tests of this room share: a clock, a file in memory, and a request to hold for."""

from __future__ import annotations

import asyncio
import functools
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from policies.facts import Budget, Price
from policies.tags import Origin, Tag
from tenants.book import Book, BudgetAccount, Dimensions, HoldAsk, UsageRecord
from tenants.journal import Journal
from tenants.scopes import tag_account
from tenants.store import Store
from tests.servers_postgres import database, needs_postgres

T = TypeVar("T")

DIMS = Dimensions("acme", "search", "alice", "idp", None, "m", "interactive")
PRICE = Price("m@0", "m", 0, 200_000_000, 50_000_000, 200_000_000, 600_000_000)
NOON_MS = 1_795_953_600_000
"""2026-11-29T12:00:00Z."""

_MEMORY = Path("/dev/shm")  # a file system without fsync's milliseconds, where there is one


@contextmanager
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        yield made
    finally:
        shutil.rmtree(made)


@dataclass
class Clock:
    ms: int = NOON_MS

    def __call__(self) -> int:
        return self.ms


def run(test: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return asyncio.run(test())


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


class Where:
    """Which database the tests open by the path of a file."""

    url: ClassVar[Callable[[Path], str]] = staticmethod(sqlite_url)


@pytest.fixture(
    params=("sqlite", pytest.param("postgresql", marks=(pytest.mark.slow, needs_postgres)))
)
def on_both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same test on a file, and on a real PostgreSQL that goes by the test's clock."""
    if request.param == "sqlite":
        yield
        return
    with ExitStack() as stack:
        made = functools.cache(lambda path: stack.enter_context(database()))
        monkeypatch.setattr(Where, "url", staticmethod(made))
        monkeypatch.setattr(Store, "clock_ms", lambda _, ours: lambda conn: ours())
        yield


@contextmanager
def opened(clock: Clock, path: Path, owner: str = "p1") -> Iterator[Book]:
    store = Store.open(Where.url(path))
    try:
        journal = Journal(path.with_name("unbooked.jsonl"))
        yield Book(store, owner=owner, clock_ms=clock, journal=journal)
    finally:
        store.close()


def tenant_budget(
    limit: int, window: str = "calendar_month", *, hard: bool = True
) -> BudgetAccount:
    return BudgetAccount("tenant", "acme", Budget(limit, window, "UTC", hard))


def project_budget(limit: int, window: str = "rolling_24h") -> BudgetAccount:
    return BudgetAccount("project", '["acme","search"]', Budget(limit, window))


def user_budget(limit: int) -> BudgetAccount:
    return BudgetAccount("user", '["acme","idp","alice"]', Budget(limit))


def tag(name: str = "team", value: str = "search", origin: Origin = Origin.KEY) -> Tag:
    return Tag(name, value, origin)


def tag_budget(
    limit: int, of: Tag | None = None, window: str = "calendar_month", **more: Any
) -> BudgetAccount:
    of = of or tag()
    return BudgetAccount(
        "tag", tag_account("acme", of.name, of.value), Budget(limit, window, **more)
    )


def ask(
    request_id: str = "r1",
    *budgets: BudgetAccount,
    prompt: int = 100,
    out: int = 50,
    least: int | None = None,
    dims: Dimensions = DIMS,
    price: Price = PRICE,
    n: int = 1,
    dispatched: bool = True,
    tags: tuple[Tag, ...] = (),
) -> HoldAsk:
    return HoldAsk(
        request_id=request_id,
        dims=dims,
        budgets=budgets,
        price=price,
        prompt_tokens=prompt,
        output_tokens=out,
        output_tokens_least=out if least is None else least,
        n=n,
        dispatched=dispatched,
        tags=tags,
    )


def record(request_id: str = "r1", dims: Dimensions = DIMS, **more: Any) -> UsageRecord:
    return UsageRecord(
        request_id=request_id,
        dims=dims,
        route="/v1/chat/completions",
        received_at_ms=NOON_MS,
        outcome="completed",
        **more,
    )
