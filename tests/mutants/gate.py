"""Running mutants: a copy of the tree for each worker, one test run for each mutant, a verdict.

Killed means that the named test failed by what it asserts.  A build that cannot be imported, a test that is
not found, or is broken off by another exception, or never ends, proves nothing of that: a fault of the
patch, and no kill.

Refuses to know: which mutants there are.  The working tree is read, and never written to.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.mutants.mutant import PACKAGES, DoesNotApply, Mutant

ROOT: Final = Path(__file__).resolve().parents[2]
COPIED: Final = (*PACKAGES, "tests", "pyproject.toml")
WORKERS: Final = 2
TIMEOUT_S: Final = 180
PASSED, FAILED = 0, 1
"""Exit codes of pytest; all others say that it came to no judgement."""
_ASSERTED: Final = ("AssertionError", "assert ", "Failed: ", "TimeoutError")
"""How the message of a failure begins that a test means: the third is `raises` that saw nothing, the last
the bound that a test sets to what must come to an end."""


class Verdict(StrEnum):
    KILLED = "killed"
    SURVIVED = "SURVIVED"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Run:
    """Of one mutant; `mutant` None: of the build as it is, on which all their tests must pass (KILLED means
    nothing of it)."""

    mutant: Mutant | None
    verdict: Verdict
    seconds: float
    why: str = ""


def run(
    mutants: Sequence[Mutant],
    heard: Callable[[Run], None],
    *,
    workers: int = WORKERS,
    timeout_s: float = TIMEOUT_S,
) -> list[Run]:
    """In the order of the catalogue, the whole build last.  `heard` is told of each as it ends."""
    with trees(workers) as spare, ThreadPoolExecutor(workers) as pool:

        def one(at: int, mutant: Mutant | None) -> Run:
            tree = spare.get()
            try:
                if mutant is None:
                    return _whole(tree, mutants, timeout_s)
                return _broken(tree, mutant, at, timeout_s)
            finally:
                spare.put(tree)

        asked = [pool.submit(one, 0, None)]
        asked += [pool.submit(one, at, each) for at, each in enumerate(mutants, 1)]
        try:
            for done in as_completed(asked):
                heard(done.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        whole, *found = (each.result() for each in asked)
        return [*found, whole]


@contextmanager
def trees(count: int) -> Iterator[queue.SimpleQueue[Path]]:
    """Copies of what the tests need."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        spare: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(count):
            tree = Path(folder) / f"tree{number}"
            tree.mkdir()
            for name in COPIED:
                if (ROOT / name).is_dir():
                    shutil.copytree(
                        ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__")
                    )
                else:
                    shutil.copy2(ROOT / name, tree / name)
            spare.put(tree)
        yield spare


def _whole(tree: Path, mutants: Iterable[Mutant], timeout_s: float) -> Run:
    named = list(dict.fromkeys(each.killed_by for each in mutants))
    began_s = time.monotonic()
    code, report = pytest(tree, named, timeout_s=timeout_s)
    seconds = time.monotonic() - began_s
    if code == PASSED:
        return Run(None, Verdict.SURVIVED, seconds)
    return Run(None, Verdict.FAULT, seconds, " ".join(_told(report)) or _code(code))


def _broken(tree: Path, mutant: Mutant, at: int, timeout_s: float) -> Run:
    file, began_s = tree / mutant.file, time.monotonic()
    source, stat = file.read_text(encoding="utf-8"), file.stat()
    try:
        file.write_text(mutant.apply(source), encoding="utf-8")
    except DoesNotApply as moved_on:
        return Run(mutant, Verdict.FAULT, 0.0, str(moved_on))
    # Compiled code is known by its source's second and size: every build has a second of its own.
    os.utime(file, (stat.st_mtime + at, stat.st_mtime + at))
    try:
        code, report = pytest(tree, [mutant.killed_by], timeout_s=timeout_s)
    finally:
        file.write_text(source, encoding="utf-8")
        os.utime(file, (stat.st_mtime, stat.st_mtime))
    verdict, why = judge(code, report)
    return Run(mutant, verdict, time.monotonic() - began_s, why)


def pytest(tree: Path, node_ids: Sequence[str], *, timeout_s: float) -> tuple[int | None, str]:
    """Its exit code (None: it took too long) and its report in JUnit's form, empty where there is none."""
    report = tree / "report.xml"
    report.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-m", "", "--tb=line", "-p", "no:cacheprovider"),
        *("--junitxml", str(report), *node_ids),
    ]
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            code: int | None = process.wait(timeout_s)
        except BaseException as why:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(why, subprocess.TimeoutExpired):
                raise
            code = None
    return code, report.read_text(encoding="utf-8") if report.exists() else ""


def judge(code: int | None, report: str) -> tuple[Verdict, str]:
    """What pytest's exit code and report say of a mutant, and why where it is no kill."""
    if code == PASSED:
        return Verdict.SURVIVED, ""
    if code != FAILED:
        return Verdict.FAULT, _code(code)
    failures = [each.get("message", "") for each in ET.fromstring(report).iter("failure")]
    if any(each.startswith(_ASSERTED) for each in failures):
        return Verdict.KILLED, ""
    return Verdict.FAULT, "not by an assertion: " + " ".join(_told(report))


def _told(report: str) -> Iterator[str]:
    """The first lines of what failed."""
    if report:
        for case in ET.fromstring(report).iter("testcase"):
            for each in (*case.findall("failure"), *case.findall("error")):
                yield f"{case.get('name')}: {each.get('message', '').partition(chr(10))[0][:160]}"


def _code(code: int | None) -> str:
    return "it took too long" if code is None else f"pytest came to no judgement (exit code {code})"
