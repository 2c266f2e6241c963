"""`--lengths`, `--padding-free` and `--packing` of `workbook estimate train` and `fine-tuning`."""

from __future__ import annotations

import argparse

from ..catalog.batches import PADDED, PADDING_FREE, Batch, batch_of, packed
from ..catalog.errors import WorkbookError
from ..catalog.models import model as resolve_model
from ..questions.parameter import wholes

FLASH = "flash_attention_2"
MICRO_BATCH, SEQUENCE = 1, 2048  # as `questions.parameters` has them


def packing_flags(parser: argparse._ActionsContainer) -> None:
    text = (
        "tokens of each sequence in a micro-batch, as in 300,420,768: the longest counts; with --padding-free their sum"
    )
    parser.set_defaults(micro_batch=None, sequence=None)  # `lay_out` tells whether somebody said them
    parser.add_argument("--lengths", type=wholes, metavar="N,N", help=text)
    how = parser.add_mutually_exclusive_group()
    text = "the sequences of a micro-batch end to end in one row (padding_free of TRL's SFTTrainer)"
    how.add_argument("--padding-free", action="store_true", help=text)
    text = (
        f"rows of --sequence tokens hold several sequences (packing of SFTTrainer); --attention {FLASH} needs no mask"
    )
    how.add_argument("--packing", action="store_true", help=text)


def lay_out(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Set rows, tokens and mask as the flags say; returns what that means, in sentences."""
    _fill_in(arguments)
    found = _batch(arguments)
    is_flash = arguments.attention == FLASH
    if is_flash:
        _require_no_windows(arguments)
        arguments.attention = "sdpa"
    if found is None:
        return (_flash_said(),) if is_flash else ()
    arguments.micro_batch, arguments.sequence = found.rows, found.tokens
    arguments.masked = found.masked and not is_flash
    return (_rows_said(found), *_mask_said(found, is_flash, arguments.attention))


def _fill_in(arguments: argparse.Namespace) -> None:
    """Rows and tokens where nobody said them; beside --lengths, which say both, they are refused."""
    for name, usual in (("micro_batch", MICRO_BATCH), ("sequence", SEQUENCE)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, usual)
        elif arguments.lengths is not None and not arguments.packing:
            flag = f"--{name.replace('_', '-')}"
            what = f"{flag} beside --lengths, which has a length for each sequence of a micro-batch"
            do = f"leave {flag} out; for a smaller micro-batch give fewer lengths, and --accumulate"
            raise WorkbookError(what, "one of them", do)


def _batch(arguments: argparse.Namespace) -> Batch | None:
    lengths = arguments.lengths
    if arguments.packing:
        if lengths is not None:
            what, do = "--lengths with --packing, whose rows have all --sequence tokens", "leave one of them out"
            raise WorkbookError(what, "one of them", do)
        return packed(arguments.sequence, arguments.micro_batch)
    if lengths is None:
        if not arguments.padding_free:
            return None
        lengths = (arguments.sequence,) * arguments.micro_batch
    several = (lengths,) if isinstance(lengths, int) else lengths
    return batch_of(several, PADDING_FREE if arguments.padding_free else PADDED)


def _require_no_windows(arguments: argparse.Namespace) -> None:
    """FlashAttention needs no mask for a window, as SDPA does: such layers are not counted for it here."""
    if any(layer.attention.window for layer in resolve_model(arguments.model).layers):
        what = f"{FLASH} for {arguments.model}, of which layers have a window"
        raise WorkbookError(what, "sdpa or eager: it has no closed form for them", "leave --attention out")


def _rows_said(found: Batch) -> str:
    if found.rows == 1:
        return (
            f"The micro-batch is one row of {found.tokens:,} tokens, sequences end to end: the sum of lengths counts."
        )
    empty = f"{found.empty_percent:.0f} % of {found.rows * found.tokens:,} are padding"
    return f"The micro-batch is {found.rows} rows of {found.tokens:,} tokens, as the longest has: {empty}."


def _mask_said(found: Batch, is_flash: bool, attention: str | None) -> tuple[str, ...]:
    if is_flash:
        return (_flash_said(),)
    if not found.masked or attention == "eager":
        return ()
    size = found.rows * found.tokens**2
    why = "shows where a sequence ends" if found.several else "hides padding"
    per = "a layer keeps it again in 16 bits where nothing is recomputed"
    more = f": --attention {FLASH} has none" if found.several else ""
    return (f"SDPA gets a mask of {size / 2**20:,.0f} MiB that {why}, and {per}{more}.",)


def _flash_said() -> str:
    return "FlashAttention is told borders as numbers, without a mask; its bytes are those of SDPA's own flash kernel."
