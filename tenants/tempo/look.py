"""What a Redis is like, for whoever sets one up.  Only looks: writes nothing.

Refuses to know: how findings are worded.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.outage import Trouble
from tenants.tempo.link import Deadlines, Failed, Link

PATIENT = Deadlines(call_ms=1_000, connect_ms=1_000, attempts=1)


@dataclass(frozen=True, slots=True)
class Seen:
    """None: it did not say."""

    trouble: Trouble | None
    policy: str | None = None
    """Its `maxmemory-policy`."""
    limited: bool | None = None
    """Whether it has a `maxmemory` at all."""


async def look(url: str) -> Seen:
    """Never raises for what the server does."""
    link = Link(url, deadlines=PATIENT)
    try:
        said = await link.ask("INFO")
    except Failed as why:
        return Seen(why.trouble)
    finally:
        await link.aclose()
    lines = said.splitlines() if isinstance(said, str) else []
    facts = dict(line.partition(":")[::2] for line in lines)
    trouble = None
    if not facts:
        trouble = Trouble.WRONG
    elif facts.get("loading") == "1":
        trouble = Trouble.LOADING
    elif facts.get("role") in {"slave", "replica"}:
        trouble = Trouble.READ_ONLY
    most = facts.get("maxmemory")
    return Seen(trouble, facts.get("maxmemory_policy"), None if most is None else most != "0")
