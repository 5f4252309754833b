"""POST /v1/chat/completions: how messages become a prompt, and what an answer looks like."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.api.answers import Choice, Head, Usage, chat_answer
from gateway.api.generate import Asked
from gateway.api.schema import Controls
from gateway.api.schema_chat import parse_chat
from gateway.api.sse import ChatStream
from gateway.house import Reading
from gateway.text.prompts import chat_prompt_async


@dataclass(frozen=True, slots=True)
class Chat:
    route: str = "/v1/chat/completions"
    id_prefix: str = "chatcmpl-"
    prompt_param: str = "messages"

    async def ask(self, body: object, reading: Reading, wall_ms: int) -> Asked:
        job = parse_chat(body, vocab_size=reading.card.vocab_size)
        prompt = await chat_prompt_async(
            reading.vocabulary,
            reading.template,
            job.messages,
            now=datetime.fromtimestamp(wall_ms / 1000, UTC),
            extras=job.template_extras,
        )
        return Asked(job.controls, (prompt.ids,))

    def stream(self, head: Head, reading: Reading, controls: Controls) -> ChatStream:
        return ChatStream(
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
        return chat_answer(head, choices, usage, reading.vocabulary, x_limit=x_limit)
