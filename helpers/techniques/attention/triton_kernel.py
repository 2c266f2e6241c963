"""The tiled forward as one GPU kernel: what `forward` does in Python, a program for each row of tiles and each head.

Importing this file needs Triton; `triton_tiled` does it. Tiles and states are values of the language, so they lie in
registers and shared memory: what reaches the GPU's memory is what `tl.load` and `tl.store` name.
"""

# A language of its own: no types that mypy knows, and constants in capitals.
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def forward_kernel(
    q, k, v, output, log_sum_exp,  # contiguous, (heads, queries, DIM), those of k and v (kv_heads, keys, DIM)
    starts, columns,  # row r visits the tiles columns[starts[r]] to columns[starts[r + 1] - 1]
    queries, keys, head_dim, group, scale,
    CAUSAL: tl.constexpr, SIZE: tl.constexpr, SINKS: tl.constexpr,
    TILE_Q: tl.constexpr, TILE_K: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    index, dims = row * TILE_Q + tl.arange(0, TILE_Q), tl.arange(0, DIM)
    place = head * queries + index
    inside = (index < queries)[:, None] & (dims < head_dim)[None, :]
    q_tile = tl.load(q + place[:, None] * head_dim + dims[None, :], inside, 0.0)
    position = index + keys - queries
    maximum = tl.full([TILE_Q], float("-inf"), tl.float32)
    total = tl.zeros([TILE_Q], tl.float32)
    state = tl.zeros([TILE_Q, DIM], tl.float32)
    for visit in range(tl.load(starts + row), tl.load(starts + row + 1)):
        key = tl.load(columns + visit) * TILE_K + tl.arange(0, TILE_K)
        spots = ((head // group) * keys + key)[:, None] * head_dim + dims[None, :]
        there = (key < keys)[:, None] & (dims < head_dim)[None, :]
        scores = tl.dot(q_tile, tl.trans(tl.load(k + spots, there, 0.0)), input_precision="ieee") * scale
        seen = (key < keys)[None, :] & (position >= 0)[:, None] if CAUSAL else (key < keys)[None, :]
        if CAUSAL:
            near = key[None, :] > position[:, None] - SIZE
            seen = seen & (key[None, :] <= position[:, None]) & (near | (key < SINKS)[None, :])
        scores = tl.where(seen, scores, float("-inf"))
        larger = tl.maximum(maximum, tl.max(scores, 1))
        shift = tl.where(larger == float("-inf"), 0.0, larger)  # -inf minus -inf would be NaN
        weights, shrink = tl.exp(scores - shift[:, None]), tl.exp(maximum - shift)
        values = tl.load(v + spots, there, 0.0)
        state = state * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        total, maximum = total * shrink + tl.sum(weights, 1), larger
    total = tl.where(total == 0.0, 1.0, total)  # of a query that sees nothing: 0 and -inf
    result = (state / total[:, None]).to(output.dtype.element_ty)
    tl.store(output + place[:, None] * head_dim + dims[None, :], result, inside)
    tl.store(log_sum_exp + place, maximum + tl.log(total), index < queries)
