"""What a step of decoding must read: the floor of its time."""

from __future__ import annotations

from ...catalog.errors import WorkbookError
from ...catalog.formats import number_format
from ...catalog.serve_setup import ServeSetup
from .serving import full_cache
from .weights import KEPT, layer_bytes, weight_bytes


def decode_bytes(setup: ServeSetup) -> int:
    """Bytes that one decode step, a token for each of `users`, must read: weights once, everybody's K and V.

    Of the embedding table only `users` rows are looked up, unless it is tied to the head, which reads all of it. Of
    a mixture of experts, as many are read as `users` tokens can choose at most. Divided by the memory's bandwidth
    this is the floor of a step's time: no kernel is faster unless the weights stay in a cache.
    Llama-3-8B in BF16, one user, 2048 tokens: 15.0 GB of weights and 0.27 GB of K and V, 4.6 ms on an H100.
    WorkbookError for a mixture of experts that only Transformers knows.
    """
    model = setup.model
    if model.experts_unread:
        what, do = f"how many experts a token uses is not known for the family {model.family!r}", "measure a step"
        raise WorkbookError(what, "a family with a closed form in helpers.catalog.families, or a GGUF file", do)
    if model.stored:
        return weight_bytes(setup) - _unread_bytes(setup) + full_cache(setup)
    looked_up = model.learned_positions * model.hidden + model.parameters_beside
    if not model.tied:
        looked_up += (model.vocab - setup.users) * model.embedding_width
    rule = number_format(setup.weights)
    table = number_format(KEPT) if rule.linears_only else rule
    return weight_bytes(setup) - table.storage_bytes(max(0, looked_up)) - _idle_expert_bytes(setup) + full_cache(setup)


def _unread_bytes(setup: ServeSetup) -> int:
    """Of a GGUF file: rows of the embedding that nobody looks up, and experts that no user's token can have chosen."""
    model, share = setup.model, 1.0
    experts, mlp = [tensor for tensor in model.stored if "_exps." in tensor.name], model.layers[-1].mlp
    if mlp.experts:
        share = min(setup.users * mlp.experts_per_token, mlp.experts) / mlp.experts
    idle = sum(round(tensor.size_bytes * (1 - share)) for tensor in experts)
    tables = [tensor for tensor in model.stored if tensor.name in ("token_embd.weight", "position_embd.weight")]
    rows = [tensor.size_bytes // tensor.shape[0] * max(0, tensor.shape[0] - setup.users) for tensor in tables]
    return idle + (sum(rows[1:]) if model.tied else sum(rows))


def _idle_expert_bytes(setup: ServeSetup) -> int:
    """Weights of experts that no user's token can have chosen."""
    idle_bytes = 0
    for layer in setup.model.layers:
        idle = max(0, layer.mlp.experts - setup.users * layer.mlp.experts_per_token)
        if idle:
            idle_bytes += idle * sum(layer_bytes(setup, one) for one in layer.linears() if one.part == "experts")
    return idle_bytes
