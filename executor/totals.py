"""What an engine has done since it began, and how that reads as `Gauges`.

Refuses to know: requests, steps still to come.
"""

from __future__ import annotations

from dataclasses import dataclass

from executor.block_manager import BlockManager
from executor.contract import Gauges


@dataclass(slots=True)
class Totals:
    steps: int = 0
    step_ns: int = 0
    busy_ns: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def guessed(self, drafted: int, missed: int) -> None:
        self.drafted_tokens += drafted
        self.accepted_tokens += drafted - missed

    def gauges(self, running: int, waiting: int, blocks: BlockManager) -> Gauges:
        return Gauges(
            running=running,
            waiting=waiting,
            blocks_total=blocks.total,
            blocks_free=blocks.idle,
            steps=self.steps,
            step_ns=self.step_ns,
            busy_ns=self.busy_ns,
            overhead_ns=self.step_ns - self.busy_ns,
            preemptions=self.preemptions,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
        )
