"""`lockgate queue` and `lockgate promises`: who runs and who waits, and what was kept of what was promised."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.cli.client import connect
from gateway.cli.credentials import rows_of
from gateway.cli.options import VAR, AdminUrl, Json, StateDir, Token
from gateway.cli.show import Refusal, cell, clean, console, document, say, table

LANES_SHOWN = 200
_SERVER_FAULT = 500
Whose = Annotated[str | None, typer.Option("--tenant", help="Of this tenant only.")]


def queue(
    tenant: Whose = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.2, max=3600, help="Seconds between two looks.")
    ] = 1.0,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show who runs and who waits, live: by class and tenant, with the share used and the share due.

    Ends with Ctrl-C.  A pipe and --json get it once.
    """

    def look() -> Any:
        """By what is known now: a development server has fresh tokens after a restart."""
        return connect(admin_url, token, state_dir).get("/v1/admin/queue", {"tenant": tenant})

    seen = look()
    if as_json:
        document(seen)
        return
    if once or not sys.stdout.isatty():
        console().print(lanes_table(seen, None))
        return
    with Live(console=console(), auto_refresh=False, screen=False) as live:
        while True:
            live.update(lanes_table(seen, _now()), refresh=True)
            time.sleep(interval)
            seen = _again(look, live, interval)


def _now() -> datetime:
    return datetime.now().astimezone()


def _again(look: Callable[[], Any], live: Live, interval: float) -> Any:
    """A server that is restarted is waited for; one that says no has said it."""
    while True:
        try:
            return look()
        except Refusal as why:
            status = why.facts.get("status")
            if isinstance(status, int) and status < _SERVER_FAULT:
                raise
            live.update(_lost(why, _now()), refresh=True)
            time.sleep(interval)


def _lost(why: Refusal, at: datetime) -> Group:
    """Instead of lanes that may be there no more."""
    head = Text(f"{at:%H:%M:%S}  no answer, trying again (Ctrl-C ends)", style="bold red")
    return Group(head, Text(clean(why.message)))


_LANES: Sequence[tuple[str, str]] = (
    ("class", "service_class"),
    ("tenant", "tenant"),
    ("running", "running"),
    ("waiting", "waiting"),
    ("used", "share_used"),
    ("due", "share_due"),
    ("oldest wait", "oldest_ms"),
)


def lanes_table(seen: Any, at: datetime | None) -> Group:
    """A lane a line, those with most waiting first.  What is due is due to a tenant in all its classes
    together; one that waits and has had less is yellow.  `at` None: no clock."""
    lanes = rows_of(seen, "lanes")
    columns = [each for each in _LANES if any(each[1] in lane for lane in lanes) or not lanes]
    several = len({str(lane.get("model")) for lane in lanes}) > 1
    if several:
        columns = [("model", "model"), *columns]
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, name in columns:
        named = name in {"service_class", "tenant", "model"}
        drawn.add_column(title, justify="left" if named else "right", overflow="fold")
    used: defaultdict[object, float] = defaultdict(float)
    for lane in lanes:
        used[lane.get("model"), lane.get("tenant")] += _number(lane, "share_used")
    for lane in lanes[:LANES_SHOWN]:
        behind = used[lane.get("model"), lane.get("tenant")] < _number(lane, "share_due")
        drawn.add_row(
            *(Text(_cell(name, lane.get(name))) for _, name in columns),
            style="yellow" if behind and _number(lane, "waiting") else "",
        )
    sums = rows_of(seen, "classes")  # of all lanes, the server names no more than it can
    running = sum(_number(each, "running") for each in sums)
    waiting = sum(_number(each, "waiting") for each in sums)
    unseen = len(lanes[LANES_SHOWN:]) + int(_number(seen, "left_out"))
    head = f"{running:,.0f} running, {waiting:,.0f} waiting"
    if at is not None:
        head = f"{at:%H:%M:%S}  {head}"
    parts: list[Any] = [Text(head, style="bold")]
    if lanes:
        parts.append(drawn)
    if unseen:
        parts.append(Text(f"and {unseen:,} more"))
    silent = seen.get("silent") if isinstance(seen, dict) else None
    if silent:
        parts.append(Text(f"not heard from: {clean(silent)} (loading, or restarting)"))
    return Group(*parts)


def _number(lane: Mapping[str, Any], name: str) -> float:
    value = lane.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _cell(name: str, value: object) -> str:
    if name.startswith("share_") and isinstance(value, int | float):
        return f"{value:.0%}"
    if name == "oldest_ms" and isinstance(value, int):
        return f"{value / 1000:,.1f} s"
    return cell(name, value)


def promises(
    tenant: Whose = None,
    by: Annotated[
        str, typer.Option(help="Group by these: service_class, tenant, hour.")
    ] = "service_class,tenant",
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """What was promised, kept and broken, by class and tenant, since the server started."""
    found = connect(admin_url, token, state_dir).get(
        "/v1/admin/promises", {"tenant": tenant, "by": by}
    )
    if as_json:
        document(found)
        return
    rows = rows_of(found, "rows")
    if not rows:
        say("Nothing was asked for yet.")
        return
    table([{title: row[name] for name, title in _PROMISES.items() if name in row} for row in rows])
    start = found.get("from") if isinstance(found, dict) else None
    say("")
    console().print(Text(f"Since {clean(start)}. {_LEGEND}"))


_PROMISES = {
    "hour": "hour",
    "service_class": "class",
    "tenant": "tenant",
    "ttft_ms": "ttft_ms",
    "itl_ms": "itl_ms",
    "requests": "requests",
    "kept": "kept",
    "broken": "broken",
    "refused": "refused",
    "limited": "limited",
    "left": "left",
    "unjudged": "unjudged",
    "ttft_broken": "late",
    "itl_broken": "slow",
    "unserved": "unserved",
}
_LEGEND = (
    "requests = kept + broken + refused + limited + left + unjudged. Of the broken: late, the first token "
    "came after ttft ms (unserved: never, through our doing); slow, the tokens came slower than itl ms on "
    "average. Refused: too much of its own tenant's waited. Limited: by a rate, a budget or another limit. "
    "Left: the caller, before anything could be judged. Unjudged: nothing was promised, or too little came."
)
