"""The chain on paper and the verifier over files: any edit, drop, reordering, insertion or cut of a
log is found, and where it begins is named."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from security.audit import AuditEvent, encode
from security.audit_chain import (
    HEAD_BYTES,
    LINE_BYTES_MAX,
    Broken,
    Head,
    Link,
    decode_head,
    encode_head,
    follow,
    read,
)
from security.audit_checkpoint import CHECKPOINT_FILE
from security.audit_log import AuditLog
from security.audit_verify import verify
from security.audit_walk import HEAD_FILE, segments
from tests.security.audit_kit import write
from tests.security.helpers import AUDIT_KEYS, byte_source

KEY = AUDIT_KEYS.mac
EVENT = AuditEvent(kind="request.completed", request_id="r1", tenant="acme", output_tokens=7)


# --- one record


def test_a_record_is_one_line_of_ascii_whatever_it_holds() -> None:
    nasty = 'a\r\nb\x1b[2J\x00\x7f\x85\u2028\u202e"\\é\ud800'
    line, link = encode(AuditEvent(kind="a.b", reason=nasty, tenant=nasty), 5, Link(), KEY)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert all(0x20 <= byte < 0x7F for byte in line[:-1])
    assert read(line)["reason"] == nasty
    assert follow(line, Link(), KEY) == link


def test_the_hash_and_the_mac_are_the_documented_ones() -> None:
    line, link = encode(EVENT, 5, Link(3, b"p" * 32), KEY)
    value = json.loads(line)
    signed = line[: line.index(b',"hash":')]

    def sized(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    expected = hashlib.sha256(
        sized(b"lockgate/audit/v1") + sized(b"p" * 32) + sized(signed)
    ).digest()
    assert value["hash"] == expected.hex() == link.last.hex()
    assert value["mac"] == hmac.digest(KEY, sized(b"record") + expected, "sha256")[:16].hex()
    assert (value["seq"], value["at_ms"], link.count) == (3, 5, 4)


def test_absent_fields_are_left_out_and_zero_is_not() -> None:
    line, _ = encode(AuditEvent(kind="a.b", nano_usd=0), 5, Link(), KEY)
    assert set(read(line)) == {"kind", "nano_usd", "at_ms", "seq", "hash", "mac"}


def test_text_is_bounded_and_the_fields_are_a_closed_set() -> None:
    kinds = AuditEvent.__annotations__
    texts = [name for name in kinds if "str" in kinds[name] and name != "kind"]
    numbers = {name: 2**63 - 1 for name in kinds if "int" in kinds[name]}
    for text in ("x" * 10_000, "\U0001f600" * 10_000, "\0" * 257):
        event = {"kind": "a.b", **dict.fromkeys(texts, text), **numbers}
        line, link = encode(msgspec.convert(event, AuditEvent), 2**53, Link(2**53), KEY)
        assert len(line) <= LINE_BYTES_MAX
        assert follow(line, Link(2**53), KEY) == link
        assert str(read(line)["tenant"]).endswith("…")
    whole = "x" * 256
    assert read(encode(AuditEvent(kind="a.b", tenant=whole), 5, Link(), KEY)[0])["tenant"] == whole
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"kind":"a.b","prompt":"x"}', type=AuditEvent)
    with pytest.raises(TypeError):
        AuditEvent(kind="a.b", prompt="x")  # type: ignore[call-arg]  # the point


@pytest.mark.parametrize("kind", ("", "a", "A.b", "a.", "a b.c", "a.b\n", "auth..x"))
def test_a_kind_is_a_dotted_name(kind: str) -> None:
    with pytest.raises(AssertionError):
        encode(AuditEvent(kind=kind), 5, Link(), KEY)


def test_every_changed_bit_of_a_line_breaks_it() -> None:
    line, _ = encode(EVENT, 5, Link(), KEY)
    for at in range(len(line)):
        for bit in range(8):
            changed = line[:at] + bytes([line[at] ^ (1 << bit)]) + line[at + 1 :]
            assert isinstance(follow(changed, Link(), KEY), Broken), (at, bit)


def test_a_line_elsewhere_in_the_chain_breaks_it() -> None:
    line, link = encode(EVENT, 5, Link(), KEY)
    assert isinstance(follow(line, link, KEY), Broken)
    assert isinstance(follow(line, Link(1), KEY), Broken)
    assert isinstance(follow(line, Link(), b"b" * 32), Broken)
    assert not isinstance(follow(line, Link(), None), Broken)
    assert isinstance(follow(b"x" * (LINE_BYTES_MAX + 1), Link(), KEY), Broken)
    assert isinstance(follow(b"", Link(), KEY), Broken)


def test_a_record_of_another_chain_at_the_same_place_breaks_it() -> None:
    one, other = (encode(EVENT, at_ms, Link(), KEY)[1] for at_ms in (5, 6))
    line, _ = encode(EVENT, 7, other, KEY)
    assert follow(line, one, KEY) == follow(line, one, None) == Broken("hash")


def test_a_forger_without_the_key_cannot_go_on_with_a_chain() -> None:
    _, link = encode(EVENT, 5, Link(), KEY)
    forged, _ = encode(EVENT, 5, link, b"guess" * 8)
    assert follow(forged, link, KEY) == Broken("mac")
    assert not isinstance(follow(forged, link, None), Broken)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.text(), st.text(), st.integers())
def test_fuzz_a_record_reads_back(reason: str, tenant: str, count: int) -> None:
    event = AuditEvent(kind="a.b", reason=reason, tenant=tenant, count=count % 2**63)
    line, link = encode(event, 5, Link(), KEY)
    assert follow(line, Link(), KEY) == link


# --- the head


def test_the_head_reads_back_and_every_changed_byte_breaks_it() -> None:
    head = Head("ab" * 16, Link(12, b"h" * 32))
    data = encode_head(head, KEY)
    assert len(data) == HEAD_BYTES == len(encode_head(Head("ab" * 16, Link(2**53 - 1)), KEY))
    assert decode_head(data, KEY) == decode_head(data, None) == head
    assert decode_head(data, b"b" * 32) is None
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert decode_head(changed, KEY) is None, at
    assert decode_head(data[:-1], KEY) is None
    assert decode_head(data + b"\n", None) is None


@pytest.mark.parametrize(
    "value",
    (
        None, [], {}, {"chain": "ab" * 16, "count": True, "last": "00" * 32},
        {"chain": "ab" * 16, "count": -1, "last": "00" * 32}, {"chain": "x", "count": 1, "last": "00" * 32},
        {"chain": "ab" * 16, "count": 2**60, "last": "00" * 32}, {"chain": "ab" * 16, "count": 1, "last": "00"},
    ),
)  # fmt: skip
@pytest.mark.parametrize("key", (KEY, None))
def test_what_is_no_head(value: object, key: bytes | None) -> None:
    assert decode_head(json.dumps(value).encode(), key) is None


# --- a directory


def test_a_whole_log(tmp_path: Path) -> None:
    write(tmp_path, 3)
    verdict = verify(tmp_path, KEY)
    assert (verdict.ok, verdict.records, verdict.recovered, verdict.macs_checked) == (
        True,
        4,
        0,
        True,
    )
    assert verify(tmp_path, None).ok


@pytest.mark.slow
def test_every_changed_byte_anywhere_is_found_and_its_record_named(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path = segments(tmp_path)[0][1]
    good = path.read_bytes()
    starts = [0, *(at + 1 for at, byte in enumerate(good) if byte == 0x0A)]
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        verdict = verify(tmp_path, KEY)
        index = max(i for i, start in enumerate(starts) if start <= at)
        assert (verdict.ok, verdict.bad_index) == (False, index), at
    path.write_bytes(good)
    head = tmp_path / HEAD_FILE
    whole = head.read_bytes()
    for at in range(len(whole)):
        head.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert verify(tmp_path, KEY).reason == "head", at
    head.write_bytes(whole)
    assert verify(tmp_path, KEY).ok


@pytest.mark.slow
def test_a_cut_at_every_byte_is_found(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path = segments(tmp_path)[0][1]
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at])
        verdict = verify(tmp_path, KEY)
        assert (verdict.ok, verdict.bad_index) == (False, good[:at].count(b"\n")), at


Change = Callable[[list[bytes]], list[bytes]]
CHANGES: dict[str, tuple[Change, int]] = {
    "drop the first": (lambda lines: lines[1:], 0),
    "drop one in the middle": (lambda lines: lines[:2] + lines[3:], 2),
    "swap two": (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], 2),
    "repeat one": (lambda lines: [*lines[:3], lines[2], *lines[3:]], 3),
    "insert a line": (lambda lines: [*lines[:2], b"{}\n", *lines[2:]], 2),
    "insert an empty line": (lambda lines: [*lines[:2], b"\n", *lines[2:]], 2),
    "append a line": (lambda lines: [*lines, b"{}\n"], 6),
    "repeat the last": (lambda lines: [*lines, lines[-1]], 6),
    "reverse": (lambda lines: lines[::-1], 0),
    "empty": (lambda _: [], 0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_lines_dropped_moved_or_added(name: str, tmp_path: Path) -> None:
    write(tmp_path, 5)
    path = segments(tmp_path)[0][1]
    change, index = CHANGES[name]
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    verdict = verify(tmp_path, KEY)
    assert (verdict.ok, verdict.bad_index) == (False, index)


def test_a_forger_without_the_key_who_rewrites_the_rest(tmp_path: Path) -> None:
    """The chain alone would follow it; the MACs do not, and without the key the head does not."""
    write(tmp_path, 3)
    path = segments(tmp_path)[0][1]
    lines = path.read_bytes().splitlines(keepends=True)
    first = follow(lines[0], Link(), KEY)
    assert isinstance(first, Link)
    forged, link = [], first
    for i in range(3):
        line, link = encode(AuditEvent(kind="test.record", count=i + 100), 1000, link, b"x" * 32)
        forged.append(line)
    path.write_bytes(b"".join([lines[0], *forged]))
    assert (verify(tmp_path, KEY).bad_index, verify(tmp_path, KEY).reason) == (1, "mac")
    assert (verify(tmp_path, None).ok, verify(tmp_path, None).reason) == (False, "head")


def test_segments_missing_foreign_or_renamed(tmp_path: Path) -> None:
    write(tmp_path, 12, segment_bytes=600)
    parts = segments(tmp_path)
    assert len(parts) > 3
    assert verify(tmp_path, KEY).ok
    for start, path in parts:
        kept = path.read_bytes()
        path.unlink()
        verdict = verify(tmp_path, KEY)
        assert (verdict.ok, verdict.bad_index) == (False, start)
        path.write_bytes(kept)
    (start, first), (_, second) = parts[1:3]
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    assert verify(tmp_path, KEY).bad_index == start
    first.write_bytes(one)
    second.write_bytes(two)
    stranger = tmp_path / "audit-000000000001.jsonl"
    stranger.write_bytes(one)
    assert not verify(tmp_path, KEY).ok
    stranger.unlink()
    (tmp_path / "notes.txt").write_text("not ours")
    assert verify(tmp_path, KEY).ok


def test_a_segment_under_another_name_in_the_same_order(tmp_path: Path) -> None:
    """The chain still holds, yet a start reads the number in the name."""
    write(tmp_path, 12, segment_bytes=600)
    start, last = segments(tmp_path)[-1]
    last.rename(tmp_path / f"audit-{start + 1:012}.jsonl")
    verdict = verify(tmp_path, KEY)
    assert (verdict.ok, verdict.bad_index, verdict.reason) == (False, start, "segment")


def test_a_line_cut_in_a_segment_that_others_follow_is_no_torn_end(tmp_path: Path) -> None:
    write(tmp_path, 1, segment_bytes=600)
    early = (tmp_path / HEAD_FILE).read_bytes()
    write(tmp_path, 12, segment_bytes=600)
    (tmp_path / HEAD_FILE).write_bytes(early)  # vouches for less than is there
    assert verify(tmp_path, KEY).ok
    _, middle = segments(tmp_path)[2]
    middle.write_bytes(middle.read_bytes()[:-20])
    assert (verify(tmp_path, KEY).ok, verify(tmp_path, KEY).reason) == (False, "not_a_record")


def test_a_head_that_names_another_chain(tmp_path: Path) -> None:
    """Only without the key can such a head pass for genuine."""
    write(tmp_path, 1)
    genuine = decode_head((tmp_path / HEAD_FILE).read_bytes(), KEY)
    assert genuine is not None
    (tmp_path / HEAD_FILE).write_bytes(encode_head(Head("ff" * 16, genuine.link), b"x" * 32))
    assert (verify(tmp_path, None).ok, verify(tmp_path, None).reason) == (False, "head")


def test_two_whole_logs_cannot_be_exchanged(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, 3)
    log = AuditLog.open([two], keys=AUDIT_KEYS, clock_ms=lambda: 1, rng=byte_source(9))
    for _ in range(3):
        log.append_blocking(EVENT)
    log.close()
    segments(two)[0][1].replace(segments(one)[0][1])
    assert verify(one, KEY).reason == "head"


def test_a_head_kept_elsewhere_finds_what_the_one_here_cannot(tmp_path: Path) -> None:
    """All put back together to an earlier state: the documented limit, and its remedy."""
    write(tmp_path, 2)
    files = [segments(tmp_path)[0][1], tmp_path / HEAD_FILE, tmp_path / CHECKPOINT_FILE]
    early = [path.read_bytes() for path in files]
    write(tmp_path, 2)
    kept = decode_head(files[1].read_bytes(), KEY)
    for path, data in zip(files[:2], early, strict=False):
        path.write_bytes(data)
    assert (verify(tmp_path, KEY).reason, verify(tmp_path, KEY).bad_index) == ("truncated", 3)
    files[2].write_bytes(early[2])
    assert verify(tmp_path, KEY).ok
    verdict = verify(tmp_path, KEY, expect=kept)
    assert (verdict.ok, verdict.bad_index, verdict.reason) == (False, 3, "truncated")
    assert verify(tmp_path, KEY, expect=decode_head(early[1], KEY)).ok


def test_without_a_head_nothing_is_whole(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (tmp_path / HEAD_FILE).unlink()
    assert (verify(tmp_path, KEY).ok, verify(tmp_path, KEY).reason) == (False, "head")
    with pytest.raises(OSError):
        verify(tmp_path / "absent", KEY)


def test_a_record_being_written_beside_the_reader_is_no_fault(tmp_path: Path) -> None:
    write(tmp_path, 2)
    path = segments(tmp_path)[0][1]
    with path.open("ab") as file:
        file.write(b'{"at_ms":1,"kind":"half')
    verdict = verify(tmp_path, KEY)
    assert (verdict.ok, verdict.torn_bytes) == (True, 23)
    with path.open("ab") as file:
        file.write(b"x" * LINE_BYTES_MAX)
    assert not verify(tmp_path, KEY).ok
