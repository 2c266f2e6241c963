"""Reading a Transformers config.json: each key checked, and each problem told by its key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import WorkbookError

MOST_LAYERS = 4096
MOST_UNITS = 2**26  # widths, vocabularies, positions: an order of magnitude above any model

_MISSING = object()


@dataclass(frozen=True)
class ConfigKeys:
    """Typed access to the keys of a config; `name` is what messages call it.

    A key may be given as "n_embd|hidden_size": the first spelling that is present counts. Where `default`
    is left out the key is required. JSON's null means "not given", except in `optional_whole`.
    """

    name: str
    values: Mapping[str, object]

    def whole(self, key: str, default: int | None = None, least: int = 1, most: int = MOST_UNITS) -> int:
        """An integer in [least, most]; WorkbookError naming the key otherwise."""
        spelled, value = self._find(key)
        if value is _MISSING or value is None:
            if default is None:
                raise self._error(spelled, "is missing", f"a whole number from {least} up")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._error(spelled, f"is {value!r}", f"a whole number from {least} to {most:,}")
        return value

    def optional_whole(self, key: str, default: int | None) -> int | None:
        """As `whole`, but null is a value of its own: Mistral's `"sliding_window": null` means no window."""
        _, value = self._find(key)
        if value is _MISSING:
            return default
        return None if value is None else self.whole(key)

    def flag(self, key: str, default: bool) -> bool:
        spelled, value = self._find(key)
        if value is _MISSING or value is None:
            return default
        if not isinstance(value, bool):
            raise self._error(spelled, f"is {value!r}", "true or false")
        return value

    def word(self, key: str, default: str) -> str:
        spelled, value = self._find(key)
        if value is _MISSING or value is None:
            return default
        if not isinstance(value, str):
            raise self._error(spelled, f"is {value!r}", "a string")
        return value

    def per_layer(self, key: str, layers: int) -> tuple[str, ...] | None:
        """One word per layer, or None when the key is absent."""
        spelled, value = self._find(key)
        if value is _MISSING or value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
            raise self._error(spelled, f"is {value!r}", "a list of strings")
        if len(value) != layers:
            raise self._error(spelled, f"has {len(value)} entries", f"{layers}, one per layer")
        return tuple(value)

    def layer_indices(self, key: str) -> frozenset[int]:
        """A list of layer numbers; empty when the key is absent."""
        spelled, value = self._find(key)
        if value is _MISSING or value is None:
            return frozenset()
        if not isinstance(value, list | tuple) or not all(type(index) is int for index in value):
            raise self._error(spelled, f"is {value!r}", "a list of layer numbers")
        return frozenset(value)

    def require(self, true: bool, key: str, problem: str, expected: str) -> None:
        """WorkbookError about `key`, as the config spells it, unless `true`."""
        if not true:
            raise self._error(self._find(key)[0], problem, expected)

    def _find(self, key: str) -> tuple[str, object]:
        spellings = key.split("|")
        for spelling in spellings:
            if spelling in self.values:
                return spelling, self.values[spelling]
        return spellings[0], _MISSING

    def _error(self, key: str, problem: str, expected: str) -> WorkbookError:
        return WorkbookError(f"{self.name}: {key} {problem}", f"{key}: {expected}", f"correct {key} in the config")
