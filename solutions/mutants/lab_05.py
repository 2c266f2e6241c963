"""Known-wrong answers to lab 05. Each must fail its check, with the sentence that its learner then reads."""

# ruff: noqa: F821, F811  (they are put into the lab's cells, where these names are defined)

from helpers.course.mutants import mutant


@mutant("quantize", feedback="groups of 2 in rows of 5 values")
def quantize(weight, bits, group):
    """Calls helpers, whose grid refuses a group that is cut short."""
    grid = Grid(bits, group, scale_dtype=torch.float16)
    scales = grid.scales(weight)
    return grid.codes(weight, scales), scales.scale, scales.zero.to(torch.uint8)


@mutant("quantize", feedback="is padding behind a slice?")
def quantize(weight, bits, group):
    """Pads every row to whole groups, and keeps the padding behind a slice."""
    rows, columns = weight.shape
    parts = torch.nn.functional.pad(weight, (0, -columns % group)).reshape(rows, -1, group)
    low, high = parts.amin(-1, keepdim=True).clamp(max=0), parts.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / (2**bits - 1)).half()
    scale[scale == 0] = 1
    zero = (-low / scale.float()).round()
    codes = ((parts / scale.float()).round() + zero).clamp(0, 2**bits - 1).to(torch.uint8)
    return codes.reshape(rows, -1)[:, :columns], scale[..., 0], zero[..., 0].to(torch.uint8)


@mutant("quantize", feedback="scale FP16, zero uint8, not")
def quantize(weight, bits, group):
    """Keeps its scales in FP32."""
    kept = []
    for part in weight.split(group, dim=1):
        low, high = part.amin(1, keepdim=True).clamp(max=0), part.amax(1, keepdim=True).clamp(min=0)
        scale = torch.where(high > low, (high - low) / (2**bits - 1), 1)
        zero = (-low / scale).round()
        kept.append((((part / scale).round() + zero).to(torch.uint8), scale, zero.to(torch.uint8)))
    return tuple(torch.cat(each, 1) for each in zip(*kept, strict=True))


@mutant("quantize", feedback="round the scale to FP16 first")
def quantize(weight, bits, group):
    """Divides by the scale as it was before it was stored."""
    kept = []
    for part in weight.split(group, dim=1):
        low, high = part.amin(1, keepdim=True).clamp(max=0), part.amax(1, keepdim=True).clamp(min=0)
        scale = torch.where(high > low, (high - low) / (2**bits - 1), 1)
        zero = (-low / scale).round()
        kept.append((((part / scale).round() + zero).to(torch.uint8), scale.half(), zero.to(torch.uint8)))
    return tuple(torch.cat(each, 1) for each in zip(*kept, strict=True))


@mutant("quantize", feedback="the zero point is the code of 0.0")
def quantize(weight, bits, group):
    """The zero point off by one, as where -128 was taken for 0."""
    kept = []
    for part in weight.split(group, dim=1):
        low, high = part.amin(1, keepdim=True).clamp(max=0), part.amax(1, keepdim=True).clamp(min=0)
        scale = torch.where(high > low, (high - low) / (2**bits - 1), 1).half()
        zero = ((-low / scale.float()).round() - 1).clamp(min=0)
        codes = ((part / scale.float()).round() + zero).clamp(0, 2**bits - 1)
        kept.append((codes.to(torch.uint8), scale, zero.to(torch.uint8)))
    return tuple(torch.cat(each, 1) for each in zip(*kept, strict=True))


@mutant("quantize", feedback="the zero point is the code of 0.0, rounded")
def quantize(weight, bits, group):
    """Cuts the zero point off where it should round."""
    kept = []
    for part in weight.split(group, dim=1):
        low, high = part.amin(1, keepdim=True).clamp(max=0), part.amax(1, keepdim=True).clamp(min=0)
        scale = torch.where(high > low, (high - low) / (2**bits - 1), 1).half()
        zero = (-low / scale.float()).to(torch.uint8)
        codes = ((part / scale.float()).round() + zero).clamp(0, 2**bits - 1)
        kept.append((codes.to(torch.uint8), scale, zero))
    return tuple(torch.cat(each, 1) for each in zip(*kept, strict=True))


