"""What is forgotten of a person, and what is not: another's acts, another's limits, another's turn; and that no byte stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import delete, insert

from policies.facts import Budget, Meters
from policies.periods import DAY_MS
from tenants import forgetting, schema
from tenants.changes import ChangeKind
from tenants.finance import Finance
from tenants.pseudonyms import PSEUDONYM, Person
from tenants.store import Store, StoreUnavailable
from tests.tenants.finance_kit import house, rows
from tests.tenants.house import DIMS, NOON_MS, Clock, ask, folder, on_both, record, run
from tests.tenants.test_forgetting import ALICE, keeper

pytestmark = pytest.mark.usefixtures("on_both")
__all__ = ["on_both"]


async def written(finance: Finance, table: str, *found: dict[str, Any]) -> None:
    into = schema.metadata.tables[table]
    await finance._store.write(lambda conn: conn.execute(insert(into), list(found)) and None)


def act(kind: ChangeKind, subject: str, actor: str = "idp:operator") -> dict[str, Any]:
    return {"at_s": 1, "tenant": "acme", "kind": kind.value, "subject": subject, "detail": "",
            "actor": actor, "reason": "r"}  # fmt: skip


async def of_changes(finance: Finance, column: str) -> list[str]:
    return [row[column] for row in await rows(finance, "SELECT * FROM change ORDER BY id")]


def test_who_did_what_stays_unless_they_are_of_the_tenant() -> None:
    """An operator who is no user of it did things to it; whoever asked it something, or owns something in it, is."""

    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            people = ("operator", "asks", "refused", "owns", "was", "elsewhere")
            await book.hold(ask("r1", dims=replace(DIMS, user="asks")))
            await book.settle("r1", Meters(input=1), record("r1", replace(DIMS, user="asks")))
            await book.record(record("r2", replace(DIMS, user="refused")))
            await book.record(record("r3", replace(DIMS, tenant="globex", user="elsewhere")))
            document = {"kind": "document", "tenant": "acme", "issuer": "idp", "content_version": 1,
                        "acl_version": 1, "created_at_s": 1, "changed_at_s": 1}  # fmt: skip
            await written(finance, "registration", {**document, "id": "doc_1", "owner": "owns"})
            kept = keeper(finance, clock)
            clock.ms += 1
            for user in people:
                await kept.forget(Person("acme", "idp", user), actor="op")
            for kind in (ChangeKind.TENANT_SUSPENDED, ChangeKind.BUDGET_TOPPED_UP):
                acts = [act(kind, "acme", f"idp:{user}") for user in people]
                await written(finance, "change", *acts)
            for table, more in (
                ("suspension", {"at_s": 1}),
                ("adjustment", {"id": "a1", "kind": "credit", "amount": 1, "at_ms": 1}),
            ):
                who = {"tenant": "acme", "actor": "idp:operator", "reason": "r"}
                await written(finance, table, {**who, **more})
            for user in people:  # of whom there is but a pseudonym, where there is one
                await kept.forget(Person("acme", "idp", user), actor="op")
            actors = await of_changes(finance, "actor")
            assert {each for each in actors if not each.startswith(f"{PSEUDONYM}:")} == {
                *("idp:operator", "idp:was", "idp:elsewhere")
            }
            assert len(actors) == 2 * len(people)
            for table in ("suspension", "adjustment"):
                assert [row["actor"] for row in await rows(finance, f"SELECT * FROM {table}")] == [
                    "idp:operator"
                ]

    run(test)


def test_whose_keys_act_in_the_tenant_is_somebody_of_it() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (_, finance):
            key = {"digest": b"d", "tenant": "acme", "roles": "[]", "groups": "[]", "limits": "null",
                   "created_at_s": 1, "tags": "[]", "name": "", "revoked_at_s": 2}  # fmt: skip
            await written(finance, "api_key", {**key, "id": "k1", "user": "robot"})
            acts = [
                act(ChangeKind.KEY_ADDED, "k1", actor)
                for actor in ("lockgate:keys:robot", "idp:robot")
            ]
            await written(finance, "change", *acts)
            for issuer in ("idp", "lockgate:keys"):
                for _ in range(2):  # also of whom a pseudonym is all that is left
                    await keeper(finance, clock).forget(Person("acme", issuer, "robot"), actor="op")
            ours, theirs = await of_changes(finance, "actor")
            assert ours.startswith(f"{PSEUDONYM}:p_")
            assert theirs == "idp:robot"

    run(test)


@pytest.mark.parametrize("user", ("acme", "k1", "tenant:acme", "alice"))
def test_only_what_was_done_to_a_person_is_about_one(user: str) -> None:
    """Whatever a tenant, a key or an account is called."""

    async def test() -> None:
        clock, who = Clock(), replace(ALICE, user=user)
        with folder() as where, house(clock, where / "x.db") as (_, finance):
            about = {ChangeKind.SUBJECT_REVOKED: user, ChangeKind.BUDGET_SET: f"user:{user}",
                     ChangeKind.BUDGET_TOPPED_UP: f"user:{who.account}"}  # fmt: skip
            others = [
                act(kind, subject)
                for kind in ChangeKind
                for subject in (user, f"user:{user}", f"user:{who.account}")
                if about.get(kind) != subject
            ]
            others = [
                each
                for each in others
                if each["kind"] not in {"budget_set", "budget_topped_up"}
                or not each["subject"].startswith("user:")
            ]
            mine = [act(kind, subject) for kind, subject in about.items()]
            await written(finance, "change", *others, *mine)
            done = await keeper(finance, clock).forget(who, actor="op")
            subjects = await of_changes(finance, "subject")
            assert subjects[: len(others)] == [each["subject"] for each in others]
            assert subjects[len(others) :] == [f"user:{done.pseudonym}"] * len(mine)

    run(test)


async def budgeted(finance: Finance, name: str, issuer: str, window: str = "total") -> None:
    budget = msgspec.json.encode(Budget(100_000, window)).decode()
    row = {"tenant": "acme", "scope": "user", "issuer": issuer, "name": name, "budget": budget}
    await written(finance, "budget_override", row)


def test_no_limit_of_others_is_taken_away_with_a_person() -> None:
    """One that holds for the name at every issuer stays, is counted, and waited for."""

    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await book.hold(ask("r1"))
            await book.settle("r1", Meters(input=1), record("r1"))
            for issuer in ("", "idp", "other-idp"):
                await budgeted(finance, "alice", issuer)
            clock.ms += 1
            kept = keeper(finance, clock)
            done = await kept.forget(ALICE, actor="op", budgets=True)
            assert (done.renamed, done.counted, done.standing.budgets) == (0, 1, 1)
            left = await rows(finance, "SELECT * FROM budget_override")
            assert {each["issuer"] for each in left} == {"", "other-idp"}
            await finance._store.write(
                lambda conn: (
                    conn.execute(delete(schema.budget_override).filter_by(issuer="")) and None
                )
            )
            done = await kept.forget(ALICE, actor="op", budgets=True)
            assert (done.renamed, done.counted, done.standing.budgets) == (1, 0, 0)

    run(test)


@pytest.mark.slow
def test_who_must_wait_keeps_nobody_else_from_their_turn() -> None:
    """Twenty whose budgets never end, before one of another tenant."""

    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            waits = [f"w{number:02}" for number in range(20)]
            people = [replace(DIMS, user=user) for user in waits]
            people.append(replace(DIMS, tenant="globex", user="free"))
            kept = keeper(finance, clock)
            for number, dims in enumerate(people):
                await book.hold(ask(f"r{number}", dims=dims))
                if dims.tenant == "acme":
                    await budgeted(finance, dims.user, "idp")
                clock.ms += 1
                await kept.forget(Person(dims.tenant, "idp", dims.user), actor="op")
            for number, dims in enumerate(people):  # who was held is not any more
                await book.settle(f"r{number}", Meters(input=1), record(f"r{number}", dims))
            for _ in range(2):
                await kept.sweep()
            asked = {row["user"] for row in await rows(finance, "SELECT * FROM erasure")}
            assert asked == set(waits)
            await finance._store.write(
                lambda conn: conn.execute(delete(schema.budget_override)) and None
            )
            for _ in range(2):  # and again from the beginning
                await kept.sweep()
            assert await rows(finance, "SELECT * FROM erasure") == []

    run(test)


def test_who_waits_costs_no_pass_through_all_days_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was refused is gone through when they are asked for, and once a day."""
    passes = []
    recorded = forgetting.forget_recorded

    def counted(*asked: Any, **more: Any) -> int:
        passes.append(asked)
        return recorded(*asked, **more)

    monkeypatch.setattr(forgetting, "forget_recorded", counted)

    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await book.hold(ask("r1"))
            await book.settle("r1", Meters(input=1), record("r1"))
            await budgeted(finance, "alice", "idp")
            clock.ms += 1
            kept, counts = keeper(finance, clock), list[int]()
            await kept.sweep()
            await kept.forget(ALICE, actor="op")
            counts.append(len(passes))
            for days in (0, 0, 1, 0):
                clock.ms += days * DAY_MS
                await kept.sweep()
                counts.append(len(passes))
            assert counts == [1, 1, 1, 2, 2]
            await kept.forget(ALICE, actor="op")  # again: as of now
            assert len(passes) > 2

    run(test)


