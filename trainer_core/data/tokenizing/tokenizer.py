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

from trainer_core.data.columns import TOOLS_ROLE, Task, Turn
from trainer_core.data.tokenizing import chat_template
from trainer_core.data.tokenizing.chat_batch import (
    ChatBatchBuilder,
    ChatMlWriter,
    EncodedChats,
    trim_after_last_in_loss,
)
from trainer_core.data.tokenizing.chat_template import ChatMl, ChatTemplate, PrecededBy, SpecialToken
from trainer_core.data.tokenizing.encoder import TextEncoder
from trainer_core.data.tokenizing.pieces import Ids, PieceEncoder, Unfit
from trainer_core.data.tokenizing.tokenizer_files import (
    CONFIG_FILE,
    TokenizerConfig,
    apply_bos_eos_flags,
    bad_tokenizer_error,
    post_processor_ids,
    read_config,
    read_tokenizer,
)
from trainer_core.messages import TraindeckError
from trainer_core.system import files

# Tokens that end a text, where nothing says which one does.
_END_OF_TEXT_TOKENS: Final = (
    chat_template.END_OF_TEXT,
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "<|eos|>",
)
_MAX_CACHED_CHARS: Final = 24  # characters of a text that is likely to come again, such as "assistant\n"
_CACHE_SIZE: Final = 4096
_TEMPLATE_TIMEOUT_S: Final = 20.0  # with a template that is tried; on a slow machine one takes some 0.1 s


class EncodedChat(NamedTuple):
    """A conversation as ids, up to the last one that is learned. `spans`: [start, stop) of those that are."""

    ids: Ids
    spans: list[tuple[int, int]]


def load_user_tokenizer(path: Path) -> tuple[Codec, list[str]]:
    """A person's own tokenizer, and the tokens that it lacked and was given (at the end).

    It gets `<|endoftext|>` where nothing ends a text, and the marks of ChatML where it has no template of
    its own. Raises `data.bad_tokenizer`; a template that cannot be used comes to light where one is needed.
    """
    tokenizer, description = read_tokenizer(path), read_config(path)
    had = tokenizer.get_vocab(with_added_tokens=True)
    tokenizer.add_tokens([token for token in description.added_tokens if token.content not in had])
    marks = [description.special_tokens[name] for name in sorted(description.special_tokens)]
    known = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
    if "eos_token" not in description.special_tokens and not any(
        name in known for name in (description.end_of_text, *_END_OF_TEXT_TOKENS)
    ):
        marks.append(chat_template.END_OF_TEXT)
    if description.template == chat_template.CHATML_TEMPLATE:
        marks += [chat_template.IM_START, chat_template.IM_END]
    tokenizer.add_special_tokens([name for name in dict.fromkeys(marks) if not known.get(name)])
    apply_bos_eos_flags(tokenizer, description)
    if description.template_path == description.path:  # no template of its own
        description = replace(description, template=_chatml_template(tokenizer, post_processor_ids(tokenizer)[0]))
    now = tokenizer.get_vocab(with_added_tokens=True)
    if "strftime_now" in description.template:
        description = replace(description, template_time=datetime.now().isoformat(timespec="seconds"))
    return Codec(tokenizer, description), sorted(now.keys() - had.keys(), key=lambda name: now[name])


def _chatml_template(tokenizer: Tokenizer, prefix: Sequence[int]) -> str:
    """ChatML as Jinja, with the tokens before it that the tokenizer writes before a text."""
    return "".join(str(tokenizer.id_to_token(number)) for number in prefix) + chat_template.CHATML_TEMPLATE


