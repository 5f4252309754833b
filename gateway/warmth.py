"""Which registered texts are computed and pinned in which model's executor, and why the others are not.

What is so is a matter of registrations, quotas and executors alone, never of who asks (P4).  Written by
`warming`; read for labels (where a text is not there, the user's own label serves better: behind pinned blocks
that are missing nothing is found), for its owner, and for metrics.
Refuses to know: executors, texts, how anything is computed.  Source: SECURITY.md §2 (Timing); DESIGN.md, settled 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from policies.scope import labels
from policies.scope.labels import Document, Label
from policies.scope.prefix import Kept
from tenants.documents import Kind, Record


class Fate(StrEnum):
    WARM = "warm"
    NO_ROOM = "no_room"  # in its tenant's part
    UNFIT = "unfit"  # nothing of it can be shared: it is too long, or the chat template changes it
    WAITING = "waiting"  # not asked for yet, or refused for a reason that passes


class Version(NamedTuple):
    """What a pin depends on: versions of text, of readers and of the tenant's secret, and how often what is kept
    of the tenant was purged."""

    text: int
    readers: int
    secret: int
    purges: int


@dataclass(frozen=True, slots=True)
class Held:
    """The last that an executor said of one text.  `tag`: what it knows the text's label by.  `again`: that may be
    otherwise by now."""

    tenant: str
    version: Version
    label: Label
    tag: bytes = field(repr=False)
    fate: Fate
    tokens: int
    again: bool = False


def label_of(record: Record) -> Label:
    """Of a document, and of the newest version of a template, up to its first variable."""
    assert record.tenant is not None
    if record.kind is Kind.TEMPLATE:
        return labels.tenant(record.tenant, record.id, record.content_version)
    document = Document(record.id, record.acl_version, record.content_version)
    return labels.documents(record.tenant, {document})


def to_ask(held: Mapping[str, Held], wanted: Mapping[str, Version]) -> tuple[str, ...]:
    """Which of a tenant's texts an executor is to be asked for, in their order."""
    return tuple(
        id_
        for id_, version in wanted.items()
        if id_ not in held or held[id_].version != version or held[id_].again
    )


def superseded(held: Mapping[str, Held], wanted: Mapping[str, Version]) -> tuple[str, ...]:
    """Which are gone, or are there under a version that nobody reads any more."""
    return tuple(
        id_
        for id_, each in held.items()
        if id_ not in wanted or wanted[id_]._replace(purges=each.version.purges) != each.version
    )


@dataclass(slots=True)
class Warmth:
    """By model and tenant, then by id."""

    _held: dict[tuple[str, str], dict[str, Held]] = field(default_factory=dict, repr=False)
    _labels: dict[str, Counter[Label]] = field(default_factory=dict, repr=False)

    def begin(self, model: str) -> None:
        """Another executor, which has kept nothing."""
        self._held = {key: held for key, held in self._held.items() if key[0] != model}
        self._labels[model] = Counter()

    def of(self, model: str, tenant: str) -> Mapping[str, Held]:
        return dict(self._held.get((model, tenant), {}))

    def tenants(self, model: str) -> frozenset[str]:
        return frozenset(tenant for name, tenant in self._held if name == model)

    def note(self, model: str, id_: str, held: Held) -> None:
        self.drop(model, held.tenant, id_)
        self._held.setdefault((model, held.tenant), {})[id_] = held
        if held.fate is Fate.WARM:
            self._labels[model][held.label] += 1

    def drop(self, model: str, tenant: str, id_: str) -> None:
        held = self._held.get((model, tenant), {})
        gone = held.pop(id_, None)
        if gone is not None and gone.fate is Fate.WARM:
            self._labels[model][gone.label] -= 1
            if not self._labels[model][gone.label]:
                del self._labels[model][gone.label]
        if not held:
            self._held.pop((model, tenant), None)

    def doubt(self, model: str, tenant: str, fate: Fate | None = None) -> None:
        """What is held of it with this fate (None: with any) is to be asked for again."""
        held = self._held.get((model, tenant), {})
        for id_, each in held.items():
            if fate in {None, each.fate}:
                held[id_] = replace(each, again=True)

    def kept(self, model: str) -> Kept:
        """For `policies.scope.prefix.steps`: the labels under which registered text is there."""
        there = self._labels.get(model, Counter())
        return lambda label: there[label] > 0

    def is_warm(self, record: Record, models: Iterable[str]) -> bool:
        """As it stands now, in every one of `models` that it was counted for."""
        fits = record.tokens[record.content_version].keys() & set(models)
        return bool(fits) and all(
            (held := self._held.get((model, record.tenant or ""), {}).get(record.id)) is not None
            and held.fate is Fate.WARM
            and held.version[:2] == (record.content_version, record.acl_version)
            for model in fits
        )

    def counts(self) -> Iterator[tuple[str, str, Fate, int]]:
        """Model, tenant, fate, how many."""
        for (model, tenant), held in sorted(self._held.items()):
            for fate, count in sorted(Counter(each.fate for each in held.values()).items()):
                yield model, tenant, fate, count
