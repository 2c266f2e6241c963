"""ZeRO from collectives: data parallelism, and then its redundancy taken away stage by stage. Imports torch.

    from helpers.techniques.zero import Zero2
    engine = Zero2(model, lambda parameters: torch.optim.AdamW(parameters, lr=1e-3), clip=1.0)
    model(input_ids=ids, labels=ids).loss.backward()     # this rank's own micro-batch
    engine.step()

`ddp` averages gradients, plainly and in buckets; `stages` has stages 1 and 2, `stage3` stage 3; `flat` lays parameters
end to end, `shard` is the part that a rank updates, `arrivals` knows when a bucket is full; `rank_trace` traces one
rank of thousands; `engines` and `deepspeed_engine` run FSDP2 and DeepSpeed in the same way, `configs` writes their
files. Every engine has `step()`, and `holds()` for what its rank keeps. May import catalog and memory.
"""

from .configs import accelerate_config, deepspeed_config
from .ddp import DDP, NaiveDDP
from .deepspeed_engine import DeepSpeed
from .engines import FSDP2
from .flat import BUCKET_BYTES, Bucket, Flat, Unit, buckets
from .grad_ready import GradReadyCounter
from .rank_trace import RankTrace, fake_ranks, traced
from .shard import Shard, clip_shards
from .stage3 import Zero3, register_gather_hooks, units
from .stages import Zero1, Zero2

STAGES = (DDP, Zero1, Zero2, Zero3)  # by number

__all__ = [
    "BUCKET_BYTES",
    "DDP",
    "FSDP2",
    "STAGES",
    "Bucket",
    "DeepSpeed",
    "Flat",
    "GradReadyCounter",
    "NaiveDDP",
    "RankTrace",
    "Shard",
    "Unit",
    "Zero1",
    "Zero2",
    "Zero3",
    "accelerate_config",
    "buckets",
    "clip_shards",
    "deepspeed_config",
    "fake_ranks",
    "register_gather_hooks",
    "traced",
    "units",
]
