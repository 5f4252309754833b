"""What an administrator of one tenant may do as often as they like must not cost everybody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, event

from policies.facts import Budget
from tenants import directory_rows as rows
from tenants.config import DirectoryConfig
from tenants.directory_rows import BudgetTarget, RevocationKind, Revoked, Snapshot
from tenants.known import Known
from tenants.store import Store
from tests.tenants.house import folder, run
from tests.tenants.test_directory import KEY


def known() -> Known:
    empty = Snapshot(keys=(), revoked=(), suspended=frozenset(), budgets={})
    return Known(DirectoryConfig(plans={}, tenants={}), empty)


def revocation(value: str, at_s: int, until_s: int) -> Revoked:
    return Revoked(RevocationKind.TOKEN, "acme", "", value, at_s, until_s)


class Counted(dict):  # type: ignore[type-arg]
    """Counts how often all of it is looked through."""

    walks = 0

    def __iter__(self) -> Iterator[object]:
        self.walks += 1
        return super().__iter__()

    def items(self) -> Any:
        self.walks += 1
        return super().items()


def test_a_revocation_does_not_look_at_all_the_others() -> None:
    """2,000 of them took a second, and starting with 100,000 an hour."""
    house = known()
    house.revoked = kept = Counted()
    for number in range(2000):
        house.see_revoked(revocation(f"j{number}", 1000 + number // 10, 10**9 + number))
    assert len(kept) == 2000
    assert kept.walks == 0


def test_what_has_lapsed_is_forgotten_and_nothing_else() -> None:
    house = known()
    for number in range(100):
        house.see_revoked(revocation(f"j{number}", 0, 100 + number))
    house.see_revoked(revocation("j3", 50, 900))  # again, for longer
    house.see_revoked(revocation("last", 150, 900))
    values = {place[3] for place in house.revoked}
    assert values == {"j3", "last", *(f"j{number}" for number in range(51, 100))}


def test_revoking_one_token_anew_keeps_one() -> None:
    house = known()
    for number in range(1000):
        house.see_revoked(revocation("j", 0, 10_000 + number))
    assert len(house.revoked) == 1
    assert len(house._lapsing) < 100
    house.see_revoked(revocation("other", 10_999, 20_000))
    assert {place[3] for place in house.revoked} == {"other"}


def test_a_change_of_authority_looks_through_no_table() -> None:
    """It runs in the writer's thread, before everybody's holds and settlements."""
    with folder() as where:
        store = Store.open(f"sqlite:///{where}/x.db")
        asked: list[tuple[str, Any]] = []

        def op(conn: Connection) -> list[str]:
            def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
                asked.append((statement, parameters))

            event.listen(conn, "before_cursor_execute", note)
            rows.revoke(conn, revocation("j", 1, 2), actor="a", reason="")
            rows.suspend(conn, "acme", at_s=1, actor="a", reason="")
            rows.resume(conn, "acme")
            rows.set_budget(conn, BudgetTarget("acme"), Budget(1))
            rows.put_key(conn, KEY)
            event.remove(conn, "before_cursor_execute", note)
            return [
                str(step[3])
                for statement, parameters in asked
                for step in conn.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, parameters)
            ]

        async def write() -> list[str]:
            return await store.write(op)

        steps = run(write)
        store.close()
        assert len(asked) >= 7
        assert [step for step in steps if step.startswith("SCAN")] == []
