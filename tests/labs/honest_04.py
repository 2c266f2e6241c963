"""Honest answers to lab 04, written otherwise than the worked ones: each must get all points of its question."""

# ruff: noqa: F821, N801  (they run where the lab's names are defined)

from __future__ import annotations

import copy
import itertools
import math


def encode_e3m4_by_bits(x):
    """Whole numbers alone: the bits of FP32, 19 of them rounded away; below 0.25 as many steps of 1/64."""
    bits = x.contiguous().view(torch.int32)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x3FFFF + (size >> 19 & 1)) >> 19) - (124 << 4)
    small = (x.abs().clamp(max=1) * 64).round().int()
    codes = torch.where(size < 0x3E800000, small, normal).clamp(max=0x70)
    codes = torch.where(size > 0x7F800000, 0x71, codes)
    return (codes | (bits < 0).int() << 7).to(torch.uint8)


def encode_e3m4_between_midpoints(x):
    """Buckets between the middles of neighbours; a value on a middle goes to the even one."""
    numbers = [m / 64 for m in range(16)] + [(16 + m) * 2.0 ** (e - 7) for e in range(1, 7) for m in range(16)] + [16.0]
    middles = torch.tensor([(low + high) / 2 for low, high in itertools.pairwise(numbers)])
    size = torch.nan_to_num(x.abs(), nan=0.0)
    codes = torch.bucketize(size, middles, out_int32=True)
    on_a_middle = size == torch.cat([middles, torch.tensor([-1.0])])[codes]
    codes += (on_a_middle & (codes % 2 == 1)).int()
    codes[x.isnan()] = 0x7F
    return codes.byte() + 128 * torch.signbit(x).byte()


def encode_e3m4_by_a_magic_sum(x):
    """FP32's own addition rounds: a large number is added, and taken off again."""
    size = x.abs()
    exponent = torch.log2(size.double().clamp(0.25, 16)).floor().to(torch.int32)
    magic = torch.ldexp(torch.ones_like(size), exponent + 19)
    rounded = size.clamp(max=16) + magic - magic
    codes = torch.ldexp(rounded, 4 - exponent).int() + (exponent + 2) * 16
    codes = codes.clamp(max=112).masked_fill(torch.isnan(x), 127).to(torch.uint8)
    return torch.where(torch.copysign(torch.ones_like(x), x) < 0, codes | 128, codes)


def encode_e3m4_value_by_value(x):
    """Python's own numbers, one after the other; its `round` sends halves to even."""

    def one(value):
        sign = 128 if math.copysign(1, value) < 0 else 0
        if math.isnan(value):
            return 0x7F
        size = min(abs(value), 16.0)
        exponent = math.frexp(max(size, 0.25))[1] - 1
        return sign + round(math.ldexp(size, 4 - exponent)) + 16 * (exponent + 2)

    codes = bytearray(x.numel())
    for at, part in enumerate(x.reshape(-1).split(512)):
        codes[512 * at : 512 * at + len(part)] = bytes(map(one, part.tolist()))
    return torch.frombuffer(codes, dtype=torch.uint8).reshape(x.shape)


def encode_e3m4_in_numpy(x):
    import numpy as np

    values = x.numpy()
    size = np.minimum(np.abs(values), np.float32(16))
    exponent = np.frexp(np.maximum(size, np.float32(0.25)))[1] - 1
    exponent[np.isnan(values)] = 0
    steps = np.rint(np.ldexp(size, 4 - exponent))
    codes = np.where(np.isnan(steps), 0x78, steps + 16 * (exponent + 2)).astype(np.uint8)
    return torch.from_numpy(codes | (np.signbit(values).astype(np.uint8) << 7))


def encode_e3m4_some_at_a_time(x):
    """A table of distances, for a thousand values at a time; a leftover print."""
    numbers = torch.tensor([m / 64 if e == 0 else (16 + m) * 2.0 ** (e - 7) for e in range(8) for m in range(16)][:113])
    even_first = torch.tensor([*range(0, 113, 2), *range(1, 113, 2)])
    print("numbers", len(numbers))
    codes = torch.empty(x.numel(), dtype=torch.uint8)
    for part, out in zip(x.reshape(-1).split(512), codes.split(512), strict=True):
        distance = (part.abs().clamp(max=16)[:, None] - numbers[even_first]).abs()
        out.copy_(even_first[distance.argmin(1)])
        out[part.isnan()] = 0x7C
        out[torch.signbit(part)] += 128
    return codes.reshape(x.shape)


