"""Which device a model gets, what fits onto a GPU, and what is said where there is none: all without one."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from executor import __main__ as process
from executor import device as choice
from executor.batch import StepBounds
from executor.cost import StepTimes
from executor.cpu.backend import CpuDevice
from executor.decoder import Decoder
from executor.device import Wanted, choose
from executor.draft import GUESSES_MAX
from executor.kernels import backend, device
from executor.kernels.backend import CudaDevice, refusal
from executor.kernels.memory import fixed_bytes
from executor.model.errors import ModelError
from executor.model_runner import DTYPES, load
from executor.numerics import Numerics
from executor.settings import Settings
from tests.executor.fakes import FREE, FakeRunner, Harness, job
from tests.models import LLAMA_8B, write_tiny_llama

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
BF16 = torch.bfloat16
BOUNDS = StepBounds(rows=64, prompt_tokens=2048, guesses=GUESSES_MAX)
BLOCK_BYTES = LLAMA_8B.kv_bytes_per_token(2) * 32


def card(free_bytes: int = 80 * GIB) -> CudaDevice:
    return CudaDevice(torch.device("cpu"), "NVIDIA Test", free_bytes, BOUNDS)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with one on which everything can be served."""
    monkeypatch.setattr(choice, "refusal", lambda config, *, invariant: None)
    monkeypatch.setattr(choice, "find_gpu", lambda bounds: card())
    return monkeypatch


# ── The choice ──────────────────────────────────────────────────────────────────────────────────────


def chosen(wanted: Wanted, *, numerics: Numerics = Numerics.FAST) -> str:
    return choose(wanted, LLAMA_8B, BOUNDS, numerics=numerics).kind


def test_auto_takes_a_gpu_that_can_and_says_so(gpu: pytest.MonkeyPatch) -> None:
    with capture_logs() as logs:
        assert chosen(Wanted.AUTO) == "cuda"
    (line,) = logs
    assert (line["event"], line["device"], line["name"]) == ("device", "cuda", "NVIDIA Test")
    assert chosen(Wanted.CUDA) == "cuda"
    assert chosen(Wanted.CPU) == "cpu"


def test_auto_takes_the_cpu_else_and_says_why(gpu: pytest.MonkeyPatch) -> None:
    gpu.setattr(choice, "refusal", lambda config, *, invariant: "no such card")
    with capture_logs() as logs:
        assert chosen(Wanted.AUTO) == "cpu"
    (line,) = logs
    assert (line["device"], line["reason"]) == ("cpu", "no such card")
    with pytest.raises(ModelError, match=r"no such card; or set device = \"cpu\""):
        chosen(Wanted.CUDA)


@pytest.mark.parametrize("numerics", (Numerics.INVARIANT, Numerics.INT8))
def test_other_numerics_are_the_cpus(numerics: Numerics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "reason_absent", lambda: None)
    assert chosen(Wanted.AUTO, numerics=numerics) == "cpu"
    with pytest.raises(ModelError, match=rf"{numerics}.*CPU only"):
        chosen(Wanted.CUDA, numerics=numerics)


def test_the_cpu_is_asked_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(choice, "refusal")
    fixed = Numerics.INVARIANT
    assert choose(Wanted.CPU, LLAMA_8B, BOUNDS, numerics=fixed) == CpuDevice(fixed)


def test_a_refusal_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "reason_absent", lambda: "there is no C compiler")
    assert refusal(LLAMA_8B, invariant=False) == "there is no C compiler"


def test_a_driver_that_breaks_when_asked_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise RuntimeError("CUDA driver initialization failed, you might not have …")

    monkeypatch.setattr(device, "reason_absent", broken)
    assert "RuntimeError" in str(refusal(LLAMA_8B, invariant=False))
    monkeypatch.setattr(device, "reason_absent", lambda: None)
    monkeypatch.setitem(sys.modules, "executor.kernels.ops", None)  # its import fails
    assert "ModuleNotFoundError" in str(refusal(LLAMA_8B, invariant=False))
    monkeypatch.setattr(torch.cuda, "get_device_name", broken)
    with pytest.raises(ModelError, match=r"RuntimeError.*device = \"cpu\""):
        backend.find_gpu(BOUNDS)


@pytest.mark.slow
def test_a_shape_that_the_kernels_do_not_hold_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(device, "reason_absent", lambda: None)
    assert refusal(LLAMA_8B, invariant=False) is None
    assert "head_dim 320" in str(refusal(replace(LLAMA_8B, head_dim=320), invariant=False))


# ── Memory ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_that_the_gpu_cannot_hold_is_refused_before_it_is_read() -> None:
    card(24 * GIB).check(LLAMA_8B, BF16)
    with pytest.raises(ModelError, match=r"about \d+ MiB .* 16384 MiB free; .*device = \"cpu\""):
        card(16 * GIB).check(LLAMA_8B, BF16)
    with pytest.raises(ModelError, match="free"):
        card(24 * GIB).check(LLAMA_8B, torch.float32)


def test_what_the_refusal_asks_for_is_enough() -> None:
    with pytest.raises(ModelError) as refused:
        card(16 * GIB).check(LLAMA_8B, BF16)
    needed_mib = int(str(refused.value).split()[4])
    card((needed_mib + 1) << 20).check(LLAMA_8B, BF16)
    with pytest.raises(ModelError):
        card((needed_mib - 1) << 20).check(LLAMA_8B, BF16)


