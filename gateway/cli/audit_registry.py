"""What the audits register for themselves, and take away again: documents and templates of random letters.

A colleague of the attacker owns the documents and lets the attacker read them, so that the right can be
withdrawn; a tenant's administrator owns the templates.  A server that knows no such thing (404) leaves
`lacks`, and what needs it is not measured.  Source: API of /v1/documents and /v1/templates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from gateway.cli import client
from gateway.cli.audit_asking import WAIT_S_MAX, WAITS_MAX, too_busy
from gateway.cli.show import Refusal, clean, note
from security.isolation_audit import Need
from security.timing_audit_plan import letters

LETTERS: Final = 256
"""Some blocks of any size that is in use."""
_PATHS: Final = {Need.DOCUMENTS: "/v1/documents", Need.TEMPLATES: "/v1/templates"}


@dataclass(slots=True)
class Registry:
    """Use as a context manager: what was registered is deleted at the end.  `admin` None: no such token."""

    owner: client.Server
    admin: client.Server | None
    attacker: client.Server
    lacks: dict[Need, str] = field(default_factory=dict)
    sleep: Callable[[float], None] = time.sleep
    _made: list[tuple[client.Server, str]] = field(default_factory=list)
    _acl: Mapping[str, Any] = field(default_factory=dict)
    _documents: list[str] = field(default_factory=list)
    _templates: list[str] = field(default_factory=list)
    text: str = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server, path in self._made:
            try:
                server.delete(path)
            except Refusal as refusal:
                note(f"note: {path} could not be deleted: {clean(refusal.message)}")

    def prepare(self, seed: int, wanted: frozenset[Need], *, each: int) -> None:
        """`each` of every kind that is wanted, all of one text; what the server refuses goes to `lacks`."""
        self.text = letters(f"{seed}/registered", LETTERS)
        if Need.DOCUMENTS in wanted:
            self._try(Need.DOCUMENTS, self.owner, each)
        if Need.TEMPLATES in wanted and self.admin is None:
            self.lacks[Need.TEMPLATES] = "no token of the tenant's administrator (--admin)"
        elif Need.TEMPLATES in wanted:
            assert self.admin is not None
            self._try(Need.TEMPLATES, self.admin, each)

    def renew(self, document: int) -> None:
        """Take the attacker's right to it, and give it again: both are answered when they hold."""
        path = f"{_PATHS[Need.DOCUMENTS]}/{client.segment(self._documents[document])}/acl"
        self._patiently(lambda: self.owner.put(path, {"users": []}))
        self._patiently(lambda: self.owner.put(path, self._acl))

    def _patiently(self, ask: Callable[[], Any]) -> Any:
        """Registering counts as a request, of which an audit makes more than a plan allows at once."""
        for _ in range(WAITS_MAX):
            try:
                return ask()
            except Refusal as refusal:
                wait_s = refusal.facts.get("retry_after_s")
                if refusal.facts.get("status") != 429 or wait_s is None:
                    raise
                self.sleep(min(max(wait_s, 1), WAIT_S_MAX))
        raise too_busy()

    def fields(self, text: str, document: int | None, template: int | None) -> dict[str, Any]:
        """Of a request that says `text` after these."""
        found: dict[str, Any] = {}
        if document is not None:
            named = {"type": "file", "file": {"file_id": self._documents[document]}}
            parts = [named, {"type": "text", "text": text}]
            found["messages"] = [{"role": "user", "content": parts}]
        if template is not None:
            found["prompt"] = {"id": self._templates[template]}
        return found

    def _try(self, need: Need, server: client.Server, each: int) -> None:
        body: dict[str, Any] = {"text": self.text}
        ids = self._documents if need is Need.DOCUMENTS else self._templates
        try:
            self._patiently(lambda: server.get(_PATHS[need]))
            if need is Need.DOCUMENTS:
                self._acl = {"users": [{"subject": self.attacker.get("/v1/me")["user"]}]}
                body["acl"] = self._acl
            for _ in range(each):
                made = self._patiently(lambda: server.post(_PATHS[need], body))
                ids.append(str(made["id"]))
                self._made.append((server, f"{_PATHS[need]}/{client.segment(ids[-1])}"))
        except Refusal as refusal:
            status = refusal.facts.get("status")
            self.lacks[need] = (
                f"this server has no registered {need.value}"
                if status == 404
                else clean(refusal.message)
            )
