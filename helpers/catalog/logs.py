"""What libraries log while they are imported or called, kept from readers whom it does not concern."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

# Transformers imports torchao, where it is installed, with its first model. Torchao then logs which of its kernels this
# machine cannot load, and what PyTorch will refuse one day.
_OF_TORCHAO = ("Failed to load ", "Skipping import of cpp extensions", "%s is an Enum subclass")


def hold_back_torchao() -> None:
    """Those sentences of torchao's import, and no others: for notebooks and commands, where Transformers comes late."""
    for name in ("torchao", "torch.utils._pytree"):
        logger = logging.getLogger(name)
        if _says_more not in logger.filters:
            logger.addFilter(_says_more)


def _says_more(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_OF_TORCHAO)


@contextlib.contextmanager
def quiet(*ignored: type[Warning]) -> Iterator[None]:
    """No library logs a warning in here, and none warns of the `ignored` kinds. What was set before is set after."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings() if ignored else contextlib.nullcontext():
            for category in ignored:
                warnings.simplefilter("ignore", category)
            yield
    finally:
        logging.disable(disabled)
