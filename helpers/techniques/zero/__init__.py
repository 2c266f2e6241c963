"""ZeRO from collectives: data parallelism, and then its redundancy taken away stage by stage. Imports torch.

    from helpers.techniques.zero import Zero2
    engine = Zero2(model, lambda parameters: torch.optim.AdamW(parameters, lr=1e-3), clip=1.0)
    model(input_ids=ids, labels=ids).loss.backward()     # this rank's own micro-batch
    engine.step()

`ddp` averages gradients, plainly and in buckets; `stages` has stages 1 and 2, `stage3` stage 3; `flat` lays parameters
end to end, `shard` is the part that a rank updates, `arrivals` knows when a bucket is full; `rank_trace` traces one
rank of thousands. Every engine has `step()`, and `holds()` for what its rank keeps. May import catalog and memory.
"""

from .ddp import DDP, NaiveDDP
from .flat import BUCKET_BYTES, Bucket, Flat, Unit, buckets
from .rank_trace import RankTrace, fake_ranks, traced
from .shard import Shard, clip_shards
from .stage3 import Zero3, units
from .stages import Zero1, Zero2

STAGES = (DDP, Zero1, Zero2, Zero3)  # by number

__all__ = [
    "BUCKET_BYTES", "DDP", "STAGES", "Bucket", "Flat", "NaiveDDP", "RankTrace", "Shard", "Unit", "Zero1", "Zero2",
    "Zero3", "buckets", "clip_shards", "fake_ranks", "traced", "units",
]  # fmt: skip
