"""What a README names exists: every link, every path, every command with its options.

A reader who types what stands there must not be the first to try it.  The commands themselves are run
by the tests marked slow.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from gateway.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
READMES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "*/*.md", "*/*/*.md")
    for path in ROOT.glob(pattern)
    if not path.relative_to(ROOT).parts[0].startswith((".", "var"))
)
TOP = ("gateway", "policies", "tenants", "security", "executor", "deploy", "tests", ".ci")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```(?:sh|bash|console)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(r"[*<>{}…]|\b[A-Z_]{2,}\b")
DEV_VERBS = {"serve", "test", "--help", "-h"}


def broken(text: str, root: Path, here: Path) -> list[str]:
    """What a text names that is not there.  `here`: the folder that its links start from."""
    found = []
    for target in LINK.findall(text):
        path = target.partition("#")[0]
        if path and "://" not in target and not (here / path).exists():
            found.append(f"link {target}")
    for code in CODE.findall(FENCE.sub("", text)):
        found += _code(code, root, here)
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            found += _code(line, root, here)
    return found


def _code(code: str, root: Path, here: Path) -> Iterator[str]:
    words = _words(code)
    if words[:1] == ["lockgate"] and len(words) > 1:
        wrong = no_such_command(words[1:])
        if wrong:
            yield f"command {code!r}: {wrong}"
    elif words[:1] in (["python3"], ["python"]) and len(words) > 1:
        yield from _python(words[1:], root, code)
    elif len(words) == 1:
        name = words[0].rstrip("/").partition(":")[0]
        first = name.partition("/")[0]
        if first in TOP and "/" in name and not PLACEHOLDER.search(name):
            candidates = (root / name, here / name, root / f"{name}.py")
            if not any(path.exists() for path in candidates):
                yield f"path {name}"


def _python(words: list[str], root: Path, code: str) -> Iterator[str]:
    if words[0] == "-m":
        module = words[1] if len(words) > 1 else ""
        if module.startswith("tests."):
            path = root.joinpath(*module.split("."))
            if not (path / "__main__.py").exists() and not path.with_suffix(".py").exists():
                yield f"module {module}"
    elif not words[0].startswith("-"):
        if not (root / words[0]).exists():
            yield f"path {words[0]}"
        elif words[0] == "deploy/dev.py" and words[1:2] and words[1] not in DEV_VERBS:
            yield f"command {code!r}: deploy/dev.py knows {', '.join(sorted(DEV_VERBS))}"


def no_such_command(words: list[str]) -> str | None:
    """Why `lockgate` with these words would be mistyped, or None.  Values are not judged."""
    command = typer.main.get_command(app)
    for word in words:
        inner = getattr(command, "commands", None)
        if inner is not None and not word.startswith("-"):
            if PLACEHOLDER.fullmatch(word) or word == "…":
                return None
            if any(part not in inner for part in word.split("|")):
                return f"there is no {word!r}; there is {', '.join(sorted(inner))}"
            command = inner[word.split("|", maxsplit=1)[0]]
        elif word.startswith("-") and len(word) > 1:
            option = word.partition("=")[0].strip("[]")
            known = {name for item in command.params for name in item.opts}
            if option not in known | {"--help", "-h"}:
                return f"there is no option {option}"
    return None


def _words(code: str) -> list[str]:
    line = re.split(r"\s(?:#|\||>|&&)\s", f" {code.strip()} ")[0].strip().removeprefix("$ ")
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words and words[0] in {".venv/bin/lockgate", ".venv/bin/python"}:
        words[0] = words[0].rpartition("/")[2]
    return words


@pytest.mark.parametrize(
    ("text", "says"),
    (
        ("[x](absent.md)", "link absent.md"),
        ("see `gateway/absent.py`", "path gateway/absent.py"),
        ("see `tests/absent/`", "path tests/absent"),
        ("run `lockgate fly`", "there is no 'fly'"),
        ("run `lockgate key burn k`", "there is no 'burn'"),
        ("run `lockgate serve --gpu`", "no option --gpu"),
        ("```\nlockgate doctor --fix\n```", "no option --fix"),
        ("```sh\nX=1 .venv/bin/lockgate key list --nope  # all\n```", "no option --nope"),
        ("```sh\npython3 deploy/absent.py serve\n```", "path deploy/absent.py"),
        ("```sh\npython3 deploy/dev.py fly\n```", "deploy/dev.py knows"),
        ("`python -m tests.absent serve`", "module tests.absent"),
    ),
)
def test_a_broken_mention_is_seen(text: str, says: str) -> None:
    assert says in "\n".join(broken(text, ROOT, ROOT))


def test_what_exists_is_not_complained_of() -> None:
    text = (
        "[x](pyproject.toml#a) [y](https://example.com/z) `gateway/errors.py` `policies/verdict` "
        "`/v1/models/{id}` `tests/…` `lockgate key create|rotate|revoke` `lockgate explain REQUEST_ID`\n"
        "```sh\n$ python3 deploy/dev.py test -k rate\nlockgate serve --port 9000 | cat\ncurl -N x\n```\n"
    )
    assert broken(text, ROOT, ROOT) == []


@pytest.mark.parametrize("name", READMES)
def test_what_a_readme_names_exists(name: str) -> None:
    path = ROOT / name
    assert broken(path.read_text(encoding="utf-8"), ROOT, path.parent) == []
