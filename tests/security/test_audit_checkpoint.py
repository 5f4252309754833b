"""Signed checkpoints: what they show to whoever has the public key, and to whoever kept one."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from security.audit import AuditEvent
from security.audit_chain import Head, decode_head, encode_head
from security.audit_checkpoint import (
    CHECKPOINT_FILE,
    Checkpoint,
    PublicKey,
    decode_stored,
    open_note,
    parse_public_key,
    read_note,
)
from security.audit_log import Tuning
from security.audit_proof import last_note
from security.audit_signer import AuditKeys, Signer
from security.audit_start import AuditCorrupt
from security.audit_verify import verify
from security.audit_walk import HEAD_FILE, segments
from security.keyring import Keyring
from tests.security.audit_kit import EVENT, FAST, content, kinds, opened, wait_until, write
from tests.security.helpers import AUDIT_KEYS

KEY = AUDIT_KEYS.mac
SIGNER = AUDIT_KEYS.signer
PUBLIC = SIGNER.public
STRANGER = Signer.from_seed(b"x" * 32, PUBLIC.name)
POINT = Checkpoint("ab" * 16, 12345, b"r" * 32, 1_764_460_800_000)
NOTE = SIGNER.note(POINT.text())


def kept(folder: Path, public: PublicKey | None = PUBLIC) -> Checkpoint:
    note = last_note(folder)
    assert note is not None
    found = read_note(note, public)
    assert found is not None
    return found


def lines(folder: Path) -> list[bytes]:
    return (folder / CHECKPOINT_FILE).read_bytes().splitlines(keepends=True)


def put_back(folder: Path, files: dict[str, bytes]) -> None:
    for path in folder.iterdir():
        path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)


# --- a note


def test_a_note_is_written_as_documented() -> None:
    text, _, signature = NOTE.partition("\n\n")
    root = base64.b64encode(b"r" * 32).decode()
    assert text == f"lockgate/audit/{'ab' * 16}\n12345\n{root}\ntime 1764460800000"
    assert signature.startswith(f"— {PUBLIC.name} ")
    assert read_note(NOTE, PUBLIC) == read_note(NOTE, None) == POINT


def test_every_changed_character_of_a_note_is_seen() -> None:
    for at in range(len(NOTE)):
        for other in ("0", "A", "\n", " ", "=", "é"):
            if NOTE[at] != other:
                changed = NOTE[:at] + other + NOTE[at + 1 :]
                assert read_note(changed, PUBLIC) is None, (at, other)
    for changed in (NOTE + NOTE, NOTE[:-1], "\n" + NOTE, NOTE + "\n", NOTE * 100, "", "\n\n"):
        assert read_note(changed, PUBLIC) is None


def test_one_signature_has_one_writing() -> None:
    """The last digit carries bits that decode to nothing."""
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    signature = NOTE.split()[-1]
    twin = signature[:-2] + digits[digits.index(signature[-2]) ^ 1] + "="
    assert base64.b64decode(twin) == base64.b64decode(signature)
    assert read_note(NOTE.replace(signature, twin), PUBLIC) is None


def test_only_its_signer_can_have_signed_it() -> None:
    assert read_note(STRANGER.note(POINT.text()), PUBLIC) is None
    named = PublicKey("another", PUBLIC.raw)
    assert read_note(NOTE, named) is None
    assert open_note(SIGNER.note("lockgate/other\n"), PUBLIC) == "lockgate/other\n"
    assert read_note(SIGNER.note("lockgate/other\n"), PUBLIC) is None


def test_a_witness_may_sign_beside_us() -> None:
    witness = Signer.from_seed(b"w" * 32, "witness.example")
    both = NOTE + witness.note(POINT.text()).partition("\n\n")[2]
    assert read_note(both, PUBLIC) == read_note(both, witness.public) == POINT


@pytest.mark.parametrize(
    "text",
    (
        POINT.text().replace("12345", "012345"), POINT.text().replace("12345", "-1"), POINT.text().replace("12345", "1" * 17),
        POINT.text().replace("time", "Time"), POINT.text() + "more\n", POINT.text().upper(),
        POINT.text().replace("nI=", "nJ="), POINT.text().replace("lockgate", "lockgatf"),
    ),
)  # fmt: skip
def test_what_is_signed_and_no_checkpoint(text: str) -> None:
    assert text != POINT.text()
    assert read_note(SIGNER.note(text), PUBLIC) is None


def test_a_public_key_is_one_line_that_reads_back() -> None:
    line = str(PUBLIC)
    assert parse_public_key(line) == parse_public_key(f" {line}\n") == PUBLIC
    for at in range(len(line)):
        changed = parse_public_key(line[:at] + ("0" if line[at] != "0" else "1") + line[at + 1 :])
        assert changed is None, at
    assert parse_public_key("") is None


def test_the_key_hangs_on_the_first_root_alone() -> None:
    one = Signer.of(Keyring((b"1" * 32, b"2" * 32), b"e"))
    other = Signer.of(Keyring((b"1" * 32, b"3" * 32, b"4" * 32), b"f"))
    assert one.public == other.public != Signer.of(Keyring((b"2" * 32,), b"e")).public
    assert "1111" not in repr(AuditKeys.of(Keyring((b"1" * 32,), b"e")))


# --- when


def test_one_every_so_many_records_and_one_at_the_end(tmp_path: Path) -> None:
    log = opened(tmp_path, tuning=dataclasses.replace(FAST, sign_records=3))
    for _ in range(9):
        log.append_blocking(EVENT)
    log.close()
    points = [decode_stored(line) for line in lines(tmp_path)]
    sizes = [point.size for each in points if each and (point := read_note(each.note, PUBLIC))]
    assert sizes == [3, 6, 9, 10]
    assert verify(tmp_path, KEY, public=PUBLIC).signed_records == 10


def test_one_when_it_is_time_though_nobody_comes(tmp_path: Path) -> None:
    log = opened(tmp_path, tuning=Tuning(sign_s=0.0))
    log.append_blocking(EVENT)
    wait_until(lambda: (tmp_path / CHECKPOINT_FILE).stat().st_size > 0)
    log.close()
    assert verify(tmp_path, KEY, public=PUBLIC).ok


def test_no_segment_begins_without_one_so_that_a_start_reads_only_the_last(tmp_path: Path) -> None:
    log = opened(tmp_path, tuning=dataclasses.replace(FAST, segment_bytes=900))
    for _ in range(20):
        log.append_blocking(EVENT)
        assert kept(tmp_path).size == segments(tmp_path)[-1][0] if len(segments(tmp_path)) > 1 else True  # fmt: skip
    assert len(segments(tmp_path)) > 3
    log.close()


def test_none_where_nothing_is_new(tmp_path: Path) -> None:
    write(tmp_path, 3)
    signed = lines(tmp_path)
    opened(tmp_path).close()
    opened(tmp_path).close()
    assert lines(tmp_path) == signed


def test_a_log_from_before_there_were_checkpoints_gets_its_first_at_the_start(
    tmp_path: Path,
) -> None:
    write(tmp_path, 6, segment_bytes=600)
    (tmp_path / CHECKPOINT_FILE).unlink()
    head = decode_head((tmp_path / HEAD_FILE).read_bytes(), KEY)
    assert head is not None
    (tmp_path / HEAD_FILE).write_bytes(encode_head(Head(head.chain, head.link), KEY))
    assert verify(tmp_path, KEY, public=PUBLIC).ok  # the head, which is ours, says that none is due
    assert verify(tmp_path, None, public=PUBLIC).reason == "unsigned"
    log = opened(tmp_path)
    assert kept(tmp_path).size == head.link.count
    log.append_blocking(EVENT)
    log.close()
    assert verify(tmp_path, None, public=PUBLIC).signed_records == head.link.count + 1


# --- what they show


def rewrite(folder: Path, records: int) -> None:
    """By somebody with every key: the same chain, other words."""
    put_back(folder, {})
    log = opened(folder)
    for i in range(records):
        log.append_blocking(AuditEvent(kind="test.record", count=i + 100))
    log.close()


@pytest.mark.parametrize("records", (5, 9, 2))
def test_a_kept_checkpoint_shows_what_somebody_with_all_keys_put_in_its_place(
    tmp_path: Path, records: int
) -> None:
    write(tmp_path, 5)
    point = kept(tmp_path)
    write(tmp_path, 3)
    assert verify(tmp_path, KEY, public=PUBLIC, kept=[point]).ok
    rewrite(tmp_path, records)
    assert verify(tmp_path, KEY, public=PUBLIC).ok  # all keys fit
    verdict = verify(tmp_path, KEY, public=PUBLIC, kept=[point])
    assert (verdict.ok, verdict.reason) == (False, "rewritten" if records >= 5 else "truncated")


def test_a_kept_checkpoint_shows_everything_put_back_to_an_earlier_state(tmp_path: Path) -> None:
    write(tmp_path, 5)
    early = content(tmp_path)
    write(tmp_path, 3)
    point = kept(tmp_path)
    put_back(tmp_path, early)
    assert verify(tmp_path, KEY, public=PUBLIC).ok
    verdict = verify(tmp_path, KEY, public=PUBLIC, kept=[point])
    assert (verdict.reason, verdict.bad_index) == ("truncated", 6)


def test_a_kept_checkpoint_of_another_log(tmp_path: Path) -> None:
    write(tmp_path, 2)
    other = dataclasses.replace(kept(tmp_path), chain="00" * 16)
    assert verify(tmp_path, KEY, kept=[other]).reason == "another_log"


def test_who_has_the_mac_key_but_not_the_signing_key(tmp_path: Path) -> None:
    write(tmp_path, 4)
    keys = AuditKeys(KEY, STRANGER)
    from security.audit_log import AuditLog
    from tests.security.helpers import byte_source

    put_back(tmp_path, {})
    AuditLog.open([tmp_path], keys=keys, clock_ms=lambda: 1000, rng=byte_source(3)).close()
    assert verify(tmp_path, KEY).ok
    verdict = verify(tmp_path, KEY, public=PUBLIC)
    assert (verdict.ok, verdict.reason, verdict.bad_checkpoint) == (False, "checkpoint", 0)


Change = Callable[[list[bytes]], Sequence[bytes]]
CHANGES: dict[str, tuple[Change, int]] = {
    "none left": (lambda found: [], 0),
    "the last dropped": (lambda found: found[:-1], 3),
    "the first dropped": (lambda found: found[1:], 0),
    "a middle one dropped": (lambda found: [found[0], *found[2:]], 1),
    "two exchanged": (lambda found: [found[0], found[2], found[1], found[3]], 1),
    "one repeated": (lambda found: [*found[:2], found[1], *found[2:]], 2),
    "a foreign line": (lambda found: [*found, b"{}\n"], 4),
    "the last cut": (lambda found: [*found[:-1], found[-1][:-1]], 3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_checkpoints_dropped_moved_or_added(name: str, tmp_path: Path) -> None:
    for _ in range(4):
        write(tmp_path, 1)
    found = lines(tmp_path)
    assert len(found) == 4
    change, at = CHANGES[name]
    (tmp_path / CHECKPOINT_FILE).write_bytes(b"".join(change(found)))
    for key in (KEY, None):
        verdict = verify(tmp_path, key, public=PUBLIC)
        assert (verdict.ok, verdict.reason, verdict.bad_checkpoint) == (False, "checkpoint", at)
    assert kinds(tmp_path).count("audit.recovered") == 0


def test_a_torn_checkpoint_that_no_head_counts_is_no_fault(tmp_path: Path) -> None:
    write(tmp_path, 2)
    with (tmp_path / CHECKPOINT_FILE).open("ab") as file:
        file.write(lines(tmp_path)[0][:100])
    assert verify(tmp_path, KEY, public=PUBLIC).ok
    opened(tmp_path).close()
    assert "audit.recovered" in kinds(tmp_path)
    assert verify(tmp_path, KEY, public=PUBLIC).ok


def test_a_checkpoint_that_covers_more_than_there_is(tmp_path: Path) -> None:
    """The log and its head put back, the checkpoints forgotten: they are evidence."""
    write(tmp_path, 2)
    early = content(tmp_path)
    write(tmp_path, 2)
    late = content(tmp_path)
    put_back(tmp_path, {**early, CHECKPOINT_FILE: late[CHECKPOINT_FILE]})
    for key in (KEY, None):
        verdict = verify(tmp_path, key, public=PUBLIC)
        assert (verdict.reason, verdict.bad_index, verdict.bad_checkpoint) == ("truncated", 3, 1)


def test_checkpoints_changed_from_outside_refuse_to_start(tmp_path: Path) -> None:
    write(tmp_path, 2)
    early = content(tmp_path)
    write(tmp_path, 2)
    late = content(tmp_path)
    last = lines(tmp_path)[-1]
    changes = {
        "none": b"",
        "fewer than the head says": early[CHECKPOINT_FILE],
        "edited": late[CHECKPOINT_FILE].replace(b"time 1000", b"time 1001"),
        "a foreign line": late[CHECKPOINT_FILE] + b"{}\n",
        "signed by another": late[CHECKPOINT_FILE].replace(last, _resigned(last)),
        "a great tail": late[CHECKPOINT_FILE] + b"x" * 10_000,
    }
    for name, data in changes.items():
        put_back(tmp_path, {**late, CHECKPOINT_FILE: data})
        with pytest.raises(AuditCorrupt, match="audit verify"):
            opened(tmp_path)
        assert (tmp_path / CHECKPOINT_FILE).read_bytes() == data, name
        assert not verify(tmp_path, KEY, public=PUBLIC).ok, name
    put_back(tmp_path, {**early, CHECKPOINT_FILE: late[CHECKPOINT_FILE]})
    with pytest.raises(AuditCorrupt, match="do not belong together"):
        opened(tmp_path)
    put_back(tmp_path, late)
    opened(tmp_path).close()


def _resigned(line: bytes) -> bytes:
    from security.audit_checkpoint import encode_stored

    stored = decode_stored(line)
    assert stored is not None
    text = open_note(stored.note, None)
    assert text is not None
    return encode_stored(dataclasses.replace(stored, note=STRANGER.note(text)))


@pytest.mark.slow
def test_every_changed_byte_of_every_file_is_found_with_the_public_key_alone(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        write(tmp_path, 1)
    whole = content(tmp_path)
    for name in (segments(tmp_path)[0][1].name, HEAD_FILE, CHECKPOINT_FILE):
        for at in range(len(whole[name])):
            data = whole[name]
            for flip in (0x01, 0x20, 0x80):
                (tmp_path / name).write_bytes(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
                verdict = verify(tmp_path, None, public=PUBLIC)
                # Without the root key nobody can check the head's MAC, nor that it counts too few
                # checkpoints where more are there.
                unheard = name == HEAD_FILE and data.index(b'"signed"') < at
                assert unheard or not verdict.ok, (name, at, flip)
        (tmp_path / name).write_bytes(whole[name])
    assert verify(tmp_path, None, public=PUBLIC).ok


@pytest.mark.slow
def test_a_cut_of_the_checkpoints_at_every_byte_is_found(tmp_path: Path) -> None:
    for _ in range(2):
        write(tmp_path, 1)
    data = (tmp_path / CHECKPOINT_FILE).read_bytes()
    for at in range(len(data)):
        (tmp_path / CHECKPOINT_FILE).write_bytes(data[:at])
        verdict = verify(tmp_path, KEY, public=PUBLIC)
        assert (verdict.ok, verdict.bad_checkpoint) == (False, data[:at].count(b"\n")), at
