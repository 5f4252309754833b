"""What the operating system says of a process: CPU, memory, descendants, life.  The door for psutil."""

from __future__ import annotations

import signal
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

GONE_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds a process has used so far, and its memory now."""

    cpu_s: float
    rss_mib: float

    @classmethod
    def of(cls, pid: int) -> Cost:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return cls(times.user + times.system, process.memory_info().rss / 2**20)


def busy_s() -> float:
    """CPU seconds that all processes together have used since the machine started."""
    times = psutil.cpu_times()
    return float(sum(times[:3]) + sum(times[5:8]))  # user, nice, system; irq, softirq, steal


def alive(pid: int) -> bool:
    """A zombie is not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def signal_family(pid: int, number: signal.Signals) -> None:
    for each in (pid, *descendants(pid)):
        try:
            psutil.Process(each).send_signal(number)
        except psutil.NoSuchProcess:
            continue


def end(pids: list[int]) -> None:
    """Wait for processes of ours that were asked to end; kill what does not."""
    processes = []
    for pid in pids:
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    _, left = psutil.wait_procs(processes, timeout=GONE_S_MAX)
    for survivor in left:
        survivor.kill()


def memory_gib() -> float:
    return float(psutil.virtual_memory().total / 2**30)
