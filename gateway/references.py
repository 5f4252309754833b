"""What a request names by id, made into the texts that it begins with: decided first, read afterwards.

One decision over everything that is named; what is absent, lapsed, another tenant's and not for this
reader is one refusal, reached by the same steps, before anything is read.  Nothing of a text is kept.
Refuses to know: HTTP, chat templates, tokens.  Source: DESIGN.md, settled 3 and 4; SECURITY.md P6, P8, C3, C8, C20.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gateway.errors import ApiError, from_deny, invalid, unavailable
from gateway.house import House
from gateway.provenance import GAP, Part, PartKind, Resolved
from gateway.registered import Registered
from gateway.registered_records import event_of, write
from policies.facts import Principal
from policies.registered import Outline, variables_fault, widest_first
from policies.registered import outline as outline_of
from policies.scope import labels
from policies.scope.labels import Document, Label, join, join_all
from policies.verdict import Deny, Reason
from security.audit import RegisteredEvent
from tenants.documents import Kind, Record
from tenants.store import StoreUnavailable

DOCUMENTS_MAX = 32
_READ = {
    Kind.DOCUMENT: RegisteredEvent.DOCUMENT_READ,
    Kind.TEMPLATE: RegisteredEvent.TEMPLATE_READ,
}


@dataclass(frozen=True, slots=True)
class TemplateReference:
    """`version` None: the newest."""

    id: str
    version: int | None = None
    variables: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class References:
    """`documents`: each once."""

    documents: tuple[str, ...] = ()
    template: TemplateReference | None = None

    def __bool__(self) -> bool:
        return bool(self.documents) or self.template is not None


async def resolve(registered: Registered, who: Principal, asked: References) -> Resolved | None:
    """None where nothing is named.  Raises ApiError 400, 403, 404, 503."""
    if not asked:
        return None
    tenant = who.tenant
    if not tenant:
        raise from_deny(Deny(Reason.NO_TENANT))
    mine = labels.user(tenant, who.issuer, who.user)
    named = {id_: registered.documents.find(id_) for id_ in asked.documents}
    label = join_all(
        (
            mine,
            *(_document_label(tenant, id_, record) for id_, record in named.items()),
        )
    )
    template = None
    if asked.template is not None:
        template = registered.documents.find(asked.template.id)
        label = join(label, _template_label(tenant, asked.template, template))
    decision = registered.permission.to_read(who, label)
    if isinstance(decision, Deny):
        raise from_deny(decision)
    # Whatever is None by now was refused by the decision, since nothing absent is in a snapshot.
    acls = {id_: registered.documents.acl(record) for id_, record in named.items() if record}
    order = [record for id_ in widest_first(acls) if (record := named[id_])]
    wanted = [(record, record.content_version) for record in order]
    if asked.template is not None and template is not None:
        wanted.append((template, asked.template.version or template.content_version))
    texts = await _texts(registered, wanted)
    first: list[Part] = []
    rest: list[Part] = []
    if asked.template is not None and template is not None:
        scaffold = _template_label(tenant, asked.template, template)
        outline = outline_of(texts.pop())
        values = _values(asked.template, outline)
        first = [Part(PartKind.TEMPLATE, template.id, scaffold, outline.head)]
        rest = [
            Part(PartKind.TEMPLATE, template.id, scaffold, piece.text)
            if piece.variable is None
            else Part(PartKind.VARIABLE, template.id, mine, values[piece.variable])
            for piece in outline.rest
        ]
    read = [
        Part(PartKind.DOCUMENT, record.id, _document_label(tenant, record.id, record), text)
        for record, text in zip(order, texts, strict=True)
    ]
    read[1:] = [replace(each, label=join(each.label, mine)) for each in read[1:]]  # settled 3
    parts = _set_apart(first, read, rest)
    if not registered.permission.to_go_on(who, decision.value.label):  # while they were read
        raise from_deny(Deny(Reason.DOCUMENT_NOT_FOUND))
    expiries = [acl.expires_ns for acl in acls.values() if acl.expires_ns is not None]
    return Resolved(parts, decision.value, min(expiries, default=None))


async def resolved_for(
    house: House, who: Principal, request_id: str, asked: References
) -> Resolved | None:
    """`resolve`, and a record of each text that is read.  Raises ApiError."""
    found = await resolve(house.registered, who, asked)
    if found is not None:
        named = [*asked.documents, *([] if asked.template is None else [asked.template.id])]
        records = [each for id_ in named if (each := house.registered.documents.find(id_))]
        events = [event_of(house, _READ[each.kind], each, who, request_id) for each in records]
        await write(house, events)
    return found


def _document_label(tenant: str, id_: str, record: Record | None) -> Label:
    """As it stands now, whoever's it is; what is absent as a version that nothing has."""
    versions = -1, -1
    if record is not None and record.kind is Kind.DOCUMENT:
        versions = record.acl_version, record.content_version
    return labels.documents(tenant, {Document(id_, *versions)})


def _template_label(tenant: str, asked: TemplateReference, record: Record | None) -> Label:
    """A foreign one is looked for among one's own, where no id of it is."""
    newest = record.content_version if record is not None else 1
    version = asked.version or newest
    if record is not None and record.kind is Kind.TEMPLATE and record.tenant is None:
        return labels.public(asked.id, version)
    return labels.tenant(tenant, asked.id, version)


async def _texts(registered: Registered, wanted: list[tuple[Record, int]]) -> list[str]:
    try:
        return await registered.texts(wanted)
    except KeyError:
        raise from_deny(Deny(Reason.DOCUMENT_NOT_FOUND)) from None
    except StoreUnavailable as down:
        raise unavailable(
            "The registered texts could not be read. Try again.", code="documents_down"
        ) from down


def _values(asked: TemplateReference, outline: Outline) -> dict[str, str]:
    fault = variables_fault(outline.places, asked.variables)
    if fault is not None:
        raise _at_fault(fault)
    return {name: str(asked.variables[name]) for name in outline.variables}


def _at_fault(fault: str) -> ApiError:
    return invalid(f"prompt.variables: {fault}.", param="prompt.variables")


def _set_apart(first: list[Part], documents: list[Part], rest: list[Part]) -> tuple[Part, ...]:
    """In order, without what is empty; a gap before each document, and after the last."""
    found = [part for part in first if part.text]
    for part in documents:
        found.append(replace(part, text=GAP + part.text) if found else part)
    for part in rest:
        if part.text:
            after = bool(found) and found[-1].kind is PartKind.DOCUMENT
            found.append(replace(part, text=GAP + part.text) if after else part)
    return tuple(found)
