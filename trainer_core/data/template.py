"""Old names of chat.py, until nobody uses them."""

from __future__ import annotations

from typing import Final

from trainer_core.data.chat import CHATML as CHAT_TEMPLATE
from trainer_core.data.chat import END_OF_TEXT, IM_END, IM_START, SPECIAL_TOKENS

__all__ = ["CHAT_TEMPLATE", "END_OF_TEXT", "IM_END", "IM_START", "SPECIAL_TOKENS", "USER_HEAD"]

USER_HEAD: Final = "user\n"


def render_prompt(prompt: str) -> str:
    return f"{IM_START}{USER_HEAD}{prompt}{IM_END}\n{IM_START}assistant\n"


def render_response(response: str) -> str:
    return f"{response}{IM_END}"
