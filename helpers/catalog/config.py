"""Reading a Transformers config.json: each key checked, and each problem told by its key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from .errors import WorkbookError

MOST_LAYERS = 4096
MOST_UNITS = 2**26  # widths, vocabularies, positions: an order of magnitude above any model

MOST_LEVELS = 16  # of dicts within dicts; the deepest config in use has four
_ASKS_FOR_CODE = ("auto_map", "attn_implementation", "experts_implementation")

T = TypeVar("T")


def without_code(config: Mapping[str, object]) -> dict[str, object]:
    """The config without the keys by which it would choose the code that runs; the one door to Transformers.

    `auto_map` names Python files of a repository, `attn_implementation` may name one with a compiled kernel, or a
    kernel that is fetched where its package is missing. What a model computes is for whoever runs it to choose, so
    these keys are dropped at every level and in every spelling. WorkbookError for one nested too deeply to look at.

    >>> without_code({"model_type": "llama", "auto_map": {"AutoModel": "code.Model"}})
    {'model_type': 'llama'}
    """
    return {key: _cleaned(value, MOST_LEVELS) for key, value in config.items() if not _asks_for_code(key)}


def _cleaned(value: object, levels: int) -> object:
    if not isinstance(value, Mapping | list | tuple):
        return value
    if levels == 0:
        what, expected = "a config is nested too deeply", f"at most {MOST_LEVELS} levels"
        raise WorkbookError(what, expected, "pass a model's config.json")
    if isinstance(value, Mapping):
        return {key: _cleaned(each, levels - 1) for key, each in value.items() if not _asks_for_code(key)}
    cleaned = [_cleaned(each, levels - 1) for each in value]
    return tuple(cleaned) if isinstance(value, tuple) else cleaned


def _asks_for_code(key: object) -> bool:
    return isinstance(key, str) and any(name in key for name in _ASKS_FOR_CODE)


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
        if value is None and default is not None:
            return default
        if value is None:
            raise self._error(spelled, "is missing", f"a whole number from {least} up")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._error(spelled, f"is {value!r}", f"a whole number from {least} to {most:,}")
        return value

    def optional_whole(self, key: str, default: int | None) -> int | None:
        """As `whole`, but null is a value of its own: Mistral's `"sliding_window": null` means no window."""
        spelled, value = self._find(key)
        if spelled not in self.values:
            return default
        return None if value is None else self.whole(key)

    def flag(self, key: str, default: bool) -> bool:
        return self._typed(key, default, bool, "true or false")

    def word(self, key: str, default: str) -> str:
        return self._typed(key, default, str, "a string")

    def per_layer(self, key: str, layers: int) -> tuple[str, ...] | None:
        """One word per layer, or None when the key is absent."""
        words = self._list_of(str, key, "a list of strings")
        if words is not None:
            self.require(len(words) == layers, key, f"has {len(words)} entries", f"{layers}, one per layer")
        return words

    def layer_indices(self, key: str) -> frozenset[int]:
        """A list of layer numbers; empty when the key is absent."""
        return frozenset(self._list_of(int, key, "a list of layer numbers") or ())

    def numbers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers; empty when the key is absent."""
        return self._list_of(int, key, "a list of whole numbers") or ()

    def _typed(self, key: str, default: T, kind: type[T], expected: str) -> T:
        spelled, value = self._find(key)
        if value is not None and not isinstance(value, kind):
            raise self._error(spelled, f"is {value!r}", expected)
        return default if value is None else value

    def _list_of(self, kind: type[T], key: str, expected: str) -> tuple[T, ...] | None:
        """The items, each of `kind` itself: True is no layer number. None when the key is absent."""
        spelled, value = self._find(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(type(item) is kind for item in value):
            raise self._error(spelled, f"is {value!r}", expected)
        return tuple(value)

    def require(self, true: bool, key: str, problem: str, expected: str) -> None:
        """WorkbookError about `key`, as the config spells it, unless `true`."""
        if not true:
            raise self._error(self._find(key)[0], problem, expected)

    def _find(self, key: str) -> tuple[str, object]:
        """The spelling that is present, else the first; and its value, None where there is none."""
        spellings = key.split("|")
        spelled = next((spelling for spelling in spellings if spelling in self.values), spellings[0])
        return spelled, self.values.get(spelled)

    def _error(self, key: str, problem: str, expected: str) -> WorkbookError:
        return WorkbookError(f"{self.name}: {key} {problem}", f"{key}: {expected}", f"correct {key} in the config")
