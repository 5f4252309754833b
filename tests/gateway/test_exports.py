"""Exports, months and reconciliation over HTTP, and as the command line does them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.cli import client, main
from policies.periods import month_at
from tests.gateway.inhouse import Answered, Caller, Inhouse
from tests.gateway.test_cli import Fake, admin, lockgate
from tests.gateway.test_line import lived
from tests.tenants.focus_checks import faults, read, total

__all__ = ["admin"]

EXPORT, MANIFEST = "/v1/admin/usage/export", "/v1/admin/usage/export/manifest"
NOW = month_at(time.time_ns() // 1_000_000).name


async def some(home: Inhouse) -> None:
    for name in ("acme/alice", "acme/bob", "globex/carol"):
        assert (await home.caller(name).chat("hello")).status == 200
    home.time.ahead_ms = 61_000  # what was written a minute ago is exported


def in_a_while(home: Inhouse) -> None:
    """The month is over for finance; tokens are still good."""
    later_ms = home.time.wall_ms() + 40 * 86_400_000
    home.house.finance._now_ms = lambda _: later_ms


async def sent(caller: Caller, query: str) -> tuple[Answered, Any]:
    asked = await caller.get(MANIFEST, f"period={NOW}&{query}".rstrip("&"))
    assert asked.status == 200, asked.body
    told = asked.json()
    answer = await caller.get(
        EXPORT, f"period={NOW}&as_of_ms={told['as_of_ms']}&{query}".rstrip("&")
    )
    assert answer.status == 200
    assert hashlib.sha256(answer.body).hexdigest() == told["files"][0]["sha256"]
    assert told["files"][0]["name"] in answer.headers["content-disposition"]
    return answer, told


def test_an_export_is_what_its_manifest_says(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await some(home)
        for version in ("1.2", "1.4"):
            answer, told = await sent(home.operator(), f"focus={version}&granularity=hour")
            rows = read(answer.body)
            assert list(faults(rows, version, NOW)) == []
            assert told["agrees"] is True
            assert told["state"] == "provisional"
            assert told["price_versions"] == ["echo@0"]
            assert told["rows"] == len(rows) == 6
            spend = await home.house.book.spend(from_ms=0, to_ms=2**62)
            assert total(rows, "BilledCost") * 10**9 == spend
            assert sum(int(row["x_GpuNanoseconds"]) for row in rows) >= 0
        for name in ("acme/finance", "acme/admin"):
            answer, told = await sent(home.operator(name), "")
            rows = read(answer.body)
            assert {row["BillingAccountId"] for row in rows} == {"acme"}
            assert {row["x_GpuNanoseconds"] for row in rows} == {""}
            assert told["tenant"] == "acme"
            assert b"globex" not in answer.body + json.dumps(told).encode()
            foreign = await home.operator(name).get(EXPORT, f"period={NOW}&tenant=globex")
            assert foreign.status == 403
        named, _ = await sent(home.operator(), "operator=Example%20Ltd&host=Other")
        assert {row["ProviderName"] for row in read(named.body)} == {"Example Ltd"}

    lived(tmp_path, story)


def test_without_pyarrow_the_answer_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    async def story(home: Inhouse) -> None:
        for path in (EXPORT, MANIFEST):
            answer = await home.operator().get(path, f"period={NOW}&format=parquet")
            assert answer.status == 400
            assert "lockgate[parquet]" in answer.json()["detail"]

    lived(tmp_path, story)


def test_whoever_leaves_ends_an_export(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await some(home)
        left = home.operator().start("GET", EXPORT, query=f"period={NOW}")
        left.leave()
        await left.end()
        assert (await home.operator().get(EXPORT, f"period={NOW}")).status == 200

    lived(tmp_path, story)


def test_a_month_is_closed_once_and_by_the_operator(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await some(home)
        money = home.operator("operator/finance")
        path = f"/v1/admin/periods/{NOW}"
        early = await money.post(f"{path}/close", {"reason": "month"})
        assert (early.status, early.json()["type"]) == (409, "urn:lockgate:period_running")
        in_a_while(home)
        done = (await money.post(f"{path}/close", {"reason": "month"})).json()
        assert done["period"] == NOW
        assert len(done["sha256"]) == 64
        again = await money.post(f"{path}/close", {})
        assert (again.status, again.json()["type"]) == (409, "urn:lockgate:period_closed")
        found = (await money.get(f"{path}/verify")).json()
        assert found["agrees"] is True
        assert found["kept"] == found["now"]
        assert [each["kind"] for each in home.audited() if "period" in each["kind"]] == [
            "period.closed"
        ]
        own = (await home.operator("acme/finance").get("/v1/admin/periods")).json()["periods"]
        assert own[0]["state"] == "closed"
        assert "sha256" not in own[0]
        whole = (await money.get("/v1/admin/periods")).json()["periods"][0]
        assert whole["sha256"] == done["sha256"]
        told = (await money.get(MANIFEST, f"period={NOW}")).json()
        assert (told["state"], told["period_sha256"]) == ("final", done["sha256"])
        assert told["as_of_ms"] is None

    lived(tmp_path, story)


def test_the_book_of_a_house_agrees_with_itself(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await some(home)
        found = (await home.operator().get("/v1/admin/usage/reconcile")).json()
        assert found["agrees"] is True
        assert found["requests"]["admitted"] == found["requests"]["settled"] == 3
        assert found["ledger"]["ledger_usd"] == found["ledger"]["lines_usd"]
        device = found["device_time"]
        assert device["agrees"] is True
        assert device["attributed_ns"] == device["requests_ns"] > 0
        assert device["in_flight_ns"] == device["difference_ns"] == 0
        assert found["disagreements"] == []

    lived(tmp_path, story)


# As the command line does it.


def wired(home: Inhouse, monkeypatch: pytest.MonkeyPatch, role: str = "operator") -> list[str]:
    """`lockgate` speaks to the house, from a thread of its own."""
    loop = asyncio.get_running_loop()

    def threadsafe(request: httpx2.Request) -> httpx2.Response:
        path, _, query = request.url.raw_path.decode().partition("?")
        body = json.loads(request.content) if request.content else None

        async def ask() -> Answered:
            return await home.operator(role).start(request.method, path, body, query).end()

        found = asyncio.run_coroutine_threadsafe(ask(), loop).result(20)
        return httpx2.Response(found.status, content=found.body, headers=found.headers)

    monkeypatch.setattr(
        client.Server,
        "open",
        lambda self, *_: httpx2.Client(
            base_url=self.url, transport=httpx2.MockTransport(threadsafe)
        ),
    )
    return ["--admin-url", "http://adm", "--token", "t"]


async def command(*words: str) -> int:
    def run() -> int:
        with pytest.raises(SystemExit) as stop:
            main(words)
        return int(stop.value.code or 0)

    return await asyncio.to_thread(run)


@pytest.mark.slow
def test_the_command_line_exports_reconciles_and_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    async def story(home: Inhouse) -> None:
        await some(home)
        to = wired(home, monkeypatch)
        for kind in ("csv", "parquet"):
            words = ("usage", "export", "--period", NOW, "--out", str(out), "--format", kind)
            assert await command(*words, *to) == 0, capsys.readouterr().err
        manifest = json.loads((out / f"focus-1.2-{NOW}.csv.manifest.json").read_text())
        data = (out / f"focus-1.2-{NOW}.csv").read_bytes()
        assert hashlib.sha256(data).hexdigest() == manifest["files"][0]["sha256"]
        assert list(faults(read(data), "1.2", NOW)) == []
        assert len(list(out.iterdir())) == 4
        assert await command("usage", "reconcile", *to) == 0
        rows = (await home.operator().get("/v1/admin/usage", "by=day,model")).json()["rows"]
        invoice = tmp_path / "invoice.csv"
        lines = [f"{row['day']},{row['model']},{row['usd']}" for row in rows]
        invoice.write_text("Date,Model,Cost\n" + "\n".join(lines) + "\n")
        assert await command("usage", "reconcile", "--invoice", str(invoice), *to) == 0
        invoice.write_text(f"day,usd\n{rows[0]['day']},0.000000001\n")
        capsys.readouterr()
        assert await command("usage", "reconcile", "--invoice", str(invoice), "--json", *to) == 1
        told = json.loads(capsys.readouterr().out)
        spend = Decimal(await home.house.book.spend(from_ms=0, to_ms=2**62)).scaleb(-9)
        assert Decimal(told["invoice"]["unexplained_usd"]) == Decimal("0.000000001") - spend
        assert told["agrees"] is False
        assert await command("usage", "close", "--period", NOW, "--reason", "r", *to) == 1
        in_a_while(home)
        assert await command("usage", "close", "--period", NOW, "--reason", "r", *to) == 0
        assert await command("usage", "close", "--period", NOW, "--verify", *to) == 0
        assert await command("usage", "periods", *to) == 0

    lived(tmp_path / "house", story)


@pytest.mark.parametrize(
    ("text", "says"),
    (
        ("", "no column day"),
        ("day,usd\n", "no rows"),
        ("day\n2026-11-01\n", "no column amount_usd"),
        ("day,usd\n2026-13-01,1\n", "line 2: '2026-13-01' is no day"),
        ("day,usd\n2026-11-01,1e999999999\n", "is no amount"),
        ("day,usd\n2026-11-01,NaN\n", "is no amount"),
        ("day,usd\n2026-11-01\n", "is no amount"),
        ('day,usd\n"2026-11-01,1\n', "line"),
    ),
)
def test_an_invoice_that_cannot_be_read_is_an_error_with_its_line(
    admin: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path = tmp_path / "invoice.csv"
    path.write_text(text)
    assert lockgate("usage", "reconcile", "--invoice", str(path)) == 1
    assert says in capsys.readouterr().err
    assert admin.asked == []


def test_a_file_that_is_not_what_the_manifest_says_is_not_kept(
    admin: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = {"name": "f.csv", "bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}
    told = {
        "state": "final", "rows": 1, "agrees": True, "totals": {"BilledCost": "1"},
        "files": [file], "as_of_ms": 7,
    }  # fmt: skip
    query = "?period=2026-10&focus=1.2&format=csv&granularity=day"
    words = ("usage", "export", "--period", "2026-10", "--out", str(tmp_path / "o"))
    for data, code in ((b"abc", 0), (b"abd", 1), (b"abcd", 1), (b"ab", 1)):
        admin.answers[f"GET {MANIFEST}{query}"] = told
        admin.answers[f"GET {EXPORT}{query}&as_of_ms=7"] = httpx2.Response(200, content=data)
        assert lockgate(*words) == code, data
        assert (tmp_path / "o" / "f.csv").read_bytes() == b"abc"
    assert {path.name for path in (tmp_path / "o").iterdir()} == {"f.csv", "f.csv.manifest.json"}
    admin.answers[f"GET {EXPORT}{query}&as_of_ms=7"] = httpx2.Response(200, content=b"abc")
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        full = OSError(28, "No space left on device")
        patch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(full))
        assert lockgate(*words) == 1
    assert "cannot be written to (No space left on device)" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "o").iterdir()} == {"f.csv", "f.csv.manifest.json"}
    for name in ("../f.csv", "/etc/x", ".hidden", "", "a/b"):
        admin.answers[f"GET {MANIFEST}{query}"] = {**told, "files": [{**file, "name": name}]}
        assert lockgate(*words) == 1
        assert "names a file that is none" in capsys.readouterr().err
