"""Tokenizers: repeatable, lossless, understood by others, and deaf to markers that people write."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from trainer_core.data import template, tokenizer
from trainer_core.data.tokenizer import REGEXES, Codec
from trainer_core.messages import TraindeckError
from trainer_core.report import StopRequested

TEXTS = [
    "def add(a, b):\n    return a + b  # it's 12345\n" * 20,
    "床前明月光，疑是地上霜。举头望明月，低头思故乡。\n" * 20,
    "What is 12 plus 30? It's 42, they'LL say.\r\n\r\n  \t indented\n" * 20,
]
ODD = [
    "",
    " ",
    "\n\n",
    "a\tb",
    "naïve café",
    "👩‍👩‍👧 emoji",
    "\x00\x01 control",
    "1234567890",
    "日本語テキスト",
    "e\u0301",
]


def nothing() -> None:
    pass


def trained(kind: Any = "qwen2", vocab_size: int = 400) -> Codec:
    return Codec(tokenizer.train(TEXTS, vocab_size, kind, nothing))


@pytest.mark.parametrize("kind", REGEXES)
def test_any_text_comes_back_as_it_was(kind: str) -> None:
    codec = trained(kind)
    for text in [*TEXTS, *ODD]:
        composed = unicodedata.normalize("NFC", text) if kind == "qwen2" else text
        assert codec.decode(codec.encode(text)) == composed


def test_special_tokens_come_first_and_the_vocabulary_is_as_large_as_asked() -> None:
    codec = trained(vocab_size=350)
    assert (codec.end_of_text, codec.im_start, codec.im_end, codec.vocab_size) == (0, 1, 2, 350)


def test_too_little_text_makes_a_smaller_vocabulary() -> None:
    codec = Codec(tokenizer.train(["ab"], 8192, "qwen2", nothing))
    assert codec.vocab_size == 3 + 256


def test_the_same_text_always_trains_the_same_tokenizer(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from trainer_core.data import tokenizer as t;"
        "texts = Path(t.__file__).read_text(encoding='utf-8').splitlines(keepends=True);"
        "t.Codec(t.train(texts, 600, 'qwen2', lambda: None)).save(Path(sys.argv[1]))"
    )
    for name in ("a.json", "b.json"):
        root = Path(tokenizer.__file__).parents[2]
        subprocess.run([sys.executable, "-c", script, str(tmp_path / name)], check=True, cwd=root)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_qwen2_keeps_digits_apart_and_the_others_group_them() -> None:
    def pieces(kind: Any) -> int:
        codec = Codec(tokenizer.train(["12345 " * 500], 300, kind, nothing))
        return len(codec.encode("12345"))

    assert [pieces(kind) for kind in ("qwen2", "llama-bpe", "gpt-2")] == [5, 2, 1]


def test_a_marker_that_somebody_wrote_stays_text() -> None:
    codec = trained()
    for marker in template.SPECIAL_TOKENS:
        ids = codec.encode(f"before {marker} after")
        assert not {0, 1, 2} & set(ids)
        assert codec.decode(ids) == f"before {marker} after"


def test_a_prompt_is_encoded_as_the_rendered_text_is() -> None:
    codec = trained()
    reference = Tokenizer.from_str(codec._tokenizer.to_str())
    for prompt in ("What is 12 plus 30?", "  leading space", "\nnew line", "床前明月光", ""):
        rendered = reference.encode(template.render_prompt(prompt), add_special_tokens=False).ids
        assert codec.encode_prompt(prompt) == rendered
    (_, response), *_ = codec.encode_pairs([("a", "It is 42")])
    assert response == reference.encode(template.render_response("It is 42"), add_special_tokens=False).ids


def test_training_stops_soon_after_it_was_asked_to() -> None:
    calls = 0

    def stop_at_third() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise StopRequested

    def endless() -> Any:
        while True:
            yield TEXTS[0]

    with pytest.raises(StopRequested):
        tokenizer.train(endless(), 400, "qwen2", stop_at_third)


def test_an_error_while_reading_comes_out_of_training() -> None:
    def broken() -> Any:
        yield TEXTS[0]
        raise TraindeckError("data.unreadable", path="x", reason="y")

    with pytest.raises(TraindeckError):
        tokenizer.train(broken(), 400, "qwen2", nothing)


# --- given tokenizers ------------------------------------------------------------------------------


def plain_tokenizer(path: Path) -> Path:
    """A tokenizer.json without any of the special tokens, with truncation and padding switched on."""
    made = Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.enable_truncation(4)
    made.enable_padding(length=16)
    path.write_text(made.to_str(), encoding="utf-8")
    return path


def test_a_given_tokenizer_gets_the_special_tokens_that_it_lacks(tmp_path: Path) -> None:
    given, missing = tokenizer.load_given(plain_tokenizer(tmp_path / "tokenizer.json"))
    assert missing == list(template.SPECIAL_TOKENS)
    codec = Codec(given)
    assert codec.vocab_size == 259
    assert len(codec.encode("longer than four")) == 16  # neither cut nor padded


def test_a_tokenizer_may_be_given_by_its_folder(tmp_path: Path) -> None:
    path = plain_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.find(str(tmp_path)) == path


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"model": {"type": "Unheard"}}'])
def test_what_is_no_tokenizer_is_refused_with_its_code(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(TraindeckError) as caught:
        tokenizer.load_given(tmp_path / "tokenizer.json")
    assert caught.value.code == "data.bad_tokenizer"


def test_a_tokenizer_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(TraindeckError, match="no such file"):
        tokenizer.find(str(tmp_path))


# --- transformers ----------------------------------------------------------------------------------

MODELS = {
    "none": None,
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 400},
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 400},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 400},
}


# transformers 5 forces its Qwen2Tokenizer, with Qwen's regex, on models of the type qwen2.
LOADED = [(kind, model) for kind in REGEXES for model in MODELS if model != "qwen2" or kind == "qwen2"]


@pytest.mark.parametrize(("kind", "model"), LOADED)
def test_transformers_load_the_folder_with_the_same_ids(tmp_path: Path, kind: str, model: str) -> None:
    transformers = pytest.importorskip("transformers")
    codec = trained(kind)
    codec.save(tmp_path / "tokenizer.json")
    tokenizer.save_config(tmp_path, "sft", 256)
    if MODELS[model]:
        (tmp_path / "config.json").write_text(json.dumps(MODELS[model]), encoding="utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS, *ODD]:
        assert theirs.encode(text, add_special_tokens=False) == codec.encode(text)
        assert theirs.encode(text) == codec.encode(text)  # and they add nothing of their own
    assert (theirs.eos_token_id, theirs.pad_token_id, theirs.model_max_length) == (2, 0, 256)
    messages = [{"role": "user", "content": "What is 1 plus 2?"}]
    rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == template.render_prompt("What is 1 plus 2?")
    assert theirs.encode(rendered, add_special_tokens=False) == codec.encode_prompt("What is 1 plus 2?")
    assert theirs.decode(codec.encode("it's , fine .")) == "it's , fine ."
