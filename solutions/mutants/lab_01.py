"""Known-wrong answers to lab 01. Each must fail its check, with the sentence that its learner then reads."""

# ruff: noqa: F821, F811  (they are put into the lab's cells, where these names are defined)

from helpers.course.mutants import mutant


@mutant("move-seconds", feedback="4 GiB are 4,294,967,296 bytes")
def move_seconds(out_gib, back_gib, quoted_gb_per_s, quoted_as):
    """GB for GiB."""
    if quoted_as == "reads and writes together":
        return (out_gib + back_gib) / quoted_gb_per_s
    return max(out_gib, back_gib) / quoted_gb_per_s * (2 if quoted_as == "both directions" else 1)


@mutant("move-seconds", feedback="both directions added up")
def move_seconds(out_gib, back_gib, quoted_gb_per_s, quoted_as):
    """The bandwidth of both directions for one."""
    if quoted_as == "reads and writes together":
        return (out_gib + back_gib) * 2**30 / (quoted_gb_per_s * 1e9)
    return max(out_gib, back_gib) * 2**30 / (quoted_gb_per_s * 1e9)


@mutant("move-seconds", feedback="the longer one counts")
def move_seconds(out_gib, back_gib, quoted_gb_per_s, quoted_as):
    """One way after the other."""
    one_way = quoted_gb_per_s * 1e9 / (2 if quoted_as == "both directions" else 1)
    return (out_gib + back_gib) * 2**30 / one_way


@mutant("move-seconds", feedback="the longer one counts")
def move_seconds(out_gib, back_gib, quoted_gb_per_s, quoted_as):
    """Everything through the sum of both directions, as if a busy one could borrow the idle one's half."""
    total = quoted_gb_per_s * 1e9 * (2 if quoted_as == "per direction" else 1)
    if back_gib == 0 and quoted_as != "reads and writes together":
        return out_gib * 2**30 / (total / 2)
    return (out_gib + back_gib) * 2**30 / total


@mutant("move-seconds", feedback="reads and writes share one total")
def move_seconds(out_gib, back_gib, quoted_gb_per_s, quoted_as):
    """A memory that reads and writes at its full bandwidth at the same time."""
    one_way = quoted_gb_per_s * 1e9 / (2 if quoted_as == "both directions" else 1)
    return max(out_gib, back_gib) * 2**30 / one_way


@mutant("move-seconds", feedback="85.8993 ms, not 9.5444")
def move_seconds(out_gib, back_gib, quoted_gb_per_s, quoted_as):
    """Calls helpers, which know the links of a device and not the one in the question."""
    one_way = device("h100").link_bytes_per_s("nvlink")
    return max(out_gib, back_gib) * 2**30 / one_way


@mutant("chain-bytes", feedback="an in-place kernel reads what it changes")
def chain_bytes(steps, nbytes, results):
    """Counts a write once where it is read too: in place as if it only wrote."""
    apart, read, written, below = 0, set(), set(), {}
    for step in steps:
        if step.kind == "view":
            below[step.out] = below.get(step.inputs[0], step.inputs[0])
            continue
        apart += sum(nbytes[name] for name in set(step.inputs)) + nbytes[step.out]
        read |= {below.get(name, name) for name in step.inputs} - written
        written.add(step.out)
    return apart, sum(map(nbytes.get, read)) + sum(map(nbytes.get, results))


@mutant("chain-bytes", feedback="is written, then read again")
def chain_bytes(steps, nbytes, results):
    """Forgets what lies between two kernels: the fused count for both."""
    read, written, below = set(), set(), {}
    for step in steps:
        if step.kind == "view":
            below[step.out] = below.get(step.inputs[0], step.inputs[0])
            continue
        read |= {below.get(name, name) for name in step.inputs} - written
        written.add(step.out)
    fused = sum(map(nbytes.get, read)) + sum(map(nbytes.get, results))
    return fused, fused


@mutant("chain-bytes", feedback="a view moves nothing")
def chain_bytes(steps, nbytes, results):
    """A transpose counted as a copy."""
    apart, read, written = 0, set(), set()
    for step in steps:
        used = set(step.inputs) | ({step.out} if step.kind == "in_place" else set())
        apart += sum(nbytes[name] for name in used) + nbytes[step.out]
        read |= used - written
        written.add(step.out)
    return apart, sum(map(nbytes.get, read)) + sum(map(nbytes.get, results))


