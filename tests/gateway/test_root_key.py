"""The root keys: added to the file, wrapped by, released by the server and dropped from the file; rehearsed whole."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import client
from security.keyring import KeyringError, open_keyring
from security.keyring_roots import add_root
from security.keyring_tenants import TenantSecrets
from tenants.secrets import SecretTable
from tenants.store import Store
from tests.gateway import test_cli
from tests.gateway.inhouse import Inhouse, inhouse
from tests.gateway.keeping import WHY
from tests.gateway.registered_kit import ask, register, said
from tests.gateway.test_admin import problem
from tests.gateway.test_cli import Fake, lockgate

admin = test_cli.admin  # the fixture
ROOTS = "/v1/admin/root-key"


async def release(home: Inhouse, root: str, status: int = 200) -> str:
    answer = await home.operator().post(f"{ROOTS}/release", {"root": root, **WHY})
    assert answer.status == status, answer.body
    return str(answer.json().get("type", "")).removeprefix("urn:lockgate:")


def test_a_root_is_replaced_and_old_copies_are_lost(tmp_path: Path) -> None:
    """The whole rehearsal: an old copy of the database is readable until the old root is dropped."""
    path = tmp_path / "root.key"

    async def before() -> tuple[str, str, str]:
        async with inhouse(tmp_path) as home:
            id_ = await register(home.caller())
            first, second = (each["root"] for each in (await shown(home))["roots"])
            assert await release(home, first, 409) == "root_needed"
            assert await release(home, second, 409) == "root_needed"  # it wraps
        return id_, first, second

    async def after(id_: str, old: str, new: str) -> None:
        async with inhouse(tmp_path) as home:
            found = await shown(home)
            assert found["wraps"] == new
            assert [each["secrets"] for each in found["roots"]] == [0, 2, 0]
            assert await release(home, old, 409) == "root_in_use"
            await release(home, "0011223344556677", 404)
            done = await home.operator().post(f"{ROOTS}/rewrap", WHY)
            assert (done.json()["rewrapped"], done.status) == (2, 200)
            assert [each["secrets"] for each in done.json()["roots"]] == [0, 0, 2]
            again = await home.operator().post(f"{ROOTS}/rewrap", WHY)
            assert again.json()["rewrapped"] == 0
            await release(home, old)
            assert "4200" in said(await ask(home.caller(), id_))
            kinds = [(each["kind"], each.get("target")) for each in home.audited()[1:]]
            assert ("root_key.rewrapped", new) in kinds
            assert ("root_key.released", old) in kinds
            assert WHY["reason"] not in json.dumps(home.audited())

    async def read_copy(copy: Path) -> None:
        store = Store.open(f"sqlite:///{copy}")
        try:
            await TenantSecrets(open_keyring(path), SecretTable(store), rng=bytes).load()
        finally:
            store.close()

    id_, _, old = asyncio.run(before())
    copy = tmp_path / "copy.db"
    shutil.copy(tmp_path / "lockgate.db", copy)
    new = add_root(path)
    asyncio.run(after(id_, old, new))
    asyncio.run(read_copy(copy))
    from security.keyring_roots import drop_root

    drop_root(path, old, in_use=[new])
    with pytest.raises(KeyringError, match=old):
        asyncio.run(read_copy(copy))

    async def without_it() -> None:
        async with inhouse(tmp_path) as home:
            assert "4200" in said(await ask(home.caller(), id_))

    asyncio.run(without_it())


async def shown(home: Inhouse) -> dict[str, Any]:
    found: dict[str, Any] = (await home.operator().get(ROOTS)).json()
    return found


def test_malformed_asks_change_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with inhouse(tmp_path) as home:
            for path, body in (
                ("rewrap", {}),
                ("rewrap", {"reason": ""}),
                ("release", {"reason": "r"}),
                ("release", {"root": "", "reason": "r"}),
                ("release", {"root": ["x"], "reason": "r"}),
            ):
                problem(await home.operator().post(f"{ROOTS}/{path}", body), 400)

    asyncio.run(run())


# The commands


def three_roots(path: Path) -> tuple[str, ...]:
    open_keyring(path)
    add_root(path)
    return open_keyring(path).root_ids


def view(ids: tuple[str, ...], *secrets: int, **more: object) -> dict[str, object]:
    rows = [{"root": root, "secrets": count} for root, count in zip(ids, secrets, strict=True)]
    return {"wraps": ids[-1], "roots": rows, **more}


def test_a_root_is_added_to_the_file_alone(
    admin: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lockgate("root-key", "add") == 1
    assert "There is no" in capsys.readouterr().err
    assert not (tmp_path / "root.key").exists()
    before = open_keyring(tmp_path / "root.key").root_ids
    assert lockgate("root-key", "add", "--json") == 0
    added = json.loads(capsys.readouterr().out)["added"]
    assert open_keyring(tmp_path / "root.key").root_ids == (*before, added)
    assert admin.asked == []


def test_a_root_is_dropped_when_the_server_has_let_it_go(
    admin: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = three_roots(tmp_path / "root.key")
    words = ("root-key", "drop", ids[1], "--reason", "r")
    admin.answers[f"GET {ROOTS}"] = view(ids, 0, 0, 2)
    admin.answers[f"POST {ROOTS}/release"] = view(ids, 0, 0, 2, released=ids[1])
    assert lockgate(*words) == 0, capsys.readouterr().err
    assert open_keyring(tmp_path / "root.key").root_ids == (ids[0], ids[2])
    assert admin.asked[-1] == (f"POST {ROOTS}/release", {"root": ids[1], "reason": "r"})


def test_nothing_is_dropped_that_the_server_may_still_wrap_by(
    admin: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that was not restarted wraps by the root that was the last before."""
    ids = three_roots(tmp_path / "root.key")
    words = ("root-key", "drop", ids[1], "--reason", "r")
    admin.answers[f"GET {ROOTS}"] = view(ids[:2], 0, 0)
    assert lockgate(*words) == 1
    assert "Restart it" in capsys.readouterr().err
    assert [each for each, _ in admin.asked] == [f"GET {ROOTS}"]
    admin.answers[f"GET {ROOTS}"] = view(ids, 0, 1, 1)  # which refuses, then
    assert lockgate(*words) == 1
    assert open_keyring(tmp_path / "root.key").root_ids == ids


