"""A tokenizer in use: completed where it lacks tokens, converts texts and conversations to ids and back.

No torch, no Qt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from trainer_core.data.column_mapping import Task
from trainer_core.data.columns import TOOLS_ROLE, Turn
from trainer_core.data.tokenizing import conversations
from trainer_core.data.tokenizing.chat_template import ChatTemplate, Piece, Rendering
from trainer_core.data.tokenizing.encoder import Ids, TextEncoder
from trainer_core.data.tokenizing.tokenizer_files import (
    CONFIG_FILE,
    TokenizerConfig,
    apply_bos_eos_flags,
    bad_tokenizer_error,
    post_processor_ids,
    read_config,
    read_tokenizer,
    use_reserved_tokens,
)
from trainer_core.messages import TraindeckError
from trainer_core.system import files

# Tokens that end a text, if the configuration does not name one.
_END_OF_TEXT_TOKENS: Final = (
    conversations.END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "[EOS]", "<|eos|>",
)  # fmt: skip


class EncodedChat(NamedTuple):
    """A conversation up to its last token in the loss. `spans`: [start, stop) of the tokens in the loss."""

    ids: Ids
    spans: list[tuple[int, int]]
    dropped_turns: int = 0  # turns that the template cannot write


def load_user_tokenizer(path: Path, thinking: conversations.Thinking = "auto") -> tuple[Codec, list[str]]:
    """A person's own tokenizer, and the tokens that were added to its vocabulary.

    It gets `<|endoftext|>` if no token ends a text, and those of ChatML if it has no chat template, in the place of
    reserved tokens if there are some. Raises `data.bad_tokenizer`; a template that cannot be used is reported by
    `Codec.require_template`.
    """
    tokenizer, config = read_tokenizer(path), replace(read_config(path), thinking=thinking)
    before = tokenizer.get_vocab(with_added_tokens=True)
    tokenizer.add_tokens([token for token in config.added_tokens if token.content not in before])
    wanted = [config.special_tokens[name] for name in sorted(config.special_tokens)]
    known = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
    if "eos_token" not in config.special_tokens and known.keys().isdisjoint((config.end_of_text, *_END_OF_TEXT_TOKENS)):
        wanted.append(conversations.END_OF_TEXT)
    if config.template == conversations.CHATML_TEMPLATE:
        wanted += [conversations.IM_START, conversations.IM_END]
        tokenizer = use_reserved_tokens(tokenizer, [name for name in wanted if tokenizer.token_to_id(name) is None])
    tokenizer.add_special_tokens([name for name in dict.fromkeys(wanted) if not known.get(name)])
    apply_bos_eos_flags(tokenizer, config)
    if config.template_path == config.path:  # no separate template file
        config = replace(config, template=_chatml_template(tokenizer))
    if "strftime_now" in config.template:
        config = replace(config, now=datetime.now().replace(microsecond=0))
    after = tokenizer.get_vocab(with_added_tokens=True)
    missing = sorted(after.keys() - before.keys(), key=lambda name: after[name])
    unused = {config.special_tokens.get(name) for name in ("pad_token", "unk_token")}
    config = replace(config, new_tokens={name: after[name] for name in missing if name not in unused})
    return Codec(tokenizer, config), missing


def _chatml_template(tokenizer: Tokenizer) -> str:
    """ChatML after the tokens that the tokenizer writes before a text."""
    prefix, _ = post_processor_ids(tokenizer)
    return "".join(str(tokenizer.id_to_token(number)) for number in prefix) + conversations.CHATML_TEMPLATE


class Codec:
    """A tokenizer in use. What people wrote is encoded as text even where it spells a special token.

    Attributes:
        prefix_ids: Ids that this tokenizer writes before a text, such as `<bos>`. `encode` omits them.
        end_of_text: Ends a document. `end_of_turn` ends an answer; `stop_token_ids`: all that end either.
        pad_token_id: Padding in transformers.
        control_tokens: Tokens that no text becomes: special ones, and those that only the chat template writes.

    Args:
        fast: Whether gigatoken may encode.

    Raises `data.bad_tokenizer`.
    """

    def __init__(self, tokenizer: Tokenizer, config: TokenizerConfig | None = None, fast: bool = True) -> None:
        self.tokenizer = tokenizer
        self._config = config or TokenizerConfig()
        self.prefix_ids, suffix = post_processor_ids(tokenizer)
        self._adds_eos = bool(suffix)
        self._template_error = ""
        self._added = tokenizer.get_added_tokens_decoder()
        self._template = self._load_template(self._config.template)
        tool_template = self._config.tool_template
        self._tool_template = self._load_template(tool_template, for_tools=True) if tool_template else None
        templates = [one for one in (self._template, self._tool_template) if one is not None]
        self.end_of_text = self._find_end_of_text(self._template.end_of_turn_ids if self._template else frozenset())
        self.end_of_turn = self._template.end_of_turn if self._template else self.end_of_text
        self.stop_token_ids = frozenset((self.end_of_text, *(end for one in templates for end in one.end_of_turn_ids)))
        hidden = {token.content for token in self._added.values() if token.special}
        hidden = hidden.union(*(one.control_tokens for one in templates))
        self.control_tokens = frozenset(hidden)
        self._encoder = TextEncoder(tokenizer, fast, hidden, self._config.path)
        own_pad: int | None = tokenizer.token_to_id(self._config.special_tokens.get("pad_token", ""))
        self.pad_token_id = self.end_of_text if own_pad is None else own_pad
        # The largest id counts, not the number of tokens: some tokenizers leave ids out.
        self.vocab_size: int = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @classmethod
    def load(cls, path: Path, fast: bool = True) -> Codec:
        """From a complete tokenizer.json and its companion files. Raises `data.bad_tokenizer`."""
        return cls(read_tokenizer(path), read_config(path), fast)

    # --- special tokens and templates -----------------------------------------------------------------

    def _load_template(self, source: str, for_tools: bool = False) -> ChatTemplate | None:
        """None if it cannot be used, which does not matter for plain text."""
        named, end, now = self._config.special_tokens, self._find_end_of_text(), self._config.now or datetime.now()
        try:
            return ChatTemplate(source, named, self._added, end, now, for_tools, self._config.thinking)
        except TraindeckError as error:
            if error.code != "data.chat_refused":
                raise
            self._template_error = self._template_error or str(error.params["reason"])
            return None

    def require_template(self) -> ChatTemplate:
        """Raises `data.bad_template` if conversations cannot be encoded."""
        if self._template is None:
            raise TraindeckError("data.bad_template", path=str(self._config.template_path), reason=self._template_error)
        return self._template

    def _find_end_of_text(self, turn_ends: frozenset[int] = frozenset()) -> int:
        """eos_token, unless that ends an answer and another token is there that ends a text."""
        own, id_of = self._config.special_tokens.get("eos_token", ""), self.tokenizer.token_to_id
        added = {token.content for token in self._added.values()}
        known = [name for name in _END_OF_TEXT_TOKENS if name in added]
        ends_text = own in _END_OF_TEXT_TOKENS or id_of(own) not in turn_ends
        names = [own, *known] if ends_text else [*known, own]
        names.append(conversations.END_OF_TEXT)
        if self._config.end_of_text:
            names = [self._config.end_of_text]
        numbers: list[int] = [number for number in map(id_of, names) if number is not None]
        if not numbers:
            raise bad_tokenizer_error(self._config.path, f"it lacks {names[-1]}")
        return numbers[0]

    # --- to ids and back ------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        return self.encode_texts([text])[0].tolist()  # type: ignore[no-any-return]

    def encode_texts(self, texts: Sequence[str], within_chat: bool = False) -> list[Ids]:
        """Ids of plain texts; `within_chat`: as after a special token. Keep a call to a few MiB of text.

        Raises `EncoderMismatchError`, or `data.bad_tokenizer` if a text becomes a special token.
        """
        return self._encoder.encode(texts, ["mark"] * len(texts) if within_chat else ())

    def encode_chats(
        self, chats: Sequence[Sequence[Turn]], on_refused: Callable[[int, TraindeckError], None] | None = None
    ) -> list[EncodedChat]:
        """Conversations as ids, without what follows the last answer: it is not trained on.

        Calls `on_refused` with the number of one that the template refuses, which is then empty; without that, raises
        `data.chat_refused`. Raises `data.bad_template` and as `encode_texts`.
        """
        rendered: list[Rendering] = []
        dropped: list[int] = []
        for number, turns in enumerate(chats):
            template = self._select_template(turns)
            kept = template.drop_unsupported_calls(turns)
            dropped.append(len(turns) - len(kept))
            rendered.append(Rendering([], []))
            if dropped[-1] and not any(turn[0] == "assistant" for turn in kept):
                continue
            try:
                pieces, in_loss = template.render(kept)
                if not in_loss:
                    raise conversations.no_answers_error()
                rendered[-1] = Rendering(pieces[: in_loss[-1][1]], in_loss)
            except TraindeckError as error:
                if on_refused is None:
                    raise
                on_refused(number, error)
        return [EncodedChat(*one, count) for one, count in zip(self._encode(rendered), dropped, strict=True)]

    def _encode(self, rendered: Sequence[Rendering]) -> list[tuple[Ids, list[tuple[int, int]]]]:
        """Ids and spans in the loss of each conversation. All different texts are encoded in one call."""
        pieces = [*chain.from_iterable(one.pieces for one in rendered)]
        different = dict.fromkeys(pieces)
        texts = [piece for piece in different if isinstance(piece, tuple)]
        encoded = self._encoder.encode([text for text, _ in texts], [place for _, place in texts])
        ids_of: dict[Piece, Ids] = {one: np.array([one], np.uint32) for one in different if isinstance(one, int)}
        ids_of.update(zip(texts, encoded, strict=True))
        parts = [ids_of[piece] for piece in pieces]
        ids = np.concatenate([np.empty(0, np.uint32), *parts])
        starts = np.cumsum([0, *map(len, parts)]).tolist()  # of each piece
        found = []
        first = 0  # piece of a conversation
        for one in rendered:
            last = first + len(one.pieces)
            start = starts[first]
            spans = [(starts[first + begin] - start, starts[first + end] - start) for begin, end in one.in_loss]
            found.append((ids[start : starts[last]], [span for span in spans if span[0] < span[1]]))
            first = last
        return found

    def drop_unsupported_calls(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """A conversation without tool calls that the chat template cannot write. Raises `data.bad_template`."""
        return self._select_template(turns).drop_unsupported_calls(turns)

    def _select_template(self, turns: Sequence[Turn]) -> ChatTemplate:
        """Of a model with several templates, `tool_use` is the one for conversations with tools."""
        has_tools = bool(turns) and turns[0][0] == TOOLS_ROLE
        return self._tool_template if has_tools and self._tool_template is not None else self.require_template()

    def encode_prompt(self, prompt: str | Sequence[Turn]) -> list[int]:
        """A prompt, or a conversation, up to where the model begins to write.

        Raises `data.chat_refused` and `data.bad_template`.
        """
        turns: Sequence[Turn] = (("user", prompt),) if isinstance(prompt, str) else prompt
        template = self._select_template(turns)
        ids, _ = self._encode([template.render_prompt(template.drop_unsupported_calls(turns))])[0]
        return ids.tolist()  # type: ignore[no-any-return]

    def render_prompt(self, turns: Sequence[Turn]) -> str:
        """The text of which `encode_prompt` returns the ids. Raises as `encode_prompt`."""
        template = self._select_template(turns)
        return template.render_prompt_text(template.drop_unsupported_calls(turns))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids. A character cut in the middle comes out as U+FFFD."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    # --- files ----------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write tokenizer.json, which `tokenizers` and transformers load with the same ids, and its companion."""
        files.write_atomic(path.with_name(CONFIG_FILE), self.config_json())  # first: both exist if tokenizer.json does
        files.write_atomic(path, self.tokenizer.to_str(pretty=False).encode("utf-8"))

    def config_json(self, task: Task = "pretrain", max_seq_len: int | None = None) -> bytes:
        """tokenizer_config.json: what transformers and converters need of a model trained for `task`.

        A tuned model ends its answer with eos_token, a pretrained one its text. If the template uses eos_token, that
        stays as it was.
        """
        config, name_of = self._config, self.tokenizer.id_to_token
        end_of_text, pad = name_of(self.end_of_text), name_of(self.pad_token_id)
        tokens: dict[str, Any] = {**config.special_tokens, "pad_token": pad}
        if "eos_token" not in tokens or (self._template is not None and "eos_token" not in config.template):
            tokens["eos_token"] = end_of_text if task == "pretrain" else name_of(self.end_of_turn)
        if config.template in (conversations.CHATML_TEMPLATE, _chatml_template(self.tokenizer)):
            tokens.setdefault("bos_token", end_of_text)
            tokens["additional_special_tokens"] = [conversations.IM_START, conversations.IM_END]
        named = {"default": config.template, "tool_use": config.tool_template}
        several = [{"name": name, "template": source} for name, source in named.items()]
        now = config.now.isoformat() if config.now else ""
        values = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **tokens,
            **({"model_max_length": max_seq_len} if max_seq_len else {}),
            "chat_template": several if config.tool_template else config.template,
            "add_bos_token": bool(self.prefix_ids),
            "add_eos_token": self._adds_eos,
            "clean_up_tokenization_spaces": False,
            "traindeck": {
                "task": "pretrain" if task == "pretrain" else "sft",
                "end_of_text": end_of_text,
                "now": now,
                "tokens": config.special_tokens,
                "thinking": config.thinking,
                "new_tokens": config.new_tokens,
            },
        }
        return json.dumps(values, indent=1, ensure_ascii=False).encode("utf-8")
