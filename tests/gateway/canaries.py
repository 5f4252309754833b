"""Canaries: strings that stand nowhere but where a customer put them, and every way in which one may lie about.

One kind of thing that a customer says has one canary.  It holds a quote, a slash and an accent, so that an
escaped copy is another string than the plain one; its first sixteen characters are its own, so that a part that
was cut is found too.
"""

from __future__ import annotations

import json
from base64 import b32encode, b64encode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import quote

HEAD_CHARS = 16


def canary(kind: str, *, plain: bool = False) -> str:
    """`plain`: letters and digits alone, for where nothing else may stand."""
    digest = sha256(b"canary " + kind.encode()).hexdigest()
    return digest[:24] if plain else f'{digest[:HEAD_CHARS]} "é/{digest[16:24]}'


def variants(text: str) -> frozenset[bytes]:
    """Of the whole, and of its beginning.  A base64 text depends on where in its group a byte falls, so there
    are three, without the ends that depend on what stands around."""
    found: set[bytes] = set()
    for each in (text, text[:HEAD_CHARS]):
        raw = each.encode()
        found |= {
            raw,
            raw.hex().encode(),
            raw.hex().upper().encode(),
            quote(each).encode(),
            quote(each, safe="").encode(),
            json.dumps(each)[1:-1].encode(),
            json.dumps(each, ensure_ascii=False)[1:-1].encode(),
            repr(each)[1:-1].encode(),
            each.encode("utf-16-le"),
            b32encode(raw).rstrip(b"="),
            bytes(reversed(raw)),
        }
        for at in range(3):
            for encode in (b64encode, urlsafe_b64encode):
                found.add(encode(bytes(at) + raw)[(4 * at + 2) // 3 :].rstrip(b"=")[:-2])
    assert all(len(each) >= 12 for each in found)
    return frozenset(found)


@dataclass
class Sweep:
    """What may be found nowhere, by kind; and where one was found."""

    known: dict[str, frozenset[bytes]] = field(default_factory=dict)
    found: set[tuple[str, str]] = field(default_factory=set)

    def said(self, kind: str, text: str | None = None, *, plain: bool = False) -> str:
        """A canary of this kind, or `text` as one, to be put where a customer would."""
        text = canary(kind, plain=plain) if text is None else text
        self.known[kind] = variants(text)
        return text

    def look(self, where: str, data: bytes, *, allowed: Iterable[str] = ()) -> None:
        """`allowed`: kinds that may be here, and why is said where it is called."""
        passed = frozenset(allowed)
        for kind, forms in self.known.items():
            if kind not in passed and any(form in data for form in forms):
                self.found.add((kind, where))

    def by_kind(self) -> Mapping[str, list[str]]:
        kinds = {kind for kind, _ in self.found}
        return {kind: sorted(w for k, w in self.found if k == kind) for kind in sorted(kinds)}
