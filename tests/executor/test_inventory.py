"""What is kept, as who administers it sees it; and what a purge leaves of those who run meanwhile."""

from __future__ import annotations

from executor.batch import Batch
from executor.contract import Cause, Kept, Listed, ListKept, Purge, Purged, Quota
from executor.contract_cache import KEPT_MAX
from executor.inventory import listed
from tests.executor.fakes import Harness
from tests.executor.labelled import HOUR_MS, ask, house_of, labelled, purge, scope, tag

PROMPT = tuple(range(1, 19))  # four full blocks of four
MS = 1_000_000


def rows(house: Harness, owner: str | None = None, *, by_label: bool = False) -> Listed:
    house.order(ListKept(number=9, owner=owner, by_label=by_label))
    house.step()
    return house.listed[-1]


def during_the_step(house: Harness, order: Purge) -> None:
    """The gateway says it while the model computes what is then there to be kept."""
    run = house.runner.run

    def ordering(batch: Batch) -> object:
        house.runner.run = run  # type: ignore[method-assign]
        house.order(order)
        return run(batch)

    house.runner.run = ordering  # type: ignore[method-assign,assignment]


def test_kept_is_counted_by_owner_and_kind() -> None:
    house = house_of()
    ask(house, labelled(1, PROMPT, scope("a/1", 18, kind="user")))
    ask(house, labelled(2, PROMPT, scope("a/2", 18, kind="user")))
    warm = labelled(3, PROMPT[:8], scope("a/doc", 8, kind="documents", pinned=True), warm=True)
    ask(house, warm)
    ask(house, labelled(4, PROMPT, scope("b/1", 18, kind="user"), owner="b"))
    found = {(each.owner, each.kind): each for each in rows(house).rows}
    assert {key: (each.blocks, each.pinned, each.labels) for key, each in found.items()} == {
        ("a", "user"): (8, 0, 2),
        ("a", "documents"): (2, 2, 1),
        ("b", "user"): (4, 0, 1),
    }
    assert all(each.label == b"" for each in found.values())
    assert {each.owner for each in rows(house, "b").rows} == {"b"}
    assert rows(house, "nobody").rows == ()


def test_by_label_each_is_a_row_and_those_with_most_come_first() -> None:
    house = house_of()
    ask(house, labelled(1, PROMPT, scope("a/1", 18, kind="user")))
    ask(house, labelled(2, PROMPT[:9], scope("a/2", 9, kind="user")))
    found = rows(house, by_label=True).rows
    assert [(each.label, each.blocks, each.labels) for each in found] == [
        (tag("a/1"), 4, 1),
        (tag("a/2"), 2, 1),
    ]


def test_age_is_that_of_the_oldest_and_what_has_ended_is_not_there() -> None:
    house = house_of()
    ask(house, labelled(1, PROMPT, scope("a/1", 18, kind="user"), idle_ms=HOUR_MS))
    house.clock.now_ns += 5_000 * MS
    ask(house, labelled(2, PROMPT, scope("a/2", 18, kind="user"), idle_ms=10))
    (row,) = rows(house).rows
    assert row.blocks == 8
    assert 5_000 <= row.oldest_ms < 6_000
    house.engine.keeper.cache.now_ns += 60_000 * MS  # nothing was swept yet
    listing = listed(ListKept(number=1), house.engine.keeper.cache)
    assert [each.blocks for each in listing.rows] == [4]


def test_no_list_is_longer_than_may_be() -> None:
    house = house_of()
    ask(house, labelled(1, PROMPT))
    (entry, *_) = house.engine.keeper.cache._entries.values()

    class Many:
        now_ns = 0

        def listed(self, owner: str | None) -> object:
            return ((f"t{n}", entry) for n in range(KEPT_MAX + 7))

    found = listed(ListKept(number=1), Many())  # type: ignore[arg-type]
    assert (len(found.rows), found.left_out) == (KEPT_MAX, 7)


def test_a_purge_by_a_cover_reaches_every_label_that_rests_on_it() -> None:
    house = house_of()
    for n, covers in enumerate(("doc", "doc other", "other"), 1):
        ask(house, labelled(n, PROMPT[:9], scope(f"a/{n}", 9, covers=covers)))
    house.order(purge("a", "doc"))
    house.step()
    assert house.answers[-1] == Purged(number=1, entries=4, ended=0, zeroed=True)
    assert [each.blocks for each in rows(house).rows] == [2]


def test_who_runs_while_it_is_purged_keeps_nothing_that_it_computed_before() -> None:
    house = house_of()
    house.submit(labelled(1, PROMPT, scope("a/1", 18, covers="doc"), max_new_tokens=9))
    house.submit(labelled(2, PROMPT, scope("a/2", 18), max_new_tokens=9))
    house.submit(labelled(3, PROMPT, scope("b/1", 18), owner="b", max_new_tokens=9))
    during_the_step(house, Purge(number=7, owner="a"))
    house.run()
    assert house.ended(1).cause is Cause.LENGTH
    assert {each.owner for each in rows(house).rows} == {"b"}


def test_a_registration_that_was_on_its_way_is_not_pinned_after_a_purge() -> None:
    house = house_of()
    house.submit(labelled(1, PROMPT[:8], scope("a/doc", 8, pinned=True), warm=True))
    during_the_step(house, Purge(number=7, owner="a"))
    house.run()
    assert house.ended(1).cause is Cause.QUOTA
    assert rows(house).rows == ()


def test_whoever_is_spared_reads_on_and_it_is_wiped_when_the_last_has_ended() -> None:
    house = house_of(Quota(owner="a", part=0.5))
    ask(house, labelled(1, PROMPT))
    house.submit(labelled(2, PROMPT, max_new_tokens=9))
    house.step()
    held = [each.block for each in house.engine.keeper.cache._entries.values()]
    house.order(Purge(number=1, owner="a", spare=True))
    house.step()
    answer = house.answers[-1]
    assert isinstance(answer, Purged)
    assert (answer.entries, answer.ended, answer.zeroed) == (4, 0, True)
    assert rows(house).rows == ()
    house.run()
    assert house.ended(2).cause is Cause.LENGTH
    assert house.runner.are_zero(held)
    assert house.engine.gauges.kept_blocks == 0
    house.assert_empty()


def test_a_row_shows_no_key_and_no_words() -> None:
    assert set(Kept.__struct_fields__) == {
        *("owner", "kind", "label", "labels", "blocks", "pinned", "oldest_ms")
    }