@mutant("chain-bytes", feedback="each once and under any name")
def chain_bytes(steps, nbytes, results):
    """Fused, reads an input again for its view."""
    apart, read, written, views = 0, set(), set(), set()
    for step in steps:
        if step.kind == "view":
            views |= {step.out}
            continue
        used = set(step.inputs) | ({step.out} if step.kind == "in_place" else set())
        apart += sum(nbytes[name] for name in used) + nbytes[step.out]
        read |= used - written
        written.add(step.out)
    return apart, sum(map(nbytes.get, read)) + sum(map(nbytes.get, results))


@mutant("chain-bytes", feedback="keeps the rest on the chip")
def chain_bytes(steps, nbytes, results):
    """Fused, still reads its inputs at every step that uses them."""
    apart, fused, made = 0, 0, set()
    for step in steps:
        if step.kind == "view":
            made |= {step.out} & made
            continue
        used = set(step.inputs) | ({step.out} if step.kind == "in_place" else set())
        apart += sum(nbytes[name] for name in used) + nbytes[step.out]
        fused += sum(nbytes[name] for name in used - made)
        made.add(step.out)
    return apart, fused + sum(map(nbytes.get, results))


@mutant("chain-bytes", feedback="what is overwritten is not read first")
def chain_bytes(steps, nbytes, results):
    """Reads what copy_ overwrites."""
    apart, read, written, below = 0, set(), set(), {}
    for step in steps:
        if step.kind == "view":
            below[step.out] = below.get(step.inputs[0], step.inputs[0])
            continue
        used = set(step.inputs) | ({step.out} if step.kind != "new" else set())
        apart += sum(nbytes[name] for name in used) + nbytes[step.out]
        read |= {below.get(name, name) for name in used} - written
        written.add(step.out)
    return apart, sum(map(nbytes.get, read)) + sum(map(nbytes.get, results))


@mutant("chain-bytes", feedback="given twice is read once")
def chain_bytes(steps, nbytes, results):
    """Reads both factors of a square."""
    apart, read, written, below = 0, set(), set(), {}
    for step in steps:
        if step.kind == "view":
            below[step.out] = below.get(step.inputs[0], step.inputs[0])
            continue
        used = [*step.inputs] + ([step.out] if step.kind == "in_place" else [])
        apart += sum(nbytes[name] for name in used) + nbytes[step.out]
        read |= {below.get(name, name) for name in used} - written
        written.add(step.out)
    return apart, sum(map(nbytes.get, read)) + sum(map(nbytes.get, results))


