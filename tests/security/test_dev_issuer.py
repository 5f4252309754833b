"""The development issuer: its tokens go the same road as everybody's."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from policies.facts import Role
from security.dev_issuer import (
    ISSUER,
    KEY_FILE,
    RULE,
    holders_thumbprint,
    is_dev_issuer,
    open_dev_issuer,
)
from security.jwks import load, thumbprint
from security.keyring import KeyringError
from security.tokens import preparse, to_principal
from tests.security import proof_kit
from tests.security.kit import NOW_S, accept, rsa_key


def test_a_minted_token_is_accepted_under_its_rule(tmp_path: Path) -> None:
    issuer = open_dev_issuer(tmp_path)
    among = load(issuer.jwks_path.read_bytes())
    raw = issuer.mint(
        tenant="acme",
        user="alice",
        roles=[Role.TENANT_ADMIN],
        project="search",
        groups=["eng"],
        service_class="batch",
        now_s=NOW_S,
        ttl_s=60,
        jti="t-1",
    )
    who = to_principal(accept(raw, rule=RULE, among=among), RULE)
    assert (who.tenant, who.user, who.project, who.service_class) == (
        "acme",
        "alice",
        "search",
        "batch",
    )
    assert (who.roles, who.groups, who.issuer) == (
        frozenset({Role.TENANT_ADMIN}),
        frozenset({"eng"}),
        ISSUER,
    )
    assert who.credential.expires_at_s == NOW_S + 60


def test_an_operators_token_names_no_tenant(tmp_path: Path) -> None:
    issuer = open_dev_issuer(tmp_path)
    raw = issuer.mint(
        tenant=None, user="op", roles=[Role.OPERATOR], now_s=NOW_S, ttl_s=60, jti="t-2"
    )
    who = to_principal(accept(raw, rule=RULE, among=load(issuer.jwks_path.read_bytes())), RULE)
    assert (who.tenant, who.roles) == (None, frozenset({Role.OPERATOR}))


def test_the_key_is_private_lasts_and_is_not_in_the_public_set(tmp_path: Path) -> None:
    first, second = open_dev_issuer(tmp_path), open_dev_issuer(tmp_path)
    assert first.kid == second.kid
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert '"d"' not in first.jwks_path.read_text()
    assert repr(first._key) not in repr(first)


def test_a_key_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / KEY_FILE
    open_dev_issuer(tmp_path)
    foreign: list[ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey] = [
        ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32)),
        ec.derive_private_key(7, ec.SECP384R1()),
    ]
    bodies = [
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) for key in foreign
    ]
    for body in [b"", b"nonsense", *bodies]:
        path.write_bytes(body)
        with pytest.raises(KeyringError, match="Delete it"):
            open_dev_issuer(tmp_path)


@pytest.mark.parametrize("name", (ISSUER, ISSUER.upper(), ISSUER.rstrip("/"), "https://dev.lockgate.invalid:443/", "https://x.lockgate.invalid./"))  # fmt: skip
def test_production_can_tell(name: str) -> None:
    assert is_dev_issuer(name)


def test_other_issuers_are_not_it() -> None:
    assert not is_dev_issuer("https://idp.example.com/")


KEYS = (proof_kit.HOLDER, proof_kit.ED_HOLDER)


@pytest.mark.parametrize("key", KEYS)
def test_a_token_is_bound_to_the_key_of_either_half(key: proof_kit.Key, tmp_path: Path) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    format_ = PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, format_))
    expected = thumbprint(proof_kit.jwk(key))
    assert holders_thumbprint(private) == holders_thumbprint(public) == expected
    raw = open_dev_issuer(tmp_path).mint(
        tenant="acme", user="a", now_s=NOW_S, ttl_s=60, jti="t", bound_to=expected
    )
    assert preparse(raw).claims["cnf"] == {"jkt": expected}


def test_no_other_file_is_a_key_to_be_bound_to(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    with pytest.raises(KeyringError, match="cannot be read"):
        holders_thumbprint(path)
    p384, rsa = ec.generate_private_key(ec.SECP384R1()), rsa_key()
    kind = (Encoding.PEM, PrivateFormat.PKCS8)
    for data, says in (
        (b"", "no PEM key"),
        (b"-----BEGIN PRIVATE KEY-----", "no PEM key"),
        (proof_kit.HOLDER.private_bytes(*kind, BestAvailableEncryption(b"p")), "no PEM key"),
        (p384.private_bytes(*kind, NoEncryption()), "neither a P-256"),
        (rsa.private_bytes(*kind, NoEncryption()), "neither a P-256"),
    ):
        path.write_bytes(data)
        with pytest.raises(KeyringError, match=says):
            holders_thumbprint(path)
