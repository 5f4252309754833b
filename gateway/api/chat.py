"""POST /v1/chat/completions: how messages become a prompt, and in which words it is answered."""

from __future__ import annotations

from datetime import UTC, datetime

from gateway.api.answers import chat_answer
from gateway.api.generate import Asked, Family
from gateway.api.schema_chat import parse_chat
from gateway.api.sse import ChatStream
from gateway.house import Reading
from gateway.text.prompts import chat_prompt_async


async def ask(body: object, reading: Reading, wall_ms: int) -> Asked:
    """Raises ApiError 400."""
    job = parse_chat(body, vocab_size=reading.card.vocab_size)
    prompt = await chat_prompt_async(
        reading.vocabulary,
        reading.template,
        job.messages,
        now=datetime.fromtimestamp(wall_ms / 1000, UTC),
        extras=job.template_extras,
    )
    return Asked(job.controls, (prompt,), templated=True)


CHAT = Family(
    route="/v1/chat/completions",
    id_prefix="chatcmpl-",
    prompt_param="messages",
    ask=ask,
    wording=ChatStream,
    write=chat_answer,
)
