"""The shipped model and its tokenizer, or the hub model that WORKBOOK_MODEL names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..catalog.errors import WorkbookError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CHECKPOINT = Path(__file__).parent / "checkpoint"
ENVIRONMENT = "WORKBOOK_MODEL"
_UNSET = f"unset {ENVIRONMENT} to use the small model"


class Loaded(NamedTuple):
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load(name: str | Path | None = None) -> Loaded:
    """Model in evaluation mode, FP32, SDPA, on the CPU, and its tokenizer.

    `name` is a folder or a hub model as owner/name; without it WORKBOOK_MODEL is asked, and without that the small
    model is loaded, which needs no network. Each call loads afresh: what is done to one model never shows in another.
    """
    chosen = name or os.environ.get(ENVIRONMENT) or CHECKPOINT
    folder = Path(chosen).expanduser()
    if folder.is_dir():
        return _from(folder, local=True)
    if str(chosen).count("/") != 1 or str(chosen).startswith((".", "/", "~")):
        raise WorkbookError(
            f"no model {str(chosen)!r}", "a folder with a checkpoint, or a hub model as owner/name", _UNSET
        )
    return _from(chosen, local=False)


def _from(where: str | Path, local: bool) -> Loaded:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with without_progress_bar():
            model = AutoModelForCausalLM.from_pretrained(
                where, dtype=torch.float32, attn_implementation="sdpa", local_files_only=local
            )
            tokenizer = AutoTokenizer.from_pretrained(where, local_files_only=local)
    except (OSError, ValueError, KeyError) as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise WorkbookError(
            f"cannot load {str(where)!r}: {first_line}",
            "a causal language model in Transformers' format, and a network for one from the hub",
            f"check the name and the network, or {_UNSET}",
        ) from None
    return Loaded(model, tokenizer)  # from_pretrained leaves it in evaluation mode


@contextlib.contextmanager
def without_progress_bar() -> Iterator[None]:
    """Transformers draws a bar for seven megabytes too, on stderr, which a checked notebook cell compares."""
    from transformers.utils import logging

    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            logging.enable_progress_bar()
