"""POST to a URL that configuration names, and to nowhere else: no redirect, no proxy, no private address.

The name is resolved once a request, every address it has is judged, and the connection goes to one that
was judged: so a name that answers otherwise the second time (rebinding) gains nothing.  An address that
holds an IPv4 address is judged by that.  TLS is checked for the name, not for the address.
Source: SECURITY.md (SSRF); OWASP SSRF Prevention Cheat Sheet; RFC 6890, RFC 6052, RFC 3056.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx2

DEADLINE_S = 15.0
"""Over the whole exchange."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class Undelivered(Exception):
    """It did not arrive; says why in a word, and nothing of the URL."""


async def resolved(host: str, port: int) -> Sequence[str]:
    """Every address that the system's resolver gives."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def url_fault(url: str, *, loopback: bool = False) -> str | None:
    """Why nothing may be sent there, or None."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    if not host or parts.username is not None or parts.fragment:
        return "must name a host, without credentials and without a fragment"
    if parts.scheme == "https" or (loopback and parts.scheme == "http"):
        return None
    return "must be https"


@dataclass(slots=True)
class Outbound:
    """`private`: addresses of one's own network are wanted.  `loopback`: this machine, and plain http to
    it; for development and tests."""

    url: str
    private: bool = False
    loopback: bool = False
    resolve: Resolve = resolved
    deadline_s: float = DEADLINE_S
    tls: ssl.SSLContext = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if (fault := url_fault(self.url, loopback=self.loopback)) is not None:
            raise ValueError(f"the URL {fault}")
        self.tls = httpx2.create_ssl_context(trust_env=False)

    async def post(self, body: bytes, headers: Mapping[str, str]) -> int:
        """The status of the answer, whose body nobody reads.  Raises Undelivered."""
        try:
            async with asyncio.timeout(self.deadline_s):
                return await self._post(body, headers)
        except (httpx2.HTTPError, httpx2.StreamError, TimeoutError, OSError) as why:
            raise Undelivered(type(why).__name__) from why

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> int:
        parts = urlsplit(self.url)
        host = parts.hostname
        assert host
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        pinned = await self._address(host, port, secure=secure)
        shown = f"[{pinned}]" if ":" in pinned else pinned
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        async with (
            httpx2.AsyncClient(
                verify=self.tls,
                trust_env=False,
                follow_redirects=False,
                timeout=self.deadline_s,
            ) as client,
            client.stream(
                "POST",
                f"{parts.scheme}://{shown}:{port}{path}",
                content=body,
                headers={**headers, "host": parts.netloc},
                extensions={"sni_hostname": host},
            ) as response,
        ):
            return response.status_code

    async def _address(self, host: str, port: int, *, secure: bool) -> str:
        addresses = [
            ipaddress.ip_address(each.split("%")[0]) for each in await self.resolve(host, port)
        ]
        if not addresses:
            raise Undelivered("no_address")
        for address in addresses:
            if not self._may(address) or not (secure or address.is_loopback):
                raise Undelivered("address_refused")
        return str(addresses[0])

    def _may(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        if isinstance(address, ipaddress.IPv6Address) and (inner := _embedded(address)):
            return self._may(inner)
        if address.is_loopback:
            return self.loopback
        if address.is_multicast or address.is_unspecified or address.is_link_local:
            return False  # link-local: where clouds keep their credentials
        return address.is_global or (
            self.private and address.is_private and not address.is_reserved
        )


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)
