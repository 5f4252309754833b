"""openai-python and LangChain as customers run them, in the shape of `driving`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import openai
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import SecretStr

from tests.clients.driving import Answer, Ask, Call, Refused, Told


@dataclass(frozen=True)
class PythonClient:
    answer: Callable[[Ask], Answer]

    def ask(self, ask: Ask) -> list[Told]:
        with ThreadPoolExecutor(ask.times) as pool:
            return list(pool.map(self._told, [ask] * ask.times))

    def _told(self, ask: Ask) -> Told:
        try:
            return Told(answer=self.answer(ask))
        except openai.APIError as error:
            return Told(refused=refused(error))


def refused(error: openai.APIError) -> Refused:
    return Refused(
        kind=type(error).__name__,
        status=getattr(error, "status_code", None),
        type=error.type,
        code=error.code,
        param=error.param,
        message=error.message,
    )


# openai-python


def openai_python(ask: Ask) -> Answer:
    with OpenAI(api_key=ask.key, base_url=ask.base_url, max_retries=ask.retries) as ai:
        return {"chat": _chat, "completions": _completions, "models": _models}[ask.api](ai, ask)


def _chat(ai: OpenAI, ask: Ask) -> Answer:
    body: dict[str, Any] = {
        "model": ask.model,
        "messages": ask.messages,
        **_limits(ask),
        **_bound(ask),
    }
    if not ask.stream:
        whole = ai.chat.completions.create(**body)
        choice = whole.choices[0]
        calls = [call.function for call in choice.message.tool_calls or ()]
        return Answer(
            text=choice.message.content or "",
            finish=choice.finish_reason,
            usage=_counted(whole.usage),
            calls=[Call(call.name, call.arguments) for call in calls],
        )
    text, finish, usage, pieces, left = "", None, None, 0, False
    said: dict[int, list[str]] = {}
    with ai.chat.completions.create(**body, **_streamed(ask)) as stream:
        for chunk in stream:
            usage = _counted(chunk.usage) or usage
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                text += choice.delta.content or ""
                pieces += bool(choice.delta.content)
                for call in choice.delta.tool_calls or ():
                    known = said.setdefault(call.index, ["", ""])
                    known[0] += call.function.name or ""
                    known[1] += call.function.arguments or ""
            if ask.leave_after is not None and pieces >= ask.leave_after:
                left = True
                break
    calls = [Call(*said[index]) for index in sorted(said)]
    return Answer(text, finish, usage, calls, pieces, left)


def _completions(ai: OpenAI, ask: Ask) -> Answer:
    body: dict[str, Any] = {
        "model": ask.model,
        "prompt": ask.messages[0]["content"],
        **_limits(ask),
    }
    if not ask.stream:
        whole = ai.completions.create(**body)
        choice = whole.choices[0]
        return Answer(choice.text, choice.finish_reason, _counted(whole.usage))
    text, finish, usage, pieces = "", None, None, 0
    with ai.completions.create(**body, **_streamed(ask)) as stream:
        for chunk in stream:
            usage = _counted(chunk.usage) or usage
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                text += choice.text
                pieces += bool(choice.text)
    return Answer(text, finish, usage, [], pieces)


def _models(ai: OpenAI, ask: Ask) -> Answer:
    names = [model.id for model in ai.models.list()]
    return Answer(text=" ".join(names), finish=ai.models.retrieve(ask.model).id)


def _limits(ask: Ask) -> dict[str, Any]:
    said = {"max_tokens": ask.max_tokens, "temperature": ask.temperature}
    return {name: value for name, value in said.items() if value is not None}


def _bound(ask: Ask) -> dict[str, Any]:
    bound: dict[str, Any] = {}
    if ask.schema is not None:
        form = {"name": "it", "schema": ask.schema, "strict": True}
        bound["response_format"] = {"type": "json_schema", "json_schema": form}
    if ask.tools is not None:
        bound["tools"] = [{"type": "function", "function": tool} for tool in ask.tools]
    if ask.tool_choice is not None:
        bound["tool_choice"] = ask.tool_choice
    return bound


def _streamed(ask: Ask) -> dict[str, Any]:
    more = {"stream_options": {"include_usage": True}} if ask.usage else {}
    return {"stream": True, **more}


def _counted(usage: Any) -> tuple[int, int] | None:
    return None if usage is None else (usage.prompt_tokens, usage.completion_tokens)


# LangChain


def langchain_python(ask: Ask) -> Answer:
    llm = ChatOpenAI(
        model=ask.model,
        base_url=ask.base_url,
        api_key=SecretStr(ask.key),
        max_retries=ask.retries,
        stream_usage=ask.usage,
        **_limits(ask),
    )
    bound = _bound(ask)
    if not ask.stream:
        return _read(llm.invoke(ask.messages, **bound))
    pieces = 0
    parts = llm.stream(ask.messages, **bound)
    taken = []
    for part in parts:
        taken.append(part)
        pieces += bool(part.text)
        if ask.leave_after is not None and pieces >= ask.leave_after:
            parts.close()  # type: ignore[attr-defined]
            return _read(_joined(taken), pieces=pieces, left=True)
    return _read(_joined(taken), pieces=pieces)


def _joined(parts: Iterable[Any]) -> Any:
    first, *rest = parts
    for part in rest:
        first += part
    return first


def _read(message: Any, *, pieces: int = 0, left: bool = False) -> Answer:
    usage = message.usage_metadata
    return Answer(
        text=message.text,
        finish=message.response_metadata.get("finish_reason"),
        usage=usage and (usage["input_tokens"], usage["output_tokens"]),
        calls=[Call(call["name"], json.dumps(call["args"])) for call in message.tool_calls],
        pieces=pieces,
        left=left,
    )
