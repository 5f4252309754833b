"""`lockgate explain REQUEST_ID`: where a request's time went, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from rich.text import Text

from gateway.cli.client import connect, segment
from gateway.cli.options import VAR, AdminUrl, Json, StateDir, Token
from gateway.cli.show import cell, console, document, pairs, say, table

WIDTH = 40


def explain(
    request_id: str = typer.Argument(help="The x-request-id of an answer."),
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show a request's four stages (admitted, queued, prefill, decode), its tokens and its cost."""
    server = connect(admin_url, token, state_dir)
    told = server.get(f"/v1/admin/requests/{segment(request_id)}")
    if as_json:
        document(told)
        return
    stages = told.get("stages") or []
    pairs({name: value for name, value in told.items() if name not in _APART and value is not None})
    filed = told.get("tags") or []
    pairs({f"tag {tag['name']}": f"{tag['value']} ({tag['origin']})" for tag in filed})
    if stages:
        console().print(Text("\n".join(["", *bars(stages), ""])))
    tokens = told.get("tokens") or {}
    pairs({f"{name} tokens": value for name, value in tokens.items()})
    lines = told.get("price_lines") or []
    if lines:
        say("")
        table(lines)
        say("")
    pairs({name: told[name] for name in _SUMS if told.get(name) is not None})


_SUMS = ("total_ms", "reserved_usd", "price_usd", "cost_usd", "cost_ms", "recomputed_ms")
_APART = frozenset({"stages", "tags", "tokens", "price_lines", *_SUMS})


def bars(stages: Sequence[dict[str, Any]], width: int = WIDTH) -> list[str]:
    """One line a stage: its name, its bar where it falls in the whole, its milliseconds.  A stage that
    took any time at all shows at least one cell."""
    spans = [max(0.0, float(stage.get("ms") or 0)) for stage in stages]
    total = sum(spans)
    names = [cell("name", stage.get("name")) for stage in stages]
    pad = max(map(len, names), default=0)
    lines, passed = [], 0.0
    for stage, name, ms in zip(stages, names, spans, strict=True):
        start = min(width - 1, round(passed / total * width)) if total else 0
        cells = 0 if ms == 0 else max(1, round((passed + ms) / total * width) - start)
        passed += ms
        shown = " " * start + "█" * cells
        tail = f"  {cell('at', stage['at'])}" if stage.get("at") is not None else ""
        lines.append(f"{name:<{pad}}  {shown:<{width}}  {ms:>9,.1f} ms{tail}")
    return lines
