"""Native attention against attention by the book, in every shape a model or a batch may have."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from .attention_kit import BLOCK, Bench, Case, drawn

pytestmark = pytest.mark.slow  # the whole run's: the fast subset stays below half a minute

Shape = Sequence[tuple[int, int]]  # (start, tokens) a row
NAN = float("nan")


def placed(shape: Shape, seed: int, spare: int) -> tuple[list[list[int]], list[int]]:
    """Blocks for each row, in random order, and those that nobody owns."""
    need = [-(-(start + count) // BLOCK) for start, count in shape]
    free = list(range(sum(need) + spare))
    random.Random(seed).shuffle(free)
    return [[free.pop() for _ in range(count)] for count in need], free


def check(
    kernels: ctypes.CDLL, case: Case, shape: Shape, *, loud: float = 1.0, seed: int = 1
) -> None:
    """Everything before `start` lies in memory; nobody's blocks are full of NaN."""
    blocks, others = placed(shape, seed, spare=3)
    longest = max(start + count for start, count in shape)
    bench = Bench.make(kernels, case, sum(map(len, blocks)) + 3, longest)
    poison = torch.full((case.kv_heads, BLOCK, case.d), NAN, dtype=torch.bfloat16)
    for other in others:
        bench.write([other], poison, poison)
    for at, ((start, _), held) in enumerate(zip(shape, blocks, strict=True)):
        past = drawn(100 + at, 2, case.kv_heads, len(held) * BLOCK, case.d).mul(loud).bfloat16()
        past[:, :, start:] = 0.0
        bench.write(held, past[0], past[1])
    before = bench.bits()
    qkv = drawn(seed, sum(count for _, count in shape), bench.width).mul(loud).bfloat16()
    rows = [(*row, held) for row, held in zip(shape, blocks, strict=True)]
    found = bench.attend(rows, qkv)
    first = 0
    for start, count, held in rows:
        mine = qkv[first : first + count]
        _check_store(bench, start, mine, held)
        expected, slack = bench.expected(start, mine, held)
        wrong = (found[first : first + count].double() - expected).abs() > slack
        nowhere = torch.isnan(found[first : first + count])
        assert not bool((wrong | nowhere).any()), (case, start, count, wrong.nonzero()[:5])
        first += count
    _put_back(bench, rows, before)
    assert torch.equal(bench.bits(), before), "memory of other tokens was written"


