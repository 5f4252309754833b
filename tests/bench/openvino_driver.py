"""OpenVINO GenAI's continuous batching behind two pipes, so that a library can be measured as a peer.

    PEER_VENV/bin/python openvino_driver.py MODEL.gguf THREADS CACHE_GIB

Runs in the peer's environment: nothing but its library and the standard library.  One JSON document
a line comes in (prompts of token ids, how many tokens each, how many at once), one goes out: when each
request was put in, when its first token and its last came.  A closed loop, as the bench's own over HTTP:
as many in flight as asked, each followed by the next.  There is no HTTP and no text in its figures.
Refuses to know: what it is compared with.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Handle(Protocol):
    """A request in flight, as the library has it."""

    def can_read(self) -> bool: ...

    def read(self) -> Mapping[int, Any]: ...

    def get_status(self) -> Any: ...


@dataclass
class Flight:
    """One request: instants in seconds of the monotonic clock."""

    handle: Handle
    input_tokens: int
    sent_s: float
    arrivals_s: list[float] = field(default_factory=list)
    output_tokens: int = 0
    ended_s: float = 0.0

    def hear(self, now_s: float) -> None:
        while self.handle.can_read():
            for output in self.handle.read().values():
                if new := len(output.generated_ids):
                    self.output_tokens += new
                    self.arrivals_s.append(now_s)
        self.ended_s = now_s

    def document(self) -> dict[str, object]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "sent_s": self.sent_s,
            "ended_s": self.ended_s,
            "arrivals_s": self.arrivals_s,
        }


def closed_loop(
    add: Callable[[int, Sequence[int]], Handle],
    step: Callable[[], None],
    ended: Callable[[Handle], bool],
    prompts: Sequence[Sequence[int]],
    concurrency: int,
    now: Callable[[], float],
) -> list[Flight]:
    """All prompts, `concurrency` at a time.  `add` puts one in, `step` computes one step of all."""
    todo = iter(enumerate(prompts))
    live: list[Flight] = []
    done: list[Flight] = []
    while True:
        while len(live) < concurrency and (following := next(todo, None)) is not None:
            number, prompt = following
            sent_s = now()
            live.append(Flight(add(number, prompt), len(prompt), sent_s))
        if not live:
            return done
        step()
        now_s = now()
        for flight in live:
            flight.hear(now_s)
        done += [flight for flight in live if ended(flight.handle)]
        live = [flight for flight in live if not ended(flight.handle)]


def main() -> None:
    path, threads, cache_gib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    words = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the library prints, too: not among our answers
    import numpy as np
    import openvino  # type: ignore[import-not-found]  # only in the peer's environment
    import openvino_genai  # type: ignore[import-not-found]  # likewise

    scheduling = openvino_genai.SchedulerConfig()
    scheduling.cache_size = cache_gib
    scheduling.enable_prefix_caching = False  # nothing of a prompt is kept: its work is ours
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        path, scheduling, "CPU", {"INFERENCE_NUM_THREADS": threads}
    )
    running = openvino_genai.GenerationStatus.RUNNING

    def say(document: object) -> None:
        words.write(json.dumps(document) + "\n")
        words.flush()

    say({"version": f"openvino-genai {openvino_genai.__version__}"})
    numbers = 0
    for line in sys.stdin:
        job = json.loads(line)
        wanted = openvino_genai.GenerationConfig()
        wanted.max_new_tokens = job["output_tokens"]
        wanted.ignore_eos = True
        wanted.do_sample = False
        base = numbers

        def add(number: int, prompt: Sequence[int], base: int = base, wanted: Any = wanted) -> Any:
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            return pipeline.add_request(base + number, ids, wanted)

        flights = closed_loop(
            add,
            pipeline.step,
            lambda handle: bool(handle.get_status() != running),
            job["prompts"],
            job["concurrency"],
            time.perf_counter,
        )
        numbers += len(job["prompts"])
        say({"flights": [flight.document() for flight in flights]})


if __name__ == "__main__":
    main()