def test_roots_are_shown_with_what_they_wrap(
    admin: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.answers[f"GET {ROOTS}"] = view(("aa", "bb"), 0, 2)
    admin.answers[f"POST {ROOTS}/rewrap"] = view(("aa", "bb"), 0, 2, rewrapped=1)
    assert lockgate("root-key", "show") == 0
    assert capsys.readouterr().out.split() == [
        "root",
        "secrets",
        "wraps",
        "aa",
        "0",
        "no",
        "bb",
        "2",
        "yes",
    ]
    assert lockgate("root-key", "rewrap", "--reason", "r") == 0
    assert "1 secrets were wrapped again." in capsys.readouterr().out


# And those of a tenant's secret

ACME = "/v1/admin/tenants/acme"
VERSIONS = {
    "tenant": "acme",
    "current": 2,
    "versions": [
        {"version": 1, "root": "aa", "texts": 3},
        {"version": 2, "root": "aa", "texts": 1},
    ],
    "to_reseal": 3,
}


def test_versions_are_shown_with_what_is_left_to_do(
    admin: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.answers[f"GET {ACME}/secret"] = VERSIONS
    admin.answers[f"POST {ACME}/secret/rotate"] = VERSIONS
    admin.answers[f"POST {ACME}/secret/retire"] = VERSIONS
    for words, body in (
        ("secret acme", None),
        ("rotate acme --reason r", {"reason": "r"}),
        ("retire acme --version 1 --reason r", {"version": 1, "reason": "r"}),
    ):
        assert lockgate("tenant", *words.split()) == 0
        told = capsys.readouterr()
        assert told.out.split("\n")[2].split() == ["2", "aa", "1", "yes"]
        assert "3 texts" in told.err
        assert admin.asked[-1][1] == body
    gone: dict[str, Any] = {"tenant": "acme", "current": None, "versions": [], "to_reseal": 0}
    admin.answers[f"GET {ACME}/secret"] = gone
    assert lockgate("tenant", "secret", "acme") == 0
    assert "was shredded" in capsys.readouterr().out


def test_a_shredding_asks_for_the_name_again(
    admin: Fake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = {"versions": 2, "texts": 3, "blocks": 4, "record": 5}
    admin.answers[f"POST {ACME}/shred"] = done
    words = ("tenant", "shred", "acme", "--reason", "r")
    assert lockgate(*words) == 2  # nobody is there to be asked
    for typed, code in (("", 1), ("globex\n", 1), ("acme\n", 0)):
        admin.asked.clear()
        terminal = Terminal(typed)
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdin", terminal)
            assert lockgate(*words) == code
        assert bool(admin.asked) == (code == 0)
    assert admin.asked == [(f"POST {ACME}/shred", {"reason": "r", "confirm": "acme"})]
    assert lockgate(*words, "--yes") == 0
    assert "2 versions of its secret, 3 texts, 4 blocks" in capsys.readouterr().out
    assert client.segment("acme") == "acme"


class Terminal:
    def __init__(self, typed: str) -> None:
        self.typed = typed

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self.typed
