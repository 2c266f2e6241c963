"""One model over several ranks, each holding and computing a part of it. Names here load torch when asked for.

    from helpers.techniques.parallel import split
    part = split(model)                      # on every rank: a Llama of Transformers, divided over all ranks
    part(ids).backward()                     # the loss of the whole model; each rank has its own parts' gradients

    from helpers.techniques.parallel import pipeline, ring, ulysses
    schedule = pipeline.one_f_one_b(ranks=4, micro_batches=8)

`groups` says who shares a model and divides sizes among them, `operators` are the pairs of collectives that stand at a
part's entry and exit, `tensor` divides linear layers and heads, `vocabulary` the embedding, the head and the loss, and
`split_model` a whole Llama, with its tokens if asked. `dropout` drops on each rank what the whole model would.
`experts` sends tokens to experts on other ranks, and `expert_model` is a whole Mixtral so divided. Beside them
`dtensor` does the same with PyTorch's DTensor. `pipeline` has schedules as data and a runner for them; `ring` and
`ulysses` divide the tokens of attention, and `layouts` says who has which; `device_map` shows what `device_map="auto"`
does; `formula` says what a rank of a split model holds and sends. May import catalog, memory and, for the merge of
partial results, `attention`.
"""

from typing import TYPE_CHECKING

from ...catalog.lazy import lazy

if TYPE_CHECKING:
    from .dropout import SplitDropout
    from .expert_model import ExpertParallelModel, split_experts
    from .experts import ExpertParallel, average_expert_gradients
    from .groups import average_gradients, mesh, part
    from .operators import copy_to_ranks, exchange, gather_tokens, scatter_tokens, sum_gradient, sum_over_ranks
    from .split_model import SplitModel, split
    from .tensor import ColumnParallel, RowParallel
    from .vocabulary import VocabularyParallelEmbedding, cross_entropy

__getattr__ = lazy(__name__)