def test_a_name_that_begins_like_a_pseudonym_is_none() -> None:
    """After its time it goes as any other's; what is one already stays what it is."""
    digits = "0123456789abcdef" * 2
    names = ("alice", "men", digits[1:], f"{digits}0", digits.upper(), "g" * 32, "\u0660" * 32)
    keys = [f"p_{each}" for each in names] + [f"x_{digits}", "P_" + digits, "robot"]
    subjects = [f"x_{each}" for each in names] + [f"p_{digits}", "X_" + digits, "user:x_1", "carol"]

    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            key = {"tenant": "acme", "roles": "[]", "groups": "[]", "limits": "null", "name": "n",
                   "created_at_s": 1, "tags": "[]", "revoked_at_s": 2}  # fmt: skip
            kept_as_they_are = (f"p_{digits}", (f"x_{digits}", f"user:p_{digits}"))
            for number, user in enumerate([kept_as_they_are[0], *keys]):
                digest = str(number).encode()
                new = {**key, "id": f"k{number}", "digest": digest, "user": user}
                await written(finance, "api_key", new)
            revoked = [
                act(ChangeKind.SUBJECT_REVOKED, each) for each in [*kept_as_they_are[1], *subjects]
            ]
            await written(finance, "change", *revoked)
            await book.record(record("r1"))
            clock.ms = NOON_MS + 60 * DAY_MS
            await keeper(finance, clock, user_ids_days=45).sweep()
            first, *users = [
                row["user"] for row in await rows(finance, "SELECT * FROM api_key ORDER BY id")
            ]
            found = await of_changes(finance, "subject")
            assert (first, tuple(found[:2])) == kept_as_they_are
            assert set(users).isdisjoint(keys)
            assert set(found[2:]).isdisjoint(subjects)
            assert len({*users, *found[2:]}) == len(keys) + len(subjects)

    run(test)


