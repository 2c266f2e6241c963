"""Tracebacks, read: the frames before a message, the user's own line among them, and what kind of place it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..breakdown import TextEnum

LIBRARY = re.compile(r"site-packages|dist-packages|[\\/]lib[\\/]python3|[\\/]Lib[\\/]|^<frozen|[\\/]torch[\\/]nn[\\/]")
# Between an operator and its refusal by a dispatch mode, as `capped` is one: these frames say nothing of the place.
BETWEEN = re.compile(
    r"(?:helpers|gpu_memory_workbook)[\\/]memory[\\/]meter[\\/]\w+\.py"
    r"|[\\/]torch[\\/](?:_dynamo[\\/]eval_frame|_compile|utils[\\/]_python_dispatch)\.py"
)
BEGINS = re.compile(r"Traceback \(most recent call last\)")
PREFIX = re.compile(
    r"^(?:\[rank\d+\]: ?|\(?\w+ pid=\d+\)? ?(?:\w+ [\d-]+ [\d:]+ \[[^\]]+\] ?)?"
    r"|(?:\S+  ?\| )?ERROR [\d-]+ [\d:]+ \[[^\]]+\] ?|\d{4}-\d\d-\d\d [\d:.,]+ (?:\| )?)"
)
# Python's own, IPython 8's, IPython 7's, rich's
FRAME = re.compile(
    r'^\s*File "(?P<py>[^"]+)", line (?P<py_line>\d+)(?:, in (?P<py_name>.+))?$'
    r"|^File (?P<ip>[^\s\"]\S*?):(?P<ip_line>\d+)(?:, in (?P<ip_name>[^(]+).*)?$"
    r"|^(?P<cell>(?:Cell )?In ?\[\d+\]), line (?P<cell_line>\d+)(?:, in (?P<cell_name>[^(]+).*)?$"
    r"|^(?P<old>[/<~][^\s:]*|[A-Z]:\\\S+) in (?P<old_name>[^(\s]+)\(.*$"
    r"|^\s*(?P<rich>(?:[A-Za-z]:)?[^\s:]+\.py):(?P<rich_line>\d+) in (?P<rich_name>\S+)\s*$"
)
FAR = 2**18  # characters above a message that a traceback may take
HEADLESS = 30  # lines above it that are read where a traceback has lost its first line
POINTED = re.compile(r"^\s*(?:-+>|❱)\s*(\d+)\s[│|\s]*(.*)$")


@dataclass(frozen=True)
class StackFrame:
    """One line of a stack: `code` is its source where the traceback shows it."""

    path: str
    line: int | None
    function: str
    code: str = ""

    def __str__(self) -> str:
        short = self.path.replace("\\", "/").rsplit("/", 1)[-1]
        where = f"{short}:{self.line}" if self.line is not None else short
        return f"{where} in {self.function}" if self.function else where


def frames(text: str, start: int) -> tuple[StackFrame, ...]:
    """The stack above the message at `start` of `text`, outermost first; () where there is none.

    Of a log that several ranks write into, only the lines of the message's rank count.
    """
    before = text[max(0, start - FAR) : start].split("\n")
    same = _timeless(before[-1])
    lines = [PREFIX.sub("", line) for line in before[:-1] if not same or _timeless(line) == same]
    begun = [number for number, line in enumerate(lines) if BEGINS.search(line)]
    stack = _frames(lines[begun[-1] + 1 :] if begun else lines[-HEADLESS:])
    return tuple(frame for frame in stack if not BETWEEN.search(frame.path))


def _timeless(line: str) -> str:
    """What a launcher put before a line, less the time."""
    match = PREFIX.match(line)
    return re.sub(r"[\d:.,-]{4,}", "", match.group()).strip() if match else ""


def _frames(lines: list[str]) -> Iterator[StackFrame]:
    found = [(number, match) for number, line in enumerate(lines) if (match := FRAME.match(line))]
    ends = [*(number for number, _ in found[1:]), len(lines)]
    for (number, match), end in zip(found, ends, strict=False):
        yield _frame(match, lines[number + 1 : end])


def _frame(match: re.Match, below: list[str]) -> StackFrame:
    named = {name: value for name, value in match.groupdict().items() if value is not None}
    kind = next(name for name in ("py", "ip", "cell", "old", "rich") if name in named)
    line = named.get(f"{kind}_line")
    pointed = next((found for found in map(POINTED.match, below) if found), None)
    if pointed:
        line, code = pointed[1], pointed[2]
    else:
        code = below[0] if kind == "py" and below and below[0].startswith("    ") else ""
    return StackFrame(named[kind], int(line) if line else None, named.get(f"{kind}_name", "").strip(), code.strip())


def users_line(stack: tuple[StackFrame, ...]) -> StackFrame | None:
    """The deepest frame that is in no installed package."""
    return next((frame for frame in reversed(stack) if not LIBRARY.search(frame.path)), None)


class RequestPlace(TextEnum):
    """The kind of place where a request was made; UNKNOWN where the frames do not tell."""

    PREDICTIONS = "predictions that are kept"
    LOADING = "loading weights"
    OPTIMIZER = "the optimizer step"
    RECOMPUTE = "recomputation"
    BACKWARD = "the backward pass"
    KV_CACHE = "the KV cache"
    LOGITS = "logits and loss"
    SCORES = "attention scores"
    JOINING = "joining tensors"
    FORWARD = "the forward pass"
    UNKNOWN = ""


# In order: a place further up also contains what stands further down (a backward pass recomputes a forward).
PATTERNS = {
    RequestPlace.PREDICTIONS: r":(?:torch_pad_and_concatenate|nested_concat|nested_new_like)\b",
    RequestPlace.LOADING: r"from_pretrained|load_state_dict|_load_pretrained|safetensors|core_model_loading"
    r"|serialization\.py|load_model|model_loader|module\.py:\d*:(?:_apply|to|cuda|convert)\b",
    RequestPlace.OPTIMIZER: r"torch/optim/|bitsandbytes/optim/|apex/optimizers/|optimizer\.step\(|optim\.step\(",
    RequestPlace.RECOMPUTE: r"utils/checkpoint\.py:\d*:(?:unpack_hook|recompute_fn|backward)"
    r"|checkpointing\.py:\d*:backward",
    RequestPlace.BACKWARD: r"\.backward\(|_engine_run_backward|_execution_engine"
    r"|autograd/__init__\.py:\d*:(?:backward|grad)",
    RequestPlace.KV_CACHE: r"cache_utils\.py|cache_engine\.py|kv_cache|key_cache|_allocate_kv",
    RequestPlace.LOGITS: r"cross_entropy|loss_utils\.py|lm_head|log_softmax|logits|loss_function|CrossEntropyLoss",
    RequestPlace.SCORES: r"eager_attention|attn_weights|attention_scores|baddbmm|math_sdp"
    r"|matmul\(q\w*, ?k|(?:F|functional)\.softmax\(",
    RequestPlace.JOINING: r"torch\.(?:cat|stack|hstack|vstack)\(",
    RequestPlace.FORWARD: r"nn/modules/|_call_impl|:forward\b",
}
TEXTS = {
    RequestPlace.PREDICTIONS: "where an evaluation adds a batch to the predictions that it keeps",
    RequestPlace.LOADING: "while weights were loaded or moved",
    RequestPlace.OPTIMIZER: "in the optimizer step",
    RequestPlace.RECOMPUTE: "in the backward pass, while a checkpointed part was recomputed",
    RequestPlace.BACKWARD: "in the backward pass",
    RequestPlace.KV_CACHE: "while the KV cache grew",
    RequestPlace.LOGITS: "at the logits or the loss",
    RequestPlace.SCORES: "at the attention scores",
    RequestPlace.JOINING: "where tensors are joined (a copy of all of them)",
    RequestPlace.FORWARD: "in the forward pass",
}
_DEEPEST = (
    RequestPlace.KV_CACHE,
    RequestPlace.LOGITS,
    RequestPlace.SCORES,
    RequestPlace.JOINING,
)  # outer frames pass through all of these


def place(stack: tuple[StackFrame, ...]) -> RequestPlace:
    """The kind of place where the request was made.

    >>> place((StackFrame("train.py", 9, "main", "loss.backward()"),))
    'the backward pass'
    """
    if a_table_of_logits(stack):
        return RequestPlace.LOGITS
    for kind, pattern in PATTERNS.items():
        asked = stack[-4:] if kind in _DEEPEST else stack
        if any(re.search(pattern, _line(frame)) for frame in asked):
            return kind
    return RequestPlace.UNKNOWN


# Of a function's name, between its underscores: `constraint` and `from_pretrained` are neither.
_TRAINING = re.compile(r"(?:^|[_.])train(?:ing)?(?:[_.]|$)")
_EVALUATION = re.compile(
    r"(?:^|[_.])(?:eval(?:uat\w+)?|val(?:idat\w+)?|test|predict(?:ion)?|infer(?:ence)?|generate)(?:[_.]|$)"
)


_LOSS = re.compile(r"\bloss_function\(|:ForCausalLMLoss\b|\bcross_entropy\(")
_TRAINS = re.compile(
    r"\.backward\(|optimizer\.step\(|trainer\.train\(|[/\\]trainer\.py:\d*:(?:train\w*|_inner_training_loop|compute_loss)"
)


def is_training(stack: tuple[StackFrame, ...]) -> bool:
    """Whether the deepest function whose name tells training from evaluation is one that trains.

    >>> is_training((StackFrame("run.py", 3, "train_epoch"), StackFrame("run.py", 41, "validate")))
    False
    """
    for frame in reversed(stack):
        if _EVALUATION.search(frame.function):
            return False
        if _TRAINING.search(frame.function) or _TRAINS.search(_line(frame)):
            return True
    return any(_LOSS.search(_line(frame)) for frame in stack)  # in evaluation there was a frame that says so


_VOCABULARY = 30_000  # the columns of a table of logits at least; hidden sizes and lengths of one sequence are smaller
_TABLE = re.compile(r"empty_strided(?:_cuda)?\(\((\d{1,9}), (\d{1,9})\)")


def a_table_of_logits(stack: tuple[StackFrame, ...]) -> str:
    """The shape that compiled code (Inductor) was making where it is one of logits, as "65,536 by 65,536"; else ''."""
    made = _TABLE.search(stack[-1].code) if stack else None
    if made is None or int(made[2]) < _VOCABULARY:
        return ""
    return f"{int(made[1]):,} by {int(made[2]):,}"


def _line(frame: StackFrame) -> str:
    path = frame.path.replace("\\", "/")
    return f"{path}:{frame.line or ''}:{frame.function} {frame.code}"
