"""`python -m tests.mutants`: the table of what each broken build was killed by; 1 if one was not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tests.mutants.catalogue import MUTANTS
from tests.mutants.gate import ROOT, WORKERS, Run, Verdict, run
from tests.mutants.mutant import Mutant, faults

_WIDTH = 240
"""Of a table that no terminal bounds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all killed, 1: not all, 2: asked for what there is not."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these alone")
    parser.add_argument("--list", action="store_true", help="name them and run nothing")
    parser.add_argument("--workers", type=int, default=WORKERS, help="at once (%(default)s)")
    asked = parser.parse_args(arguments)
    known = {each.name: each for each in MUTANTS}
    if unknown := [name for name in asked.names if name not in known]:
        sys.stderr.write(f"There is no mutant {', '.join(unknown)}; --list names them.\n")
        return 2
    chosen = [known[name] for name in dict.fromkeys(asked.names)] or list(MUTANTS)
    out = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    if asked.list:
        out.print(table([(each, ()) for each in chosen]))
        return 0
    if stale := [f"{each.name}: {why}" for each, why in faults(chosen, ROOT)]:
        sys.stderr.write("\n".join(["The catalogue is not of this tree:", *stale, ""]))
        return 1
    runs = _run(chosen, max(1, asked.workers))
    *found, whole = runs
    rows = [(each.mutant, _judged(each)) for each in found if each.mutant is not None]
    out.print(table(rows, judged=True))
    for each in runs:
        if each.why:
            name = "nothing broken" if each.mutant is None else each.mutant.name
            sys.stdout.write(f"{name}: {each.why}\n")
    killed = sum(each.verdict is Verdict.KILLED for each in found)
    sound = whole.verdict is Verdict.SURVIVED
    sys.stdout.write(
        f"{killed} of {len(found)} killed; their tests "
        f"{'pass' if sound else 'do NOT all pass'} where nothing is broken.\n"
    )
    return 0 if sound and killed == len(found) else 1


def _run(chosen: Sequence[Mutant], workers: int) -> list[Run]:
    ended = 0

    def heard(each: Run) -> None:
        nonlocal ended
        ended += 1
        name = "(nothing broken)" if each.mutant is None else each.mutant.name
        word = each.verdict.value
        if each.mutant is None:
            word = "passes" if each.verdict is Verdict.SURVIVED else "FAILS"
        sys.stderr.write(f"{ended:3}/{len(chosen) + 1}  {word:8}  {each.seconds:5.1f} s  {name}\n")

    return run(chosen, heard, workers=workers)


def _judged(each: Run) -> tuple[str, str]:
    return each.verdict.value, f"{each.seconds:.1f}"


def table(rows: Sequence[tuple[Mutant, tuple[str, ...]]], *, judged: bool = False) -> Table:
    made = Table(box=None, pad_edge=False)
    for title in ("mutant", "attacks", "file", "the test that kills it"):
        made.add_column(title, overflow="fold")
    if judged:
        made.add_column("")
        made.add_column("s", justify="right")
    for each, more in rows:
        made.add_row(each.name, each.attacks, each.file, each.killed_by, *more)
    return made


if __name__ == "__main__":
    sys.exit(main())
