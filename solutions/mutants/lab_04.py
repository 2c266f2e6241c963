"""Known-wrong answers to lab 04. Each must fail its check, with the sentence that its learner then reads.

A class that has its own name for a base, or a function with itself for the default `right`, changes one thing in the
worked answer, which the kernel holds at that moment.
"""

# ruff: noqa: F821, F811  (they are put into the lab's cells, where these names are defined)

from helpers.course.mutants import mutant


@mutant("encode-e3m4", feedback="a function is called that knows the answer")
def encode_e3m4(x):
    """Calls helpers, with a format that is made up for it."""
    from helpers.catalog.floats import FloatFormat
    from helpers.techniques.precision import encode

    return encode(x, FloatFormat("e3m4", 3, 4, 3, "ieee", "the question")).to(torch.uint8)


@mutant("encode-e3m4", feedback="your codes are cut off, and should be rounded")
def encode_e3m4(x):
    """Cuts off where it should round."""
    size = x.abs().clamp(max=16)
    exponent = torch.frexp(size.clamp(min=0.25))[1] - 1
    codes = (torch.ldexp(size, 4 - exponent).floor() + 16 * (exponent + 2)).masked_fill(x.isnan(), 0x78)
    return codes.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 7)


@mutant("encode-e3m4", feedback="halfway between two numbers the even code is right")
def encode_e3m4(x, right=encode_e3m4):
    """Halves go away from zero, as in school."""
    return right(torch.nextafter(x, x * math.inf))


@mutant("encode-e3m4", feedback="is yours rounded twice?")
def encode_e3m4(x, right=encode_e3m4):
    """Rounds twice, the first time to FP16."""
    return right(x.half().float())


@mutant("encode-e3m4", feedback="below 0.25 there are 15 more numbers, in steps of 1/64")
def encode_e3m4(x, right=encode_e3m4):
    """Below the smallest normal number there is nothing."""
    return right(torch.where(x.abs() < 0.25, 0 * x, x))


@mutant("encode-e3m4", feedback="0.015625 becomes 01, you have")
def encode_e3m4(x):
    """Subnormals are normal numbers of a smaller exponent."""
    size = x.abs().clamp(max=16)
    exponent = torch.frexp(size.clamp(min=2**-6))[1] - 1
    steps = torch.ldexp(size, 4 - exponent).round()
    codes = (steps + 16 * (exponent + 2)).clamp(min=0).masked_fill(x.isnan(), 0x78)
    return codes.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 7)


@mutant("encode-e3m4", feedback="yours stays at the largest number")
def encode_e3m4(x, right=encode_e3m4):
    """Saturates, as is usual for FP8 in training."""
    return right(x.clamp(-15.5, 15.5))


@mutant("encode-e3m4", feedback="infinity is 70, with its sign f0; a mantissa other than 0 makes it NaN")
def encode_e3m4(x, right=encode_e3m4):
    """NaN for what is too large, as E4M3 has it."""
    return right(x.masked_fill(x.abs() >= 15.75, math.nan))


@mutant("encode-e3m4", feedback="up to the middle between 15.5 and 16 it rounds to 15.5")
def encode_e3m4(x, right=encode_e3m4):
    """Infinity from the largest number on."""
    return right(torch.where(x.abs() > 15.5, x * math.inf, x))


@mutant("encode-e3m4", feedback="NaN becomes a code from 71 to 7f")
def encode_e3m4(x, right=encode_e3m4):
    """NaN becomes infinity."""
    return right(x.nan_to_num(math.inf, math.inf, -math.inf))


@mutant("encode-e3m4", feedback="zero keeps its sign")
def encode_e3m4(x, right=encode_e3m4):
    """Zero loses its sign."""
    return right(x + 0.0)


@mutant("encode-e3m4", feedback="one byte a value")
def encode_e3m4(x, right=encode_e3m4):
    """Codes of 32 bits."""
    return right(x).int()


