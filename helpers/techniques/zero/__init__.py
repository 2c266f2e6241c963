"""ZeRO from collectives: data parallelism, and then its redundancy taken away stage by stage. Imports torch.

    from helpers.techniques.zero import Zero2
    engine = Zero2(model, lambda parameters: torch.optim.AdamW(parameters, lr=1e-3), clip=1.0)
    model(input_ids=ids, labels=ids).loss.backward()     # this rank's own micro-batch
    engine.step()

The algorithm, which chapter 09 prints: `flat` lays parameters end to end and has the collectives, `ddp` averages
gradients, plainly and in buckets, `stages` has stages 1 and 2, `stage3` stage 3. Beside it: `fsdp2` and `deepspeed` run
the field's engines in the same way, `async_io` compiles what DeepSpeed's disk needs, `configs` writes their files,
`rank_trace` traces one rank of thousands, and `python -m helpers.techniques.zero` is the script for torchrun. May
import catalog, memory and, for the bytes of a disk, `offload`.
"""

from .configs import accelerate_config, deepspeed_config
from .ddp import DDP, DataParallelEngine, GradReadyCounter, NaiveDDP
from .deepspeed import DeepSpeed
from .flat import BUCKET_BYTES, Bucket, FlatBucket, Unit, all_gather, all_reduce, buckets, reduce_scatter
from .fsdp2 import FSDP2
from .rank_trace import STAGES, RankTrace, fake_ranks, traced
from .stage3 import Zero3, register_gather_hooks, units
from .stages import Shard, Zero1, Zero2, clip_shards
