"""What `[listen]` says about itself: where, by which names, and for whose pages.  Pure; knows no file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.settings.faults import Fault, not_yet
from gateway.settings.shape import Listen
from gateway.settings.units import Address

_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?", re.ASCII)
_ORIGIN = re.compile(
    r"(https?)://(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::([1-9][0-9]{0,4}))?", re.ASCII
)


def listen(listen: Listen, path: str) -> Iterator[Fault]:
    if listen.workers != 1:
        yield not_yet(
            f"{path}.workers",
            f"{listen.workers} gateway processes",
            "1",
            "Several workers come later.",
        )
    if _clash(listen.public, listen.admin):
        yield Fault(
            f"{path}.admin",
            f"is the public listener's port, {listen.admin.port}",
            "another port: administration is never on the public listener",
            f'Set admin = "{Address(listen.admin.host, listen.admin.port % 65535 + 1)}".',
        )
    for index, host in enumerate(listen.hosts):
        if _HOST.fullmatch(host) is None:
            yield Fault(
                f"{path}.hosts[{index}]",
                f"is {host[:80]!r}",
                "a host name without scheme, path or wildcard, such as llm.example.com",
                "Name each host that clients use.",
            )
    for index, origin in enumerate(listen.cors_origins):
        if not is_origin(origin):
            yield Fault(
                f"{path}.cors_origins[{index}]",
                f"is {origin[:80]!r}",
                "an origin as browsers send it: scheme, host and port only, in lower case, without :443 "
                "or :80, such as https://app.example.com; never *",
                "Name each origin whose pages may call.",
            )


def is_origin(text: str) -> bool:
    """As a browser writes it: another spelling would match nobody."""
    found = _ORIGIN.fullmatch(text)
    return found is not None and (found[1], found[2]) not in {("https", "443"), ("http", "80")}


def _clash(one: Address, other: Address) -> bool:
    return one.port == other.port and (
        one.host == other.host or {one.host, other.host} & {"0.0.0.0", "::"} != set()  # noqa: S104 — compared, not bound
    )
