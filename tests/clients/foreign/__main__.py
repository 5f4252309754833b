"""Run somebody else's tests of their server against ours, and say where ours differs.

    python -m tests.clients.foreign llama.cpp|vllm --source DIR [--url URL --token TOKEN --model NAME]

DIR holds their sources, wherever they came from; nothing of them is kept here.  Without a URL a server of ours with
the default model is started.  Which files, and the deviations that we know with their reasons, are in llama_cpp.toml
and vllm.toml.  Exit 1 where a test fails that they do not name.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench.server import Server, default_model

HERE = Path(__file__).resolve().parent
SUITES = {"llama.cpp": "llama_cpp.toml", "vllm": "vllm.toml"}
RUN_S_MAX = 900


@dataclass(frozen=True)
class Row:
    test: str
    kind: str
    """passes, deviates, not applicable, or NEW."""
    why: str = ""


def matching(test: str, reasons: Mapping[str, str]) -> str | None:
    """The reason of the first pattern that fits; `*` stands for anything."""
    for pattern, reason in reasons.items():
        if re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), test, re.DOTALL):
            return reason
    return None


def judged(found: Iterable[Mapping[str, str]], suite: Mapping[str, Any]) -> list[Row]:
    """What became of each test, against what we said of it.  One that does not run for want of something of its own
    is not applicable."""
    rows = []
    for each in found:
        test, outcome = each["test"], each["outcome"]
        reason = matching(test, suite["deviates"])
        if outcome == "passed":
            rows.append(Row(test, "passes"))
        elif outcome in {"skipped", "not applicable"}:
            rows.append(Row(test, "not applicable", each["why"]))
        elif reason is not None:
            rows.append(Row(test, "deviates", reason))
        else:
            rows.append(Row(test, "NEW", each["why"]))
    return rows


def prepare(name: str, source: Path, into: Path, model: str) -> None:
    """A copy of their tests that finds our stand-ins."""
    if name == "llama.cpp":
        [tests] = {path.parents[1] for path in source.rglob("unit/test_compat_oai_responses.py")}
        shutil.copytree(tests, into, dirs_exist_ok=True)
    else:
        [tests] = {path.parents[1] for path in source.rglob("tests/entrypoints/openai")}
        shutil.copytree(tests / "entrypoints", into / "tests" / "entrypoints")
        (into / "tests" / "__init__.py").touch()
        (into / "tests" / "conftest.py").write_text("class LocalAssetServer: pass\n")
        shutil.copy(HERE / "remote.py", into / "tests" / "utils.py")
        for path in into.rglob("test_*.py"):
            text = path.read_text("utf-8")
            path.write_text(
                re.sub(r'^MODEL_NAME = ".*"', f'MODEL_NAME = "{model}"', text, flags=re.MULTILINE)
            )
    shutil.copy(HERE / "plugin.py", into / "foreign_plugin.py")
    (into / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    serial\n    asyncio\n")


def run(name: str, source: Path, suite: Mapping[str, Any], at: Mapping[str, str]) -> list[Row]:
    with TemporaryDirectory() as folder:
        into = Path(folder)
        prepare(name, source, into, at["LOCKGATE_MODEL"])
        outcomes = into / "outcomes.jsonl"
        outcomes.touch()
        environment = {
            **os.environ,
            **at,
            "PYTHONPATH": folder,
            "LOCKGATE_OUTCOMES": str(outcomes),
            "LOCKGATE_NOT_APPLICABLE": json.dumps(suite["not_applicable"]),
            "DEBUG_EXTERNAL": "1",
            "PORT": at["LOCKGATE_URL"].rpartition(":")[2],
        }
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "foreign_plugin"]
        command += ["-p", "no:schemathesis", "-p", "no:cacheprovider", *suite["files"]]
        done = subprocess.run(
            command,
            cwd=into,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )
        found = [json.loads(line) for line in outcomes.read_text("utf-8").splitlines()]
        if not found or done.returncode not in {0, 1}:
            print(done.stdout[-6000:], done.stderr[-2000:], file=sys.stderr)
        return judged(found, suite)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.foreign")
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--url")
    parser.add_argument("--token")
    parser.add_argument("--model")
    said = parser.parse_args(arguments)
    suite = tomllib.loads((HERE / SUITES[said.suite]).read_text("utf-8"))
    with ExitStack() as stack:
        if said.url is None:
            prepared = Server.prepare(model_path=str(default_model()), threads=2)
            site = stack.enter_context(prepared).site
            url, token, model = site.base_url, site.tokens["acme/alice"], site.model
        else:
            url, token, model = said.url, said.token, said.model
        at = {
            "LOCKGATE_URL": url.rstrip("/").removesuffix("/v1"),
            "LOCKGATE_TOKEN": token,
            "LOCKGATE_MODEL": model,
        }
        rows = run(said.suite, said.source, suite, at)
    for row in rows:
        print(f"{row.kind:15} {row.test}" + (f"\n{'':15}   {row.why}" if row.why else ""))
    counted = Counter(row.kind for row in rows)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counted.items())) or "no tests ran")
    return 1 if counted["NEW"] or not counted["passes"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
