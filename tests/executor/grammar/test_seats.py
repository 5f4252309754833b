from __future__ import annotations

import torch

from executor.grammar.seats import Seats
from executor.sequence import Sequence
from tests.executor.grammar.fakes import FakeGrammars, constrained

KEY = (0, 1)


def aside() -> tuple[Seats, Sequence, torch.Tensor, set[int]]:
    """A sequence whose mask is late, put aside with its row; `late` is emptied to bring the mask."""
    grammars, late = FakeGrammars(), {1}
    grammars.late = lambda _key, place: place in late
    seats = Seats(grammars)
    seq = Sequence(KEY, constrained(1, (3,), (5, 6), (7,)), 0, 0)
    assert seats.file(seq)
    assert list(seats.news()) == [seq]
    seats.told(seq, 3)
    logits = torch.arange(32, dtype=torch.float32)[None]
    assert seats.sift([seq], logits)[0] == []
    assert list(seats.late()) == []
    return seats, seq, logits, late


def test_a_row_set_aside_is_a_copy() -> None:
    seats, seq, logits, late = aside()
    logits.copy_(logits.flip(1))  # the model's again
    late.clear()
    ((found, choice),) = seats.late()
    assert found is seq
    assert choice.token == 6
    assert not seats.waited_for


def test_a_row_from_before_a_preemption_is_not_sampled() -> None:
    seats, seq, _, late = aside()
    seq.rewind(0)
    late.clear()
    assert list(seats.late()) == []
    assert not seats.waited_for


def test_a_late_mask_costs_its_neighbour_nothing() -> None:
    seats, seq, logits, late = aside()
    plain = Sequence((0, 2), constrained(2, (3,)), 1, 0)
    assert seats.file(plain)
    list(seats.news())
    asking, asks, rows = seats.sift([seq, plain], torch.cat([logits, logits + 1]))
    assert asking == [plain]
    assert asks[0].allowed is not None
    assert rows.tolist() == (logits + 1).tolist()
    assert seats.forget(seq) is False
    assert late == {1}
    assert not seats.waited_for
