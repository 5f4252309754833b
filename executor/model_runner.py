"""Model files to a model that runs: the one door of the engine to `model/` and `cpu/`.

`load` reads a GGUF file or a Hugging Face directory, places it on the device and returns its card and
its runner.  Whatever is wrong with the file or the machine is a ModelError that names the fix.
Refuses to know: scheduling, requests, where a model came from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
import torch

from executor.backend import Backend, Layer, S
from executor.batch import Batch, Row, Runner
from executor.contract import ModelCard
from executor.cpu import machine
from executor.cpu.kv import BLOCK_TOKENS, make_kv
from executor.cpu.linear import can_pack
from executor.cpu.native.build import Absent, library
from executor.cpu.native.ops import make_native_ops, unsupported
from executor.cpu.plan import Shape
from executor.cpu.torch_ops import TorchOps
from executor.decoder import Decoder
from executor.model.config import ModelConfig
from executor.model.errors import ModelError
from executor.model.rope import frequencies
from executor.model.source import ModelSource
from executor.model.weights import OuterWeights, head_blocks, layer_weights, outer_weights

__all__ = ["ModelError", "Progress", "load"]

_log = structlog.get_logger()

Progress = Callable[[str, float | None], None]

KV_BYTES_DEFAULT = 1 << 30
KV_SEQUENCES_MAX = 64  # by default no more than this many full contexts
MEMORY_MARGIN = 1.1
WARM_TOKENS = 128


def _silent(stage: str, fraction: float | None) -> None:
    """Nobody watches."""


def load(
    path: Path,
    *,
    device: str = "auto",
    numerics: str = "fast",
    dtype: str = "auto",
    context_tokens: int | None = None,
    kv_bytes: int | None = None,
    threads: int | None = None,
    progress: Progress = _silent,
) -> tuple[ModelCard, Runner]:
    """`dtype`: auto, float32, bfloat16.  `context_tokens`: at most the model's own.  `kv_bytes`: for
    keys and values; by default a quarter of what is free, at most 1 GiB.  `threads`: by default one a
    physical core; this sets torch's for the whole process."""
    if device not in {"auto", "cpu"}:
        raise ModelError(f"device {device!r:.40} is not supported; expected 'auto' or 'cpu'")
    if numerics not in {"fast", "invariant"}:
        raise ModelError(f"numerics {numerics!r:.40} is not known; expected 'fast' or 'invariant'")
    number = _dtype(dtype)
    torch.set_num_threads(threads or machine.physical_cores())
    progress("reading model", 0.0)
    try:
        source = open_source(path)
        _check_memory(source.config, number)
        return _place(source, numerics, number, context_tokens, kv_bytes, progress)
    except OSError as why:
        raise ModelError(
            f"{path.name} cannot be read: {why.strerror}; check the path and its rights"
        ) from why
    except MemoryError as why:
        raise ModelError(f"{path.name} does not fit into this machine's memory") from why


def open_source(path: Path) -> ModelSource:
    """A directory is Hugging Face's, a file GGUF."""
    from executor.model.gguf_source import open_gguf_source
    from executor.model.hf_directory import open_hf_directory

    if path.is_dir():
        return open_hf_directory(path)
    if not path.is_file():
        raise ModelError(f"no model at {path}; expected a GGUF file or a Hugging Face directory")
    if path.suffix in {".bin", ".pt", ".pth"}:
        raise ModelError(
            f"{path.name} is a pickle, and opening it runs code that it brings; refused"
        )
    return open_gguf_source(path)


def _dtype(name: str) -> torch.dtype:
    """By rule, not by a measurement at start: on a busy machine two starts would disagree, and the
    same model would answer differently after a restart."""
    if name not in {"auto", "float32", "bfloat16"}:
        raise ModelError(f"dtype {name!r:.40} is not known; expected auto, float32 or bfloat16")
    if name != "auto":
        return torch.float32 if name == "float32" else torch.bfloat16
    return torch.bfloat16 if machine.has_bf16() else torch.float32


def _check_memory(config: ModelConfig, dtype: torch.dtype) -> None:
    needed = int(config.parameters * dtype.itemsize * MEMORY_MARGIN)
    free = machine.available_bytes()
    if free is not None and needed > free:
        raise ModelError(
            f"the model needs about {needed >> 20} MiB and {free >> 20} MiB are free;"
            " free memory, or serve a smaller model"
        )


def _place(
    source: ModelSource,
    numerics: str,
    dtype: torch.dtype,
    context_tokens: int | None,
    kv_bytes: int | None,
    progress: Progress,
) -> tuple[ModelCard, Runner]:
    config = source.config
    context = _context(config, context_tokens)
    with torch.inference_mode():
        outer = outer_weights(source, dtype)
        blocks = _kv_blocks(config, dtype, context, kv_bytes)
        context = min(context, blocks * BLOCK_TOKENS)
        ops = _cpu_ops(config, outer, dtype, numerics, blocks, context)
        runner = _built(source, ops, outer, dtype, context, progress)
    _warm(runner, progress)
    return _card(source, runner, numerics, dtype), runner


