"""`workbook estimate grpo` and `workbook estimate dpo`: training from preferences by stages, as TRL runs it."""

from __future__ import annotations

import argparse

from ..catalog.errors import WorkbookError, require_whole
from ..catalog.losses import TRL
from ..catalog.preference import GENERATORS, SHARE, DpoSetup, GrpoSetup
from ..catalog.setup_fields import MAX_TOKENS
from ..catalog.train_setup import TrainSetup
from ..lesson import calculators
from . import flags
from .flags import Commands, add_command, decimal, setup_of, whole

MICRO_BATCH, TOKENS = 8, 512  # per_device_train_batch_size; max_completion_length of GRPOConfig
ON_BASE = "autocast-bf16-on-bf16"  # bf16=True on a base loaded in BF16


def add_preference(kinds: Commands) -> None:
    text = "GRPO as TRL runs it, by stages: generation, log-probabilities, loss, backward; bytes by part, verdict"
    grpo = add_command(kinds, "grpo", text, _estimate_grpo)
    text = "DPO as TRL runs it, by stages: loss, reference, backward; bytes by part, verdict"
    dpo = add_command(kinds, "dpo", text, _estimate_dpo)
    for parser, rows in ((grpo, "completions"), (dpo, "pairs, of two sequences each,")):
        flags.model_flag(parser)
        flags.device_and_json_flags(parser)
        flags.reserve_flag(parser)
        flags.step_flags(parser, MICRO_BATCH, "full", rows, ON_BASE)
        flags.adapter_flags(parser)
        parser.add_argument("--prompt", type=whole, default=TOKENS, help="tokens of the longest prompt")
        parser.add_argument("--completion", type=whole, default=TOKENS, help="tokens of the longest completion")
        text = "whether sequences of a batch differ in length, which gives attention a mask (default: they do)"
        parser.add_argument("--padding", action=argparse.BooleanOptionalAction, default=True, help=text)
    _grpo_flags(grpo)
    text = "score by the reference before the training (precompute_ref_log_probs)"
    dpo.add_argument("--precompute", action="store_true", help=text)


def _grpo_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--generations", type=whole, default=8, metavar="N", help="completions of each prompt")
    text = "micro-batches that are generated for at once (default: as many as are accumulated)"
    parser.add_argument("--steps-per-generation", type=whole, metavar="N", help=text)
    parser.add_argument("--iterations", type=whole, default=1, metavar="N", help="times that each completion is used")
    parser.add_argument("--beta", type=decimal, default=0.0, help="weight of the distance to a reference; 0: none")
    text = f"who generates: {', '.join(GENERATORS)} on the same card"
    parser.add_argument("--generator", default=GENERATORS[0], help=text)
    text = "of the whole card that vLLM takes (vllm_gpu_memory_utilization)"
    parser.add_argument("--share", type=decimal, help=f"{text}; default {SHARE:g}")
    text = "vLLM gives its weights and its pool back between generations (vllm_enable_sleep_mode)"
    parser.add_argument("--sleep", action="store_true", help=text)


def _train_of(arguments: argparse.Namespace, rows: int) -> TrainSetup:
    """The step on `rows` sequences, in TRL's recipe where nobody says another."""
    do = "pass --completion 512, TRL's default, or leave it out"
    require_whole("completion", arguments.completion, most=MAX_TOKENS, unit="tokens", do=do)
    require_whole("prompt", arguments.prompt, most=MAX_TOKENS, unit="tokens", do=do.replace("completion", "prompt"))
    adapted = arguments.adapter or arguments.lora_rank
    arguments.trainer = arguments.trainer or ("trl" if adapted else None)
    arguments.micro_batch, arguments.sequence = rows, arguments.prompt + arguments.completion
    arguments.masked, arguments.loss = arguments.padding, TRL
    said = arguments.precision
    setup = setup_of(TrainSetup, arguments)
    if said is None and setup.adapter and not setup.adapter.base:
        arguments.precision = ON_BASE
        setup = setup_of(TrainSetup, arguments)
    return setup


def _estimate_grpo(arguments: argparse.Namespace) -> int:
    if arguments.share is not None and arguments.generator == GENERATORS[0]:
        what = f"--share with {GENERATORS[0]}, which sets no share of the card aside"
        raise WorkbookError(what, "--generator vllm", "add --generator vllm, or leave --share out")
    setup = GrpoSetup(
        _train_of(arguments, arguments.micro_batch),
        arguments.prompt,
        arguments.generations,
        arguments.steps_per_generation,
        arguments.iterations,
        arguments.beta,
        arguments.generator,
        SHARE if arguments.share is None else arguments.share,
        arguments.sleep,
    )
    answer = calculators.preference_answer(setup, arguments.gpu, flags.reserve_bytes_of(arguments))
    return flags.print_answer(answer, arguments)


def _estimate_dpo(arguments: argparse.Namespace) -> int:
    setup = DpoSetup(_train_of(arguments, 2 * arguments.micro_batch), arguments.prompt, arguments.precompute)
    answer = calculators.preference_answer(setup, arguments.gpu, flags.reserve_bytes_of(arguments))
    return flags.print_answer(answer, arguments)
