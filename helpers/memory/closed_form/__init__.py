"""The closed form: how many bytes, of what, at which moment, from a model's shape and a setup. Integers, no torch.

    from helpers.memory.closed_form import budget
    budget.train(TrainSetup("llama-2-7b", optimizer="adamw-fused")).peak     # the largest of a step's moments
    budget.serve(ServeSetup("llama-3-8b", users=8)).held                    # weights and KV cache

`breakdown` holds the types that all three instruments answer in. `budget` is the door; `moments` and `sharded` write a
step down, from `activations` (what forward keeps) and `recompute` (what checkpointing keeps and runs again); `zero`,
`split` and `tensor_parallel` say what a rank holds and sends; `adapters` are the moments of LoRA, DoRA and QLoRA, from
one layer that `decoder` runs on a `tape` of `operators`, where autograd counts bytes; `weights` are a served model's,
`work` is what an operator asks for and `layer_work` a layer, `offload` the seconds of copies beside those of computing;
`serving` is a replica's forwards, `fsdp2` a step of FSDP2's and `megatron` a step of Megatron-LM's over tensor and
pipeline ranks; `other_shapes` are models that are no decoder of text, and embedding stores. Imports catalog.
"""

from .breakdown import BLOCK_BYTES, GIB, PARTS, Breakdown, Moment, Part, Phase, Point, format_bytes, rounded
