"""`workbook estimate load`: latencies, throughput and the saturation point of a service."""

from __future__ import annotations

import argparse

from ..catalog.cache_formats import KV_FORMATS
from ..catalog.errors import WorkbookError
from ..catalog.serve_setup import ServeSetup
from ..lesson.calculators.serving_load import USUAL, serving_load_answer
from ..lesson.calculators.serving_pool import FREE_SHARE, NOT_FREE_BYTES
from ..lesson.calculators.workloads import MIXES, NAMED, NIM, Efficiencies, Workload, efficiencies_of, lengths
from ..techniques.scheduling.policy import ADMISSION, Policy
from . import flags
from .flags import Commands, add_command, decimal, whole


def add_load(kinds: Commands) -> None:
    text = "a service under load: time to first token, inter-token latency, throughput, users that fit, saturation"
    parser = add_command(kinds, "load", text, _estimate_load)
    flags.model_flag(parser)
    flags.weights_flag(parser)
    flags.skipped_flag(parser)
    parser.add_argument("--kv", default="bf16", help=", ".join(KV_FORMATS))
    parser.add_argument("--tensor-parallel", type=whole, default=1, metavar="N", help="GPUs that share the heads")
    _workload_flags(parser)
    _policy_flags(parser)
    _assumption_flags(parser)
    flags.device_and_json_flags(parser, "bytes and seconds", required=True)
    kept = NOT_FREE_BYTES // 2**20
    flags.reserve_flag(parser, kept)


def _workload_flags(parser: argparse.ArgumentParser) -> None:
    traces = f"mean lengths of {', '.join(MIXES)} (NVIDIA's 5,000 and 500), in place of --prompt and --answer"
    parser.add_argument("--mix", help=traces)
    parser.add_argument("--prompt", type=whole, help="tokens of a prompt, on average")
    parser.add_argument("--answer", type=whole, help="tokens of an answer, on average")
    parser.add_argument("--clients", type=whole, help="how many each wait for an answer, then ask again")
    parser.add_argument("--requests-per-s", type=decimal, metavar="RATE", help="in place of --clients")
    parser.add_argument("--answer-limit", type=whole, metavar="TOKENS", help="the longest answer (default: --answer)")
    parser.add_argument("--shared", type=whole, default=0, help="tokens of the prompt that are found in the cache")


def _policy_flags(parser: argparse.ArgumentParser) -> None:
    budget = "tokens that one step computes"
    parser.add_argument("--token-budget", type=whole, default=USUAL.token_budget, metavar="TOKENS", help=budget)
    parser.add_argument("--admission", default=USUAL.admission, help=", ".join(ADMISSION))
    most = "requests at most"
    parser.add_argument("--max-running", type=whole, default=USUAL.max_running, metavar="N", help=most)


def _assumption_flags(parser: argparse.ArgumentParser) -> None:
    named = f"of bandwidth, FLOP rate and step: {', '.join(NAMED)} (default {NIM}); the next three change one of them"
    parser.add_argument("--efficiencies", default=NIM, help=named)
    parser.add_argument("--memory-efficiency", type=decimal, metavar="SHARE", help="of the bandwidth")
    parser.add_argument("--compute-efficiency", type=decimal, metavar="SHARE", help="of the FLOP rate")
    parser.add_argument("--overhead-ms", type=decimal, metavar="MS", help="added to each step")
    share = "of what weights and reserve leave, for the KV pool"
    parser.add_argument("--free-share", type=decimal, default=FREE_SHARE, metavar="SHARE", help=share)


def _estimate_load(arguments: argparse.Namespace) -> int:
    setup = ServeSetup(arguments.model, arguments.weights, arguments.kv, context=1, skipped=arguments.skipped)
    policy = Policy(
        token_budget=arguments.token_budget, admission=arguments.admission, max_running=arguments.max_running
    )
    chosen = (_workload_of(arguments), policy, _efficiencies_of(arguments), arguments.tensor_parallel)
    kept = flags.reserve_bytes_of(arguments)
    assert kept is not None  # for the flag has a default of its own here
    room = (kept, arguments.free_share)
    return flags.print_answer(serving_load_answer(setup, arguments.gpu, *chosen, *room), arguments)


def _workload_of(arguments: argparse.Namespace) -> Workload:
    typed = arguments.prompt, arguments.answer
    if (arguments.mix is None) == (None in typed) or (arguments.mix and typed != (None, None)):
        what = "no lengths" if arguments.mix is None else "lengths twice"
        raise WorkbookError(what, "--prompt and --answer, or --mix with both", "add --mix chat, and nothing else")
    prompt, answer = lengths(arguments.mix) if arguments.mix else typed
    load = (arguments.clients, arguments.requests_per_s)
    return Workload(prompt, answer, *load, arguments.answer_limit, arguments.shared)


def _efficiencies_of(arguments: argparse.Namespace) -> Efficiencies:
    named, overhead_ms = efficiencies_of(arguments.efficiencies), arguments.overhead_ms
    memory, compute = (
        known if given is None else given
        for given, known in ((arguments.memory_efficiency, named.memory), (arguments.compute_efficiency, named.compute))
    )
    return Efficiencies(memory, compute, named.overhead_s if overhead_ms is None else overhead_ms / 1000)
