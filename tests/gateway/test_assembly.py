"""Settings become plain arguments: no type of the configuration leaks into the house."""

from __future__ import annotations

from pathlib import Path

from gateway.assembly import directory_config, issuer_rules
from gateway.logs import configure
from gateway.settings import load

EXAMPLE = Path(__file__).parents[2] / "deploy" / "lockgate.example.toml"


def test_issuer_rules_hold_plain_text() -> None:
    """A subclass of str in an id would be refused where ids are spelt, at the first request."""
    settings = load(EXAMPLE, {})
    ((rule, _),) = issuer_rules(settings, None, failed=lambda reason: None)
    assert type(rule.issuer) is str
    assert type(rule.audience) is str
    assert all(type(each) is str for each in (*rule.algorithms, *rule.typ))


def test_the_directory_has_every_plan_and_tenant_of_the_file() -> None:
    settings = load(EXAMPLE, {})
    config = directory_config(settings)
    assert set(config.plans) == set(settings.plans)
    assert set(config.tenants) == set(settings.tenants)
    assert config.plans["pro"].limits.rpm == 600
    assert config.plans["pro"].user_limits.concurrent == 4


def test_an_error_is_logged_by_type_and_place_and_not_by_message(capsys: object) -> None:
    log = configure(development=False)
    try:
        raise ValueError("CANARY")
    except ValueError as why:
        log("handler.failed", request_id="req_1", error=why)
    said = capsys.readouterr().err  # type: ignore[attr-defined]
    assert "ValueError" in said
    assert "test_assembly.py" in said
    assert "CANARY" not in said
