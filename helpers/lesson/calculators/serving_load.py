"""The serving load calculator: from load, lengths, policy and card to latencies, throughput and saturation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from ...catalog.devices import Device, device
from ...catalog.errors import WorkbookError
from ...catalog.gguf import refuse_file
from ...catalog.serve_setup import ServeSetup
from ...memory.breakdown import format_bytes
from ...questions.parameter import LEFT_OUT, Parameter, decimal, whole
from ...questions.parameters import ANY_CONFIG, GPU, KV, MODEL, POWERS, SKIPPED, TENSOR_PARALLEL, WEIGHTS
from ...questions.question import Question
from ...questions.setups import Values
from ...techniques.scheduling.policy import ADMISSION, Policy
from ..drawing.loads import loads
from ..drawing.pictures import Card
from ..units import percent, si, three_digits
from .answers import CalculatorAnswer, plural
from .calculator import Calculator
from .quantization import FORMATS
from .service import (
    KV_ROOM,
    MAX_RUNNING,
    OVERHEAD,
    TOKEN_BUDGET,
    Service,
    require_budget,
    require_closed_form,
    roofline_of,
    within_reach,
)
from .serving_pool import BLOCK, FREE_SHARE, NOT_FREE_BYTES, pool_of
from .workloads import MIXES, NAMED, NIM, Efficiencies, Workload, efficiencies_of, lengths, origin

CUSTOM = "custom"
USUAL = Policy(token_budget=2048, admission="to-the-end")
FULL = {KV_ROOM: "the KV room is full", MAX_RUNNING: "max_running is reached", TOKEN_BUDGET: "the token budget is full"}
Row = tuple[str, str, str]  # of the formula: name, value, how it comes about


class ServingLoadAnswer(Service, CalculatorAnswer):
    """A service in its steady state: means, without the chance that makes tails."""

    @property
    def title(self) -> str:
        now, many = self.steady, plural(self.clients, "client")
        latency = f"first token after {si(now.ttft_s, 's')}, then one each {si(now.itl_s, 's')}"
        return f"{many} of {self.setup.model.name}: {three_digits(now.tokens_per_s)} tokens/s, {latency}"

    def lines(self) -> Iterator[str]:
        rows = chain(_room(self), _step(self), _results(self))
        return (f"{name:<13}{value:>11}   {text}" for name, value, text in rows)

    def sentences(self) -> Iterator[str]:
        """What bounds the step, where it saturates, what the policy does, what is assumed."""
        return chain(
            _bound(self), _saturation(self), _load(self), _admission(self), self.setup.shipped_told, _assumed(self)
        )

    @property
    def cards(self) -> tuple[Card, ...]:
        return (loads(self.title, self.points, self.point(self.clients), self.saturation),)

    @property
    def figures(self) -> dict[str, Any]:
        now = self.steady
        return {
            "clients": self.clients,
            "running": now.running,
            "waiting": now.waiting,
            "ttft_s": now.ttft_s,
            "itl_s": now.itl_s,
            "tokens_per_s": now.tokens_per_s,
            "requests_per_s": self.requests_per_s,
            "request_s": self.request_s,
            "users_that_fit": self.users_that_fit,
            "saturation": self.saturation,
            "saturated_by": self.saturated_by,
            "step_seconds": self.step_seconds,
            "step_bound": self.step_bound,
            "share_with_chunk": now.steps.share,
            **vars(self.pool),
            "efficiencies": vars(self.efficiencies),
        }

    @property
    def question(self) -> Question:
        return LOAD

    @property
    def asked(self) -> dict[str, Any]:
        load, policy, shares = self.workload, self.policy, self.efficiencies
        own: dict[str, Any] = {}
        if not shares.name:
            own = {"memory_efficiency": shares.memory, "compute_efficiency": shares.compute}
            own["overhead_ms"] = f"{shares.overhead_s * 1000:.6g}"
        return {
            "setup": self.setup,
            "users": LEFT_OUT,
            "context": LEFT_OUT,
            "gpu": self.gpu,
            "tensor_parallel": self.tensor_parallel,
            "prompt": load.prompt,
            "answer": load.answer,
            "clients": load.clients,
            "requests_per_s": load.requests_per_s,
            "answer_limit": None if load.limit == load.answer else load.limit,
            "shared": load.shared,
            **{name: getattr(policy, name) for name in ("token_budget", "admission", "max_running")},
            "efficiencies": shares.name,
            "reserve": -(-self.reserve_bytes // 2**20),
            "free_share": self.free_share,
            **own,
        }


def serving_load_answer(
    setup: ServeSetup,
    gpu: str | Device,
    workload: Workload,
    policy: Policy = USUAL,
    efficiencies: str | Efficiencies = NIM,
    tensor_parallel: int = 1,
    reserve_bytes: int = NOT_FREE_BYTES,
    free_share: float = FREE_SHARE,
) -> ServingLoadAnswer:
    """Time to first token, inter-token latency, throughput, users that fit and the saturation point of one replica.

    Of `setup` model and formats count; users and context follow from `workload`. `policy` must be continuous, with a
    token budget. `efficiencies` are assumptions: "nim", "round", "datasheet", or shares of your own. WorkbookError if
    weights or one request do not fit, the budget is not larger than the requests that run, a name is unknown, the model
    has no position for the longest answer, or more requests come than are answered.

    >>> from helpers.techniques.scheduling import nim
    >>> answer = serving_load_answer(nim.setup(), "h100", Workload(5000, 500, clients=50), tensor_parallel=2)
    >>> round(answer.steady.itl_s * 1000, 1), round(answer.steady.tokens_per_s), answer.saturation
    (59.3, 833, 92)
    """
    refuse_file(setup.model, "a service under load")
    where, shares, full = device(gpu), efficiencies_of(efficiencies), within_reach(setup, workload)
    require_closed_form(policy)
    pool = pool_of(full, where, workload, policy, tensor_parallel, reserve_bytes, free_share)
    roof = roofline_of(full, where, tensor_parallel, shares, workload)
    chosen = (full, where, workload, policy, shares, tensor_parallel, reserve_bytes, free_share)
    answer = ServingLoadAnswer(*chosen, pool, roof)
    require_budget(policy, answer.users_that_fit)
    answer.clients  # noqa: B018  refuses a rate that is too high
    return answer


def _room(answer: ServingLoadAnswer) -> Iterator[Row]:
    """The pool, what a request takes of it, how many are admitted."""
    pool, asked, policy, ranks = answer.pool, answer.workload, answer.policy, answer.tensor_parallel
    capacity, weights, kept = (
        format_bytes(size) for size in (answer.gpu.capacity_bytes, pool.weight_bytes, answer.reserve_bytes)
    )
    each = ", on each rank" if ranks > 1 else ""
    product = f"{answer.free_share:g} × ({capacity} − {weights} weights − {kept} reserve){each}"
    yield "KV pool", format_bytes(pool.pool_bytes), product
    half = -(-asked.answer // 2)
    told = (
        f"{asked.limit:,} of the longest answer" if policy.admission == "to-the-end" else f"{half:,}, half the answer"
    )
    shared = f" − {pool.shared_tokens:,} that all share" if pool.shared_tokens else ""
    held = f"{asked.prompt:,} tokens of prompt + {told}{shared}, in blocks of {BLOCK}"
    yield "a request", format_bytes(pool.request_bytes), held
    room = f"{format_bytes(pool.pool_bytes - pool.shared_bytes)} / {format_bytes(pool.request_bytes)} = {pool.users:,}"
    yield "users fit", f"{answer.users_that_fit:,}", f"{room}; the policy runs at most {policy.max_running:,}"


def _step(answer: ServingLoadAnswer) -> Iterator[Row]:
    """Who decodes, how much of the prompts a step computes beside them, what it takes."""
    now, budget = answer.steady, answer.policy.token_budget or 0
    admitted = answer.clients - now.waiting
    yield "decoding", three_digits(now.running), f"of {admitted:,} admitted; the others are in prefill"
    chunks = f"a prompt in {now.steps.chunks:.3g} chunk{'s' * (now.steps.chunks > 1)}"
    yield (
        "with a chunk",
        percent(now.steps.share),
        f"of steps: {chunks}, of {budget:,} tokens less {now.running:,.0f} decoding",
    )
    parts = " + ".join(f"{name} {si(seconds, 's')}" for name, seconds in answer.step_seconds.items())
    yield "a step", si(now.itl_s, "s"), parts


def _results(answer: ServingLoadAnswer) -> Iterator[Row]:
    now, asked, roof = answer.steady, answer.workload, answer.roof
    prefill = now.steps.prefill_seconds(roof)
    waits = f" + {si(now.ttft_s - prefill, 's')} of waiting" if now.ttft_s > 1.001 * prefill else ""
    chunk = si(roof.seconds(now.steps.with_chunk), "s")
    yield "first token", si(now.ttft_s, "s"), f"{now.steps.chunks:.3g} × a step with a chunk, {chunk}{waits}"
    yield "inter-token", si(now.itl_s, "s"), f"{three_digits(1 / now.itl_s)} tokens/s for each who is answered"
    little = f"{three_digits(now.running)} decoding / {si(now.itl_s, 's')}, and the first tokens"
    yield "throughput", f"{three_digits(now.tokens_per_s)} tok/s", little
    rate = f"{three_digits(now.tokens_per_s)} tokens/s / {asked.answer:,} tokens"
    if asked.requests_per_s:
        rate = f"that come; {plural(answer.clients, 'client')} would ask for {rate}"
    yield "requests", f"{three_digits(answer.requests_per_s)} /s", rate
    yield "saturation", f"{answer.saturation:,}", f"clients: then {FULL[answer.saturated_by]}"


def _bound(answer: ServingLoadAnswer) -> Iterator[str]:
    total = sum(answer.step_seconds.values())
    shares = {name: percent(seconds / total) for name, seconds in answer.step_seconds.items()}
    most = shares.pop(answer.step_bound)
    others = ", ".join(f"{name} {share}" for name, share in shares.items())
    yield f"The time of a step: {answer.step_bound} set{'s' * (answer.step_bound == OVERHEAD)} {most}, {others}."


def _saturation(answer: ServingLoadAnswer) -> Iterator[str]:
    """Where one more waits, and whether those asked for are past it."""
    at, asked = answer.saturation, answer.clients
    full = {
        KV_ROOM: f"the KV room holds {plural(answer.pool.users, 'request')}",
        MAX_RUNNING: f"max_running lets {answer.policy.max_running:,} run, while the KV room would hold more",
        TOKEN_BUDGET: "prompts fill the token budget of every step, while the KV room would hold more",
    }[answer.saturated_by]
    yield f"From {at + 1:,} clients on each one more waits and adds no throughput: {full}."
    if asked > at:
        yield f"{asked - at:,} of the {asked:,} are too many: they only make the first token later."
    else:
        share = percent(answer.steady.tokens_per_s / answer.point(at).tokens_per_s)
        yield f"{plural(asked, 'client')} get{'s' * (asked == 1)} {share} of the throughput at saturation."


def _load(answer: ServingLoadAnswer) -> Iterator[str]:
    """Of an open loop Little's law, and what a mean does not say."""
    if rate := answer.workload.requests_per_s:
        open_now, took = three_digits(rate * answer.request_s), si(answer.request_s, "s")
        many = plural(answer.clients, "client")
        yield f"{rate:g} requests/s × {took} each are {open_now} at once (Little's law), shown as {many}."


