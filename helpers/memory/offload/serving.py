"""A served model whose layers come over a link, one after the other: seconds of a step, bytes on both sides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from ...catalog.devices import Device, device
from ...catalog.errors import WorkbookError, require_name, require_number, require_whole
from ...catalog.formats import number_format
from ...catalog.gguf import refuse_file
from ...catalog.layers import Layer
from ...catalog.serve_setup import ServeSetup
from ..layer_work import attention_flops, weights_met
from ..serve.weights import KEPT, layer_bytes, layer_weight_bytes, weight_bytes
from ..work import Roof, Work
from .overlap import LayerTurn, fewest, overlapped_s, turns

PREFILL, DECODE = "prefill", "decode"
SIXTEEN_BITS = ("bf16", "fp16")


@dataclass(frozen=True)
class Streamed:
    """One forward of a model whose layers come over a link: each layer's bytes, and seconds of its copy and compute."""

    layers_bytes: tuple[int, ...]
    root_bytes: int
    copies_s: tuple[float, ...]
    computes_s: tuple[float, ...]
    root_s: float
    buffers: int = 2

    @property
    def host_bytes(self) -> int:
        """The layers, off the device."""
        return sum(self.layers_bytes)

    @property
    def device_bytes(self) -> int:
        """Weights on the device: the root (embeddings, last norm, head), and the buffers."""
        return self.root_bytes + min(self.buffers, len(self.layers_bytes)) * max(self.layers_bytes)

    @property
    def turns(self) -> tuple[LayerTurn, ...]:
        return turns(self.copies_s, self.computes_s, self.buffers)

    @property
    def serial_s(self) -> float:
        return sum(self.copies_s) + sum(self.computes_s) + self.root_s

    @property
    def overlapped_s(self) -> float:
        return overlapped_s(self.copies_s, self.computes_s, self.buffers) + self.root_s

    @property
    def resident_s(self) -> float:
        """The same forward with all weights on the device."""
        return sum(self.computes_s) + self.root_s

    @property
    def exposed_s(self) -> float:
        """Seconds that the link adds."""
        return self.overlapped_s - self.resident_s

    @property
    def is_hidden(self) -> bool:
        """Whether every copy but the first is done before its layer's turn: all but it cost nothing."""
        later = zip(self.copies_s[1:], self.computes_s, strict=False)
        return self.buffers > 1 and all(copy_s <= compute_s for copy_s, compute_s in later)


def streamed(
    setup: ServeSetup,
    gpu: str | Device,
    step: str = DECODE,
    *,
    link_bytes_per_s: float | None = None,
    compute_efficiency: float = 1.0,
    buffers: int = 2,
) -> Streamed:
    """A decode step for `setup.users`, or the prefill of their `setup.context` tokens, with the layers streamed.

    A layer computes for as long as the card's roofline says: its weights and its keys and values read once from device
    memory, 2 FLOPs for each weight and token, 4 for each query, key and channel. Experts that no token can have chosen
    travel, but are not read; nor are rows of an embedding table that no token looks up. `link_bytes_per_s` is the
    card's PCIe in one direction where it is None; through a slower tier it is that tier's.

    Llama-3-8B, one user, H100: 32 layers of 436 MB, 6.8 ms each over 64 GB/s and 0.13 ms of work. WorkbookError for a
    family whose layers are not known one by one.
    """
    refuse_file(setup.model, "layers that are streamed")
    if setup.model.counted:
        what, do = f"the layers of {setup.model.name} are not known one by one", "stream llama-3-70b"
        raise WorkbookError(what, "a family with a closed form in helpers.catalog.families", do)
    require_name("step", step, (PREFILL, DECODE))
    require_whole("buffers", buffers, do="pass buffers=2")
    rate, roof = _link(gpu, link_bytes_per_s), _roof(setup, gpu, compute_efficiency)
    layers = setup.model.layers
    size_of = {layer: layer_weight_bytes(setup, layer) for layer in set(layers)}
    work_of = {layer: roof.seconds(layer_work(setup, layer, step)) for layer in size_of}
    sizes = tuple(size_of[layer] for layer in layers)
    root = weight_bytes(setup) - sum(sizes)
    rows = setup.users  # logits of the last token alone
    read = root - min(root, _rows_not_read_bytes(setup, step))
    root_work = Work(2 * rows * setup.model.vocab * setup.model.embedding_width, read, 0)
    return Streamed(
        sizes,
        root,
        tuple(size / rate for size in sizes),
        tuple(work_of[layer] for layer in layers),
        roof.seconds(root_work),
        buffers,
    )


