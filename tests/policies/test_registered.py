"""Rights in registered texts, by everybody in every state, and what becomes of variables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.access import Owner
from policies.facts import Credential, CredentialKind, Principal, Role
from policies.registered import (
    ALL,
    FILLED_CHARS_MAX,
    NONE,
    VALUE_CHARS_MAX,
    Outline,
    Piece,
    Right,
    document_rights,
    may_register_document,
    may_register_template,
    narrower,
    outline,
    template_rights,
    variables_fault,
    widest_first,
)
from policies.scope.decision import Acl

KEY = Credential(CredentialKind.TOKEN, "t1")
ALICE = Principal("acme", None, "alice", "idp", KEY)
BOB = replace(ALICE, user="bob")
ADMIN = replace(ALICE, user="admin", roles=frozenset({Role.TENANT_ADMIN}))
OPERATOR = replace(ALICE, tenant=None, user="op", roles=frozenset({Role.OPERATOR}))
OWNER = Owner("acme", "idp", "alice")
ACL = Acl("acme", 1, 1, users=frozenset({("idp", "bob"), ("idp", "alice")}), expires_ns=100)
SEEING = {Right.SEE, Right.TITLE}
ADMINISTERING = {Right.SEE, Right.READERS, Right.NARROW, Right.DELETE}


@pytest.mark.parametrize(
    ("who", "rights"),
    (
        (ALICE, ALL),
        (BOB, SEEING),
        (ADMIN, ADMINISTERING),
        (replace(BOB, roles=ADMIN.roles), SEEING | ADMINISTERING),
        (replace(BOB, user="eve"), NONE),
        (replace(BOB, issuer="other"), NONE),
        (replace(ALICE, issuer="other"), NONE),
        (replace(ALICE, tenant="globex"), NONE),
        (replace(ADMIN, tenant="globex"), NONE),
        (replace(ALICE, tenant=None), NONE),
        (replace(ALICE, tenant=""), NONE),
        (OPERATOR, NONE),
    ),
)
def test_rights_in_a_document(who: Principal, rights: frozenset[Right]) -> None:
    assert document_rights(who, OWNER, ACL, 99) == rights
    assert document_rights(who, OWNER, ACL, 100) == NONE  # lapsed, for its owner too
    assert document_rights(who, OWNER, replace(ACL, tenant="globex"), 99) == NONE


@pytest.mark.parametrize("tenant", (None, "acme", "globex"))
@pytest.mark.parametrize("who", (ALICE, ADMIN, OPERATOR, replace(ADMIN, tenant=None)))
def test_rights_in_a_template(who: Principal, tenant: str | None) -> None:
    registers = (who == OPERATOR) if tenant is None else (who == ADMIN and tenant == "acme")
    uses = bool(who.tenant) and tenant in {None, who.tenant}
    expected = ALL if registers else frozenset(SEEING) if uses else NONE
    assert template_rights(who, tenant) == expected
    assert may_register_template(who, tenant) is registers


def test_only_members_of_a_tenant_register_documents() -> None:
    assert may_register_document(ALICE)
    assert not may_register_document(OPERATOR)
    assert not may_register_document(replace(ALICE, tenant=""))


def test_narrower_is_in_every_part() -> None:
    wide = Acl(
        "acme", 1, 1, frozenset({("i", "a")}), frozenset({("i", "g")}), frozenset({Role.FINANCE})
    )
    assert narrower(wide, wide)
    nobody: frozenset[tuple[str, str]] = frozenset()
    for less in (
        replace(wide, users=nobody),
        replace(wide, groups=nobody),
        replace(wide, roles=frozenset()),
    ):
        assert narrower(less, wide)
        assert not narrower(wide, less)


def test_the_widest_list_comes_first() -> None:
    of = {
        "doc_d": Acl("acme", 1, 1, roles=frozenset({Role.FINANCE})),
        "doc_c": Acl("acme", 1, 1, groups=frozenset({("i", "g")})),
        "doc_b": Acl("acme", 1, 1, users=frozenset({("i", "a"), ("i", "b")})),
        "doc_a": Acl("acme", 1, 1, users=frozenset({("i", "a")})),
        "doc_9": Acl("acme", 1, 1, users=frozenset({("i", "z")})),
    }
    assert widest_first(of) == ["doc_d", "doc_c", "doc_b", "doc_9", "doc_a"]


@pytest.mark.parametrize(
    ("text", "expected"),
    (
        ("Be brief.", Outline("Be brief.", (), ())),
        (
            "Be brief.\nFor {{who}}: {{what}}{{who}}.",
            Outline(
                "Be brief.\n",
                (
                    *(Piece("For "), Piece("", "who"), Piece(": "), Piece("", "what")),
                    *(Piece("", "who"), Piece(".")),
                ),
                ("who", "what"),
            ),
        ),
        ("{{a}}", Outline("", (Piece("", "a"),), ("a",))),
        ("{{ a }} {{A}} {{}} {a}", Outline("{{ a }} {{A}} {{}} {a}", (), ())),
        ("", Outline("", (), ())),
    ),
)
def test_an_outline_is_cut_at_the_line_of_the_first_variable(text: str, expected: Outline) -> None:
    assert outline(text) == expected
    whole = expected.head + "".join(
        each.text if each.variable is None else "{{" + each.variable + "}}"
        for each in expected.rest
    )
    assert whole == text


def test_variables_are_refused_by_name() -> None:
    assert variables_fault(("a", "b"), {"a": "", "b": "{{a}}"}) is None
    assert variables_fault((), {}) is None
    assert variables_fault(("a", "b"), {"b": "x"}) == "no value for 'a'"
    assert variables_fault(("a",), {"a": "x", "c": 1}) == "the template has no variable 'c'"
    for bad in (1, None, True, ["x"], "x" * (VALUE_CHARS_MAX + 1)):
        assert str(VALUE_CHARS_MAX) in (variables_fault(("a",), {"a": bad}) or "")
    value = "x" * VALUE_CHARS_MAX
    assert variables_fault(("a",) * (FILLED_CHARS_MAX // VALUE_CHARS_MAX), {"a": value}) is None
    said = variables_fault(
        (*("a",) * (FILLED_CHARS_MAX // VALUE_CHARS_MAX), "b"), {"a": value, "b": "x"}
    )
    assert str(FILLED_CHARS_MAX + 1) in (said or ""), "as often as they stand there"
    many = variables_fault((), {f"v{i}": "" for i in range(20)})
    assert many is not None
    assert many.endswith("and 12 more")