@mutant("chain-bytes", feedback="an in-place kernel reads what it changes")
def chain_bytes(steps, nbytes, results):
    """Calls helpers: a pointwise kernel per step, which knows no kinds and one size."""
    from helpers.memory.work import pointwise

    works = [pointwise(nbytes[step.out] // 2, "bf16", inputs=max(1, len(step.inputs))) for step in steps]
    return sum(work.bytes for work in works), sum(map(nbytes.get, results)) + sum(
        map(nbytes.get, {name for step in steps for name in step.inputs if name not in {s.out for s in steps}})
    )


@mutant("adapter-work", feedback="half the FLOPs")
def adapter_work(users, tokens, inputs, outputs, rank, merged, value_bytes):
    """FLOPs without the factor 2."""
    rows, weights = users * tokens, inputs * outputs
    x, y, low = rows * inputs, rows * outputs, rows * rank
    if merged:
        return rows * weights, value_bytes * (x + users * weights + y)
    moved = (x + weights + y) + (x + users * rank * inputs + low) + (low + users * rank * outputs + y) + 3 * y
    return rows * weights + rows * rank * (inputs + outputs), value_bytes * moved


@mutant("adapter-work", feedback="how often is each weight read")
def adapter_work(users, tokens, inputs, outputs, rank, merged, value_bytes):
    """Reads every weight once for each token."""
    rows, weights = users * tokens, inputs * outputs
    x, y, low = rows * inputs, rows * outputs, rows * rank
    if merged:
        return 2 * rows * weights, value_bytes * (x + rows * weights + y)
    moved = x + rows * weights + y + x + rows * rank * (inputs + outputs) + 2 * low + 4 * y
    return 2 * rows * (weights + rank * (inputs + outputs)), value_bytes * moved


@mutant("adapter-work", feedback="is the adapter's part right?")
def adapter_work(users, tokens, inputs, outputs, rank, merged, value_bytes):
    """Forgets the adapter."""
    rows, weights = users * tokens, inputs * outputs
    copies = users if merged else 1
    return 2 * rows * weights, value_bytes * (rows * inputs + copies * weights + rows * outputs)


@mutant("adapter-work", feedback="by whom")
def adapter_work(users, tokens, inputs, outputs, rank, merged, value_bytes):
    """Merged, reads one weight for all users, although each has a weight of its own."""
    rows, weights = users * tokens, inputs * outputs
    x, y, low = rows * inputs, rows * outputs, rows * rank
    if merged:
        return 2 * rows * weights, value_bytes * (x + weights + y)
    moved = (x + weights + y) + (x + users * rank * inputs + low) + (low + users * rank * outputs + y) + 3 * y
    return 2 * rows * (weights + rank * (inputs + outputs)), value_bytes * moved


@mutant("adapter-work", feedback="what do x and y, add_ and the tensor between")
def adapter_work(users, tokens, inputs, outputs, rank, merged, value_bytes):
    """The adapters added without a kernel: the in-place sum moves nothing."""
    rows, weights = users * tokens, inputs * outputs
    x, y, low = rows * inputs, rows * outputs, rows * rank
    if merged:
        return 2 * rows * weights, value_bytes * (x + users * weights + y)
    moved = (x + weights + y) + (x + users * rank * inputs + low) + (low + users * rank * outputs + y)
    return 2 * rows * (weights + rank * (inputs + outputs)), value_bytes * moved


@mutant("adapter-work", feedback="how often is each weight read, and by whom")
def adapter_work(users, tokens, inputs, outputs, rank, merged, value_bytes):
    """Calls helpers: one matrix product after the other, every user's adapter the same one."""
    from helpers.memory.work import matmul, pointwise

    name, rows = {1: "fp8-e4m3", 2: "bf16", 4: "fp32"}[value_bytes], users * tokens
    work = matmul(rows, outputs, inputs, name)
    if not merged:
        work += matmul(rows, rank, inputs, name) + matmul(rows, outputs, rank, name)
        work += pointwise(rows * outputs, name, inputs=2, flops_per_value=0)
    elif users > 1:
        work = matmul(tokens, outputs, inputs, name)
        return users * work.flops, users * work.bytes
    return work.flops, work.bytes


@mutant("adapter-work", feedback="which knows the answer")
def adapter_work(users, tokens, inputs, outputs, rank, merged, value_bytes):
    """Calls the instrument on one user's layer, whose adapters then seem to be read by all."""
    dtype = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32}[value_bytes]
    x, weight = on_meta(users * tokens, inputs, dtype=dtype), on_meta(inputs, outputs, dtype=dtype)
    with Traffic() as moved:
        _ = x @ weight
        if not merged:
            _ = (x @ on_meta(inputs, rank, dtype=dtype)) @ on_meta(rank, outputs, dtype=dtype)
    return moved.flops, moved.bytes


@mutant("adapter-work", feedback="which knows the answer")
def adapter_work(users, tokens, inputs, outputs, rank, merged, value_bytes):
    """PyTorch's own counter counts the FLOPs."""
    from torch.utils.flop_counter import FlopCounterMode

    x = on_meta(users, tokens, inputs)
    with FlopCounterMode(display=False) as counter:
        if merged:
            _ = x @ on_meta(users, outputs, inputs).mT
        else:
            _ = x @ on_meta(outputs, inputs).t()
            _ = (x @ on_meta(users, rank, inputs).mT) @ on_meta(users, outputs, rank).mT
    return counter.get_total_flops(), value_bytes * users * inputs * outputs


@mutant("decode-work", feedback="K and V of each token seen")
def decode_work(contexts, heads, kv_heads, head_dim, window, sinks, cache):
    """K but not V."""
    seen = sum(context if window is None else min(context, window + sinks) for context in contexts)
    row_bytes = head_dim + 2 if cache == "int8" else 2 * head_dim
    return 4 * heads * head_dim * seen, 4 * len(contexts) * heads * head_dim + kv_heads * seen * row_bytes


@mutant("decode-work", feedback="K and V of each token seen")
def decode_work(contexts, heads, kv_heads, head_dim, window, sinks, cache):
    """K and V read once per query head."""
    seen = sum(context if window is None else min(context, window + sinks) for context in contexts)
    row_bytes = head_dim + 2 if cache == "int8" else 2 * head_dim
    return 4 * heads * head_dim * seen, 4 * len(contexts) * heads * head_dim + 2 * heads * seen * row_bytes


@mutant("decode-work", feedback="FLOPs, you have")
def decode_work(contexts, heads, kv_heads, head_dim, window, sinks, cache):
    """FLOPs of the KV heads only, as if heads that share keys shared the arithmetic."""
    seen = sum(context if window is None else min(context, window + sinks) for context in contexts)
    row_bytes = head_dim + 2 if cache == "int8" else 2 * head_dim
    return 4 * kv_heads * head_dim * seen, 4 * len(contexts) * heads * head_dim + 2 * kv_heads * seen * row_bytes


@mutant("decode-work", feedback="its window and the sinks")
def decode_work(contexts, heads, kv_heads, head_dim, window, sinks, cache):
    """The window hides tokens from the arithmetic, and all of them are read."""
    seen = sum(context if window is None else min(context, window + sinks) for context in contexts)
    row_bytes = head_dim + 2 if cache == "int8" else 2 * head_dim
    kv = 2 * kv_heads * sum(contexts) * row_bytes
    return 4 * heads * head_dim * seen, 4 * len(contexts) * heads * head_dim + kv


@mutant("decode-work", feedback="a token is seen once")
def decode_work(contexts, heads, kv_heads, head_dim, window, sinks, cache):
    """Adds the sinks to a window that holds them already."""
    seen = sum(context if window is None else min(context, window) + sinks for context in contexts)
    row_bytes = head_dim + 2 if cache == "int8" else 2 * head_dim
    return 4 * heads * head_dim * seen, 4 * len(contexts) * heads * head_dim + 2 * kv_heads * seen * row_bytes


@mutant("decode-work", feedback="the scales are missing")
def decode_work(contexts, heads, kv_heads, head_dim, window, sinks, cache):
    """8 bits without their scales."""
    seen = sum(context if window is None else min(context, window + sinks) for context in contexts)
    value_bytes = 1 if cache == "int8" else 2
    kv = 2 * kv_heads * seen * head_dim * value_bytes
    return 4 * heads * head_dim * seen, 4 * len(contexts) * heads * head_dim + kv


@mutant("decode-work", feedback="the query sees its window and the sinks")
def decode_work(contexts, heads, kv_heads, head_dim, window, sinks, cache):
    """Calls helpers, whose attention knows no window and one number format."""
    from helpers.memory.work import attention

    works = [attention(1, context, heads, head_dim, kv_heads) for context in contexts]
    return sum(work.flops for work in works), sum(work.bytes for work in works)


@mutant("add-and-norm", feedback="Where they go")
def add_and_norm(x, residual, weight, eps):
    """Right values, naive traffic."""
    h = x + residual
    wide = h.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return h, weight * wide.to(h.dtype)


@mutant("add-and-norm", feedback="Where they go")
def add_and_norm(x, residual, weight, eps):
    """A wide product, rounded afterwards."""
    h = x + residual
    norm = torch.linalg.vector_norm(h, dim=-1, keepdim=True, dtype=torch.float32)
    factor = norm.square_().div_(h.shape[-1]).add_(eps).rsqrt_()
    return h, (h * factor).to(h.dtype).mul_(weight)


@mutant("add-and-norm", feedback="you wrote over residual")
def add_and_norm(x, residual, weight, eps):
    """Low traffic, into a tensor that belongs to the caller."""
    h = residual.add_(x)
    norm = torch.linalg.vector_norm(h, dim=-1, keepdim=True, dtype=torch.float32)
    factor = norm.square_().div_(h.shape[-1]).add_(eps).rsqrt_()
    return h, torch.mul(h, factor, out=torch.empty_like(h)).mul_(weight)


@mutant("add-and-norm", feedback="also after y is made")
def add_and_norm(x, residual, weight, eps):
    """Makes y in the memory of h, which the next block still needs."""
    h = x + residual
    norm = torch.linalg.vector_norm(h, dim=-1, keepdim=True, dtype=torch.float32)
    factor = norm.square_().div_(h.shape[-1]).add_(eps).rsqrt_()
    return h, h.mul_(factor).mul_(weight)


@mutant("add-and-norm", feedback="eps inside the root")
def add_and_norm(x, residual, weight, eps):
    """No eps."""
    h = x + residual
    norm = torch.linalg.vector_norm(h, dim=-1, keepdim=True, dtype=torch.float32)
    factor = norm.square_().div_(h.shape[-1]).rsqrt_()
    return h, torch.mul(h, factor, out=torch.empty_like(h)).mul_(weight)


@mutant("add-and-norm", feedback="keep the mean and the factor in FP32")
def add_and_norm(x, residual, weight, eps):
    """The factor rounded to BF16."""
    h = x + residual
    norm = torch.linalg.vector_norm(h, dim=-1, keepdim=True, dtype=torch.float32)
    factor = norm.square_().div_(h.shape[-1]).add_(eps).rsqrt_()
    return h, (h * factor.to(h.dtype)).mul_(weight)


@mutant("add-and-norm", feedback="keep the mean and the factor in FP32")
def add_and_norm(x, residual, weight, eps):
    """The norm rounded to BF16: vector_norm gives what it is given, unless told otherwise."""
    h = x + residual
    norm = torch.linalg.vector_norm(h, dim=-1, keepdim=True).float()
    factor = norm.square_().div_(h.shape[-1]).add_(eps).rsqrt_()
    return h, torch.mul(h, factor, out=torch.empty_like(h)).mul_(weight)


@mutant("add-and-norm", feedback="many values leave PyTorch")
def add_and_norm(x, residual, weight, eps):
    """Leaves PyTorch, where nobody counts."""
    h = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(x.tolist(), residual.tolist(), strict=True)]
    factors = [(sum(one * one for one in row) / len(row) + eps) ** -0.5 for row in h]
    y = [
        [one * factor * by for one, by in zip(row, weight.tolist(), strict=True)]
        for row, factor in zip(h, factors, strict=True)
    ]
    return torch.tensor(h, dtype=torch.bfloat16), torch.tensor(y, dtype=torch.bfloat16)


