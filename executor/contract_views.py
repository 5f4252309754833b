"""What is seen of an executor: its model, counts of the whole, and who is here (a part of `contract`, which shows it)."""

from __future__ import annotations

from typing import Final

import msgspec

from executor.contract_device import DeviceTime

GAPS_NS: Final = tuple(
    milliseconds * 1_000_000
    for milliseconds in (
        5, 10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750,
        1_000, 2_500, 5_000, 7_500, 10_000, 20_000, 40_000, 80_000,
    )
)  # fmt: skip
STEP_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Spread(msgspec.Struct, frozen=True):
    """How many values were at most each bound and above the one before, those above the last at the end; and
    their sum.  No counts: there were none."""

    counts: tuple[int, ...] = ()
    total: int = 0


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """The executor at one instant, for metrics and the leak checks of the tests."""

    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    steps: int = 0
    step_ns: int = 0  # measured, cumulative
    busy_ns: int = 0  # attributed to requests, cumulative
    overhead_ns: int = 0  # step_ns − busy_ns: recompute, wrong guesses and the like
    preemptions: int = 0
    prompt_tokens: int = 0  # cumulative
    generated_tokens: int = 0
    drafted_tokens: int = 0  # guesses that were run, cumulative
    accepted_tokens: int = 0  # of these, what was then sampled
    gaps: Spread = (
        Spread()
    )  # by GAPS_NS: between two steps in which a request said something, cumulative
    step_tokens: Spread = Spread()  # by STEP_TOKENS: read and written in a step
    pool_blocks: int = 0  # set aside for kept prefixes
    kept_blocks: int = 0  # in use of these
    pinned_blocks: int = 0  # of these, what was registered
    cache_hits: int = 0  # blocks that were taken instead of computed, cumulative
    cache_misses: int = 0  # that might have been
    cache_evictions: int = 0
    cache_mismatches: int = 0  # found, and not what they should be: an alarm
    device: DeviceTime | None = None  # where its time goes; None: nobody counts it


LANES_MAX: Final = 256


class ClassSum(msgspec.Struct, frozen=True, kw_only=True):
    """All that is here of a class of work.  `used`: its part of the device time of about the last minute;
    `oldest_ms`: how long the one waits that waits longest."""

    workload: str
    running: int
    waiting: int
    blocks: int
    used: float
    oldest_ms: int


class Lane(ClassSum, frozen=True, kw_only=True):
    """A tenant in a class of work.  `due`: what is due to the tenant by weight among those who are here, in
    all its classes together."""

    tenant: str
    due: float


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What one `Look` sees, of `tenant` or (None) of all: those with most waiting first, `left_out` of
    them not named because there are more than `LANES_MAX`.  The sums count those too.  `lag_max`: how far
    the tenant that waits and is furthest behind its due part is behind it."""

    tenant: str | None = None
    lanes: tuple[Lane, ...] = ()
    left_out: int = 0
    classes: tuple[ClassSum, ...] = ()
    lag_max: float = 0.0


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway must know of a model; it opens no model file itself.

    `tokenizer_json` is a Hugging Face `tokenizers` document.  `special_tokens` are the ids that only
    a chat template's scaffold may yield.  Digests are SHA-256, hex, of content, never of names."""

    architecture: str
    dtype: str
    numerics: str
    vocab_size: int
    context_tokens: int
    block_tokens: int
    kv_blocks: int
    kv_bytes: int = 0  # of all blocks together
    pool_blocks: int = 0  # of all blocks, those set aside for kept prefixes: no request's own
    tokenizer_json: bytes
    chat_template: str | None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    special_token_ids: tuple[int, ...] = ()
    weights_digest: str = ""
    tokenizer_digest: str = ""
    template_digest: str = ""
    parameters: int = 0
    device: str = "cpu"
    device_name: str = ""
    kernels: str = ""  # what computes on it, and its version
    add_bos: bool = False
