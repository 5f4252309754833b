"""`python -m tests.clients.table`: the table of clients as the last whole run found it; `--write` puts it into
the README."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tests.clients.matrix import Cell, Outcome, table

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
FOUND = ROOT / "var" / "artefacts" / "clients.json"
PLACE = re.compile(
    r"(?<=<!-- clients: tests/clients/table.py -->\n).*?(?=<!-- /clients -->)", re.DOTALL
)


def written() -> str:
    """What stands in the README."""
    found = PLACE.search(README.read_text("utf-8"))
    assert found is not None, "README.md has no place for the table of clients"
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
    text = table(cells, cells)
    print(f"{text}\nRun of {told['at']}.")
    if "--write" in arguments:
        page = README.read_text("utf-8")
        README.write_text(PLACE.sub(lambda _: f"\n{text}\n", page), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
