"""Several directories of one log: one that fails, hangs or was away falls behind, catches up, and is
then the same byte for byte; none holds anybody up; what does not belong together refuses to start."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from security.audit import AuditUnavailable
from security.audit_catch_up import SourceBroken, catch_up
from security.audit_chain import Head
from security.audit_checkpoint import CHECKPOINT_FILE
from security.audit_files import Disk, Files, Place
from security.audit_log import AuditLog, Tuning
from security.audit_sinks import Changed
from security.audit_start import AuditCorrupt
from security.audit_verify import first_difference, verify
from security.audit_walk import HEAD_FILE, read_head, segments
from tests.security.audit_kit import (
    EVENT,
    QUICK,
    BadDisk,
    content,
    kinds,
    opened,
    records,
    wait_current,
    wait_healthy,
    wait_until,
    write,
)
from tests.security.helpers import AUDIT_KEYS, byte_source

KEY = AUDIT_KEYS.mac


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return tmp_path / "one"


@pytest.fixture
def two(tmp_path: Path) -> Path:
    return tmp_path / "two"


def alike(one: Path, two: Path) -> None:
    assert content(one) == content(two)
    for folder in (one, two):
        verdict = verify(folder, KEY, public=AUDIT_KEYS.signer.public)
        assert verdict.ok, verdict
        assert verdict.signed_records == verdict.records  # the end is signed


# --- at work


def test_all_directories_hold_the_same_bytes(one: Path, two: Path) -> None:
    write(one, 30, two, segment_bytes=1500)
    assert len(segments(one)) > 3
    alike(one, two)
    write(one, 5, two, segment_bytes=1500)
    alike(one, two)


@pytest.mark.parametrize("count", (1, 2))
def test_a_directory_is_handed_to_a_thread_of_its_own_where_there_are_others(
    count: int, tmp_path: Path
) -> None:
    threads: set[str] = set()

    def noted(fd: int, data: bytes) -> int:
        threads.add(threading.current_thread().name)
        return os.write(fd, data)

    folders = [tmp_path / str(number) for number in range(count)]
    log = opened(*folders, disks=[Disk(write=noted)] * count)
    threads.clear()  # of the start
    log.append_blocking(EVENT)
    log.close()
    assert threads == {"audit-log" if count == 1 else "audit-sink"}


@pytest.mark.parametrize("written", (None, 1, 100))
def test_one_that_fails_falls_behind_is_told_of_and_catches_up(
    one: Path, two: Path, written: int | None
) -> None:
    bad, told = BadDisk(), list[Changed]()
    log = opened(one, two, disks=[QUICK, bad.disk()], told=told)
    log.append_blocking(EVENT)
    bad.write_at_most, bad.error = written, OSError(errno.ENOSPC, "full")
    for _ in range(5):
        log.append_blocking(EVENT)
    assert [(each.current, each.reason) for each in log.sinks()] == [(True, None), (False, "OSError")]  # fmt: skip
    assert log.sinks()[1].lacks >= 5
    log.require_healthy()
    bad.error = bad.write_at_most = None
    wait_current(log)
    log.append_blocking(EVENT)
    log.close()
    alike(one, two)
    assert kinds(one).count("audit.sink_lost") == kinds(one).count("audit.sink_back") == 1
    (lost,) = [each for each in records(one) if each["kind"] == "audit.sink_lost"]
    assert (lost["target"], lost["reason"], lost["count"]) == ("1", "OSError", 1)
    assert [(each.sink, each.reason) for each in told] == [(1, "OSError"), (1, None)]


def test_one_that_hangs_holds_nobody_up_past_its_deadline_and_comes_back(
    one: Path, two: Path
) -> None:
    bad = BadDisk()
    tuning = Tuning(retry_s=0.005, sink_deadline_s=0.02)
    log = opened(one, two, disks=[QUICK, bad.disk()], tuning=tuning)
    bad.hold = threading.Event()
    for _ in range(3):
        log.append_blocking(EVENT)
    assert [each.reason for each in log.sinks()] == [None, "deadline"]
    bad.hold.set()
    wait_current(log)
    log.close()
    alike(one, two)


def test_where_none_can_write_nothing_is_served_and_no_trace_is_left(one: Path, two: Path) -> None:
    bads = [BadDisk(), BadDisk()]
    log = opened(one, two, disks=[each.disk() for each in bads])
    log.append_blocking(EVENT)
    for each in bads:
        each.error = OSError(errno.EIO, "gone")
    with pytest.raises(AuditUnavailable):
        log.append_blocking(EVENT)
    with pytest.raises(AuditUnavailable):
        log.require_healthy()
    bads[0].error = bads[1].error = None
    wait_healthy(log)
    wait_current(log)
    log.append_blocking(EVENT)
    log.close()
    assert [kind for kind in kinds(one) if not str(kind).startswith("audit.sink")] == ["audit.opened", EVENT.kind, "audit.recovered", EVENT.kind]  # fmt: skip
    alike(one, two)


def test_the_only_current_one_fails_and_the_other_catches_up_from_it_and_goes_on(
    one: Path, two: Path
) -> None:
    """A full disk can still be read: what it alone holds is not lost, and service comes back."""
    bads = [BadDisk(), BadDisk()]
    log = opened(one, two, disks=[each.disk() for each in bads])
    full = OSError(errno.ENOSPC, "full")
    bads[1].error = full
    log.append_blocking(EVENT)
    log.append_blocking(EVENT)
    bads[0].error = full
    with pytest.raises(AuditUnavailable):
        log.append_blocking(EVENT)
    bads[1].error = None
    wait_healthy(log)
    log.append_blocking(EVENT)
    assert not log.sinks()[0].current
    bads[0].error = None
    wait_current(log)
    log.close()
    alike(one, two)


def test_one_catches_up_over_several_segments(one: Path, two: Path) -> None:
    bad = BadDisk()
    tuning = Tuning(segment_bytes=700, retry_s=0.005)
    log = opened(one, two, disks=[QUICK, bad.disk()], tuning=tuning)
    bad.error = OSError(errno.ENOSPC, "full")
    for _ in range(20):
        log.append_blocking(EVENT)
    bad.error = None
    wait_current(log)
    log.append_blocking(EVENT)
    log.close()
    assert len(segments(one)) > 4
    alike(one, two)


def test_what_was_changed_in_the_good_one_does_not_spread(one: Path, two: Path) -> None:
    bad, told = BadDisk(), list[Changed]()
    log = opened(one, two, disks=[QUICK, bad.disk()], told=told)
    bad.error = OSError(errno.ENOSPC, "full")
    for _ in range(5):
        log.append_blocking(EVENT)
    path = segments(one)[0][1]
    path.write_bytes(path.read_bytes().replace(b'"request_id":"r1"', b'"request_id":"r2"'))
    bad.error = None
    wait_until(lambda: log.sinks()[1].reason == "SourceBroken")
    log.close()
    assert b"r2" not in segments(two)[0][1].read_bytes()
    assert not verify(one, None).ok


# --- at the start


def test_one_that_was_away_gets_what_it_lacks(one: Path, two: Path) -> None:
    write(one, 10, two, segment_bytes=900)
    write(one, 10, segment_bytes=900)
    assert first_difference(one, two) is None
    opened(one, two).close()
    alike(one, two)
    told = [each for each in records(one) if each["kind"] == "audit.recovered"]
    assert [(each["reason"], each["target"]) for each in told] == [("sink_behind", "1")]
    assert told[0]["count"] == len(records(one)) - len(told) - 13


@pytest.mark.parametrize("first", (True, False))
def test_a_new_directory_gets_the_whole_log(one: Path, two: Path, *, first: bool) -> None:
    write(one, 12, segment_bytes=900)
    opened(*((two, one) if first else (one, two))).close()
    alike(one, two)


@pytest.mark.parametrize("torn", ("one", "two", "both"))
def test_torn_ends_are_cut_in_each_on_its_own(one: Path, two: Path, torn: str) -> None:
    write(one, 4, two)
    folders = {"one": [one], "two": [two], "both": [one, two]}[torn]
    for folder in folders:
        with segments(folder)[0][1].open("ab") as file:
            file.write(b'{"at_ms":1')
        with (folder / CHECKPOINT_FILE).open("ab") as file:
            file.write(b'{"cons')
    opened(one, two).close()
    alike(one, two)
    told = [each for each in records(one) if each["kind"] == "audit.recovered"]
    found = sorted((str(each["target"]), each["reason"], each["count"]) for each in told)
    targets = [str([one, two].index(each)) for each in folders]
    assert found == sorted((target, reason, count) for target in targets for reason, count in (("torn_tail", 10), ("torn_checkpoint", 6)))  # fmt: skip


def test_what_only_one_had_written_and_nobody_was_told_gives_way(one: Path, two: Path) -> None:
    """Two ends that differ, one beyond its head: the one that the other's head vouches for stands."""
    write(one, 3, two)
    before = content(two)
    write(one, 1)  # another end here
    stray = segments(one)[0][1].read_bytes()
    for name, data in before.items():
        (one / name).write_bytes(data)
    segments(one)[0][1].write_bytes(stray)  # written, and its head not
    log = opened(two)
    log.append_blocking(EVENT)
    log.append_blocking(EVENT)
    log.close()
    opened(one, two).close()
    alike(one, two)
    assert kinds(one)[4:6] == [EVENT.kind, EVENT.kind]
    assert "torn_tail" in {each.get("reason") for each in records(one)}