def test_keys_and_values_get_what_is_left_but_no_more_than_all_rows_can_use() -> None:
    left = card(80 * GIB).kv_blocks(LLAMA_8B, BF16, 131_072, None)
    used = left * BLOCK_BYTES + fixed_bytes(LLAMA_8B, 2, BOUNDS)
    assert 0.95 * 80 * GIB < used < 0.97 * 80 * GIB
    assert card(80 * GIB).kv_blocks(LLAMA_8B, BF16, 1000, None) == 64 * 32


def test_a_wish_for_kv_memory_is_met_or_refused() -> None:
    assert card(80 * GIB).kv_blocks(LLAMA_8B, BF16, 131_072, 10 * GIB) == 10 * GIB // BLOCK_BYTES
    with pytest.raises(ModelError, match=r"kv_memory of 71680 MiB exceeds the \d+ MiB"):
        card(80 * GIB).kv_blocks(LLAMA_8B, BF16, 131_072, 70 * GIB)


def test_a_step_with_guesses_has_a_bound() -> None:
    assert BOUNDS.logit_rows == 64 * 7
    assert BOUNDS.tokens == 2048 + 64 * 7
    extra = fixed_bytes(LLAMA_8B, 2, BOUNDS) - fixed_bytes(LLAMA_8B, 2, replace(BOUNDS, guesses=0))
    assert extra > 64 * 6 * 128_256 * (2 + 4 + 4), "logits after each guess"


def test_an_engine_goes_beyond_its_bound_for_prompts_and_stays_within_the_devices() -> None:
    runner = FakeRunner(block_tokens=16, kv_blocks=12, vocab_size=12, context_tokens=80, habits=6.0)
    settings = Settings(seqs_max=2, step_tokens_max=1, check_invariants=True)
    house = Harness(runner, settings=settings, times=StepTimes(FREE))
    for request in (1, 2):
        house.submit(job(request, [3, request], max_new_tokens=60))
    house.run()
    bounds = StepBounds(settings.seqs_max, settings.step_tokens_max, GUESSES_MAX)
    most = max(sum(count for _, count in rows) for rows in runner.batches)
    assert bounds.prompt_tokens + bounds.rows < most <= bounds.tokens


# ── Loading ─────────────────────────────────────────────────────────────────────────────────────────


def test_loading_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "reason_absent", lambda: "torch sees no CUDA device")
    directory = write_tiny_llama(tmp_path / "m")
    with pytest.raises(ModelError, match="no CUDA device"):
        load(directory, device="cuda", threads=1)
    found, _ = load(directory, device="auto", dtype="float32", kv_bytes=1 << 20, threads=1)
    assert (found.device, found.dtype) == ("cpu", "float32")


@pytest.mark.parametrize("at", ("backend", "layer", "put", "warm"))
def test_a_gpu_that_fails_while_loading_is_named_and_the_cpu_recommended(
    at: str, tmp_path: Path, gpu: pytest.MonkeyPatch
) -> None:
    """Whatever it raises, and without its message."""

    def broken(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "no rights to the cache of compiled kernels")

    cpu = CpuDevice(Numerics.FAST)
    made: list[Any] = []

    def place(self: CudaDevice, *given: Any) -> Any:
        made.append(cpu.backend(*given))
        return made[-1]

    gpu.setattr(CudaDevice, "backend", broken if at == "backend" else place)
    if at == "put":
        gpu.setattr(CudaDevice, "put", broken)
    if at == "layer":
        gpu.setattr("executor.cpu.torch_ops.TorchOps.layer", broken)
    if at == "warm":
        gpu.setattr(Decoder, "run", broken)
    directory = write_tiny_llama(tmp_path / "m")
    said = r"^the GPU failed while [a-z ]+ \(PermissionError\); set device = \"cpu\""
    with capture_logs() as logs, pytest.raises(ModelError, match=said):
        load(directory, device="cuda", dtype="float32", kv_bytes=1 << 20, threads=1)
    assert logs[-1]["kind"] == "PermissionError"
    assert "rights" not in str(logs)


def test_the_process_takes_every_device_and_dtype_that_loading_knows() -> None:
    def options(name: str) -> set[str]:
        (action,) = (each for each in process._parser()._actions if each.dest == name)
        return set(action.choices or ())

    assert options("device") == {each.value for each in Wanted}
    assert options("dtype") == {"auto", *DTYPES}


# ── Triton stays out ────────────────────────────────────────────────────────────────────────────────


def reached(module: str) -> set[str]:
    """Modules of ours that importing `module` imports, without those imported within functions."""
    found: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        path = ROOT.joinpath(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name in found or not file.is_file():
            continue
        found.add(name)
        package = name if path.is_dir() else name.rpartition(".")[0]
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                todo += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*(up if node.level else []), *filter(None, [node.module])])
                todo += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return found


def test_loading_does_not_import_the_kernels() -> None:
    assert "executor.kernels.lang" in reached("executor.kernels.ops"), "the walk sees nothing"
    found = reached("executor.model_runner")
    assert "executor.kernels.backend" in found
    assert "executor.kernels.lang" not in found


@pytest.mark.slow
def test_serving_on_a_cpu_does_not_import_triton(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path / "m")
    program = (
        "import sys; from pathlib import Path; from executor.kernels import device\n"
        "from executor.model_runner import load\n"
        "device.reason_absent = lambda: 'none here'\n"
        "load(Path(sys.argv[1]), device='auto', kv_bytes=1 << 20, threads=1)\n"
        "load(Path(sys.argv[1]), device='cpu', numerics='invariant', kv_bytes=1 << 20, threads=1)\n"
        "assert 'executor.kernels.backend' in sys.modules\n"
        "assert 'triton' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
