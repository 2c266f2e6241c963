"""`workbook trace`: the real code run without memory, beside the closed form."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from ..catalog.devices import Device
from ..catalog.errors import WorkbookError
from ..catalog.hardware import reference_of, require_cuda
from ..catalog.loaders import loader
from ..catalog.serve_setup import ServeSetup
from ..catalog.split import Split
from ..catalog.train_setup import TrainSetup
from ..memory.breakdown import Breakdown, Part, Point
from ..questions.parameter import whole, wholes
from ..questions.parameters import ADAPTED, MODEL, SEQUENCE, SERVED, SPLIT, TRAINED, changed
from ..questions.setups import setup_of, split_of
from . import flags
from .flags import Commands, add_command, device_of


def add(commands: Commands) -> None:
    trace = commands.add_parser("trace", help="run the real code without memory: the peak a GPU would report")
    kinds = trace.add_subparsers(title="what to trace")
    train = add_command(kinds, "train", "training steps, on one GPU or on one rank of several", _trace_train)
    serve = add_command(kinds, "serve", "a batch from its prompts to its last token", _trace_serve)
    several = {"sequence": {"type": wholes, "words": f"{SEQUENCE.words}; or of each batch of a run, as in 300,420,768"}}
    flags.add_parameters(train, (MODEL, *changed(TRAINED, **several), *ADAPTED, *SPLIT))
    flags.add_parameters(serve, (MODEL, *SERVED))
    for parser in (train, serve):
        flags.card_and_json(parser)
        parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), help="weights and what is computed with them")
        parser.add_argument("--snapshot", metavar="FILE", help="write the history for docs.pytorch.org/memory_viz")
    text = "release that loads a base in 4 bits (default: the installed one); until 5.3 reserved memory is a range"
    train.add_argument("--transformers", metavar="VERSION", help=text)
    train.add_argument("--steps", type=whole, default=2, help="steps to run; the last is accounted for")
    serve.add_argument("--phase", choices=("prefill", "decode"), help="one forward of it alone; default: all of it")


def _split_of(arguments: argparse.Namespace) -> Split:
    """The split of a trace, which runs PyTorch's code: `--zero 3 --ranks 8` is `--fsdp 8`."""
    for part in ("optimizer", "parameters"):
        if (tier := getattr(arguments, f"offload_{part}")) != "none":
            do = f"leave it out, or predict it: `workbook estimate train` takes --offload-{part}"
            raise WorkbookError(f"--offload-{part} is {tier!r}", "'none': a trace counts the memory of one device", do)
    split = split_of(vars(arguments))
    return replace(split, data=1, zero=0, fsdp=split.data) if split.zero == 3 else split


def _trace_train(arguments: argparse.Namespace) -> int:
    from ..memory import budget, trace

    if arguments.dtype:
        arguments.precision = arguments.dtype
    split, lengths = _split_of(arguments), ()
    if isinstance(arguments.sequence, tuple):
        lengths, arguments.sequence = arguments.sequence, max(arguments.sequence)
    setup, where = replace(setup_of(TrainSetup, vars(arguments)), split=split), device_of(arguments)
    require_cuda(where, "a trace")  # before a large model is built
    loader(arguments.transformers)
    tokens = ", ".join(f"{length:,}" for length in lengths or (setup.sequence,))
    title = f"{setup.model.name}, {setup.precision}, {setup.optimizer}, {setup.micro_batch} × {tokens} tokens"
    title += f", {setup.micro_batches:,} accumulated" if setup.micro_batches > 1 else ""
    title += ", the optimizer in the backward" if setup.in_backward else ""
    title = f"{setup.adapter}, of {title}" if setup.adapter else f"Training {title}"
    title += f", on rank {arguments.rank:,} of {split}" if split.by_parts else ""
    found = trace.train(setup, where, steps=arguments.steps, rank=arguments.rank, lengths=lengths)
    try:
        predicted = budget.train(setup, where or reference_of(setup), arguments.rank).parts
    except WorkbookError:  # no closed form for its activations: then the trace stands alone
        predicted = None
    ranks = split.ranks if split else setup.ranks
    return _print_trace(title, found, predicted, arguments, arguments.transformers, ranks)


def _trace_serve(arguments: argparse.Namespace) -> int:
    from ..memory import trace

    if arguments.dtype:
        arguments.weights = arguments.kv = arguments.dtype
    setup = setup_of(ServeSetup, vars(arguments))
    where = device_of(arguments)
    run = {None: trace.serve, "prefill": trace.prefill, "decode": trace.decode}[arguments.phase]
    title = (
        f"{'Serving' if not arguments.phase else f'One {arguments.phase} of'} {setup.model.name}, {setup.users:,} users"
    )
    weights = "" if setup.weights == "bf16" else f", weights {setup.weights_told}"
    if setup.model.beside:  # which Transformers builds without its towers
        weights += f", without its {setup.model.beside[0].name}"
        setup = replace(setup, model=replace(setup.model, beside=()))
    found = run(setup, where)
    return _print_trace(
        f"{title} × {setup.context:,} tokens{weights}", found, _predicted(setup, where, arguments.phase), arguments
    )


def _predicted(setup: ServeSetup, where: Device | None, phase: str | None) -> Breakdown:
    """The closed form's peak, or that of one phase; of all prompts in one forward, which is what the trace runs.

    What windows drop after the forward the trace sees in the cache.
    """
    from ..memory import budget

    together = replace(setup, prefill_tokens=setup.prefill_tokens or setup.users * setup.prompt_tokens)
    found = budget.serve(together, where or reference_of(setup))
    moment = found.at(phase) if phase else found.peak
    dropped = found.dropped_bytes if moment.at is Point.PREFILL else 0
    moved: dict[str, int] = {Part.ACTIVATIONS: -dropped, Part.KV_CACHE: dropped}
    return Breakdown({part: size + moved.get(part, 0) for part, size in moment.parts.items()})


def _print_trace(
    title: str, found, predicted, arguments: argparse.Namespace, loaded_by: str | None = None, ranks: int = 1
) -> int:
    from ..lesson.traced import trace_figures, trace_report
    from ..memory.allocator import write_for_viewer

    if arguments.snapshot:
        write_for_viewer(found.on_gpu, arguments.snapshot)
    told = found, predicted, device_of(arguments), flags.reserve_bytes_of(arguments), loaded_by, ranks
    print(json.dumps(trace_figures(*told)) if arguments.json else trace_report(title, *told))
    return 0
