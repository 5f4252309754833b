"""At the door, before anything is done for a request: who is it, as far as that is known, and is there a turn to
wait for?

It knows by a keyed digest which credentials were let in lately and in which rank, asks `gate` whether one more
of these may wait, and answers whoever may not with bytes: parsing, authenticating and answering by the
layers behind would cost a fifth of what the request itself costs, and a house that is offered three
times what it can do would spend half of its time on refusals.
What is known of a credential decides who goes first and nothing else: who is let in is authenticated as ever.
Refuses to know: HTTP's boundaries (`wire_guard`), sockets (`connection`), what a class is for.
Source: SECURITY.md P13 and A12; DESIGN.md settled question 12.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from gateway.errors import ApiError, unavailable
from gateway.gate import STRANGER, Caller, Gate
from gateway.middleware.cors import EXPOSED
from gateway.middleware.live import PROBES, Places
from gateway.middleware.wire import Header
from gateway.worded import refusal, speaks_anthropic
from policies import shedding
from policies.shedding import Rank

LOOK_S = 0.25
KNOWN_MAX = 16_384
KNOWN_S = 60.0
"""After so long a credential's rank is asked for again."""
UNREAD_BYTES_MAX = 256 * 1024
"""A body that may still come behind its answer without costing the connection."""
_NAMES = (b"authorization", b"x-api-key")


def busy() -> ApiError:
    return unavailable("This server is busier than it can bear. Try again shortly.")


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """`stays`: the connection does, and the rest of the body, of which there is little, is read away."""

    answer: bytes
    stays: bool


@dataclass(slots=True)
class Door:
    """One for a process.  `log(event, **fields)` is told when turning away begins and when it is over."""

    mint: Callable[[], str] = lambda: ""
    origins: Collection[str] = ()
    log: Callable[..., None] = lambda *_, **__: None
    places: Places = field(default_factory=Places)
    gate: Gate = field(default_factory=lambda: Gate(lambda: time.monotonic() * 1000))
    draw: Callable[[], float] = random.random
    lag_ms: float = 0.0
    turned: Counter[Rank] = field(default_factory=Counter)
    _told: int = 0
    _shedding: bool = False
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _known: dict[bytes, tuple[Caller, float]] = field(default_factory=dict, repr=False)

    async def keep(self) -> None:
        """Look how late the event loop is, and tell operators when somebody is turned away."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LOOK_S
            await asyncio.sleep(LOOK_S)
            self.look((loop.time() - due_s) * 1000)

    def look(self, lag_ms: float) -> None:
        self.lag_ms = lag_ms
        count = self.turned.total()
        if (shedding_now := count > self._told) is not self._shedding:
            self._shedding = shedding_now
            self.log("shedding" if shedding_now else "shedding.over", count=count)
        self._told = count

    # Knowing

    def met(self, headers: Iterable[Header], tenant: str | None, rank: Callable[[], Rank]) -> None:
        """A credential was accepted.  `rank` is asked where it is not known, once a minute."""
        if (digest := self._digest(_credential(headers))) is None:
            return
        known, now_s = self._known.get(digest), time.monotonic()
        if known is not None and known[1] > now_s:
            return
        self._known.pop(digest, None)
        while len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[digest] = (Caller(rank(), tenant), now_s + KNOWN_S)

    def refused(self, headers: Iterable[Header]) -> None:
        """A credential was not accepted."""
        if (digest := self._digest(_credential(headers))) is not None:
            self._known.pop(digest, None)

    def caller(self, headers: Iterable[Header]) -> Caller:
        return self._caller(_credential(headers))

    def _caller(self, credential: bytes | None) -> Caller:
        digest = self._digest(credential)
        known = None if digest is None else self._known.get(digest)
        return STRANGER if known is None else known[0]

    def _digest(self, credential: bytes | None) -> bytes | None:
        if not credential:
            return None
        return blake2b(credential, key=self._secret, digest_size=32).digest()

    # Turning away

    def __call__(self, data: bytes, *, whole: bool) -> TurnedAway | None:
        """`data` begins with a request's whole head.  `whole`: and holds all of its body."""
        places = self.places
        crowded = shedding.crowded(places.live, places.most)
        if not self.gate.waiting and not crowded:
            return None
        head = data[: data.find(b"\r\n\r\n") + 2]
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        low = head.lower()
        if path in PROBES or (method == b"OPTIONS" and self._origin(head, low)):
            return None  # a browser's question before the request itself: answered for little, and without a turn
        who = self._caller(_first(head, low, *_NAMES))
        if self.gate.open_to(who) and shedding.has_place(who.rank, places.live, places.most):
            return None
        self.turned[who.rank] += 1
        stays = whole or _little(head, low)
        origin = self._origin(head, low)
        return TurnedAway(self._answer(method, path, origin, _anthropic(low), stays=stays), stays)

    def _origin(self, head: bytes, low: bytes) -> str | None:
        if not self.origins or (found := _first(head, low, b"origin")) is None:
            return None
        origin = found.decode("latin-1")
        return origin if origin in self.origins else None

    def _answer(
        self, method: bytes, path: bytes, origin: str | None, anthropic: bool, *, stays: bool
    ) -> bytes:
        request_id = self.mint()
        scope = {"raw_path": path, "headers": [(b"anthropic-version", b"")] * anthropic}
        body = refusal(_SAID, scope, request_id)
        lines = [
            "HTTP/1.1 503 Service Unavailable",
            "content-type: application/json",
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            f"retry-after: {shedding.retry_after_s(self.draw())}",
            f"x-request-id: {request_id}",
            f"content-length: {len(body)}",
        ]
        if origin:
            lines += [
                f"access-control-allow-origin: {origin}",
                f"access-control-expose-headers: {EXPOSED}",
                "vary: Origin",
            ]
        if speaks_anthropic(scope):
            lines.append(f"request-id: {request_id}")
        if not stays:
            lines.append("connection: close")
        said = b"" if method == b"HEAD" else body
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + said


_SAID = busy()


def _first(head: bytes, low: bytes, *names: bytes) -> bytes | None:
    """The value of the first field of a name; `low` is the head in lower case.  None: there is none.  The guard has
    let no head pass in which a name or an end of a line could be something else to whoever reads it next."""
    starts = [(low.find(b"\r\n" + name + b":"), len(name)) for name in names]
    at, length = min((each for each in starts if each[0] >= 0), default=(-1, 0))
    if at < 0:
        return None
    value = at + length + 3
    return head[value : head.find(b"\r", value)].strip(b" \t")


def _anthropic(low: bytes) -> bool:
    return b"\r\nanthropic-version:" in low


def _credential(headers: Iterable[Header]) -> bytes | None:
    return next((value for name, value in headers if name in _NAMES), None)


def _little(head: bytes, low: bytes) -> bool:
    """Whether all that may still come of the body is soon read away.  Who waits for `100 Continue` may send
    it or not, so nothing can come behind."""
    length = _first(head, low, b"content-length")
    return (
        length is not None
        and length.isdigit()
        and len(length) <= 15
        and int(length) <= UNREAD_BYTES_MAX
        and b"\r\nexpect:" not in low
    )