def test_logs_that_do_not_belong_together_refuse_to_start(one: Path, two: Path) -> None:
    write(one, 3, two)
    write(one, 1)
    log = opened(two)
    log.append_blocking(EVENT)
    log.close()
    kept = content(one), content(two)
    with pytest.raises(AuditCorrupt, match="do not belong together"):
        opened(one, two)
    assert (content(one), content(two)) == kept
    assert first_difference(one, two) == 4


def test_another_logs_directory_refuses_to_start(one: Path, two: Path) -> None:
    write(one, 3)
    AuditLog.open([two], keys=AUDIT_KEYS, clock_ms=lambda: 1, rng=byte_source(9)).close()
    with pytest.raises(AuditCorrupt, match="do not belong together"):
        opened(one, two)


def test_one_of_them_cannot_be_used(one: Path, tmp_path: Path) -> None:
    """At the start somebody is there to look: no directory is left out in silence."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        opened(one, tmp_path / "file" / "two")
    opened(one).close()  # the other was let go


def test_files_exchanged_between_directories_at_different_ends(one: Path, two: Path) -> None:
    write(one, 3, two)
    write(one, 3)
    for name in (HEAD_FILE, segments(one)[0][1].name, CHECKPOINT_FILE):
        kept = content(one), content(two)
        first, second = (one / name).read_bytes(), (two / name).read_bytes()
        (one / name).write_bytes(second)
        (two / name).write_bytes(first)
        verdicts = verify(one, KEY), verify(two, KEY)
        assert not all(each.ok for each in verdicts), name
        for folder, data in zip((one, two), kept, strict=True):
            for each, whole in data.items():
                (folder / each).write_bytes(whole)
    assert verify(one, KEY).ok
    assert verify(two, KEY).ok


def test_a_copy_in_many_pieces_is_the_whole(
    one: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("security.audit_catch_up.PIECE_BYTES", 400)
    write(one, 12, segment_bytes=1500)
    opened(one, two).close()
    alike(one, two)


def test_a_log_that_was_changed_before_its_last_segment_is_not_copied(one: Path, two: Path) -> None:
    """A start reads the last segment alone, a copy reads all."""
    write(one, 12, segment_bytes=900)
    path = segments(one)[0][1]
    whole = path.read_bytes()
    for data in (whole.replace(b'"count":1,', b'"count":9,'), b""):
        path.write_bytes(data)
        with pytest.raises(AuditCorrupt, match="changed from outside"):
            opened(one, two)
    path.write_bytes(whole)
    opened(one, two).close()
    alike(one, two)


@pytest.mark.parametrize("name", ("audit", "checkpoints"))
def test_a_source_that_ends_too_early_is_no_source(name: str, one: Path, two: Path) -> None:
    write(one, 3)
    source, target = Files.lock(one, QUICK), Files.lock(two, QUICK)
    place = Place(decode(one), 0, segments(one)[0][1].stat().st_size, (one / CHECKPOINT_FILE).stat().st_size)  # fmt: skip
    path = segments(one)[0][1] if name == "audit" else one / CHECKPOINT_FILE
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0] if name == "audit" else b"")
    with pytest.raises(SourceBroken, match=r"ends before|was cut off"):
        catch_up(target, one, place, KEY)
    source.close()
    target.close()


def decode(folder: Path) -> Head:
    head = read_head(folder, KEY)
    assert head is not None
    return head