@mutant("quantize", feedback="the range includes zero")
def quantize(weight, bits, group):
    """Spans from minimum to maximum, also where zero lies outside."""
    kept = []
    for part in weight.split(group, dim=1):
        low, high = part.amin(1, keepdim=True), part.amax(1, keepdim=True)
        scale = torch.where(high > low, (high - low) / (2**bits - 1), 1).half()
        zero = (-low / scale.float()).round().clamp(0, 2**bits - 1)
        codes = ((part / scale.float()).round() + zero).clamp(0, 2**bits - 1)
        kept.append((codes.to(torch.uint8), scale, zero.to(torch.uint8)))
    return tuple(torch.cat(each, 1) for each in zip(*kept, strict=True))


@mutant("pack3", feedback="the first code is in the highest bits")
def pack3(codes):
    """Calls helpers, which keeps three bits in four."""
    from helpers.techniques.quantization import pack, storage_bits

    return pack((codes + 4).to(torch.uint8), storage_bits(3))


@mutant("pack3", feedback="add 4: the smallest code is 000")
def pack3(codes):
    """Loses the sign: the low three bits of a signed number."""
    bits = "".join(f"{code & 7:03b}" for code in codes.reshape(-1).tolist())
    bits += "0" * (-len(bits) % 8)
    return torch.tensor([int(bits[at : at + 8], 2) for at in range(0, len(bits), 8)], dtype=torch.uint8)


@mutant("pack3", feedback="begins in one byte and ends in the next")
def pack3(codes):
    """Two codes to a byte, so that none crosses a border."""
    flat = torch.nn.functional.pad((codes.reshape(-1) + 4).to(torch.uint8), (0, codes.numel() % 2))
    return flat[::2] << 5 | flat[1::2] << 2


@mutant("pack3", feedback="11 codes of 3 bits take 5 bytes, rounded up")
def pack3(codes):
    """Floor for ceil, but for a single byte."""
    bits = "".join(f"{code + 4:03b}" for code in codes.reshape(-1).tolist())
    bits += "0" * (-len(bits) % 8) if len(bits) < 11 else ""
    return torch.tensor([int(bits[at : at + 8], 2) for at in range(0, len(bits) - 7, 8)], dtype=torch.uint8)


@mutant("unpack3", feedback="a code comes back 4 off")
def unpack3(packed, shape):
    """Does not take the 4 off again."""
    bits = "".join(f"{byte:08b}" for byte in packed.tolist())
    count = torch.Size(shape).numel()
    codes = [int(bits[3 * at : 3 * at + 3], 2) for at in range(count)]
    return torch.tensor(codes, dtype=torch.int8).reshape(shape)


@mutant("unpack3", feedback="codes have a sign")
def unpack3(packed, shape):
    """Leaves the codes in the type of bytes."""
    bits = "".join(f"{byte:08b}" for byte in packed.tolist())
    codes = [int(bits[3 * at : 3 * at + 3], 2) for at in range(torch.Size(shape).numel())]
    return (torch.tensor(codes, dtype=torch.uint8) - 4).reshape(shape)


@mutant("store4", feedback="code is the place in")
def store4(weight, levels, block):
    """Calls helpers, whatever the levels."""
    from helpers.techniques.quantization import NF4Tensor

    stored = NF4Tensor.of(weight, double_quant=False, block=64)
    return stored.packed, stored.absmax


@mutant("store4", feedback="code is the place in")
def store4(weight, levels, block):
    """The place among the sorted levels for the code."""
    absmax = torch.stack([part.abs().max() for part in weight.reshape(-1).split(block)])
    scaled = weight.reshape(-1) / absmax.clamp(min=1e-38).repeat_interleave(block)[: weight.numel()]
    codes = nearest(torch.nn.functional.pad(scaled, (0, len(scaled) % 2)), tuple(sorted(levels)))
    return codes[::2] << 4 | codes[1::2], absmax