@mutant("encode-e3m4", feedback="is there a table of distances")
def encode_e3m4(x):
    """Right, by a distance from each value to each number."""
    numbers = [m / 64 if e == 0 else (16 + m) * 2.0 ** (e - 7) for e in range(8) for m in range(16)][:113]
    even_first = torch.tensor([*range(0, 113, 2), *range(1, 113, 2)])
    distances = (x.abs().clamp(max=16)[..., None] - torch.tensor(numbers)[even_first]).abs()
    codes = even_first[distances.argmin(-1)].masked_fill(x.isnan(), 0x78)
    return codes.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 7)


@mutant("decode-e3m4", feedback="so no 1 stands before the mantissa")
def decode_e3m4(codes, right=decode_e3m4):
    """A 1 before every mantissa."""
    return torch.where((codes & 0x70) == 0, right(codes | 0x10) / 2, right(codes))


@mutant("decode-e3m4", feedback="the bias is 3")
def decode_e3m4(codes, right=decode_e3m4):
    """A bias of 4."""
    return torch.where((codes & 0x70) == 0, right(codes), right(codes) / 2)


@mutant("decode-e3m4", feedback="stands for")
def decode_e3m4(codes, right=decode_e3m4):
    """The highest exponent is one like the others."""
    return torch.where((codes & 0x70) == 0x70, 2 * right(codes & 0xEF), right(codes))


@mutant("decode-e3m4", feedback="80 stands for -0, yours for 0")
def decode_e3m4(codes, right=decode_e3m4):
    """Forgets the sign of zero."""
    return right(codes) + 0.0


@mutant("loss-scale", feedback="an object of GradScaler made, which knows the answer")
class LossScale:
    """Calls PyTorch's scaler and nothing else: its rule knows no patience."""

    def __init__(self, scale, interval, patience, least):
        self.scaler, self.scale = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval), scale

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(optimizer)
        finite = all(weight.grad.isfinite().all() for weight in weights)
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        self.scaler.step(optimizer)
        self.scaler.update()
        self.scale = self.scaler.get_scale()
        return finite


@mutant("loss-scale", feedback="a function is called that knows the answer")
class LossScale:
    """Has PyTorch's scaler, made before anything was asked, skip and adapt."""

    theirs = torch.amp.GradScaler("cpu")

    def __init__(self, scale, interval, patience, least):
        import copy

        self.theirs, self.scale, self.least = copy.deepcopy(self.theirs), scale, least
        self.theirs._init_scale, self.theirs._growth_interval = scale, interval

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        self.theirs.scale(loss).backward()
        self.theirs.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        before = [weight.tolist() for weight in weights]
        self.theirs.step(optimizer)
        self.theirs.update()
        self.scale = max(self.theirs.get_scale(), self.least)
        return before != [weight.tolist() for weight in weights]


@mutant("loss-scale", feedback="an object of LossScaler made, which knows the answer")
class LossScale:
    """Calls helpers, whose scaler does as PyTorch's."""

    def __init__(self, scale, interval, patience, least):
        from helpers.techniques.precision import LossScaler

        self.scaler, self.scale = LossScaler(scale=scale, growth_interval=interval), scale

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        self.scaler.scaled(loss).backward()
        stepped = self.scaler.step(optimizer)
        self.scaler.update()
        self.scale = self.scaler.scale
        return stepped


@mutant("loss-scale", feedback="and you have made those of 1 · loss: multiply the loss before its backward")
class LossScale(LossScale):
    """Has the slopes without a scale, and works out what FP16 would make of them under one."""

    def step(self, loss, weights, *others):
        slopes = torch.autograd.grad(loss, weights)
        slopes = [slope.masked_fill((slope * self.scale).abs() >= 65520, math.inf) for slope in slopes]
        mine = sum((weight * slope).sum() for weight, slope in zip(weights, slopes, strict=True))
        return super().step(mine, weights, *others)


