"""What a run would allocate, without a GPU and without memory: the reader's own code on fake tensors. Imports torch.

    from helpers.memory import trace
    trace.train(TrainSetup("llama-2-70b", precision="bf16")).peak_allocated_bytes     # in seconds, on a laptop
    with trace.fake():
        model, x = MyModel(), torch.empty(8, 4096)
        found = trace.record(lambda: model(x).sum().backward(), model)
    found.peak_reserved_bytes, found.at_peak[:5]

`record` runs and accounts, `fake` makes tensors without memory, `cuda` and `attention` take the paths that a GPU takes,
`kernels` adds what its kernels keep to themselves, `runs` has steps ready made, `quantized` what bitsandbytes keeps,
and `loading` brings a model to the GPU.
"""

from .quantized import QuantizedBase
from .record import Trace, fake, record
from .runs import decode, lora, prefill, train
