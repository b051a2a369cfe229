"""A fake of `generate --control stdin`, without a model: `fake_generator.py generate CHECKPOINT …`.

Its text contains the seed and the step, which is 0 for a base model; with temperature 0 it contains neither. A
checkpoint of a run whose name begins with `chat` is a chat model. A prompt with “refuse” is rejected; one with “deaf”
ignores commands during its generation. No torch, no Qt.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.process.fake_trainer import emit, listen, next_command
from trainer_core import protocol


def main() -> int:
    folder = Path(sys.argv[sys.argv.index("generate") + 1])
    base = "--base" in sys.argv
    step, run = (0, folder) if base else (int(folder.name.removeprefix("step-")), folder.parent.parent)
    chat = run.name.startswith("chat")
    listen()
    emit(
        protocol.ModelLoaded(
            checkpoint=str(folder), step=step, chat=chat, parameters=1, device="CPU (1 thread)", max_seq_len=64
        )
    )
    while (command := next_command(0.02)) is not None and not isinstance(command, protocol.Stop):
        if isinstance(command, protocol.Generate):
            generate(command, step)
    return 0


def generate(command: protocol.Generate, step: int) -> None:
    prompt = command.prompt or "".join(turn.content for turn in command.turns)
    if "refuse" in prompt:
        emit(protocol.Warn(code="data.chat_refused", params={"reason": "it has no messages"}))
    max_tokens = 0 if "refuse" in prompt else command.max_tokens
    tokens, reason = 0, "failed" if "refuse" in prompt else "length"
    while tokens < max_tokens:
        if "deaf" not in prompt and isinstance(next_command(), protocol.Interrupt):
            reason = "interrupted"
            break
        tokens += 1
        origin = f"seed{command.seed}step{step}" if command.temperature else ""
        emit(protocol.GeneratedPiece(id=command.id, piece=f"{origin}word{tokens} ", tokens=tokens))
        time.sleep(0.002)
    emit(
        protocol.GenerationDone(
            id=command.id,
            tokens=tokens,
            prompt_tokens=len(prompt),
            seconds=1.0,
            tokens_per_s=float(tokens),
            reason=reason,  # type: ignore[arg-type]
        )
    )


if __name__ == "__main__":
    sys.exit(main())