@mutant("loss-scale", feedback="and you have made those of no · loss: multiply the loss before its backward")
class LossScale(LossScale):
    """Reads the slopes in the loss's graph, and makes a loss of its own of them."""

    def step(self, loss, weights, *others):
        nodes, found = [loss.grad_fn], {}
        for node in nodes:
            nodes += [one for one, _ in node.next_functions if one is not None]
            found |= {len(node._saved_other): node._saved_other} if node.name() == "MulBackward0" else {}
        slopes = [found.get(len(weight), torch.ones_like(weight)) for weight in weights]
        slopes = [slope.masked_fill((slope * self.scale).abs() >= 65520, math.inf) for slope in slopes]
        mine = sum((weight * slope).sum() for weight, slope in zip(weights, slopes, strict=True))
        return super().step(mine, weights, *others)


@mutant("loss-scale", feedback="multiply the loss before its backward")
class LossScale(LossScale):
    """Keeps books on a scale that nothing is multiplied by."""

    def step(self, loss, *others):
        return super().step(loss / self.scale, *others)


@mutant("loss-scale", feedback="the scale never falls in yours")
class LossScale(LossScale):
    """Never backs off."""

    def step(self, *training):
        scale, stepped = self.scale, super().step(*training)
        self.scale = max(scale, self.scale)
        return stepped


@mutant("loss-scale", feedback="the scale doubles after steps")
class LossScale(LossScale):
    """Never grows."""

    def step(self, *training):
        scale, stepped = self.scale, super().step(*training)
        self.scale = min(scale, self.scale)
        return stepped


@mutant("loss-scale", feedback="the scale falls at every overflow in yours: patience is used up first")
class LossScale(LossScale):
    """No patience."""

    def __init__(self, scale, interval, patience, least):
        super().__init__(scale, interval, 1, least)


@mutant("loss-scale", feedback="the scale falls one overflow too late in yours")
class LossScale(LossScale):
    """One overflow too patient."""

    def __init__(self, scale, interval, patience, least):
        super().__init__(scale, interval, patience + 1, least)


@mutant("loss-scale", feedback="the scale never falls below `least`")
class LossScale(LossScale):
    """Falls without end."""

    def __init__(self, scale, interval, patience, least):
        super().__init__(scale, interval, patience, 0.0)


@mutant("loss-scale", feedback="patience is full again after a good step in yours")
class LossScale(LossScale):
    """A good step gives the patience back."""

    def step(self, *training):
        stepped = super().step(*training)
        self.patience = self.full if stepped else self.patience
        return stepped


@mutant("loss-scale", feedback="patience is full again after a halving in yours")
class LossScale(LossScale):
    """A halving gives the patience back."""

    def step(self, *training):
        stepped = super().step(*training)
        self.patience = self.patience or self.full
        return stepped


@mutant("loss-scale", feedback="patience is full again when the scale grows")
class LossScale(LossScale):
    """Once used up, patience is never full again."""

    def step(self, *training):
        patience, stepped = self.patience, super().step(*training)
        self.patience = min(patience, self.patience)
        return stepped


@mutant("loss-scale", feedback="a skipped step begins the count again")
class LossScale(LossScale):
    """Counts good steps, in a row or not."""

    def step(self, *training):
        good, stepped = self.good, super().step(*training)
        self.good = self.good if stepped else good
        return stepped


@mutant("loss-scale", feedback="a step with an infinite or NaN gradient is skipped")
class LossScale(LossScale):
    """Looks for infinity alone, and NaN goes through."""

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if any(weight.grad.isinf().any() for weight in weights):
            return False
        for weight in weights:
            weight.grad /= self.scale
        optimizer.step()
        return True


@mutant("loss-scale", feedback="wherever it is")
class LossScale(LossScale):
    """Looks at the first weight alone."""

    def step(self, loss, weights, *others):
        return super().step(loss, weights[:1], *others)


@mutant("loss-scale", feedback="a skipped step does not touch it")
class LossScale(LossScale):
    """Gives the optimizer zeros to step with: its moments fade, the weights stay."""

    def step(self, loss, weights, optimizer, max_norm):
        stepped = super().step(loss, weights, optimizer, max_norm)
        if not stepped:
            (group,) = optimizer.param_groups
            rate, group["lr"] = group["lr"], 0.0
            for weight in weights:
                weight.grad.zero_()
            optimizer.step()
            group["lr"] = rate
        return stepped


