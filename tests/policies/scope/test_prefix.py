"""Which beginning of a prompt may be shared: from who supplied it, and from nothing else."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.scope.blocks import Step
from policies.scope.labels import BOTTOM, Document, Label, documents, join, public, tenant, user
from policies.scope.prefix import Supplied, Supplier, registered_steps, shared_until, steps

ME = user("acme", "idp", "alice", b"n")
TEMPLATE, OTHERS = tenant("acme", "tmpl_a", 1), tenant("acme", "tmpl_a", 2)
PUBLIC = public("tmpl_p", 3)
ONE, TWO = (documents("acme", [Document(f"doc_{n}", 1, 1)]) for n in "12")
BOTH = documents("acme", [Document("doc_1", 1, 1), Document("doc_2", 1, 1)])


def scaffold(tokens: int) -> Supplied:
    return Supplied(tokens, Supplier.SCAFFOLD)


def said(tokens: int) -> Supplied:
    return Supplied(tokens, Supplier.CLIENT)


def registered(tokens: int, label: Label) -> Supplied:
    return Supplied(tokens, Supplier.REGISTERED, label)


def test_a_template_then_a_document_then_the_user() -> None:
    pieces = (scaffold(3), registered(10, TEMPLATE), registered(20, ONE), scaffold(4), said(5))
    lower = join(TEMPLATE, ONE)
    assert steps(pieces, ME) == (
        Step(TEMPLATE, 13),  # the scaffold before it takes its label
        Step(lower, 33),
        Step(join(lower, ME), 42),  # the scaffold behind it the user's
    )
    assert registered_steps(pieces) == (Step(TEMPLATE, 13), Step(lower, 33))


def test_a_prompt_of_the_clients_own_is_the_users_from_its_first_token() -> None:
    """Else what nobody registered would stand between the user and what they left."""
    assert steps((scaffold(40), said(5), scaffold(3)), ME) == (Step(ME, 48),)
    assert steps((scaffold(40),), ME) == (Step(ME, 40),)
    assert registered_steps((scaffold(40), said(5))) == ()


def test_everything_after_the_first_that_may_not_be_shared_is_the_users() -> None:
    doc = registered(20, ONE)
    for between in (
        said(1),
        registered(7, TWO),  # a second document
        registered(7, BOTH),  # two at once
        registered(7, TEMPLATE),  # a template behind a document
        registered(7, ME),  # a variable's value
        Supplied(7, Supplier.MIXED, TWO),
    ):
        found = steps((doc, between, registered(9, TEMPLATE), said(1)), ME)
        assert found[0] == Step(ONE, 20)
        assert all(step.label.subject == "alice" for step in found[1:]), between
        assert found[-1].until == 30 + between.tokens
    second = steps((doc, registered(7, TWO), said(1)), ME)
    assert second[-1].label.documents == BOTH.documents  # its version still counts
    assert shared_until((registered(5, TEMPLATE), registered(5, OTHERS), said(1))) == 1
    assert shared_until((registered(5, BOTH),)) == 0


def test_mixed_text_is_the_users_and_names_all_that_is_in_it() -> None:
    (only,) = steps((Supplied(50, Supplier.MIXED, join(TEMPLATE, ONE)),), ME)
    assert only == Step(join(join(TEMPLATE, ONE), ME), 50)


def test_what_is_generated_behind_registered_text_is_the_users_too() -> None:
    assert steps((registered(8, PUBLIC),), ME) == (Step(PUBLIC, 8), Step(join(PUBLIC, ME), 8))


PIECES = st.lists(
    st.builds(
        lambda tokens, kind, label: Supplied(
            tokens, kind, label if kind in {Supplier.REGISTERED, Supplier.MIXED} else None
        ),
        st.integers(0, 9),
        st.sampled_from(Supplier),
        st.sampled_from([TEMPLATE, PUBLIC, ONE, TWO, ME]),
    ),
    max_size=8,
)


@settings(derandomize=True, database=None, deadline=None, max_examples=150)
@given(PIECES)
def test_whatever_comes_labels_rise_and_no_client_token_is_shared(pieces: list[Supplied]) -> None:
    found = steps(pieces, ME)
    assert found[-1].until == sum(piece.tokens for piece in pieces)
    assert found[-1].label.subject == "alice"
    assert all(a.until <= b.until for a, b in pairwise(found))
    assert all(step.label != BOTTOM for step in found)
    lower = [step for step in found if step.label.subject is None]
    shared, at = lower[-1].until if lower else 0, 0
    for piece in pieces:  # no token of a client's lies below the user's step
        if piece.supplier in {Supplier.CLIENT, Supplier.MIXED} and piece.tokens:
            assert at >= shared
        at += piece.tokens
    assert tuple(lower) == registered_steps(pieces)
    assert all(len(step.label.documents) <= 1 for step in lower)