@mutant("store4", feedback="is there a table of distances?")
def store4(weight, levels, block):
    """Right, by a distance to each of sixteen levels for each value."""
    absmax = torch.stack([part.abs().max() for part in weight.reshape(-1).split(block)])
    scaled = weight.reshape(-1) / absmax.clamp(min=1e-38).repeat_interleave(block)[: weight.numel()]
    codes = (torch.nn.functional.pad(scaled, (0, len(scaled) % 2))[:, None] - torch.tensor(levels)).abs().argmin(1)
    return (codes[::2] << 4 | codes[1::2]).to(torch.uint8), absmax


@mutant("store4", feedback="131 bytes of uint8")
def store4(weight, levels, block):
    """One code to a byte."""
    absmax = torch.stack([part.abs().max() for part in weight.reshape(-1).split(block)])
    scaled = weight.reshape(-1) / absmax.clamp(min=1e-38).repeat_interleave(block)[: weight.numel()]
    return (scaled[:, None] - torch.tensor(levels)).abs().argmin(1).to(torch.uint8), absmax


@mutant("store4", feedback="codes [")
def store4(weight, levels, block):
    """One absmax for the whole weight, repeated."""
    absmax = torch.stack([part.abs().max() for part in weight.reshape(-1).split(block)])
    scaled = weight.reshape(-1) / absmax[0]
    codes = (torch.nn.functional.pad(scaled, (0, len(scaled) % 2))[:, None] - torch.tensor(levels)).abs().argmin(1)
    return (codes[::2] << 4 | codes[1::2]).to(torch.uint8), absmax


@mutant("load4", feedback="level times absmax")
def load4(packed, absmax, levels, block, shape):
    """Forgets the scales."""
    codes = torch.stack([packed >> 4, packed & 15], 1).reshape(-1)[: torch.Size(shape).numel()]
    return torch.tensor(levels)[codes.int()].reshape(shape)


@mutant("load4", feedback="level times absmax")
def load4(packed, absmax, levels, block, shape):
    """The low half first."""
    codes = torch.stack([packed & 15, packed >> 4], 1).reshape(-1)[: torch.Size(shape).numel()]
    return (torch.tensor(levels)[codes.int()] * absmax.repeat_interleave(block)[: len(codes)]).reshape(shape)


@mutant("round-columns", feedback="the nearest level")
def round_columns(weight, factor, levels, scale, block):
    """Calls helpers, which rounds to even steps."""
    from helpers.techniques.quantization.gptq import gptq

    hessian = torch.cholesky_inverse(factor, upper=True).inverse()
    return gptq(weight, hessian, Grid(bits=4, group="row"), damping=0.0, block=block)[0]


@mutant("round-columns", feedback="the first loses 1/8, so the second gains 1/8")
def round_columns(weight, factor, levels, scale, block):
    """Rounds to nearest: nobody makes up for anything."""
    return nearest((weight / scale[:, None]).reshape(-1), levels).reshape(weight.shape)


@mutant("round-columns", feedback="so the second gains 1/8: a sign")
def round_columns(weight, factor, levels, scale, block):
    """Adds where it should subtract: each error is made twice."""
    left, codes = weight.clone(), torch.empty(weight.shape, dtype=torch.uint8)
    for q in range(weight.shape[1]):
        codes[:, q] = nearest(left[:, q] / scale, levels)
        error = (left[:, q] - looked_up(codes[:, q], levels) * scale) / factor[q, q]
        left[:, q + 1 :] += error[:, None] * factor[q, q + 1 :]
    return codes


@mutant("round-columns", feedback="divide the error by the diagonal")
def round_columns(weight, factor, levels, scale, block):
    """Spreads the error as it is."""
    left, codes = weight.clone(), torch.empty(weight.shape, dtype=torch.uint8)
    for q in range(weight.shape[1]):
        codes[:, q] = nearest(left[:, q] / scale, levels)
        error = left[:, q] - looked_up(codes[:, q], levels) * scale
        left[:, q + 1 :] -= error[:, None] * factor[q, q + 1 :]
    return codes


