"""What vLLM's tests call `tests.utils`, for a server that runs already.

Copied over theirs by `__main__`; the server, its model and its token are in the environment.  Refuses to know: vllm.
"""

from __future__ import annotations

import os
from typing import Any, Self

import anthropic
import openai

ROCM_EXTRA_ARGS: list[str] = []
ROCM_ENV_OVERRIDES: dict[str, str] = {}
URL = os.environ["LOCKGATE_URL"]
TOKEN = os.environ["LOCKGATE_TOKEN"]
SETTINGS: dict[str, Any] = {
    "base_url": URL + "/v1",
    "api_key": TOKEN,
    "max_retries": 0,
    "timeout": 30,
}


class RemoteOpenAIServer:
    """Its arguments say which model to load and how; ours is what it is."""

    DUMMY_API_KEY = TOKEN

    def __init__(self, model: str, *arguments: object, **options: object) -> None:
        self.model = model

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *fault: object) -> None:
        pass

    @property
    def url_root(self) -> str:
        return URL

    def url_for(self, *parts: str) -> str:
        return URL + "/" + "/".join(parts)

    def get_client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**SETTINGS | options)

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**SETTINGS | options)

    def get_client_anthropic(self, **options: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=URL, api_key=TOKEN, max_retries=0, **options)

    def get_async_client_anthropic(self, **options: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=URL, api_key=TOKEN, max_retries=0, **options)
