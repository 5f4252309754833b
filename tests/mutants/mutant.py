"""One broken build: a text put in another's place, the property that it takes away, the test that sees it.

Pure but for reading the files that it names.  Refuses to know: how tests are run (`gate`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGES = ("policies", "security", "tenants", "executor", "gateway", "deploy")
PROPERTIES = (*(f"P{n}" for n in range(1, 19)), *(f"M{n}" for n in range(1, 16)), "A10")


class DoesNotApply(Exception):
    """The code has moved on: the patch must too."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`attacks`: a property of SECURITY.md §1.  `old` stands in `file` exactly once.  `killed_by`: a test's
    node id; of one with parameters, all of them."""

    name: str
    attacks: str
    file: str
    old: str
    new: str
    killed_by: str

    def apply(self, source: str) -> str:
        """The broken source.  DoesNotApply."""
        found = source.count(self.old)
        if found != 1:
            raise DoesNotApply(f"{self.file} has its text {found} times, not once")
        return source.replace(self.old, self.new)


def faults(mutants: Iterable[Mutant], root: Path) -> Iterator[tuple[Mutant, str]]:
    """What is wrong with a catalogue, read against the tree at `root`, without running anything."""
    names: set[str] = set()
    for each in mutants:
        if each.name in names:
            yield each, "there are two of this name"
        names.add(each.name)
        if each.attacks not in PROPERTIES:
            yield each, f"{each.attacks} is no property"
        if each.file.partition("/")[0] not in PACKAGES:
            yield each, f"{each.file} does not ship"
        elif why := _unpatched(each, root):
            yield each, why
        if not _is_there(each.killed_by, root):
            yield each, f"there is no test {each.killed_by}"


def _unpatched(each: Mutant, root: Path) -> str | None:
    try:
        source = (root / each.file).read_text(encoding="utf-8")
        broken = each.apply(source)
    except (DoesNotApply, OSError) as why:
        return str(why)
    if not each.file.endswith(".py"):
        return None if broken != source else "it changes nothing"
    try:
        same = ast.dump(ast.parse(broken)) == _dumped(source)
    except SyntaxError as why:
        return f"it is no Python: {why.msg}"
    return "it changes nothing" if same else None


def _is_there(node_id: str, root: Path) -> bool:
    file, _, name = node_id.partition("::")
    try:
        return name.partition("[")[0] in _functions((root / file).read_text(encoding="utf-8"))
    except OSError:
        return False


@cache
def _dumped(source: str) -> str:
    return ast.dump(ast.parse(source))


@cache
def _functions(source: str) -> frozenset[str]:
    tree = ast.parse(source)
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
