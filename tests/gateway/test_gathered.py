"""What a choice said, put together: text and calls keep their order."""

from __future__ import annotations

from gateway.api.answers import Said
from gateway.api.gathered import Gathered
from gateway.telling import Delta
from gateway.tools.calls import CallPart, ToolCall


def test_text_and_calls_keep_the_order_in_which_they_came() -> None:
    gathered = Gathered()
    for delta in (
        Delta(0, "Let me "),
        Delta(0, "look.", calls=(CallPart(0, id="a", name="look"),)),
        Delta(0, "", calls=(CallPart(0, '{"x":'), CallPart(0, "1}"))),
        Delta(0, "", calls=(CallPart(1, "{}", id="b", name="see"),)),
        Delta(0, "Done."),
    ):
        gathered.add(delta)
    choice = gathered.choice(0, "stop")
    look, see = ToolCall("a", "look", '{"x":1}'), ToolCall("b", "see", "{}")
    assert choice.parts == (Said("Let me look."), look, see, Said("Done."))
    assert choice.text == "Let me look.Done."
    assert choice.calls == (look, see)
    assert choice.tokens is None