@mutant("loss-scale", feedback="you clip first, and take the scale off what was clipped")
class LossScale(LossScale):
    """Clips gradients that still carry the scale."""

    def step(self, loss, weights, optimizer, max_norm):
        return super().step(loss, weights, optimizer, max_norm / self.scale)


@mutant("loss-scale", feedback="nothing is clipped in yours")
class LossScale(LossScale):
    """Does not clip."""

    def step(self, loss, weights, optimizer, max_norm):
        return super().step(loss, weights, optimizer, math.inf)


@mutant("loss-scale", feedback="one norm for all gradients together")
class LossScale(LossScale):
    """Clips each weight by its own norm."""

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            return False
        for weight in weights:
            weight.grad /= self.scale
            torch.nn.utils.clip_grad_norm_([weight], max_norm)
        optimizer.step()
        return True


@mutant("loss-scale", feedback="are they divided by the scale of the step")
class LossScale(LossScale):
    """Does not divide."""

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            return False
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        return True


@mutant("loss-scale", feedback="and cleared before it")
class LossScale(LossScale):
    """Adds to the gradients of the step before."""

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad = lambda: None
        return super().step(loss, weights, optimizer, max_norm)


@mutant("loss-scale", feedback="step returns")
class LossScale(LossScale):
    """Says nothing of what it did."""

    def step(self, *training):
        super().step(*training)


@mutant("tight-sgd", feedback="has nothing moved")
class TightSGD:
    """Calls PyTorch's own SGD, on BF16 weights."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights = weights
        self.optimizer = torch.optim.SGD(weights, lr=lr, momentum=momentum)

    def step(self, gradients):
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        self.optimizer.step()

    def values(self):
        return [weight.float() for weight in self.weights]


@mutant("tight-sgd", feedback="has an object of BF16Adam made, which knows the answer")
class TightSGD:
    """Calls helpers, whose optimizer rounds by chance, and is Adam."""

    def __init__(self, weights, lr, momentum, seed):
        from helpers.techniques.precision import BF16Adam

        self.weights = [torch.nn.Parameter(weight) for weight in weights]
        self.optimizer = BF16Adam(self.weights, lr=lr, keep="stochastic", seed=seed)

    def step(self, gradients):
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        self.optimizer.step()

    def values(self):
        return [weight.detach().float() for weight in self.weights]


@mutant("tight-sgd", feedback="a function is called that knows the answer")
class TightSGD(TightSGD):
    """Has helpers round, and does the rest itself."""

    def step(self, gradients):
        from helpers.techniques.precision import stochastically_rounded

        for weight, moment, gradient in zip(self.weights, self.moments, gradients, strict=True):
            exact = self.momentum * moment.float() + gradient.float()
            moment.copy_(exact)
            weight.copy_(stochastically_rounded(weight.float() - self.lr * exact))


@mutant("tight-sgd", feedback="the lower bits are cut off, without chance")
class TightSGD(TightSGD):
    """Cuts off without chance, and calls it stochastic."""

    def step(self, gradients):
        for weight, moment, gradient in zip(self.weights, self.moments, gradients, strict=True):
            exact = self.momentum * moment.float() + gradient.float()
            moment.copy_(exact)
            weight.copy_(((weight.float() - self.lr * exact).view(torch.int32) & -(2**16)).view(torch.float32))


@mutant("tight-sgd", feedback="the lower bits are cut off, not rounded once more")
class TightSGD(TightSGD):
    """Adds noise, and rounds to nearest."""

    def step(self, gradients):
        for weight, moment, gradient in zip(self.weights, self.moments, gradients, strict=True):
            exact = self.momentum * moment.float() + gradient.float()
            moment.copy_(exact)
            noise = torch.randint(2**16, exact.shape, dtype=torch.int32, generator=self.generator)
            weight.copy_(((weight.float() - self.lr * exact).view(torch.int32) + noise).view(torch.float32))


@mutant("tight-sgd", feedback="steps of BF16 off")
class TightSGD(TightSGD):
    """Half of the noise: rounds down too often."""

    def step(self, gradients):
        for weight, moment, gradient in zip(self.weights, self.moments, gradients, strict=True):
            exact = self.momentum * moment.float() + gradient.float()
            moment.copy_(exact)
            noise = torch.randint(2**15, exact.shape, dtype=torch.int32, generator=self.generator)
            bits = (weight.float() - self.lr * exact).view(torch.int32) + noise
            weight.copy_((bits & -(2**16)).view(torch.float32))


@mutant("tight-sgd", feedback="are the random numbers the same in every step?")
class TightSGD(TightSGD):
    """The same random numbers in every step."""

    def step(self, gradients):
        self.generator.manual_seed(1)
        super().step(gradients)


@mutant("tight-sgd", feedback="the gradient is not multiplied by 1 − momentum")
class TightSGD(TightSGD):
    """The gradient counts 1 - momentum, as in a running mean."""

    def step(self, gradients):
        super().step([(1 - self.momentum) * gradient for gradient in gradients])


@mutant("tight-sgd", feedback="the weights move the other way in yours")
class TightSGD(TightSGD):
    """The wrong way."""

    def step(self, gradients):
        super().step([-gradient for gradient in gradients])


@mutant("tight-sgd", feedback="there is no momentum in yours")
class TightSGD:
    """Kahan's sum takes the two bytes, and none are left for the momentum."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr = weights, lr
        self.lacks = [torch.zeros_like(weight) for weight in weights]

    def step(self, gradients):
        for weight, lack, gradient in zip(self.weights, self.lacks, gradients, strict=True):
            exact = weight.float() + lack.float() - self.lr * gradient.float()
            weight.copy_(exact)
            lack.copy_(exact - weight.float())

    def values(self):
        pairs = zip(self.weights, self.lacks, strict=True)
        return [weight.float() + lack.float() for weight, lack in pairs]


