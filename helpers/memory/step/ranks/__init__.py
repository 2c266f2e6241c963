"""What ranks share of a step: ZeRO's stages, FSDP2, tensor parallel, pipelines, and Megatron-LM's recipe of them.

`zero` says what a rank holds and sends; `sharded` (ZeRO), `fsdp2`, `tensor_parts`, `stages` and
`pipelines` are the moments of one rank's step; `megatron` a step of Megatron-LM's.
"""
