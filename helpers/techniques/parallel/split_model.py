"""A whole Llama split: tensor parallelism in every layer and at both ends, and its tokens divided, too, if asked."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ...catalog.errors import WorkbookError
from .formula import require_heads
from .groups import copy_weights, part, require_same, require_same_model, whole_world
from .operators import Crossing, Group, copy_to_ranks, gather_tokens, scatter_tokens, sum_gradient, sum_over_ranks
from .tensor import ColumnParallel, RowParallel, split_attention
from .vocabulary import IGNORED, VocabularyParallelEmbedding, cross_entropy, mean_over_labels

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


class Enter(nn.Module):
    """A norm, and behind it the entry to layers that are divided: `copy_to_ranks`, or `gather_tokens`.

    In a Llama every norm stands just there: before attention, before the MLP, and before the head.
    """

    def __init__(self, norm: nn.Module, group: Group, entry: Crossing) -> None:
        super().__init__()
        self.norm, self.group, self.entry = norm, group, entry

    def forward(self, x: Tensor) -> Tensor:
        return self.entry(self.norm(x), self.group)


class SplitModel(nn.Module):
    """This rank's part of a Llama of Transformers. Calling it gives the loss of the whole model, on every rank.

    All ranks of `group` pass the same ids, (batch, tokens); `sequence` is sequence parallelism, for which tokens are a
    multiple of the ranks. The model given is taken apart: what belongs to other ranks is freed.
    """

    def __init__(self, model: Any, group: Group, sequence: bool = False) -> None:
        super().__init__()
        self.group, self.sequence, self.words = group, sequence, part(model.config.vocab_size, group)
        entry, exit = (gather_tokens, scatter_tokens) if sequence else (copy_to_ranks, sum_over_ranks)
        body = model.model
        self.embedding = VocabularyParallelEmbedding(body.embed_tokens, group, exit)
        self.rotary, self.layers = body.rotary_emb, body.layers
        for layer in self.layers:
            split_layer(layer, group, entry, exit)
        self.norm = Enter(body.norm, group, entry)
        self.head = ColumnParallel(model.lm_head, group, self.words)
        if model.config.tie_word_embeddings:
            self.head.weight = self.embedding.weight  # the same rows, and the same rank needs both
        if sequence:
            for parameter in whole_on_every_rank(self):
                sum_gradient(parameter, group)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        """The mean loss of the next tokens: those of `ids`, or of `labels`, where -100 is left out."""
        labels = ids if labels is None else labels
        do = "give the ranks of one split model the same batch; those of other models may have another"
        require_same("ids or labels", [ids, labels], self.group, do)
        labels = pad(labels[:, 1:], (0, 1), value=IGNORED).flatten()
        losses = cross_entropy(self.logits(ids).flatten(0, 1), labels, self.words, self.group)
        return mean_over_labels(losses, labels)

    def logits(self, ids: Tensor) -> Tensor:
        """Of this rank's words, for every token: (batch, tokens, words)."""
        if self.sequence:
            require_equal_parts(ids.shape[1], self.group.size())
        hidden = self.embedding(ids)
        positions = self.rotary(hidden, torch.arange(ids.shape[1], device=ids.device)[None])
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=positions)
        return self.head(self.norm(hidden))

    def holds(self) -> dict[str, list[Tensor]]:
        """This rank's tensors by category, for `helpers.memory.measure.held`."""
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        return {"parameters": list(self.parameters()), "gradients": gradients}


def split(model: Any, group: Group | None = None, sequence: bool = False) -> SplitModel:
    """Split a Llama over the ranks of `group`, all of them where it is left out; every rank calls it.

    The weights are those of the group's first rank. Raises WorkbookError, on every rank, where the ranks' models differ
    in size, heads cannot be shared, or the model is none that is taken apart here.
    """
    group = whole_world(group)
    config: Any = getattr(model, "config", None)
    sizes = {name: getattr(config, name, None) for name in (*SIZES, "num_key_value_heads")}
    require_same_model(model, {"sequence": sequence, **sizes}, group)
    if getattr(config, "model_type", None) != "llama":
        do = "split its layers with ColumnParallel and RowParallel, or use dtensor.load_by_transformers"
        raise WorkbookError(f"a {type(model).__name__} is not split here", "a LlamaForCausalLM", do)
    if config._attn_implementation != "sdpa":
        do = 'model.set_attn_implementation("sdpa")'
        raise WorkbookError(f"attention is {config._attn_implementation!r}", "'sdpa', which is causal unasked", do)
    require_heads(config.num_attention_heads, config.num_key_value_heads, group.size())
    copy_weights(model, group)
    return SplitModel(model, group, sequence)


def split_layer(layer: Any, group: Group, entry: Crossing, exit: Crossing) -> None:
    """One decoder layer: two entries, two exits, and nothing else is sent."""
    layer.input_layernorm = Enter(layer.input_layernorm, group, entry)
    split_attention(layer.self_attn, group, exit)
    layer.post_attention_layernorm = Enter(layer.post_attention_layernorm, group, entry)
    mlp = layer.mlp
    mlp.gate_proj, mlp.up_proj = ColumnParallel(mlp.gate_proj, group), ColumnParallel(mlp.up_proj, group)
    mlp.down_proj = RowParallel(mlp.down_proj, group, exit=exit)


def whole_on_every_rank(model: nn.Module) -> list[nn.Parameter]:
    """Norms, and the biases that are added after an exit: with sequence parallelism they see a part of the tokens."""
    norms = [p for module in model.modules() if isinstance(module, Enter) for p in module.norm.parameters()]
    rows = [module.bias for module in model.modules() if isinstance(module, RowParallel)]
    return norms + [bias for bias in rows if bias is not None]


def require_equal_parts(tokens: int, ranks: int) -> None:
    if tokens % ranks:
        do = f"pad the sequence to {-(-tokens // ranks) * ranks} tokens, labels with -100"
        raise WorkbookError(f"{tokens} tokens on {ranks} ranks", f"a multiple of {ranks} with sequence=True", do)