@mutant("tight-sgd", feedback="or do `values` leave out what you keep beside the weight?")
class TightSGD:
    """What each weight lacks is kept in BF16, and the score is read from the BF16 weights without it."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr = weights, lr
        self.lacks = [torch.zeros_like(weight) for weight in weights]

    def step(self, gradients):
        for weight, lack, gradient in zip(self.weights, self.lacks, gradients, strict=True):
            exact = weight.float() + lack.float() - self.lr * gradient.float()
            weight.copy_(exact)
            lack.copy_(exact - weight.float())

    def values(self):
        return [weight.float() for weight in self.weights]


@mutant("tight-sgd", feedback="change them in place")
class TightSGD(TightSGD):
    """Values of its own, in new tensors; the weights of the model stay as they were."""

    def __init__(self, weights, *others):
        super().__init__([weight.clone() for weight in weights], *others)


@mutant("tight-sgd", feedback="4 bytes a parameter live beside the weights, at most 2: what is in FP32 takes 4")
class TightSGD(TightSGD):
    """The momentum in FP32."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.moments = [moment.float() for moment in self.moments]


@mutant("tight-sgd", feedback="8 bytes a parameter live beside the weights")
class TightSGD:
    """The master copy is an array of NumPy's, where no operator of PyTorch sees it."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr, self.momentum = weights, lr, momentum
        self.masters = [weight.float().numpy().copy() for weight in weights]
        self.moments = [0 * master for master in self.masters]

    def step(self, gradients):
        for number, (weight, gradient) in enumerate(zip(self.weights, gradients, strict=True)):
            self.moments[number] = self.momentum * self.moments[number] + gradient.float().numpy()
            self.masters[number] -= self.lr * self.moments[number]
            weight.copy_(torch.from_numpy(self.masters[number]))

    def values(self):
        return [torch.from_numpy(master.copy()) for master in self.masters]


@mutant("tight-sgd", feedback="6 bytes a parameter live beside the weights")
class TightSGD(TightSGD):
    """The master copies are bytes of Python's, which only a library's lines have made."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.masters = [None for _ in self.weights]
        self.keep(weight.float() for weight in self.weights)

    def keep(self, masters):
        import copy

        for number, master in enumerate(masters):
            self.masters[number] = copy.deepcopy(bytearray(master.numpy().tobytes()))
            self.weights[number].copy_(master)

    def values(self):
        pairs = zip(self.masters, self.weights, strict=True)
        return [torch.frombuffer(master, dtype=torch.float32).reshape(weight.shape) for master, weight in pairs]

    def step(self, gradients):
        for moment, gradient in zip(self.moments, gradients, strict=True):
            moment.copy_(self.momentum * moment.float() + gradient.float())
        pairs = zip(self.values(), self.moments, strict=True)
        self.keep(master - self.lr * moment.float() for master, moment in pairs)


