"""The plan of a step: what invariance rests on is a matter of shapes, checked here without a model."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from executor.batch import Batch, Row
from executor.cpu.kv import BLOCK_TOKENS, block_places, make_kv, token_places
from executor.cpu.linear import TILE_ROWS, Tiled, make_linear
from executor.cpu.plan import TILE_QUERIES, Plan, Shape, key_length, make_plan, padded


def shape(*, invariant: bool) -> Shape:
    return Shape(2, 3, torch.float32, (torch.ones(8),), (None,), invariant)


def places_of(plan: Plan, start: int) -> dict[int, tuple[int, int, int]]:
    """Position → (queries of its product, its place among them, keys of its product)."""
    found = {}
    for group in plan.groups[None]:
        assert isinstance(group.put, slice)
        assert group.valid is not None
        for token, place in zip(
            range(group.put.start, group.put.stop),
            range(group.valid.start, group.valid.stop),
            strict=True,
        ):
            found[start + token] = (group.queries, place, group.mask.shape[2])
    return found


@pytest.mark.parametrize("seed", range(5))
def test_an_invariant_token_is_computed_in_the_same_shape_however_it_is_chunked(seed: int) -> None:
    chance, blocks = random.Random(seed), list(range(30))
    whole = places_of(make_plan(Batch([Row([1] * 700, 0, blocks, True)]), shape(invariant=True)), 0)
    assert all(place == at % TILE_QUERIES for at, (_, place, _) in whole.items())
    start = 0
    while start < 700:
        count = min(700 - start, chance.choice((1, 3, 8, 61, 200)))
        row = Row([1] * count, start, blocks, wants_logits=True)
        plan = make_plan(Batch([row]), shape(invariant=True))
        assert len(plan.token_ids) % TILE_ROWS == 0
        found = places_of(plan, start)
        assert found == {at: whole[at] for at in range(start, start + count)}
        start += count


@dataclass
class Spy:
    rows: list[int] = field(default_factory=list)

    def __call__(self, x: Tensor) -> Tensor:
        self.rows.append(len(x))
        return x


def test_tiled_products_always_see_the_same_number_of_rows() -> None:
    spy, x = Spy(), torch.arange(96.0).unsqueeze(1)
    assert torch.equal(Tiled(spy)(x), x)
    assert spy.rows == [TILE_ROWS] * 3
    assert isinstance(make_linear(x, pack=False, invariant=True), Tiled)
    assert not isinstance(make_linear(x, pack=False, invariant=False), Tiled)


def test_every_token_of_a_fast_plan_is_computed_once() -> None:
    chance = random.Random(3)
    ends = [chance.randrange(1, 4000) for _ in range(30)]
    rows = [Row([1], end - 1, list(range(130)), True) for end in ends]
    rows += [Row([1] * 300, 17, list(range(10)), True), Row([1] * 5, 0, [1], False)]
    plan = make_plan(Batch(rows), shape(invariant=False))
    seen = torch.zeros(plan.tokens, dtype=torch.int64)
    for group in plan.groups[None]:
        seen[group.put] += 1
    assert bool((seen == 1).all())
    assert len(plan.sampled) == 31
    assert 2 < len(plan.groups[None]) < 20  # buckets, neither one for all nor one each


@pytest.mark.parametrize("invariant", (True, False))
def test_shapes_are_few_and_large_enough(invariant: bool) -> None:
    assert all(padded(count, invariant=invariant) >= count for count in range(1, 2000))
    assert len({padded(count, invariant=invariant) for count in range(1, 1025)}) < 60
    assert all(key_length(end) >= end for end in range(1, 9000))
    assert all(key_length(end) % BLOCK_TOKENS == 0 for end in range(1, 9000))


def test_what_is_written_to_a_block_is_gathered_from_it() -> None:
    kv = make_kv(layers=1, kv_heads=2, head_dim=4, blocks=6, dtype=torch.float32)
    fresh = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
    kv.write(0, token_places(torch.tensor([5, 5, 2]), torch.tensor([30, 31, 0]), 4), fresh)
    keys, values = kv.gather(0, block_places(torch.tensor([5, 2]), 4), rows=1)
    assert torch.equal(keys[:, 30:33], fresh[:, :2].transpose(0, 1))
    assert torch.equal(values[:, 30:33], fresh[:, 2:].transpose(0, 1))
    assert int((keys != 0).sum()) == 24
    kv.zero([5])
    assert int((kv.by_token[0] != 0).sum()) == 16
