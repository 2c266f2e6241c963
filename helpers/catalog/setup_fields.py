"""What the fields of both setups share: how they are normalised, their bounds, and their flags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .errors import WorkbookError, unknown_name
from .models import model as resolve_model
from .shape import ModelShape

FLAGS = {"micro_batches": "--accumulate"}  # fields whose flag has another name
MAX_COUNT = 2**20
MAX_TOKENS = 2**24


class ModelField:
    """A field that takes a catalogue name, a path, a config or a ModelShape, and always reads as a ModelShape."""

    def __get__(self, setup: object | None, owner: type) -> ModelShape:
        if setup is None:
            raise AttributeError("model")  # which tells dataclass that the field has no default
        return setup.__dict__["model"]

    def __set__(self, setup: object, given: ModelShape | str | Mapping[str, object]) -> None:
        setup.__dict__["model"] = resolve_model(given)


def set_field(setup: object, name: str, value: object) -> None:
    """Normalise a field of a frozen dataclass while it is being made."""
    object.__setattr__(setup, name, value)


def known_name(kind: str, name: object, allowed: Iterable[str]) -> str:
    if not isinstance(name, str) or name.lower() not in allowed:
        raise unknown_name(kind, name, allowed)
    return name.lower()


def check_positions(name: str, tokens: int, model: ModelShape) -> None:
    """A learned position table ends; rotary positions do not, so those only lose quality."""
    if model.learned_positions and tokens > model.max_positions:
        what = f"{name} is {tokens:,} and {model.name} has a position for {model.max_positions:,} tokens"
        raise WorkbookError(what, f"{name} from 1 to {model.max_positions:,}", f"pass {name}={model.max_positions}")


def flag_of(field: str) -> str:
    """The flag of the `workbook` command that sets a field of a setup.

    >>> flag_of("micro_batch"), flag_of("micro_batches")
    ('--micro-batch', '--accumulate')
    """
    return FLAGS.get(field, f"--{field.replace('_', '-')}")