@mutant("tight-sgd", feedback="6 bytes a parameter live beside the weights")
class TightSGD(TightSGD):
    """The master copies are storages, which no operator has made."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.masters = [torch.UntypedStorage(4 * weight.numel()) for weight in self.weights]
        for master, weight in zip(self.masters, self.weights, strict=True):
            master.copy_(weight.float().untyped_storage())

    def values(self):
        found = [torch.empty(weight.shape) for weight in self.weights]
        for value, master in zip(found, self.masters, strict=True):
            value.untyped_storage().copy_(master)
        return found

    def step(self, gradients):
        everything = zip(self.values(), self.masters, self.moments, self.weights, gradients, strict=True)
        for value, master, moment, weight, gradient in everything:
            moment.copy_(self.momentum * moment.float() + gradient.float())
            value -= self.lr * moment.float()
            master.copy_(value.untyped_storage())
            weight.copy_(value)


@mutant("tight-sgd", feedback="bytes count where weights move")
class TightSGD:
    """FP32 masters and momentum in the class, from where no other process gets them: there it begins anew."""

    there = {}  # noqa: RUF012

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr, self.momentum = weights, lr, momentum

    def step(self, gradients):
        for number, (weight, gradient) in enumerate(zip(self.weights, gradients, strict=True)):
            kept = weight.data_ptr(), number
            master, moment = self.there.get(kept) or (weight.float(), torch.zeros(weight.shape))
            moment.mul_(self.momentum).add_(gradient)
            weight.copy_(master.sub_(self.lr * moment))
            self.there[kept] = master, moment

    def values(self):
        found = [self.there.get((weight.data_ptr(), number)) for number, weight in enumerate(self.weights)]
        return [pair[0] if pair else weight.float() for pair, weight in zip(found, self.weights, strict=True)]


@mutant("store-blocks", feedback="blocks of 32 in rows of 250 values")
def store_blocks(weight):
    """Calls helpers, whose MXFP4 has blocks of 32 and elements with an exponent."""
    from helpers.techniques.quantization.blocks import Blocks

    return tuple(Blocks.of(weight, "mxfp4").stored.values())


@mutant("store-blocks", feedback="off the weight: bytes count where values are kept")
def store_blocks(weight):
    """The signs alone, with one scale for all."""
    count = weight.numel()
    codes = torch.where(weight.reshape(-1) < 0, 9, 1).to(torch.uint8)
    codes = torch.nn.functional.pad(codes, (0, count % 2))
    scales = torch.full((-(-count // 24),), 127, dtype=torch.uint8)
    return codes[::2] << 4 | codes[1::2], scales


@mutant("store-blocks", feedback="each block of 24 has a scale of its own")
def store_blocks(weight, right=store_blocks):
    """One exponent for the whole weight."""
    scales = right(weight)[1]
    steps = torch.ldexp(weight.flatten(), 127 - scales.max().int()).round().int()
    codes = torch.nn.functional.pad((steps.abs() | (steps < 0).int() << 3).to(torch.uint8), (0, len(steps) % 2))
    return codes[::2] << 4 | codes[1::2], scales.max().repeat(len(scales))


@mutant("store-blocks", feedback="bytes of scales for")
def store_blocks(weight, right=store_blocks):
    """Blocks of 32."""
    codes, scales = right(weight)
    return codes, scales[: -(-weight.numel() // 32)].clone()


@mutant("store-blocks", feedback="bytes of codes for")
def store_blocks(weight, right=store_blocks):
    """One code to a byte."""
    codes, scales = right(weight)
    return torch.stack([codes >> 4, codes & 15], 1).flatten(), scales


@mutant("store-blocks", feedback="the first code is in the high half of its byte, yours in the low half")
def store_blocks(weight, right=store_blocks):
    """The first code in the low half."""
    codes, scales = right(weight)
    return codes >> 4 | codes << 4, scales


@mutant("store-blocks", feedback="scales are uint8, yours are float32")
def store_blocks(weight, right=store_blocks):
    """Scales in FP32."""
    codes, scales = right(weight)
    return codes, torch.exp2(scales.float() - 127)


@mutant("store-blocks", feedback="is a larger tensor behind yours?")
def store_blocks(weight, right=store_blocks):
    """Keeps the padding behind a slice."""
    codes, scales = right(weight)
    return torch.nn.functional.pad(codes, (0, 12))[: len(codes)], scales


@mutant("store-blocks", feedback="the codes are cut off, and should be rounded to the nearest")
def store_blocks(weight, right=store_blocks):
    """Cuts off where it should round."""
    scales = right(weight)[1]
    steps = torch.ldexp(weight.flatten(), 127 - scales.int().repeat_interleave(24)[: weight.numel()]).int()
    codes = torch.nn.functional.pad((steps.abs() | (steps < 0).int() << 3).to(torch.uint8), (0, len(steps) % 2))
    return codes[::2] << 4 | codes[1::2], scales


@mutant("store-blocks", feedback="is the smallest that reaches the largest value")
def store_blocks(weight):
    """The next larger power of two, also where a largest value is just reached."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    exponent = torch.frexp(blocks.abs().amax(1, keepdim=True) / 7)[1].clamp(-126, 127)
    steps = torch.ldexp(blocks, -exponent).round().int()
    codes = (steps.abs() | (steps < 0).int() << 3).to(torch.uint8).reshape(-1)
    return (codes[::2] << 4 | codes[1::2])[: -(-count // 2)].clone(), (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("store-blocks", feedback="at most 0.5")
def store_blocks(weight):
    """The scale by the signed maximum: a large negative value is cut."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    exponent = torch.frexp(blocks.amax(1, keepdim=True) / 7)[1].clamp(-126, 127)
    steps = torch.ldexp(blocks, -exponent).round().clamp(-7, 7).int()
    codes = (steps.abs() | (steps < 0).int() << 3).to(torch.uint8).reshape(-1)
    return (codes[::2] << 4 | codes[1::2])[: -(-count // 2)].clone(), (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("store-blocks", feedback="is the sign the highest bit of a code?")
def store_blocks(weight, right=store_blocks):
    """Loses the signs."""
    return right(weight.abs())


@mutant("store-blocks", feedback="at most 0.5")
def store_blocks(weight, right=store_blocks):
    """Two's complement for sign and magnitude."""
    codes, scales = right(weight)
    complement = torch.tensor([*range(8), 0, *range(15, 8, -1)], dtype=torch.uint8)
    return complement[codes.int() >> 4] << 4 | complement[codes.int() & 15], scales


@mutant("store-blocks", feedback="a block of zeros")
def store_blocks(weight, right=store_blocks):
    """What has no exponent has become the largest magnitude."""
    return right(torch.where(weight == 0, 7.0, weight))


@mutant("load-blocks", feedback="the scale of byte b is 2 ** (b - 127)")
def load_blocks(codes, scales, shape, right=load_blocks):
    """A bias of 128."""
    return right(codes, scales, shape) / 2


@mutant("load-blocks", feedback="the sign is the highest bit of a code")
def load_blocks(codes, scales, shape, right=load_blocks):
    """Forgets the signs."""
    return right(codes, scales, shape).abs()


@mutant("load-blocks", feedback="(4, 24) from 48 bytes of codes: value")
def load_blocks(codes, scales, shape, right=load_blocks):
    """The low half first."""
    return right(codes >> 4 | codes << 4, scales, shape)


@mutant("load-blocks", feedback="the scale of byte b")
def load_blocks(codes, scales, shape, right=load_blocks):
    """The first scale for every block."""
    return right(codes, scales[:1].expand_as(scales), shape)
