"""Recording: run PyTorch code inside `fake()`, and know what was allocated, when, by whom, and for what."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ...catalog.devices import Device
from ...catalog.errors import WorkbookError, require_whole
from ...catalog.hardware import require_cuda
from ..allocator import AllocatorReplay, Settings, replay
from ..breakdown import Breakdown, Moment, Part
from ..meter.meter import Meter
from ..meter.process import what_was_before_aside
from ..meter.timeline import AllocationEvent, Measurement, PartOf, StorageLifetime, account, live_at_peak
from ..meter.watch import Optimizers, Watch, adopt, tensors_in, weights_of
from .cuda import cuda_paths
from .fake import as_on_a_device
from .kernels import CONVOLVES, CudaMeter, FakeMeter

CUDA, CPU = "cuda", "cpu"


@dataclass(frozen=True)
class Trace:
    """What a run would allocate: `events` from the first tensor on, the last run of them measured.

    `measured` is what the meter's accounting says of that run, in the same type as a real measurement.
    """

    measured: Measurement
    events: tuple[AllocationEvent, ...] = field(repr=False)
    first: int  # the event with which the measured run begins
    weights_from: tuple[int, ...] = field(default=(), repr=False)  # events at which weights begin that are quantized

    @property
    def peak(self) -> Moment:
        """The moment at which most is live."""
        return self.measured.peak

    @property
    def peak_bytes(self) -> int:
        """Live bytes at the peak, each tensor rounded to 512."""
        return self.measured.peak_bytes

    @property
    def library_bytes(self) -> int:
        """Of the peak, what cuBLAS holds on the card that is traced for; 0 for a CPU. What kernels hold is a tensor."""
        return sum(block.size_bytes for block in self.at_peak if block.owner.startswith("cuBLAS"))

    @property
    def tensor_bytes(self) -> int:
        """The peak without the libraries."""
        return self.peak_bytes - self.library_bytes

    @property
    def parts(self) -> Breakdown:
        return self.measured.parts

    @cached_property
    def on_gpu(self) -> AllocatorReplay:
        """All events through PyTorch's caching allocator with its default settings."""
        return self.replayed()

    @property
    def peak_allocated_bytes(self) -> int:
        """What torch.cuda.max_memory_allocated() would say of the measured run."""
        return max(self.on_gpu.allocated[max(0, self.first - 1) :], default=0)

    @property
    def peak_reserved_bytes(self) -> int:
        """What torch.cuda.max_memory_reserved() would say of it, the peak reset when it began."""
        return max(self.on_gpu.reserved[max(0, self.first - 1) :], default=0)

    def replayed(self, settings: Settings | str | None = None, capacity_bytes: int | None = None) -> AllocatorReplay:
        """The events through the allocator with other settings, or on a device that can run out."""
        return replay(self.events, settings or Settings(), capacity_bytes=capacity_bytes)

    def least_bytes(self, settings: Settings | str | None = None, within: int = 2**26) -> int:
        """The least memory that the run can do with, to `within` bytes: less than what it reserves when it may.

        PyTorch gives segments back that are wholly empty, and asks again, before a request fails. The CUDA context
        comes on top.
        """
        low, high = self.on_gpu.peak_allocated_bytes, self.replayed(settings).peak_reserved_bytes
        while high - low > within:
            middle = (low + high) // 2
            if self.replayed(settings, capacity_bytes=middle).oom:
                low = middle
            else:
                high = middle
        return high

    def with_convolutions(self, workspace_bytes: int) -> int:
        """Peak allocated bytes if every convolution took `workspace_bytes` beside what it reads and writes.

        cuDNN's workspaces have no formula, and none is in the other figures: those are a lower bound, and this is the
        upper one under CUDNN_CONV_WSCAP_DBG, which limits them (in MiB, for the process). WorkbookError for a
        number that is none. FLUX.1-dev's decoder at 1,024 x 1,024 takes 1.5 GiB without and was measured with 4.5.
        """
        require_whole("workspace_bytes", workspace_bytes, 0)
        taken: dict[int, StorageLifetime] = {}
        events = []
        for event in self.events:
            if event.block.owner == CONVOLVES and not event.block.size_bytes:
                block = taken.setdefault(id(event.block), replace(event.block, size_bytes=workspace_bytes))
                event = replace(event, block=block)
            events.append(event)
        return max(replay(events).allocated[max(0, self.first - 1) :], default=0)

    @cached_property
    def at_peak(self) -> tuple[StorageLifetime, ...]:
        """What is live at the peak of the measured run, the largest first."""
        found = live_at_peak(self.events, self.first)
        return tuple(sorted(found, key=lambda block: -block.size_bytes))