def users_that_hide(
    setup: ServeSetup,
    gpu: str | Device,
    step: str = DECODE,
    *,
    link_bytes_per_s: float | None = None,
    compute_efficiency: float = 1.0,
) -> int | None:
    """The fewest users from which on no copy but the first is waited for, the context as it is; None if none suffice.

    A decode step may get there by its keys and values: they are read from device memory, beside the link.

    Llama-3-8B on an H100, prompts of 1,024 tokens: 15 hide the link, together about `break_even_tokens`.
    """
    require_name("step", step, (PREFILL, DECODE))
    rate, roof = _link(gpu, link_bytes_per_s), _roof(setup, gpu, compute_efficiency)
    following = set(pairwise(setup.model.layers)) or {(setup.model.layers[0],) * 2}
    needed_s = {(now, layer_weight_bytes(setup, after) / rate) for now, after in following}

    def is_hidden(users: int) -> bool:
        more = replace(setup, users=users)
        return all(roof.seconds(layer_work(more, layer, step)) >= copy_s for layer, copy_s in needed_s)

    return fewest(is_hidden)


def _roof(setup: ServeSetup, gpu: str | Device, compute_efficiency: float) -> Roof:
    share = require_number(
        "compute_efficiency", compute_efficiency, below=1 + 1e-9, expected="a share up to 1", do="pass 0.5"
    )
    card = device(gpu)
    return Roof(card.flops_per_s(compute_format(setup, card)) * share, card.memory_bytes_per_s)


def _link(gpu: str | Device, link_bytes_per_s: float | None) -> float:
    """Bytes per second on which the layers arrive; a card without a link of its own is refused, whatever the tier."""
    pcie = device(gpu).link_bytes_per_s("pcie")
    rate = pcie if link_bytes_per_s is None else link_bytes_per_s
    do = "pass device('h100').link_bytes_per_s('pcie'), or tier('990-pro').read_bytes_per_s"
    return require_number("link_bytes_per_s", rate, expected="bytes per second in one direction, above 0", do=do)


def compute_format(setup: ServeSetup, gpu: str | Device | None = None) -> str:
    """What products run in: FP8 where the weights are in it; other narrow formats are unpacked to 16 bits.

    Those are BF16, and on a card that has only FP16, such as a T4, FP16.
    """
    if setup.weights in ("fp8-e4m3", "fp8-e5m2", "fp32", "fp16"):
        return setup.weights
    able = device(gpu).peak_flops if gpu and setup.weights != KEPT else {}
    return next((name for name in SIXTEEN_BITS if name in able), KEPT)


def layer_work(setup: ServeSetup, layer: Layer, step: str) -> Work:
    """What one layer computes and reads in a step, for all users."""
    tokens, attention, context = setup.context if step == PREFILL else 1, layer.attention, setup.context
    first = 0 if step == PREFILL else context
    looked = attention_flops(attention, first + tokens) - attention_flops(attention, first)
    flops = setup.users * (2 * tokens * weights_met(layer) + looked)
    kv = setup.users * setup.cache_bytes(model=replace(setup.model, layers=(layer,)))
    read = layer_weight_bytes(setup, layer) - _idle_bytes(setup, layer, setup.users * tokens)
    return Work(flops, read + (kv if step == DECODE else 0), kv if step == PREFILL else 0)


def _idle_bytes(setup: ServeSetup, layer: Layer, tokens: int) -> int:
    """Experts of a layer that so many tokens cannot have chosen."""
    idle = max(0, layer.mlp.experts - tokens * layer.mlp.experts_per_token)
    if not idle:
        return 0
    return idle * sum(layer_bytes(setup, group) for group in layer.linears() if group.part == "experts")


def _rows_not_read_bytes(setup: ServeSetup, step: str) -> int:
    """Rows of the embedding table, and of a table of positions, that no token of the step looks up.

    A table that is the head as well is read whole.
    """
    model, tokens = setup.model, setup.users * (setup.context if step == PREFILL else 1)
    rule = number_format(setup.weights)
    table = number_format(KEPT) if rule.linears_only else rule
    rows = 0 if model.tied else max(0, model.vocab - tokens) * model.embedding_width
    return table.storage_bytes(rows + model.learned_positions * model.hidden)