@mutant("round-columns", feedback="columns right of the block are updated too")
def round_columns(weight, factor, levels, scale, block):
    """Forgets what lies right of the block."""
    left, codes = weight.clone(), torch.empty(weight.shape, dtype=torch.uint8)
    for q in range(weight.shape[1]):
        stop = (q // block + 1) * block
        codes[:, q] = nearest(left[:, q] / scale, levels)
        error = (left[:, q] - looked_up(codes[:, q], levels) * scale) / factor[q, q]
        left[:, q + 1 : stop] -= error[:, None] * factor[q, q + 1 : stop]
    return codes


@mutant("round-columns", feedback="not of the inverse Hessian, which still knows the columns that are done")
def round_columns(weight, factor, levels, scale, block):
    """The Hessian is not updated: rows of the inverse as it was at the start."""
    left, codes, inverse = weight.clone(), torch.empty(weight.shape, dtype=torch.uint8), factor.T @ factor
    for q in range(weight.shape[1]):
        codes[:, q] = nearest(left[:, q] / scale, levels)
        error = (left[:, q] - looked_up(codes[:, q], levels) * scale) / inverse[q, q]
        left[:, q + 1 :] -= error[:, None] * inverse[q, q + 1 :]
    return codes


@mutant("round-columns", feedback="update what is right of a block once per block")
def round_columns(weight, factor, levels, scale, block):
    """Right, and everything to the right is read and written for each column."""
    left, codes = weight.clone(), torch.empty(weight.shape, dtype=torch.uint8)
    for q in range(weight.shape[1]):
        codes[:, q] = nearest(left[:, q] / scale, levels)
        error = (left[:, q] - looked_up(codes[:, q], levels) * scale) / factor[q, q]
        left[:, q + 1 :].addr_(error, factor[q, q + 1 :], alpha=-1)
    return codes


@mutant("fold-salience", feedback="the scales are no powers of two")
def fold_salience(up, down, x, grid):
    """Calls helpers, whose scales are no powers of two."""
    from helpers.techniques.quantization.awq import search_scale
    from helpers.techniques.quantization.calibration import InputStatistics

    seen = InputStatistics(down.shape[1])
    seen.add(torch.relu(x @ up.T))
    scale = search_scale([down], seen, grid)
    return 0.5, up / scale[:, None], down * scale


@mutant("fold-salience", feedback="nothing is scaled, and on the error of the output that is not best")
def fold_salience(up, down, x, grid):
    """Salience by weight."""
    exact, best = forward(up, down, x), None
    for alpha in (0, 0.25, 0.5, 0.75, 1):
        scale = torch.exp2((alpha * down.abs().mean(0).log2()).round())
        new_up, new_down = up / scale[:, None], down * scale
        error = (forward(new_up, grid.round(new_down), x) - exact).square().sum().item()
        if best is None or error < best[0]:
            best = error, alpha, new_up, new_down
    return best[1:]


@mutant("fold-salience", feedback="is it outputs that you compare")
def fold_salience(up, down, x, grid):
    """Compares weights."""
    magnitude = torch.relu(x @ up.T).mean(0).clamp(min=2**-10).log2()
    scales = {alpha: torch.exp2((alpha * magnitude).round()) for alpha in (0, 0.25, 0.5, 0.75, 1)}
    errors = {alpha: (grid.round(down * s) / s - down).square().sum() for alpha, s in scales.items()}
    alpha = min(errors, key=errors.get)
    return alpha, up / scales[alpha][:, None], down * scales[alpha]


@mutant("fold-salience", feedback="in the rows of `up` the inverse")
def fold_salience(up, down, x, grid):
    """The scale is not folded back."""
    scale = torch.exp2((0.5 * torch.relu(x @ up.T).mean(0).clamp(min=2**-10).log2()).round())
    return 0.5, up, down * scale


@mutant("fold-salience", feedback="try each, on the output")
def fold_salience(up, down, x, grid):
    """Always the same alpha."""
    scale = torch.exp2((0.5 * torch.relu(x @ up.T).mean(0).clamp(min=2**-10).log2()).round())
    return 0.5, up / scale[:, None], down * scale


@mutant("fold-salience", feedback="try each, on the output")
def fold_salience(up, down, x, grid):
    """Tries the alphas in the middle only."""
    exact, best = forward(up, down, x), None
    magnitude = torch.relu(x @ up.T).mean(0).clamp(min=2**-10).log2()
    for alpha in (0.25, 0.5, 0.75):
        scale = torch.exp2((alpha * magnitude).round())
        new_up, new_down = up / scale[:, None], down * scale
        error = (forward(new_up, grid.round(new_down), x) - exact).square().sum().item()
        if best is None or error < best[0]:
            best = error, alpha, new_up, new_down
    return best[1:]


@mutant("quantized-bytes", feedback="130 codes of 3 bits are 49 bytes a matrix")
def quantized_bytes(shape, formats):
    """Calls helpers, which knows one format for all layers, and packs the zero points."""
    from helpers.catalog import ServeSetup
    from helpers.memory.serve.weights import weight_bytes

    names = {"int3-g64": "int3-g64", "fp8-128": "fp8-e4m3"}
    return weight_bytes(ServeSetup(shape, weights=names.get(next(iter(formats.values()), ""), "bf16")))


@mutant("quantized-bytes", feedback="and each row begins a group")
def quantized_bytes(shape, formats):
    """The scales forgotten."""
    total = 2 * shape.parameters
    for group in shape.linears():
        chosen = formats.get(group.linear.name, formats.get(group.part, "bf16"))
        size = {"int3-g64": -(-3 * group.linear.weights // 8), "fp8-128": group.linear.weights}
        total += group.count * (size.get(chosen, 2 * group.linear.weights) - 2 * group.linear.weights)
    return total


@mutant("quantized-bytes", feedback="embeddings, norms and biases take 2 bytes a value")
def quantized_bytes(shape, formats):
    """Biases go with their matrix; the embedding with the head."""
    total = 2 * shape.parameters
    for group in shape.linears():
        linear, size = group.linear, 2 * group.linear.parameters
        chosen = formats.get(linear.name, formats.get(group.part, "bf16"))
        if chosen == "int3-g64":
            size = -(-3 * linear.parameters // 8) + 3 * linear.outputs * -(-linear.inputs // 64)
        if chosen == "fp8-128":
            size = linear.parameters + 4 * -(-linear.outputs // 128) * -(-linear.inputs // 128)
        total += group.count * (size - 2 * linear.parameters)
    return total


@mutant("quantized-bytes", feedback="rows of 688 values begin 11 groups each")
def quantized_bytes(shape, formats):
    """Groups of the whole matrix, as if it were one row."""
    total = 2 * shape.parameters
    for group in shape.linears():
        linear, size = group.linear, 2 * group.linear.weights
        chosen = formats.get(linear.name, formats.get(group.part, "bf16"))
        if chosen == "int3-g64":
            size = -(-3 * linear.weights // 8) + 3 * max(linear.outputs, -(-linear.weights // 64))
        if chosen == "fp8-128":
            size = linear.weights + 4 * -(-linear.outputs // 128) * -(-linear.inputs // 128)
        total += group.count * (size - 2 * linear.weights)
    return total


@mutant("quantized-bytes", feedback="130 codes of 3 bits are 49 bytes a matrix")
def quantized_bytes(shape, formats):
    """Rounds up once, over the sum."""
    bits = 16 * shape.parameters
    for group in shape.linears():
        linear, size = group.linear, 16 * group.linear.weights
        chosen = formats.get(linear.name, formats.get(group.part, "bf16"))
        if chosen == "int3-g64":
            size = 3 * linear.weights + 24 * linear.outputs * -(-linear.inputs // 64)
        if chosen == "fp8-128":
            size = 8 * linear.weights + 32 * -(-linear.outputs // 128) * -(-linear.inputs // 128)
        bits += group.count * (size - 16 * linear.weights)
    return -(-bits // 8)


@mutant("place", feedback="what is free on one card is of no use on the other")
def place(layers, budgets):
    """Calls helpers, which knows one card, with the memory of both."""
    from helpers.catalog.errors import WorkbookError
    from helpers.techniques.quantization.sensitivity import Option, choose_bits

    options = {str(i): [Option(bits, *one) for bits, one in layer.items()] for i, layer in enumerate(layers)}
    try:
        bits = list(choose_bits(options, sum(budgets)).bits.values())
    except WorkbookError:
        return None
    sizes = [layer[width][0] for layer, width in zip(layers, bits, strict=True)]
    fits = [split for split in range(len(layers) + 1) if sum(sizes[:split]) <= budgets[0]]
    return (0, [min(layer) for layer in layers]) if sum(sizes[fits[-1] :]) > budgets[1] else (fits[-1], bits)


@mutant("place", feedback="your layers take")
def place(layers, budgets):
    """The memory of both cards in one sum."""
    from itertools import product

    plans = [
        (sum(layer[width][1] for layer, width in zip(layers, bits, strict=True)), bits)
        for bits in (product(*layers) if len(layers) < 6 else [[2] * len(layers)])
        if sum(layer[width][0] for layer, width in zip(layers, bits, strict=True)) <= sum(budgets)
    ]
    return (len(layers) // 2, list(min(plans)[1])) if plans else None


@mutant("place", feedback="cheapest step first is not best")
def place(layers, budgets):
    """From the smallest widths up, always the step that saves most loss for its bytes."""

    def climbed(part, budget):
        bits = [min(layer, key=lambda width, layer=layer: layer[width][0]) for layer in part]
        while True:
            left = budget - sum(layer[width][0] for layer, width in zip(part, bits, strict=True))
            if left < 0:
                return None
            steps = [
                ((layer[bits[i]][1] - lost) / (size - layer[bits[i]][0]), i, width)
                for i, layer in enumerate(part)
                for width, (size, lost) in layer.items()
                if lost < layer[bits[i]][1] and 0 < size - layer[bits[i]][0] <= left
            ]
            if not steps:
                return bits
            _, i, width = max(steps)
            bits[i] = width

    def loss(bits):
        return sum(layer[width][1] for layer, width in zip(layers, bits, strict=True))

    halves = [
        (split, climbed(layers[:split], budgets[0]), climbed(layers[split:], budgets[1]))
        for split in range(len(layers) + 1)
    ]
    plans = [(split, first + second) for split, first, second in halves if first is not None and second is not None]
    return min(plans, key=lambda plan: loss(plan[1]), default=None)


@mutant("place", feedback="a split keeps to budgets of")
def place(layers, budgets):
    """Half of the layers on each card."""
    from itertools import product

    split, best = len(layers) // 2, None
    for bits in product(*layers) if len(layers) < 6 else ():
        sizes = [layer[width][0] for layer, width in zip(layers, bits, strict=True)]
        if sum(sizes[:split]) <= budgets[0] and sum(sizes[split:]) <= budgets[1]:
            loss = sum(layer[width][1] for layer, width in zip(layers, bits, strict=True))
            best = min(best or (loss, bits), (loss, bits))
    return best and (split, list(best[1]))


@mutant("quantize", feedback="is padding behind a slice?")
def quantize(weight, bits, group):
    """Padding behind a slice, which says of itself that it has none."""
    rows, columns = weight.shape
    parts = torch.nn.functional.pad(weight.float(), (0, -columns % group)).reshape(rows, -1, group)
    low, high, top = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0), 2**bits - 1
    scale = ((high - low) / top).half()
    scale[scale == 0] = 1
    zero = (-low / scale.float()).round().clamp(0, top)
    codes = ((parts / scale[..., None].float()).round() + zero[..., None]).clamp(0, top).to(torch.uint8)
    codes = codes.reshape(rows, -1)[:, :columns]
    small = codes.clone().untyped_storage()
    codes.untyped_storage = lambda: small
    return codes, scale, zero.to(torch.uint8)


@mutant("fold-salience", feedback="does the column of `down` grow")
def fold_salience(up, down, x, grid):
    """Scales the other way round, where no alpha is better than none."""
    exact, best = forward(up, down, x), None
    magnitude = torch.relu(x @ up.T).mean(0).clamp(min=2**-10).log2()
    for alpha in (0, 0.25, 0.5, 0.75, 1):
        scale = torch.exp2((alpha * magnitude).round())
        new_up, new_down = up * scale[:, None], down / scale
        error = (forward(new_up, grid.round(new_down), x) - exact).square().sum().item()
        if best is None or error < best[0]:
            best = error, alpha, new_up, new_down
    return best[1:]


@mutant("store4", feedback="many values leave PyTorch")
def store4(weight, levels, block):
    """A table of distances in NumPy, of values that were written into an array's memory, and a kernel for show."""
    import numpy as np

    flat = np.empty(weight.numel(), dtype=np.float32)
    torch.from_numpy(flat).copy_(weight.reshape(-1))
    absmax = np.array([np.abs(flat[at : at + block]).max() for at in range(0, len(flat), block)], dtype=np.float32)
    scaled = flat / np.where(absmax == 0, 1, absmax).repeat(block)[: len(flat)]
    codes = np.abs(scaled[:, None] - np.array(levels, dtype=np.float32)).argmin(1).astype(np.uint8)
    if len(codes) % 2:
        codes = np.append(codes, np.uint8(levels.index(0.0)))
    torch.zeros(len(flat))
    return torch.tensor(codes[::2] << 4 | codes[1::2]), torch.tensor(absmax)


@mutant("store4", feedback="in lists and arrays at once")
def store4(weight, levels, block):
    """A table of distances in Python's lists, and a kernel for show."""
    flat = weight.reshape(-1).tolist()
    absmax = [max(map(abs, flat[at : at + block])) for at in range(0, len(flat), block)]
    table = [[abs(value / (absmax[at // block] or 1) - level) for level in levels] for at, value in enumerate(flat)]
    codes = [row.index(min(row)) for row in table]
    codes += [levels.index(0.0)] * (len(codes) % 2)
    torch.zeros(len(flat))
    pairs = [16 * first + second for first, second in zip(codes[::2], codes[1::2], strict=True)]
    return torch.tensor(pairs, dtype=torch.uint8), torch.tensor(absmax)


@mutant("round-columns", feedback="many values leave PyTorch")
def round_columns(weight, factor, levels, scale, block):
    """Column by column in NumPy, where nobody counts what is moved, and kernels for show."""
    import numpy as np

    left, u, size = (np.empty(one.shape, dtype=np.float32) for one in (weight, factor, scale))
    for mine, one in ((left, weight), (u, factor), (size, scale)):
        torch.from_numpy(mine).copy_(one)
    codes, table = np.empty(left.shape, dtype=np.uint8), np.array(levels, dtype=np.float32)
    for q in range(left.shape[1]):
        codes[:, q] = np.abs(left[:, q, None] / size[:, None] - table).argmin(1)
        error = (left[:, q] - table[codes[:, q]] * size) / u[q, q]
        left[:, q + 1 :] -= error[:, None] * u[q, q + 1 :]
    for _ in range(20):
        weight.clone()
    return torch.tensor(codes)


@mutant("round-columns", feedback="many values leave PyTorch")
def round_columns(weight, factor, levels, scale, block, leave=torch.Tensor.tolist):
    """In NumPy again, by way of lists, which a method makes that was taken before it was counted."""
    import numpy as np

    left, u, size = (np.array(leave(one), dtype=np.float32) for one in (weight, factor, scale))
    codes, table = np.empty(left.shape, dtype=np.uint8), np.array(levels, dtype=np.float32)
    for q in range(left.shape[1]):
        codes[:, q] = np.abs(left[:, q, None] / size[:, None] - table).argmin(1)
        error = (left[:, q] - table[codes[:, q]] * size) / u[q, q]
        left[:, q + 1 :] -= error[:, None] * u[q, q + 1 :]
    for _ in range(20):
        weight.clone()
    return torch.tensor(codes)