class Codec:
    """A tokenizer in use. What people wrote is encoded as text even where it spells a special token.

    `prefix`: the ids before a text that this tokenizer asks for, such as `<bos>`; `encode` leaves them out.
    `end_of_text` ends a document; `end_of_turn` ends an answer; `ends`: all that end either; `pad`: what
    transformers is told to pad with. `fast`: whether gigatoken may encode. Raises `data.bad_tokenizer`.
    """

    def __init__(self, tokenizer: Tokenizer, description: TokenizerConfig | None = None, fast: bool = True) -> None:
        self.tokenizer = tokenizer
        self._config = description or TokenizerConfig()
        added = tokenizer.get_added_tokens_decoder()
        special = {
            one.content: SpecialToken(number, one.lstrip, one.rstrip) for number, one in added.items() if one.special
        }
        words = {
            one.content: SpecialToken(number, one.lstrip, one.rstrip)
            for number, one in added.items()
            if not one.special
        }
        self.prefix_ids, suffix = post_processor_ids(tokenizer)
        self._adds_eos = bool(suffix)
        told = self._config
        self._template, self._template_error = self._load_template(told.template, special, words)
        self._tool_template: ChatTemplate | None = None
        if told.tool_template:
            self._tool_template = self._load_template(told.tool_template, special, words, for_tools=True)[0]
        self.end_of_text = self._find_end_of_text(self._template.end_of_turn_ids if self._template else frozenset())
        self.end_of_turn = self._template.end_of_turn if self._template else self.end_of_text
        templates = [one for one in (self._template, self._tool_template) if one is not None]
        self.stop_token_ids = frozenset((self.end_of_text, *(end for one in templates for end in one.end_of_turn_ids)))
        hidden = {*special, *(word for one in templates for word in one.control_tokens)}
        try:
            self._pieces = PieceEncoder(tokenizer, hidden, fast)
        except Unfit as error:
            raise bad_tokenizer_error(self._config.path, str(error)) from error
        own_pad: int | None = tokenizer.token_to_id(self._config.special_tokens.get("pad_token", ""))
        self.pad_token_id = self.end_of_text if own_pad is None else own_pad
        # The largest id counts, not the number of tokens: some tokenizers leave ids out.
        self.vocab_size: int = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self._encoded_pieces: dict[tuple[str, PrecededBy], Ids] = {}
        self._chatml: ChatMlWriter | None = None

    @classmethod
    def load(cls, path: Path, fast: bool = True) -> Codec:
        """From a complete tokenizer.json and what stands beside it; raises `data.bad_tokenizer`."""
        return cls(read_tokenizer(path), read_config(path), fast)

    # --- what the tokenizer has -----------------------------------------------------------------------

    def _load_template(
        self, source: str, special: dict[str, SpecialToken], words: dict[str, SpecialToken], for_tools: bool = False
    ) -> tuple[ChatTemplate | None, dict[str, Any]]:
        """The template, or why there is none: that is of no consequence to those who learn plain text."""
        told = self._config
        if source in (chat_template.CHATML_TEMPLATE, _chatml_template(self.tokenizer, self.prefix_ids)):
            before = self.prefix_ids if source != chat_template.CHATML_TEMPLATE else ()
            return ChatMl(
                self._require_token_id(chat_template.IM_START), self._require_token_id(chat_template.IM_END), before
            ), {}
        from trainer_core.data.tokenizing.chat_jinja import (
            JinjaChatTemplate,
        )  # Jinja: only for models that have a template
        from trainer_core.data.tokenizing.sandbox import run_with_timeout

        now, last = (
            datetime.fromisoformat(told.template_time) if told.template_time else datetime.now(),
            self._find_end_of_text(),
        )

        def make() -> JinjaChatTemplate:
            return JinjaChatTemplate(source, told.special_tokens, special, words, last, now, for_tools)

        try:
            return run_with_timeout(_TEMPLATE_TIMEOUT_S, make), {}
        except TraindeckError as error:
            return None, {"path": str(told.template_path), "reason": error.params["reason"]}

    @property
    def template(self) -> ChatTemplate:
        """Raises `data.bad_template`."""
        if self._template is None:
            raise TraindeckError("data.bad_template", **self._template_error)
        return self._template

    def require_template(self) -> None:
        """Raises `data.bad_template` where conversations cannot be written."""
        self.template  # noqa: B018 - looking is enough

    def _find_end_of_text(self, turn_ends: frozenset[int] = frozenset()) -> int:
        """eos_token, unless that ends an answer and another token is there that ends a text."""
        if self._config.end_of_text:
            return self._require_token_id(self._config.end_of_text)
        own = self._config.special_tokens.get("eos_token", "")
        number: int | None = self.tokenizer.token_to_id(own)
        if number is not None and (own in _END_OF_TEXT_TOKENS or number not in turn_ends):
            return number
        added = {one.content: number for number, one in self.tokenizer.get_added_tokens_decoder().items()}
        known = [added[name] for name in _END_OF_TEXT_TOKENS if name in added]
        if known:
            return known[0]
        return number if number is not None else self._require_token_id(chat_template.END_OF_TEXT)

    def _require_token_id(self, token: str) -> int:
        number: int | None = self.tokenizer.token_to_id(token)
        if number is None:
            raise bad_tokenizer_error(self._config.path, f"it lacks {token}")
        return number

    @property
    def encoder(self) -> TextEncoder:
        """For display: which way texts are encoded, and why."""
        return self._pieces.encoder

    # --- to ids and back ------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        return self.encode_texts([text])[0].tolist()  # type: ignore[no-any-return]

    def encode_texts(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of plain texts, on all cores. Keep a call to a few MiB of text. Raises `EncoderMismatchError`."""
        return self._pieces.encode([(text, "start") for text in texts])

    def encode_chats(
        self, chats: Sequence[Sequence[Turn]], on_refused: Callable[[int, TraindeckError], None] | None = None
    ) -> list[EncodedChat]:
        """As `encode_conversations`, each on its own."""
        ids, lengths, spans, counts, _ = self.encode_conversations(chats, on_refused)
        stops, last = np.cumsum(lengths).tolist(), np.cumsum(counts).tolist()
        starts, first = [0, *stops], [0, *last]
        learned = list(map(tuple, spans.tolist()))
        return [EncodedChat(ids[starts[n] : stops[n]], learned[first[n] : last[n]]) for n in range(len(lengths))]

    def encode_conversations(
        self, chats: Sequence[Sequence[Turn]], on_refused: Callable[[int, TraindeckError], None] | None = None
    ) -> EncodedChats:
        """Conversations as ids, without what follows the last answer: nothing would be learned from it.

        One that the template refuses is told to `on_refused` by its number and comes out empty; without
        that, raises `data.chat_refused`. Raises `data.bad_template` and `EncoderMismatchError`.
        """
        batch, left_out = ChatBatchBuilder(), 0
        for number, turns in enumerate(chats):
            kept = turns
            if chat_template.has_tools(turns):
                kept = self.drop_unsupported_calls(turns)
                left_out += chat_template.count_turns(turns) - chat_template.count_turns(kept)
            try:
                if kept is turns or any(turn[0] == "assistant" for turn in kept):  # else all answers are left out
                    self._add_conversation(batch, kept)
            except TraindeckError as error:
                if on_refused is None:
                    raise
                on_refused(number, error)
            batch.end_conversation()
        return batch.encode(self._encode_pieces)._replace(dropped_turns=left_out)

    def drop_unsupported_calls(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """A conversation without tool calls that the chat template cannot write. Raises `data.bad_template`."""
        return self._select_template(turns).drop_unsupported_calls(turns)

    def _select_template(self, turns: Sequence[Turn]) -> ChatTemplate:
        """Of a model with several templates, `tool_use` is the one for conversations with tools."""
        has_tools = bool(turns) and turns[0][0] == TOOLS_ROLE
        return self._tool_template if has_tools and self._tool_template is not None else self.template

    def _add_conversation(self, batch: ChatBatchBuilder, turns: Sequence[Turn]) -> None:
        """Adds a conversation to a batch, or raises `data.chat_refused` and adds nothing."""
        template = self._select_template(turns)
        if not isinstance(template, ChatMl):
            batch.add_segments(trim_after_last_in_loss(template.render(turns)))
            return
        if self._chatml is None:
            self._chatml = ChatMlWriter(template, self._pieces.encode)
        self._chatml.write(batch, turns)

    def encode_prompt(self, prompt: str | Sequence[Turn]) -> list[int]:
        """A prompt, or a conversation, up to where the model begins to write.

        Raises `data.chat_refused` and `data.bad_template`.
        """
        turns = self.drop_unsupported_calls((("user", prompt),) if isinstance(prompt, str) else prompt)
        batch = ChatBatchBuilder()
        batch.add_segments(self._select_template(turns).render_prompt(turns))
        return batch.encode(self._encode_pieces).ids.tolist()  # type: ignore[no-any-return]

    def _encode_pieces(self, pieces: Sequence[tuple[str, PrecededBy]]) -> list[Ids]:
        """As `PieceEncoder.encode`, but what a template always writes is encoded once."""
        if self._chatml is not None:  # its marks hold all that it always writes
            return self._pieces.encode(pieces)
        known = self._encoded_pieces
        found: list[Any] = [known.get(piece) if len(piece[0]) <= _MAX_CACHED_CHARS else None for piece in pieces]
        new = [number for number, ids in enumerate(found) if ids is None]
        for number, ids in zip(new, self._pieces.encode([pieces[number] for number in new]), strict=True):
            found[number] = ids
            if len(pieces[number][0]) <= _MAX_CACHED_CHARS and len(known) < _CACHE_SIZE:
                known[pieces[number]] = ids.copy()  # `ids` may be a view that keeps its whole batch in memory
        return found

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids. A character cut in the middle comes out as U+FFFD."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    # --- files ----------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write tokenizer.json, which `tokenizers` and transformers load with the same ids, and its companion."""
        files.write_atomic(
            path.with_name(CONFIG_FILE), self.config_json()
        )  # first: tokenizer.json says that both are there
        files.write_atomic(path, self.tokenizer.to_str(pretty=False).encode("utf-8"))

    def config_json(self, task: Task = "pretrain", max_seq_len: int | None = None) -> bytes:
        """tokenizer_config.json: what transformers and converters want to know of a model trained for `task`.

        A tuned model ends its answer with eos_token, a pretrained one its text; but where the template asks
        for eos_token, that stays what it was.
        """
        told, template = self._config, self._template
        names = {name: self.tokenizer.id_to_token(getattr(self, name)) for name in ("end_of_text", "end_of_turn")}
        further: dict[str, Any] = {"model_max_length": max_seq_len} if max_seq_len else {}
        tokens = {**told.special_tokens, "pad_token": self.tokenizer.id_to_token(self.pad_token_id)}
        if "eos_token" not in tokens or (template is not None and not template.uses_eos):
            tokens["eos_token"] = names["end_of_turn" if task == "sft" else "end_of_text"]
        if isinstance(template, ChatMl):
            tokens.setdefault("bos_token", names["end_of_text"])
            further["additional_special_tokens"] = [chat_template.IM_START, chat_template.IM_END]
        named = {"default": told.template, "tool_use": told.tool_template}
        several = [{"name": name, "template": source} for name, source in named.items()]
        values = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **tokens,
            **further,
            "chat_template": several if told.tool_template else told.template,
            "add_bos_token": bool(self.prefix_ids),
            "add_eos_token": self._adds_eos,
            "clean_up_tokenization_spaces": False,
            "traindeck": {
                "task": task,
                "end_of_text": names["end_of_text"],
                "now": told.template_time,
                "tokens": told.special_tokens,
            },
        }
        return json.dumps(values, indent=1, ensure_ascii=False).encode("utf-8")
