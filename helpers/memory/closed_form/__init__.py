"""The closed form: how many bytes, of what, at which moment, from a model's shape and a setup. Integers, no torch.

    from helpers.memory.closed_form import budget
    budget.train(TrainSetup("llama-2-7b", optimizer="adamw-fused")).peak     # the largest of a step's moments
    budget.serve(ServeSetup("llama-3-8b", users=8)).held                    # weights and KV cache

`breakdown` holds the types that all three instruments answer in, and `budget` is the door.

A training step is one algorithm. On a `tape`, where autograd counts bytes, `operators` are the kernels, `linears`,
`decoder`, `families` and `experts` the models, written as torch runs them, and `checkpoints` what is run again.
`layer_run` runs each kind of layer once; `chain` adds the runs up in their order, and `step` reads its moments off.
Others say what lies beside it: `in_backward`, `sharded` (ZeRO), `fsdp2`, `tensor_parts`, `fsdp2_tensor`, `stages` and
`interleaved` (pipelines). `updates` is what optimizers make. `activations` names what a dense layer keeps, row by row,
for people; `recompute` counts FLOPs.

`zero`, `split` and `tensor_parallel` say what a rank holds and sends; `frozen` and `weights` what a base and a served
model take; `serving` is a replica's forwards, `megatron` a step of Megatron-LM's; `work` is what an operator asks for
and `layer_work` a layer; `offload` the seconds of copies beside those of computing; `other_shapes` are models that are
no decoder of text, and embedding stores. Imports catalog.
"""

from .breakdown import BLOCK_BYTES, GIB, PARTS, Breakdown, Moment, Part, Phase, Point, format_bytes, rounded