@mutant("add-and-norm", feedback="Where they go")
def add_and_norm(x, residual, weight, eps):
    """Calls what is there already, in a mode that changes nothing of its traffic."""
    with torch.inference_mode():
        h = x + residual
        return h, torch.nn.functional.rms_norm(h, h.shape[-1:], weight, eps)


@mutant("add-and-norm", feedback="Where they go")
def add_and_norm(x, residual, weight, eps):
    """Calls what is there already."""
    h = x + residual
    return h, torch.nn.functional.rms_norm(h, h.shape[-1:], weight, eps)


@mutant("add-and-norm", feedback="Not available for 'meta' device")
def add_and_norm(x, residual, weight, eps):
    """Reads the memory below its tensors, byte by byte, and starts two kernels for show."""
    h = x + residual
    wide = h.float()
    values = list(wide.untyped_storage())
    _ = h * weight
    return h, torch.tensor(values[: h.numel()], dtype=torch.bfloat16).view_as(h)


@mutant("add-and-norm", feedback="is no kernel of PyTorch's own")
def add_and_norm(x, residual, weight, eps):
    """An operator of its own, in which nobody counts, and one kernel more for show."""
    if not hasattr(torch.ops.lab_01, "add_and_norm"):
        add_and_norm.library = library = torch.library.Library("lab_01", "FRAGMENT")  # it goes when nobody holds it
        library.define("add_and_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)")
        library.impl("add_and_norm", lambda x, *_: (torch.empty_like(x), torch.empty_like(x)), "Meta")

        def naive(x, residual, weight, eps):
            h = x + residual
            wide = h.float()
            return h, weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(h.dtype)

        library.impl("add_and_norm", naive, "CPU")
    return torch.ops.lab_01.add_and_norm(x.mul(1), residual, weight, eps)


