"""The lattice: `join` is the least upper bound, and what cannot stand together is refused."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any

import pytest

from policies.scope import labels
from policies.scope.labels import (
    BOTTOM,
    NAMED_MAX,
    Document,
    Incomparable,
    Label,
    Level,
    Template,
    below,
    join,
    join_all,
)

LEASE, FEES = Document("doc_lease", 3, 1), Document("doc_fees", 1, 1)
CHAT, SUPPORT = labels.public("chat", 1), labels.tenant("acme", "support", 7)
ALICE = labels.user("acme", "idp", "alice")
ALL = (
    BOTTOM,
    CHAT,
    labels.public("chat", 2),
    SUPPORT,
    labels.tenant("acme", "support", 8),
    labels.tenant("globex", "support", 7),
    labels.documents("acme", {LEASE}),
    labels.documents("acme", {FEES, LEASE}),
    labels.documents("acme", {replace(LEASE, acl_version=4)}),
    labels.documents("globex", {LEASE}),
    ALICE,
    labels.user("acme", "idp", "bob"),
    labels.user("acme", "other", "alice"),
    labels.user("acme", "idp", "alice", b"n"),
    labels.user("acme", "idp", "alice", b"m"),
    labels.session(ALICE, b"s"),
    labels.session(ALICE, b"t"),
    join(ALICE, labels.documents("acme", {LEASE})),
)


def tried(a: Label | None, b: Label | None) -> Label | None:
    """None: incomparable, which stays so whatever is added."""
    if a is None or b is None:
        return None
    try:
        return join(a, b)
    except Incomparable:
        return None


def test_join_is_idempotent_and_commutative() -> None:
    for a, b in itertools.product(ALL, repeat=2):
        assert join(a, a) == a
        assert tried(a, b) == tried(b, a)


def test_join_is_associative_also_in_what_it_refuses() -> None:
    for a, b, c in itertools.product(ALL, repeat=3):
        assert tried(tried(a, b), c) == tried(a, tried(b, c))


def test_join_is_the_least_label_above_both_and_monotone() -> None:
    for a, b in itertools.product(ALL, repeat=2):
        both = tried(a, b)
        assert (both == b) == below(a, b)
        for c in ALL:
            if both is not None:
                assert below(a, both)
                assert below(b, both)
                assert not (below(a, c) and below(b, c)) or below(both, c)
            else:
                assert not (below(a, c) and below(b, c))
            if below(a, b) and (with_b := tried(b, c)) is not None:
                assert below(join(a, c), with_b)


def test_below_is_an_order_and_levels_follow_it() -> None:
    for a, b, c in itertools.product(ALL, repeat=3):
        assert not (below(a, b) and below(b, a)) or a == b
        assert not (below(a, b) and below(b, c)) or below(a, c)
        assert not below(a, b) or a.level <= b.level


def test_the_levels_in_order() -> None:
    rising = (CHAT, SUPPORT, labels.documents("acme", {LEASE}), ALICE, labels.session(ALICE, b"s"))
    assert [each.level for each in rising] == list(Level)
    steps = [join_all(rising[:count]) for count in range(1, 6)]
    assert [each.level for each in steps] == list(Level)
    assert steps[-1].documents == {LEASE}
    assert steps[-1].templates == {Template(None, "chat", 1), Template("acme", "support", 7)}


@pytest.mark.parametrize(
    ("a", "b", "what"),
    (
        (SUPPORT, labels.tenant("globex", "support", 7), "tenants"),
        (ALICE, labels.user("acme", "idp", "bob"), "people"),
        (ALICE, labels.user("acme", "other", "alice"), "issuers"),
        (replace(ALICE, narrowing=b"n"), replace(ALICE, narrowing=b"m"), "narrowings"),
        (replace(ALICE, session=b"n"), replace(ALICE, session=b"m"), "sessions"),
        (
            labels.documents("acme", {LEASE}),
            labels.documents("acme", {replace(LEASE, acl_version=4)}),
            "contradicts",
        ),
    ),
)
def test_what_cannot_stand_in_one_request_is_refused(a: Label, b: Label, what: str) -> None:
    with pytest.raises(Incomparable, match=what):
        join(a, b)


@pytest.mark.parametrize(
    "named",
    (
        {"documents": frozenset({LEASE})},
        {"issuer": "i", "subject": "s"},
        {"issuer": "", "subject": ""},
        {"tenant": "acme", "issuer": "i"},
        {"tenant": "acme", "subject": "s"},
        {"tenant": "acme", "narrowing": b"n"},
        {"tenant": "acme", "session": b"s"},
        {"tenant": ""},
        {"templates": frozenset({Template("acme", "t", 1)})},
        {"tenant": "globex", "templates": frozenset({Template("acme", "t", 1)})},
        {"templates": frozenset(Template(None, "t", i) for i in range(NAMED_MAX + 1))},
        {
            "tenant": "a",
            "documents": frozenset(Document(f"{i}", 1, 1) for i in range(NAMED_MAX + 1)),
        },
    ),
)
def test_a_label_cannot_contradict_itself(named: dict[str, Any]) -> None:
    with pytest.raises(Incomparable):
        Label(**named)


def test_a_label_of_documents_has_one() -> None:
    with pytest.raises(Incomparable):
        labels.documents("acme", ())


def test_every_field_is_in_the_encoding() -> None:
    whole = Label(
        tenant="acme",
        templates=frozenset({Template(None, "t", 1)}),
        documents=frozenset({LEASE}),
        issuer="i",
        subject="s",
        narrowing=b"n",
        session=b"s",
    )
    other: dict[str, Any] = {
        "tenant": "globex",
        "templates": frozenset(),
        "documents": frozenset(),
        "issuer": "j",
        "subject": "t",
        "narrowing": None,
        "session": None,
    }
    assert set(other) == {each.name for each in fields(Label)}
    changed = [replace(whole, **{name: value}) for name, value in other.items()]
    changed += [
        replace(whole, documents=frozenset({each}))
        for each in (Document("d", 3, 1), Document("doc_lease", 4, 1), Document("doc_lease", 3, 2))
    ]
    changed += [
        replace(whole, templates=frozenset({each}))
        for each in (Template("acme", "t", 1), Template(None, "u", 1), Template(None, "t", 2))
    ]
    encoded = {each.encoded() for each in (whole, *changed)}
    assert len(encoded) == len(changed) + 1


def test_labels_of_the_universe_differ_in_their_bytes() -> None:
    assert len({each.encoded() for each in ALL}) == len(set(ALL)) == len(ALL)
