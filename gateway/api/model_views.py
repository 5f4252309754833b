"""What a model is shown as, to who asks: what it can, and how much of it is theirs.

In OpenAI's form with fields of ours beside (`max_model_len` is vLLM's name), or in Anthropic's.  Only what holds for
this caller: limits are the tightest of all their scopes, classes and tiers those of their plan and credential.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from gateway import lifecycle
from gateway.api.chat import CHAT
from gateway.api.completions import COMPLETIONS
from gateway.api.messages.family import MESSAGES
from gateway.api.responses.making import RESPONSES
from gateway.house import Deployment, House, Reading
from gateway.text.sandbox import TemplateFault
from gateway.text.tokenizer_json import TokenizerFault
from policies import classes
from policies.facts import Principal, Standing

CONVERSING = (CHAT, RESPONSES, MESSAGES)
"""The endpoints that a model without a chat template cannot serve."""
_WISHES = ("default", "flex", "priority")


def model_view(house: House, who: Principal, deployment: Deployment) -> dict[str, object]:
    """`max_prompt_tokens` and `max_output_tokens` each by itself: both together are at most `max_model_len`."""
    card = deployment.executor.card
    reading = _reading(deployment)
    standing = lifecycle.standing_of(house, who)
    prompt, output = _most(standing, None if card is None else card.context_tokens)
    return {
        "id": deployment.name,
        "object": "model",
        "created": deployment.created_s,
        "owned_by": "lockgate",
        "max_model_len": None if card is None else card.context_tokens,
        "max_prompt_tokens": prompt,
        "max_output_tokens": output,
        "numerics": deployment.numerics,
        "aliases": list(deployment.aliases),
        "ready": card is not None,
        "service_classes": list(standing.classes),
        "service_tiers": _tiers(house, who),
        "endpoints": _endpoints(reading),
        "capabilities": {
            "tools": reading is not None and reading.style is not None,
            "structured_outputs": reading is not None,
        },
    }


def anthropic_view(house: House, who: Principal, deployment: Deployment) -> dict[str, object]:
    card = deployment.executor.card
    standing = lifecycle.standing_of(house, who)
    prompt, output = _most(standing, None if card is None else card.context_tokens)
    created = datetime.fromtimestamp(deployment.created_s, UTC)
    return {
        "type": "model",
        "id": deployment.name,
        "display_name": deployment.name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": prompt,
        "max_tokens": output,
    }


def anthropic_page(views: Sequence[dict[str, object]]) -> dict[str, object]:
    """All there are."""
    return {
        "data": views,
        "has_more": False,
        "first_id": views[0]["id"] if views else None,
        "last_id": views[-1]["id"] if views else None,
    }


def _most(standing: Standing, context_tokens: int | None) -> tuple[int | None, int | None]:
    """Of a prompt and of an answer, each with one token of the other."""
    room = None if context_tokens is None else context_tokens - 1
    limits = list(standing.limits.values())
    return (
        _least(room, (each.max_prompt_tokens for each in limits)),
        _least(room, (each.max_output_tokens for each in limits)),
    )


def _least(room: int | None, numbers: Iterable[int | None]) -> int | None:
    return min((each for each in (room, *numbers) if each is not None), default=None)


def _tiers(house: House, who: Principal) -> list[str]:
    """What an answer may say it was served at, whatever is wished for."""
    named = house.classes.named
    served = (lifecycle.class_for(house, who, wish) for wish in _WISHES)
    return sorted({classes.tier_used(each, named).value for each in served})


def _endpoints(reading: Reading | None) -> list[str]:
    if reading is None:
        return []
    conversing = () if reading.template is None else CONVERSING
    return sorted(each.route for each in (COMPLETIONS, *conversing))


def _reading(deployment: Deployment) -> Reading | None:
    """None where it serves nobody: it loads, or its tokenizer or template is broken, of which its own requests tell."""
    if deployment.executor.card is None:
        return None
    try:
        return deployment.reading()
    except (TokenizerFault, TemplateFault):
        return None