def test_no_byte_of_a_name_stays_while_the_server_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the file nor in its log, when nothing is left of a renaming; where the log was busy, a little later."""
    name, busy = "cheshire-cat", list[bool]()
    forget_overwritten = Store.forget_overwritten

    async def at_times(self: Store, *, rewrite: bool = False) -> None:
        assert not rewrite
        if busy.pop(0):
            raise StoreUnavailable("busy")
        await forget_overwritten(self)

    monkeypatch.setattr(Store, "forget_overwritten", at_times)

    def named(where: Path) -> bool:
        return any(name.encode() in each.read_bytes() for each in where.iterdir())

    async def test() -> None:
        clock, dims = Clock(), replace(DIMS, user=name)
        who = Person("acme", "idp", name)
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            kept = keeper(finance, clock)
            busy[:] = [False]  # at the start of each process, in whose log one of before may stand
            await kept.sweep()
            assert busy == []
            for of, times in (("a", [False]), ("b", [True, False]), ("c", [True, True, False])):
                for number in range(20):
                    await book.hold(ask(f"{of}{number}", dims=dims))
                    done = record(f"{of}{number}", dims)
                    await book.settle(done.request_id, Meters(input=1), done)
                clock.ms += 1
                busy[:] = times
                assert (await kept.forget(who, actor="op")).waiting == 0
                while busy:
                    await kept.sweep()
                assert not named(where)
            await book.hold(ask("held", dims=dims))
            clock.ms += 1
            assert (await kept.forget(who, actor="op")).waiting == 1
            await book.settle("held", Meters(input=1), record("held", dims))
            busy[:] = [False]
            await kept.sweep()
            assert busy == []
            assert not named(where)
            await kept.sweep()  # and no more

    run(test)
