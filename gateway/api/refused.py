"""Request fields that would change the answer, and that Lockgate does not build (yet) or never will.

An unknown field is ignored, as every OpenAI-compatible server does.  A field that a client knows
from elsewhere and that would change the answer is refused, since to ignore it would be to lie.  Data
only: a name, the values that ask for nothing, and the sentence.  `null` always asks for nothing.
Source: API.md §1; DESIGN.md, settled 4 (`cache_salt`, `extra_key`, `chat_template`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.errors import ApiError, invalid

_NOT_YET = "'{name}' is not supported here yet. Leave it out."
_FUNCTIONS = "'{name}' is an older form that is not read here: use tools and tool_choice."
_SCHEMA = (
    "'{name}' is not a field here. For an answer of a given shape use response_format, or "
    "structured_outputs with one of json, regex, choice and grammar."
)
_SCOPE = (
    "'{name}' is refused: what may be shared in the cache follows from your identity and rights, "
    "never from a value in a request. Leave it out."
)
_TEMPLATE = (
    "'{name}' is refused: the chat template decides which text is control and which is yours, so it "
    "comes from the model alone. Leave it out, or send a finished prompt to /v1/completions."
)

_Table = Mapping[str, tuple[tuple[Any, ...], str]]

_RETENTION = (
    "'{name}' is refused: what is kept, where and for how long follows from your plan, never from a value "
    "in a request. Leave it out; to keep some of your conversations apart, give each a prompt_cache_key."
)

_EVERYWHERE: dict[str, tuple[tuple[Any, ...], str]] = {
    "chat_template": ((), _TEMPLATE),
    "allowed_token_ids": ((), _NOT_YET),
    "bad_words": (([],), _NOT_YET),
    "include_stop_str_in_output": ((False,), _NOT_YET),
    "length_penalty": ((1, 1.0), _NOT_YET),
    "logits_processors": ((), _NOT_YET),
    "min_length": ((0,), _NOT_YET),
    "prompt_embeds": ((), _NOT_YET),
    "prompt_logprobs": ((), _NOT_YET),
    "return_tokens_as_token_ids": ((False,), _NOT_YET),
    "thinking_token_budget": ((), _NOT_YET),
    "truncate_prompt_tokens": ((), _NOT_YET),
    "typical_p": ((1, 1.0), _NOT_YET),
    "use_beam_search": ((False,), _NOT_YET),
}
# What decides elsewhere what a cache shares (vLLM, SGLang, TensorRT-LLM, hosts).
_EVERYWHERE |= dict.fromkeys(
    (
        "cache_hash",
        "cache_key",
        "cache_namespace",
        "cache_salt",
        "cache_scope",
        "extra_key",
        "extra_keys",
        "prompt_cache_isolation_key",
    ),
    ((), _SCOPE),
)
_EVERYWHERE |= dict.fromkeys(
    (
        "bootstrap_room",
        "bypass_cache",
        "cached_content",
        "disable_prefix_cache",
        "kv_cache_retention_config",
        "kv_transfer_params",
        "no_cache",
        "skip_reading_prefix_cache",
    ),
    ((False,), _RETENTION),
)
_EVERYWHERE |= dict.fromkeys(
    (
        "ebnf",
        "grammar",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "json_schema",
        "regex",
        "structural_tag",
    ),
    ((), _SCHEMA),
)

_CHAT: _Table = {
    "add_generation_prompt": ((True,), _NOT_YET),
    "audio": ((), _NOT_YET),
    "best_of": ((1,), _NOT_YET),
    "continue_final_message": ((False,), _NOT_YET),
    "documents": ((), _NOT_YET),
    "echo": ((False,), _NOT_YET),
    "function_call": ((), _FUNCTIONS),
    "functions": ((), _FUNCTIONS),
    "modalities": ((["text"],), "Only text is answered here: leave '{name}' out."),
    "prediction": ((), _NOT_YET),
    "store": ((False,), "Answers are not stored here yet: leave '{name}' out, or send false."),
    "web_search_options": ((), "Nothing is fetched for a request: leave '{name}' out."),
}

_COMPLETION: _Table = {
    "echo": ((False,), _NOT_YET),
    "suffix": (("",), "Filling in the middle is not supported here: leave '{name}' out."),
}

_RESPONSES: _Table = {
    "context_management": ((), _NOT_YET),
    "conversation": ((), "'{name}' is not supported here: send the whole conversation as input."),
    "function_call": ((), "'{name}' is not a field here: use tools and tool_choice."),
    "functions": ((), "'{name}' is not a field here: use tools and tool_choice."),
    "logprobs": (
        (False,),
        "'{name}' is not a field here: use include: ['message.output_text.logprobs'].",
    ),
    "max_completion_tokens": ((), "'{name}' is not a field here: use max_output_tokens."),
    "max_tokens": ((), "'{name}' is not a field here: use max_output_tokens."),
    "messages": ((), "'{name}' is not a field here: use input."),
    "moderation": ((), _NOT_YET),
    "n": ((1,), "'{name}' is not a field here: a response is one answer."),
    "reasoning_effort": ((), "'{name}' is not a field here: use reasoning.effort."),
    "response_format": ((), "'{name}' is not a field here: use text.format."),
    "truncation": (("disabled",), "Nothing is left out of a conversation here: send 'disabled'."),
}

_MESSAGES: _Table = {
    "container": ((), _NOT_YET),
    "inference_geo": (
        (),
        "'{name}' is not supported here: a model is served where this server is.",
    ),
    "mcp_servers": (([],), "Nothing is fetched for a request: leave '{name}' out."),
    "output_format": ((), "'{name}' is not a field here: use output_config.format."),
    "speed": (("standard",), _NOT_YET),
}

CHAT: _Table = MappingProxyType({**_EVERYWHERE, **_CHAT})
COMPLETION: _Table = MappingProxyType({**_EVERYWHERE, **_COMPLETION})
RESPONSES: _Table = MappingProxyType({**_EVERYWHERE, **_RESPONSES})
MESSAGES: _Table = MappingProxyType({**_EVERYWHERE, **_MESSAGES})


def refuse(request: Mapping[str, Any], table: _Table) -> None:
    """Raises ApiError 400 `unsupported` naming the first field that asks for something."""
    for name, (neutral, sentence) in table.items():
        value = request.get(name)
        if value is None or any(type(value) is type(one) and value == one for one in neutral):
            continue
        raise unsupported(sentence.format(name=name), param=name)


def unsupported(message: str, *, param: str, code: str = "unsupported") -> ApiError:
    return invalid(message, param=param, code=code)
