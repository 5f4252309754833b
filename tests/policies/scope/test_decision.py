"""A decision comes of live facts and in no other way; every reason against it wins."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from typing import Any, cast

import pytest

from policies.facts import Credential, CredentialKind, Principal, Role, Standing
from policies.scope import labels
from policies.scope.decision import Acl, Decision, Snapshot, decide, renewed
from policies.scope.labels import Document, Label, Template, join_all
from policies.verdict import Allow, Deny, Reason

ALICE = Principal(
    tenant="acme",
    project=None,
    user="alice",
    issuer="idp",
    credential=Credential(CredentialKind.TOKEN, "jti"),
    groups=frozenset({"law"}),
)
PLAN = Standing("acme", suspended=False, models=frozenset(), classes=())
LEASE = Document("doc_lease", 3, 1)
FEES = Document("doc_fees", 1, 1)
WIDE = Acl("acme", 3, 1, users=frozenset({("idp", "alice")}), expires_ns=900)
FEES_ACL = Acl("acme", 1, 1, groups=frozenset({("idp", "law")}))
LIVE = frozenset({Template(None, "chat", 1), Template("acme", "support", 7)})
SNAPSHOT = Snapshot(41, 100, {"doc_lease": WIDE, "doc_fees": FEES_ACL}, LIVE)
LABEL = join_all(
    (
        labels.public("chat", 1),
        labels.tenant("acme", "support", 7),
        labels.documents("acme", {LEASE, FEES}),
        labels.user("acme", "idp", "alice", b"n"),
    )
)


def asked(**changed: Any) -> Allow[Decision] | Deny:
    facts: dict[str, Any] = {
        "principal": ALICE,
        "standing": PLAN,
        "label": LABEL,
        "snapshot": SNAPSHOT,
        "now_ns": 200,
        "stale_ns_max": 1000,
    }
    return decide(**facts | changed)


def with_lease(acl: Acl | None) -> dict[str, Any]:
    acls = {"doc_lease": acl, "doc_fees": FEES_ACL}
    kept = {name: each for name, each in acls.items() if each is not None}
    return {"snapshot": replace(SNAPSHOT, acls=kept)}


def made(**changed: Any) -> Decision:
    verdict = asked(**changed)
    assert isinstance(verdict, Allow)
    return verdict.value


def test_allowed_until_the_first_thing_ends() -> None:
    decision = made()
    assert (decision.label, decision.snapshot, decision.deadline_ns) == (LABEL, 41, 900)
    late = with_lease(replace(WIDE, expires_ns=None))
    assert made(**late).deadline_ns == 1100
    assert made(label=labels.public("chat", 1)).deadline_ns == 1100


HIDDEN = Deny(Reason.DOCUMENT_NOT_FOUND)


@pytest.mark.parametrize(
    ("changed", "denied"),
    (
        ({"principal": replace(ALICE, tenant=None)}, Deny(Reason.NO_TENANT)),
        ({"principal": replace(ALICE, tenant="")}, Deny(Reason.NO_TENANT)),
        ({"principal": replace(ALICE, tenant="globex")}, Deny(Reason.FORBIDDEN)),
        ({"standing": replace(PLAN, tenant="globex")}, Deny(Reason.FORBIDDEN)),
        ({"label": labels.tenant("globex", "support", 7)}, Deny(Reason.FORBIDDEN)),
        ({"label": labels.user("acme", "idp", "bob")}, Deny(Reason.FORBIDDEN)),
        ({"label": labels.user("acme", "other", "alice")}, Deny(Reason.FORBIDDEN)),
        ({"principal": replace(ALICE, issuer="other")}, Deny(Reason.FORBIDDEN)),
        ({"standing": replace(PLAN, suspended=True)}, Deny(Reason.TENANT_SUSPENDED)),
        ({"now_ns": 1100}, Deny(Reason.POLICY_STALE)),
        ({"now_ns": 99}, Deny(Reason.POLICY_STALE)),
        ({"label": labels.public("chat", 2)}, Deny(Reason.TEMPLATE_NOT_FOUND)),
        ({"label": labels.tenant("acme", "support", 6)}, Deny(Reason.TEMPLATE_NOT_FOUND)),
        (with_lease(None), HIDDEN),
        (with_lease(replace(WIDE, tenant="globex")), HIDDEN),
        (with_lease(replace(WIDE, acl_version=4)), HIDDEN),
        (with_lease(replace(WIDE, acl_version=2)), HIDDEN),
        (with_lease(replace(WIDE, content_version=2)), HIDDEN),
        (with_lease(replace(WIDE, users=frozenset())), HIDDEN),
        (with_lease(replace(WIDE, users=frozenset({("other", "alice")}))), HIDDEN),
        (
            with_lease(replace(WIDE, users=frozenset(), groups=frozenset({("other", "law")}))),
            HIDDEN,
        ),
        (with_lease(replace(WIDE, expires_ns=200)), HIDDEN),
        ({"snapshot": Snapshot(41, 100, cast("Any", None), LIVE)}, Deny(Reason.POLICY_ERROR)),
    ),
)
def test_each_single_reason_denies(changed: dict[str, Any], denied: Deny) -> None:
    assert asked(**changed) == denied


def test_a_role_of_the_tenant_may_be_named_and_an_operators_counts_for_nothing() -> None:
    def by_role(held: Role, named: Role) -> Allow[Decision] | Deny:
        acl = replace(WIDE, users=frozenset(), roles=frozenset({named}))
        return asked(principal=replace(ALICE, roles=frozenset({held})), **with_lease(acl))

    assert isinstance(by_role(Role.TENANT_ADMIN, Role.TENANT_ADMIN), Allow)
    assert by_role(Role.TENANT_ADMIN, Role.FINANCE) == HIDDEN
    assert by_role(Role.OPERATOR, Role.OPERATOR) == HIDDEN


def test_there_is_no_other_way_to_make_one() -> None:
    make: Any = Decision
    for call in (make, lambda: make(LABEL, 41, 900), lambda: make(label=LABEL)):
        with pytest.raises(TypeError):
            call()
    decision = made()
    with pytest.raises(TypeError):
        replace(decision, deadline_ns=10**18)
    with pytest.raises(AttributeError):
        decision.deadline_ns = 10**18  # type: ignore[misc]
    assert copy.copy(decision) == decision


def test_it_covers_what_lies_below_it_until_its_deadline() -> None:
    decision = made()
    inside: tuple[Label, ...] = (
        LABEL,
        labels.BOTTOM,
        labels.public("chat", 1),
        labels.documents("acme", {LEASE}),
        labels.user("acme", "idp", "alice"),
    )
    outside = (
        labels.public("chat", 2),
        labels.tenant("globex", "support", 7),
        labels.documents("acme", {replace(LEASE, acl_version=2)}),
        labels.documents("acme", {Document("doc_other", 1, 1)}),
        labels.user("acme", "idp", "bob"),
        labels.user("acme", "idp", "alice", b"m"),
        labels.session(LABEL, b"s"),
    )
    for label, now_ns in itertools.product(inside, (200, 899)):
        assert decision.covers(label, now_ns)
    assert not any(decision.covers(label, 200) for label in outside)
    assert not any(decision.covers(label, 900) for label in inside)


@pytest.mark.parametrize(
    ("versions", "now_ns", "stands"),
    (
        ({"doc_lease": 3, "doc_fees": 1}, 200, True),
        ({"doc_lease": 3, "doc_fees": 1}, 900, False),
        ({"doc_lease": 4, "doc_fees": 1}, 200, False),
        ({"doc_lease": 3, "doc_fees": 2}, 200, False),
        ({"doc_lease": 3}, 200, False),
    ),
)
def test_it_stands_while_no_document_has_moved_on(
    versions: dict[str, int], now_ns: int, *, stands: bool
) -> None:
    assert made().stands(versions, now_ns) is stands


def test_a_label_is_renewed_to_the_lists_of_now_and_never_to_another_text() -> None:
    regranted = with_lease(replace(WIDE, acl_version=9))
    assert asked(**regranted) == Deny(Reason.DOCUMENT_NOT_FOUND)  # what was granted before
    renewed_label = renewed(LABEL, regranted["snapshot"])
    assert isinstance(asked(label=renewed_label, **regranted), Allow)
    narrowed = with_lease(replace(WIDE, acl_version=9, users=frozenset()))
    rewritten = with_lease(replace(WIDE, content_version=2))
    for changed in (narrowed, rewritten, with_lease(None)):
        asks = asked(label=renewed(LABEL, changed["snapshot"]), **changed)
        assert asks == Deny(Reason.DOCUMENT_NOT_FOUND)
