"""Models of each family with tools, as small as they can be: a byte tokenizer with the family's control tokens, and a
chat template as the family writes it.
"""

from __future__ import annotations

import functools
import json

import msgspec

from executor.contract import ModelCard
from executor.echo_card import IM_END, IM_START, echo_card, tokenizer_json
from gateway.text.templates import ChatTemplate
from gateway.text.tokenizer import Vocabulary
from gateway.tools.formats import Style

_FIRST = IM_END + 1

HERMES = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\nCall by <tool_call>\\n{...}\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

LLAMA3 = """{{- '<|begin_of_text|>' }}
{%- if tools is not none %}
    {{- '<|im_start|>system\\nGiven these functions, answer with JSON for a call.\\n\\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}{{- '<|im_end|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|im_start|>' + message['role'] + '\\n\\n' + message['content'] | trim + '<|im_end|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|im_start|>assistant\\n\\n{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}{{- '}<|im_end|>' }}
    {%- else %}
        {{- '<|im_start|>ipython\\n\\n' }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}{{- '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n\\n' }}{%- endif %}"""

MISTRAL = """{{- '<s>' }}
{%- if tools is not none %}
    {{- '[AVAILABLE_TOOLS] [' }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}{{- '{"type": "function", "function": {' }}
        {%- for key, val in tool.items() if key != "return" %}
            {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
            {%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
            {%- if not loop.last %}{{- ", " }}{%- endif %}
        {%- endfor %}
        {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
    {%- endfor %}
    {{- "[/AVAILABLE_TOOLS]" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[TOOL_CALLS] [' }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}{{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ', ' }}{%- else %}{{- ']' + '<|im_end|>' }}{%- endif %}
        {%- endfor %}
    {%- elif message.role == 'assistant' %}{{- ' ' + message.content + '<|im_end|>' }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + ', ' }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}"""

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_CONTROL: dict[str, tuple[str, ...]] = {
    "hermes": (),
    "llama3_json": ("<|begin_of_text|>", "<|python_tag|>"),
    "mistral": (
        "<s>",
        "[TOOL_CALLS]",
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
    ),
    "named": ("<s>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[INST]", "[/INST]"),
    "smollm2": (),
}
_TEMPLATES = {
    "hermes": HERMES,
    "llama3_json": LLAMA3,
    "mistral": MISTRAL,
    "named": MISTRAL,
    "smollm2": SMOLLM2,
}
FAMILIES = tuple(_TEMPLATES)


def card(family: str) -> ModelCard:
    """Its control tokens are 256 (<|im_start|>), 257 (<|im_end|>, which ends an answer), and those from 258 on."""
    document = json.loads(tokenizer_json())
    for place, text in enumerate(_CONTROL[family]):
        document["added_tokens"].append(
            {**document["added_tokens"][0], "id": _FIRST + place, "content": text}
        )
    size = _FIRST + len(_CONTROL[family])
    return msgspec.structs.replace(
        echo_card(context_tokens=16_384, kv_blocks=2048),
        vocab_size=size,
        tokenizer_json=json.dumps(document, ensure_ascii=False).encode(),
        chat_template=_TEMPLATES[family],
        special_token_ids=tuple(range(IM_START, size)),
    )


@functools.cache
def model(family: str) -> tuple[Vocabulary, ChatTemplate, Style]:
    found = card(family)
    vocabulary = Vocabulary.from_card(found)
    template = ChatTemplate.compile(found, vocabulary)
    assert template is not None
    style = template.style()
    assert style is not None
    return vocabulary, template, style