def encode_e3m4_binade_by_binade(x):
    """Each power of two has a step of its own."""
    size, codes = x.abs(), torch.zeros_like(x)
    for exponent in range(-2, 4):
        step = 2.0 ** (exponent - 4)
        inside = size >= 2.0**exponent if exponent > -2 else size >= 0
        codes[inside] = torch.round(size[inside] / step) + 16 * (exponent + 2)
    codes = torch.clamp(codes, max=0x70)
    codes[x != x] = 0x7A
    return codes.to(torch.uint8) + (torch.signbit(x) * 128).to(torch.uint8)


def decode_e3m4_in_a_table(codes):
    table = []
    for code in range(256):
        field, mantissa = code >> 4 & 7, code & 15
        size = mantissa / 64 if field == 0 else (1 + mantissa / 16) * 2 ** (field - 3)
        if field == 7:
            size = math.nan if mantissa else math.inf
        table.append(-size if code & 128 else size)
    return torch.tensor(table)[codes.long()]


def decode_e3m4_by_bits(codes):
    """Shifted to where FP32 has its exponent; a product moves the bias, and makes subnormals normal."""
    size = ((codes & 127).to(torch.int32) << 19).view(torch.float32) * 2.0**124
    size[(codes & 127) == 0x70] = float("inf")
    size[(codes & 127) > 0x70] = float("nan")
    return size * (1 - 2 * (codes >> 7).float())


def decode_e3m4_through_fp16(codes):
    """All of its numbers are FP16's, 2 ** 12 times as large."""
    wide = ((codes & 127).to(torch.int16) << 6).view(torch.float16).float() * 4096
    wide = wide.where((codes & 127) < 112, torch.inf).where((codes & 127) <= 112, torch.nan)
    return torch.copysign(wide, -(codes >= 128).float() + 0.5)


def decode_e3m4_in_numpy(codes):
    import numpy as np

    field, mantissa = codes.numpy() >> 4 & 7, (codes.numpy() & 15).astype(np.float32)
    size = np.ldexp(np.where(field == 0, mantissa, mantissa + 16), np.maximum(field, 1).astype(int) - 7)
    size = np.where(field == 7, np.where(mantissa == 0, np.inf, np.nan), size)
    return torch.from_numpy(np.copysign(size, np.where(codes.numpy() > 127, -1, 1)).astype(np.float32))


class LossScale_with_gradients_asked_for:
    """`torch.autograd.grad` makes them; the norm is worked out here."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.patience, self.least = scale, interval, patience, least
        self.streak, self.bad = 0, 0

    def step(self, loss, weights, optimizer, max_norm):
        gradients = torch.autograd.grad(loss * self.scale, weights)
        if any(torch.isnan(one).any() or torch.isinf(one).any() for one in gradients):
            self.streak, self.bad = 0, self.bad + 1
            if self.bad >= self.patience:
                self.scale = max(self.least, self.scale * 0.5)
            return False
        gradients = [one / self.scale for one in gradients]
        norm = math.sqrt(sum(one.double().square().sum().item() for one in gradients))
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient * min(1.0, max_norm / norm)
        optimizer.step()
        self.streak += 1
        if self.streak == self.interval:
            self.scale, self.streak, self.bad = self.scale * 2.0, 0, 0
        return True


class LossScale_with_what_torchs_uses:
    """The operator behind PyTorch's scaler unscales and looks for infinity at once. The scale is a tensor."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.rule = torch.tensor(scale), (interval, patience, least)
        self.good, self.left = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        interval, patience, least = self.rule
        optimizer.zero_grad()
        (self.scale * loss).backward()
        found = torch.zeros(1)
        torch._amp_foreach_non_finite_check_and_unscale_([one.grad for one in weights], found, 1 / self.scale)
        good = found.item() == 0
        self.good, self.left = (self.good + 1, self.left) if good else (0, self.left - 1)
        if good:
            torch.nn.utils.clip_grad_norm_(weights, max_norm)
            optimizer.step()
        if good and self.good == interval:
            self.scale, self.good, self.left = self.scale * 2, 0, patience
        elif not good and self.left <= 0:
            self.scale = torch.clamp(self.scale / 2, min=least)
        return good


