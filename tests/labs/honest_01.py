"""Honest answers to lab 01, written otherwise than the worked ones: each must get all points of its question."""

# ruff: noqa: F821  (they run where the lab's names are defined)


def move_seconds_by_tables(out_gib, back_gib, quoted_gb_per_s, quoted_as):
    """One formula, its parts looked up."""
    together = quoted_as == "reads and writes together"
    share = 0.5 if quoted_as == "both directions" else 1
    gib = out_gib + back_gib if together else max(out_gib, back_gib)
    return gib * 1.073741824 / (quoted_gb_per_s * share)


def chain_bytes_with_a_root_for_every_name(steps, nbytes, results):
    """Every name has a root, its own or that of what it views."""
    root, apart, fused, known = {name: name for name in nbytes}, 0, 0, set()
    for kind, out, inputs in steps:
        if kind == "view":
            root[out] = root[inputs[0]]
            continue
        for name in {*inputs, *([out] if kind == "in_place" else [])}:
            apart += nbytes[name]
            if root[name] not in known:
                fused += nbytes[root[name]]
                known.add(root[name])
        apart += nbytes[out]
        known.add(root[out])
    return [apart, fused + sum(nbytes[name] for name in results)]


def adapter_work_product_by_product(users, tokens, inputs, outputs, rank, merged, value_bytes):
    """A list of batched products, and the sum."""

    def product(batch, rows, columns, inner, shared):
        weights = columns * inner * (1 if shared else batch)
        return 2 * batch * rows * columns * inner, batch * rows * (inner + columns) + weights

    products = [product(users, tokens, outputs, inputs, not merged)]
    if not merged:
        products += [product(users, tokens, rank, inputs, False), product(users, tokens, outputs, rank, False)]
    added = 0 if merged else 3 * users * tokens * outputs
    return sum(flops for flops, _ in products), (sum(values for _, values in products) + added) * value_bytes


def decode_work_token_by_token(contexts, heads, kv_heads, head_dim, window, sinks, cache):
    """The sets of tokens that are seen; a list comes back."""
    flops = moved = 0
    for context in contexts:
        first = 0 if window is None else max(0, context - window)
        seen = len({*range(first, context), *range(min(sinks, context))})
        flops += 4 * heads * head_dim * seen
        moved += 4 * heads * head_dim + seen * kv_heads * (2 * head_dim + 4 if cache == "int8" else 4 * head_dim)
    return [flops, moved]


def add_and_norm_weight_first(x, residual, weight, eps):
    """The weight before the factor."""
    h = torch.add(x, residual)
    mean = h.norm(dim=-1, keepdim=True, dtype=torch.float32).pow(2) / h.shape[-1]
    return h, (h * weight).mul_(torch.rsqrt(mean + eps))


def add_and_norm_divides(x, residual, weight, eps):
    """Divides by the root, in place in a copy."""
    h = residual + x
    root = (torch.linalg.vector_norm(h, 2, -1, True, dtype=torch.float32) ** 2 / x.shape[1] + eps).sqrt()
    return h, torch.div(h, root, out=torch.empty_like(x)) * weight


def compute_bound_from_by_halving(inputs, outputs, weight_bytes, roof):
    """Asks, and halves."""

    def bound(tokens):
        moved = weight_bytes + 2 * tokens * (inputs + outputs)
        return 2 * tokens * inputs * outputs * roof.bytes_per_s > moved * roof.flops_per_s

    if not bound(2**80):
        return None
    low, high = 0, 2**80
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) else (middle, high)
    return high


def decode_tokens_per_s_by_seconds(shape, users, context, bytes_per_s):
    """Seconds a step first."""
    read = shape.parameters if shape.tied else shape.parameters - shape.hidden * shape.vocab
    return users / ((read * 2 + users * shape.kv_values(context) * 2) / bytes_per_s)


def move_seconds_in_numpy(out_gib, back_gib, quoted_gb_per_s, quoted_as):
    """Arrays of one number, and a print left over."""
    import numpy as np

    gib = np.array([out_gib, back_gib], dtype=float) * 2.0**30
    print("moving", gib)
    most = gib.sum() if quoted_as.startswith("reads") else gib.max()
    return np.float64(most / (quoted_gb_per_s * 1e9)) * (2 if quoted_as == "both directions" else 1)