def _admission(answer: ServingLoadAnswer) -> Iterator[str]:
    """What the policy's admission costs or leaves out."""
    if answer.policy.admission == "now" and answer.saturated_by == KV_ROOM:
        yield "Admission now takes blocks as answers grow, which at any time are half done on average."
        yield "It preempts when blocks run out, and what is computed again then is not counted:"
        yield "with a full KV room this throughput is an upper bound."
    elif answer.policy.admission != "now" and answer.workload.limit > answer.workload.answer:
        kept = answer.workload.limit - answer.workload.answer
        now = min(answer.policy.max_running, answer.as_admitted("now").users)
        yield f"To the end, each request is reserved {kept:,} tokens that the mean answer does not use;"
        yield f"admission now would admit {now:,} requests in place of {answer.users_that_fit:,}."


def _assumed(answer: ServingLoadAnswer) -> Iterator[str]:
    """The inputs that no datasheet has, and what the closed form leaves out."""
    shares, model = answer.efficiencies, answer.setup.model
    yield f"Assumed: {shares}; {origin(shares)}."
    yield "The first token is a lower bound, because requests that come together wait for one another:"
    yield "in NVIDIA's table it takes up to twice as long."
    longest = answer.setup.context
    if model.max_positions and longest > model.max_positions:
        yield f"{model.name} was made for {model.max_positions:,} tokens, and a request may have {longest:,}."


