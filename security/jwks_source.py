"""An issuer's current keys: read from a file or fetched from a URL, kept, and never trusted too long.

Refuses to know what a token is: it is asked for a key by name and algorithm.  Where it reads from
is configuration; nothing that a caller sends chooses an address (J6).

Theory of operation.  One set is held, with the time it was last confirmed.
- Older than `refresh_s`, it is read again: a URL in the background (the old set serves meanwhile),
  a file before answering (it is small).
- Asked for a name it lacks, it is read again before answering, at most once in `retry_s`, so that
  tokens with invented names cause no flood.
- All who wait share one attempt.  A failed attempt leaves the last good set in place.
- Not confirmed within `max_stale_s`, it answers nobody: `AuthUnavailable`.

Source: SECURITY.md §4 (J18), §5 (LMDeploy, PyJWT); RFC 7517.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx2

from security.failures import AuthUnavailable, Unavailable
from security.jwks import SET_BYTES_MAX, BadKeySet, KeySet, VerifyKey, load

FETCH_DEADLINE_S = 3.0


class CannotRead(Exception):
    """A key set could not be read; the message says what to mend, in the operator's words."""


class Reader(Protocol):
    """Where a set comes from."""

    @property
    def background(self) -> bool:
        """Whether a set past `refresh_s` may serve while it is read again."""

    async def read(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class FileReader:
    """The whole file each time: it is small, and its content is a surer sign of change than its
    time stamp, which a replacement within one tick leaves alone."""

    path: Path
    background: bool = False

    async def read(self) -> bytes:
        return await asyncio.to_thread(self._read)

    def _read(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                return file.read(SET_BYTES_MAX + 1)
        except OSError as error:
            raise CannotRead(f"{self.path}: {error.strerror}") from error


@dataclass(slots=True)
class UrlReader:
    """One GET: no redirect, no proxy or credentials from the environment, no compression, a deadline
    over the whole exchange and a bound on its bytes.  `tls` is made once: building it takes longer
    than the fetch."""

    url: str
    deadline_s: float = FETCH_DEADLINE_S
    background: bool = True
    tls: ssl.SSLContext = field(init=False, repr=False)

    def __post_init__(self) -> None:
        fault = url_fault(self.url)
        if fault is not None:
            raise ValueError(f"jwks {self.url!r} {fault}")
        if urlsplit(self.url).scheme == "https":
            self.tls = httpx2.create_ssl_context(trust_env=False)
        else:  # never used; made without certificates, for the client would load them itself
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    async def read(self) -> bytes:
        try:
            async with asyncio.timeout(self.deadline_s):
                return await self._get()
        except (httpx2.HTTPError, httpx2.StreamError, TimeoutError, OSError) as error:
            raise CannotRead(f"{self.url}: {type(error).__name__}") from error

    async def _get(self) -> bytes:
        headers = {
            "accept": "application/jwk-set+json, application/json",
            "accept-encoding": "identity",
        }
        async with (
            httpx2.AsyncClient(
                verify=self.tls,
                trust_env=False,
                follow_redirects=False,
                timeout=self.deadline_s,
            ) as client,
            client.stream("GET", self.url, headers=headers) as response,
        ):
            if response.status_code != 200:
                raise CannotRead(f"{self.url}: status {response.status_code}, expected 200")
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                raise CannotRead(f"{self.url}: a compressed answer, expected a plain one")
            data = bytearray()
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > SET_BYTES_MAX:
                    raise CannotRead(f"{self.url}: more than {SET_BYTES_MAX} bytes")
            return bytes(data)


def url_fault(url: str) -> str | None:
    """Why `url` may not serve keys, or None."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    if not host or parts.username is not None or parts.fragment:
        return "must name a host, without credentials and without a fragment"
    if parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host)):
        return None
    return "must be https (plain http only on loopback)"


def _is_loopback(host: str) -> bool:
    if host == "localhost":  # RFC 6761 §6.3
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class JwksSource:
    """See the theory above.  `clock` is monotonic seconds."""

    def __init__(
        self,
        reader: Reader,
        *,
        clock: Callable[[], float],
        max_stale_s: float = 3600,
        refresh_s: float | None = None,
        retry_s: float | None = None,
        on_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._max_stale_s = max_stale_s
        usual_s = (300, 10) if reader.background else (1, 1)  # a file is cheap to look at
        self._refresh_s = min(usual_s[0] if refresh_s is None else refresh_s, max_stale_s)
        self._retry_s = min(usual_s[1] if retry_s is None else retry_s, max_stale_s)
        self._on_failure = on_failure
        self._data = b""
        self._set: KeySet | None = None
        self._confirmed_at_s = 0.0
        self._attempted_at_s: float | None = None
        self._failed = False
        self._attempt: asyncio.Task[None] | None = None

    async def key(self, kid: str | None, alg: str) -> VerifyKey | None:
        """The key, or None where a current set does not have it.  Raises AuthUnavailable where we
        cannot know: no set, a stale one, or a name that the last failed attempt might have brought."""
        if self._age_s() >= self._refresh_s:
            serves = self._reader.background and self._age_s() < self._max_stale_s
            await self._refresh(wait=not serves)
        found = self._current().find(kid, alg)
        if found is None:
            await self._refresh(wait=True)
            found = self._current().find(kid, alg)
            if found is None and self._failed:
                raise AuthUnavailable(Unavailable.KEY_SET)
        return found

    async def warm(self) -> bool:
        """Read the set before the first caller needs it.  False where that failed."""
        await self._refresh(wait=True)
        return self._set is not None and not self._failed

    async def aclose(self) -> None:
        """Give up an attempt under way."""
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait([self._attempt])
            self._attempt = None

    def _age_s(self) -> float:
        return float("inf") if self._set is None else self._clock() - self._confirmed_at_s

    def _current(self) -> KeySet:
        if self._set is None or self._age_s() >= self._max_stale_s:
            raise AuthUnavailable(Unavailable.KEY_SET)
        return self._set

    async def _refresh(self, *, wait: bool) -> None:
        """Start an attempt unless one runs or the last is too recent; join it where told to."""
        if self._attempt is None:
            last, now = self._attempted_at_s, self._clock()
            pause_s = self._retry_s if self._set is not None else min(1.0, self._retry_s)
            if last is not None and now - last < pause_s:
                return
            self._attempted_at_s = now
            self._attempt = asyncio.create_task(self._read())
            self._attempt.add_done_callback(self._finished)
        if wait:
            await asyncio.wait([self._attempt])  # unlike awaiting it: our cancellation is not its

    def _finished(self, attempt: asyncio.Task[None]) -> None:
        self._attempt = None
        if not attempt.cancelled() and (error := attempt.exception()) is not None:
            self._on_failure(f"reading keys failed: {type(error).__name__}")  # our own mistake

    async def _read(self) -> None:
        started_at_s = self._clock()
        self._failed = True  # until proved otherwise, whatever is raised
        try:
            data = await self._reader.read()
            if self._set is None or data != self._data:
                self._set, self._data = load(data), data
        except (CannotRead, BadKeySet) as error:
            self._on_failure(str(error))
        else:
            self._failed = False
            self._confirmed_at_s = started_at_s


def open_source(
    where: str,
    *,
    max_stale_s: float,
    clock: Callable[[], float],
    on_failure: Callable[[str], None] = lambda _: None,
) -> JwksSource:
    """The source that a configuration names: a URL, or the path of a file.  ValueError for a URL
    that may not serve keys."""
    reader = UrlReader(where) if "://" in where else FileReader(Path(where))
    return JwksSource(reader, clock=clock, max_stale_s=max_stale_s, on_failure=on_failure)
