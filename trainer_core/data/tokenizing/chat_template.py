"""Chat templates: a conversation as a sequence of tokens, and which of them are in the loss.

A Jinja template puts special tokens such as `<|im_end|>` around what people wrote. Messages are always plain text:
where one spells a special token, a private-use character is written into it before rendering and removed afterwards.
Such a conversation is also rendered as it is; if the two texts differ, it is refused.

The loss covers the template's `{% generation %}` blocks. Without them, it covers what the model has to write itself:
everything from the end of the generation prompt to the token that ends the assistant's turn. Probe conversations show
the header that precedes each answer (what `add_generation_prompt` writes) and what ends an answer. Headers that
messages spell are escaped like special tokens, so the headers in a rendered text correspond to turns, in order. A
conversation in which their numbers differ is refused.

Text is cut for encoding only at special tokens and where an answer begins, as in generation, where the prompt is
encoded on its own.

No torch, no Qt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import accumulate, chain, compress, pairwise, takewhile
from typing import Final, NamedTuple

from tokenizers import AddedToken

from trainer_core.data.columns import THINK_TAGS, TOOLS_ROLE, Turn, is_trained_on, turn_fields
from trainer_core.data.tokenizing.conversations import (
    CHATML_TEMPLATE,
    IM_END,
    IM_START,
    Thinking,
    chat_refused_error,
    drop_calls,
    no_answers_error,
    shorten_tool_call_ids,
    to_message,
    validate_turns,
    with_reasoning,
)
from trainer_core.data.tokenizing.encoder import PrecededBy
from trainer_core.data.tokenizing.sandbox import GENERATION_START, GENERATION_STOP, SandboxedTemplate
from trainer_core.messages import TraindeckError

_CACHE_SIZE: Final = 64  # orders of roles; each takes up to some 1 MB
_ESCAPE: Final = "\U0010fffb"  # private use: within spelled tokens
_RESERVED: Final = (_ESCAPE, GENERATION_START, GENERATION_STOP)
_PROBE: Final[tuple[Turn, ...]] = (
    ("user", "xTurn0x"),
    ("assistant", "xTurn1x"),
    ("user", "xTurn2x"),
    ("assistant", "xTurn3x"),
)
_CALL: Final = {"id": "call00001", "type": "function", "function": {"name": "xCall", "arguments": {}}}
_TOOL_PROBE: Final[tuple[Turn, ...]] = (
    ("user", "xTurn0x"),
    ("assistant", "", json.dumps({"tool_calls": [_CALL]})),
    ("tool", "xTurn1x", json.dumps({"tool_call_id": "call00001", "name": "xCall"})),
    ("assistant", "xTurn2x"),
)
_NEVER: Final = "(?!)"
_TAG: Final = re.compile("<(?=/?think>)")  # the first character of `THINK_TAGS`

Piece = int | tuple[str, PrecededBy]  # the id of a special token, or text that is encoded on its own
_CHATML_HEADER: Final[Piece] = ("assistant\n", "mark")
_NEWLINE: Final[Piece] = ("\n", "mark")


class Rendering(NamedTuple):
    """A rendered conversation. `in_loss`: [start, stop) of pieces."""

    pieces: list[Piece]
    in_loss: list[tuple[int, int]]


class ChatTemplate:
    """The chat template of a model.

    Args:
        named_tokens: Tokens that the template may use by name (`bos_token`, `eos_token`).
        added_tokens: Tokens added to the vocabulary, by id. No message may become a special one.
        default_end_id: Ends the last answer if the template does not.
        for_tools: The template may require tools.
        thinking: Whether answers keep their reasoning where the template would remove it, or have none.

    Attributes:
        control_tokens: Tokens that only the template writes, though the tokenizer does not mark them as special
            (DeepSeek's `<｜User｜>`). Tags of reasoning are none: answers have them.
        end_of_turn: The token that ends the last answer. `end_of_turn_ids`: all tokens that end an answer.

    Raises `data.chat_refused` for a template that cannot be used.
    """

    def __init__(
        self,
        source: str,
        named_tokens: Mapping[str, str],
        added_tokens: Mapping[int, AddedToken],
        default_end_id: int,
        now: datetime,
        for_tools: bool = False,
        thinking: Thinking = "auto",
    ) -> None:
        self._named_tokens, self._default_end_id, self._thinking = dict(named_tokens), default_end_id, thinking
        self._template = SandboxedTemplate(source, now)
        tools: list[Turn] = [(TOOLS_ROLE, "[]")] if for_tools else []
        before, gap, between, last_gap, after = self._literals([*tools, *_PROBE])
        gap = _common_prefix(gap, last_gap)
        self._ids = {token.content: number for number, token in added_tokens.items()}
        words = [token.content for token in added_tokens.values() if not token.special and token.content.strip()]
        around = (before, gap, between, after)
        self.control_tokens = frozenset(
            word
            for word in words
            if not word.strip().isalnum() and word not in THINK_TAGS and any(word in literal for literal in around)
        )
        special = [one for one in added_tokens.values() if one.special or one.content in self.control_tokens]
        names = [token.content for token in special]
        self._rstrip = {token.content for token in special if token.rstrip}
        self._special_pattern = re.compile(f"({_any_of(names)})")
        ends = [self._find_end_token(literal) for literal in (between, after)]
        end_ids = [self._ids[token] if token else default_end_id for token in ends]
        self.end_of_turn, self.end_of_turn_ids = end_ids[-1], frozenset(end_ids)
        self._end_tokens = {*ends, self._find_call_end(_TOOL_PROBE[1], tools)} - {""}
        footer = "" if ends[0] else between  # what follows an answer without an end token
        self._end = re.compile(_any_of(self._end_tokens) + (f"|(?={re.escape(footer)})" if footer.strip() else ""))
        self._blank_ending = "" if after.strip() else after  # after the last answer
        header = self._compile_header(gap, ends, tools)
        self._spelled = _compile_spelled([*names, header, footer.strip()])
        self._render_cached = lru_cache(_CACHE_SIZE)(self._render_marked)
        is_chatml = source == CHATML_TEMPLATE and self._rstrip.isdisjoint((IM_START, IM_END))
        self._chatml_ids = [self._ids.get(name, -1) for name in (IM_START, IM_END)] if is_chatml else None

    # --- probing --------------------------------------------------------------------------------------

    def _literals(self, turns: Sequence[Turn]) -> list[str]:
        """What the template writes around the contents of a probe."""
        parts = re.split(r"xTurn(\d)x", self._render(turns))
        if parts[1::2] != re.findall(r"xTurn(\d)x", " ".join(turn[1] for turn in turns)):
            raise no_answers_error()
        return parts[::2]

    def _find_end_token(self, literal: str) -> str:
        """The special token at the beginning of what follows an answer; empty if there is none."""
        token = self._special_pattern.search(literal)
        return token[0] if token and not any(map(str.isalnum, literal[: token.start()])) else ""

    def _compile_header(self, gap: str, ends: Sequence[str], tools: Sequence[Turn]) -> str:
        """Sets `_header`, which matches up to where an answer begins, and `_header_roles`, the roles of the turns
        that have one: assistants, or all others where the header ends their turns. Returns the header's text.

        The header is what `gap` (between a prompt and its answer) and the end of the prompt share.
        """
        tail = self._render([*tools, *_PROBE[:-1]], prompt=True).rpartition("xTurn2x")[2]
        shared = len(_common_prefix(gap, tail))
        text = re.split(_any_of(ends), gap)[-1].lstrip()
        given, rest = text[: max(shared - len(gap) + len(text), 0)], tail[shared:]
        if given.strip():  # `rest`: in a prompt `<think>`, for example, which the template writes for some answers only
            header = re.escape(given) + (f"(?:{re.escape(rest)})?" if rest else "")
        else:  # the prompt does not have the header, so the model writes it
            header = f"(?={re.escape(text.strip())})" if text.strip() else _NEVER
        self._header = re.compile(header)
        alone = self._render([*tools, _PROBE[0]])
        self._header_roles = ("user", "tool") if self._header.search(alone) else ("assistant",)
        self._header = re.compile(f"{header}|{self._find_tool_header(tools)}")
        return given.strip() or text.strip()

    def _find_tool_header(self, tools: Sequence[Turn]) -> str:
        """A pattern of the special token between a tool's result and an answer, if the usual header is not there."""
        try:
            gap = self._literals([*tools, *_TOOL_PROBE])[2]
            tail = self._render([*tools, *_TOOL_PROBE[:-1]], prompt=True).rpartition("xTurn1x")[2]
        except TraindeckError:
            return _NEVER
        found = self._special_pattern.findall(_common_prefix(gap, tail))
        return re.escape(found[-1]) if found and not self._header.search(gap) else _NEVER

    def _find_call_end(self, call: Turn, tools: Sequence[Turn]) -> str:
        """The special token that ends a turn with tool calls; empty if the template does not write its calls."""
        content = "x" if call[1].strip() else ""  # the real one may name the function
        prompt: list[Turn] = [*tools, ("user", "?")]
        try:
            given, text = self._render(prompt, prompt=True), self._render([*prompt, (call[0], content, *call[2:])])
        except TraindeckError:
            return ""
        if not text.startswith(given):
            return ""
        written = text[len(given) :].rstrip()
        found = self._special_pattern.findall(written)
        names = [one["function"]["name"] for one in turn_fields(call)["tool_calls"]]
        return found[-1] if found and written.endswith(found[-1]) and all(name in written for name in names) else ""

    # --- rendering ------------------------------------------------------------------------------------

    def _render_marked(self, turns: Sequence[Turn], prompt: bool) -> str:
        """The text, with the characters that delimit generation blocks. Raises `data.chat_refused`."""
        tools = json.loads(turns[0][1]) if turns and turns[0][0] == TOOLS_ROLE else None
        messages = [to_message(turn) for turn in turns if turn[0] != TOOLS_ROLE]
        return self._template.render(messages, tools, add_generation_prompt=prompt, **self._named_tokens)

    def _render(self, turns: Sequence[Turn], prompt: bool = False) -> str:
        return _remove_reserved(self._render_marked(turns, prompt))

    def drop_unsupported_calls(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """The conversation without turns whose tool calls the template cannot write, and their results."""
        if max(map(len, turns), default=0) <= 2:
            return turns
        tools = [turn for turn in turns[:1] if turn[0] == TOOLS_ROLE]

        def is_supported(turn: Turn) -> bool:
            return self._find_call_end(turn, tools) in self._end_tokens

        kept = drop_calls(turns, is_supported)
        if len(kept) == len(turns):
            return kept
        return max(kept, drop_calls(shorten_tool_call_ids(turns), is_supported), key=len)

    def render(self, turns: Sequence[Turn]) -> Rendering:
        """A whole conversation. Raises `data.chat_refused`."""
        if self._chatml_ids is not None:
            return _render_chatml(with_reasoning(turns, self._thinking), *self._chatml_ids)
        text = self._render_escaped(turns, prompt=False)
        if GENERATION_START in text:
            parts = re.split(f"[{GENERATION_START}{GENERATION_STOP}]", text)
            places = [*accumulate(map(len, parts))]
            return self._split("".join(parts), _select_trained([*zip(places[::2], places[1::2], strict=False)], turns))
        answers = self._find_answers(text, turns)
        if not answers or answers[-1][1] >= 0:
            return self._split(text, answers)
        text = text.removesuffix(self._blank_ending)
        pieces, in_loss = self._split(text, [*answers[:-1], (answers[-1][0], len(text))])
        return Rendering([*pieces, self._default_end_id], [*in_loss[:-1], (in_loss[-1][0], len(pieces) + 1)])

    def render_prompt(self, turns: Sequence[Turn]) -> Rendering:
        """A conversation up to the place where the model begins to write. Raises `data.chat_refused`."""
        return self._split(self._render_escaped(turns, prompt=True), [])

    def render_prompt_text(self, turns: Sequence[Turn]) -> str:
        """The text of `render_prompt`, as other programs render it. Raises `data.chat_refused`."""
        return _remove_reserved(self._render_escaped(turns, prompt=True))

    def _render_escaped(self, turns: Sequence[Turn], prompt: bool) -> str:
        """The text, in which no message spells a special token or a header. Raises `data.chat_refused`."""
        validate_turns(turns)
        if any(character in part for turn in turns for part in turn for character in _RESERVED):
            raise chat_refused_error("it has one of the characters U+10FFFB to U+10FFFD")
        reasoned = with_reasoning(turns, self._thinking)
        if self._thinking == "keep":
            reasoned = self._hide_reasoning(self._drop_unsupported_text(reasoned, turns), prompt)
        turns = reasoned
        escaped = tuple(
            (turn[0], *(self._spelled.sub(rf"\g<0>{_ESCAPE}", part) for part in turn[1:])) for turn in turns
        )
        text = self._render_marked(escaped, prompt)
        if escaped != tuple(turns) and _remove_reserved(text) != self._render(turns, prompt):
            raise _untraceable_error()
        # Parts of several messages, joined by the template, could spell a special token.
        neutral = self._render_cached(_neutral(escaped), prompt)
        if self._special_pattern.findall(text) != self._special_pattern.findall(neutral):
            raise _untraceable_error()
        return text

    def _drop_unsupported_text(self, reasoned: Sequence[Turn], turns: Sequence[Turn]) -> list[Turn]:
        """`reasoned`, with the turn in `turns` where the template rejects text beside tool calls (Mistral)."""
        tools = [turn for turn in turns[:1] if turn[0] == TOOLS_ROLE]
        return [
            turn if one != turn and "tool_calls" in turn_fields(turn) and not self._find_call_end(one, tools) else one
            for one, turn in zip(reasoned, turns, strict=True)
        ]

    def _hide_reasoning(self, turns: Sequence[Turn], prompt: bool) -> Sequence[Turn]:
        """The conversation with escaped tags around the reasoning that the template would remove."""
        reasoned = [n for n, turn in enumerate(turns) if turn[0] == "assistant" and THINK_TAGS[1] in turn[1]]
        if not reasoned:
            return turns
        text, hidden = self._render_cached(_neutral(turns, reasoned), prompt), list(turns)
        for number in reasoned:
            if f"xThink{number}x" not in text:
                role, content, *fields = turns[number]
                hidden[number] = (role, _TAG.sub(rf"\g<0>{_ESCAPE}", content), *fields)
        return hidden

    # --- answers --------------------------------------------------------------------------------------

    def _find_answers(self, text: str, turns: Sequence[Turn]) -> list[tuple[int, int]]:
        """[start, stop) of each trained answer; stop is -1 if nothing ends the last one.

        Raises `data.chat_refused`.
        """
        headers = list(self._header.finditer(text))
        if len(headers) != sum(turn[0] in self._header_roles for turn in turns):
            raise _untraceable_error()
        found: list[tuple[int, int]] = []
        seen = before = 0
        for number, turn in enumerate(turns, 1):
            seen += turn[0] in self._header_roles
            if turn[0] != "assistant":
                continue
            if seen == before:  # two answers to one prompt: only one of them has a header
                raise _untraceable_error()
            before = seen
            if not is_trained_on(turn):
                continue
            start, limit = headers[seen - 1].end(), headers[seen].start() if seen < len(headers) else len(text)
            end = self._end.search(text, start, limit)
            if end is None and number < len(turns):
                raise _untraceable_error()
            found.append((start, end.end() if end else -1))
        return found

    def _split(self, text: str, answers: Sequence[tuple[int, int]]) -> Rendering:
        """Cuts a text at special tokens and at both ends of each answer."""
        pieces: list[Piece] = []
        in_loss: list[tuple[int, int]] = []
        preceded_by: PrecededBy = "start"
        strips_whitespace = False
        for number, (start, stop) in enumerate(pairwise([0, *chain.from_iterable(answers), len(text)])):
            first = len(pieces)
            for part, piece in enumerate(self._special_pattern.split(text[start:stop])):
                if part % 2:
                    pieces.append(self._ids[piece])
                    preceded_by, strips_whitespace = "mark", piece in self._rstrip
                elif piece := piece.lstrip() if strips_whitespace else piece:
                    pieces.append((_remove_reserved(piece), preceded_by))
                    preceded_by, strips_whitespace = "text", False
            if number % 2:
                in_loss.append((first, len(pieces)))
        return Rendering(pieces, in_loss)


def _render_chatml(turns: Sequence[Turn], start: int, end: int) -> Rendering:
    """What the built-in ChatML template writes. Rendering it would double the time of encoding."""
    validate_turns(turns)
    pieces: list[Piece] = []
    in_loss: list[tuple[int, int]] = []
    for role, content, *fields in turns:
        if role == "assistant":
            if not fields or is_trained_on((role, content, *fields)):
                in_loss.append((len(pieces) + 2, len(pieces) + 4))
            pieces += start, _CHATML_HEADER, (content, "text"), end, _NEWLINE
        elif role != TOOLS_ROLE:
            pieces += start, (f"{role}\n{content}", "mark"), end, _NEWLINE
    return Rendering(pieces, in_loss)


def _neutral(turns: Sequence[Turn], reasoned: Sequence[int] = ()) -> tuple[Turn, ...]:
    """The conversation with numbers as contents, and as the reasoning of the answers `reasoned`."""
    contents = [f"x{number}" for number in range(len(turns))]
    for number in reasoned:
        contents[number] = f"xThink{number}x".join(THINK_TAGS) + contents[number]
    return tuple(
        turn if turn[0] == TOOLS_ROLE or not turn[1].strip() else (turn[0], content, *turn[2:])
        for turn, content in zip(turns, contents, strict=True)
    )


def _common_prefix(a: str, b: str) -> str:
    return a[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))]


