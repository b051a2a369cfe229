"""The Modelfile of an export writes the same prompts as the model's own chat template."""

from __future__ import annotations

import re

import pytest

from tests.unit.model_folders import FAMILIES, load_codec
from trainer_core.export.ollama import modelfile

CHAT = [("user", "Hello?"), ("assistant", "你好。"), ("user", "12 + 30 = ?"), ("assistant", "42"), ("user", "Sure?")]
TRANSLATED = sorted({*FAMILIES, "smollm2"} - {"mistral", "phi3"})


def execute(template: str, messages: list[tuple[str, str]]) -> str:
    """What Go's text/template writes: `range` over messages, `if` and `else if` with `eq`, and `.Content`."""
    found = re.fullmatch(r"\{\{ range \$i, \$_ := \.Messages }}(.*)\{\{ end }}(.*)", template, re.DOTALL)
    assert found is not None, template
    body, prompt = found.groups()
    written = ""
    for number, (role, content) in enumerate(messages):
        active, matched = [True], [True]
        for part in re.split(r"(\{\{ [^}]* }})", body):
            words = part.strip("{} ").split(" ")
            if not part.startswith("{{ "):
                written += part if all(active) else ""
            elif words[0] == ".Content":
                written += content if all(active) else ""
            elif words[0] == "end":
                active.pop()
                matched.pop()
            else:
                wanted = words[-1].strip('"') == (str(number) if "$i" in words else role)
                if words[0] == "else":
                    active[-1], matched[-1] = wanted and not matched[-1], wanted or matched[-1]
                else:
                    active.append(wanted)
                    matched.append(wanted)
    return written + prompt


def template_of(text: str) -> str:
    found = re.search(r'TEMPLATE """(.*)"""', text, re.DOTALL)
    return found[1] if found else ""


@pytest.mark.parametrize("family", TRANSLATED)
def test_chats_are_rendered_as_by_the_chat_template(family: str) -> None:
    codec = load_codec(family)
    template = template_of(modelfile("model-Q8_0.gguf", codec, is_chat=True))
    chats = [CHAT, CHAT[:1]]
    if family != "gemma":  # its template refuses system prompts
        chats += [[("system", "Be brief."), *CHAT]]
    prefix = "".join(codec.tokenizer.id_to_token(number) for number in codec.prefix_ids)
    for chat in chats:
        assert prefix + execute(template, chat) == codec.require_template()._render(chat, prompt=True)


def test_all_end_tokens_stop_and_the_file_is_named() -> None:
    lines = modelfile("my-model-Q8_0.gguf", load_codec("qwen2.5"), is_chat=True).splitlines()
    assert lines[0] == "FROM ./my-model-Q8_0.gguf"
    assert lines[-2:] == ['PARAMETER stop "<|endoftext|>"', 'PARAMETER stop "<|im_end|>"']


def test_a_template_with_other_rules_is_left_to_ollama() -> None:
    assert "TEMPLATE" not in modelfile("model.gguf", load_codec("mistral"), is_chat=True)


def test_a_model_of_plain_text_gets_the_prompt_as_it_is() -> None:
    assert template_of(modelfile("model.gguf", load_codec("qwen2.5"), is_chat=False)) == "{{ .Prompt }}"