def _check_store(bench: Bench, start: int, mine: Tensor, held: Sequence[int]) -> None:
    here = slice(start, start + len(mine))
    keys, values = (each[:, here].float() for each in bench.read(held))
    wanted_keys, wanted_values = (each.float() for each in bench.expected_store(start, mine))
    assert torch.equal(values, wanted_values)
    # as far as one rounding before the turn, and one after it, may carry
    size = wanted_keys.abs() + wanted_keys.roll(bench.case.d // 2, -1).abs()
    assert bool(((keys - wanted_keys).abs() <= size * 2.0**-7).all())


def _put_back(bench: Bench, rows: Sequence[tuple[int, int, list[int]]], before: Tensor) -> None:
    """Undo what the step had to write."""
    after = Bench(bench.case, bench.ops, bench.layer)
    memory = torch.from_numpy(after.ops.memory[0].view("int16"))
    written = memory.clone()
    memory.copy_(before)
    old = [after.read(held) for *_, held in rows]
    memory.copy_(written)
    for (start, count, held), (keys, values) in zip(rows, old, strict=True):
        now = after.read(held)
        now[0][:, start : start + count] = keys[:, start : start + count]
        now[1][:, start : start + count] = values[:, start : start + count]
        after.write(held, *now)


MIXED = ((0, 1), (5, 1), (130, 1), (511, 1), (515, 1), (1100, 1), (0, 40), (33, 70), (500, 30))


@pytest.mark.parametrize(
    "case",
    (
        Case(),
        Case(heads=6, kv_heads=2, d=64, window=33),
        Case(heads=9, kv_heads=3, d=96, norms=True, rope=False),
        Case(heads=8, kv_heads=1, d=32, window=200, norms=True, factor=0.8, scale=0.3),
    ),
    ids=str,
)
def test_a_step_of_decodes_and_chunks(kernels: ctypes.CDLL, case: Case) -> None:
    check(kernels, case, MIXED)


@pytest.mark.slow
@pytest.mark.parametrize("d", range(32, 257, 32))
def test_every_head_size_and_group(kernels: ctypes.CDLL, d: int) -> None:
    shape = ((0, 1), (127, 1), (600, 1), (0, 9), (120, 20), (505, 17))
    for at, group in enumerate((1, 2, 3, 4, 5, 8, 16, 48)):
        case = Case(heads=2 * group, d=d, rope=at % 2 == 0, norms=at % 3 == 0)
        check(kernels, case, shape, seed=group)


@pytest.mark.slow
@pytest.mark.parametrize("window", (1, 5, 31, 32, 33, 128, 200, 511, 512, 513, 600, None))
def test_every_window_over_every_border(kernels: ctypes.CDLL, window: int | None) -> None:
    ends = (1, 2, 31, 32, 33, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025, 1500)
    case = Case(heads=6, kv_heads=2, d=32, window=window)
    check(kernels, case, [(end - 1, 1) for end in ends])
    for chunk in (2, 17, 65):
        check(kernels, case, [(end - chunk, chunk) for end in ends if end >= chunk], seed=chunk)


@pytest.mark.slow
def test_very_long_sequences(kernels: ctypes.CDLL) -> None:
    for window in (None, 600):
        case = Case(heads=4, kv_heads=1, d=32, window=window)
        check(kernels, case, ((20_000, 1), (33_333, 1), (9_990, 50)))


@pytest.mark.parametrize("loud", (3.0, 60.0))
def test_scores_of_ten_thousand(kernels: ctypes.CDLL, loud: float) -> None:
    """60² · √32 and some: soft-max is then a choice of one, or of a few."""
    case = Case(heads=6, kv_heads=2, rope=False)
    check(kernels, replace(case, scale=None if loud > 3 else 30.0), MIXED, loud=loud)


def _fed(
    kernels: ctypes.CDLL, case: Case, qkv: Sequence[Tensor], cut: random.Random | None
) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """Sequences from their first token on: whole and one after another, or (`cut`) in random chunks,
    together, their blocks at random.  Results, and the memory of each."""
    blocks, _ = placed([(0, len(each)) for each in qkv], cut.randrange(99) if cut else 0, spare=0)
    bench = Bench.make(kernels, case, sum(map(len, blocks)))
    done = [0] * len(qkv)
    found: list[list[Tensor]] = [[] for _ in qkv]
    while left := [at for at, each in enumerate(qkv) if done[at] < len(each)]:
        if cut is None:
            counts = {left[0]: len(qkv[left[0]])}
        else:
            picked = cut.sample(left, cut.randint(1, len(left)))
            counts = {
                at: min(len(qkv[at]) - done[at], cut.choice((1, 1, 2, 9, 60, 300))) for at in picked
            }
        order = sorted(counts, key=lambda at: counts[at] > 1)
        rows = [(done[at], counts[at], blocks[at]) for at in order]
        step = torch.cat([qkv[at][done[at] : done[at] + counts[at]] for at in order])
        for at, part in zip(
            order, torch.split(bench.attend(rows, step), [counts[at] for at in order]), strict=True
        ):
            found[at].append(part)
            done[at] += counts[at]
    return [torch.cat(each) for each in found], [bench.read(held) for held in blocks]


@pytest.mark.parametrize(
    "case",
    (Case(heads=6, kv_heads=2, d=64), Case(heads=4, kv_heads=1, window=200, norms=True)),
    ids=str,
)
def test_a_token_has_the_same_bits_in_any_company_and_chunking(
    kernels: ctypes.CDLL, case: Case
) -> None:
    width = (case.heads + 2 * case.kv_heads) * case.d
    qkv = [drawn(at, count, width).bfloat16() for at, count in enumerate((700, 1, 530, 64, 1100))]
    alone, memory = _fed(kernels, case, qkv, None)
    for seed in range(2):
        company, theirs = _fed(kernels, case, qkv, random.Random(seed))
        for one, other in zip(alone, company, strict=True):
            assert torch.equal(one, other)
        for (keys, values), (their_keys, their_values) in zip(memory, theirs, strict=True):
            assert torch.equal(keys, their_keys)
            assert torch.equal(values, their_values)


@pytest.mark.parametrize("where", ("query", "key", "value", "past"))
def test_one_row_s_nan_stays_its_own(kernels: ctypes.CDLL, where: str) -> None:
    """Property P14: a fault of one request is never its neighbours'."""
    case = Case(heads=6, kv_heads=2)
    shape = ((40, 1), (600, 1), (0, 3), (70, 20))
    blocks, _ = placed(shape, 1, spare=0)
    qkv = drawn(1, 25, (6 + 4) * 32).bfloat16()

    def run(bad: int | None) -> list[Tensor]:
        bench = Bench.make(kernels, case, sum(map(len, blocks)))
        for at, ((start, _), held) in enumerate(zip(shape, blocks, strict=True)):
            past = drawn(50 + at, 2, 2, len(held) * BLOCK, 32).bfloat16()
            past[:, :, start:] = 0.0
            if bad == at and where == "past":
                past[:, :, :start] = NAN
            bench.write(held, past[0], past[1])
        mine = qkv.clone()
        rows = list(torch.split(mine, [count for _, count in shape]))
        if bad is not None:
            first = {"query": 0, "key": 6, "value": 8, "past": 10}[where] * 32
            rows[bad][:, first : first + 64] = NAN
        asked = [(*row, held) for row, held in zip(shape, blocks, strict=True)]
        return list(torch.split(bench.attend(asked, mine), [count for _, count in shape]))

    clean = run(None)
    for bad in range(len(shape)):
        found = run(bad)
        for at in range(len(shape)):
            if at == bad and (where != "past" or shape[at][0]):
                assert bool(torch.isnan(found[at]).any()), "a fault must show"
            else:
                assert torch.equal(found[at], clean[at])


@pytest.mark.parametrize("start", (512, 520, 700, 1030))
def test_nan_before_a_border_is_not_forgotten(kernels: ctypes.CDLL, start: int) -> None:
    """All keys of the first span, or of a stretch of it, are NaN: what sees them is NaN, as with
    torch, not the mixture of the rest."""
    for bad in (slice(0, 512), slice(0, 128), slice(256, 384)):
        for count in (1, 5):
            case = Case()
            held = list(range(-(-(start + count) // BLOCK)))
            bench = Bench.make(kernels, case, len(held))
            past = drawn(5, 2, 2, len(held) * BLOCK, 32).bfloat16()
            past[:, :, start:] = 0.0
            past[0, :, bad] = NAN
            bench.write(held, past[0], past[1])
            qkv = drawn(6, count, bench.width).bfloat16()
            found = bench.attend([(start, count, held)], qkv)
            assert bool(torch.isnan(found).all()), (bad, count)
