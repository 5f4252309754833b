"""CUDA graphs of whole decodes: at batch 1 a step is some hundred kernels of a few microseconds, and
starting them one by one takes longer than running them.

All are made at start, the largest first, so that one pool of memory serves all.  A recording replays
the same addresses: what it reads lies in the staging buffer, what it writes is its own and is good
until the next replay.  Source: mini-sglang's GraphRunner; CUDA programming guide, graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .step import CudaStep

WARM_RUNS = 2  # before a recording: libraries choose and load their kernels at the first call


@dataclass(frozen=True, slots=True)
class Recording:
    graph: torch.cuda.CUDAGraph
    step: CudaStep  # keeps what the graph reads alive
    logits: Tensor


@dataclass(slots=True)
class Recordings:
    by_rows: dict[int, Recording] = field(default_factory=dict)
    pool: Any = None  # torch's handle

    def record(self, step: CudaStep, forward: Callable[[CudaStep], Tensor]) -> Tensor:
        assert step.recording is not None
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_RUNS):
                forward(step)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            logits = forward(step).float()
        self.pool = graph.pool()
        self.by_rows[step.recording] = Recording(graph, step, logits)
        return self.replay(step)

    def replay(self, step: CudaStep) -> Tensor:
        assert step.recording is not None
        made = self.by_rows[step.recording]
        made.graph.replay()
        return made.logits[: step.wanted]
