"""Settings become plain arguments: no type of the configuration leaks into the house."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from gateway.assembly import authenticator, directory_config, issuer_rules
from gateway.logs import configure
from gateway.settings import load
from gateway.settings.units import RedisUrl
from security.keyring import open_keyring
from security.tokens import Binding
from tests.security import proof_kit

if TYPE_CHECKING:
    from tenants.directory import Directory

EXAMPLE = Path(__file__).parents[2] / "deploy" / "lockgate.example.toml"


def test_issuer_rules_hold_plain_text() -> None:
    """A subclass of str in an id would be refused where ids are spelt, at the first request."""
    settings = load(EXAMPLE, {})
    ((rule, _),) = issuer_rules(settings, None, failed=lambda reason: None)
    assert type(rule.issuer) is str
    assert type(rule.audience) is str
    assert all(type(each) is str for each in (*rule.algorithms, *rule.typ))


def test_what_an_issuer_asks_of_proofs_is_its_rules() -> None:
    (issuer,) = load(EXAMPLE, {}).issuers
    settings = load(EXAMPLE, {})
    for binding, nonce in ((Binding.OFF, False), (Binding.REQUIRED, True)):
        asked = msgspec.structs.replace(issuer, dpop=binding, dpop_nonce=nonce)
        changed = msgspec.structs.replace(settings, issuers=(asked,))
        ((rule, _),) = issuer_rules(changed, None, failed=lambda reason: None)
        assert (rule.binding, rule.nonce) == (binding, nonce)


def test_a_process_that_remembers_proofs_alone_takes_none_from_before_its_start(
    tmp_path: Path,
) -> None:
    settings = load(EXAMPLE, {})
    keyring = open_keyring(tmp_path / "root.key")
    for url, since_s in (("", 1800), ("redis://h", None)):
        state = msgspec.structs.replace(settings.state, redis_url=RedisUrl(url))
        listen = msgspec.structs.replace(settings.listen, urls=("https://h",))
        changed = msgspec.structs.replace(settings, state=state, listen=listen)
        directory = cast("Directory", None)
        made = authenticator(changed, [], keyring, directory, proof_kit.Spent(), lambda: 1800.9)
        assert made._proving.since_s == since_s
        assert made._proving.urls == ("https://h",)


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