class Session:
    """An open `fake()`: everything made inside it is an event of its meter."""

    def __init__(self, mode: FakeTensorMode, meter: Meter, device: str) -> None:
        self.mode, self.meter, self.device = mode, meter, device
        self.weights_from: list[int] = []  # the event that begins each weight of a base that is quantized, and the end


_open: list[Session] = []


@contextlib.contextmanager
def fake(
    device: str = CUDA, gpu: str | Device | None = None, ranks: int | None = None, rank: int = 0
) -> Iterator[Session]:
    """A place where tensors have shapes and no memory. Build models and inputs inside it, then `record` a run.

    `device` says whose memory is predicted: "cuda" with the kernels of `gpu`, a card of the catalogue (an A100 unless
    it is named), or "cpu". Tensors stay CPU tensors in either case: leave out `.cuda()`. With `ranks` this process is
    number `rank` of so many, and code for FSDP2 and DTensors runs as it is (`ranks.rank_of`). WorkbookError for a card
    without CUDA, and for a process that is a rank already.

    >>> with fake():
    ...     layer, x = nn.Linear(4096, 4096), torch.empty(8, 4096)
    ...     trace = record(lambda: layer(x).sum().backward(), layer)
    >>> trace.parts["parameters"]
    67125248
    """
    if device not in (CUDA, CPU):
        raise WorkbookError(f"the device is {device!r}", "cuda or cpu", "say whose memory is to be predicted")
    if rank and ranks is None:
        raise WorkbookError(f"rank {rank} of no ranks", "ranks beside rank", "fake(ranks=8, rank=3)")
    if _open:
        raise WorkbookError("fake() inside fake()", "one at a time", "record everything inside the outer one")
    mode = FakeTensorMode()
    cuda = require_cuda(gpu, "a trace") if device == CUDA else None
    meter = CudaMeter(cuda) if cuda else FakeMeter()
    meter.where = lambda: ("load", "")
    with what_was_before_aside(), contextlib.ExitStack() as stack:
        if ranks is not None:
            _be_a_rank(stack, meter, ranks, rank)
        stack.enter_context(as_on_a_device())
        stack.enter_context(mode)
        if cuda:
            stack.enter_context(cuda_paths(cuda))
        stack.enter_context(meter)
        stack.callback(meter.stop)
        _open.append(Session(mode, meter, device))
        stack.callback(_open.pop)
        yield _open[-1]


def _be_a_rank(stack: contextlib.ExitStack, meter: FakeMeter, ranks: int, rank: int) -> None:
    from .ranks import rank_of  # here, for torch.distributed takes half a second, and most traces need none
    from .streams import streams_as_on_cuda

    stack.enter_context(rank_of(ranks, rank))
    if isinstance(meter, CudaMeter):
        meter.stream = stack.enter_context(streams_as_on_cuda()).number


def record(
    run: Callable[[], object],
    model: nn.Module | None = None,
    optimizer: Optimizers = None,
    warmup: int = 1,
    kv_cache: Callable[[], Iterable[torch.Tensor]] = tuple,
    part_of: PartOf | None = None,
) -> Trace:
    """Run `run()` inside `fake()` and account for its last run; `warmup` runs come first and leave what they leave.

    `run` takes no arguments: a training step, a forward, one operator. `model` and `optimizer`, one,
    several or a dict of them, let the trace tell parameters, gradients and states apart, and name modules; optimizers
    that first step in here are found. `kv_cache()` gives the tensors that are K and V now; `part_of(block)` may name
    the part of a block that is none of the model's or the optimizer's.
    Raises WorkbookError, with what to do, for code that cannot run without values.
    """
    session = _session()
    watch = Watch(model, optimizer, torch.device("cpu"), meter=session.meter)
    _label(session.meter, model, watch.optimizers)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()  # nothing is freed by it that the reader's code would not free, and it takes a third of the time
    try:
        with watch.hooked(), _errors_explained():
            for _ in range(warmup):
                run()
            _label(session.meter, model, watch.optimizers)
            session.meter.relabel(kv_cache(), Part.KV_CACHE)
            first = len(session.meter.events)
            watch.after_backward = False  # a batch that the run makes before any module runs is its forward's
            run()
            session.meter.relabel(kv_cache(), Part.KV_CACHE)
    finally:
        session.meter.where = lambda: ("after", "")
        if collecting:
            gc.enable()
    watch.require_all_counted()
    for one in watch.optimizers if session.device == CUDA else ():
        _leave_on_host(session.meter, one)
    events = tuple(session.meter.events)
    measured = account(events, first, watch.vocab, 0, session.device, None, part_of)
    return Trace(measured, events, first, tuple(session.weights_from))


