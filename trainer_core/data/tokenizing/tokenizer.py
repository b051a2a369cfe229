"""A tokenizer in use: completed where it lacks something, turning texts and conversations into ids and back.

No torch, no Qt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from trainer_core import files
from trainer_core.data.columns import TOOLS, Task, Turn
from trainer_core.data.tokenizing import chat
from trainer_core.data.tokenizing.chat import ChatMl, ChatTemplate, Mark, Place
from trainer_core.data.tokenizing.chat_batch import (
    Batch,
    ChatMlWriter,
    Chats,
    SegmentWriter,
    up_to_the_last_learned,
)
from trainer_core.data.tokenizing.encoder import Encoder
from trainer_core.data.tokenizing.pieces import Ids, PieceEncoder, Unfit
from trainer_core.data.tokenizing.tokenizer_files import (
    CONFIG,
    Description,
    added_ids,
    bad,
    describe,
    follow_flags,
    read,
)
from trainer_core.messages import TraindeckError

# Tokens that end a text, where nothing says which one does.
_ENDS: Final = (chat.END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "[EOS]", "<|eos|>")
_SHORT: Final = 24  # characters of a text that is likely to come again, such as "assistant\n"
_REMEMBERED: Final = 4096
_PATIENCE_S: Final = 20.0  # with a template that is tried; on a slow machine one takes some 0.1 s


class Chat(NamedTuple):
    """A conversation as ids, up to the last one that is learned. `spans`: [start, stop) of those that are."""

    ids: Ids
    spans: list[tuple[int, int]]


def load_given(path: Path) -> tuple[Codec, list[str]]:
    """A person's own tokenizer, and the tokens that it lacked and was given (at the end).

    It gets `<|endoftext|>` where nothing ends a text, and the marks of ChatML where it has no template of
    its own. Raises `data.bad_tokenizer`; a template that cannot be used comes to light where one is needed.
    """
    tokenizer, description = read(path), describe(path)
    had = tokenizer.get_vocab(with_added_tokens=True)
    tokenizer.add_tokens([token for token in description.added if token.content not in had])
    marks = [description.tokens[name] for name in sorted(description.tokens)]
    known = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
    if "eos_token" not in description.tokens and not any(name in known for name in (description.end_of_text, *_ENDS)):
        marks.append(chat.END_OF_TEXT)
    if description.template == chat.CHATML:
        marks += [chat.IM_START, chat.IM_END]
    tokenizer.add_special_tokens([name for name in dict.fromkeys(marks) if not known.get(name)])
    follow_flags(tokenizer, description)
    if description.template_path == description.path:  # no template of its own
        description = replace(description, template=_chatml(tokenizer, added_ids(tokenizer)[0]))
    now = tokenizer.get_vocab(with_added_tokens=True)
    if "strftime_now" in description.template:
        description = replace(description, now=datetime.now().isoformat(timespec="seconds"))
    return Codec(tokenizer, description), sorted(now.keys() - had.keys(), key=lambda name: now[name])


def _chatml(tokenizer: Tokenizer, prefix: Sequence[int]) -> str:
    """ChatML as Jinja, with the tokens before it that the tokenizer writes before a text."""
    return "".join(str(tokenizer.id_to_token(number)) for number in prefix) + chat.CHATML


class Codec:
    """A tokenizer in use. What people wrote is encoded as text even where it spells a special token.

    `prefix`: the ids before a text that this tokenizer asks for, such as `<bos>`; `encode` leaves them out.
    `end_of_text` ends a document; `end_of_turn` ends an answer; `ends`: all that end either; `pad`: what
    transformers is told to pad with. `fast`: whether gigatoken may encode. Raises `data.bad_tokenizer`.
    """

    def __init__(self, tokenizer: Tokenizer, description: Description | None = None, fast: bool = True) -> None:
        self.tokenizer = tokenizer
        self._description = description or Description()
        added = tokenizer.get_added_tokens_decoder()
        special = {one.content: Mark(number, one.lstrip, one.rstrip) for number, one in added.items() if one.special}
        words = {one.content: Mark(number, one.lstrip, one.rstrip) for number, one in added.items() if not one.special}
        self.prefix, suffix = added_ids(tokenizer)
        self._adds_eos = bool(suffix)
        told = self._description
        self._template, self._problem = self._find_template(told.template, special, words)
        self._tool_template: ChatTemplate | None = None
        if told.tool_template:
            self._tool_template = self._find_template(told.tool_template, special, words, for_tools=True)[0]
        self.end_of_text = self._find_end_of_text(self._template.ends if self._template else frozenset())
        self.end_of_turn = self._template.end if self._template else self.end_of_text
        templates = [one for one in (self._template, self._tool_template) if one is not None]
        self.ends = frozenset((self.end_of_text, *(end for one in templates for end in one.ends)))
        hidden = {*special, *(word for one in templates for word in one.promoted)}
        try:
            self._pieces = PieceEncoder(tokenizer, hidden, fast)
        except Unfit as error:
            raise bad(self._description.path, str(error)) from error
        own_pad: int | None = tokenizer.token_to_id(self._description.tokens.get("pad_token", ""))
        self.pad = self.end_of_text if own_pad is None else own_pad
        # The largest id counts, not the number of tokens: some tokenizers leave ids out.
        self.vocab_size: int = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self._remembered: dict[tuple[str, Place], Ids] = {}
        self._segments = SegmentWriter()
        self._chatml: ChatMlWriter | None = None

    @classmethod
    def load(cls, path: Path, fast: bool = True) -> Codec:
        """From a complete tokenizer.json and what stands beside it; raises `data.bad_tokenizer`."""
        return cls(read(path), describe(path), fast)

    # --- what the tokenizer has -----------------------------------------------------------------------

    def _find_template(
        self, source: str, special: dict[str, Mark], words: dict[str, Mark], for_tools: bool = False
    ) -> tuple[ChatTemplate | None, dict[str, Any]]:
        """The template, or why there is none: that is of no consequence to those who learn plain text."""
        told = self._description
        if source in (chat.CHATML, _chatml(self.tokenizer, self.prefix)):
            before = self.prefix if source != chat.CHATML else ()
            return ChatMl(self._require(chat.IM_START), self._require(chat.IM_END), before), {}
        from trainer_core.data.tokenizing.chat_jinja import ModelTemplate  # Jinja: only for models that have a template
        from trainer_core.data.tokenizing.sandbox import within

        now, last = datetime.fromisoformat(told.now) if told.now else datetime.now(), self._find_end_of_text()

        def make() -> ModelTemplate:
            return ModelTemplate(source, told.tokens, special, words, last, now, for_tools)

        try:
            return within(_PATIENCE_S, make), {}
        except TraindeckError as error:
            return None, {"path": str(told.template_path), "reason": error.params["reason"]}

    @property
    def template(self) -> ChatTemplate:
        """Raises `data.bad_template`."""
        if self._template is None:
            raise TraindeckError("data.bad_template", **self._problem)
        return self._template

    def require_template(self) -> None:
        """Raises `data.bad_template` where conversations cannot be written."""
        self.template  # noqa: B018 - looking is enough

    def _find_end_of_text(self, turn_ends: frozenset[int] = frozenset()) -> int:
        """eos_token, unless that ends an answer and another token is there that ends a text."""
        if self._description.end_of_text:
            return self._require(self._description.end_of_text)
        own = self._description.tokens.get("eos_token", "")
        number: int | None = self.tokenizer.token_to_id(own)
        if number is not None and (own in _ENDS or number not in turn_ends):
            return number
        added = {one.content: number for number, one in self.tokenizer.get_added_tokens_decoder().items()}
        known = [added[name] for name in _ENDS if name in added]
        if known:
            return known[0]
        return number if number is not None else self._require(chat.END_OF_TEXT)

    def _require(self, token: str) -> int:
        number: int | None = self.tokenizer.token_to_id(token)
        if number is None:
            raise bad(self._description.path, f"it lacks {token}")
        return number

    @property
    def encoder(self) -> Encoder:
        """For display: which way texts are encoded, and why."""
        return self._pieces.encoder

    # --- to ids and back ------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        return self.encode_texts([text])[0].tolist()  # type: ignore[no-any-return]

    def encode_texts(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of plain texts, on all cores. Keep a call to a few MiB of text. Raises `EncoderDiffers`."""
        return self._pieces.encode([(text, "start") for text in texts])

    def encode_chats(
        self, chats: Sequence[Sequence[Turn]], on_refused: Callable[[int, TraindeckError], None] | None = None
    ) -> list[Chat]:
        """As `encode_conversations`, each on its own."""
        ids, lengths, spans, counts, _ = self.encode_conversations(chats, on_refused)
        stops, last = np.cumsum(lengths).tolist(), np.cumsum(counts).tolist()
        starts, first = [0, *stops], [0, *last]
        learned = list(map(tuple, spans.tolist()))
        return [Chat(ids[starts[n] : stops[n]], learned[first[n] : last[n]]) for n in range(len(lengths))]

    def encode_conversations(
        self, chats: Sequence[Sequence[Turn]], on_refused: Callable[[int, TraindeckError], None] | None = None
    ) -> Chats:
        """Conversations as ids, without what follows the last answer: nothing would be learned from it.

        One that the template refuses is told to `on_refused` by its number and comes out empty; without
        that, raises `data.chat_refused`. Raises `data.bad_template` and `EncoderDiffers`.
        """
        batch, left_out = Batch(), 0
        for number, turns in enumerate(chats):
            kept = turns
            if chat.has_tools(turns):
                kept = self.supported(turns)
                left_out += chat.count_turns(turns) - chat.count_turns(kept)
            try:
                if kept is turns or any(turn[0] == "assistant" for turn in kept):  # else all answers are left out
                    self._write(batch, kept)
            except TraindeckError as error:
                if on_refused is None:
                    raise
                on_refused(number, error)
            batch.end()
        return batch.encoded(self._encode_pieces)._replace(left_out=left_out)

    def supported(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """A conversation without tool calls that the chat template cannot write. Raises `data.bad_template`."""
        return self._template_for(turns).supported(turns)

    def _template_for(self, turns: Sequence[Turn]) -> ChatTemplate:
        """Of a model with several templates, `tool_use` is the one for conversations with tools."""
        has_tools = bool(turns) and turns[0][0] == TOOLS
        return self._tool_template if has_tools and self._tool_template is not None else self.template

    def _write(self, batch: Batch, turns: Sequence[Turn]) -> None:
        """Adds a conversation to a batch, or raises `data.chat_refused` and adds nothing."""
        template = self._template_for(turns)
        if not isinstance(template, ChatMl):
            self._segments.write(batch, up_to_the_last_learned(template.segments(turns)))
            return
        if self._chatml is None:
            self._chatml = ChatMlWriter(template, self._pieces.encode)
        self._chatml.write(batch, turns)

    def encode_prompt(self, prompt: str | Sequence[Turn]) -> list[int]:
        """A prompt, or a conversation, up to where the model begins to write.

        Raises `data.chat_refused` and `data.bad_template`.
        """
        turns = self.supported((("user", prompt),) if isinstance(prompt, str) else prompt)
        batch = Batch()
        self._segments.write(batch, self._template_for(turns).prompt(turns))
        return batch.encoded(self._encode_pieces).ids.tolist()  # type: ignore[no-any-return]

    def _encode_pieces(self, pieces: Sequence[tuple[str, Place]]) -> list[Ids]:
        """As `PieceEncoder.encode`, but what a template always writes is encoded once."""
        if self._chatml is not None:  # its marks hold all that it always writes
            return self._pieces.encode(pieces)
        known = self._remembered
        found: list[Any] = [known.get(piece) if len(piece[0]) <= _SHORT else None for piece in pieces]
        new = [number for number, ids in enumerate(found) if ids is None]
        for number, ids in zip(new, self._pieces.encode([pieces[number] for number in new]), strict=True):
            found[number] = ids
            if len(pieces[number][0]) <= _SHORT and len(known) < _REMEMBERED:
                known[pieces[number]] = ids.copy()  # `ids` may be a view that keeps its whole batch in memory
        return found

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids. A character cut in the middle comes out as U+FFFD."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    # --- files ----------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write tokenizer.json, which `tokenizers` and transformers load with the same ids, and its companion."""
        files.write_atomic(path.with_name(CONFIG), self.config())  # first: tokenizer.json says that both are there
        files.write_atomic(path, self.tokenizer.to_str(pretty=False).encode("utf-8"))

    def config(self, task: Task = "pretrain", max_seq_len: int | None = None) -> bytes:
        """tokenizer_config.json: what transformers and converters want to know of a model trained for `task`.

        A tuned model ends its answer with eos_token, a pretrained one its text; but where the template asks
        for eos_token, that stays what it was.
        """
        told, template = self._description, self._template
        names = {name: self.tokenizer.id_to_token(getattr(self, name)) for name in ("end_of_text", "end_of_turn")}
        further: dict[str, Any] = {"model_max_length": max_seq_len} if max_seq_len else {}
        tokens = {**told.tokens, "pad_token": self.tokenizer.id_to_token(self.pad)}
        if "eos_token" not in tokens or (template is not None and not template.uses_eos):
            tokens["eos_token"] = names["end_of_turn" if task == "sft" else "end_of_text"]
        if isinstance(template, ChatMl):
            tokens.setdefault("bos_token", names["end_of_text"])
            further["additional_special_tokens"] = [chat.IM_START, chat.IM_END]
        named = {"default": told.template, "tool_use": told.tool_template}
        several = [{"name": name, "template": source} for name, source in named.items()]
        values = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **tokens,
            **further,
            "chat_template": several if told.tool_template else told.template,
            "add_bos_token": bool(self.prefix),
            "add_eos_token": self._adds_eos,
            "clean_up_tokenization_spaces": False,
            "traindeck": {"task": task, "end_of_text": names["end_of_text"], "now": told.now, "tokens": told.tokens},
        }
        return json.dumps(values, indent=1, ensure_ascii=False).encode("utf-8")
