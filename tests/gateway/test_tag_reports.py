"""What finance asks by tag: usage cut and narrowed, and the way from a key to its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.usage import legible
from tests.gateway.inhouse import Caller, Inhouse
from tests.gateway.test_admin import problem
from tests.gateway.test_exports import command, wired
from tests.gateway.test_line import lived
from tests.gateway.test_tags import key

USAGE = "/v1/admin/usage"


async def spent(by: Caller, query: str) -> dict[object, int]:
    found = await by.get(USAGE, query)
    assert found.status == 200, found.body
    told = found.json()
    assert sum(row["nano_usd"] for row in told["rows"]) == told["total"]["nano_usd"]
    return {row.get("tag:team"): row["nano_usd"] for row in told["rows"]}


def test_usage_is_cut_by_tag_and_narrowed_to_one_within_the_tenant(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        operator, finance = home.operator("operator/finance"), home.operator("acme/finance")
        robot = await key(home, tags={"team": "search"})
        for _ in range(2):
            assert (await robot.chat(metadata={"env": "prod"})).status == 200
        assert (await home.caller("globex/carol").chat(metadata={"team": "search"})).status == 200
        assert (await home.caller().chat()).status == 200
        mine = await spent(finance, "by=tag:team")
        assert mine.keys() == {None, "search"}
        assert mine["search"] == 2 * mine[None] > 0
        whole = await spent(operator, "by=tag:team")
        assert whole["search"] == 3 * mine[None]
        assert await spent(finance, "by=tag:team&tag:team=search") == {"search": mine["search"]}
        assert await spent(finance, "by=tag:team&tag:team=") == {None: mine[None]}
        narrowed = await spent(operator, "by=tag:team&tag:env=prod&tenant=acme")
        assert narrowed == {"search": mine["search"]}
        assert await spent(finance, "by=tag:team,day,tag:env") == mine
        paged = (await operator.get(USAGE, "by=tag:team&limit=1")).json()
        more = await operator.get(USAGE, f"by=tag:team&limit=1&page={paged['next_page']}")
        assert [row["tag:team"] for row in (*paged["rows"], *more.json()["rows"])] == [
            None,
            "search",
        ]
        problem(await home.operator("globex/admin").get(USAGE, "tenant=acme&by=tag:team"), 403)

    lived(tmp_path, story)


@pytest.mark.parametrize(
    ("query", "says"),
    (
        *(
            ("by=tag:", "tag:NAME"),
            ("by=tag:a,tag:a", "list"),
            ("by=tag:a,tag:b,tag:c", "at most 2"),
        ),
        *((f"by=tag:{'n' * 65}", "list"), ("tag:=x", "Name the tag"), (f"tag:{'n' * 65}=x", "64")),
        *(("tag=x", "unknown name"), ("tag:a=1&tag:a=2", "twice"), ("tag:a%00b=1", "one line")),
        ("&".join(f"tag:n{i}=v" for i in range(7)), "At most 6"),
        ("by=tag:a&page=WzFd", "page"),
    ),
)
def test_what_is_no_question_about_tags_is_said(tmp_path: Path, query: str, says: str) -> None:
    async def story(home: Inhouse) -> None:
        told = problem(await home.operator().get(USAGE, query), 400)
        assert says in str(told["detail"])

    lived(tmp_path, story)


def test_on_the_command_line_from_a_key_to_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(home: Inhouse) -> None:
        to = wired(home, monkeypatch)

        async def asked(*words: str) -> Any:
            assert await command(*words, "--json", *to) == 0
            return json.loads(capsys.readouterr().out)

        made = await asked(
            *("key", "create", "--tenant", "acme", "--user", "robot"),
            *("--tag", "team=search", "--tag", "env=prod"),
        )
        of = ("--tenant", "acme", "--tag", "team=search")
        await asked("budget", "set", *of, "--usd", "0", "--reason", "r")
        robot = Caller(home.public, made["secret"])
        assert (await robot.chat()).status == 429
        await asked("budget", "top-up", *of, "--usd", "1", "--reason", "r")
        told = await robot.chat(metadata={"job": "nightly"})
        assert told.status == 200
        shown = await asked("budget", "show", "--tenant", "acme")
        assert ("tag", "team=search", "1.000000000") in {
            (row["scope"], row["name"], row["topped_up_usd"]) for row in shown["budgets"]
        }
        assert (await asked("check", *of))["tags"] == {"team": "search"}
        report = await asked("usage", "report", "--by", "tag:team,tag:job", "--tag", "env=prod")
        (row,) = report["rows"]
        assert (row["tag:team"], row["tag:job"], row["requests"]) == ("search", "nightly", 1)
        explained = await asked("explain", told.headers["x-request-id"])
        assert {each["name"] for each in explained["tags"]} == {"team", "env", "job"}
        assert await command("explain", told.headers["x-request-id"], *to) == 0
        assert "nightly (client)" in capsys.readouterr().out
        assert await command("key", "list", "--tenant", "acme", *to) == 0
        assert "env prod, team search" in " ".join(capsys.readouterr().out.split())
        for words, says in (
            (("budget", "set", *of, "--project", "p", "--usd", "1", "--reason", "r"), "One budget"),
            (
                (
                    "budget",
                    "set",
                    "--tenant",
                    "acme",
                    "--tag",
                    "team",
                    "--usd",
                    "1",
                    "--reason",
                    "r",
                ),
                "=",
            ),
            (
                (
                    "key",
                    "create",
                    "--tenant",
                    "acme",
                    "--user",
                    "u",
                    "--tag",
                    "a=b",
                    "--tag",
                    "a=c",
                ),
                "one",
            ),
            (("usage", "report", "--tag", "team"), "such as team=search"),
            (("check", "--tag", "a=b"), "--tenant"),
        ):
            assert await command(*words, *to) != 0
            assert says in capsys.readouterr().err

    lived(tmp_path, story)


def test_no_value_of_a_client_looks_like_a_word_of_the_table() -> None:
    for value in ("", "total", "–"):  # noqa: RUF001 — as the table has it
        assert legible({"tag:team": value}) == {"tag:team": f'"{value}"'}
    assert legible({"tag:team": "search", "user": "total"}) == {
        "tag:team": "search",
        "user": "total",
    }
    assert legible({"tag:team": None}) == {"tag:team": None}