class LossScale_of_lists_of_tensors:
    """`foreach` operators; a sum is infinite or NaN where one of its terms is. Truth is a tensor of one value."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.settings = scale, {"interval": interval, "patience": patience, "least": least}
        self.history = []

    def step(self, loss, weights, optimizer, max_norm):
        for weight in weights:
            weight.grad = None
        loss.mul(self.scale).backward()
        gradients = [weight.grad for weight in weights]
        finite = torch.isfinite(torch.stack([one.abs().max() for one in gradients])).all()
        print("finite", finite)
        if finite:
            torch._foreach_div_(gradients, float(self.scale))
            norm = torch.linalg.vector_norm(torch.cat([one.flatten() for one in gradients]))
            torch._foreach_mul_(gradients, min(1.0, float(max_norm / norm)))
            optimizer.step()
        self.adapt(bool(finite))
        return finite

    def adapt(self, finite):
        self.history.append(finite)
        interval, patience = self.settings["interval"], self.settings["patience"]
        if finite and len(self.history) >= interval and all(self.history[-interval:]):
            self.scale *= 2
            self.history.clear()
        elif not finite and self.history.count(False) >= patience:
            self.scale = max(self.scale / 2, self.settings["least"])
        if interval < 1000 and False in self.history:  # nobody needs more than the bad ones and the run of good ones
            self.history = [one for at, one in enumerate(self.history) if not one or at > len(self.history) - interval]


class LossScale_that_takes_back:
    """Steps in any case, and takes back what was wrong: weights and optimizer as they were."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.least, self.interval, self.patience = scale, least, interval, patience
        self.good, self.bad = 0, 0

    def step(self, loss, weights, optimizer, max_norm):
        before, state = [weight.detach().clone() for weight in weights], copy.deepcopy(optimizer.state_dict())
        optimizer.zero_grad(set_to_none=False)
        (self.scale * loss).backward()
        for weight in weights:
            weight.grad.mul_(1 / self.scale)
        norm = torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        if torch.isfinite(norm):
            self.good += 1
            if self.good % self.interval == 0:
                self.scale, self.bad = self.scale * 2, 0
            return True
        with torch.no_grad():
            for weight, was in zip(weights, before, strict=True):
                weight.copy_(was)
        optimizer.load_state_dict(state)
        self.good, self.bad = 0, self.bad + 1
        if self.bad >= self.patience and self.scale > self.least:
            self.scale /= 2
        return False


class TightSGD_between_neighbours:
    """Chance decides between two neighbours; momentum is rounded to nearest. Noise is between 0 and 1."""

    def __init__(self, weights, lr, momentum, seed):
        torch.manual_seed(seed)
        self.weights, self.lr, self.momentum = weights, lr, momentum
        self.kept = {number: torch.zeros_like(weight) for number, weight in enumerate(weights)}

    def step(self, gradients):
        for number, (weight, gradient) in enumerate(zip(self.weights, gradients, strict=True)):
            self.kept[number] = (self.momentum * self.kept[number].float() + gradient.float()).bfloat16()
            exact = weight.double() - self.lr * self.kept[number].double()
            step = torch.exp2(torch.frexp(exact)[1] - 8.0)
            low = torch.floor(exact / step)
            weight.copy_((low + (torch.rand_like(exact) < exact / step - low)) * step)

    def values(self):
        return [weight.to(torch.float32) for weight in self.weights]


class TightSGD_in_24_bits:
    """A byte more for each weight, and the momentum in 8 bits with one scale; what is cut off is left to chance."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr, self.momentum = weights, lr, momentum
        self.generator = torch.Generator().manual_seed(seed)
        self.more = [torch.zeros(weight.shape, dtype=torch.uint8) for weight in weights]
        self.moments = [torch.zeros(weight.shape, dtype=torch.int8) for weight in weights]
        self.scales = [0.0] * len(weights)

    def step(self, gradients):
        for number, gradient in enumerate(gradients):
            moment = self.momentum * self.moments[number].float() * self.scales[number] + gradient.float()
            self.scales[number] = moment.abs().max().item() / 127
            noise = torch.rand(moment.shape, generator=self.generator)
            steps = torch.floor(moment / (self.scales[number] or 1) + noise)
            self.moments[number].copy_(steps.clamp(-127, 127))
            value = self.value(number) - self.lr * moment
            bits = value.view(torch.int32)
            bits = bits + torch.randint(256, bits.shape, generator=self.generator, dtype=torch.int32)
            self.more[number].copy_(bits >> 8 & 255)
            self.weights[number].copy_((bits & -65536).view(torch.float32))

    def value(self, number):
        high = self.weights[number].view(torch.int16).int() << 16
        return (high | self.more[number].int() << 8).view(torch.float32)

    def values(self):
        return [self.value(number) for number in range(len(self.weights))]


class TightSGD_with_noise_of_a_byte:
    """Eight random bits in the place of sixteen, a thousand values at a time; FP16 keeps the momentum."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr, self.momentum, self.chance = weights, lr, momentum, torch.Generator()
        self.chance.manual_seed(seed)
        self.moments = [torch.zeros(weight.shape, dtype=torch.float16) for weight in weights]

    def step(self, gradients):
        for weight, moment, gradient in zip(self.weights, self.moments, gradients, strict=True):
            moment *= self.momentum
            moment += gradient
            for part, some in zip(weight.reshape(-1).split(65_536), moment.reshape(-1).split(65_536), strict=True):
                exact = (part.float() - self.lr * some.float()).view(torch.int32)
                noise = torch.randint(256, exact.shape, generator=self.chance, dtype=torch.int32) << 8
                part.copy_((exact + noise + 128 >> 16 << 16).view(torch.float32))

    def values(self):
        return (weight.clone().float() for weight in self.weights)


