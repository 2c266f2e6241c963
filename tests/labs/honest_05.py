"""Honest answers to lab 05, written otherwise than the worked ones: each must get all points of its question."""

# ruff: noqa: F821  (they run where the lab's names are defined)

from __future__ import annotations

import math


def quantize_padded_with_zeros(weight, bits, group):
    """Vectorised in FP64, over padding that is let go of."""
    rows, columns = weight.shape
    parts = torch.nn.functional.pad(weight.double(), (0, -columns % group)).reshape(rows, -1, group)
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    scale = ((high - low) / (2**bits - 1)).to(torch.float16)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.round(-low / scale.double())
    codes = torch.round(parts / scale[..., None].double() + zero[..., None]).clamp(0, 2**bits - 1)
    return codes.to(torch.uint8).reshape(rows, -1)[:, :columns].contiguous(), scale, zero.to(torch.uint8)


def quantize_value_by_value(weight, bits, group):
    """Loops over Python numbers."""
    top, codes, scales, zeros = 2**bits - 1, [], [], []
    for row in weight.tolist():
        parts = [row[at : at + group] for at in range(0, len(row), group)]
        low, high = [min(0, *part) for part in parts], [max(0, *part) for part in parts]
        kept = [torch.tensor((b - a) / top, dtype=torch.float16).item() or 1.0 for a, b in zip(low, high, strict=True)]
        zeros.append([round(-a / scale) for a, scale in zip(low, kept, strict=True)])
        scales.append(kept)
        codes.append(
            [min(top, max(0, round(value / kept[i // group]) + zeros[-1][i // group])) for i, value in enumerate(row)]
        )
    kinds = (torch.uint8, torch.float16, torch.uint8)
    return tuple(torch.tensor(one, dtype=kind) for one, kind in zip((codes, scales, zeros), kinds, strict=True))


def pack3_as_one_number(codes):
    flat = codes.reshape(-1).tolist()
    number = 0
    for code in flat:
        number = number << 3 | code + 4
    size = -(-3 * len(flat) // 8)
    return torch.tensor(list((number << 8 * size - 3 * len(flat)).to_bytes(size, "big")), dtype=torch.uint8)


def pack3_by_eights(codes):
    """Eight codes in the 24 bits of an int32."""
    flat = codes.reshape(-1).int() + 4
    count = len(flat)
    eights = torch.nn.functional.pad(flat, (0, -count % 8)).reshape(-1, 8)
    words = sum(eights[:, i] << 21 - 3 * i for i in range(8))
    whole = torch.stack([words >> 16, words >> 8 & 255, words & 255], 1).to(torch.uint8).reshape(-1)
    return whole[: -(-3 * count // 8)].clone()


def unpack3_by_eights(packed, shape):
    count = math.prod(shape)
    thirds = torch.nn.functional.pad(packed.int(), (0, -len(packed) % 3)).reshape(-1, 3)
    words = thirds[:, 0] << 16 | thirds[:, 1] << 8 | thirds[:, 2]
    codes = torch.stack([words >> 21 - 3 * i & 7 for i in range(8)], 1).reshape(-1)[:count]
    return (codes - 4).to(torch.int8).reshape(shape)


def unpack3_bit_by_bit(packed, shape):
    bits = "".join(f"{byte:08b}" for byte in packed.tolist())
    codes = [int(bits[3 * i : 3 * i + 3], 2) - 4 for i in range(math.prod(shape))]
    return torch.tensor(codes, dtype=torch.int8).reshape(shape)


def store4_level_by_level(weight, levels, block):
    """Keeps the best of the levels so far."""
    flat = weight.flatten().double()
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % block)).reshape(-1, block)
    absmax = padded.abs().amax(1)
    scaled = (padded / absmax.clamp(min=1e-38)[:, None]).reshape(-1)[: len(flat)].float()
    codes, least = torch.zeros(len(flat), dtype=torch.uint8), torch.full_like(scaled, float("inf"))
    for code, level in enumerate(levels):
        distance = (scaled - level).abs()
        codes[distance < least] = code
        least = torch.minimum(least, distance)
    packed = torch.full((-(-len(flat) // 2), 2), levels.index(0.0), dtype=torch.uint8)
    packed.view(-1)[: len(flat)] = codes
    return packed[:, 0] * 16 + packed[:, 1], absmax.float()


def store4_block_by_block(weight, levels, block):
    """A table of distances, for one block at a time."""
    codes, absmax = [], []
    for part in weight.reshape(-1).split(block):
        absmax.append(part.abs().max())
        scaled = part / absmax[-1] if absmax[-1] > 0 else part
        codes += (scaled[:, None] - torch.tensor(levels)).abs().argmin(1).tolist()
    codes += [levels.index(0.0)] * (len(codes) % 2)
    pairs = [16 * first + second for first, second in zip(codes[::2], codes[1::2], strict=True)]
    return torch.tensor(pairs, dtype=torch.uint8).reshape(-1, 1), torch.stack(absmax)


def load4_value_by_value(packed, absmax, levels, block, shape):
    codes = [code for byte in packed.reshape(-1).tolist() for code in (byte // 16, byte % 16)]
    table = torch.tensor(levels).tolist()
    values = [table[code] * absmax[i // block].item() for i, code in enumerate(codes[: math.prod(shape)])]
    return torch.tensor(values, dtype=torch.float64).float().reshape(shape)


def load4_in_blocks(packed, absmax, levels, block, shape):
    high, low = packed.reshape(-1).long() // 16, packed.reshape(-1).long() % 16
    values = torch.tensor(levels).take(torch.stack([high, low], 1).flatten()[: math.prod(shape)])
    for part, scale in zip(values.split(block), absmax, strict=True):
        part *= scale
    return values.view(shape)


def round_columns_in_double(weight, factor, levels, scale, block):
    """FP64, each column of a block a step, with `addmm` for the rest."""
    left, codes = weight.double(), []
    u, size = factor.double(), scale.double()
    for part in torch.arange(weight.shape[1]).split(block):
        start, stop, errors = int(part[0]), int(part[-1]) + 1, []
        for q in range(start, stop):
            codes.append(nearest((left[:, q] / size).float(), levels))
            errors.append((left[:, q] - looked_up(codes[-1], levels).double() * size) / u[q, q])
            left[:, q:stop] -= torch.outer(errors[-1], u[q, q:stop])
        left[:, stop:].addmm_(torch.stack(errors, 1), u[start:stop, stop:], alpha=-1)
    return torch.stack(codes, 1)


def round_columns_looking_back(weight, factor, levels, scale, block):
    """Each column fetches what the columns of its block owe it when its turn comes."""
    left = weight.clone()
    codes = torch.zeros(weight.shape, dtype=torch.uint8)
    for start in range(0, weight.shape[1], block):
        errors = torch.zeros(len(weight), min(block, weight.shape[1] - start))
        stop = start + errors.shape[1]
        for q in range(start, stop):
            column = left[:, q] - errors[:, : q - start] @ factor[start:q, q]
            codes[:, q] = nearest(column / scale, levels)
            errors[:, q - start] = (column - looked_up(codes[:, q], levels) * scale) / factor[q, q]
        left[:, stop:] -= errors @ factor[start:stop, stop:]
    return codes


def fold_salience_by_hessian(up, down, x, grid):
    """The output's error as tr(ΔW H ΔWᵀ), in FP64."""
    hidden = torch.relu(x @ up.T)
    hessian = hidden.double().T @ hidden.double()
    tried = []
    for alpha in (0.0, 0.25, 0.5, 0.75, 1.0):
        scale = 2.0 ** torch.round(alpha * torch.log2(hidden.mean(0).clamp(min=2**-10)))
        delta = (grid.round(down * scale) / scale - down).double()
        tried.append((torch.trace(delta @ hessian @ delta.T).item(), alpha, scale))
    _, alpha, scale = min(tried, key=lambda one: one[:2])
    return alpha, torch.diag(1 / scale) @ up, down @ torch.diag(scale)


def fold_salience_row_by_row(up, down, x, grid):
    best = (math.inf,)
    for quarter in range(5):
        new_up, new_down = up.clone(), down.clone()
        for j, mean in enumerate(torch.relu(x @ up.T).mean(0).tolist()):
            scale = 2.0 ** round(quarter / 4 * math.log2(max(mean, 2**-10)))
            new_up[j] /= scale
            new_down[:, j] *= scale
        error = torch.nn.functional.mse_loss(forward(new_up, grid.round(new_down), x), forward(up, down, x)).item()
        if error < best[0]:
            best = (error, quarter / 4, new_up, new_down)
    return best[1], best[2], best[3]


def quantized_bytes_by_parts(shape, formats):
    """What is quantized and what is not, apart."""
    kept, quantized = shape.parameters, 0
    for group in shape.linears():
        rows, columns = group.linear.outputs, group.linear.inputs
        name = formats[group.linear.name] if group.linear.name in formats else formats.get(group.part)
        if name in (None, "bf16"):
            continue
        kept -= group.count * rows * columns
        if name == "fp8-128":
            tiles = len(range(0, rows, 128)) * len(range(0, columns, 128))
            quantized += group.count * (rows * columns + 4 * tiles)
        else:
            quantized += group.count * (math.ceil(3 * rows * columns / 8) + 3 * rows * math.ceil(columns / 64))
    return 2 * kept + quantized


def place_by_tables(layers, budgets):
    """For each number of bytes the least loss, by recursion with a memory, over layers and both cards."""
    from functools import cache

    @cache
    def best(i, left, card):
        if i == len(layers):
            return 0, (), i
        options = [(*best(i, budgets[1], 1)[:2], i)] if card == 0 else []
        for width, (size, lost) in layers[i].items():
            if size <= left:
                loss, widths, split = best(i + 1, left - size, card)
                options.append((loss + lost, (width, *widths), split))
        return min(options, default=(math.inf, (), 0), key=lambda one: one[0])

    loss, widths, split = best(0, budgets[0], 0)
    return None if loss == math.inf else (split, list(widths))


def place_by_one_card_twice(layers, budgets):
    """What helpers has for one card, for every split: the two cards are the learner's part."""
    from helpers.catalog.errors import WorkbookError
    from helpers.techniques.quantization.sensitivity import Option, choose_bits

    def one_card(first, last, budget):
        options = {str(i): [Option(bits, *layers[i][bits]) for bits in layers[i]] for i in range(first, last)}
        if not options:
            return 0, []
        plan = choose_bits(options, budget)
        return plan.loss, list(plan.bits.values())

    plans = []
    for split in range(len(layers) + 1):
        try:
            (loss, bits), (more, others) = one_card(0, split, budgets[0]), one_card(split, len(layers), budgets[1])
        except WorkbookError:
            continue
        plans.append((loss + more, split, bits + others))
    return min(plans)[1:] if plans else None


def quantize_with_a_print(weight, bits, group):
    """A leftover print; the three tensors one by one."""
    print("quantizing", weight.shape)
    top = 2**bits - 1
    parts = weight.split(group, dim=1)
    ranges = [torch.aminmax(torch.nn.functional.pad(part, (0, 1)), dim=1) for part in parts]
    scale = torch.stack([(one.max - one.min) / top for one in ranges], 1).half()
    scale = scale.masked_fill(scale == 0, 1)
    yield_codes, zeros = [], []
    for number, (part, one) in enumerate(zip(parts, ranges, strict=True)):
        step = scale[:, number, None].float()
        zeros.append((-one.min[:, None] / step).round())
        yield_codes.append((part / step).round().add(zeros[-1]).clamp(0, top))
    yield torch.cat(yield_codes, 1).byte()
    yield scale
    yield torch.cat(zeros, 1).byte()


def pack3_in_numpy(codes):
    import numpy as np

    bits = np.unpackbits((codes.numpy().reshape(-1, 1) + 4).astype(np.uint8), axis=1)[:, 5:]
    return torch.from_numpy(np.packbits(bits))


def unpack3_in_numpy(packed, shape):
    import numpy as np

    bits = np.unpackbits(packed.numpy())[: 3 * math.prod(shape)].reshape(-1, 3)
    return torch.from_numpy((bits @ np.array([4, 2, 1])).astype(np.int8) - np.int8(4)).reshape(shape)


def load4_with_a_print(packed, absmax, levels, block, shape):
    table = dict(enumerate(levels))
    print("levels", table)
    halves = torch.stack([packed // 16, packed % 16]).T.reshape(-1)
    flat = [table[int(code)] * float(absmax[place // block]) for place, code in enumerate(halves[: math.prod(shape)])]
    return torch.FloatTensor(flat).reshape(shape)


def round_columns_in_place_of_a_copy(weight, factor, levels, scale, block):
    """Divides by the scale once; a block is a copy that is written back."""
    left = weight / scale[:, None]
    codes = torch.empty_like(left, dtype=torch.uint8)
    for start in range(0, left.shape[1], block):
        some = left[:, start : start + block].clone()
        errors, corner = torch.zeros_like(some), factor[start : start + block, start : start + block]
        for q in range(some.shape[1]):
            codes[:, start + q] = nearest(some[:, q].contiguous(), levels)
            errors[:, q] = (some[:, q] - looked_up(codes[:, start + q], levels)) / corner[q, q]
            some[:, q + 1 :] -= errors[:, q : q + 1] * corner[q, q + 1 :]
        left[:, start + block :] -= errors @ factor[start : start + block, start + block :]
    return codes


def fold_salience_with_tensors(up, down, x, grid):
    """Alpha is a tensor of one value, the pair a list."""
    wanted, tried = forward(up, down, x), {}
    for alpha in torch.linspace(0, 1, 5):
        exponent = torch.round(alpha * torch.relu(x @ up.T).mean(0).clamp(min=2**-10).log2())
        pair = [torch.ldexp(up, -exponent[:, None]), torch.ldexp(down, exponent)]
        error = float((forward(pair[0], grid.round(pair[1]), x) - wanted).pow(2).sum())
        tried.setdefault(error, [alpha, *pair])
    return tried[min(tried)]


def quantized_bytes_in_numpy(shape, formats):
    """A NumPy integer comes back."""
    import numpy as np

    groups = list(shape.linears())
    rows, columns, count = (
        np.array(one, dtype=np.int64)
        for one in zip(*[(group.linear.outputs, group.linear.inputs, group.count) for group in groups], strict=True)
    )
    names = np.array([formats.get(group.linear.name, formats.get(group.part, "bf16")) for group in groups])
    values = rows * columns
    sizes = np.select(
        [names == "int3-g64", names == "fp8-128"],
        [
            (3 * values + 7) // 8 + 3 * rows * ((columns + 63) // 64),
            values + 4 * (-(-rows // 128) * -(-columns // 128)),
        ],
        2 * values,
    )
    return np.int64(2 * shape.parameters) + (count * (sizes - 2 * values)).sum()


def quantized_bytes_with_counters(shape, formats):
    """A Counter of parts, a leftover print."""
    from collections import Counter

    total = Counter()
    for group in shape.linears():
        rows, columns = group.linear.outputs, group.linear.inputs
        total["linear"] += group.count * rows * columns
        match formats.get(group.linear.name) or formats.get(group.part, "bf16"):
            case "int3-g64":
                total["codes"] += group.count * math.ceil(rows * columns * 3 / 8)
                total["scales"] += group.count * rows * math.ceil(columns / 64) * 3
            case "fp8-128":
                total["codes"] += group.count * rows * columns
                total["scales"] += group.count * math.ceil(rows / 128) * math.ceil(columns / 128) * 4
            case _:
                total["codes"] += group.count * rows * columns * 2
    print(total)
    return total["codes"] + total["scales"] + 2 * (shape.parameters - total["linear"])


def place_with_tensors(layers, budgets):
    """As `place_by_tables`, and a tensor and a generator come back."""
    found = place_by_tables(layers, budgets)
    return found and (torch.tensor(found[0]), (torch.tensor(width) for width in found[1]))