def _remove_reserved(text: str) -> str:
    for character in _RESERVED:
        text = text.replace(character, "")
    return text


def _any_of(texts: Iterable[str]) -> str:
    """A pattern that matches the longest of some texts."""
    return "|".join(map(re.escape, sorted(filter(None, texts), key=len, reverse=True))) or _NEVER


def _compile_spelled(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern of the first character of each text, plain or in JSON."""
    rests: dict[str, list[str]] = {}
    plain = set(filter(None, texts))
    for text in sorted(plain | {json.dumps(text, ensure_ascii=False)[1:-1] for text in plain}):
        rests.setdefault(text[0], []).append(text[1:])
    # Each alternative begins with a literal character, which re finds quickly; the lookahead finds overlaps.
    alternatives = [f"{re.escape(first)}(?={'|'.join(map(re.escape, rest))})" for first, rest in rests.items()]
    return re.compile("|".join(alternatives) or _NEVER)


def _select_trained(blocks: list[tuple[int, int]], turns: Sequence[Turn]) -> list[tuple[int, int]]:
    """The generation blocks of the answers that are trained on. Raises `data.chat_refused`."""
    trained = [is_trained_on(turn) for turn in turns if turn[0] == "assistant"]
    if all(trained):
        return blocks
    if len(trained) != len(blocks):
        raise _untraceable_error()
    return list(compress(blocks, trained))


def _untraceable_error() -> TraindeckError:
    return chat_refused_error("the model's chat template changes its messages in a way that cannot be followed")
