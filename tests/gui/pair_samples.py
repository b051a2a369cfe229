"""Samples of good and bad answers, as a data report has them."""

from __future__ import annotations

import re

import msgspec

from trainer_core import protocol
from trainer_core.docgen.examples import EVENTS

PROMPT = "为什么天空是蓝色的？ Answer in two sentences."
CHOSEN = "Sunlight scatters on the molecules of the air, and blue light scatters most.\n因此天空看起来是蓝色的。"
REJECTED = "Sunlight is reflected by the oceans, and blue light is reflected most.\n因此天空看起来是海的颜色。"


def sample_of(*answers: tuple[str, bool], prompt: str = PROMPT, hidden: int = 0) -> protocol.SampleView:
    """Answers with whether they are good. `hidden`: tokens of the prompt that are not shown."""
    tokens: list[protocol.Token] = []
    views = []
    for document, (answer, is_good) in enumerate(answers):
        parts = [("<|im_start|>", 0, 1), (f"user\n{prompt}", 0, 0), ("<|im_end|>", 0, 1), ("\n", 0, 0)]
        parts += [("<|im_start|>", 0, 1), ("assistant\n", 0, 0), (answer, 1, 0), ("<|im_end|>", 1, 1)]
        own = [
            protocol.Token(text, len(text), bool(in_loss), bool(special), document)
            for part, in_loss, special in parts
            for text in ([part] if special else re.findall(r"\s?\w+|.|\n", part))
        ]
        tokens += own
        views.append(protocol.AnswerView(chosen=is_good, length=len(own) + hidden, skipped=hidden))
    return protocol.SampleView(tokens=tokens, length=len(tokens), answers=views)


PAIR = sample_of((CHOSEN, True), (REJECTED, False))
REPORT: protocol.DataReport = msgspec.structs.replace(
    EVENTS[protocol.DataReport],
    task="preference",
    samples=[PAIR, sample_of(("No.", False))],
    preference=protocol.PreferenceCounts(
        sides=2, chosen=153_450, rejected=153_450, chosen_tokens=61.4, rejected_tokens=48.2, equal=38, swapped=12
    ),
)
