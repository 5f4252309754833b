"""`lockgate document` and `lockgate template`: what they send, as whom, and what others do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.cli.registered import OVERTAKEN_MAX
from tests.gateway import test_cli
from tests.gateway.test_cli import Fake, lockgate

admin = test_cli.admin  # the fixture
AT = "/v1/admin/documents/doc_1"
BOB, EVE, NEW = ({"issuer": "idp", "subject": name} for name in ("bob", "eve", "new"))


@dataclass
class Shelf:
    """A document's readers as the server keeps them.  `meanwhile`: what others make of them each time that
    they have been read."""

    users: list[dict[str, str]]
    meanwhile: Callable[[list[dict[str, str]]], list[dict[str, str]] | None]
    version: int = 1

    def read(self, _: object) -> dict[str, Any]:
        acl = {"users": self.users, "groups": [], "roles": []}
        shown = {"id": "doc_1", "acl": acl, "acl_version": self.version}
        if (others := self.meanwhile(self.users)) is not None:
            self.users, self.version = others, self.version + 1
        return shown

    def put(self, body: dict[str, Any]) -> httpx2.Response:
        if body["acl_version"] != self.version:
            said = {"type": "urn:lockgate:changed_meanwhile", "detail": "Look, and try again."}
            return httpx2.Response(409, json=said)
        self.users, self.version = body["users"], self.version + 1
        return httpx2.Response(200, json={"id": "doc_1"})

    def stand(self, admin: Fake) -> None:
        admin.answers |= {f"GET {AT}": self.read, f"PUT {AT}/acl": self.put}


def test_who_grants_while_another_revokes_gives_nothing_back(admin: Fake) -> None:
    shelf = Shelf([BOB, EVE], lambda users: [EVE] if BOB in users else None)
    shelf.stand(admin)
    assert lockgate("document", "grant", "doc_1", "--user", "new") == 0
    assert shelf.users == [EVE, NEW]
    assert [asked for asked, _ in admin.asked] == [f"GET {AT}", f"PUT {AT}/acl"] * 2


def test_who_revokes_while_another_grants_takes_nothing_else(
    admin: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf = Shelf([BOB], lambda users: None if NEW in users else [*users, NEW])
    shelf.stand(admin)
    assert lockgate("document", "revoke", "doc_1", "--user", "bob") == 0
    assert shelf.users == [NEW]
    # And where the other has taken the same right, there is none left to take.
    shelf = Shelf([BOB, EVE], lambda users: [EVE] if BOB in users else None)
    shelf.stand(admin)
    assert lockgate("document", "revoke", "doc_1", "--user", "bob") == 1
    assert shelf.users == [EVE]
    assert "None of them is on its list" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ("grant", "revoke"))
def test_whoever_is_always_overtaken_ends_with_a_clear_word(
    admin: Fake, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    shelf = Shelf([BOB], lambda users: [*users, NEW])
    shelf.stand(admin)
    assert lockgate("document", verb, "doc_1", "--user", "bob") == 1
    assert len(admin.asked) == 2 * OVERTAKEN_MAX
    assert shelf.users == [BOB, *[NEW] * OVERTAKEN_MAX]
    assert "Others keep changing its list" in capsys.readouterr().err


def test_another_refusal_is_not_tried_again(
    admin: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    Shelf([BOB], lambda _: None).stand(admin)
    pending = {"type": "urn:lockgate:revocation_pending", "detail": "It is in force."}
    for status in (409, 503):
        admin.answers[f"PUT {AT}/acl"] = httpx2.Response(status, json=pending)
        admin.asked.clear()
        assert lockgate("document", "revoke", "doc_1", "--user", "bob") == 1
        assert len(admin.asked) == 2
        assert "It is in force." in capsys.readouterr().err


@pytest.mark.parametrize("words", ("list", "delete doc_1", "grant doc_1 --user eve"))
def test_in_development_a_document_is_a_users_and_a_template_the_operators(
    admin: Fake, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    """An operator belongs to no tenant, and has no documents."""
    lockgate("document", *words.split())
    assert admin.token == "al"
    lockgate("document", *words.split(), "--token", "own", "--admin-url", "http://adm")
    assert admin.token == "own"
    lockgate("template", "list")
    assert admin.token == "op"
    capsys.readouterr()
    assert lockgate("document", *words.split(), "--help") == 0
    assert "acme/alice" in capsys.readouterr().out


def test_a_document_is_added_from_a_file_and_its_readers_change(
    admin: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at, bob = "/v1/admin/documents", {"issuer": "idp", "subject": "bob"}
    acl: dict[str, Any] = {"users": [bob], "groups": [], "roles": []}
    admin.answers |= {
        f"POST {at}": {"id": "doc_1"},
        f"GET {at}/doc_1": {"id": "doc_1", "acl": acl, "acl_version": 3},
        f"PUT {at}/doc_1/acl": {"id": "doc_1"},
        f"DELETE {at}/doc_1": {"id": "doc_1", "deleted": True},
        f"GET {at}?limit=100": {"data": [{"id": "doc_1"}], "has_more": True},
        f"GET {at}?limit=100&after=doc_1": {"data": [{"id": "doc_2"}], "has_more": False},
    }
    text = tmp_path / "lease.txt"
    text.write_text("The rent is 4200.")
    assert lockgate("document", "add", str(text), "--user", "bob") == 0
    assert admin.asked[-1][1]["text"] == "The rent is 4200."
    assert admin.asked[-1][1]["acl"]["users"] == [{"subject": "bob"}]
    assert lockgate("document", "grant", "doc_1", "--user", "bob", "--user", "eve") == 0
    assert admin.asked[-1][1]["users"] == [bob, {"issuer": "idp", "subject": "eve"}]
    assert admin.asked[-1][1]["acl_version"] == 3
    assert lockgate("document", "revoke", "doc_1", "--user", "bob") == 0
    assert admin.asked[-1][1] == {
        "users": [], "groups": [], "roles": [], "acl_version": 3,
    }  # fmt: skip
    assert lockgate("document", "revoke", "doc_1", "--user", "nobody") == 1
    assert lockgate("document", "revoke", "doc_1") == 2
    assert lockgate("document", "delete", "doc_1") == 0
    capsys.readouterr()
    assert lockgate("document", "list") == 0
    assert "doc_2" in capsys.readouterr().out
    text.write_bytes(b"\xff")
    assert lockgate("document", "add", str(text)) == 1
    assert lockgate("document", "add", str(tmp_path / "none")) == 1


def test_a_template_is_added_and_renewed(admin: Fake, tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("For {{who}}.")
    admin.answers |= {
        "POST /v1/admin/templates": {"id": "tmpl_1"},
        "PATCH /v1/admin/templates/tmpl_1": {"id": "tmpl_1"},
    }
    assert lockgate("template", "add", str(text)) == 0
    assert lockgate("template", "add", str(text), "--version-of", "tmpl_1") == 0
    assert admin.asked[-1][1] == {"text": "For {{who}}."}
