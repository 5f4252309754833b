"""What the executor of a killed gateway left is booked by the next: as used, once, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from executor import last_words
from executor.contract import WORDS_SUFFIX, Cause, Ended, Word
from gateway.left_behind import book_left
from policies.facts import Meters
from tenants import leases
from tests.gateway.inhouse import Inhouse, inhouse
from tests.gateway.test_book_away import away
from tests.tenants.house import PRICE, ask

PROMPT, OUT = 100, 50
RESERVED = 50_000
INPUT, OUTPUT = 200, 600  # nano-USD a token, by that price


def word(id_: str, *, prompt: int = 0, prompt_tokens: int = PROMPT, **more: Any) -> Word:
    known: dict[str, Any] = {"prefilled": PROMPT, "generated": 20, "device_ns": 5_000}
    ended = Ended(request=1, **{"cause": Cause.ABORTED} | known | more)
    return Word(id=id_, prompt=prompt, prompt_tokens=prompt_tokens, ended=ended, start="s1")


def told(tmp_path: Path, test: Callable[[Inhouse, Path], Awaitable[None]]) -> None:
    async def run() -> None:
        async with inhouse(tmp_path) as home:
            folder = home.run / "model"
            folder.mkdir(parents=True)
            await test(home, folder)
            assert await home.house.book.open_holds() == 0

    asyncio.run(run())


async def held(home: Inhouse, *ids: str, **more: Any) -> None:
    """As a gateway that was killed left them: billed as reserved, provisionally."""
    book = home.house.book
    for each in ids:
        await book.hold(ask(each, **{"prompt": PROMPT, "out": OUT} | more))
    book._held_at.clear()  # it was another process
    await book._store.write(lambda conn: leases.recover(conn, owner="next", now_ms=1))
    assert await book.open_holds() == 0


async def charged(home: Inhouse, id_: str) -> tuple[str | None, int, bool]:
    told = await home.house.book.explain(id_)
    assert told is not None
    return told.state, told.charge.total_nano_usd if told.charge else 0, told.estimated


def test_it_is_billed_as_used(tmp_path: Path) -> None:
    async def test(home: Inhouse, folder: Path) -> None:
        await held(home, "ran", "waited", "ours")
        assert await charged(home, "ran") == ("EXPIRED", RESERVED, True)
        await home.house.book.hold(ask("open"))
        home.house.book._held_at.clear()  # another process's
        words = [
            word("ran"),
            word("waited", prefilled=0, generated=0, device_ns=0),
            word("ours", cause=Cause.CRASHED),
            word("open"),
            word("nobody knows"),
        ]
        last_words.write(words, folder)
        await book_left(home.house, home.run)
        used = PROMPT * INPUT + 20 * OUTPUT
        assert await charged(home, "ran") == ("SETTLED", used, False)
        assert await charged(home, "open") == ("SETTLED", used, False)
        assert await charged(home, "waited") == ("SETTLED", 0, False)
        assert await charged(home, "ours") == ("SETTLED", 0, False)
        assert [*folder.iterdir()] == []
        (said,) = [each for each in home.logged if each["event"] == "book.last_words"]
        assert (said["count"], said["unknown_count"], said["impossible_count"]) == (4, 1, 0)
        for id_, device_ns, faulted_ns in (("ran", 5_000, 0), ("waited", 0, 0), ("ours", 0, 5_000)):
            found = await home.house.book.explain(id_)
            assert found is not None
            record = found.record
            assert record is not None
            assert (record.outcome, record.reason) == ("interrupted", "gateway_lost")
            assert (record.device_ns, record.faulted_ns) == (device_ns, faulted_ns)
            assert record.device_start == "s1"

    assert PRICE.input * PROMPT + PRICE.output * OUT == RESERVED * 1_000_000
    told(tmp_path, test)


def test_what_was_booked_before_stays(tmp_path: Path) -> None:
    async def test(home: Inhouse, folder: Path) -> None:
        book = home.house.book
        await book.hold(ask("done"))
        await book.settle("done", Meters(input=PROMPT, output=1))
        await book.hold(ask("nothing"))
        await book.void("nothing")
        before = await charged(home, "done")
        last_words.write([word("done"), word("nothing")], folder)
        await book_left(home.house, home.run)
        assert await charged(home, "done") == before
        assert (await charged(home, "nothing"))[:2] == ("VOIDED", 0)

    told(tmp_path, test)


def test_choices_share_a_prompt_and_prompts_do_not(tmp_path: Path) -> None:
    async def test(home: Inhouse, folder: Path) -> None:
        await held(home, "r", n=4, prompt=130)
        last_words.write(
            [
                word("r", prompt=0, prefilled=60, cached=40, generated=1),
                word("r", prompt=0, prefilled=0, generated=2),
                word("r", prompt=1, prompt_tokens=30, prefilled=30, generated=3),
                word("r", prompt=1, prompt_tokens=30, prefilled=10, generated=4),
            ],
            folder,
        )
        await book_left(home.house, home.run)
        cached = PRICE.cached_input * 40 // 1_000_000
        expected = (60 + 30) * INPUT + cached + (1 + 2 + 3 + 4) * OUTPUT
        assert await charged(home, "r") == ("SETTLED", expected, False)

    told(tmp_path, test)


def test_it_waits_for_a_database_that_is_away(tmp_path: Path) -> None:
    async def test(home: Inhouse, folder: Path) -> None:
        await held(home, "ran")
        await home.house.book.hold(ask("running"))
        last_words.write([word("ran")], folder)
        with away(home):
            await home.house.book.settle("running", Meters(input=1))
            assert home.house.book.away
            await book_left(home.house, home.run)
        assert len([*folder.iterdir()]) == 1
        await home.house.book.book_journal()
        await home.house.book.sweep()
        await book_left(home.house, home.run)
        assert (await charged(home, "ran"))[0] == "SETTLED"

    told(tmp_path, test)


def test_what_cannot_be_read_is_put_aside_and_keeps_nothing_else(tmp_path: Path) -> None:
    async def test(home: Inhouse, folder: Path) -> None:
        await held(home, "ran", "before")
        (folder / f"0{WORDS_SUFFIX}").mkdir()
        (folder / f"1{WORDS_SUFFIX}").symlink_to(folder / "nowhere")
        good = msgspec.json.encode(word("before"))
        (folder / f"2{WORDS_SUFFIX}").write_bytes(good + b'\n{"id": "ran"\n\xff\n')
        (folder / f"3{WORDS_SUFFIX}").write_bytes(
            good.replace(b'"generated":20', b'"generated":' + b"9" * 40) + b"\n"
        )
        last_words.write([word("ran")], folder)
        for _ in range(2):
            await book_left(home.house, home.run)
        assert (await charged(home, "ran"))[0] == "SETTLED"
        assert (await charged(home, "before"))[0] == "SETTLED"
        assert sorted(path.name for path in folder.iterdir()) == [
            f"{n}.unreadable" for n in range(4)
        ]
        told = [each for each in home.logged if each["event"] == "last_words.put_aside"]
        assert len(told) == 4

    told(tmp_path, test)


IMPOSSIBLE: tuple[dict[str, Any], ...] = (
    {"generated": OUT + 1},
    {"generated": 10**12},
    {"generated": -1},
    {"prompt_tokens": PROMPT + 1, "prefilled": PROMPT + 1},
    {"cached": 10**9, "prompt_tokens": 10**9},
    {"device_ns": -1},
    {"device_ns": 2**62},
)


@pytest.mark.parametrize("more", IMPOSSIBLE)
def test_no_word_is_believed_beyond_what_was_reserved(tmp_path: Path, more: dict[str, Any]) -> None:
    async def test(home: Inhouse, folder: Path) -> None:
        await held(home, "ran", "other")
        last_words.write([word("ran", **more), word("other")], folder)
        await book_left(home.house, home.run)
        assert await charged(home, "ran") == ("EXPIRED", RESERVED, True)
        assert (await charged(home, "other"))[0] == "SETTLED"
        assert [path.suffix for path in folder.iterdir()] == [".unreadable"]

    told(tmp_path, test)


def test_no_word_ends_what_runs_here(tmp_path: Path) -> None:
    async def test(home: Inhouse, folder: Path) -> None:
        await home.house.book.hold(ask("mine"))
        last_words.write([word("mine", prefilled=0, generated=0), word("mine")], folder)
        await book_left(home.house, home.run)
        assert (await charged(home, "mine"))[0] == "HELD"
        await home.house.book.void("mine")

    told(tmp_path, test)


@pytest.mark.parametrize("id_", ("", "no\0ne", "é", "x" * 10_000))
def test_an_id_that_nobody_has_is_unknown(tmp_path: Path, id_: str) -> None:
    async def test(home: Inhouse, folder: Path) -> None:
        last_words.write([word(id_)], folder)
        await book_left(home.house, home.run)
        (said,) = [each for each in home.logged if each["event"] == "book.last_words"]
        assert said["unknown_count"] == 1
        assert [*folder.iterdir()] == []

    told(tmp_path, test)
