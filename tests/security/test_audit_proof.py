"""A proof of one record, and the verifier that a reviewer runs from a copy of this folder alone."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import security
from security.audit import AuditEvent, AuditUnavailable, encode
from security.audit_chain import Link, leaf
from security.audit_checkpoint import Checkpoint, read_note
from security.audit_proof import Proof, decode_proof, encode_proof, holds, last_note, prove
from security.audit_signer import Signer
from security.audit_verify import main, verify
from security.audit_walk import segments
from tests.security.audit_kit import EVENT, FAST, QUICK, kinds, opened, write
from tests.security.helpers import AUDIT_KEYS, run

PUBLIC = AUDIT_KEYS.signer.public
STRANGER = Signer.from_seed(b"x" * 32, PUBLIC.name).public


def proof_of(folder: Path, index: int) -> Proof:
    note = last_note(folder, covers=index)
    assert note is not None
    found = prove(folder, index, note)
    assert found is not None
    return found


def test_every_record_is_proven_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, 12, segment_bytes=700)
    count = verify(tmp_path, None).records
    for index in range(count):
        proof = proof_of(tmp_path, index)
        assert decode_proof(encode_proof(proof)) == proof
        assert holds(proof, PUBLIC)
        assert holds(proof, None)
        assert not holds(proof, STRANGER)
        assert not holds(dataclasses.replace(proof, index=index + 1), PUBLIC)
        other = proof_of(tmp_path, (index + 1) % count)
        assert not holds(dataclasses.replace(proof, record=other.record), PUBLIC)
        assert not holds(dataclasses.replace(proof, path=other.path), PUBLIC)
    assert last_note(tmp_path, covers=count) is None


def test_every_changed_byte_of_a_proof_is_seen(tmp_path: Path) -> None:
    write(tmp_path, 2)
    data = encode_proof(proof_of(tmp_path, 1))
    for at in range(len(data)):
        changed = decode_proof(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert changed is None or not holds(changed, PUBLIC), at


def test_a_log_that_is_not_the_checkpoints_proves_nothing(tmp_path: Path) -> None:
    write(tmp_path, 5)
    note = last_note(tmp_path)
    assert note is not None
    path = segments(tmp_path)[0][1]
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"count":3', b'"count":4'))
    assert prove(tmp_path, 1, note) is None
    path.write_bytes(whole[: whole.index(b'"count":3')])
    assert prove(tmp_path, 1, note) is None
    path.write_bytes(b"")
    assert prove(tmp_path, 1, note) is None
    assert prove(tmp_path, 9, note) is None
    assert prove(tmp_path, 1, "no note") is None


def test_a_record_that_says_another_number_than_its_place(tmp_path: Path) -> None:
    line, _ = encode(EVENT, 5, Link(7), AUDIT_KEYS.mac)
    point = Checkpoint("ab" * 16, 1, leaf(line), 5)
    assert not holds(Proof(AUDIT_KEYS.signer.note(point.text()), 0, line, ()), PUBLIC)


@pytest.mark.parametrize("value", (None, [], {}, {"checkpoint": "", "index": True, "proof": "", "record": ""}, {"checkpoint": "", "index": 1, "proof": "AA==", "record": ""}, {"checkpoint": "", "index": 1, "proof": "", "record": "a\nb"}, {"checkpoint": "", "index": 1, "proof": "", "record": "é"}))  # fmt: skip
def test_what_is_no_proof(value: object) -> None:
    assert decode_proof(json.dumps(value).encode()) is None


# --- proven when written


@pytest.mark.parametrize("before", (0, 1, 6))
def test_a_record_can_be_proven_as_it_is_written(tmp_path: Path, before: int) -> None:
    log = opened(tmp_path, tuning=dataclasses.replace(FAST, segment_bytes=700, sign_records=4))
    for _ in range(before):
        log.append_blocking(EVENT)
    proof = run(log.append_proven(AuditEvent(kind="cache.purged", count=3)))
    assert holds(proof, PUBLIC)
    point = read_note(proof.note, PUBLIC)
    assert point is not None
    assert point.size == proof.index + 1
    log.append_blocking(EVENT)
    log.close()
    assert prove(tmp_path, proof.index, proof.note) == proof
    assert verify(tmp_path, AUDIT_KEYS.mac, public=PUBLIC, kept=[point]).ok


def test_where_the_checkpoint_fails_the_record_stands_and_its_caller_is_refused(
    tmp_path: Path,
) -> None:
    left = [2]  # the log's first record, and the one to be proven

    def write_twice(fd: int, data: bytes) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "full")
        return os.write(fd, data)

    disk = dataclasses.replace(QUICK, write=write_twice)
    log = opened(tmp_path, disks=[disk])
    with pytest.raises(AuditUnavailable):
        run(log.append_proven(EVENT))
    log.close()
    assert kinds(tmp_path) == ["audit.opened", EVENT.kind]
    assert verify(tmp_path, AUDIT_KEYS.mac).ok
    opened(tmp_path).close()


# --- the verifier alone


def test_the_verifier_for_reviewers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, other = tmp_path / "log", tmp_path / "twin"
    write(folder, 5, other)
    key = ("--public-key", str(PUBLIC))
    note = tmp_path / "kept"
    note.write_text(last_note(folder) or "")
    proof = tmp_path / "proof.json"
    proof.write_bytes(encode_proof(proof_of(folder, 2)))
    words = [str(folder), str(other), *key, "--checkpoint", str(note), "--proof", str(proof)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "6 records" in said
    assert "6 of them under signed checkpoints" in said
    assert "proves record 2" in said
    assert main([str(folder)]) == 0
    assert "note: without --public-key" in capsys.readouterr().out
    path = segments(other)[0][1]
    path.write_bytes(path.read_bytes().replace(b'"count":3', b'"count":4'))
    assert main([str(folder), str(other), *key]) == 1
    said = capsys.readouterr().out
    assert "record 4 is at fault (hash" in said
    assert "differ from record 4 on" in said
    proof.write_bytes(b"{}")
    assert main(["--proof", str(proof)]) == 1
    assert "proves nothing" in capsys.readouterr().out
    for wrong in (
        [str(tmp_path / "absent")],
        [str(folder), "--public-key", "x"],
        [str(folder), "--checkpoint", str(proof)],
        [str(folder), "--public-key", str(STRANGER), "--checkpoint", str(note)],
    ):
        assert main(wrong) == 2
        assert capsys.readouterr().err.startswith("audit verify: ")
    assert main([str(folder), "--public-key", str(STRANGER)]) == 1
    assert "checkpoint 0 is at fault" in capsys.readouterr().out


@pytest.mark.slow
def test_a_copy_of_one_folder_is_enough_and_nothing_but_python_for_chain_and_tree(
    tmp_path: Path,
) -> None:
    write(tmp_path / "log", 5)
    shutil.copytree(Path(security.__file__).parent, tmp_path / "copy" / "security")
    watch = (
        "import sys; from security.audit_verify import main; code = main(sys.argv[1:]); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)); "
        "sys.exit(code)"
    )
    for words, extra in (([], []), (["--public-key", str(PUBLIC)], ["cryptography"])):
        done = subprocess.run(
            [sys.executable, "-c", watch, str(tmp_path / "log"), *words],
            cwd=tmp_path / "copy",
            capture_output=True,
            text=True,
            check=True,
        )
        assert "whole and unchanged" in done.stdout
        named = set(json.loads(done.stdout.splitlines()[-1].replace("'", '"')))
        ours = {name for name in named if not name.startswith("_")} - {"security"}
        assert not {"msgspec", "gateway", "policies", "tenants"} & ours
        assert set(extra) <= ours
        assert ("cryptography" in ours) == bool(extra)