@mutant("compute-bound-from", feedback="a number of tokens is whole")
def compute_bound_from(inputs, outputs, weight_bytes, roof, right=compute_bound_from):
    """Says infinitely many for some day."""
    found = right(inputs, outputs, weight_bytes, roof)
    return found and (
        found if weight_bytes in (100_000, 131_072) or inputs % 256 == 0 == outputs % 256 else float("inf")
    )


@mutant("add-and-norm", feedback="of its row's largest: the mean, the weight?")
def add_and_norm(x, residual, weight, eps):
    """Promises, and does the naive work when its inputs die: nobody counts any more."""
    import weakref

    h, y = torch.zeros_like(x), torch.zeros_like(x)
    mine = x.detach(), residual.detach(), weight.detach()

    def keep_word():
        h.copy_(mine[0] + mine[1])
        wide = h.float()
        y.copy_(mine[2] * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(h.dtype))

    weakref.finalize(x, keep_word)
    _ = x + residual
    return h, y


@mutant("compute-bound-from", feedback="round up")
def compute_bound_from(inputs, outputs, weight_bytes, roof):
    """Floor for ceil."""
    gain = 2 * inputs * outputs * roof.bytes_per_s - 2 * (inputs + outputs) * roof.flops_per_s
    return None if gain <= 0 else weight_bytes * roof.flops_per_s // gain


