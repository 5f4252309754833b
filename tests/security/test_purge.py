"""A purge that an outsider can check, with the log's public key and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from security.audit import AuditEvent, CacheEvent
from security.audit_log import AuditLog
from security.audit_proof import Proof, decode_proof, encode_proof, last_note, prove
from security.audit_signer import Signer
from security.purge import Purged, PurgeReason, purge_record, read_purge
from tests.security.audit_kit import opened
from tests.security.helpers import AUDIT_KEYS, run

PUBLIC = AUDIT_KEYS.signer.public
PURGED = Purged(
    scope="1." + "ab" * 16,
    reason=PurgeReason.ACCESS_REVOKED,
    blocks=12,
    blocks_zeroed=12,
    blocks_read_zero=12,
    key_destroyed=True,
)


def purge(log: AuditLog, purged: Purged = PURGED) -> Proof:
    return run(purge_record(log, purged, tenant="acme", request_id="req_1", subject="1.cd"))


def test_a_purge_is_recorded_and_proven(tmp_path: Path) -> None:
    log = opened(tmp_path)
    proof = purge(log)
    log.close()
    handed_on = decode_proof(encode_proof(proof))
    assert handed_on is not None
    found = read_purge(handed_on, PUBLIC)
    assert found is not None
    assert (found.purged, found.tenant, found.at_ms, found.index) == (PURGED, "acme", 1000, 1)
    assert found.purged.is_complete
    assert read_purge(proof, Signer.from_seed(b"x" * 32, PUBLIC.name).public) is None


@pytest.mark.parametrize(
    "change", ({"blocks_zeroed": 11}, {"blocks_read_zero": 11}, {"key_destroyed": False})
)
def test_what_was_not_done_is_not_claimed(tmp_path: Path, change: dict[str, int]) -> None:
    log = opened(tmp_path)
    purged = dataclasses.replace(PURGED, **change)  # type: ignore[arg-type]  # names a case's one field
    found = read_purge(purge(log, purged), PUBLIC)
    log.close()
    assert found is not None
    assert found.purged == purged
    assert not purged.is_complete


def test_no_word_of_it_can_be_changed(tmp_path: Path) -> None:
    log = opened(tmp_path)
    proof = purge(log)
    log.close()
    for old, new in ((b'"count":12', b'"count":13'), (b"acme", b"acmf"), (b"true", b"false")):
        changed = dataclasses.replace(proof, record=proof.record.replace(old, new))
        assert changed != proof
        assert read_purge(changed, PUBLIC) is None


@pytest.mark.parametrize(
    "event",
    (
        AuditEvent(kind="cache.listed"),
        AuditEvent(kind=CacheEvent.PURGED),
        AuditEvent(kind=CacheEvent.PURGED, target="1.a", reason="boredom", count=1, blocks_zeroed=1, blocks_read_zero=1, key_destroyed=True),
        AuditEvent(kind=CacheEvent.PURGED, target="1.a", reason="asked_for", count=-1, blocks_zeroed=1, blocks_read_zero=1, key_destroyed=True),
        AuditEvent(kind=CacheEvent.PURGED, target="1.a", reason="asked_for", count=1, blocks_zeroed=1, blocks_read_zero=1),
    ),
)  # fmt: skip
def test_a_genuine_record_that_is_no_purge(tmp_path: Path, event: AuditEvent) -> None:
    log = opened(tmp_path)
    index = log.append_blocking(event)
    log.close()
    proof = prove(tmp_path, index, last_note(tmp_path) or "")
    assert proof is not None
    assert read_purge(proof, PUBLIC) is None
