"""Models, data and runs that every rank, and a single process beside them, do alike. Imported on the ranks."""

from __future__ import annotations

from itertools import islice

import torch
import torch.distributed as dist
from torch import nn

from helpers.memory.measure import rank_step
from helpers.techniques.zero import DDP, NaiveDDP, Zero1, Zero2, Zero3

ENGINES = {"naive": NaiveDDP, "ddp": DDP, "zero-1": Zero1, "zero-2": Zero2, "zero-3": Zero3}
SMALL_BUCKETS = {"ddp": 4000, "zero-1": 4000, "zero-2": 4000}
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1, foreach=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
}
ROWS, TOKENS, VOCAB, CLIP = 8, 12, 101, 0.5


class Mix(nn.Module):
    """Layers of uneven size; one weight in two of them; one parameter that no loss reaches; an odd count in all."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 7)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(7, width), nn.Tanh(), nn.Linear(width, 7)) for width in (13, 1, 5)
        )
        self.layers[2][0].weight = nn.Parameter(torch.randn(5, 7))
        self.layers[0][2].bias = self.layers[2][2].bias
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return (hidden @ self.embedding.weight.T).log_softmax(-1)


def build(kind: str) -> nn.Module:
    """A Mix, or a Llama: "llama" and "tied" have odd sizes, which two and four do not divide; "wide" has others.

    "large" has weights of which a half is just over 1 MiB.
    """
    torch.manual_seed(0)
    if kind == "mix":
        return Mix()
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"wide": (128, 384, 4, 3), "large": (1280, 823, 4, 1)}
    hidden, ffn, heads, layers = sizes.get(kind, (33, 51, 3, 3))
    shape = {"hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers, "vocab_size": VOCAB}
    heads = {"num_attention_heads": heads, "num_key_value_heads": 1, "head_dim": 10 if heads == 3 else 32}
    return LlamaForCausalLM(LlamaConfig(**shape, **heads, tie_word_embeddings=kind == "tied"))


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    if isinstance(model, Mix):
        return nn.functional.nll_loss(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return model(input_ids=ids, labels=ids).loss


def batches():
    numbers = torch.Generator().manual_seed(1)
    while True:
        yield torch.randint(0, VOCAB, (ROWS, TOKENS), generator=numbers)


def alone(kind: str, optimizer: str, steps: int = 10, clip: float = CLIP) -> tuple[list[float], list[torch.Tensor]]:
    """Losses and final parameters of one process that sees the whole batch."""
    model = build(kind)
    stepper, losses = OPTIMIZERS[optimizer](model.parameters()), []
    for ids in islice(batches(), steps):
        loss = loss_of(model, ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        stepper.step()
        stepper.zero_grad()
        losses.append(loss.item())
    return losses, [p.detach().clone() for p in model.parameters()]


def engine_of(name: str, kind: str, optimizer: str, clip: float = CLIP, **options):
    model = build(kind)
    if dist.get_rank():  # what the engines must make equal
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    options = {**({"bucket_bytes": SMALL_BUCKETS[name]} if name in SMALL_BUCKETS else {}), **options}
    return ENGINES[name](model, OPTIMIZERS[optimizer], clip, **options)


def together(name: str, kind: str, optimizer: str, steps: int = 10, **options):
    """The same on this rank's share of every batch: (losses over all ranks, final parameters)."""
    engine, losses = engine_of(name, kind, optimizer, **options), []
    for ids in islice(batches(), steps):
        loss = loss_of(engine.model, ids.chunk(dist.get_world_size())[dist.get_rank()])
        loss.backward()
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses, [p.detach().clone() for p in whole(engine).parameters()]


def whole(engine) -> nn.Module:
    """The engine's model with all its parameters there."""
    for unit in getattr(engine, "flats", ()):
        if hasattr(unit, "gather"):
            unit.gather()
            unit.wait()
    return engine.model


def third_step(name: str, kind: str, optimizer: str = "adamw", **options):
    """What one rank holds and sends in its third step."""
    engine = engine_of(name, kind, optimizer, **options)
    rows = ROWS // dist.get_world_size()
    for ids in islice(batches(), 3):
        step = rank_step(lambda ids=ids: loss_of(engine.model, ids[:rows]).backward(), engine.step, engine.holds)
    return step


def accumulated(name: str, micro_batches: int):
    """The same batch in one piece and in `micro_batches`: (largest difference of parameters, payload in models)."""
    ends, carried = [], 0.0
    for pieces in (1, micro_batches):
        engine = engine_of(name, "tied", "momentum")
        ids = next(batches()).chunk(dist.get_world_size())[dist.get_rank()]

        def backward(pieces=pieces, engine=engine, ids=ids) -> None:
            for piece in ids.chunk(pieces):
                (loss_of(engine.model, piece) / pieces).backward()

        step = rank_step(backward, engine.step, engine.holds)
        ends.append([p.detach().clone() for p in whole(engine).parameters()])
        carried = float(step.traffic.passes(sum(p.nbytes for p in engine.model.parameters())))
    return max((one - other).abs().max().item() for one, other in zip(*ends, strict=True)), carried
