"""POST /v1/completions: prompts as text or token ids, and what an answer looks like."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.api.answers import Choice, Head, Usage, completion_answer
from gateway.api.generate import Asked
from gateway.api.schema import Controls
from gateway.api.schema_completions import parse_completion
from gateway.api.sse import CompletionStream
from gateway.house import Reading
from gateway.text.prompts import completion_prompt_async


@dataclass(frozen=True, slots=True)
class Completions:
    route: str = "/v1/completions"
    id_prefix: str = "cmpl-"
    prompt_param: str = "prompt"

    async def ask(self, body: object, reading: Reading, wall_ms: int) -> Asked:
        card = reading.card
        job = parse_completion(body, vocab_size=card.vocab_size)
        prompts = [
            await completion_prompt_async(reading.vocabulary, prompt, add_bos=card.add_bos)
            for prompt in job.prompts
        ]
        return Asked(job.controls, tuple(prompt.ids for prompt in prompts))

    def stream(self, head: Head, reading: Reading, controls: Controls) -> CompletionStream:
        return CompletionStream(
            head,
            reading.vocabulary,
            include_usage=controls.include_usage,
            logprobs=controls.logprobs,
        )

    def answer(
        self,
        head: Head,
        choices: list[Choice],
        usage: Usage,
        reading: Reading,
        x_limit: str | None,
    ) -> bytes:
        return completion_answer(head, choices, usage, reading.vocabulary, x_limit=x_limit)
