"""A pipeline's stages on one rank: parts of a Transformers decoder under torch.distributed.pipelining."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from ...catalog.errors import WorkbookError
from ...catalog.split import STAGES_PER_RANK
from ...catalog.train_setup import TrainSetup
from ..measure.steps import CheckpointedSegment, precision_context

META = torch.device("meta")


def require_pipeline(setup: TrainSetup, ranks: int, schedule: str) -> None:
    """WorkbookError unless each stage has a layer, and the schedule has micro-batches enough."""
    stages, layers = ranks * STAGES_PER_RANK[schedule], len(setup.model.layers)
    if stages > layers:
        do = f"choose a pipeline of at most {layers // STAGES_PER_RANK[schedule]} ranks"
        raise WorkbookError(f"{stages} stages of {setup.model.name}", f"at most its {layers} layers", do)
    if setup.micro_batches < ranks or (STAGES_PER_RANK[schedule] > 1 and setup.micro_batches % ranks):
        what = f"{setup.micro_batches} micro-batches in a pipeline of {ranks}"
        expected = f"at least {ranks}" if STAGES_PER_RANK[schedule] == 1 else f"a multiple of {ranks}"
        raise WorkbookError(what, expected, f"pass micro_batches={ranks * 2} (--accumulate {ranks * 2})")


class StageModule(nn.Module):
    """Layers `start` to `stop` of a decoder; the embedding goes with the first of all, norm and head with the last."""

    def __init__(self, model: Any, start: int, stop: int, checkpointed: int) -> None:
        super().__init__()
        decoder = model.base_model
        layers = list(decoder.layers)
        self.first, self.last = start == 0, stop == len(layers)
        self.decoder = _with_parts_of_its_own(decoder)
        self.decoder.layers = nn.ModuleList(_segments(layers[start:stop], checkpointed))
        if not self.first:
            self.decoder.embed_tokens = None
        if not self.last:
            self.decoder.norm = nn.Identity()
        self.head = model.get_output_embeddings() if self.last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        name = "input_ids" if self.first else "inputs_embeds"
        hidden = self.decoder(**{name: x}, use_cache=False).last_hidden_state
        return self.head(hidden) if self.head is not None else hidden

    def get_output_embeddings(self) -> nn.Module | None:
        return self.head


def _with_parts_of_its_own(module: nn.Module) -> Any:
    """`module` with the same parts, of which some can be replaced in it alone."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other


def _segments(layers: list[nn.Module], every: int) -> list[nn.Module]:
    return [CheckpointedSegment(layers[at : at + every]) for at in range(0, len(layers), every)] if every else layers


class Stages(nn.Module):
    """What rank `rank` of a pipeline has: its stage; with an interleaved schedule also the one `ranks` later."""

    def __init__(self, model: Any, setup: TrainSetup, rank: int, ranks: int, schedule: str) -> None:
        super().__init__()
        _require_known(model, setup)
        self.schedule, self.total = schedule, ranks * STAGES_PER_RANK[schedule]
        self.numbers = range(rank, self.total, ranks)
        starts = [number * len(setup.model.layers) // self.total for number in range(self.total + 1)]
        every = setup.checkpoint_every
        if every is None:
            what = f"checkpointing is {setup.checkpointing!r} in a pipeline's stages"
            raise WorkbookError(what, "none, full, every:K or sqrt-n", "choose full, or split the run by fsdp")
        self.parts = nn.ModuleList(StageModule(model, starts[n], starts[n + 1], every) for n in self.numbers)
        self.loss, self.vocab = model.loss_function, setup.model.vocab

    def __iter__(self) -> Iterator[Any]:  # which mypy takes for tensors otherwise
        return iter(self.parts)

    def get_output_embeddings(self) -> nn.Module | None:
        return self.parts[-1].head  # type: ignore[return-value]

    def step_of(
        self, setup: TrainSetup, optimizers: list[torch.optim.Optimizer], mesh: DeviceMesh, hidden: torch.dtype
    ) -> Callable[[], None]:
        """One step through the schedule; hidden states travel in the type `hidden`."""
        stages = [
            self._stage(number, part, setup, mesh, hidden) for number, part in zip(self.numbers, self, strict=True)
        ]
        kind: Any = get_schedule_class(self.schedule)
        schedule = kind(stages[0] if len(stages) == 1 else stages, setup.micro_batches, loss_fn=self._loss)
        batch = (setup.micro_batch * setup.micro_batches, setup.sequence)

        def step() -> None:
            ids = torch.zeros(batch, dtype=torch.long)
            with precision_context(setup, "cpu"):
                schedule.step(
                    *([ids] if stages[0].is_first else []),
                    target=ids if stages[-1].is_last else None,
                    losses=[] if stages[-1].is_last else None,
                    return_outputs=False,
                )
            for optimizer in optimizers:
                optimizer.step()
            self.zero_grad(set_to_none=True)

        return step

    def _stage(
        self, number: int, part: StageModule, setup: TrainSetup, mesh: DeviceMesh, hidden: torch.dtype
    ) -> PipelineStage:
        tokens = (setup.micro_batch, setup.sequence)
        between = torch.empty(*tokens, setup.model.hidden, dtype=hidden, device=META, requires_grad=True)
        takes = torch.empty(tokens, dtype=torch.long, device=META) if part.first else between
        makes = (
            torch.empty(*tokens, self.vocab, dtype=hidden, device=META, requires_grad=True) if part.last else between
        )
        group = mesh.get_group()
        return PipelineStage(part, number, self.total, torch.device("cpu"), takes, makes, group=group)

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.loss(logits=logits, labels=labels, vocab_size=self.vocab)


def _require_known(model: Any, setup: TrainSetup) -> None:
    parts = {name for name, _ in model.base_model.named_children()}
    capped = getattr(model.config, "final_logit_softcapping", None)
    if not {"embed_tokens", "layers", "norm"} <= parts or "rotary_emb" not in parts or capped:
        do = "write its stages with torch.distributed.pipelining inside trace.fake(ranks=...), or use fsdp"
        what = f"nothing here cuts {setup.model.name} ({type(model).__name__}) into stages"
        raise WorkbookError(what, "a decoder of embed_tokens, layers, norm and rotary_emb", do)