def require_steps(steps: int) -> None:
    require_whole("steps", steps, most=10, do="the second step is like all that follow")


def _session() -> Session:
    if not _open:
        do = "make the model and its inputs inside it too, so that they take no memory"
        raise WorkbookError("record() outside of fake()", "a run inside `with trace.fake():`", do)
    return _open[-1]


def _label(meter: Meter, model: nn.Module | None, optimizers: list[torch.optim.Optimizer]) -> None:
    """Name what is alive between two runs, as `adopt` counts it."""
    adopt(meter, model, optimizers)
    if model is not None:
        for name, tensor in weights_of(model):
            meter.relabel([tensor], Part.PARAMETERS)
            meter.name(tensor, name)
        meter.relabel((p.grad for p in model.parameters() if p.grad is not None), Part.GRADIENTS)
    names = {} if model is None else {id(p): name for name, p in model.named_parameters()}
    for optimizer in optimizers:
        meter.relabel(tensors_in(optimizer.state), Part.OPTIMIZER)
        for parameter, states in optimizer.state.items():
            for tensor in tensors_in(states):
                meter.name(tensor, names.get(id(parameter), ""))


def _leave_on_host(meter: Meter, optimizer: torch.optim.Optimizer) -> None:
    """Step counters stay in host memory unless the optimizer is fused or capturable (`_init_group` in torch.optim).

    bitsandbytes' paged states lie in unified memory, which no allocator of PyTorch's counts.
    """
    for state in tensors_in(optimizer.state):
        if getattr(state, "is_paged", False) and (block := meter.block_of(state)):
            block.size_bytes = 0
    for group in optimizer.param_groups:
        if group.get("fused") or group.get("capturable"):
            continue
        for parameter in group["params"]:
            step = optimizer.state.get(parameter, {}).get("step")
            if isinstance(step, torch.Tensor) and (block := meter.block_of(step)):
                block.size_bytes = 0


@contextlib.contextmanager
def _errors_explained() -> Iterator[None]:
    """Errors of fake tensors, in words about the reader's code."""
    try:
        yield
    except fake_tensor.DataDependentOutputException as problem:
        raise WorkbookError(
            f"the run looks at a value ({problem.func})",
            "code whose path does not depend on values",
            "leave out .item(), prints of tensors and data-dependent ifs, or measure it for real: "
            "helpers.memory.measure.step",
        ) from None
    except fake_tensor.DynamicOutputShapeException as problem:
        expected, do = "shapes known beforehand", "replace it (nonzero, masked_select, unique) or measure it for real"
        raise WorkbookError(f"the size of a result depends on values ({problem.func})", expected, do) from None
    except (
        fake_tensor.UnsupportedFakeTensorException,
        fake_tensor.UnsupportedOperatorException,
        NotImplementedError,
    ) as problem:
        expected, do = "operators with a fake kernel", "torch.library.register_fake gives a custom operator one"
        raise WorkbookError(f"an operator does not run without memory: {str(problem)[:200]}", expected, do) from None
    except AssertionError as problem:
        if "convert all Tensors to FakeTensors" not in str(problem):
            raise
        what, expected = "the run uses a tensor that was made outside of fake()", "everything made inside"
        raise WorkbookError(what, expected, "build the model and its inputs inside `with trace.fake():`") from None
