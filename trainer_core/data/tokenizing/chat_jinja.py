"""A model's own chat template, written in Jinja, without giving what people wrote a way to write its marks.

A rendered conversation does not tell what the template wrote from what people wrote. So the template is
first rendered with stand-ins for the contents, once for each order of roles (a `_Frame`): that shows its
own texts, its marks, and where answers begin and end. Then there are two ways:
 1. The real conversation renders to the frame with the real contents in their places, perhaps trimmed of
    white space. This is checked, character by character, for each conversation.
 2. Else the template reads contents (it takes reasoning out of them, say). Then every mark that is spelled
    in a content is made unrecognisable before rendering, and what comes out must hold the marks of the
    frame, in its order, and be the real rendering but for what was made unrecognisable.
A conversation for which neither works is refused.

Tools and tool calls are values that templates read, so no stand-in takes their place: they are part of a frame
as they are, with marks made unrecognisable. Where a call ends is seen by rendering it alone.

Templates are code from strangers; sandbox.py runs them.

No torch, no Qt.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final, NamedTuple

from trainer_core.data.columns import TOOLS, Turn, fields_of, is_learned
from trainer_core.data.tokenizing.chat import (
    Mark,
    Place,
    Segment,
    check,
    message_of,
    refused,
    with_short_ids,
    without_calls,
)
from trainer_core.data.tokenizing.sandbox import Template
from trainer_core.messages import TraindeckError

_FRAMES: Final = 512  # remembered orders of roles
_RENDERED: Final = 64  # turns of a conversation before which the prompt is rendered; later ones are as these were
_DISGUISES: Final = range(0x10F000, 0x10FFFE)  # private use: characters that stand for the first one of a mark
_PROBES: Final = (("user", "assistant", "user", "assistant"), ("user", "assistant"))


class _Answer(NamedTuple):
    """One assistant's turn in a frame."""

    turn: int
    begin: tuple[int, int]  # number of a literal, and place in it: the end of the generation prompt
    prompted: bool  # whether that was found by rendering the prompt, not by where the content stands
    before: int  # number of the last mark before it; -1: none
    slot: int  # of its content; -1 where that is empty
    end: int  # number of the mark that ends it; -1: none does


class _Frame(NamedTuple):
    """What a template makes of an order of roles: literal, content, literal, …, content, literal."""

    literals: list[str]
    slots: list[int]  # the turns whose contents stand between
    marks: list[str]
    answers: list[_Answer]


class _Learned(NamedTuple):
    """A stretch of a rendered conversation that is learned, without the mark that ends it."""

    begin: int
    stop: int
    end: int  # number of that mark; -1: none