class TightSGD_in_numpy:
    """The momentum is an array of 16-bit words; noise comes from NumPy."""

    def __init__(self, weights, lr, momentum, seed):
        import numpy as np

        self.np, self.weights, self.lr, self.momentum = np, weights, np.float32(lr), np.float32(momentum)
        self.rng = np.random.default_rng(seed)
        self.kept = [np.zeros(tuple(weight.shape), dtype=np.uint16) for weight in weights]

    def round(self, exact):
        bits = exact.astype(self.np.float32).view(self.np.uint32)
        noise = self.rng.integers(0, 65536, size=bits.shape, dtype=self.np.uint32)
        return ((bits + noise) >> self.np.uint32(16)).astype(self.np.uint16)

    def widen(self, words):
        return (words.astype(self.np.uint32) << self.np.uint32(16)).view(self.np.float32)

    def step(self, gradients):
        for number, (weight, gradient) in enumerate(zip(self.weights, gradients, strict=True)):
            moment = self.momentum * self.widen(self.kept[number]) + gradient.float().numpy()
            self.kept[number] = self.round(moment)
            words = self.round(weight.float().numpy() - self.lr * moment)
            weight.copy_(torch.from_numpy(self.widen(words)))

    def values(self):
        return [weight.float().numpy() for weight in self.weights]


class TightSGD_with_a_residual_in_8_bits:
    """What a weight lacks, in 1/256 of its step, and the momentum's upper byte: E5M2 by chance, out of FP16's bits."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr, self.momentum = weights, lr, momentum
        self.chance = torch.Generator().manual_seed(seed)
        self.kept = [(torch.zeros(w.shape, dtype=torch.int8), torch.zeros(w.shape, dtype=torch.uint8)) for w in weights]

    def lacks(self, weight, residual):
        return residual.float() / 256 * torch.exp2(torch.frexp(weight.float())[1] - 8.0)

    def step(self, gradients):
        for weight, (residual, upper), gradient in zip(self.weights, self.kept, gradients, strict=True):
            moment = self.momentum * (upper.to(torch.int16) << 8).view(torch.float16).float() + gradient.float()
            bits = moment.half().view(torch.int16).int() & 65535
            bits += torch.randint(256, bits.shape, dtype=torch.int32, generator=self.chance)
            upper.copy_(bits >> 8)
            exact = weight.float() + self.lacks(weight, residual) - self.lr * moment
            weight.copy_(exact)
            left = (exact - weight.float()) / torch.exp2(torch.frexp(weight.float())[1] - 8.0) * 256
            left = (left + torch.rand(left.shape, generator=self.chance)).floor()
            residual.copy_(left.clamp(-128, 127))

    def values(self):
        pairs = zip(self.weights, self.kept, strict=True)
        return [weight.float() + self.lacks(weight, residual) for weight, (residual, _) in pairs]


def store_blocks_one_by_one(weight):
    """A loop over the blocks, in FP64; Python's frexp."""
    codes, scales = [], []
    for part in weight.flatten().double().split(24):
        mantissa, exponent = math.frexp(part.abs().max().item() / 7)
        exponent -= mantissa == 0.5
        scales.append(exponent + 127)
        codes += [abs(round(value / 2.0**exponent)) | 8 * (value < 0) for value in part.tolist()]
    codes += [0] * (len(codes) % 2)
    pairs = [16 * first + second for first, second in zip(codes[::2], codes[1::2], strict=True)]
    return torch.tensor(pairs, dtype=torch.uint8), torch.tensor(scales, dtype=torch.uint8)


