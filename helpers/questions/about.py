"""What controls mean, by parameter: a sentence or two for who does not know the word."""

from __future__ import annotations

ABOUT = {
    "model": "A model of the catalogue, or of the hub by its name. Of another one, its config.json or its GGUF file.",
    "config": "The file that lies beside a model's weights and says how large each part is.",
    "gpu": "A card by its name, or any card by its memory, as 12GiB.",
    "users": "Sequences that are held at the same time.",
    "context": "Tokens of prompt and answer together, which each user holds in the KV cache.",
    "sequence": "Tokens in one training example.",
    "reserve": "Memory of the card that PyTorch does not count: the CUDA context, NCCL's buffers. By card, it is what "
    "such a card was seen to take.",
    "micro_batch": "Sequences in one forward and backward pass. Activations grow with them, weights do not.",
    "micro_batches": "Passes whose gradients add up before the optimizer steps: a larger batch in the same memory.",
    "checkpointing": "What a layer keeps of its forward pass. What it does not keep is computed again in the backward.",
    "attention": "sdpa is PyTorch's fused kernel, which never writes the matrix of scores; eager is the formula, "
    "which does.",
    "precision": "The formats of weights, products and gradients. autocast-bf16 keeps FP32 weights and multiplies in "
    "BF16; bf16 keeps everything in 16 bits.",
    "optimizer": "What turns gradients into updates, and what it keeps for each weight: AdamW two values of 4 bytes, "
    "its 8-bit form two of 1 byte, SGD none; galore and apollo keep them for a smaller matrix.",
    "zero": "What the ranks divide among them: 1 the optimizer's states, 2 the gradients too, 3 the weights too.",
    "ranks": "GPUs that each take a part of the batch.",
    "weights": "The format that the weights are stored in.",
    "kv": "The format of the keys and values in the cache.",
    "cache": "The format of the keys and values in the cache, or which tokens it forgets.",
    "tensor_parallel": "GPUs that share each layer: every one holds a part of its weights and of its heads.",
    "method": "full trains every weight. LoRA and DoRA train small matrices beside frozen weights; QLoRA and QDoRA "
    "keep the frozen ones in 4 bits.",
    "rank": "The short side of an adapter's matrices.",
    "targets": "The linear layers that get an adapter.",
    "base": "The format of the frozen weights, where they are quantized.",
    "skipped": "Linear layers that stay in 16 bits.",
    "offload_optimizer": "Where the optimizer's states live: on the card, in the host's memory, or on its disk.",
    "offload_parameters": "Where the weights live: on the card, in the host's memory, or on its disk.",
}
