"""openai-python, LangChain and anthropic-python as customers run them, in the shape of `driving`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
from anthropic import Anthropic
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import SecretStr

from tests.clients.driving import Answer, Ask, Call, Refused, Told

FINISHES = {
    "completed": "stop",
    "incomplete": "length",
    "end_turn": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}
"""What Responses and Messages call it → what chat does."""


@dataclass(frozen=True)
class PythonClient:
    answer: Callable[[Ask], Answer]

    def ask(self, ask: Ask) -> list[Told]:
        with ThreadPoolExecutor(ask.times) as pool:
            return list(pool.map(self._told, [ask] * ask.times))

    def _told(self, ask: Ask) -> Told:
        try:
            return Told(answer=self.answer(ask))
        except (openai.APIError, anthropic.APIError) as error:
            return Told(refused=refused(error))
        except Failed as failed:
            return Told(refused=failed.refused)


class Failed(Exception):
    """What a client tells otherwise than by its library's own errors."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


def refused(error: openai.APIError | anthropic.APIError) -> Refused:
    return Refused(
        kind=type(error).__name__,
        status=getattr(error, "status_code", None),
        type=getattr(error, "type", None),
        code=getattr(error, "code", None),
        param=getattr(error, "param", None),
        message=error.message,
    )


# openai-python


def openai_python(ask: Ask) -> Answer:
    with OpenAI(api_key=ask.key, base_url=ask.base_url, max_retries=ask.retries) as ai:
        calls = {
            "chat": _chat,
            "completions": _completions,
            "models": _models,
            "responses": _responses,
        }
        return calls[ask.api](ai, ask)


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


def _responses(ai: OpenAI, ask: Ask) -> Answer:
    body: dict[str, Any] = {"model": ask.model, "input": ask.messages}
    if ask.max_tokens is not None:
        body["max_output_tokens"] = ask.max_tokens
    if ask.temperature is not None:
        body["temperature"] = ask.temperature
    if ask.schema is not None:
        form = {"type": "json_schema", "name": "it", "schema": ask.schema}
        body["text"] = {"format": form}
    if ask.tools is not None:
        body["tools"] = [{"type": "function", **tool} for tool in ask.tools]
    if ask.tool_choice is not None:
        body["tool_choice"] = ask.tool_choice
    if not ask.stream:
        return _response(ai.responses.create(**body))
    text, pieces = "", 0
    with ai.responses.create(**body, stream=True) as events:
        for event in events:
            if event.type == "response.output_text.delta":
                text += event.delta
                pieces += 1
                if ask.leave_after is not None and pieces >= ask.leave_after:
                    return Answer(text, pieces=pieces, left=True)
            elif event.type == "response.failed":
                error = event.response.error
                assert error is not None
                raise Failed(Refused("response.failed", code=error.code, message=error.message))
            elif event.type in {"response.completed", "response.incomplete"}:
                whole = _response(event.response, pieces)
                assert whole.text == text
                return whole
    raise AssertionError("the stream ended without a last word")


def _response(response: Any, pieces: int = 0) -> Answer:
    calls = [item for item in response.output if item.type == "function_call"]
    return Answer(
        text=response.output_text,
        finish=FINISHES.get(response.status, response.status),
        usage=(response.usage.input_tokens, response.usage.output_tokens),
        calls=[Call(call.name, call.arguments) for call in calls],
        pieces=pieces,
    )


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
        use_responses_api=ask.api == "responses",
        **_limits(ask),
    )
    bound = _bound(ask)
    if not ask.stream:
        return _read(llm.invoke(ask.messages, **bound))
    try:
        return _streamed_langchain(llm.stream(ask.messages, **bound), ask)
    except ValueError as fault:  # so it tells of response.failed
        code = str(fault).partition(":")[0]
        raise Failed(Refused("ValueError", code=code, message=str(fault))) from fault


def _streamed_langchain(parts: Any, ask: Ask) -> Answer:
    pieces = 0
    taken = []
    for part in parts:
        taken.append(part)
        pieces += bool(part.text)
        if ask.leave_after is not None and pieces >= ask.leave_after:
            parts.close()
            return _read(_joined(taken), pieces=pieces, left=True)
    return _read(_joined(taken), pieces=pieces)


def _joined(parts: Iterable[Any]) -> Any:
    first, *rest = parts
    for part in rest:
        first += part
    return first


def _read(message: Any, *, pieces: int = 0, left: bool = False) -> Answer:
    usage, said = message.usage_metadata, message.response_metadata
    return Answer(
        text=str(message.text),
        finish=said.get("finish_reason") or FINISHES.get(said.get("status")),
        usage=usage and (usage["input_tokens"], usage["output_tokens"]),
        calls=[Call(call["name"], json.dumps(call["args"])) for call in message.tool_calls],
        pieces=pieces,
        left=left,
    )


# anthropic-python


def anthropic_python(ask: Ask) -> Answer:
    base_url = ask.base_url.removesuffix("/v1")  # it says /v1/messages itself
    with Anthropic(api_key=ask.key, base_url=base_url, max_retries=ask.retries) as ai:
        body: dict[str, Any] = {"model": ask.model, "messages": ask.messages}
        body["max_tokens"] = ask.max_tokens or 64
        if ask.temperature is not None:
            body["extra_body"] = {"temperature": ask.temperature}  # it has no such argument
        if ask.tools is not None:
            body["tools"] = [
                {"name": tool["name"], "input_schema": tool["parameters"]} for tool in ask.tools
            ]
        if ask.tool_choice is not None:
            body["tool_choice"] = {"type": {"required": "any"}[str(ask.tool_choice)]}
        if not ask.stream:
            return _message(ai.messages.create(**body))
        text, pieces = "", 0
        with ai.messages.stream(**body) as stream:
            for piece in stream.text_stream:
                text += piece
                pieces += 1
                if ask.leave_after is not None and pieces >= ask.leave_after:
                    return Answer(text, pieces=pieces, left=True)
            whole = _message(stream.get_final_message(), pieces)
        assert whole.text == text
        return whole


def _message(message: Any, pieces: int = 0) -> Answer:
    blocks = message.content
    return Answer(
        text="".join(block.text for block in blocks if block.type == "text"),
        finish=FINISHES.get(message.stop_reason, message.stop_reason),
        usage=(message.usage.input_tokens, message.usage.output_tokens),
        calls=[Call(b.name, json.dumps(b.input)) for b in blocks if b.type == "tool_use"],
        pieces=pieces,
    )


BY_NAME = {
    "openai-python": openai_python,
    "LangChain": langchain_python,
    "anthropic-python": anthropic_python,
}
