"""Right answers to lab 01, written otherwise than the worked ones: its checks must take them too."""

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
    for kind, out, inputs, _ in steps:
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
