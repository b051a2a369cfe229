"""A Modelfile, with which Ollama uses a GGUF file as it was trained.

Ollama runs templates in Go's text/template instead of the model's chat template. The chat template is therefore
translated from what it writes for sample conversations. The translation is used only if it writes the same for all of
them. Format: https://github.com/ollama/ollama/blob/main/docs/modelfile.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from trainer_core.data.columns import Turn
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.messages import TraindeckError

_CONTENTS: Final = ("xContent0x", "xContent1x", "xContent2x", "xContent3x")
_ROLES: Final[tuple[tuple[str, ...], ...]] = (
    ("user",),
    ("user", "assistant", "user"),
    ("system", "user"),
    ("system", "user", "assistant", "user"),
)
_WITHOUT_SYSTEM: Final = 2  # of them


def modelfile(file: str, codec: Codec, is_chat: bool) -> str:
    """Content of the file for the GGUF file `file` in the same folder. Without a translation it has no template."""
    lines = [f"FROM ./{file}"]
    template = _translate(codec) if is_chat else "{{ .Prompt }}"
    if template:
        lines.append(f'TEMPLATE """{template}"""')
    stops = [str(codec.tokenizer.id_to_token(number)) for number in sorted(codec.stop_token_ids)]
    lines += [f'PARAMETER stop "{token}"' for token in stops if '"' not in token]
    return "\n".join([*lines, ""])


@dataclass(frozen=True, slots=True)
class _Parts:
    """What surrounds the contents of a conversation."""

    start: str  # before a conversation without a system prompt
    system: tuple[str, str] | None  # before and after the content; None: the template has no system prompts
    user: str  # before the content
    assistant: tuple[str, str]
    prompt: str  # after the last content

    def render(self, turns: Sequence[Turn]) -> str:
        """What the translated template writes."""
        around = {"system": self.system or ("", ""), "user": (self.user, ""), "assistant": self.assistant}
        start = "" if turns[0][0] == "system" else self.start
        return start + "".join(around[role][0] + text + around[role][1] for role, text, *_ in turns) + self.prompt

    def to_go(self) -> str:
        (answer, end), content = self.assistant, "{{ .Content }}"
        start = f"{{{{ if eq $i 0 }}}}{self.start}{{{{ end }}}}" if self.start else ""
        parts = [
            '{{ range $i, $_ := .Messages }}{{ if eq .Role "user" }}', start, self.user, content,
            '{{ else if eq .Role "assistant" }}', answer, content, end,
        ]  # fmt: skip
        if self.system is not None:
            parts += ['{{ else if eq .Role "system" }}', self.system[0], content, self.system[1]]
        return "".join([*parts, "{{ end }}{{ end }}", self.prompt])


def _translate(codec: Codec) -> str:
    """The chat template in Go's language; empty if it writes anything else than fixed texts around contents."""
    rendered = []
    for roles in _ROLES:
        turns = [*zip(roles, _CONTENTS, strict=False)]
        try:
            text = _render(codec, turns)
        except TraindeckError:  # it has no system prompts
            continue
        rendered.append((turns, text, _split(text, turns)))
    pieces = [one for _, _, one in rendered if one is not None]
    if len(pieces) < len(rendered) or len(pieces) < _WITHOUT_SYSTEM:
        return ""
    parts = _find_parts(pieces[0], pieces[1], pieces[-1])
    is_same = all(parts.render(turns) == text for turns, text, _ in rendered)
    is_plain = not any(mark in text for _, text, _ in rendered for mark in ("{{", "}}", '"""'))
    return parts.to_go() if is_same and is_plain else ""


def _find_parts(question: list[str], chat: list[str], with_system: list[str]) -> _Parts:
    """What surrounds contents, from what surrounds them in the samples of `_ROLES`: the first two, and the last."""
    user = _common_suffix(question[0], chat[2])
    system = None
    if with_system is not chat:
        user = _common_suffix(user, with_system[1])
        system = with_system[0], with_system[1].removesuffix(user)
    return _Parts(
        start=question[0].removesuffix(user),
        system=system,
        user=user,
        assistant=(chat[1], chat[2].removesuffix(user)),
        prompt=question[1],
    )


def _render(codec: Codec, turns: Sequence[Turn]) -> str:
    """A prompt as text, without the tokens that Ollama writes before every text."""
    pieces, _ = codec.require_template().render_prompt(turns)
    ids = [piece for piece in pieces[: len(codec.prefix_ids)] if isinstance(piece, int)]
    if ids == codec.prefix_ids:
        pieces = pieces[len(ids) :]
    name_of = codec.tokenizer.id_to_token
    return "".join(str(name_of(piece)) if isinstance(piece, int) else piece[0] for piece in pieces)


def _common_suffix(one: str, other: str) -> str:
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(one), reversed(other), strict=False))
    return "".join(character for character, _ in pairs)[::-1]


def _split(text: str, turns: Sequence[Turn]) -> list[str] | None:
    """What surrounds the contents; None if one is missing, repeated or changed."""
    parts = []
    for _, content, *_ in turns:
        before, found, text = text.partition(content)
        if not found:
            return None
        parts.append(before)
    return [*parts, text]
