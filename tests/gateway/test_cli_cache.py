"""`lockgate cache` and `lockgate audit purge`: what they ask, what they print, and what a proof is worth."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from security.audit_checkpoint import PublicKey
from security.audit_log import AuditLog
from security.audit_proof import encode_proof
from security.audit_signer import AuditKeys, Signer
from security.keyring import open_keyring
from security.purge import Purged, PurgeReason, purge_record
from tests.gateway import test_cli
from tests.gateway.test_cli import Fake, lockgate

admin = test_cli.admin  # the fixture
PURGE = "POST /v1/admin/cache/purge"
DONE = {"blocks": 1234, "requests_ended": 2, "record": 7, "proof": {"index": 7}}
ROW = {
    "tenant": "acme",
    "model": "m",
    "kind": "user",
    "labels": 2,
    "blocks": 1200,
    "bytes": 3 << 20,
    "pinned_blocks": 0,
    "oldest_s": 61,
}


def test_what_is_kept_is_a_line_a_kind(admin: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    found = {"by": "kind", "kept": [ROW], "left_out": 3, "silent": ["other"]}
    admin.answers["GET /v1/admin/cache?tenant=acme"] = found
    assert lockgate("cache", "list", "--tenant", "acme") == 0
    told = capsys.readouterr()
    names, values = told.out.splitlines()
    assert names.split() == [
        "tenant",
        "model",
        "kind",
        "labels",
        "blocks",
        "pinned",
        "blocks",
        "oldest",
        "s",
        "MiB",
    ]
    assert values.split() == ["acme", "m", "user", "2", "1,200", "0", "61", "3"]
    assert "other" in told.err
    assert "3 rows" in told.err
    assert lockgate("cache", "list", "--tenant", "acme", "--json") == 0
    assert json.loads(capsys.readouterr().out) == found


def test_by_label_and_where_there_is_none(admin: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    admin.answers["GET /v1/admin/cache?by=label"] = {"kept": [], "left_out": 0, "silent": []}
    assert lockgate("cache", "list", "--by-label") == 0
    assert capsys.readouterr().out == "Nothing is kept.\n"


@pytest.mark.parametrize(
    ("words", "body"),
    (
        ("--tenant acme", {"tenant": "acme"}),
        ("--tenant acme --user al", {"tenant": "acme", "user": "al"}),
        (
            "--tenant acme --user al --issuer i",
            {"tenant": "acme", "user": "al", "issuer": "i"},
        ),
        ("--document doc_1", {"document": "doc_1"}),
        ("--template tmpl_1", {"template": "tmpl_1"}),
        ("--all", {"all": True}),
    ),
)
def test_a_purge_names_one_thing_and_why(
    admin: Fake, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str, body: object
) -> None:
    admin.answers[PURGE] = DONE
    proof = tmp_path / "proof.json"
    assert lockgate("cache", "purge", *words.split(), "--reason", "r", "--proof", str(proof)) == 0
    assert admin.asked == [(PURGE, {"reason": "r", **body})]  # type: ignore[dict-item]
    assert "1,234 blocks" in capsys.readouterr().out
    assert json.loads(proof.read_bytes()) == {"index": 7}


@pytest.mark.parametrize(
    "words",
    (
        "--reason r",
        "--tenant acme",
        "--tenant acme --all --reason r",
        "--document d --template t --reason r",
        "--user al --reason r",
        "--document d --user al --reason r",
    ),
)
def test_what_is_mistyped_purges_nothing(admin: Fake, words: str) -> None:
    assert lockgate("cache", "purge", *words.split()) == 2
    assert admin.asked == []


def test_a_proof_that_cannot_be_written_says_that_it_was_purged(
    admin: Fake, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    admin.answers[PURGE] = DONE
    proof = tmp_path / "nowhere" / "proof.json"
    assert lockgate("cache", "purge", "--all", "--reason", "r", "--proof", str(proof)) == 1
    assert "It was purged" in capsys.readouterr().err


def recorded(folder: Path, **more: object) -> tuple[bytes, PublicKey]:
    """The proof of a purge in a log, as its server answers it."""
    keyring = open_keyring(folder / "root.key")
    log = AuditLog.open([folder / "audit"], keys=AuditKeys.of(keyring), clock_ms=lambda: 1000)
    given = {
        "scope": "acme",
        "reason": PurgeReason.ASKED_FOR,
        "blocks": 12,
        "blocks_zeroed": 12,
        "blocks_read_zero": 12,
        "key_destroyed": False,
        **more,
    }
    proof = asyncio.run(purge_record(log, Purged(**given), tenant="acme"))  # type: ignore[arg-type]
    log.close()
    return encode_proof(proof), Signer.of(keyring).public


def test_a_proof_is_checked_with_the_public_key_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, public = recorded(tmp_path / "server")
    path = tmp_path / "proof.json"
    answer = msgspec.json.encode({"blocks": 12, "proof": msgspec.json.decode(raw)})
    for written in (raw, answer, json.dumps(json.loads(answer), indent=2).encode()):
        path.write_bytes(written)
        assert lockgate("audit", "purge", "verify", str(path), "--public-key", str(public)) == 0
        told = capsys.readouterr().out
        assert "12 blocks were found, 12 zeroed and 12 read back as zero; its key lives on." in told
        words = ("audit", "purge", "verify", str(path), "--public-key", str(public), "--json")
        assert lockgate(*words) == 0
        assert json.loads(capsys.readouterr().out)["complete"] is True
    with_root = ("--root-key", str(tmp_path / "server" / "root.key"))
    assert lockgate("audit", "purge", "verify", str(path), *with_root) == 0


@pytest.mark.parametrize(
    "more", ({"unacknowledged": 1}, {"blocks_read_zero": 11}, {"blocks_zeroed": 11})
)
def test_a_proof_of_an_incomplete_purge_is_told_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, int]
) -> None:
    raw, public = recorded(tmp_path / "server", **more)
    path = tmp_path / "proof.json"
    path.write_bytes(raw)
    words = ("audit", "purge", "verify", str(path), "--public-key", str(public))
    assert lockgate(*words) == 1
    assert ("NOT COMPLETE" in capsys.readouterr().out) == ("unacknowledged" in more)
    assert lockgate(*words, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["proves"], told["complete"]) == (True, False)


def test_what_proves_nothing_is_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, public = recorded(tmp_path / "server")
    path = tmp_path / "proof.json"
    for written in (
        raw.replace(b'\\"count\\":12', b'\\"count\\":13'),
        b"",
        b"{",
        b"[]",
        b'{"proof": 1}',
        b"\xff" * 100,
        b"[" * 50_000,
    ):
        assert written != raw
        path.write_bytes(written)
        assert lockgate("audit", "purge", "verify", str(path), "--public-key", str(public)) == 1
        assert "proves no purge" in capsys.readouterr().out
    other = open_keyring(tmp_path / "other.key")
    path.write_bytes(raw)
    theirs = ("--public-key", str(Signer.of(other).public))
    assert lockgate("audit", "purge", "verify", str(path), *theirs) == 1
    assert lockgate("audit", "purge", "verify", str(tmp_path / "none"), *theirs) == 1
    assert "cannot be read" in capsys.readouterr().err
