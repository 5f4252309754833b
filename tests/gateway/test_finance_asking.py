"""What a clerk asks and is told: counts that overlap, names that are nobody's."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import get_type_hints

import pytest

from gateway.cli import usage
from tenants.reports import COLUMNS
from tests.gateway.inhouse import Inhouse
from tests.gateway.test_exports import NOW, command, in_a_while, some, wired
from tests.gateway.test_line import lived

ASKED = (
    ("/v1/admin/usage", "by=user"),
    ("/v1/admin/usage/export", f"period={NOW}"),
    ("/v1/admin/usage/export/manifest", f"period={NOW}"),
    ("/v1/organization/costs", "start_time=1700000000"),
    ("/v1/organization/usage/completions", "start_time=1700000000"),
)


def test_rows_that_share_requests_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(home: Inhouse) -> None:
        await some(home)
        to = wired(home, monkeypatch)
        for by, overlap in (("tenant", False), ("meter", True), ("day,price", True)):
            found = (await home.operator().get("/v1/admin/usage", f"by={by}")).json()
            assert found["requests_overlap"] is overlap
            assert found["total"]["requests"] == 3
            assert await command("usage", "report", "--by", by, *to) == 0
            assert ("the total counts it once" in capsys.readouterr().out) is overlap

    lived(tmp_path, story)


def test_a_name_that_is_nobodys_is_no_empty_tenant(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await some(home)
        config = home.house.directory._known.config
        left = {name: of for name, of in config.tenants.items() if name != "globex"}
        home.house.directory._known.config = replace(config, tenants=left)
        for path, query in ASKED:
            for name in ("nobody", "ACME", "..%2F.."):
                told = await home.operator().get(path, f"{query}&tenant={name}")
                assert told.status == 404, path
                assert "There is no tenant" in told.json()["detail"]
            gone = await home.operator().get(path, f"{query}&tenant=globex")
            assert gone.status == 200, path  # configured no more, and in the book
            finance = home.operator("acme/finance")
            refusals = [await finance.get(path, f"{query}&tenant={n}") for n in ("globex", "none")]
            assert {told.status for told in refusals} == {403}
            assert refusals[0].body == refusals[1].body
        found = (await home.operator().get("/v1/admin/usage", "tenant=globex")).json()
        assert found["total"]["requests"] == 1

    lived(tmp_path, story)


def test_the_command_line_says_which_name_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(home: Inhouse) -> None:
        await some(home)
        to, out = wired(home, monkeypatch), tmp_path / "out"
        invoice = tmp_path / "invoice.csv"
        invoice.write_text("day,usd\n2026-11-01,1\n")
        export = ("export", "--period", NOW, "--out", str(out))
        for words in (("report",), export, ("reconcile", "--invoice", str(invoice))):
            for name in ("nobody", "../.."):
                assert await command("usage", *words, "--tenant", name, *to) == 1
                assert f"no tenant '{name}'" in capsys.readouterr().err
        assert not out.exists()
        assert await command("usage", "reconcile", "--tenant", "nobody", *to) == 2
        assert "--invoice" in capsys.readouterr().err

    lived(tmp_path / "house", story)


def test_an_export_says_what_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(home: Inhouse) -> None:
        await some(home)
        to = wired(home, monkeypatch)
        words = ("usage", "export", "--period", NOW, "--out", str(tmp_path / "out"))
        assert await command(*words, *to) == 0
        told = capsys.readouterr().out
        as_of_ms = json.loads((tmp_path / "out" / f"focus-1.2-{NOW}.csv.manifest.json").read_text())
        at = datetime.fromtimestamp(as_of_ms["as_of_ms"] // 1000, UTC)
        assert f"As of {at:%Y-%m-%d %H:%M:%S} UTC; what ended later is in the next export" in told
        in_a_while(home)
        await home.operator().post(f"/v1/admin/periods/{NOW}/close", {"reason": "r"})
        assert await command(*words, *to) == 0
        assert "As of" not in capsys.readouterr().out
        assert await command("usage", "export", "--help") == 0
        assert "ended later is in the next" in " ".join(capsys.readouterr().out.split())

    lived(tmp_path / "house", story)


def test_help_names_all_that_can_be_grouped_by() -> None:
    report = get_type_hints(usage.report, include_extras=True)["by"]
    words = report.__metadata__[0].help.removeprefix("Group by these: ").removesuffix(".")
    assert set(words.split(", ")) == {*COLUMNS, "tag:NAME"}