def store_blocks_with_a_logarithm(weight):
    flat = weight.reshape(-1).double()
    count = flat.numel()
    padded = torch.zeros(-(-count // 24) * 24, dtype=torch.float64)
    padded[:count] = flat
    blocks = padded.view(-1, 24)
    largest = blocks.abs().max(dim=1).values
    exponent = torch.where(largest > 0, torch.ceil(torch.log2(largest / 7)), torch.zeros_like(largest))
    steps = torch.round(blocks / 2.0 ** exponent[:, None])
    codes = torch.where(steps < 0, 8 - steps, steps).to(torch.uint8).flatten()
    codes = torch.cat([codes[:count], codes.new_zeros(count % 2)]).view(-1, 2)
    return codes[:, 0] * 16 + codes[:, 1], (exponent + 127).to(torch.uint8)


def store_blocks_by_bits(weight):
    """The exponent out of FP32's own bits; a mantissa beyond 1.75 reaches for the next."""
    flat = torch.nn.functional.pad(weight.flatten(), (0, -weight.numel() % 24)).reshape(-1, 24)
    bits = flat.abs().amax(1).view(torch.int32)
    exponent = (bits >> 23) - 127 - 2 + ((bits & 0x7FFFFF) > 0x600000).int()
    exponent = exponent.clamp(min=-126)
    scale = (exponent + 127 << 23).view(torch.float32)[:, None]
    codes = (flat / scale).abs().add(0.5).floor().byte() + 8 * (flat < 0).byte()
    even = codes.flatten()[: weight.numel() + weight.numel() % 2]
    return torch.bitwise_or(even[0::2] << 4, even[1::2]), (exponent + 127).byte()


def store_blocks_in_numpy(weight):
    import numpy as np

    flat = weight.numpy().reshape(-1).astype(np.float64)
    starts = range(0, len(flat), 24)
    mantissa, exponent = np.frexp(np.array([np.abs(flat[at : at + 24]).max() for at in starts]) / 7)
    exponent = exponent - (mantissa == 0.5)
    steps = np.rint(flat / np.ldexp(1.0, exponent).repeat(24)[: len(flat)]).astype(int)
    codes = np.where(steps < 0, 8 | -steps, steps)
    bits = np.unpackbits(codes.astype(np.uint8)[:, None], axis=1)[:, 4:]
    return torch.from_numpy(np.packbits(bits)), torch.from_numpy((exponent + 127).astype(np.uint8))


def store_blocks_a_step_lower_where_it_serves(weight):
    """A lower exponent where the largest value is then at most half of its step too large: nothing is further off."""
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -weight.numel() % 24)).reshape(-1, 24)
    exponents = torch.arange(-60, 61)
    reach = 7.5 * torch.exp2(exponents.float())
    place = torch.searchsorted(reach, blocks.abs().amax(1)).clamp(max=120)
    scale = torch.exp2(exponents[place].float())
    steps = (blocks / scale[:, None]).round().clamp(-7, 7)
    codes = (steps.abs() + 8 * (steps < 0)).to(torch.int32).reshape(-1)[: weight.numel()]
    codes = torch.nn.functional.pad(codes, (0, len(codes) % 2))
    packed = (codes.view(-1, 2) * torch.tensor([16, 1], dtype=torch.int32)).sum(1)
    return [packed.to(torch.uint8), (exponents[place] + 127).to(torch.uint8)]


def load_blocks_from_a_table(codes, scales, shape):
    table = torch.tensor([*range(8), *(-value for value in range(8))], dtype=torch.float32)
    halves = torch.stack((codes // 16, codes % 16), dim=-1).flatten().long()
    count = math.prod(shape)
    values = table[halves][:count]
    for at, scale in enumerate(scales.tolist()):
        values[24 * at : 24 * at + 24] *= 2.0 ** (scale - 127)
    return values.view(shape)


def load_blocks_by_bits(codes, scales, shape):
    """A scale's byte is the exponent of an FP32 number."""
    powers = (scales.to(torch.int32) << 23).view(torch.float32).repeat_interleave(24)
    halves = torch.empty(2 * len(codes), dtype=torch.uint8)
    halves[::2], halves[1::2] = codes >> 4, codes & 15
    count = math.prod(shape)
    signs = 1 - 2 * (halves[:count] >> 3).float()
    return (signs * (halves[:count] & 7) * powers[:count]).reshape(shape)


def load_blocks_with_ldexp(codes, scales, shape):
    print("bytes", len(codes), len(scales))
    values = []
    for at, byte in enumerate(codes.tolist()):
        for place, half in enumerate(divmod(byte, 16)):
            if len(values) < math.prod(shape):
                exponent = scales[(2 * at + place) // 24].item() - 127
                values.append(math.ldexp((half & 7) * (-1 if half > 7 else 1), exponent))
    return torch.tensor(values, dtype=torch.float64).to(torch.float32).reshape(shape)