def _cpu_ops(
    config: ModelConfig,
    outer: OuterWeights,
    dtype: torch.dtype,
    numerics: str,
    blocks: int,
    context_tokens: int,
) -> Backend[Any]:
    """Native where the model is computed in bf16 and the machine can."""
    each = tuple(frequencies(rope, config.head_dim, outer.rope_divisors) for rope in config.ropes)
    if dtype is torch.bfloat16:
        kernels = library()
        why = kernels.reason if isinstance(kernels, Absent) else unsupported(config)
        if not isinstance(kernels, Absent) and why is None:
            threads = torch.get_num_threads()
            return make_native_ops(
                config,
                kernels,
                outer.embedding,
                each,
                kv_blocks=blocks,
                context_tokens=context_tokens,
                threads=threads,
                invariant=numerics == "invariant",
            )
        _log.warning("native_kernels_absent", reason=why)
    return TorchOps(
        config=config,
        shape=Shape(
            kv_heads=config.kv_heads,
            group=config.heads // config.kv_heads,
            dtype=dtype,
            frequencies=each,
            attention_factors=tuple(rope.attention_factor for rope in config.ropes),
            windows=tuple({config.kind(layer).window for layer in range(config.layers)}),
            invariant=numerics == "invariant",
        ),
        embedding=outer.embedding,
        kv=make_kv(config.layers, config.kv_heads, config.head_dim, blocks, dtype),
        pack=can_pack(dtype),
    )


def _built(
    source: ModelSource,
    ops: Backend[S],
    outer: OuterWeights,
    dtype: torch.dtype,
    context: int,
    progress: Progress,
) -> Decoder[S]:
    """Layer by layer, so that the original weights go as their copies come."""
    layers: list[Layer] = []
    for weights in layer_weights(source, dtype, blocks=ops.wants_blocks):
        layers.append(ops.layer(len(layers), weights))
        progress("reading model", len(layers) / source.config.layers)
    return Decoder(
        config=source.config,
        backend=ops,
        layers=tuple(layers),
        norm=outer.norm,
        head=ops.head(outer.head, head_blocks(source) if ops.wants_blocks else None),
        context_tokens=context,
    )


def _context(config: ModelConfig, wanted: int | None) -> int:
    if wanted is None:
        return config.context_tokens
    if not 1 <= wanted <= config.context_tokens:
        raise ModelError(
            f"context_tokens is {wanted}; this model takes 1 to {config.context_tokens}"
        )
    return wanted


def _kv_blocks(config: ModelConfig, dtype: torch.dtype, context: int, wanted: int | None) -> int:
    each = config.kv_bytes_per_token(dtype.itemsize) * BLOCK_TOKENS
    if wanted is None:
        free = machine.available_bytes()
        wanted = min(KV_BYTES_DEFAULT, KV_BYTES_DEFAULT if free is None else free // 4)
        wanted = max(each, min(wanted, KV_SEQUENCES_MAX * -(-context // BLOCK_TOKENS) * each))
    elif wanted < each:
        raise ModelError(f"kv_memory of {wanted} bytes holds no block; expected {each} or more")
    elif (free := machine.available_bytes()) is not None and wanted > free:
        raise ModelError(
            f"kv_memory of {wanted >> 20} MiB exceeds the {free >> 20} MiB that are free"
        )
    return wanted // each


def _warm(runner: Decoder[S], progress: Progress) -> None:
    """Measure, build and fill what the first requests would otherwise wait for."""
    progress("warming up", 0.0)
    block = list(range(min(runner.kv_blocks, WARM_TOKENS // BLOCK_TOKENS)))

    def decode(rows: int) -> None:
        runner.run(Batch([Row(tokens=[0], start=0, blocks=block, wants_logits=True)] * rows))

    runner.backend.warm(decode)
    progress("warming up", 0.5)
    fits = min(WARM_TOKENS, len(block) * BLOCK_TOKENS, runner.context_tokens)
    runner.run(Batch([Row(tokens=[0] * fits, start=0, blocks=block, wants_logits=True)]))
    runner.zero_blocks(block)


def _card(source: ModelSource, runner: Runner, numerics: str, dtype: torch.dtype) -> ModelCard:
    config, tokenizer = source.config, source.tokenizer
    template = tokenizer.chat_template
    return ModelCard(
        architecture=config.family.value,
        dtype=str(dtype).removeprefix("torch."),
        numerics=numerics,
        vocab_size=config.vocab_size,
        context_tokens=runner.context_tokens,
        block_tokens=runner.block_tokens,
        kv_blocks=runner.kv_blocks,
        kv_bytes=runner.kv_blocks * BLOCK_TOKENS * config.kv_bytes_per_token(dtype.itemsize),
        tokenizer_json=tokenizer.document,
        chat_template=template,
        bos_token_id=tokenizer.bos_id,
        eos_token_ids=tokenizer.eos_ids,
        special_token_ids=tokenizer.special_ids,
        weights_digest=source.digest(),
        tokenizer_digest=hashlib.sha256(tokenizer.document).hexdigest(),
        template_digest="" if template is None else hashlib.sha256(template.encode()).hexdigest(),
        parameters=config.parameters,
        device="cpu",
        device_name=machine.cpu_name(),
        add_bos=tokenizer.add_bos,
    )
