"""One spelling of whose limits and budgets a request meets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.facts import Budget, Credential, CredentialKind, Limits, Principal, Standing
from tenants.scopes import (
    BUDGET_SCOPES,
    SCOPES,
    account_of,
    budget_accounts,
    dimensions,
    scope_id,
    scope_limits,
    tag_of,
)

KEY = Principal("acme", "search", "alice", "idp", Credential(CredentialKind.KEY, "k1"))
TOKEN = replace(KEY, project=None, credential=Credential(CredentialKind.TOKEN, "jti"))


def test_ids_are_qualified_by_everything_above_them() -> None:
    dims = dimensions(KEY, "m", "interactive")
    assert [scope_id(scope, dims) for scope in SCOPES] == [
        "k1",
        '["acme","idp","alice"]',
        '["acme","search"]',
        "acme",
    ]
    dims = dimensions(TOKEN, "m", None)
    assert [scope_id(scope, dims) for scope in SCOPES] == [
        None,
        '["acme","idp","alice"]',
        None,
        "acme",
    ]
    with pytest.raises(ValueError, match="galaxy"):
        scope_id("galaxy", dims)


def test_no_two_people_share_a_spelling() -> None:
    ids = {
        scope_id(
            "user", dimensions(replace(TOKEN, tenant=tenant, issuer=issuer, user=user), "m", None)
        )
        for tenant, issuer, user in (
            ("a", "b", "c"),
            ("a", "c", "b"),
            ("a", 'b","c', "c"),
            ("a", "b", 'c","c'),
            ("b", "b", "c"),
        )
    }
    assert len(ids) == 5


def test_limits_and_budgets_come_narrowest_first_where_they_apply() -> None:
    limits = dict.fromkeys(("tenant", "key", "project", "user"), Limits(rpm=1))
    budgets = dict.fromkeys(("tenant", "key", "project"), Budget(1))
    standing = Standing("acme", False, frozenset(), (), limits=limits, budgets=budgets)
    of_key, of_token = dimensions(KEY, "m", None), dimensions(TOKEN, "m", None)
    assert [each.scope for each in scope_limits(standing, of_key)] == list(SCOPES)
    assert [each.scope for each in scope_limits(standing, of_token)] == ["user", "tenant"]
    assert [each.scope for each in budget_accounts(standing, of_key)] == [
        "key",
        "project",
        "tenant",
    ]
    assert [each.id for each in budget_accounts(standing, of_token)] == ["acme"]


def test_several_tags_stand_between_project_and_tenant_in_one_order() -> None:
    standing = Standing(
        *("acme", False, frozenset(), ()),
        budgets=dict.fromkeys(("tenant", "project"), Budget(1)),
        tag_budgets={"team=search": Budget(2), "env=a=b": Budget(3)},
    )
    found = budget_accounts(standing, dimensions(KEY, "m", None))
    assert [(each.scope, each.id, each.budget.limit_nano_usd) for each in found] == [
        ("project", '["acme","search"]', 1),
        ("tag", '["acme","env","a=b"]', 3),
        ("tag", '["acme","team","search"]', 2),
        ("tenant", "acme", 1),
    ]
    assert account_of("tag", "acme", "", "env=a=b", Budget(3)) == found[1]
    assert tag_of(found[1].id) == ("acme", "env", "a=b")
    assert {each.scope for each in found} <= set(BUDGET_SCOPES)


def test_an_operators_target_is_spelt_alike() -> None:
    dims, budget = dimensions(KEY, "m", None), Budget(1)
    names = {"key": "k1", "user": "alice", "project": "search", "tenant": ""}
    for scope, name in names.items():
        account = account_of(scope, "acme", "idp", name, budget)
        assert account is not None
        assert account.id == scope_id(scope, dims)
    assert account_of("user", "acme", "", "alice", budget) is None
