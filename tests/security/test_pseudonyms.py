"""Names of people in the log: the same for the same, nothing without the secret, gone with it."""

from __future__ import annotations

from pathlib import Path

from policies.scope.labels import Document as Doc
from policies.scope.labels import documents, public, user
from security.audit import AuditEvent
from security.audit_proof import holds, last_note, prove
from security.audit_verify import verify
from security.keyring import Keyring
from security.keyring_tenants import TenantSecrets
from security.pseudonyms import Pseudonyms, pseudonym
from tests.security.audit_kit import opened, records
from tests.security.helpers import AUDIT_KEYS, byte_source, run
from tests.security.secrets_in_memory import MemoryStore

RING = Keyring((b"1" * 32, b"2" * 32), b"e" * 16)


def made(*tenants: str) -> tuple[TenantSecrets, Pseudonyms]:
    secrets = TenantSecrets(RING, MemoryStore(), rng=byte_source())
    for tenant in tenants:
        run(secrets.ensure(tenant))
    return secrets, Pseudonyms(secrets.current, RING.pseudonymiser())


def test_equal_for_equal_and_for_nothing_else() -> None:
    _, names = made("acme", "globex")
    alice = names.person("acme", "idp", "alice")
    assert alice == names.person("acme", "idp", "alice")
    others = [
        names.person("globex", "idp", "alice"), names.person("acme", "idp2", "alice"), names.person("acme", "idp", "bob"),
        names.person("acme", "idpalice", ""), names.person(None, "idp", "alice"), names.document("acme", "alice"),
        names.label(user("acme", "idp", "alice")), names.label(documents("acme", [Doc("alice", 1, 1)])), names.label(public("t", 1)),
    ]  # fmt: skip
    assert None not in others
    assert len({alice, *others}) == len(others) + 1
    assert alice is not None
    assert alice.startswith("1.")
    assert "alice" not in alice


def test_a_new_secret_makes_new_names_and_says_which() -> None:
    secrets, names = made("acme")
    old = names.person("acme", "idp", "alice")
    run(secrets.rotate("acme"))
    new = names.person("acme", "idp", "alice")
    assert new is not None
    assert new.startswith("2.")
    assert pseudonym(secrets.at("acme", 1), ("person", "idp", "alice")) == old


def test_p12_with_the_secret_go_the_names_and_no_proof(tmp_path: Path) -> None:
    secrets, names = made("acme", "globex")
    log = opened(tmp_path)
    alice = names.person("acme", "idp", "alice")
    for tenant in ("acme", "globex"):
        subject = names.person(tenant, "idp", "alice")
        log.append_blocking(AuditEvent(kind="request.completed", tenant=tenant, subject=subject))
    run(secrets.shred("acme"))
    # Nobody can be named, and no guess confirmed: what the name hung on is nowhere.
    assert names.person("acme", "idp", "alice") is None
    assert names.label(user("acme", "idp", "alice")) is None
    log.append_blocking(AuditEvent(kind="auth.denied", tenant="acme"))
    log.close()
    assert [each.get("subject") for each in records(tmp_path)[1:3]] == [alice, names.person("globex", "idp", "alice")]  # fmt: skip
    run(secrets.rotate("acme"))
    assert names.person("acme", "idp", "alice") != alice
    assert verify(tmp_path, AUDIT_KEYS.mac, public=AUDIT_KEYS.signer.public).ok
    proof = prove(tmp_path, 1, last_note(tmp_path) or "")
    assert proof is not None
    assert holds(proof, AUDIT_KEYS.signer.public)
