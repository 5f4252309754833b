"""Model files to a model that runs: the one door of the engine to `model/` and to the devices.

`load` reads a GGUF file or a Hugging Face directory, places it on a device and returns its card and
its runner.  Whatever is wrong with the file or the machine is a ModelError that names the fix.
Refuses to know: scheduling, requests, where a model came from, kernels and layouts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from executor.backend import Backend, Layer, S
from executor.batch import Batch, Row, Runner, StepBounds
from executor.contract import ModelCard
from executor.cpu import machine
from executor.decoder import Decoder
from executor.device import Device, Wanted, choose
from executor.draft import GUESSES_MAX
from executor.life import RECORDING, WARMING
from executor.model.config import ModelConfig
from executor.model.errors import ModelError
from executor.model.source import ModelSource
from executor.model.weights import (
    OuterWeights,
    embedding_scale,
    head_blocks,
    layer_weights,
    outer_weights,
)
from executor.numerics import Numerics

__all__ = ["ModelError", "Progress", "load"]

Progress = Callable[[str, float | None], None]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _silent(stage: str, fraction: float | None) -> None:
    """Nobody watches."""


def load(
    path: Path,
    *,
    device: str = "cpu",
    numerics: str = "fast",
    dtype: str = "auto",
    context_tokens: int | None = None,
    kv_bytes: int | None = None,
    threads: int | None = None,
    rows_max: int = 64,
    step_tokens_max: int = 2048,
    progress: Progress = _silent,
) -> tuple[ModelCard, Runner]:
    """`device`: cpu, cuda, or auto: a GPU that can serve the model, else the CPU.  `numerics`: see there;
    `dtype`: auto, float32, bfloat16.  `context_tokens`: at most the model's own.  `kv_bytes`: for keys and values; by
    default on a CPU a quarter of what is free, at most 1 GiB, on a GPU what is left.  `threads`: by
    default one a physical core; this sets torch's for the whole process.  `rows_max` and
    `step_tokens_max`, of prompts, are the engine's: a GPU is prepared for no larger step."""
    wanted = _one_of("device", device, [each.value for each in Wanted])
    promised = Numerics(_one_of("numerics", numerics, [each.value for each in Numerics]))
    number = DTYPES.get(_one_of("dtype", dtype, ["auto", *DTYPES]))
    bounds = StepBounds(rows=rows_max, prompt_tokens=step_tokens_max, guesses=GUESSES_MAX)
    torch.set_num_threads(threads or machine.physical_cores())
    progress("reading model", 0.0)
    try:
        source = open_source(path)
        place = choose(Wanted(wanted), source.config, bounds, numerics=promised)
        number = number or place.dtype
        place.check(source.config, number)
        runner = _placed(source, place, number, context_tokens, kv_bytes, progress)
        return _card(source, place, runner, numerics, number), runner
    except OSError as why:
        raise ModelError(
            f"{path.name} cannot be read: {why.strerror}; check the path and its rights"
        ) from why
    except MemoryError as why:
        raise ModelError(f"{path.name} does not fit into this machine's memory") from why


def _one_of(name: str, value: str, known: list[str]) -> str:
    if value not in known:
        raise ModelError(f"{name} {value!r:.40} is not known; expected {', '.join(known)}")
    return value


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


def _placed(
    source: ModelSource,
    place: Device,
    dtype: torch.dtype,
    context_tokens: int | None,
    kv_bytes: int | None,
    progress: Progress,
) -> Decoder[Any]:
    config = source.config
    context = _context(config, context_tokens)
    with torch.inference_mode():
        outer = outer_weights(source, dtype)
        blocks = _kv_blocks(config, place, dtype, context, kv_bytes)
        context = min(context, blocks * place.block_tokens)
        with place.failures("making room for the model"):
            ops = place.backend(config, outer, blocks, context)
        runner = _built(source, place, ops, outer, dtype, context, progress)
    with place.failures("warming up"):
        _warm(runner, place, progress)
    return runner


def _built(
    source: ModelSource,
    place: Device,
    ops: Backend[S],
    outer: OuterWeights,
    dtype: torch.dtype,
    context: int,
    progress: Progress,
) -> Decoder[S]:
    """Layer by layer, so that the original weights go as their copies come."""
    layers: list[Layer] = []
    for weights in layer_weights(source, dtype, blocks=ops.wants_blocks):
        with place.failures("taking the weights"):
            layers.append(ops.layer(len(layers), weights))
        progress("reading model", len(layers) / source.config.layers)
    blocks = head_blocks(source) if ops.wants_blocks else None
    with place.failures("taking the weights"):
        return Decoder(
            config=source.config,
            backend=ops,
            layers=tuple(layers),
            norm=place.put(outer.norm),
            head=ops.head(outer.head, blocks),
            context_tokens=context,
            embedding_scale=embedding_scale(source.config, outer.embedding.dtype),
        )


def _context(config: ModelConfig, wanted: int | None) -> int:
    if wanted is None:
        return config.context_tokens
    if not 1 <= wanted <= config.context_tokens:
        raise ModelError(
            f"context_tokens is {wanted}; this model takes 1 to {config.context_tokens}"
        )
    return wanted


def _kv_blocks(
    config: ModelConfig, place: Device, dtype: torch.dtype, context: int, wanted: int | None
) -> int:
    each = config.kv_bytes_per_token(dtype.itemsize) * place.block_tokens
    if wanted is not None and wanted < each:
        raise ModelError(f"kv_memory of {wanted} bytes holds no block; expected {each} or more")
    return place.kv_blocks(config, dtype, context, wanted)


def _warm(runner: Decoder[S], place: Device, progress: Progress) -> None:
    """Measure, build, record and fill what the first requests would otherwise wait for."""
    tokens = place.warm_tokens
    progress(WARMING if place.kind == "cpu" else RECORDING, 0.0)
    block = list(range(min(runner.kv_blocks, -(-tokens // runner.block_tokens))))

    def decode(rows: int) -> None:
        runner.run(Batch([Row(tokens=[0], start=0, blocks=block, wants_logits=True)] * rows))

    runner.backend.warm(decode)
    progress(WARMING, 0.5)
    fits = min(tokens, len(block) * runner.block_tokens, runner.context_tokens)
    runner.run(Batch([Row(tokens=[0] * fits, start=0, blocks=block, wants_logits=True)]))
    runner.zero_blocks(block)


def _card(
    source: ModelSource, place: Device, runner: Decoder[Any], numerics: str, dtype: torch.dtype
) -> ModelCard:
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
        kv_bytes=runner.kv_blocks * runner.block_tokens * config.kv_bytes_per_token(dtype.itemsize),
        tokenizer_json=tokenizer.document,
        chat_template=template,
        bos_token_id=tokenizer.bos_id,
        eos_token_ids=tokenizer.eos_ids,
        special_token_ids=tokenizer.special_ids,
        weights_digest=source.digest(),
        tokenizer_digest=hashlib.sha256(tokenizer.document).hexdigest(),
        template_digest="" if template is None else hashlib.sha256(template.encode()).hexdigest(),
        parameters=config.parameters,
        device=place.kind,
        device_name=place.name,
        kernels=f"{type(runner.backend).__qualname__}, torch {torch.__version__}",
        add_bos=tokenizer.add_bos,
    )
