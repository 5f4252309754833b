"""What `[listen]` says about itself: where, by which names, and for whose pages.  Pure; knows no file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.settings.faults import Fault, not_yet
from gateway.settings.shape import File, Listen
from gateway.settings.units import Address
from security.tokens import Binding

_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?", re.ASCII)
_BASE = re.compile(
    r"(https?)://(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::([1-9][0-9]{0,4}))?"
    r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*",
    re.ASCII,
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
    for index, url in enumerate(listen.urls):
        if not is_base(url):
            yield Fault(
                f"{path}.urls[{index}]",
                f"is {url[:80]!r}",
                "scheme, host and, where there is one, the path before ours, in lower case, without :443 or "
                ":80 and a last slash, such as https://llm.example.com",
                "Name each by which clients reach us.",
            )


def proven(file: File) -> Iterator[Fault]:
    for index, issuer in enumerate(file.issuers):
        if issuer.dpop is Binding.REQUIRED and not file.listen.urls:
            yield Fault(
                f"issuers[{index}].dpop",
                "requires proofs, and nothing says for which URL they are to be",
                "[listen] urls, as clients see them",
                'Set urls = ["https://llm.example.com"] in [listen].',
            )
        if issuer.dpop is Binding.OFF and issuer.dpop_nonce:
            yield Fault(
                f"issuers[{index}].dpop_nonce",
                "is set where no proof is taken",
                'dpop = "allowed" or "required", or no nonce',
                "Remove it.",
            )


def is_origin(text: str) -> bool:
    """As a browser writes it: another spelling would match nobody."""
    return is_base(text) and text.count("/") == 2


def is_base(text: str) -> bool:
    """An origin, and maybe a plain path behind it."""
    found = _BASE.fullmatch(text)
    return found is not None and (found[1], found[2]) not in {("https", "443"), ("http", "80")}


def _clash(one: Address, other: Address) -> bool:
    return one.port == other.port and (
        one.host == other.host or {one.host, other.host} & {"0.0.0.0", "::"} != set()  # noqa: S104 — compared, not bound
    )