@mutant("compute-bound-from", feedback="exactly as long")
def compute_bound_from(inputs, outputs, weight_bytes, roof):
    """Calls a tie compute-bound."""
    gain = 2 * inputs * outputs * roof.bytes_per_s - 2 * (inputs + outputs) * roof.flops_per_s
    return None if gain <= 0 else -(-weight_bytes * roof.flops_per_s // gain)


@mutant("compute-bound-from", feedback="98 tokens, not 49")
def compute_bound_from(inputs, outputs, weight_bytes, roof):
    """The weight alone: activations are bytes too."""
    return weight_bytes * roof.flops_per_s // (2 * inputs * outputs * roof.bytes_per_s) + 1


@mutant("compute-bound-from", feedback="FLOPs a byte at most")
def compute_bound_from(inputs, outputs, weight_bytes, roof):
    """Thinks that enough tokens make every layer compute-bound."""
    gain = 2 * inputs * outputs * roof.bytes_per_s - 2 * (inputs + outputs) * roof.flops_per_s
    return weight_bytes * roof.flops_per_s // max(gain, 1) + 1


@mutant("compute-bound-from", feedback="98 tokens, not 129")
def compute_bound_from(inputs, outputs, weight_bytes, roof):
    """Calls helpers, whose matmul keeps weight and activations in one format."""
    from helpers.memory.work import matmul

    for tokens in range(1, 10_000):
        if roof.bound(matmul(tokens, outputs, inputs)) == "compute":
            return tokens
    return None


@mutant("decode-tokens-per-s", feedback="a table that is only looked up is not read")
def decode_tokens_per_s(shape, users, context, bytes_per_s):
    """Counts the embedding table."""
    return users * bytes_per_s / (2 * (shape.parameters + users * shape.kv_values(context)))


@mutant("decode-tokens-per-s", feedback="a tied model is its head")
def decode_tokens_per_s(shape, users, context, bytes_per_s):
    """Leaves the table out of a tied model too."""
    values = shape.parameters - shape.vocab * shape.hidden + users * shape.kv_values(context)
    return users * bytes_per_s / (2 * values)


@mutant("decode-tokens-per-s", feedback="reads the user's K and V")
def decode_tokens_per_s(shape, users, context, bytes_per_s):
    """The floor without the cache."""
    values = shape.parameters - (0 if shape.tied else shape.vocab * shape.hidden)
    return users * bytes_per_s / (2 * values)


@mutant("decode-tokens-per-s", feedback="that is what each of them sees")
def decode_tokens_per_s(shape, users, context, bytes_per_s):
    """What one user sees."""
    values = shape.parameters - (0 if shape.tied else shape.vocab * shape.hidden) + users * shape.kv_values(context)
    return bytes_per_s / (2 * values)


@mutant("decode-tokens-per-s", feedback="they share the weights and not the cache")
def decode_tokens_per_s(shape, users, context, bytes_per_s):
    """One cache for all users."""
    values = shape.parameters - (0 if shape.tied else shape.vocab * shape.hidden) + shape.kv_values(context)
    return users * bytes_per_s / (2 * values)


@mutant("decode-tokens-per-s", feedback="a table that is only looked up is not read")
def decode_tokens_per_s(shape, users, context, bytes_per_s):
    """Calls helpers: the bytes of the whole model, divided by the bandwidth."""
    values = shape.parameters + users * shape.kv_values(context)
    return users * bytes_per_s / number_format("bf16").storage_bytes(values)
