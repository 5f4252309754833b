"""Standings as configured and as changed; every withdrawal durable, visible at once, and told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from policies.facts import (
    Budget,
    Credential,
    CredentialKind,
    Limits,
    Meters,
    Principal,
    Standing,
)
from policies.verdict import Allow, Deny, Reason
from tenants import directory_rows as rows
from tenants import places, schema
from tenants.book import Book, BudgetAccount
from tenants.directory import (
    BudgetTarget,
    Change,
    ChangeKind,
    Directory,
    DirectoryConfig,
    DirectoryFault,
    KeyRecord,
    PlanConfig,
    ProjectConfig,
    TenantConfig,
)
from tenants.journal import Journal
from tenants.store import Store, StoreUnavailable
from tests.tenants.house import DIMS, NOON_MS, ask, folder, run

PLAN = PlanConfig(
    models=("m",),
    classes=("interactive", "batch"),
    weight=2.0,
    limits=Limits(rpm=600, n=8),
    user_limits=Limits(rpm=60),
    budget=Budget(500),
)
CONFIG = DirectoryConfig(
    plans={"pro": PLAN, "bare": PlanConfig(models=("m",))},
    tenants={
        "acme": TenantConfig(
            plan="pro", projects={"search": ProjectConfig(budget=Budget(50, "rolling_24h"))}
        ),
        "globex": TenantConfig(plan="bare"),
    },
)
NOW_S = NOON_MS // 1000
KEY = KeyRecord(id="k1", digest=b"\1" * 32, tenant="acme", user="svc", created_at_s=NOW_S - 10)
TOKEN = {
    "key_id": None,
    "token_id": "jti-1",
    "issuer": "idp",
    "subject": "alice",
    "tenant": "acme",
    "issued_at_s": NOW_S - 100,
}
BY: dict[str, Any] = {"actor": "operator", "reason": "because"}


class Clock:
    s = float(NOW_S)

    def __call__(self) -> float:
        return self.s


def who(
    tenant: str | None = "acme", project: str | None = "search", key_id: str | None = None
) -> Principal:
    kind = CredentialKind.KEY if key_id else CredentialKind.TOKEN
    return Principal(tenant, project, "alice", "idp", Credential(kind, key_id))


@contextmanager
def store_in(path: Path) -> Iterator[Store]:
    store = Store.open(f"sqlite:///{path}")
    try:
        yield store
    finally:
        store.close()


async def loaded(
    store: Store, clock: Clock | None = None, config: DirectoryConfig = CONFIG
) -> Directory:
    directory = Directory(config, store, clock_s=clock or Clock())
    await directory.load()
    return directory


def standing(directory: Directory, principal: Principal) -> Standing:
    found = directory.standing(principal)
    assert isinstance(found, Standing)
    return found


def revoked(directory: Directory, **more: Any) -> str | None:
    return directory.is_revoked(**(TOKEN | more))


def test_a_standing_is_plan_and_project_by_scope() -> None:
    async def test() -> None:
        with folder() as where, store_in(where / "x.db") as store:
            directory = await loaded(store)
            found = standing(directory, who())
            assert (found.tenant, found.weight, found.suspended) == ("acme", 2.0, False)
            assert (found.models, found.classes) == (frozenset({"m"}), ("interactive", "batch"))
            assert found.limits == {"user": Limits(rpm=60), "tenant": Limits(rpm=600, n=8)}
            assert found.budgets == {"tenant": Budget(500), "project": Budget(50, "rolling_24h")}
            assert standing(directory, who(project=None)).budgets == {"tenant": Budget(500)}
            assert standing(directory, who(project="else")).budgets == {"tenant": Budget(500)}
            assert standing(directory, who("globex")).limits == {}
            assert directory.standing(who(None)) == Deny(Reason.NO_TENANT)
            assert directory.standing(who("initech")) == Deny(Reason.TENANT_UNKNOWN)
            assert directory.tenants() == {"acme": False, "globex": False}

    run(test)


def test_what_is_not_loaded_knows_nothing_and_says_so() -> None:
    async def test() -> None:
        with folder() as where, store_in(where / "x.db") as store:
            directory = Directory(CONFIG, store, clock_s=Clock())
            for question in (
                lambda: directory.standing(who()),
                lambda: revoked(directory),
                directory.tenants,
            ):
                with pytest.raises(RuntimeError, match="load"):
                    question()
            with pytest.raises(RuntimeError, match="load"):
                await directory.revoke_token("jti-1", actor="operator")

    run(test)


def test_a_tenant_that_names_no_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="gold"):
        DirectoryConfig(plans={}, tenants={"acme": TenantConfig(plan="gold")})


def test_operators_budgets_override_and_are_kept_with_who_and_why() -> None:
    async def test() -> None:
        with folder() as where:
            with store_in(where / "x.db") as store:
                directory = await loaded(store)
                for target, usd in (
                    (BudgetTarget("acme"), 1),
                    (BudgetTarget("acme", "project", "search"), 2),
                    (BudgetTarget("acme", "user", "alice"), 3),
                    (BudgetTarget("acme", "key", "k1"), 4),
                ):
                    await directory.set_budget(target, Budget(usd), **BY)
                found = standing(directory, who(key_id="k1"))
                assert found.budgets == {
                    "tenant": Budget(1),
                    "project": Budget(2),
                    "user": Budget(3),
                    "key": Budget(4),
                }
                await directory.set_budget(
                    BudgetTarget("acme", "user", "alice", "idp"), Budget(5), **BY
                )
                assert standing(directory, who()).budgets["user"] == Budget(5)
                await directory.set_budget(BudgetTarget("acme"), None, **BY)
                assert standing(directory, who()).budgets["tenant"] == Budget(500)
            with store_in(where / "x.db") as store:
                directory = await loaded(store)
                assert standing(directory, who()).budgets["user"] == Budget(5)
                assert directory.budgets("acme") == {
                    BudgetTarget("acme"): Budget(500),
                    BudgetTarget("acme", "project", "search"): Budget(2),
                    BudgetTarget("acme", "user", "alice"): Budget(3),
                    BudgetTarget("acme", "user", "alice", "idp"): Budget(5),
                    BudgetTarget("acme", "key", "k1"): Budget(4),
                }
                assert directory.budgets("globex") == {}
                with pytest.raises(DirectoryFault, match="no tenant"):
                    directory.budgets("initech")
                table = schema.change
                rows = await store.read(
                    lambda conn: conn.execute(
                        select(table.c.kind, table.c.actor, table.c.reason)
                    ).all()
                )
                assert [tuple(row) for row in rows] == [("budget_set", "operator", "because")] * 6

    run(test)


@pytest.mark.parametrize(
    ("target", "budget"),
    (
        (BudgetTarget("initech"), Budget(1)),
        (BudgetTarget("acme", "galaxy", "x"), Budget(1)),
        (BudgetTarget("acme", "tenant", "x"), Budget(1)),
        (BudgetTarget("acme", "project"), Budget(1)),
        (BudgetTarget("acme", "project", "search", "idp"), Budget(1)),
        (BudgetTarget("acme"), Budget(-1)),
        (BudgetTarget("acme"), Budget(2**62)),
        (BudgetTarget("acme"), Budget(1, "fortnight")),
        (BudgetTarget("acme"), Budget(1, "calendar_day", "Mars/Olympus")),
        (BudgetTarget("acme"), Budget(1, "calendar_day", "../../etc/passwd")),
    ),
)
def test_a_budget_that_cannot_be_counted_is_refused(target: BudgetTarget, budget: Budget) -> None:
    async def test() -> None:
        with folder() as where, store_in(where / "x.db") as store:
            directory = await loaded(store)
            with pytest.raises(DirectoryFault):
                await directory.set_budget(target, budget, **BY)
            assert len(directory.budgets("acme")) == 2  # as configured

    run(test)


def test_keys_are_found_by_digest_and_survive() -> None:
    async def test() -> None:
        with folder() as where:
            full = replace(
                KEY,
                roles=("finance",),
                groups=("g",),
                limits=Limits(rpm=1),
                project="search",
                service_class="batch",
                expires_at_s=NOW_S + 5,
            )
            with store_in(where / "x.db") as store:
                directory = await loaded(store)
                await directory.add_key(full, **BY)
                assert await directory.find(KEY.digest) == full
                assert await directory.find(b"\2" * 32) is None
                for again in (full, replace(full, id="k2"), replace(full, digest=b"\3" * 32)):
                    with pytest.raises(DirectoryFault, match="exists"):
                        await directory.add_key(again, **BY)
                with pytest.raises(DirectoryFault, match="no tenant"):
                    await directory.add_key(replace(full, id="k3", tenant="initech"), **BY)
                assert repr(KEY.digest) not in repr(full)
            with store_in(where / "x.db") as store:
                directory = await loaded(store)
                assert directory.list_keys("acme") == (full,)
                assert directory.list_keys("globex") == ()
                assert directory.key("k1") == full
                assert standing(directory, who(key_id="k1")).limits["key"] == Limits(rpm=1)

    run(test)


def test_a_key_is_revoked_for_good() -> None:
    async def test() -> None:
        with folder() as where:
            with store_in(where / "x.db") as store:
                directory = await loaded(store)
                await directory.add_key(KEY, **BY)
                assert revoked(directory, key_id="k1", token_id=None) is None
                assert revoked(directory, key_id="k9", token_id=None) == "key_revoked"
                await directory.revoke_key("k1", **BY)
                await directory.revoke_key("k1", **BY)
                assert revoked(directory, key_id="k1", token_id=None) == "key_revoked"
                with pytest.raises(DirectoryFault, match="no key"):
                    await directory.revoke_key("k9", **BY)
                with pytest.raises(DirectoryFault, match="ended"):
                    await directory.rotate_key("k1", new_id="k2", new_digest=b"\2" * 32, **BY)
            with store_in(where / "x.db") as store:
                directory = await loaded(store)
                found = await directory.find(KEY.digest)
                assert found is not None
                assert found.revoked

    run(test)


def test_rotation_gives_a_new_secret_and_ends_the_old_after_its_grace() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where:
            with store_in(where / "x.db") as store:
                directory = await loaded(store, clock)
                await directory.add_key(replace(KEY, expires_at_s=NOW_S + 90), **BY)
                new = await directory.rotate_key(
                    "k1", new_id="k2", new_digest=b"\2" * 32, grace_s=60, **BY
                )
                assert (new.created_at_s, new.expires_at_s) == (NOW_S, NOW_S + 100)
                with pytest.raises(DirectoryFault, match="exists"):
                    await directory.rotate_key("k1", new_id="k2", new_digest=b"\3" * 32, **BY)
                clock.s += 59
                assert revoked(directory, key_id="k1", token_id=None) is None
                clock.s += 1
                assert revoked(directory, key_id="k1", token_id=None) == "key_expired"
                assert revoked(directory, key_id="k2", token_id=None) is None
            with store_in(where / "x.db") as store:
                directory = await loaded(store, clock)
                first, second = directory.list_keys("acme")
                assert (first.replaced_by, first.expires_at_s) == ("k2", NOW_S + 60)
                assert second == new

    run(test)


def test_a_rotated_key_keeps_its_budget_and_what_it_has_spent() -> None:
    """A new secret for the same rights is no new money."""

    async def test() -> None:
        clock = Clock()
        old = replace(DIMS, user="svc", issuer="lockgate:keys", key_id="k1")
        with folder() as where:
            with store_in(where / "x.db") as store:
                directory = await loaded(store, clock)
                book = Book(
                    store,
                    owner="p1",
                    clock_ms=lambda: int(clock.s) * 1000,
                    journal=Journal(where / "unbooked.jsonl"),
                )
                await directory.add_key(KEY, **BY)
                at = BudgetTarget("acme", "key", "k1")
                await directory.set_budget(at, Budget(120_000), **BY)
                for request_id in ("r1", "r2"):
                    account = BudgetAccount("key", "k1", Budget(120_000))
                    assert isinstance(await book.hold(ask(request_id, account, dims=old)), Allow)
                await book.settle("r1", Meters(input=100, output=50))
                await directory.rotate_key("k1", new_id="k2", new_digest=b"\2" * 32, **BY)
                await directory.rotate_key("k2", new_id="k3", new_digest=b"\3" * 32, **BY)
            with store_in(where / "x.db") as store:
                directory = await loaded(store, clock)
                book = Book(
                    store,
                    owner="p1",
                    clock_ms=lambda: int(clock.s) * 1000,
                    journal=Journal(where / "unbooked.jsonl"),
                )
                who = Principal("acme", None, "svc", "idp", Credential(CredentialKind.KEY, "k3"))
                standing = directory.standing(who)
                assert isinstance(standing, Standing)
                assert standing.budgets["key"] == Budget(120_000)
                account = BudgetAccount("key", "k3", Budget(120_000))
                (balance,) = await book.balances([account])
                assert (balance.spent_nano_usd, balance.held_nano_usd) == (50_000, 50_000)
                mine = replace(old, key_id="k3")
                assert isinstance(await book.hold(ask("r3", account, dims=mine)), Deny)
                await book.settle("r2", Meters(input=100, output=0))
                assert isinstance(await book.hold(ask("r4", account, dims=mine)), Allow)

    run(test)


def test_tokens_are_revoked_by_id_within_their_issuer() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where:
            with store_in(where / "x.db") as store:
                directory = await loaded(store, clock)
                expires = NOW_S + 60
                await directory.revoke_token("jti-1", issuer="idp", expires_at_s=expires, **BY)
                await directory.revoke_token("jti-2", **BY)
                await directory.revoke_token("jti-3", issuer="idp", tenant="globex", **BY)
                assert revoked(directory) == "token_revoked"
                assert revoked(directory, issuer="other") is None
                assert revoked(directory, token_id="jti-2", issuer="x") == "token_revoked"
                assert revoked(directory, token_id="jti-3") is None
                assert revoked(directory, token_id=None) is None
            with store_in(where / "x.db") as store:
                assert revoked(await loaded(store, clock)) == "token_revoked"
                clock.s += 60 + 600
                directory = await loaded(store, clock)
                assert revoked(directory) is None  # it has expired by itself
                await directory.revoke_token("jti-4", issuer="idp", expires_at_s=expires, **BY)
                await directory.revoke_token("jti-5", **BY)
                assert ("token", "", "idp", "jti-4") not in directory._known.revoked

    run(test)


def test_a_subjects_tokens_up_to_now_are_revoked_and_later_ones_are_not() -> None:
    async def test() -> None:
        with folder() as where, store_in(where / "x.db") as store:
            directory = await loaded(store)
            await directory.add_key(replace(KEY, user="alice"), **BY)
            await directory.revoke_subject(tenant="acme", issuer="idp", subject="alice", **BY)
            assert revoked(directory) == "subject_revoked"
            assert revoked(directory, issued_at_s=NOW_S) == "subject_revoked"
            assert revoked(directory, issued_at_s=NOW_S + 1) is None
            assert revoked(directory, issued_at_s=None) == "subject_revoked"
            assert revoked(directory, subject="bob") is None
            assert revoked(directory, tenant="globex") is None
            assert revoked(directory, issuer="other") is None
            as_key = {"key_id": "k1", "token_id": None, "issued_at_s": None}
            assert revoked(directory, **as_key) == "subject_revoked"

    run(test)


def test_a_subject_that_an_operator_revokes_naming_no_tenant_is_revoked_in_all() -> None:
    async def test() -> None:
        with folder() as where, store_in(where / "x.db") as store:
            directory = await loaded(store)
            await directory.revoke_subject(tenant="", issuer="idp", subject="alice", **BY)
            assert revoked(directory) == "subject_revoked"
            assert revoked(directory, tenant="globex") == "subject_revoked"
            assert revoked(directory, subject="bob") is None

    run(test)


def test_suspension_is_durable_and_can_be_lifted() -> None:
    async def test() -> None:
        with folder() as where:
            with store_in(where / "x.db") as store:
                directory = await loaded(store)
                await directory.suspend("acme", **BY)
                await directory.suspend("acme", **BY)
                assert revoked(directory) == "tenant_suspended"
                assert revoked(directory, tenant="globex") is None
                assert revoked(directory, tenant=None) is None
                with pytest.raises(DirectoryFault, match="no tenant"):
                    await directory.suspend("initech", **BY)
            with store_in(where / "x.db") as store:
                directory = await loaded(store)
                assert directory.standing(who()) == Deny(Reason.TENANT_SUSPENDED)
                assert directory.tenants()["acme"] is True
                await directory.revoke_token("jti-1", **BY)
                assert revoked(directory) == "token_revoked"  # the credential before its tenant
                await directory.resume("acme", **BY)
                assert isinstance(directory.standing(who()), Standing)

    run(test)


def test_listeners_hear_after_it_is_visible_and_all_of_them() -> None:
    async def test() -> None:
        with folder() as where, store_in(where / "x.db") as store:
            directory = await loaded(store)
            heard: list[tuple[Change, str | None]] = []

            def broken(_: Change) -> None:
                raise ZeroDivisionError

            stop = directory.subscribe(broken)
            directory.subscribe(lambda change: heard.append((change, revoked(directory))))
            with pytest.raises(ExceptionGroup):
                await directory.suspend("acme", **BY)
            suspended = Change(ChangeKind.TENANT_SUSPENDED, "acme", "acme")
            assert heard == [(suspended, "tenant_suspended")]
            stop()
            await directory.resume("acme", **BY)
            directory.configure(replace(CONFIG, tenants={}))
            assert [change.kind for change, _ in heard[1:]] == ["tenant_resumed", "configured"]
            assert directory.standing(who()) == Deny(Reason.TENANT_UNKNOWN)

    run(test)


def test_what_cannot_be_kept_is_not_shown() -> None:
    async def test() -> None:
        with folder() as where:
            store = Store.open(f"sqlite:///{where}/x.db")
            directory = await loaded(store)
            store.close()
            heard: list[Change] = []
            directory.subscribe(heard.append)
            with pytest.raises(StoreUnavailable):
                await directory.suspend("acme", **BY)
            assert directory.tenants()["acme"] is False
            assert heard == []

    run(test)


def test_a_caller_that_goes_away_leaves_nothing_half_done() -> None:
    async def test() -> None:
        with folder() as where, store_in(where / "x.db") as store:
            directory = await loaded(store)
            told = asyncio.Event()
            directory.subscribe(lambda _: told.set())
            task = asyncio.ensure_future(directory.suspend("acme", **BY))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(told.wait(), 10)
            assert directory.tenants()["acme"] is True

    run(test)


def test_a_chain_of_keys_ends_where_it_is_not_known_further() -> None:
    """Also where a key was replaced by one that nobody knows, or keys by each other."""

    async def test() -> None:
        with folder() as where, store_in(where / "x.db") as store:
            for id_, after in (("a", "b"), ("b", "c"), ("c", "nobody"), ("x", "y"), ("y", "x")):
                key = replace(KEY, id=id_, digest=id_.encode(), replaced_by=after)
                await store.write(lambda conn, key=key: rows.add_key(conn, key))  # type: ignore[misc]
            found = await store.read(lambda conn: places.successors(conn, ["a", "x", "unknown"]))
            assert found == {
                "a": ("a", "b", "c", "nobody"),
                "x": ("x", "y"),
                "unknown": ("unknown",),
            }

    run(test)
