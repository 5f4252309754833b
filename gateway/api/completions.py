"""POST /v1/completions: prompts as text or token ids, and in which words they are answered."""

from __future__ import annotations

from functools import partial

from gateway.api.answers import completion_answer
from gateway.api.chunks import Chunks
from gateway.api.generate import Asked, Family, Resolve
from gateway.api.schema_completions import parse_completion
from gateway.api.sse import CompletionStream, fault
from gateway.house import Reading
from gateway.text.prompts import completion_prompt_async


async def ask(body: object, reading: Reading, wall_ms: int, resolve: Resolve) -> Asked:
    """Raises ApiError 400.  Refers to nothing: a prompt here is finished."""
    card = reading.card
    job = parse_completion(body, vocab_size=card.vocab_size)
    prompts = [
        await completion_prompt_async(reading.vocabulary, prompt, add_bos=card.add_bos)
        for prompt in job.prompts
    ]
    return Asked(job.controls, tuple(prompts), templated=False)


COMPLETIONS = Family(
    route="/v1/completions",
    id_prefix="cmpl-",
    prompt_param="prompt",
    ask=ask,
    shape=partial(Chunks, CompletionStream),
    write=lambda _, answered: completion_answer(answered),
    fault=fault,
)
