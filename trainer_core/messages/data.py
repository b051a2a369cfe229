"""Reasons, positions and allowed values: parameters of messages that travel as English text.

Readers, checkpoints and settings use the phrases below `reason`, `position` and `allowed` in `en.json`, with a name in
“quotation marks”. Each phrase is looked up as a whole; text of other programs stays as it is. No torch, no Qt.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from trainer_core import texts
from trainer_core.texts import Language, get

Value = str | int | float | bool | None


def translate_params(params: Mapping[str, Value], language: Language) -> dict[str, Value]:
    """Return the parameters of a message with reason, position and allowed values in `language`."""
    found = dict(params)
    if language == "en":
        return found
    for name, translate in (("reason", translate_reason), ("position", translate_position), ("allowed", _allowed)):
        value = found.get(name)
        if isinstance(value, str):
            found[name] = translate(value, language)
    return found


def translate_reason(reason: str, language: Language) -> str:
    """Return a reason in `language`. The parts of `.json: Extra data` are looked up one by one."""
    before, opened, rest = reason.partition("“")
    name, closed, after = rest.partition("”")
    key = _phrases().get(f"{before}“{{}}”{after}" if opened and closed else reason)
    if key is not None:
        return get(key, language).format(name)
    first, colon, rest = reason.partition(": ")
    parts = [translate_reason(first, language), translate_reason(rest, language)] if colon else []
    return reason if parts == [first, rest] or not parts else "：".join(parts)


def translate_position(position: str, language: Language) -> str:
    """Return a position in `language`: `line 17`, `its end, after line 17`, `after sample a`."""
    place, after, previous = position.partition("after ")
    if after and place:
        place = _place(place.rstrip(", "), language)
        return get("position_after.place", language, place=place, previous=_place(previous, language))
    if after:
        return get("position_after.alone", language, previous=_place(previous, language))
    return _place(position, language)


def _place(place: str, language: Language) -> str:
    unit, _, value = place.partition(" ")
    key = _phrases().get(f"{unit} {{}}") or _phrases().get(place)
    return get(key, language).format(value.replace(" of ", "/")) if key else place


def _allowed(allowed: str, language: Language) -> str:
    for key in ("allowed.integer", "allowed.number", "allowed.texts", "allowed.text", "allowed.address"):
        kind = get(key, "en")
        if allowed.startswith(kind):
            limits = allowed[len(kind) + 1 :].replace(get("allowed.and", "en"), get("allowed.and", language))
            kind = get(key, language)
            return get("allowed.limits", language, kind=kind, limits=limits) if limits else kind
    return allowed


@functools.cache
def _phrases() -> dict[str, str]:
    """Return the keys of all reasons and positions by their English text."""
    phrases = {key: text for key, text in texts.catalogue("en").items() if key.startswith(("reason.", "position."))}
    return {text.replace("{{", "{").replace("}}", "}"): key for key, text in phrases.items()}
