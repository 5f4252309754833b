"""What may be said of labels on the wire, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from executor.caching import fault
from executor.contract import (
    Caching,
    Cause,
    Scope,
    Submit,
)
from tests.executor.fakes import COMPUTES, FakeRunner, job
from tests.executor.labelled import (
    CONTEXT,
    PROMPT,
    SIZE,
    house_of,
    labelled,
    of_doc,
    purge,
    revoke,
    scope,
    tag,
    warm,
)

# The wire


def test_no_representation_shows_a_key() -> None:
    asked = labelled(1, PROMPT)
    assert asked.caching is not None
    shown = (
        repr(asked) + repr(asked.caching.scopes[0]) + repr(revoke("doc")) + repr(purge(None, "doc"))
    )
    for name in ("a/user", "doc"):
        assert repr(tag(name)) not in shown
    assert repr(asked.caching.scopes[0].key) not in shown
    assert "key" not in repr(asked.caching)


def _with(asked: Submit, **fields: object) -> Submit:
    assert asked.caching is not None
    return msgspec.structs.replace(asked, caching=msgspec.structs.replace(asked.caching, **fields))


@pytest.mark.parametrize(
    "asked",
    (
        _with(labelled(1, PROMPT), owner="b"),
        _with(labelled(1, PROMPT), context=b"short"),
        _with(labelled(1, PROMPT), scopes=()),
        _with(labelled(1, PROMPT), idle_ms=0),
        _with(labelled(1, PROMPT), absolute_ms=2**63),
        _with(labelled(1, PROMPT), absolute_ms=None),
        _with(warm(1), absolute_ms=0),
        labelled(1, PROMPT, scope("x", 17)),
        labelled(1, PROMPT, scope("x", 12), scope("y", 8), scope("z", 18)),
        labelled(1, PROMPT, scope("x", 8), scope("x", 18)),
        labelled(1, PROMPT, scope("x", -1), scope("y", 18)),
        labelled(1, PROMPT, scope("x", 8), scope("y", 18, pinned=True)),
        labelled(1, PROMPT, scope("x", 18, pinned=True, disclosed=False)),
        labelled(1, PROMPT, *(scope(str(n), 18) for n in range(65))),
        labelled(1, PROMPT, Scope(until=18, label=b"x", key=bytes(32))),
        labelled(1, PROMPT, Scope(until=18, label=bytes(32), key=bytes(31))),
        labelled(1, PROMPT, Scope(until=18, label=bytes(32), key=bytes(32), covers=(b"c",))),
        labelled(1, PROMPT, warm=True),
        job(1, PROMPT, warm=True),
    ),
)
def test_what_cannot_be_is_refused(asked: Submit) -> None:
    house = house_of()
    house.submit(asked)
    house.step()
    last = house.ended(1)
    assert (last.cause, last.detail) == (Cause.REFUSED, fault(asked))
    house.assert_empty()


def test_a_caching_that_is_right_is_no_fault() -> None:
    assert fault(of_doc(1)) is fault(warm(1)) is fault(job(1)) is None
    assert fault(labelled(1, PROMPT, scope("x", 0), scope("y", 18))) is None
    assert isinstance(labelled(1, PROMPT).caching, Caching)
    assert COMPUTES.asked_digest != CONTEXT
    assert FakeRunner().block_tokens == SIZE
