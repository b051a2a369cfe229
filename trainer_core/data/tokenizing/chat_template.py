"""Chat templates: a conversation as a sequence of tokens, and which of them are in the loss.

A Jinja template puts special tokens such as `<|im_end|>` around what people wrote. Messages are always plain text:
where one spells a special token, a private-use character replaces the first character before rendering and is replaced
back afterwards. Such a conversation is also rendered as it is; if the two texts differ, it is refused.

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
from itertools import accumulate, compress, pairwise, takewhile
from typing import Any, Final, NamedTuple

from trainer_core.data.columns import TOOLS_ROLE, Turn, is_trained_on, turn_fields
from trainer_core.data.tokenizing.conversations import (
    CHATML_TEMPLATE,
    IM_END,
    IM_START,
    chat_refused_error,
    drop_calls,
    has_tools,
    no_answers_error,
    shorten_tool_call_ids,
    to_message,
    validate_turns,
)
from trainer_core.data.tokenizing.pieces import PrecededBy
from trainer_core.data.tokenizing.sandbox import GENERATION_START, GENERATION_STOP, SandboxedTemplate
from trainer_core.messages import TraindeckError

_CACHE_SIZE: Final = 64  # orders of roles; each takes up to some 1 MB
_LAST_ESCAPE: Final = 0x10FFFB  # private use; code points are assigned downwards
_PROBE: Final = tuple((role, f"xTurn{n}x") for n, role in enumerate(("user", "assistant", "user", "assistant")))
_PROBE_CALL: Final = {"id": "call00001", "type": "function", "function": {"name": "xCall", "arguments": {}}}
_TOOL_PROBE: Final = (
    ("user", "xTurn0x"),
    ("assistant", "", json.dumps({"tool_calls": [_PROBE_CALL]})),
    ("tool", "xTurn1x", json.dumps({"tool_call_id": "call00001", "name": "xCall"})),
    ("assistant", "xTurn2x"),
)
_NEVER: Final = "(?!)"


class SpecialToken(NamedTuple):
    """A token that only a template writes, and whether it absorbs white space on either side."""

    id: int
    lstrip: bool = False
    rstrip: bool = False


class Segment(NamedTuple):
    """A special token, or text that is encoded on its own."""

    text: str = ""
    token_id: int = -1  # -1: this is text
    in_loss: bool = False
    preceded_by: PrecededBy = "mark"


class ChatTemplate:
    """The chat template of a model.

    Args:
        named_tokens: Tokens that the template may use by name (`bos_token`, `eos_token`).
        special_tokens: Tokens that no message may become.
        added_tokens: Further tokens of the vocabulary.
        default_end_id: Ends the last answer if the template does not.
        for_tools: The template may require tools.

    Attributes:
        control_tokens: Tokens that only the template writes, though the tokenizer does not mark them as special
            (DeepSeek's `<｜User｜>`).
        end_of_turn: The token that ends the last answer. `end_of_turn_ids`: all tokens that end an answer.

    Raises `data.chat_refused` for a template that cannot be used.
    """

    def __init__(
        self,
        source: str,
        named_tokens: Mapping[str, str],
        special_tokens: Mapping[str, SpecialToken],
        added_tokens: Mapping[str, SpecialToken],
        default_end_id: int,
        now: datetime,
        for_tools: bool = False,
    ) -> None:
        self._named_tokens, self._default_end_id = dict(named_tokens), default_end_id
        self._template = SandboxedTemplate(source, now)
        self.uses_eos = "eos_token" in self._template.variables
        tools: list[Turn] = [(TOOLS_ROLE, "[]")] if for_tools else []
        literals, tail = self._probe_literals(tools)
        gap = _common_prefix(literals[1], literals[-2])  # between a prompt and its answer
        around = [literals[0], gap, *literals[2::2]]
        self.control_tokens = frozenset(
            word
            for word in added_tokens
            if word.strip() and not word.strip().isalnum() and any(word in literal for literal in around)
        )
        self._special_tokens = {**special_tokens, **{word: added_tokens[word] for word in self.control_tokens}}
        self._special_pattern = re.compile(f"({_any_of(self._special_tokens)})")
        ends = [self._find_end_token(literal) for literal in literals[2::2]]
        end_ids = [self._special_tokens[token].id if token else default_end_id for token in ends]
        self.end_of_turn, self.end_of_turn_ids = end_ids[-1], frozenset(end_ids)
        self._end_tokens = {*filter(None, ends), *filter(None, [self._find_call_end(tools, _TOOL_PROBE[1])])}
        footer = "" if ends[0] or len(ends) < 2 else literals[2]  # what follows an answer without an end token
        self._end = re.compile(_any_of(self._end_tokens) + (f"|(?={re.escape(footer)})" if footer.strip() else ""))
        self._blank_ending = "" if literals[-1].strip() else literals[-1]  # after the last answer
        header = self._compile_header(gap, tail, ends, tools)
        self._compile_escapes([*self._special_tokens, header, footer.strip(), GENERATION_START, GENERATION_STOP])
        self._render_cached = lru_cache(_CACHE_SIZE)(self._render)
        marks = [special_tokens.get(name, SpecialToken(-1)) for name in (IM_START, IM_END)]
        is_plain_chatml = source == CHATML_TEMPLATE and not any(mark.lstrip or mark.rstrip for mark in marks)
        self._chatml_ids = [mark.id for mark in marks] if is_plain_chatml else None

    # --- probing --------------------------------------------------------------------------------------

    def _probe_literals(self, tools: Sequence[Turn]) -> tuple[list[str], str]:
        """What the template writes before, between and after the turns of a conversation, and after a prompt."""
        probe = _PROBE
        if self._try_render([*tools, *probe]) is None:
            probe = _PROBE[:2]
        literals = _split_at_contents(self._render([*tools, *probe]), len(probe))
        prompt = self._render([*tools, *probe[:-1]], prompt=True)
        return literals, prompt.rpartition(probe[-2][1])[2]

    def _find_end_token(self, literal: str) -> str:
        """The special token at the beginning of what follows an answer; empty if there is none."""
        token = self._special_pattern.search(literal)
        return token[0] if token and not any(map(str.isalnum, literal[: token.start()])) else ""

    def _compile_header(self, gap: str, tail: str, ends: Sequence[str], tools: Sequence[Turn]) -> str:
        """Sets `_header`, which matches up to where an answer begins, and `_header_roles`, the roles of the turns
        that have one: assistants, or all others where the header ends their turns. Returns the header's text.

        The header is what `gap` (between a prompt and its answer) and `tail` (the end of the prompt) share.
        """
        text = gap
        for token in filter(None, ends):
            text = text.rpartition(token)[2]
        text = text.lstrip()
        shared = len(_common_prefix(gap, tail))
        given, rest = text[: max(shared - len(gap) + len(text), 0)], tail[shared:]
        if given.strip():  # `rest`: in a prompt `<think>`, for example, which the template writes for some answers only
            header = re.escape(given) + (f"(?:{re.escape(rest)})?" if rest else "")
        else:  # the prompt does not have the header, so the model writes it
            header = f"(?={re.escape(text.strip())})" if text.strip() else _NEVER
        self._header = re.compile(header)
        alone = self._try_render([*tools, _PROBE[0]]) or ""
        self._header_roles = ("user", "tool") if self._header.search(alone) else ("assistant",)
        after_tool = self._find_tool_header(tools)
        if after_tool:
            self._header = re.compile(f"{header}|{re.escape(after_tool)}")
        return given.strip() or text.strip()

    def _find_tool_header(self, tools: Sequence[Turn]) -> str:
        """The special token between a tool's result and an answer, if the usual header is not there."""
        turns = [*tools, *_TOOL_PROBE]
        text, prompt = self._try_render(turns), self._try_render(turns[:-1], prompt=True)
        try:
            gap = _split_at_contents(text or "", 3)[2]
        except TraindeckError:
            return ""
        tail = (prompt or "").rpartition(_TOOL_PROBE[2][1])[2]
        found = self._special_pattern.findall(_common_prefix(gap, tail))
        return found[-1] if found and not self._header.search(gap) else ""

    def _find_call_end(self, turns: Sequence[Turn], call: Turn) -> str:
        """The special token that ends a turn with tool calls; empty if the template does not write its calls."""
        prompt = [*(turn for turn in turns[:1] if turn[0] == TOOLS_ROLE), ("user", "?")]
        content = "x" if call[1].strip() else ""  # the real one may name the function
        given, text = self._try_render(prompt, prompt=True), self._try_render([*prompt, (call[0], content, *call[2:])])
        if given is None or text is None or not text.startswith(given):
            return ""
        written = text[len(given) :].rstrip()
        found = self._special_pattern.findall(written)
        names = [one["function"]["name"] for one in turn_fields(call)["tool_calls"]]
        return found[-1] if found and written.endswith(found[-1]) and all(name in written for name in names) else ""

    # --- rendering ------------------------------------------------------------------------------------

    def _render_raw(self, turns: Sequence[Turn], prompt: bool) -> str:
        tools = json.loads(turns[0][1]) if turns and turns[0][0] == TOOLS_ROLE else None
        messages = [to_message(turn) for turn in turns if turn[0] != TOOLS_ROLE]
        return self._template.render(messages, tools, add_generation_prompt=prompt, **self._named_tokens)

    def _render(self, turns: Sequence[Turn], prompt: bool = False) -> str:
        return _split_generated(self._render_raw(turns, prompt))[0]

    def _try_render(self, turns: Sequence[Turn], prompt: bool = False) -> str | None:
        try:
            return self._render(turns, prompt)
        except TraindeckError:
            return None

    def drop_unsupported_calls(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """The conversation without turns whose tool calls the template cannot write, and their results."""
        if not has_tools(turns):
            return turns

        def is_supported(turn: Turn) -> bool:
            return self._find_call_end(turns, turn) in self._end_tokens

        kept = drop_calls(turns, is_supported)
        if len(kept) == len(turns):
            return kept
        return max(kept, drop_calls(shorten_tool_call_ids(turns), is_supported), key=len)

    def render(self, turns: Sequence[Turn]) -> list[Segment]:
        """A whole conversation. Raises `data.chat_refused`."""
        if self._chatml_ids is not None and not has_tools(turns):
            return _chatml_segments(turns, *self._chatml_ids)
        text, generated, is_escaped = self._render_escaped(turns, prompt=False)
        if generated:
            return self._split_segments(text, _select_trained(generated, turns), is_escaped)
        answers = self._find_answers(text, turns)
        if not answers or answers[-1][1] >= 0:
            return self._split_segments(text, answers, is_escaped)
        text = text.removesuffix(self._blank_ending)
        answers[-1] = (answers[-1][0], len(text))
        end = Segment(token_id=self._default_end_id, in_loss=True)
        return [*self._split_segments(text, answers, is_escaped), end]

    def render_prompt(self, turns: Sequence[Turn]) -> list[Segment]:
        """A conversation up to the place where the model begins to write. Raises `data.chat_refused`."""
        text, _, is_escaped = self._render_escaped(turns, prompt=True)
        return self._split_segments(text, [], is_escaped)

    def _render_escaped(self, turns: Sequence[Turn], prompt: bool) -> tuple[str, list[tuple[int, int]], bool]:
        """The text, its generation blocks, and whether it has escapes. Raises `data.chat_refused`."""
        validate_turns(turns)
        escaped = tuple(map(self._escape_turn, turns))
        rendered = self._render_raw(escaped, prompt)
        is_escaped = escaped != tuple(turns)
        if is_escaped and rendered.translate(self._unescapes) != self._render_raw(turns, prompt):
            raise _untraceable_error()
        text, generated = _split_generated(rendered)
        # Parts of several messages, joined by the template, could spell a special token.
        neutral = tuple(
            turn if turn[0] == TOOLS_ROLE or not turn[1].strip() else (turn[0], f"x{number}", *turn[2:])
            for number, turn in enumerate(escaped)
        )
        if self._special_pattern.findall(text) != self._special_pattern.findall(self._render_cached(neutral, prompt)):
            raise _untraceable_error()
        return text, generated, is_escaped

    def _compile_escapes(self, texts: Iterable[str]) -> None:
        rests: dict[str, list[str]] = {}
        for text in sorted(filter(None, set(texts))):
            rests.setdefault(text[0], []).append(text[1:])
        # Each alternative begins with a literal character, which re finds quickly; the lookahead finds overlaps.
        self._spelled = re.compile(
            "|".join(f"{re.escape(first)}(?={'|'.join(map(re.escape, rest))})" for first, rest in rests.items())
        )
        self._escapes = {first: chr(_LAST_ESCAPE - n) for n, first in enumerate(rests)}
        self._unescapes = {ord(escape): first for first, escape in self._escapes.items()}

    def _escape_turn(self, turn: Turn) -> Turn:
        values = map(json.loads, turn[1 + (turn[0] != TOOLS_ROLE) :])
        escaped = [json.dumps(self._escape(value), ensure_ascii=False) for value in values]
        return (turn[0], *escaped) if turn[0] == TOOLS_ROLE else (turn[0], self._escape(turn[1]), *escaped)

    def _escape(self, value: Any) -> Any:
        """A JSON value whose strings spell no special token and no header."""
        if isinstance(value, str):
            return self._spelled.sub(lambda found: self._escapes[found[0]], value)
        if isinstance(value, dict):
            return {self._escape(name): self._escape(one) for name, one in value.items()}
        return [self._escape(one) for one in value] if isinstance(value, list) else value

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

    def _split_segments(self, text: str, answers: Sequence[tuple[int, int]], is_escaped: bool) -> list[Segment]:
        """Cuts a text at special tokens and at both ends of each answer."""
        found: list[Segment] = []
        place: PrecededBy = "start"
        takes_space = False
        cuts = [0, *(cut for answer in answers for cut in answer), len(text)]
        for number, (start, stop) in enumerate(pairwise(cuts)):
            in_loss = number % 2 == 1
            for part, piece in enumerate(self._special_pattern.split(text[start:stop])):
                if part % 2:
                    token = self._special_tokens[piece]
                    if token.lstrip and found and found[-1].token_id < 0:
                        last = found.pop()
                        found += [last._replace(text=last.text.rstrip())] if last.text.strip() else []
                    found.append(Segment(token_id=token.id, in_loss=in_loss))
                    place, takes_space = "mark", token.rstrip
                    continue
                if takes_space:
                    piece = piece.lstrip()
                if piece:
                    own = piece.translate(self._unescapes) if is_escaped else piece
                    found.append(Segment(own, in_loss=in_loss, preceded_by=place))
                    place, takes_space = "text", False
        return found


def _chatml_segments(turns: Sequence[Turn], start_id: int, end_id: int) -> list[Segment]:
    """What the built-in ChatML template writes. Rendering it would double the time of encoding."""
    validate_turns(turns)
    start, end, end_in_loss = Segment(token_id=start_id), Segment(token_id=end_id), Segment("", end_id, True)
    header, newline = Segment("assistant\n"), Segment("\n")
    found: list[Segment] = []
    for role, content, *_ in turns:
        if role == "assistant":
            found += [start, header]
            found += [Segment(content, in_loss=True, preceded_by="text")] if content else []
            found += [end_in_loss, newline]
        else:
            found += [start, Segment(f"{role}\n{content}"), end, newline]
    return found


def _any_of(texts: Iterable[str]) -> str:
    """A pattern that matches the longest of some texts."""
    return "|".join(map(re.escape, sorted(filter(None, texts), key=len, reverse=True))) or _NEVER


def _common_prefix(one: str, other: str) -> str:
    return one[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))]


def _split_at_contents(text: str, count: int) -> list[str]:
    """A probe's text without its contents. Raises `data.chat_refused`."""
    parts = re.split(r"xTurn(\d)x", text)
    if parts[1::2] != list(map(str, range(count))):
        raise no_answers_error()
    return parts[::2]


def _split_generated(text: str) -> tuple[str, list[tuple[int, int]]]:
    """A rendered text without the characters that delimit generation blocks, and [start, stop) of the blocks."""
    if GENERATION_START not in text:
        return text, []
    parts = re.split(f"[{GENERATION_START}{GENERATION_STOP}]", text)
    ends = list(accumulate(map(len, parts)))
    return "".join(parts), list(zip(ends[::2], ends[1::2], strict=False))


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
