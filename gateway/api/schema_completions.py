"""POST /v1/completions: the request, read into a frozen `CompletionJob`.

A prompt is text, an array of token ids, or a list of either; choices are numbered across prompts, as
`prompt × n + choice`.  Text never yields special tokens; an array of ids is the client's own choice
of tokens, special ones included.
Refuses to know: the tokenizer, limits of a plan.  Source: API.md §1, §2 (21); SECURITY.md A1, A8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from gateway.api.refused import COMPLETION, refuse, unsupported
from gateway.api.schema import (
    CHOICES_MAX,
    CommonRequest,
    Controls,
    controls,
    object_of,
    shape,
    token_ids,
    whole,
)
from gateway.errors import ApiError, invalid


class CompletionRequest(CommonRequest, frozen=True, kw_only=True):
    prompt: Any
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=CHOICES_MAX)] | None = None


@dataclass(frozen=True, slots=True)
class CompletionJob:
    """Each of `prompts` is answered `controls.n` times."""

    controls: Controls
    prompts: tuple[str | tuple[int, ...], ...]


def parse_completion(body: object, *, vocab_size: int) -> CompletionJob:
    """Raises ApiError 400, naming `param`."""
    refuse(object_of(body), COMPLETION)
    request = shape(body, CompletionRequest)
    n = request.n or 1
    if request.best_of not in {None, n}:
        raise unsupported(
            "best_of: choosing the best of several answers is not supported here. Leave it out.",
            param="best_of",
        )
    prompts = _prompts(request.prompt, vocab_size)
    if len(prompts) * n > CHOICES_MAX:
        raise invalid(
            f"prompt: {len(prompts)} prompts with n={n} make more than {CHOICES_MAX} choices.",
            param="prompt",
        )
    return CompletionJob(
        controls(
            request,
            max_tokens=request.max_tokens,
            top_logprobs=request.logprobs,
            vocab_size=vocab_size,
        ),
        prompts,
    )


def _prompts(prompt: object, vocab_size: int) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(prompt, list) and prompt and not _is_id(prompt[0]):
        if len(prompt) > CHOICES_MAX:
            raise invalid(f"prompt: at most {CHOICES_MAX} prompts in a request.", param="prompt")
        return tuple(_prompt(one, f"prompt[{i}]", vocab_size) for i, one in enumerate(prompt))
    return (_prompt(prompt, "prompt", vocab_size),)


def _prompt(prompt: object, param: str, vocab_size: int) -> str | tuple[int, ...]:
    if isinstance(prompt, str) and prompt:
        return whole(prompt, param)
    if isinstance(prompt, list) and prompt and all(map(_is_id, prompt)):
        return token_ids(prompt, param, vocab_size)
    raise _not_a_prompt(param)


def _is_id(value: object) -> bool:
    """A whole number, which JSON's true is not.  Negative ones are refused with the rest."""
    return type(value) is int and value >= 0


def _not_a_prompt(param: str) -> ApiError:
    return invalid(
        f"{param}: expected text that is not empty, an array of token ids, or a list of either kind.",
        param=param,
    )
