"""The sink: durable before it answers, closed when it cannot be, whole again after a crash."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from security.audit import AuditEvent, AuditUnavailable
from security.audit_chain import Head, Link, encode_head, read
from security.audit_checkpoint import CHECKPOINT_FILE
from security.audit_files import AuditLocked, Disk
from security.audit_log import AuditLog, Tuning
from security.audit_start import AuditCorrupt
from security.audit_verify import verify
from security.audit_walk import HEAD_FILE, segments
from tests.security.audit_kit import EVENT, FAST, QUICK, BadDisk, kinds, records, wait_healthy
from tests.security.audit_kit import opened as opened_all
from tests.security.helpers import AUDIT_KEYS, run

KEY = AUDIT_KEYS.mac


def opened(folder: Path, *, tuning: Tuning = FAST, disk: Disk | None = None) -> AuditLog:
    return opened_all(folder, tuning=tuning, disks=[disk or Disk()])


# --- the good case


def test_numbers_follow_each_other_across_groups_and_restarts(tmp_path: Path) -> None:
    async def many(log: AuditLog, count: int) -> list[int]:
        found = await asyncio.gather(*(log.append(EVENT) for _ in range(count)))
        await log.aclose()
        return sorted(found)

    assert run(many(opened(tmp_path), 500)) == list(range(1, 501))
    assert run(many(opened(tmp_path), 2)) == [501, 502]
    assert verify(tmp_path, KEY).records == 503
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_record_is_synced_before_its_caller_hears_and_a_group_shares_one_sync(
    tmp_path: Path,
) -> None:
    bad = BadDisk()
    log = opened(tmp_path, disk=bad.disk())
    bad.calls.clear()
    bad.hold = threading.Event()

    async def work() -> None:
        first = asyncio.create_task(log.append(EVENT))
        await asyncio.to_thread(bad.held.wait, 10)
        rest = [asyncio.create_task(log.append(EVENT)) for _ in range(50)]
        await asyncio.sleep(0)
        assert not first.done()
        assert bad.hold is not None
        bad.hold.set()
        await asyncio.gather(first, *rest)

    run(work())
    assert bad.calls == ["write", "sync", "head"] * 2
    log.close()


def test_segments_rotate_with_the_chain_carried_on(tmp_path: Path) -> None:
    tuning = Tuning(segment_bytes=500)
    log = opened(tmp_path, tuning=tuning)
    numbers = [log.append_blocking(EVENT) for _ in range(10)]
    log.close()
    assert len(segments(tmp_path)) > 2
    assert kinds(tmp_path).count("audit.segment") == len(segments(tmp_path)) - 1
    assert numbers == [i for i, kind in enumerate(kinds(tmp_path)) if kind == EVENT.kind]
    assert verify(tmp_path, KEY).ok
    again = opened(tmp_path, tuning=tuning)
    again.append_blocking(EVENT)
    again.close()
    assert verify(tmp_path, KEY).ok


def test_two_writers_never_share_a_directory(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(AuditLocked, match="in use"):
        opened(tmp_path)
    log.close()
    opened(tmp_path).close()


def test_our_own_mistake_shows_where_it_was_made(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(AssertionError):
        log.append_blocking(AuditEvent(kind="no dots"))
    log.append_blocking(EVENT)
    log.close()


def test_closed_is_closed(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.close()
    log.close()
    with pytest.raises(AuditUnavailable):
        log.append_blocking(EVENT)
    with pytest.raises(AuditUnavailable):
        log.require_healthy()


# --- a disk that refuses


@pytest.mark.parametrize("code", (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT))
@pytest.mark.parametrize("written", (None, 1, 100))
def test_fails_closed_leaves_no_trace_and_recovers_with_a_record(
    tmp_path: Path, code: int, written: int | None
) -> None:
    bad = BadDisk()
    log = opened(tmp_path, disk=bad.disk())
    log.append_blocking(EVENT)
    bad.write_at_most, bad.error = written, OSError(code, "refused")
    with pytest.raises(AuditUnavailable):
        log.append_blocking(EVENT)
    with pytest.raises(AuditUnavailable):
        log.require_healthy()
    with pytest.raises(AuditUnavailable):
        log.append_blocking(EVENT)
    bad.error = bad.write_at_most = None
    wait_healthy(log)
    log.append_blocking(EVENT)
    log.close()
    assert kinds(tmp_path) == ["audit.opened", EVENT.kind, "audit.recovered", EVENT.kind]
    assert records(tmp_path)[2]["reason"] == "sink_failed"
    assert verify(tmp_path, KEY).ok


def test_a_disk_that_cannot_even_cut_stays_closed(tmp_path: Path) -> None:
    bad = BadDisk()
    log = opened(tmp_path, disk=bad.disk())
    bad.write_at_most, bad.error = 10, OSError(errno.ENOSPC, "full")
    bad.truncate_error = OSError(errno.EIO, "bad")
    with pytest.raises(AuditUnavailable):
        log.append_blocking(EVENT)
    bad.error = bad.write_at_most = None
    with pytest.raises(AuditUnavailable):
        log.append_blocking(EVENT)
    bad.truncate_error = None
    wait_healthy(log)
    log.close()
    assert verify(tmp_path, KEY).ok


def test_a_head_that_cannot_be_written_closes_too(tmp_path: Path) -> None:
    bad = BadDisk()
    log = opened(tmp_path, disk=bad.disk())
    bad.head_error = OSError(errno.EIO, "bad")
    with pytest.raises(AuditUnavailable):
        log.append_blocking(EVENT)
    bad.head_error = None
    wait_healthy(log)
    log.append_blocking(EVENT)
    log.close()
    assert verify(tmp_path, KEY).ok


def test_a_head_written_in_part_is_not_written(tmp_path: Path) -> None:
    bad = BadDisk()
    whole: Callable[[int, bytes, int], int] = os.pwrite
    disk = Disk(pwrite=lambda fd, data, at: whole(fd, data[:-1] if bad.calls else data, at))
    log = opened(tmp_path, disk=disk)
    bad.calls.append("now in part")
    with pytest.raises(AuditUnavailable):
        log.append_blocking(EVENT)
    log.close()


def test_a_rotation_that_fails_is_done_again(tmp_path: Path) -> None:
    bad = BadDisk()
    log = opened(tmp_path, tuning=Tuning(segment_bytes=200, retry_s=0.005), disk=bad.disk())
    log.append_blocking(EVENT)
    for written in (None, 30):
        bad.write_at_most, bad.error = written, OSError(errno.ENOSPC, "full")
        with pytest.raises(AuditUnavailable):
            log.append_blocking(EVENT)
        bad.error = bad.write_at_most = None
        wait_healthy(log)
        log.append_blocking(EVENT)
    bad.error = OSError(errno.EIO, "cannot sync the head")
    log.close()
    assert verify(tmp_path, KEY).ok


def test_a_disk_that_hangs_meets_the_deadline_and_comes_back(tmp_path: Path) -> None:
    bad = BadDisk()
    log = opened(tmp_path, tuning=Tuning(deadline_s=0.05, queue_max=2), disk=bad.disk())
    bad.hold = threading.Event()

    async def work() -> None:
        with pytest.raises(AuditUnavailable):  # begun, so it will be written after all
            await log.append(EVENT)
        with pytest.raises(AuditUnavailable):
            log.require_healthy()
        for _ in range(2):  # given up before they are begun: never written
            with pytest.raises(AuditUnavailable):
                await log.append(EVENT)
        with pytest.raises(AuditUnavailable) as full:  # at once
            await log.append(EVENT)
        assert full.value.__cause__.__class__.__name__ == "Full"

    run(work())
    log.close()  # waits its deadline, no longer
    assert bad.hold is not None
    bad.hold.set()
    log._thread.join(10)
    assert kinds(tmp_path) == ["audit.opened", EVENT.kind]


def test_a_hung_blocking_append_gives_up_too(tmp_path: Path) -> None:
    bad = BadDisk()
    log = opened(tmp_path, tuning=Tuning(deadline_s=0.05), disk=bad.disk())
    bad.hold = threading.Event()
    with pytest.raises(AuditUnavailable):
        log.append_blocking(EVENT)
    bad.hold.set()
    wait_healthy(log)
    log.close()


def test_one_who_waited_too_long_while_the_writer_was_in_time_stops_nobody(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append_blocking(EVENT)
    log._stall()  # as an event loop would that was late to look
    wait_healthy(log)
    log.close()
    assert kinds(tmp_path) == ["audit.opened", EVENT.kind]


# --- crashes


@pytest.mark.slow
def test_l8_a_tail_torn_at_any_byte_is_cut_off_and_recorded(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append_blocking(EVENT)
    log.close()
    path, head = segments(tmp_path)[0][1], tmp_path / HEAD_FILE
    checkpoints = tmp_path / CHECKPOINT_FILE
    whole, vouched, signed = path.read_bytes(), head.read_bytes(), checkpoints.read_bytes()
    log = opened(tmp_path)
    log.append_blocking(EVENT)
    log.close()
    longer = path.read_bytes()
    for at in range(len(whole) + 1, len(longer)):
        path.write_bytes(longer[:at])
        head.write_bytes(vouched)  # the last record was never answered for
        checkpoints.write_bytes(signed)
        opened(tmp_path, disk=QUICK).close()
        assert verify(tmp_path, KEY).ok, at
        last = records(tmp_path)[-1]
        assert (last["kind"], last["reason"], last["count"]) == ("audit.recovered", "torn_tail", at - len(whole))  # fmt: skip
        assert records(tmp_path)[:-1] == [read(line) for line in whole.splitlines()]


def test_a_record_written_but_not_yet_vouched_for_is_kept(tmp_path: Path) -> None:
    opened(tmp_path).close()
    vouched = (tmp_path / HEAD_FILE).read_bytes()
    log = opened(tmp_path)
    log.append_blocking(EVENT)
    log.close()
    (tmp_path / HEAD_FILE).write_bytes(vouched)
    opened(tmp_path).close()
    assert kinds(tmp_path) == ["audit.opened", EVENT.kind]
    assert verify(tmp_path, KEY).ok


@pytest.mark.slow
def test_a_crash_at_any_point_of_the_very_first_start(tmp_path: Path) -> None:
    opened(tmp_path).close()
    path = segments(tmp_path)[0][1]
    first = path.read_bytes()
    for at in range(len(first) + 1):
        for head in (b"", None):
            path.write_bytes(first[:at])
            (tmp_path / HEAD_FILE).unlink(missing_ok=True)
            (tmp_path / CHECKPOINT_FILE).unlink(missing_ok=True)
            if head is not None:
                (tmp_path / HEAD_FILE).write_bytes(head)
            opened(tmp_path, disk=QUICK).close()
            assert verify(tmp_path, KEY).ok, at


def test_a_crash_between_a_rotation_and_its_first_record(tmp_path: Path) -> None:
    tuning = Tuning(segment_bytes=200)
    log = opened(tmp_path, tuning=tuning)
    log.append_blocking(EVENT)
    log.close()
    count = verify(tmp_path, KEY).records
    for torn in (b"", b'{"at_ms":1'):
        (tmp_path / f"audit-{count:012}.jsonl").write_bytes(torn)
        log = opened(tmp_path, tuning=tuning)
        log.append_blocking(EVENT)
        log.close()
        assert verify(tmp_path, KEY).ok
        last = (tmp_path / f"audit-{count:012}.jsonl").read_bytes().splitlines()
        assert read(last[0])["kind"] == "audit.segment"  # a start with an older head needs it
        count = verify(tmp_path, KEY).records


def test_what_was_changed_from_outside_refuses_to_start_and_is_left_alone(tmp_path: Path) -> None:
    log = opened(tmp_path, tuning=Tuning(segment_bytes=400))
    for _ in range(8):
        log.append_blocking(EVENT)
    log.close()
    path, head = segments(tmp_path)[-1][1], tmp_path / HEAD_FILE
    whole, vouched = path.read_bytes(), head.read_bytes()
    assert len(segments(tmp_path)) > 1
    link = Link(verify(tmp_path, KEY).records, b"\1" * 32)
    chain = str(records(tmp_path)[0]["target"])
    changes: dict[str, tuple[bytes, bytes]] = {
        "cut below the head": (whole[:-1], vouched),
        "emptied": (b"", vouched),
        "edited": (whole.replace(b"r1", b"r2", 1), vouched),
        "first record edited": (whole.replace(b'"target":"', b'"target":"zz', 1), vouched),
        "no head": (whole, b""),
        "another's head": (whole, encode_head(Head(chain, link), b"x" * 32)),
        "a head of another end": (whole, encode_head(Head(chain, link), KEY)),
        "a great tail": (whole + b"x" * (2 << 20), vouched),
    }
    for name, (log_bytes, head_bytes) in changes.items():
        path.write_bytes(log_bytes)
        head.write_bytes(head_bytes)
        with pytest.raises(AuditCorrupt, match="audit verify"):
            opened(tmp_path)
        assert (path.read_bytes(), head.read_bytes()) == (log_bytes, head_bytes), name
    path.write_bytes(whole)
    head.write_bytes(vouched)
    opened(tmp_path).close()


CRASHING = """
import sys
from pathlib import Path
from security.audit import AuditEvent
from security.audit_log import AuditLog, Tuning
from tests.security.helpers import AUDIT_KEYS
folders = [Path(each) for each in sys.argv[1:]]
tuning = Tuning(sign_records=3, segment_bytes=4000)
log = AuditLog.open(folders, keys=AUDIT_KEYS, clock_ms=lambda: 1, tuning=tuning)
while True:
    print(log.append_blocking(AuditEvent(kind="test.record")), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", (1, 7, 40, 41, 42, 43))
@pytest.mark.parametrize("count", (1, 2))
def test_l8_sigkill_loses_nothing_that_was_answered(tmp_path: Path, after: int, count: int) -> None:
    folders = [tmp_path / str(index) for index in range(count)]
    child = subprocess.Popen(
        [sys.executable, "-c", CRASHING, *map(str, folders)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        answered = [int(child.stdout.readline()) for _ in range(after)]
        child.send_signal(signal.SIGKILL)
        answered += [int(line) for line in child.stdout.read().split("\n")[:-1]]
    child.wait()
    public = AUDIT_KEYS.signer.public
    assert all(verify(folder, KEY, public=public).ok for folder in folders)
    opened_all(*folders).close()
    verdicts = [verify(folder, KEY, public=public) for folder in folders]
    assert all(verdict.ok for verdict in verdicts)
    assert {verdict.records for verdict in verdicts} == {verdicts[0].records}
    assert verdicts[0].records > max(answered)
    written = {each["seq"] for each in records(folders[0]) if each["kind"] == "test.record"}
    assert set(answered) <= written


@pytest.mark.slow
def test_a_real_file_size_limit_fails_closed(tmp_path: Path) -> None:
    script = """
import resource, signal, sys
from pathlib import Path
from security.audit import AuditEvent, AuditUnavailable
from security.audit_log import AuditLog
from tests.security.helpers import AUDIT_KEYS
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = AuditLog.open([Path(sys.argv[1])], keys=AUDIT_KEYS, clock_ms=lambda: 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
done = 0
try:
    while done < 1000:
        log.append_blocking(AuditEvent(kind="test.record"))
        done += 1
except AuditUnavailable:
    print(done)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.append_blocking(AuditEvent(kind="test.record"))
log.close()
"""
    out = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert 0 < int(out.stdout) < 30
    assert verify(tmp_path, KEY).ok
    assert "audit.recovered" in kinds(tmp_path)
