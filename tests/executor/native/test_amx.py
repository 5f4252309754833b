"""The matrix tiles' products, run through tiles in plain C++ where the processor has none."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from executor.cpu.native import build
from executor.cpu.native.linear import NEVER, Space, SwitchingLinear, choose
from executor.cpu.native.signatures import declare

HERE, SOURCES = Path(__file__).parent, Path(build.__file__).parent


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None or not build._able():
        pytest.skip("no g++, or no AVX-512 with bf16")
    made = tmp_path_factory.mktemp("amx") / "kernels.so"
    subprocess.run(
        [
            compiler,
            *(flag for flag in build.FLAGS if flag != "-O3"),
            "-O1",
            "-DLOCKGATE_AMX_EMULATED",
            f"-I{HERE}",
            "-o",
            str(made),
            *(str(SOURCES / name) for name in build.SOURCES),
        ],
        check=True,
    )
    library = declare(ctypes.CDLL(str(made)))
    library.lockgate_threads(2)
    return library


def linear_of(library: ctypes.CDLL, out: int, into: int, *, wide: bool = True) -> SwitchingLinear:
    random = torch.Generator().manual_seed(out)
    weight = torch.randn(out, into, generator=random).bfloat16()
    bias = torch.randn(out, generator=random)
    return SwitchingLinear.make(library, Space(), weight, bias, wide=wide)


@pytest.mark.slow
@pytest.mark.parametrize(("out", "into"), ((32, 32), (1, 64), (33, 96), (80, 320), (70, 2048)))
def test_tiles_multiply_as_vectors_do(emulated: ctypes.CDLL, out: int, into: int) -> None:
    linear = linear_of(emulated, out, into)
    for rows in (1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 300):
        x = torch.randn(rows, into, generator=torch.Generator().manual_seed(rows)).bfloat16()
        ours = linear.by_tiles(x, rows).clone()
        theirs = linear.by_strips(x, rows)
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-6, (rows, out, into)


@pytest.mark.slow
def test_tiles_are_taken_where_they_win_and_agree(emulated: ctypes.CDLL) -> None:
    ticks = iter(range(10**6))
    seconds = [0.0]

    def clock() -> float:  # every reading a tick later, tiles and vectors alike: nobody wins
        return float(next(ticks))

    linear = linear_of(emulated, 64, 64, wide=False)
    choose([linear], clock, tiles=True, rounds=1)
    assert linear.many_rows == NEVER

    def slow_second() -> float:  # readings 0, 1 for the tiles and 1, 5 for the vectors
        seconds[0] += 1.0 if next(ticks) % 4 != 3 else 4.0
        return seconds[0]

    while next(ticks) % 4 != 3:
        pass
    choose([linear], slow_second, tiles=True, rounds=1)
    assert linear.many_rows == 8
    x = torch.randn(8, 64).bfloat16()
    assert torch.equal(linear(x).clone(), linear.by_tiles(x, 8))


@pytest.mark.slow
def test_tiles_that_disagree_are_not_taken(emulated: ctypes.CDLL) -> None:
    linear = linear_of(emulated, 64, 64, wide=False)

    class Wrong(SwitchingLinear):
        def by_tiles(self, x: torch.Tensor, rows: int) -> torch.Tensor:
            return super().by_tiles(x, rows).mul_(1.1)

    wrong = Wrong(**{name: getattr(linear, name) for name in SwitchingLinear.__slots__})
    clock = iter(float(-at) for at in range(10**6))
    choose([wrong], lambda: next(clock), tiles=True, rounds=1)
    assert wrong.many_rows == NEVER
