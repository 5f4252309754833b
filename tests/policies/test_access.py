"""Deny by default, forbid wins, failing denies; and what each role may do, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies import access
from policies.access import Owner, authorize
from policies.facts import Ask, Credential, CredentialKind, Principal, Role, Standing
from policies.verdict import Allow, Deny, Reason

ALICE = Principal("acme", "search", "alice", "idp", Credential(CredentialKind.TOKEN, "jti"))
PRO = Standing("acme", suspended=False, models=frozenset({"m"}), classes=("interactive", "batch"))
ASK = Ask("m", 10, None)


def who(tenant: str | None, *roles: Role, user: str = "u") -> Principal:
    credential = Credential(CredentialKind.TOKEN, None)
    return Principal(tenant, None, user, "idp", credential, roles=frozenset(roles))


def test_an_ordinary_request_is_served_interactively() -> None:
    assert authorize(ALICE, PRO, ASK) == Allow("interactive")


@pytest.mark.parametrize(
    ("principal", "standing", "ask", "reason"),
    (
        (replace(ALICE, tenant=None), PRO, ASK, Reason.NO_TENANT),
        (replace(ALICE, tenant="globex"), PRO, ASK, Reason.FORBIDDEN),
        (ALICE, replace(PRO, suspended=True), ASK, Reason.TENANT_SUSPENDED),
        (ALICE, PRO, replace(ASK, model="other"), Reason.MODEL_NOT_FOUND),
        (ALICE, PRO, replace(ASK, service_class="critical"), Reason.CLASS_FORBIDDEN),
        (replace(ALICE, service_class="critical"), PRO, ASK, Reason.CLASS_FORBIDDEN),
        (
            replace(ALICE, service_class="batch"),
            PRO,
            replace(ASK, service_class="interactive"),
            Reason.CLASS_FORBIDDEN,
        ),
        (ALICE, replace(PRO, classes=()), ASK, Reason.CLASS_FORBIDDEN),
        # A forbid is heard before any permit: a suspended tenant learns nothing of models.
        (ALICE, replace(PRO, suspended=True, models=frozenset()), ASK, Reason.TENANT_SUSPENDED),
        (
            ALICE,
            Standing("acme", False, frozenset(), ("interactive",)),
            ASK,
            Reason.MODEL_NOT_FOUND,
        ),
    ),
)
def test_every_refusal(principal: Principal, standing: Standing, ask: Ask, reason: Reason) -> None:
    assert authorize(principal, standing, ask) == Deny(reason)


def test_the_class_is_the_requests_then_the_credentials_then_the_plans() -> None:
    batch = replace(ALICE, service_class="batch")
    assert authorize(ALICE, PRO, replace(ASK, service_class="batch")) == Allow("batch")
    assert authorize(batch, PRO, ASK) == Allow("batch")
    assert authorize(batch, PRO, replace(ASK, service_class="batch")) == Allow("batch")
    assert authorize(ALICE, replace(PRO, classes=("batch",)), ASK) == Allow("batch")


def test_a_policy_that_fails_denies(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Reason | None:
        raise ZeroDivisionError

    monkeypatch.setattr(access, "FORBIDS", (*access.FORBIDS, broken))
    assert authorize(ALICE, PRO, ASK) == Deny(Reason.POLICY_ERROR)


USER, ADMIN, FINANCE = who("acme"), who("acme", Role.TENANT_ADMIN), who("acme", Role.FINANCE)
FOREIGN = who("globex", Role.TENANT_ADMIN, Role.FINANCE)
OPERATOR = who(None, Role.OPERATOR)
TREASURER = who(None, Role.OPERATOR_FINANCE)
GUARD = who(None, Role.OPERATOR_SECURITY)
POSER = who("acme", Role.OPERATOR, Role.OPERATOR_FINANCE, Role.OPERATOR_SECURITY)
NOBODY = who(None)
EVERYBODY = {
    "user": USER,
    "admin": ADMIN,
    "finance": FINANCE,
    "foreign": FOREIGN,
    "operator": OPERATOR,
    "treasurer": TREASURER,
    "guard": GUARD,
    "poser": POSER,
    "nobody": NOBODY,
}


@pytest.mark.parametrize(
    ("question", "yes"),
    (
        (access.may_operate, "operator"),
        (lambda p: access.may_administer(p, "acme"), "admin operator"),
        (lambda p: access.may_administer(p, ""), "operator"),
        (lambda p: access.may_read_usage(p, "acme"), "admin finance operator treasurer"),
        (lambda p: access.may_read_usage(p, None), "operator treasurer"),
        (access.may_read_cost, "operator treasurer"),
        (access.may_close_period, "operator treasurer"),
        (lambda p: access.may_set_budget(p, "acme", "tenant"), "operator treasurer"),
        (lambda p: access.may_set_budget(p, "acme", "project"), "admin operator treasurer"),
        (lambda p: access.may_revoke(p, "acme"), "admin operator guard"),
        (access.may_suspend, "operator guard"),
        (access.may_audit, "operator guard"),
        (access.may_keep_secrets, "operator guard"),
        (lambda p: access.may_on_cache(p, access.CacheAct.LIST, "acme"), "admin operator guard"),
        (lambda p: access.may_on_cache(p, access.CacheAct.PURGE, "acme"), "admin operator guard"),
        (lambda p: access.may_on_cache(p, access.CacheAct.LIST, None), "operator guard"),
        (lambda p: access.may_on_cache(p, access.CacheAct.PURGE, None), "operator guard"),
        (lambda p: access.may_on_cache(p, access.CacheAct.PURGE, ""), "operator guard"),
        (lambda p: access.may_on_cache(p, access.CacheAct.READ, "acme"), ""),
        (lambda p: access.may_on_cache(p, access.CacheAct.READ, None), ""),
    ),
)
def test_roles(question: object, yes: str) -> None:
    assert callable(question)
    assert {name for name, principal in EVERYBODY.items() if question(principal)} == set(
        yes.split()
    )


def test_a_request_is_its_owners_and_its_tenants_administrators() -> None:
    owner = Owner("acme", "idp", "u")
    readers = {name for name, p in EVERYBODY.items() if access.may_read_request(p, owner)}
    assert readers == {"user", "admin", "finance", "poser"}  # these four are user u of acme
    other = Owner("acme", "idp", "bob")
    readers = {name for name, p in EVERYBODY.items() if access.may_read_request(p, other)}
    assert readers == {"admin"}
    assert not access.may_read_request(NOBODY, Owner("", "idp", "u"))
    assert not access.may_read_request(USER, Owner("acme", "other-idp", "u"))