def move_seconds_as_a_tensor(out_gib, back_gib, quoted_gb_per_s, quoted_as):
    """A tensor of one number comes back."""
    gib = torch.tensor([out_gib, back_gib], dtype=torch.float64)
    most = gib.sum() if quoted_as == "reads and writes together" else gib.max()
    share = {"both directions": 0.5}.get(quoted_as, 1.0)
    return most * 2**30 / (quoted_gb_per_s * share * 10**9)


def chain_bytes_in_numpy(steps, nbytes, results):
    """An array of two numbers, and dicts of another type."""
    from collections import OrderedDict

    import numpy as np

    below, made, moved = OrderedDict(), [], np.zeros(2, dtype=np.int64)
    for step in steps:
        names = list(dict.fromkeys(step.inputs))
        if step.kind == "view":
            below[step.out] = below.get(names[0], names[0])
            continue
        if step.kind == "in_place" and step.out not in names:
            names.append(step.out)
        moved[0] += sum(nbytes[name] for name in names) + nbytes[step.out]
        for name in (below.get(name, name) for name in names):
            moved[1] += 0 if name in made else nbytes[name]
            made.append(name)
        made.append(step.out)
    moved[1] += sum(nbytes[name] for name in results)
    return moved


def adapter_work_as_a_named_tuple(users, tokens, inputs, outputs, rank, merged, value_bytes):
    """A tuple with names, of NumPy's numbers."""
    from collections import namedtuple

    import numpy as np

    work = namedtuple("work", "flops bytes")
    rows = np.int64(users * tokens)
    if merged:
        return work(2 * rows * inputs * outputs, value_bytes * (rows * (inputs + outputs) + users * inputs * outputs))
    low = rank * (inputs + outputs)
    moved = inputs * outputs + users * low + rows * (2 * inputs + 2 * rank + 5 * outputs)
    return work(2 * rows * (inputs * outputs + low), moved * value_bytes)


def decode_work_yields(contexts, heads, kv_heads, head_dim, window, sinks, cache):
    """A generator, in torch's numbers."""
    lengths = torch.tensor(contexts)
    seen = (lengths if window is None else lengths.clamp(max=window + sinks)).sum()
    yield seen * 4 * heads * head_dim
    kv = {"bf16": 4 * head_dim, "int8": 2 * head_dim + 4}[cache]
    yield 4 * heads * head_dim * len(contexts) + kv * kv_heads * seen


def decode_work_empties_its_list(contexts, heads, kv_heads, head_dim, window, sinks, cache):
    """Takes each context out of the list that it was handed."""
    flops = moved = 0
    while contexts:
        context = contexts.pop()
        seen = context if window is None else min(context, window + sinks)
        flops += 4 * heads * head_dim * seen
        moved += 4 * heads * head_dim + seen * kv_heads * (2 * head_dim + 4 if cache == "int8" else 4 * head_dim)
    return flops, moved


def add_and_norm_as_a_list(x, residual, weight, eps):
    """Sums of squares by a product of a row with itself; a list comes back."""
    h = residual + x
    print(h.shape)
    squares = torch.linalg.vector_norm(h, ord=2, dim=1, dtype=torch.float32).square()
    factor = torch.rsqrt(squares / h.size(1) + eps).unsqueeze(1)
    y = torch.empty(h.shape, dtype=torch.bfloat16)
    torch.mul(h, factor, out=y)
    y *= weight
    return [h, y]


def compute_bound_from_by_fractions(inputs, outputs, weight_bytes, roof):
    """The exact crossing as a fraction; NumPy's number where it fits."""
    from fractions import Fraction

    gain = Fraction(2 * inputs * outputs, roof.flops_per_s) - Fraction(2 * (inputs + outputs), roof.bytes_per_s)
    return int(Fraction(weight_bytes, roof.bytes_per_s) / gain) + 1 if gain > 0 else None


def decode_tokens_per_s_in_numpy(shape, users, context, bytes_per_s):
    """NumPy's division, and a helper inside."""
    import numpy as np

    def values():
        return shape.parameters - (not shape.tied) * shape.vocab * shape.hidden + users * shape.kv_values(context)

    return np.divide(users * bytes_per_s, 2 * values())
