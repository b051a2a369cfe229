"""Checked access to the values of a `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainer_core.messages import TraindeckError

_MAX_SIZES: Final = {
    "vocab_size": 4_194_304,
    "used_vocab_size": 4_194_304,
    "hidden_size": 65_536,
    "num_hidden_layers": 512,
    "num_attention_heads": 1024,
    "num_key_value_heads": 1024,
    "head_dim": 65_536,
    "intermediate_size": 262_144,
    "max_window_layers": 512,
    "sliding_window_pattern": 512,
}  # limits of our own knobs; no model is larger
MAX_POSITIONS: Final = 1_048_576  # of all others
_MAX_NUMBER: Final = 1e12
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class HfValues:
    """Values of a `config.json`, or of an object in it: `prefix` is then the path to it."""

    values: Mapping[str, Any]
    path: str
    prefix: str = ""

    def unsupported(self, name: str, value: object = _MISSING) -> TraindeckError:
        """`model.unsupported` for a value; by default for that of `name`."""
        found = self.values.get(name) if value is _MISSING else value
        name = f"{self.prefix}{name:.40}"
        return TraindeckError("model.unsupported", path=self.path, name=name, value=f"{found!r:.60}")

    def require(self, supported: Mapping[str, Any]) -> None:
        """Raises `model.unsupported` for a key that is neither missing, null nor the supported value."""
        for name, value in supported.items():
            found = self.values.get(name)
            if found is not None and found != value:
                raise self.unsupported(name)

    def size(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """A plausible number of rows or layers: 10**12 would allocate memory for them."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or not minimum <= value <= _MAX_SIZES.get(name, MAX_POSITIONS):
            raise self._implausible(name)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or not 0 < value < _MAX_NUMBER:
            raise self._implausible(name)
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.unsupported(name)
        return value

    def _implausible(self, name: str) -> TraindeckError:
        reason = f"{self.prefix}{name}: {self.values.get(name)!r:.40}"
        return TraindeckError("model.bad_config", path=self.path, reason=reason)
