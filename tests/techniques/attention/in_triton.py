"""Run by test_triton.py in a process of its own: Triton decides at its import whether it interprets.

`interpreted` draws cases for the kernel as Triton's interpreter runs it, and compares them with the tiled forward.
`compiled` makes machine code for a GPU that need not be here, and prints the bytes of shared memory that it asks for.
"""

import sys

import torch

from helpers.techniques import attention
from tests.techniques.attention.drawn import EXACT, Case, error


def interpreted():
    cases = [
        Case(attention.Causal(), 2, 1, 2, 40, 40, (16, 32), 0),
        Case(attention.Causal(), 1, 2, 1, 50, 20, (16, 16), 1),  # rows that see nothing
        Case(attention.Window(20, 3), 1, 1, 3, 70, 81, (32, 16), 2),
        Case(attention.Window(5), 1, 1, 1, 33, 33, (16, 16), 3),
        Case(attention.Full(), 1, 2, 2, 1, 50, (16, 16), 4),
    ]
    for case in cases:
        q, k, v = (tensor[..., :6] for tensor in case.tensors())  # values are as wide as keys, and 6 is no power of 2
        found = attention.triton_tiled(q, k, v, case.mask, case.tile)
        expected = attention.tiled(q.double(), k.double(), v.double(), case.mask, 7)
        for ours, right in zip(found, expected, strict=True):
            assert error(ours, right) < EXACT, case
        for dtype in (torch.bfloat16, torch.float16):
            narrow = [tensor.to(dtype) for tensor in (q, k, v)]
            output, sums = attention.triton_tiled(*narrow, case.mask, case.tile)
            right = attention.tiled(*(tensor.double() for tensor in narrow), case.mask, 7)
            assert output.dtype == dtype
            assert error(sums, right[1]) < EXACT
            assert error(output, right[0]) < 2 * torch.finfo(dtype).eps  # weights are rounded, too


def compiled():
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from helpers.techniques.attention.triton_kernel import forward_kernel

    names = forward_kernel.arg_names
    types = dict.fromkeys(["q", "k", "v", "output"], "*bf16") | {"log_sum_exp": "*fp32", "scale": "fp32"}
    types |= dict.fromkeys(["starts", "columns"], "*i32") | dict.fromkeys(
        ["queries", "keys", "head_dim", "group"], "i32"
    )
    constants = {"CAUSAL": True, "SIZE": 512, "SINKS": 4, "TILE_Q": 64, "TILE_K": 64, "DIM": 64}
    signature = {name: types.get(name, "constexpr") for name in names}
    divisible = [["tt.divisibility", 16]]
    attributes = {(names.index(name),): divisible for name in ("q", "k", "v", "output", "queries", "keys", "head_dim")}
    source = ASTSource(forward_kernel, signature, constexprs=constants, attrs=attributes)
    made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": 4})
    assert "cubin" in made.asm
    print(made.metadata.shared)


if __name__ == "__main__":
    {"interpreted": interpreted, "compiled": compiled}[sys.argv[1]]()