class ModelTemplate:
    """The chat template of a model. See `chat.ChatTemplate`.

    `variables`: named tokens that the template may ask for (bos_token …). `special`: tokens that no content
    may become. `words`: further tokens of the vocabulary; those that the template writes around turns are
    treated as special too, see `promoted`. `last`: ends an answer that the template does not end. `for_tools`: the
    template is for conversations with tools alone, and may fail without.
    Raises `data.chat_refused` for a template that cannot be used.
    """

    def __init__(
        self,
        source: str,
        variables: Mapping[str, str],
        special: Mapping[str, Mark],
        words: Mapping[str, Mark],
        last: int,
        now: datetime,
        for_tools: bool = False,
    ) -> None:
        self._tools: tuple[Turn, ...] = ((TOOLS, "[]"),) if for_tools else ()  # in what it is tried with
        self._variables, self._last = dict(variables), last
        self._stand_in = "xTurn"
        while self._stand_in in source:
            self._stand_in += "x"
        self._template = Template(source, now)
        probe = self._probe()
        self.promoted = frozenset(self._control_words(probe, words))
        self._marks = {**special, **{word: words[word] for word in self.promoted}}
        longest_first = sorted(filter(None, self._marks), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        # Tools and tool calls are JSON: a mark may be spelled there with escapes.
        spelled = {form for mark in longest_first for form in (mark, json.dumps(mark, ensure_ascii=False)[1:-1])}
        self._spelled = re.compile("|".join(map(re.escape, sorted(spelled, key=len, reverse=True))) or "(?!)")
        self._firsts = sorted({form[0] for form in spelled})
        self._frames: dict[tuple[tuple[str | None, ...], ...], _Frame] = {}
        self._given = self._pattern.split(self._frame([*self._tools, ("user", "?")], prompt=True).literals[-1])[-1]
        found = self._frame([*self._tools, *((role, "?") for role in probe)], prompt=False)
        ending = [self._marks[found.marks[answer.end]].id if answer.end >= 0 else last for answer in found.answers]
        self.end, self.ends = ending[-1] if ending else last, frozenset(ending or (last,))
        self.uses_eos = "eos_token" in self._template.variables

    # --- looking at the template --------------------------------------------------------------------

    def _probe(self) -> tuple[str, ...]:
        """An order of roles that the template takes."""
        for roles in _PROBES[:-1]:
            if self._try_render([*self._tools, *((role, "?") for role in roles)], prompt=False) is not None:
                return roles
        self._render([*self._tools, *((role, "?") for role in _PROBES[-1])], prompt=False)  # or it says why not
        return _PROBES[-1]

    def _control_words(self, probe: tuple[str, ...], words: Mapping[str, Mark]) -> list[str]:
        """Words of the vocabulary that the template writes around turns, not within an answer: they are as
        good as special, though DeepSeek's `<｜User｜>`, say, is not called so."""
        turns = [*self._tools, *((role, f"{self._stand_in}{number}x") for number, role in enumerate(probe))]
        before = self._try_render(turns[:-1], prompt=True) or ""
        after = self._render(turns, prompt=False).rpartition(turns[-1][1])[2]
        literals = [*self._split(before)[::2], after]
        return [
            word
            for word in words
            if word.strip() and not word.strip().isalnum() and any(word in literal for literal in literals)
        ]

    def _split(self, text: str) -> list[str]:
        """Literal, number of a stand-in, literal, …"""
        return re.split(rf"{self._stand_in}(\d+)x", text)

    def _frame(self, turns: Sequence[Turn], prompt: bool) -> _Frame:
        key = tuple((turn[0], turn[1] if _is_kept(turn) else None, *turn[2:]) for turn in turns)
        key += (("", None),) if prompt else ()
        if key not in self._frames:
            if len(self._frames) >= _FRAMES:
                self._frames.clear()
            self._frames[key] = self._look(turns, prompt)
        return self._frames[key]

    def _look(self, turns: Sequence[Turn], prompt: bool) -> _Frame:
        """Blank contents stay as they are: templates treat empty ones in their own way."""
        neutral = [
            turn if _is_kept(turn) else (turn[0], f"{self._stand_in}{number}x", *turn[2:])
            for number, turn in enumerate(turns)
        ]
        text = self._render(neutral, prompt)
        parts = self._split(text)
        frame = _Frame(parts[::2], [int(number) for number in parts[1::2]], self._pattern.findall(text), [])
        begins = _begins(frame.literals, [neutral[slot][1] for slot in frame.slots])
        slots: dict[int, list[int]] = {}
        for slot, turn in enumerate(frame.slots):
            slots.setdefault(turn, []).append(slot)
        marks = [mark.start() for mark in self._pattern.finditer(text)]
        for turn, one in enumerate(neutral):
            if one[0] == "assistant" and not prompt and is_learned(one):
                given = self._prompt_end(neutral[:turn], text) if turn < _RENDERED else -1
                own = [slot for slot in slots.get(turn, ()) if begins[slot] + len(frame.literals[slot]) >= given]
                if "tool_calls" in fields_of(one):
                    frame.answers.append(self._place_calls(turn, neutral, given, text, frame, begins, marks))
                elif own or not one[1].strip():
                    frame.answers.extend(self._place(turn, own[:1], given, text, frame.literals, begins, marks))
        return frame

    def _prompt_end(self, turns: Sequence[Turn], text: str) -> int:
        """Where in `text` a prompt of these turns ends; -1 where the text does not begin with it."""
        rendered = self._try_render(turns, prompt=True) if turns else None
        return len(rendered) if rendered is not None and text.startswith(rendered) else -1

    def _place(
        self, turn: int, own: list[int], given: int, text: str, literals: list[str], begins: list[int], marks: list[int]
    ) -> list[_Answer]:
        """Where an assistant's turn stands in `text`, a frame with its stand-ins; nowhere if it is empty and
        nothing shows where it would be.

        `own`: the slot of its content. It begins where the prompt ends (`given`). Where the text does not
        begin with the prompt (-1), as with a template that writes the system's words before the last message
        only, see `_head`. `begins` of the literals, and of the `marks`.
        """
        number = bisect_right(begins, given) - 1
        prompted = given >= 0 and given - begins[number] <= len(literals[number])  # else within a content, by chance
        if not own and not prompted:
            return []
        begin = (number, given - begins[number]) if prompted else (own[0], self._head(literals[own[0]]))
        stop = begins[own[0] + 1] if own else given
        following = own[0] + 1 if own else number
        end = bisect_left(marks, stop)
        if end == len(marks) or marks[end] >= begins[following] + len(literals[following]):
            end = -1
        elif own and any(map(str.isalnum, text[stop : marks[end]])):
            end = -1  # a mark that comes after further words is that of another turn
        if not own and end < 0:
            return []
        before = bisect_left(marks, begins[begin[0]] + begin[1]) - 1
        return [_Answer(turn, begin, prompted, before, own[0] if own else -1, end)]

    def _place_calls(
        self,
        turn: int,
        turns: Sequence[Turn],
        given: int,
        text: str,
        frame: _Frame,
        begins: list[int],
        marks: list[int],
    ) -> _Answer:
        """Where a turn with tool calls stands in `text`: where the prompt ends (`given`), or where what the template
        writes for the turn alone is found behind the answer before it. Raises `data.chat_refused`."""
        alone = self._calls_alone(turns, turns[turn])
        last = max((marks[answer.end] for answer in frame.answers if answer.end >= 0), default=0)
        start = given if given >= 0 else text.find(alone, last)
        if start < 0 and turn >= _RENDERED:
            start = given = self._prompt_end(turns[:turn], text)
        if not alone or start < 0:
            raise _lost()
        own, first = self._pattern.findall(alone), bisect_left(marks, start)
        ends = [place for place in range(first, len(marks)) if frame.marks[place] == own[-1]]
        end = ends[own.count(own[-1]) - 1] if len(ends) >= own.count(own[-1]) else -1
        places = [begins[slot] + len(frame.literals[slot]) for slot, owner in enumerate(frame.slots) if owner != turn]
        number = bisect_right(begins, start) - 1
        is_inside_content = start - begins[number] > len(frame.literals[number])
        if end < 0 or is_inside_content or any(start <= place < marks[end] for place in places):
            raise _lost()
        return _Answer(turn, (number, start - begins[number]), given >= 0, first - 1, -1, end)

    def _calls_alone(self, turns: Sequence[Turn], turn: Turn) -> str:
        """What the template writes for a turn with tool calls behind a prompt, up to the mark that ends it; empty where
        it takes no such turn."""
        prompt = [*(one for one in turns[:1] if one[0] == TOOLS), ("user", "?")]
        given, text = self._try_render(prompt, prompt=True), self._try_render([*prompt, turn], prompt=False)
        if given is None or text is None or not text.startswith(given):
            return ""
        alone = text[len(given) :].rstrip()
        marks = self._pattern.findall(alone)
        names = [call["function"]["name"] for call in fields_of(turn)["tool_calls"]]
        return alone if marks and alone.endswith(marks[-1]) and all(name in alone for name in names) else ""

    def _head(self, literal: str) -> int:
        """How much of the literal before an answer is given to the model: up to its last mark, and what stands
        after the last mark of any prompt; all of it where it ends otherwise."""
        head = self._pattern.split(literal)[-1]
        if len(head) < len(literal) and head.startswith(self._given):
            return len(literal) - len(head) + len(self._given)
        return len(literal) if head.strip() else len(literal) - len(head)

    # --- rendering ----------------------------------------------------------------------------------

    def _render(self, turns: Sequence[Turn], prompt: bool) -> str:
        tools = json.loads(turns[0][1]) if turns and turns[0][0] == TOOLS else None
        messages = [message_of(turn) for turn in turns if turn[0] != TOOLS]
        return self._template.render(messages, tools, add_generation_prompt=prompt, **self._variables)

    def _try_render(self, turns: Sequence[Turn], prompt: bool) -> str | None:
        try:
            return self._render(turns, prompt)
        except TraindeckError:
            return None

    # --- writing ------------------------------------------------------------------------------------

    def supported(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        def takes(turn: Turn) -> bool:
            return bool(self._calls_alone(turns, turn))

        kept = without_calls(turns, True, takes)
        if len(kept) == len(turns):
            return kept
        return max(kept, without_calls(with_short_ids(turns), True, takes), key=len)

    def segments(self, turns: Sequence[Turn]) -> list[Segment]:
        return self._write(turns, prompt=False)

    def prompt(self, turns: Sequence[Turn]) -> list[Segment]:
        return self._write(turns, prompt=True)

    def _write(self, turns: Sequence[Turn], prompt: bool) -> list[Segment]:
        check(turns)
        contents = [turn[1] for turn in turns]
        disguise = _Disguise(self._spelled, self._firsts, [part for turn in turns for part in turn[1:]])
        hidden = [(turn[0], *map(disguise.on, turn[1:])) for turn in turns] if disguise.is_needed else turns
        frame, real = self._frame(hidden, prompt), self._render(turns, prompt)
        filled = _fill(frame, real, contents)
        if filled is not None:
            shown = [disguise.on(content) for content in filled]
            text = _interleave(frame.literals, shown)
            marks = self._marks_in(text, frame)
            learned = _learned_in_frame(frame, shown)
        else:
            text = self._render(hidden, prompt)
            if disguise.off(text) != real:
                raise _lost()
            marks = self._marks_in(text, frame)
            learned = [self._follow(answer, frame, hidden, text, marks) for answer in frame.answers]
        return self._cut(text, marks, learned, disguise)

    def _marks_in(self, text: str, frame: _Frame) -> list[re.Match[str]]:
        """The marks in a text, which must be those of the frame: else contents have made or broken one."""
        marks = list(self._pattern.finditer(text))
        if [mark[0] for mark in marks] != frame.marks:
            raise _lost()
        return marks

    def _follow(
        self, answer: _Answer, frame: _Frame, turns: Sequence[Turn], text: str, marks: list[re.Match[str]]
    ) -> _Learned:
        """Where an answer stands in a text that is not the frame's: after its generation prompt, or after what
        the template writes between the mark before it and its content."""
        if answer.end < 0:
            raise _lost()
        stop = marks[answer.end].start()
        if answer.prompted:
            generation = self._render(turns[: answer.turn], prompt=True)
            if not text.startswith(generation):
                raise _lost()
            return _Learned(len(generation), stop, answer.end)
        literal, begin = frame.literals[answer.begin[0]][: answer.begin[1]], marks[answer.before].end()
        before = [mark.end() for mark in self._pattern.finditer(literal)]
        head = literal[before[-1] :] if before and answer.before >= 0 else None
        if head is None or not text.startswith(head, begin):
            raise _lost()
        return _Learned(begin + len(head), stop, answer.end)

    def _cut(
        self, text: str, marks: list[re.Match[str]], learned: list[_Learned], disguise: _Disguise
    ) -> list[Segment]:
        """Segments of a rendered text, cut at marks and where something learned begins or stops."""
        begins = [one.begin for one in learned]
        stops = [marks[one.end].end() if one.end >= 0 else one.stop for one in learned]
        open_end = bool(learned) and learned[-1].end < 0 and not text[stops[-1] :].strip()
        if open_end:
            text = text[: stops[-1]]
        cuts = sorted({*begins, *stops})
        found: list[Segment] = []
        place: Place = "start"
        here, taking = 0, False

        def is_learned(position: int) -> bool:
            which = bisect_right(begins, position) - 1
            return which >= 0 and position < stops[which]

        for mark in [*marks, None]:
            stop = mark.start() if mark else len(text)
            known = self._marks[mark[0]] if mark else None
            inner = cuts[bisect_right(cuts, here) : bisect_left(cuts, stop)]
            for left, right in pairwise([here, *inner, stop]):
                piece = text[left:right].lstrip() if taking else text[left:right]
                if known and known.takes_left and right == stop:
                    piece = piece.rstrip()
                if piece:
                    found.append(Segment(disguise.off(piece), learned=is_learned(left), place=place))
                    place, taking = "text", False
            if mark and known:
                found.append(Segment(mark=known.id, learned=is_learned(stop)))
                here, place, taking = mark.end(), "mark", known.takes_right
        return [*found, Segment(mark=self._last, learned=True)] if open_end else found


class _Disguise:
    """Makes marks that are spelled in contents unrecognisable: another character in place of their first one."""

    def __init__(self, marks: re.Pattern[str], firsts: Sequence[str], contents: Sequence[str]) -> None:
        self._marks, self._on, self._off = marks, dict[str, str](), dict[int, str]()
        if any(marks.search(content) for content in contents):
            taken = set().union(*contents)
            free = (chr(code) for code in _DISGUISES if chr(code) not in taken)
            self._on = dict(zip(firsts, free, strict=False))
            self._off = {ord(disguised): first for first, disguised in self._on.items()}
        self.is_needed = bool(self._on)

    def on(self, content: str) -> str:
        while self._on and self._marks.search(content):  # again: marks may overlap
            content = self._marks.sub(lambda mark: self._on[mark[0][0]] + mark[0][1:], content)
        return content

    def off(self, text: str) -> str:
        return text.translate(self._off) if self._off else text


# --- frames --------------------------------------------------------------------------------------------


def _is_kept(turn: Turn) -> bool:
    """Whether no stand-in takes the place of a turn's content."""
    return turn[0] == TOOLS or not turn[1].strip()


def _interleave(literals: Sequence[str], contents: Sequence[str]) -> str:
    parts = [part for pair in zip(literals, contents, strict=False) for part in pair]
    return "".join([*parts, literals[-1]])


def _begins(literals: Sequence[str], contents: Sequence[str]) -> list[int]:
    """Where each literal begins when the contents stand between them."""
    begins = [0]
    for literal, content in zip(literals, contents, strict=False):
        begins.append(begins[-1] + len(literal) + len(content))
    return begins


def _fill(frame: _Frame, real: str, contents: Sequence[str]) -> list[str] | None:
    """The contents as they stand between the frame's literals, whole or trimmed; None where `real` is otherwise."""
    filled: list[str] = []
    here = 0
    for number, turn in enumerate(frame.slots):
        here += len(frame.literals[number])
        if not real.startswith(frame.literals[number], here - len(frame.literals[number])):
            return None
        content, after = contents[turn], frame.literals[number + 1]
        for form in (content, content.strip(), content.lstrip(), content.rstrip()):
            if real.startswith(form, here) and real.startswith(after, here + len(form)):
                break
        else:
            return None
        filled.append(form)
        here += len(form)
    return filled if real[here:] == frame.literals[-1] else None


def _learned_in_frame(frame: _Frame, contents: Sequence[str]) -> list[_Learned]:
    begins = _begins(frame.literals, contents)
    found: list[_Learned] = []
    for answer in frame.answers:
        literal, offset = answer.begin
        begin = begins[literal] + offset
        found.append(_Learned(begin, begins[answer.slot + 1] if answer.slot >= 0 else begin, answer.end))
    return found


def _lost() -> TraindeckError:
    return refused("the model's chat template changes its messages in a way that cannot be followed")
