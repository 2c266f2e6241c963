"""GGUF files laid out byte by byte from the specification, docs/gguf.md in ggml, for the tests that read them."""

import struct
from itertools import accumulate
from math import prod

NUMBER = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "q4_k": 12, "q5_k": 13, "q6_k": 14, "bf16": 30, "mxfp4": 39}


def text(words):
    return struct.pack("<Q", len(words.encode())) + words.encode()


def value(of):
    """The type's number and the value: uint32, float32, bool, text, or an array of one of these."""
    if isinstance(of, bool):
        return struct.pack("<I?", 7, of)
    if isinstance(of, int):
        return struct.pack("<II", 4, of)
    if isinstance(of, float):
        return struct.pack("<If", 6, of)
    if isinstance(of, str):
        return struct.pack("<I", 8) + text(of)
    items = [value(one) for one in of]
    kind = items[0][:4] if items else struct.pack("<I", 4)
    return struct.pack("<I", 9) + kind + struct.pack("<Q", len(items)) + b"".join(one[4:] for one in items)


def gguf(metadata, tensors, version=3):
    """A header. `tensors` are (name, shape as PyTorch has it, type by name or by number)."""
    out = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    out += [text(key) + value(one) for key, one in metadata.items()]
    offsets = accumulate((prod(shape) for _, shape, _ in tensors), initial=0)
    for (name, shape, kind), offset in zip(tensors, offsets, strict=False):
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        out.append(text(name) + sizes + struct.pack("<IQ", NUMBER.get(kind, kind), 32 * offset))
    return b"".join(out)


def llama(layers=2, hidden=256, heads=8, kv_heads=2, ffn=512, vocab=320, tokens=0, family="llama", **more):
    """The metadata of a small Llama-like model."""
    return {
        "general.architecture": family,
        f"{family}.block_count": layers,
        f"{family}.context_length": 8192,
        f"{family}.embedding_length": hidden,
        f"{family}.feed_forward_length": ffn,
        f"{family}.attention.head_count": heads,
        f"{family}.attention.head_count_kv": kv_heads,
        **{f"{family}.{key}": one for key, one in more.items()},
        "tokenizer.ggml.tokens": [f"token{number}" for number in range(tokens)],
        "tokenizer.chat_template": "{{ messages }}",
    }


def llama_tensors(layers=2, hidden=256, kv=64, ffn=512, vocab=320, kinds=lambda name: "q4_k"):
    """Its tensors; `kinds` gives a type by name, norms are in FP32."""
    inside = {
        "attn_q": (hidden, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, hidden),
        "ffn_gate": (ffn, hidden),
        "ffn_up": (ffn, hidden),
        "ffn_down": (hidden, ffn),
    }
    out = [(name, (vocab, hidden), kinds(name)) for name in ("token_embd.weight", "output.weight")]
    out.append(("output_norm.weight", (hidden,), "f32"))
    for layer in range(layers):
        names = {f"blk.{layer}.{name}.weight": shape for name, shape in inside.items()}
        out += [(name, shape, kinds(name)) for name, shape in names.items()]
        out += [(f"blk.{layer}.{norm}.weight", (hidden,), "f32") for norm in ("attn_norm", "ffn_norm")]
    return out
