"""The values a configuration file writes as text, read exactly: addresses, money, sizes.

Each type refuses what it cannot represent with a `ValueError` that says what was expected; none
rounds.  Knows no field and no file.  Source: MONEY.md §1 (integer nano-USD).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

from security.dev_issuer import is_dev_issuer
from tenants.pseudonyms import PSEUDONYM

OUR_ISSUERS = "lockgate:"  # what keys are issued by
NANO_PER_USD = 1_000_000_000
USD_MAX = 4_600_000_000  # in nano-USD, the most that a book can count to (policies.price)
_USD = re.compile(r"([0-9]{1,30})(?:\.([0-9]{1,9}))?", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,6}) ?(MiB|GiB|TiB)", re.ASCII)
_SIZE_BYTES = {"MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_HOSTNAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?:\.(?!-)[A-Za-z0-9-]{1,63})*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen.  `host` is bare: an IPv6 address carries no brackets here."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            valid = ":" in host and _is_ip(host)
        else:
            valid = ":" not in host and (_is_ip(host) or _HOSTNAME.fullmatch(host) is not None)
        number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
        if not colon or not valid or not 0 < number < 65536:
            raise ValueError(
                'Expected "host:port" with a port in 1 to 65535, such as 127.0.0.1:8080'
            )
        return cls(host, number)

    @property
    def loopback(self) -> bool:
        return self.host == "localhost" or (_is_ip(self.host) and ip_address(self.host).is_loopback)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def url(self) -> str:
        return f"http://{self}"


@dataclass(frozen=True, slots=True)
class Usd:
    """An amount of money, exact."""

    nano: int

    @classmethod
    def parse(cls, text: str) -> Usd:
        match = _USD.fullmatch(text)
        if match is None:
            raise ValueError(
                'Expected US dollars as digits with at most nine decimals, such as "500.00"'
            )
        whole, fraction = int(match[1]), (match[2] or "").ljust(9, "0")
        if whole > USD_MAX:
            raise ValueError(f"Expected at most {USD_MAX:,} US dollars")
        return cls(whole * NANO_PER_USD + int(fraction))

    def __str__(self) -> str:
        return usd_text(self.nano)


def usd_text(nano: int) -> str:
    """Nano-USD as people read it: at least cents, and no digit lost."""
    sign, nano = ("-", -nano) if nano < 0 else ("", nano)
    fraction = f"{nano % NANO_PER_USD:09d}".rstrip("0").ljust(2, "0")
    return f"{sign}{nano // NANO_PER_USD}.{fraction}"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; None where the executor is to choose (`auto`)."""

    size_bytes: int | None = None

    @classmethod
    def parse(cls, text: str) -> Memory:
        if text == "auto":
            return cls()
        match = _SIZE.fullmatch(text)
        if match is None or int(match[1]) == 0:
            raise ValueError('Expected "auto" or a size in MiB, GiB or TiB, such as "4 GiB"')
        return cls(int(match[1]) * _SIZE_BYTES[match[2]])


class Zone(str):
    """An IANA time zone that this machine knows."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Zone:
        try:
            if text != "UTC":  # known even where no tzdata is installed
                ZoneInfo(text)
        except (ValueError, OSError, LookupError):
            raise ValueError(
                'Expected "UTC" or an IANA zone that this machine knows (tzdata), '
                'such as "Europe/Berlin"'
            ) from None
        return cls(text)


class IssuerName(str):
    """An identity provider's `iss`, exactly.  Lockgate's own names are never a provider's."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> IssuerName:
        if text.startswith(OUR_ISSUERS) or is_dev_issuer(text):
            raise ValueError(
                "Expected your identity provider's issuer, as in the `iss` of its tokens; this one "
                "is Lockgate's own and its tokens are for development only"
            )
        if text == PSEUDONYM:
            raise ValueError(
                "Expected your identity provider's issuer; by this name people are kept who are not to be named "
                "any more, and whoever signs in by it could be taken for one of them"
            )
        if len(text) > 1024:
            raise ValueError("Expected at most 1,024 characters")
        return cls(text)


class KeySource(str):
    """Where an issuer's public keys are: an https URL or a file."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> KeySource:
        parts = urlsplit(text)
        secure = parts.scheme == "https" or (
            parts.scheme == "http" and parts.hostname in {"127.0.0.1", "localhost", "::1"}
        )
        if "://" in text and not (secure and parts.hostname):
            raise ValueError(
                "Expected an https:// URL (http:// only to this machine) or the path of a file: "
                "keys fetched in the clear could be anybody's"
            )
        return cls(text)

    @property
    def remote(self) -> bool:
        return "://" in self


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """Where tempo is kept; empty: in this process.  What it shows of itself has no password."""

    text: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> RedisUrl:
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise ValueError(f"Expected {_REDIS_URLS}") from None
        unix = parts.scheme == "unix"
        if parts.scheme not in {"redis", "rediss", "unix"} or parts.fragment:
            raise ValueError(f"Expected {_REDIS_URLS}")
        if unix and (parts.hostname or not parts.path.startswith("/") or parts.path == "/"):
            raise ValueError("Expected a socket's absolute path: unix:///run/valkey/valkey.sock")
        if not unix and (not parts.hostname or port == 0):
            raise ValueError(f"Expected a host: {_REDIS_URLS}")
        if not unix and not re.fullmatch(r"/?[0-9]{0,5}", parts.path):
            raise ValueError("Expected a database's number behind the host, or nothing")
        allowed = {"db"} if unix else set(_REDIS_TLS) if parts.scheme == "rediss" else set()
        given = parse_qs(parts.query, keep_blank_values=True, max_num_fields=16)
        if set(given) - allowed:
            expected = "one of " + ", ".join(sorted(allowed)) if allowed else "nothing"
            raise ValueError(f"Expected {expected} behind the question mark")
        if "db" in given and not re.fullmatch(r"[0-9]{1,5}", given["db"][0]):
            raise ValueError("Expected a database's number as db")
        return cls(text)

    @property
    def clear(self) -> bool:
        """Whether it goes over a network that others may read."""
        parts = urlsplit(self.text)
        host = parts.hostname or ""
        local = host == "localhost" or (_is_ip(host) and ip_address(host).is_loopback)
        return parts.scheme == "redis" and not local

    def __bool__(self) -> bool:
        return bool(self.text)

    def __str__(self) -> str:
        parts = urlsplit(self.text)
        at = parts.netloc.rpartition("@")[2]
        named = f"{parts.username}@" if parts.username else ""
        return f"{parts.scheme}://{named}{at}{parts.path}" if self.text else ""


_REDIS_URLS = (
    "redis://HOST:PORT, rediss://HOST:PORT (TLS) or unix:///PATH, such as redis://127.0.0.1:6379"
)
_REDIS_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return "%" not in text  # no zone ids: they name an interface of one machine
