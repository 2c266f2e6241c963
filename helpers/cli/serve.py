"""`workbook serve`: the paged engine behind HTTP; `workbook serve-bench`: a load on any OpenAI-compatible server."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
from functools import partial

from ..catalog.errors import require_whole
from ..questions.parameter import whole
from .flags import Commands, add_command

FIRST_WORD, WORDS = 4, 400  # token ids that the small model has, and everybody else too; below are special ones


def add(commands: Commands) -> None:
    serve = add_command(commands, "serve", "an OpenAI-compatible server around the paged engine", _serve)
    serve.add_argument("--model", default="small", help="small, a folder, or a hub model as owner/name")
    serve.add_argument("--blocks", type=whole, default=256, help="KV blocks in the pool")
    serve.add_argument("--block-size", type=whole, default=16, help="tokens in a block")
    serve.add_argument("--port", type=whole, default=8000, help="of this machine alone; 0: any")
    text = "requests that may wait before more get 429"
    serve.add_argument("--max-waiting", type=whole, default=64, metavar="N", help=text)
    text = "tokens that a step computes at most; longer prompts are cut"
    serve.add_argument("--token-budget", type=whole, default=64, metavar="N", help=text)
    serve.add_argument("--max-running", type=whole, default=16, metavar="N", help="sequences in a step")
    serve.add_argument("--grace", type=whole, default=5, metavar="S", help="seconds to finish answers in")
    _add_bench(commands)


def _add_bench(commands: Commands) -> None:
    bench = add_command(commands, "serve-bench", "time to first token, between tokens, failures under a load", _bench)
    bench.add_argument("--url", required=True, help="of the server, as in http://127.0.0.1:8000")
    bench.add_argument("--requests", type=whole, default=100, help="how many")
    load = bench.add_mutually_exclusive_group()
    load.add_argument("--rate", type=float, metavar="R", help="requests a second, at random times")
    load.add_argument("--concurrency", type=whole, metavar="C", help="requests at once (default 8)")
    bench.add_argument("--prompt-tokens", type=whole, default=32, metavar="N", help="of each prompt")
    bench.add_argument("--new-tokens", type=whole, default=16, metavar="N", help="of each answer at most")
    bench.add_argument("--seed", type=whole, default=0, help="of prompts and times")
    bench.add_argument("--json", action="store_true", help="print JSON, in seconds and tokens")


def _serve(arguments: argparse.Namespace) -> int:
    from ..small_lm import load
    from ..small_lm.model import CHECKPOINT
    from ..techniques import serving
    from ..techniques.scheduling import Policy, ScheduledEngine

    sizes = {"token_budget": arguments.token_budget, "max_running": arguments.max_running}
    policy = Policy(order="priority", aging_s=10.0, **sizes)  # equal priorities: first come, first served
    for name in ("max_waiting", "grace"):
        require_whole(name, getattr(arguments, name), 0)
    with serving.listen(arguments.port) as opened:
        model, tokenizer = load(CHECKPOINT if arguments.model == "small" else arguments.model)
        engine = ScheduledEngine(model, blocks=arguments.blocks, policy=policy, block_size=arguments.block_size)
        ready = partial(_tell, arguments, "http://{}:{}".format(*opened.getsockname()))
        waiting = arguments.max_waiting
        if serving.serve(engine, tokenizer, arguments.model, opened, waiting, arguments.grace, ready) == signal.SIGINT:
            raise KeyboardInterrupt
    return 0


def _tell(arguments: argparse.Namespace, address: str) -> None:
    room = f"{arguments.blocks:,} blocks of {arguments.block_size} tokens"
    print(f"{arguments.model} at {address} with {room}; Ctrl-C ends it", flush=True)


def _bench(arguments: argparse.Namespace) -> int:
    from ..techniques.serving import BenchJob, run_bench

    draw = random.Random(require_whole("seed", arguments.seed, 0))
    for name in ("requests", "prompt_tokens", "new_tokens"):
        require_whole(name, getattr(arguments, name))
    prompts = [
        tuple(draw.randrange(FIRST_WORD, WORDS) for _ in range(arguments.prompt_tokens))
        for _ in range(arguments.requests)
    ]
    jobs = [BenchJob(prompt, arguments.new_tokens) for prompt in prompts]
    together = arguments.concurrency if arguments.rate is not None or arguments.concurrency is not None else 8
    report = asyncio.run(run_bench(arguments.url, jobs, arguments.rate, together, arguments.seed))
    print(json.dumps(report.figures) if arguments.json else report)
    return 0 if report.answered else 1
