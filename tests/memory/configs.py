"""Small models that train in a second, as config dicts: families that the catalogue has no small model of."""

from helpers.catalog import TrainSetup, model

QWEN2 = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 3000,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
}
OPT = {
    "model_type": "opt",
    "activation_function": "relu",
    "hidden_size": 256,
    "ffn_dim": 1024,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 3000,
    "max_position_embeddings": 512,
    "word_embed_proj_dim": 256,
    "do_layer_norm_before": True,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 96,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 301,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
GEMMA2 = {
    "model_type": "gemma2",
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "vocab_size": 1000,
    "sliding_window": 100,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "sliding_window": 300,
}
SMALL = {
    "tiny-llama": "tiny-llama",
    "tiny-gpt2": "tiny-gpt2",
    "tiny-qwen3": "tiny-qwen3",
    "qwen2": QWEN2,
    "opt": OPT,
    "gemma2": GEMMA2,
    "mistral": MISTRAL,
}


def variant(name, **changes):
    """The shape of a catalogue model with some keys of its config changed."""
    return model({**model(name).config, **changes})


def llama_7b(**choices):
    """The run that the field quotes: one sequence of 2048 tokens, SDPA, fused AdamW, pure BF16."""
    return TrainSetup("llama-2-7b", **{"precision": "bf16", "optimizer": "adamw-fused", **choices})
