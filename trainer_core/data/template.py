"""How a prompt and its response are written as one text: ChatML.

    <|im_start|>user
    PROMPT<|im_end|>
    <|im_start|>assistant
    RESPONSE<|im_end|>

The markers are special tokens. What a person wrote is encoded apart from them (`tokenizer.Codec`), so
text that contains the word `<|im_end|>` stays text.

No torch, no Qt.
"""

from __future__ import annotations

from typing import Final

END_OF_TEXT: Final = "<|endoftext|>"
IM_START: Final = "<|im_start|>"
IM_END: Final = "<|im_end|>"
SPECIAL_TOKENS: Final = (END_OF_TEXT, IM_START, IM_END)

USER_HEAD: Final = "user\n"
ASSISTANT_HEAD: Final = "assistant\n"

# For tokenizer_config.json; renders what `render_prompt` and `render_response` do.
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def render_prompt(prompt: str) -> str:
    """Everything up to the place where the response begins."""
    return f"{IM_START}{USER_HEAD}{prompt}{IM_END}\n{IM_START}{ASSISTANT_HEAD}"


def render_response(response: str) -> str:
    return f"{response}{IM_END}"
