"""The label of a block is the join of everything up to its last token."""

from __future__ import annotations

import random

from policies.scope import labels
from policies.scope.blocks import Segment, Step, block_labels, rising
from policies.scope.labels import Document, Label, join_all

CHAT = labels.public("chat", 1)
SUPPORT = labels.tenant("acme", "support", 7)
LEASE = labels.documents("acme", {Document("doc_lease", 3, 1)})
ALICE = labels.user("acme", "idp", "alice")


def test_c7_a_boundary_inside_a_block_takes_the_stricter_label() -> None:
    prompt = (Segment(CHAT, 4), Segment(SUPPORT, 3), Segment(LEASE, 6), Segment(ALICE, 6))
    tenant = join_all((CHAT, SUPPORT))
    user = join_all((tenant, LEASE, ALICE))
    document = join_all((tenant, LEASE))
    assert block_labels(prompt, 4) == (CHAT, document, document, user)
    assert block_labels(prompt, 7) == (tenant, user)
    assert block_labels(prompt, 19) == (user,)
    assert block_labels(prompt, 20) == ()


def test_public_text_after_a_users_is_the_users() -> None:
    assert block_labels((Segment(ALICE, 4), Segment(CHAT, 8)), 4) == (
        ALICE,
        *[join_all((ALICE, CHAT))] * 2,
    )


def test_a_segment_of_no_tokens_counts_for_what_comes_after() -> None:
    found = block_labels((Segment(CHAT, 4), Segment(LEASE, 0), Segment(CHAT, 4)), 4)
    assert found == (CHAT, join_all((CHAT, LEASE)))


def test_nothing_has_no_label() -> None:
    assert rising(()) == ()
    assert block_labels((), 4) == block_labels((Segment(CHAT, 3),), 4) == ()


def test_what_is_equal_is_one_step_and_labels_rise_in_tokens() -> None:
    prompt = (Segment(CHAT, 9), Segment(CHAT, 9), Segment(ALICE, 1), Segment(CHAT, 1))
    assert rising(prompt) == (Step(CHAT, 18), Step(join_all((CHAT, ALICE)), 20))


def test_an_empty_segment_at_the_end_is_the_label_of_what_is_generated() -> None:
    assert rising((Segment(CHAT, 4), Segment(ALICE, 0)))[-1] == Step(join_all((CHAT, ALICE)), 4)


def test_against_a_label_for_each_token() -> None:
    rng = random.Random(7)
    for _ in range(300):
        size = rng.randint(1, 6)
        prompt = [
            Segment(rng.choice((CHAT, SUPPORT, LEASE, ALICE)), rng.randint(0, 9))
            for _ in range(rng.randint(0, 6))
        ]
        tokens: list[Label] = []
        seen: list[Label] = []
        for segment in prompt:
            seen.append(segment.label)
            tokens += [join_all(seen)] * segment.tokens
        expected = tuple(tokens[last] for last in range(size - 1, len(tokens), size))
        assert block_labels(prompt, size) == expected
