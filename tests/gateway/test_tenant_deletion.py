"""A tenant is deleted over HTTP and by the command line: exported first, refused for good, gone on with after a failure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.echo import EchoExecutor
from gateway.api.administration import tenant_deletion
from tenants import deletion
from tenants.directory import Change, ChangeKind, Directory
from tenants.store import StoreUnavailable
from tests.gateway.inhouse import Caller, Inhouse
from tests.gateway.test_admin import problem
from tests.gateway.test_exports import NOW, command, in_a_while, some, wired
from tests.gateway.test_line import Hold, lived

PATH = "/v1/admin/tenants/acme"
ASK: dict[str, object] = {"confirm": "acme", "reason": "acme left"}


async def exported(operator: Caller) -> str:
    told = await operator.get(f"{PATH}/export")
    assert told.status == 200
    return hashlib.sha256(told.body).hexdigest()


async def gone(home: Inhouse) -> dict[str, Any]:
    operator = home.operator()
    begun = await operator.post(f"{PATH}/delete", ASK)
    assert begun.json() == {"tenant": "acme", "state": "exportable"}, begun.body
    body = {**ASK, "export_sha256": await exported(operator)}
    done = await operator.post(f"{PATH}/delete", body)
    assert done.status == 200, done.body
    found: dict[str, Any] = done.json()
    return found


def test_a_deleted_tenant_keeps_its_sums_and_its_name_is_refused(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await some(home)
        key = await home.operator().post("/v1/admin/keys", {"tenant": "acme", "user": "robot"})
        service = Caller(home.public, key.json()["secret"])
        assert (await service.chat()).status == 200
        in_a_while(home)
        operator, month = home.operator(), f"/v1/admin/periods/{NOW}"
        assert (await operator.post(f"{month}/close", {"reason": "month"})).status == 200
        before = (await operator.get("/v1/admin/usage", "by=tenant")).json()
        done = await gone(home)
        assert done["state"] == "deleted"
        after = (await operator.get("/v1/admin/usage", "by=tenant")).json()
        assert after["total"] == before["total"]
        names = [
            {row["tenant"]: row["nano_usd"] for row in told["rows"]} for told in (before, after)
        ]
        assert names[1] == {done["pseudonym"]: names[0]["acme"], "globex": names[0]["globex"]}
        seen = (await operator.get(f"{month}/verify")).json()
        assert (seen["agrees"], len(seen["seals"])) == (True, 1)
        one = (await operator.get("/v1/admin/usage", f"by=user&tenant={done['pseudonym']}")).json()
        assert one["total"]["nano_usd"] == names[0]["acme"]
        for caller in (home.caller(), service):
            assert (await caller.chat()).status in {401, 403}
        assert (await home.caller("globex/carol").chat()).status == 200
        for path, body in (
            (f"{PATH}/resume", {}),
            (f"{PATH}/delete", ASK),
            (f"{PATH}/suspend", {}),
        ):
            told = problem(await operator.post(path, body), 410)
            assert "its name is not used again" in str(told["detail"])
        problem(await operator.post("/v1/admin/keys", {"tenant": "acme", "user": "x"}), 410)
        assert [
            each["tenant"] for each in (await operator.get("/v1/admin/tenants")).json()["tenants"]
        ] == ["globex"]
        kinds = [each["kind"] for each in home.audited() if each["kind"].startswith("tenant.")]
        assert kinds == [
            "tenant.deletion_begun",
            "tenant.exported",
            "tenant.shredded",
            "tenant.deleted",
        ]
        assert done["pseudonym"] not in json.dumps(home.audited())  # the two are not told together
        config = home.house.directory._config  # a restart, or another gateway, with the same file
        fresh = Directory(
            config, home.store, clock_s=lambda: 0, tombstone=home.house.directory._tombstone
        )
        await fresh.load()
        assert (list(fresh.tenants()), fresh.left_out) == (["globex"], ("acme",))

    lived(tmp_path, story)


def test_other_gateways_hear_of_it_by_what_everybody_reads(tmp_path: Path) -> None:
    """And none of them serves it while it is being deleted."""

    async def story(home: Inhouse) -> None:
        ours = home.house.directory
        other = Directory(ours._config, home.store, clock_s=lambda: 0, tombstone=ours._tombstone)
        await other.load()
        texts = home.house.registered.documents.snapshot().id
        await home.operator().post(f"{PATH}/delete", ASK)
        await other.refresh()
        assert other.tenants() == {"acme": True, "globex": False}
        await gone(home)
        assert not other.is_deleted("acme")
        heard: list[object] = []
        other.subscribe(heard.append)
        await other.refresh()
        assert other.is_deleted("acme")
        assert (list(other.tenants()), len(heard)) == (["globex"], 1)
        assert home.house.registered.documents.snapshot().id > texts
        other.configure(ours._config)  # by SIGHUP, with the same file
        assert (list(other.tenants()), other.left_out) == (["globex"], ("acme",))

    lived(tmp_path, story)


def test_its_name_is_in_no_figure_of_a_process_that_has_heard(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await some(home)
        house, operator = home.house, home.operator()
        before = await figures(operator)
        assert all("acme" in each and "globex" in each for each in before)
        listening = house.directory._listeners._all
        ours, listening[:] = list(listening), []  # as another gateway, which hears of it later
        await gone(home)
        assert all("acme" in each for each in await figures(operator))
        listening[:] = ours
        house.directory._listeners.publish(Change(ChangeKind.LEARNED, ""))
        after = await figures(operator)
        assert all("acme" not in each and "globex" in each for each in after)
        assert sum(tally.requests for _, tally in house.promises.by(("hour",))) > 0

    lived(tmp_path, story)


@pytest.mark.parametrize("by", ("tenant", "service_class,tenant,hour"))
def test_where_it_is_deleted_its_name_goes_at_once(tmp_path: Path, by: str) -> None:
    async def story(home: Inhouse) -> None:
        await some(home)
        await gone(home)
        for each in await figures(home.operator(), by):
            assert "acme" not in each
            assert "globex" in each

    lived(tmp_path, story)


async def figures(operator: Caller, by: str = "tenant") -> list[str]:
    told = [
        await operator.get("/metrics"),
        await operator.get("/v1/admin/promises", f"by={by}"),
    ]
    assert {each.status for each in told} == {200}
    return [each.body.decode() for each in told]


def test_one_that_is_configured_no_more_is_deleted_too(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await some(home)
        config = home.house.directory._config
        left = {name: of for name, of in config.tenants.items() if name != "acme"}
        home.house.directory.configure(replace(config, tenants=left))
        assert (await gone(home))["state"] == "deleted"
        home.house.directory.configure(config)
        assert home.house.directory.left_out == ("acme",)

    lived(tmp_path, story)


def test_nothing_is_destroyed_without_its_export(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await some(home)
        operator = home.operator()
        assert (await operator.post(f"{PATH}/delete", ASK)).status == 200
        assert (await home.caller().chat()).status == 403  # suspended by it
        wrong = {**ASK, "export_sha256": "0" * 64}
        told = problem(await operator.post(f"{PATH}/delete", wrong), 409)
        assert told["type"] == "urn:lockgate:export_differs"
        digest = await exported(operator)
        credit = {"tenant": "acme", "usd": "0.000000001", "reason": "r"}
        assert (await operator.post("/v1/admin/budgets/credit", credit)).status == 200
        problem(await operator.post(f"{PATH}/delete", {**ASK, "export_sha256": digest}), 409)
        told = problem(await operator.post(f"{PATH}/resume", {}), 409)
        assert told["type"] == "urn:lockgate:tenant_deleting"
        ended = await operator.post(f"{PATH}/delete", {**ASK, "abandon": True})
        assert ended.json() == {"tenant": "acme", "state": "suspended"}
        assert (await operator.post(f"{PATH}/resume", {})).status == 200
        assert (await home.caller().chat()).status == 200
        for body in (
            {**ASK, "confirm": "globex"},
            {"confirm": "acme"},
            {**ASK, "export_sha256": "x"},
        ):
            problem(await operator.post(f"{PATH}/delete", body), 400)
        problem(
            await operator.post("/v1/admin/tenants/nobody/delete", {**ASK, "confirm": "nobody"}),
            404,
        )

    lived(tmp_path, story)


def test_what_runs_is_ended_or_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_deletion, "DRAIN_S", 0.5)
    gate = Hold()

    async def story(home: Inhouse) -> None:
        running = home.caller().start("POST", "/v1/chat/completions", {
            "model": "echo", "messages": [{"role": "user", "content": "x"}]})  # fmt: skip
        await gate.waiting.wait()
        told = await home.operator().post(f"{PATH}/delete", ASK)
        gate.opened.set()
        await running.end()
        if told.status == 409:
            assert problem(told, 409)["type"] == "urn:lockgate:tenant_busy"
            told = await home.operator().post(f"{PATH}/delete", ASK)
        assert told.json()["state"] == "exportable"

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_what_failed_midway_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, left = deletion.step, iter((1, 1, 1))

    def failing(*asked: Any, **more: Any) -> Any:
        if next(left, None) is None:
            raise StoreUnavailable("away")
        return step(*asked, **more)

    async def story(home: Inhouse) -> None:
        await some(home)
        before = (await home.operator().get("/v1/admin/usage", "by=month")).json()
        with monkeypatch.context() as broken:
            broken.setattr(deletion, "step", failing)
            operator = home.operator()
            await operator.post(f"{PATH}/delete", ASK)
            body = {**ASK, "export_sha256": await exported(operator)}
            problem(await operator.post(f"{PATH}/delete", body), 503)
        done = await home.operator().post(f"{PATH}/delete", ASK)  # no export is asked for any more
        assert done.json()["state"] == "deleted"
        assert (await home.operator().get("/v1/admin/usage", "by=month")).json() == before

    lived(tmp_path, story)


def test_the_command_line_exports_and_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    async def story(home: Inhouse) -> None:
        await some(home)
        to = wired(home, monkeypatch)
        words = ("tenant", "delete", "acme", "--reason", "left")
        assert await command(*words, *to) == 2  # where to
        assert await command(*words, "--export", str(out), *to) == 2  # nobody typed the name
        (tmp_path / "file").write_text("")
        assert await command(*words, "--export", str(tmp_path / "file" / "x"), "--yes", *to) == 1
        assert (await home.caller().chat()).status == 200  # nothing has happened
        assert await command(*words, "--export", str(out), "--yes", *to) == 0, (
            capsys.readouterr().err
        )
        told = capsys.readouterr().out
        manifest = json.loads((out / "tenant-acme.jsonl.manifest.json").read_text())
        data = (out / "tenant-acme.jsonl").read_bytes()
        assert hashlib.sha256(data).hexdigest() == manifest["sha256"]
        assert manifest["rows"]["reservation"] == 3
        assert b"globex" not in data
        assert "kept as deleted:" in told
        assert await command(*words, "--export", str(out), "--yes", *to) == 1
        assert "was deleted" in capsys.readouterr().err

    lived(tmp_path / "house", story)
