"""May this principal read these registered texts, by the newest that is known: the live decision.

The one road from a label to a `Decision`, for admission and for what runs.  Refuses to know: texts,
executors.  Source: SECURITY.md §2 (Authorization at read time), P6, P15.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from policies.facts import Principal, Standing
from policies.scope.decision import Decision, decide, newest, renewed
from policies.scope.labels import Label
from policies.verdict import Allow, Deny
from tenants.documents import Documents

STALE_NS_MAX: Final = 30_000_000_000
"""So long may nobody have confirmed that the database still says what memory does."""


@dataclass(frozen=True, slots=True)
class Permission:
    documents: Documents
    standing: Callable[[Principal], Standing | Deny]
    monotonic_ns: Callable[[], int]
    stale_ns_max: int = STALE_NS_MAX

    def to_read(self, who: Principal, label: Label) -> Allow[Decision] | Deny:
        standing = self.standing(who)
        if isinstance(standing, Deny):
            return standing
        return decide(
            who,
            standing,
            label,
            self.documents.snapshot(),
            now_ns=self.monotonic_ns(),
            stale_ns_max=self.stale_ns_max,
        )

    def to_read_now(self, who: Principal, label: Label) -> Allow[Decision] | Deny:
        """The same names, whatever stands there by now."""
        return self.to_read(who, newest(label, self.documents.snapshot()))

    def to_go_on(self, who: Principal, label: Label) -> bool:
        """Of a request that runs: the same texts, by the lists of now."""
        return isinstance(self.to_read(who, renewed(label, self.documents.snapshot())), Allow)
