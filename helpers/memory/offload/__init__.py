"""What offloading costs: seconds of a copy beside seconds of computing, and bytes on every tier. No torch.

    from helpers.memory import offload
    one = offload.streamed(ServeSetup("llama-3-8b", users=1), "rtx-4090")       # a decode step, weights on the host
    one.exposed_s, one.device_bytes
    offload.break_even_tokens(989.4e12, 64e9)                                   # 15459.4, where copies hide

`overlap` knows copies and layers by their seconds alone; `serving` are the layers of a served model, which arrive one
after the other; `experts` are those of a mixture that the host computes; `training` is where the bytes of a step pass.
Rates are the datasheet's unless an efficiency says otherwise: with real ones both sides of a comparison are longer.
"""

from .experts import HostExperts, experts_on_host, has_experts
from .overlap import LayerTurn, break_even_tokens, overlapped_s, turns
from .serving import (
    DECODE,
    PREFILL,
    Streamed,
    compute_format,
    layer_weight_bytes,
    layer_work,
    streamed,
    users_that_hide,
)
from .training import ONE_RANKS, Hop, Passage, micro_batch_that_hides, training_compute_s, training_hops
