"""What a run would allocate, without a GPU and without memory: the reader's own code on fake tensors. Imports torch.

    from helpers.memory import trace
    trace.train(TrainSetup("llama-2-70b", precision="bf16")).peak_allocated_bytes     # in seconds, on a laptop
    with trace.fake():
        model, x = MyModel(), torch.empty(8, 4096)
        found = trace.record(lambda: model(x).sum().backward(), model)
    found.peak_reserved_bytes, found.at_peak[:5]
    trace.serve(ServeSetup("qwen2.5-7b", "awq-int4", context=8192, prompt=6144)).peak.name     # 'prefill'

`record` runs and accounts, `fake` makes tensors without memory, `cuda` and `attention` take the paths that a GPU takes,
`kernels` adds what its kernels keep to themselves, `runs` has training steps ready made and `serving` a replica's
work, which `continued` tells to its last token; `quantized` is what bitsandbytes keeps, `packed` what GPTQ, AWQ and FP8
do, `loading` brings a model to the GPU, and `read_ahead` says what that reserves where it is a race.
"""

from .quantized import QuantizedBase
from .record import Trace, fake, record
from .runs import lora, train
from .serving import decode, prefill, serve