def serving_load(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `serving_load(model="llama-3-8b", gpu="l4", mix="chat")`."""
    return Calculator(LOAD, start)


def _ask(
    model: str,
    weights: str,
    kv: str,
    gpu: str,
    mix: str | None = None,
    prompt: int | None = None,
    answer: int | None = None,
    skipped: tuple[str, ...] | None = None,
    free_share: float = FREE_SHARE,
    **said: Any,
) -> ServingLoadAnswer:
    setup = ServeSetup(model, weights, kv, context=1, skipped=skipped)
    typed = prompt, answer
    if (mix is None) == (None in typed) or (mix and typed != (None, None)):
        what = "no lengths" if mix is None else "lengths twice"
        raise WorkbookError(what, "--prompt and --answer, or --mix with both", "add --mix chat, and nothing else")
    policy = Policy(**{name: said[name] for name in ("token_budget", "admission", "max_running")})
    prompt, answer = lengths(mix) if mix else typed
    load = {name: said.get(name) for name in ("clients", "requests_per_s", "answer_limit", "shared")}
    workload, shares = Workload(prompt, answer, **load), _efficiencies_of(said)  # type: ignore[arg-type]
    room = (said["tensor_parallel"], said["reserve_bytes"], free_share)
    return serving_load_answer(setup, gpu, workload, policy, shares, *room)


def _efficiencies_of(said: Values) -> Efficiencies:
    named, overhead_ms = efficiencies_of(said["efficiencies"]), said.get("overhead_ms")
    memory, compute = (
        known if said.get(name) is None else said[name]
        for name, known in (("memory_efficiency", named.memory), ("compute_efficiency", named.compute))
    )
    own = (memory, compute) != (named.memory, named.compute) or overhead_ms is not None
    if not own:
        return named
    return Efficiencies(memory, compute, named.overhead_s if overhead_ms is None else overhead_ms / 1000)


def _means(said: dict[str, Any]) -> dict[str, Any]:
    """Lengths of a mix, or those of two controls; the limit in answers."""
    own = (said["prompt"], said["answer"])
    prompt, answer = own if said["mix"] == CUSTOM else lengths(said["mix"])
    limit = said["answer_limit"] * answer
    return said | {"mix": None, "prompt": prompt, "answer": answer, "answer_limit": limit}


def _used(values: Values) -> set[str]:
    return set(LOAD.controls) - (set() if values["mix"] == CUSTOM else {"prompt", "answer"})


_KEPT_MIB = NOT_FREE_BYTES // 2**20
LOAD = Question(
    "load",
    "a service under load: time to first token, inter-token latency, throughput, users that fit, saturation",
    _ask,
    (
        replace(MODEL, start="llama-3-70b"),
        replace(WEIGHTS, steps=FORMATS, start="fp8-e4m3"),
        SKIPPED,
        replace(KV, start="fp8-e4m3"),
        replace(GPU, required=True, start="h100-80gb"),
        replace(TENSOR_PARALLEL, start=2),
        Parameter(
            "mix",
            f"mean lengths of {', '.join(MIXES)} (NVIDIA's 5,000 and 500), in place of --prompt and --answer",
            label="lengths",
            steps=(*MIXES, CUSTOM),
            start=NIM,
        ),
        Parameter("prompt", "tokens of a prompt, on average", type=whole).with_control(
            "prompt, tokens", POWERS[4:], 1024
        ),
        Parameter("answer", "tokens of an answer, on average", type=whole).with_control(
            "answer, tokens", POWERS[2:13], 256
        ),
        Parameter("clients", "how many each wait for an answer, then ask again", type=whole).with_control(
            "clients", (1, 2, 5, 10, 25, 50, 100, 150, 200, 250, 500, 1000), 50
        ),
        Parameter("requests_per_s", "in place of --clients", type=decimal, metavar="RATE"),
        Parameter(
            "answer_limit",
            "the longest answer (default: --answer)",
            type=whole,
            metavar="TOKENS",
            label="limit, × answer",
            steps=(1, 2, 4, 8),
            start=1,
        ),
        Parameter("shared", "tokens of the prompt that are found in the cache", 0, whole).with_control(
            "prefix, tokens", (0, *POWERS[6:14])
        ),
        Parameter(
            "token_budget", "tokens that one step computes", USUAL.token_budget, whole, metavar="TOKENS"
        ).with_control("token budget", POWERS[6:15]),
        Parameter("admission", ", ".join(ADMISSION), USUAL.admission).with_control("admission", ADMISSION),
        Parameter("max_running", "requests at most", USUAL.max_running, whole, metavar="N").with_control(
            "most running", POWERS[3:11]
        ),
        Parameter(
            "efficiencies",
            f"of bandwidth, FLOP rate and step: {', '.join(NAMED)} (default {NIM}); the next three change one of them",
            NIM,
        ).with_control("efficiencies", tuple(NAMED)),
        Parameter("memory_efficiency", "of the bandwidth", type=decimal, metavar="SHARE"),
        Parameter("compute_efficiency", "of the FLOP rate", type=decimal, metavar="SHARE"),
        Parameter("overhead_ms", "added to each step", type=decimal, metavar="MS"),
        Parameter(
            "free_share", "of what weights and reserve leave, for the KV pool", FREE_SHARE, decimal, metavar="SHARE"
        ),
        Parameter(
            "reserve",
            "MiB of the GPU kept for the context and what else PyTorch does not count",
            _KEPT_MIB,
            whole,
            metavar="MIB",
            label="reserve, MiB",
            steps=(0, 512, 1024, _KEPT_MIB, 4096),
        ),
        ANY_CONFIG,
    ),
    units="bytes and seconds",
    title="A service under load",
    asks="Which latency at which load, and where is the limit?",
    invites="Move clients past the saturation point: what rises, and what does not? Then set the lengths to code.",
    controls=(
        *("model", "config", "gpu", "tensor_parallel", "weights", "kv", "mix", "clients", "prompt", "answer", "shared"),
        *("answer_limit", "admission", "token_budget", "max_running", "efficiencies", "reserve"),
    ),
    front=("model", "gpu", "tensor_parallel", "mix", "clients"),
    used=_used,
    means=_means,
)
