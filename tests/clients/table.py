"""`python -m tests.clients.table`: the tables of clients as the last whole run found them; `--write` puts the one
of endpoints into the first README, and the one of all that was tried into ours."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tests.clients.matrix import Cell, Outcome, summary, table

ROOT = Path(__file__).resolve().parents[2]
PAGES = {ROOT / "README.md": summary, ROOT / "tests" / "clients" / "README.md": table}
FOUND = ROOT / "var" / "artefacts" / "clients.json"
PLACE = re.compile(
    r"(?<=<!-- clients: tests/clients/table.py -->\n).*?(?=<!-- /clients -->)", re.DOTALL
)


def written(page: Path) -> str:
    """What stands there."""
    found = PLACE.search(page.read_text("utf-8"))
    assert found is not None, f"{page} has no place for the table of clients"
    return found[0].strip() + "\n"


def main(arguments: list[str]) -> int:
    if not FOUND.exists():
        print("No run yet: pytest tests/clients -m 'not long'", file=sys.stderr)
        return 1
    told = json.loads(FOUND.read_text())
    cells = {
        Cell(row["endpoint"], row["what"], row["client"]): Outcome(row["outcome"])
        for row in told["cells"]
    }
    print(f"{summary(cells, cells)}\n{table(cells, cells)}\nRun of {told['at']}.")
    if "--write" in arguments:
        for page, shown in PAGES.items():
            text = shown(cells, cells)
            said = PLACE.sub(lambda _, text=text: f"\n{text}\n", page.read_text("utf-8"))  # type: ignore[misc]
            page.write_text(said, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
