"""What a service is asked, and at which share of a datasheet it works: inputs of the serving load calculator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from ...catalog.errors import WorkbookError, require_name, require_number, require_whole
from ...catalog.setup_fields import MAX_COUNT, MAX_TOKENS
from ...techniques.paging.traces import TRACES, trace
from ...techniques.scheduling import nim
from ..units import si

NIM = "nim"
MIXES = (NIM, *TRACES)


@dataclass(frozen=True)
class Workload:
    """Mean lengths in tokens, and the load: `clients` who each ask again when answered, or `requests_per_s`.

    `answer_limit` is the longest answer that a request may get, None: as long as the mean one. `shared` tokens at the
    start of every prompt are the same, and are found in the prefix cache.
    """

    prompt: int
    answer: int
    clients: int | None = None
    requests_per_s: float | None = None
    answer_limit: int | None = None
    shared: int = 0

    def __post_init__(self) -> None:
        require_whole("prompt", self.prompt, most=MAX_TOKENS, unit="tokens")
        require_whole("answer", self.answer, 2, MAX_TOKENS, unit="tokens")
        do = "pass shared=0 where no prompt begins as another"
        require_whole("shared", self.shared, 0, self.prompt - 1, unit="the prompt's tokens", do=do)
        if self.answer_limit is not None:
            do = f"pass answer_limit={self.answer}, or more"
            require_whole("answer_limit", self.answer_limit, self.answer, MAX_TOKENS, unit="tokens", do=do)
        if (self.clients is None) == (self.requests_per_s is None):
            what = "no load" if self.clients is None else "a load twice"
            raise WorkbookError(what, "clients or requests_per_s, one of them", "pass clients=50")
        if self.clients is not None:
            require_whole("clients", self.clients, most=MAX_COUNT)
        else:
            expected, do = "requests a second, above zero", "pass requests_per_s=1.5"
            require_number("requests_per_s", self.requests_per_s, below=math.inf, expected=expected, do=do)

    @property
    def limit(self) -> int:
        return self.answer if self.answer_limit is None else self.answer_limit


@cache
def lengths(mix: str) -> tuple[int, int]:
    """Mean tokens of prompt and answer: of a trace of `techniques.paging`, or of NVIDIA's table.

    >>> lengths("nim"), lengths("chat"), lengths("code")
    ((5000, 500), (332, 181), (938, 25))
    """
    if require_name("mix", mix, MIXES) == NIM:
        return nim.PROMPT, nim.ANSWER
    requests = trace(mix).requests
    prompts, answers = (
        sum(map(len, texts)) for texts in zip(*((one.prompt, one.answer) for one in requests), strict=True)
    )
    return round(prompts / len(requests)), round(answers / len(requests))


@dataclass(frozen=True)
class Efficiencies:
    """Shares of the datasheet's bandwidth and FLOP rate that a step reaches, and seconds that every step adds."""

    memory: float
    compute: float
    overhead_s: float

    def __post_init__(self) -> None:
        for name in ("memory", "compute"):
            share, expected = getattr(self, name), "a share above 0, at most 1"
            require_number(f"{name} efficiency", share, below=1 + 1e-9, expected=expected, do=f"pass {name}=0.5")
        if self.overhead_s != 0:
            expected, do = "seconds, 0 or more", "pass overhead_s=0.005"
            require_number("overhead_s", self.overhead_s, below=math.inf, expected=expected, do=do)

    @property
    def name(self) -> str | None:
        """Among those that have one."""
        return next((name for name, known in NAMED.items() if known == self), None)

    def __str__(self) -> str:
        shares = f"{self.memory:g} of the bandwidth, {self.compute:g} of the FLOP rate"
        return f"{shares}, {si(self.overhead_s, 's')} more for each step"


# Fitted on two rows of NVIDIA's table; the defaults of `Roofline.of`; what no service reaches.
NAMED = {
    NIM: Efficiencies(nim.MEMORY_EFFICIENCY, nim.COMPUTE_EFFICIENCY, nim.OVERHEAD_S),
    "round": Efficiencies(0.7, 0.5, 0.0),
    "datasheet": Efficiencies(1.0, 1.0, 0.0),
}
ORIGINS = {
    NIM: "fitted to NVIDIA's table of NIM with Llama-70B in FP8 on two H100",
    "round": "round numbers, not measured",
    "datasheet": "the datasheet's rates, which no service reaches",
}


def efficiencies_of(given: str | Efficiencies) -> Efficiencies:
    return given if isinstance(given, Efficiencies) else NAMED[require_name("efficiencies", given, NAMED)]


def origin(given: Efficiencies) -> str:
    return ORIGINS[given.name] if given.name else "as given"
