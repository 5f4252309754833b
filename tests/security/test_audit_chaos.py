"""Disks that fail at random in every call, killed and cut from power at random: what was answered is
there once, what was refused is not, all directories end alike, and every signature holds."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from security.audit import AuditEvent, AuditUnavailable
from security.audit_files import Disk
from security.audit_log import Tuning
from security.audit_verify import verify
from security.audit_walk import HEAD_FILE
from tests.security.audit_kit import content, opened, records, wait_current, wait_healthy
from tests.security.helpers import AUDIT_KEYS

TUNING = Tuning(retry_s=0.001, sign_records=5, segment_bytes=1500, sink_deadline_s=5)
PUBLIC = AUDIT_KEYS.signer.public


@dataclass
class Weather:
    """A disk whose calls fail with probability `bad`, half-done where that is possible; it remembers
    what a power cut would leave at least."""

    draw: random.Random
    bad: float = 0.0
    synced: dict[str, int] = field(default_factory=dict)
    heads: list[bytes] = field(default_factory=lambda: [b""])

    def disk(self) -> Disk:
        return Disk(self.write, self.pwrite, self.sync, self.truncate, self.sync_folder)

    def write(self, fd: int, data: bytes) -> int:
        if self.fails():
            if self.draw.random() < 0.5:
                os.write(fd, data[: self.draw.randrange(len(data) + 1)])
            raise OSError(28, "full")
        return os.write(fd, data[: self.draw.randrange(1, len(data) + 1)])

    def pwrite(self, fd: int, data: bytes, at: int) -> int:
        if self.fails():
            raise OSError(5, "gone")
        self.heads.append(data)
        return os.pwrite(fd, data, at)

    def sync(self, fd: int) -> None:
        if self.fails():
            raise OSError(5, "gone")
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        self.synced[path] = os.fstat(fd).st_size
        if path.endswith(HEAD_FILE):
            self.heads = self.heads[-1:]

    def truncate(self, fd: int, size: int) -> None:
        if self.fails():
            raise OSError(5, "gone")
        os.ftruncate(fd, size)

    def sync_folder(self, _: Path) -> None:
        if self.fails():
            raise OSError(5, "gone")

    def fails(self) -> bool:
        return self.draw.random() < self.bad

    def power_cut(self, folder: Path) -> None:
        """Of what was not synced, some was written back and some was not."""
        for path in folder.iterdir():
            size = path.stat().st_size
            kept = min(size, self.synced.get(str(path), 0))
            if path.name == HEAD_FILE:
                self.heads = [self.draw.choice(self.heads)]
                path.write_bytes(self.heads[0])
            else:
                self.synced[str(path)] = self.draw.randrange(kept, size + 1)
                os.truncate(path, self.synced[str(path)])


def ride(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    count = draw.choice((1, 2, 3))
    folders = [tmp_path / f"{seed}" / f"d{index}" for index in range(count)]
    answered: dict[int, int] = {}
    refused: list[int] = []  # since the last that was answered
    lost: set[int] = set()  # refused, and perhaps written when the process died
    next_count = 0
    weathers = [Weather(draw) for _ in folders]
    for _ in range(4):
        for each in weathers:
            each.bad = 0.0
        log = opened(*folders, disks=[each.disk() for each in weathers], tuning=TUNING)
        for each in weathers:
            each.bad = draw.choice((0.0, 0.05, 0.3))
        for _ in range(draw.randrange(1, 25)):
            next_count += 1
            try:
                answered[next_count] = log.append_blocking(
                    AuditEvent(kind="test.record", count=next_count)
                )
            except AuditUnavailable:
                refused.append(next_count)
            else:
                refused.clear()
        end = draw.choice(("close", "kill", "power"))
        if end == "close":
            for each in weathers:
                each.bad = 0.0
            wait_healthy(log)
            wait_current(log)
            log.close()
            continue
        # What a killed process leaves is what lies in its files now: the writer stands still.
        lost |= set(refused)
        for each in weathers:
            each.bad = 1.0
        log.close()
        for folder, weather in zip(folders, weathers, strict=True):
            if end == "power":
                weather.power_cut(folder)
    opened(*folders, tuning=TUNING).close()
    for folder in folders:
        verdict = verify(folder, AUDIT_KEYS.mac, public=PUBLIC)
        assert verdict.ok, (seed, verdict)
        assert content(folder) == content(folders[0]), seed
    found = [each for each in records(folders[0]) if each["kind"] == "test.record"]
    numbers = {each["count"]: each["seq"] for each in found}
    assert len(numbers) == len(found), seed
    assert answered.items() <= numbers.items(), (seed, answered.items() - numbers.items())
    assert numbers.keys() <= answered.keys() | lost, (seed, numbers.keys() - answered.keys() - lost)


@pytest.mark.parametrize("seed", range(6))
def test_a_few_rough_lives(seed: int, tmp_path: Path) -> None:
    ride(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(6))
def test_many_rough_lives(block: int, tmp_path: Path) -> None:
    for seed in range(100 + block * 50, 150 + block * 50):
        ride(seed, tmp_path)
