"""Known-wrong answers to lab 04. Each must fail its check, with the sentence that its learner then reads."""

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
    steps = torch.ldexp(size, 4 - exponent).floor()
    codes = (steps + 16 * (exponent + 2)).masked_fill(x.isnan(), 0x78)
    return codes.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 7)


@mutant("encode-e3m4", feedback="halfway between two numbers the even code is right")
def encode_e3m4(x):
    """Halves go away from zero, as in school."""
    size = x.abs().clamp(max=16)
    exponent = torch.frexp(size.clamp(min=0.25))[1] - 1
    steps = torch.ldexp(size, 4 - exponent).add(0.5).floor()
    codes = (steps + 16 * (exponent + 2)).masked_fill(x.isnan(), 0x78)
    return codes.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 7)


@mutant("encode-e3m4", feedback="is yours rounded twice?")
def encode_e3m4(x):
    """Rounds twice, the first time to FP16."""
    size = x.half().float().abs().clamp(max=16)
    exponent = torch.frexp(size.clamp(min=0.25))[1] - 1
    steps = torch.ldexp(size, 4 - exponent).round()
    codes = (steps + 16 * (exponent + 2)).masked_fill(x.isnan(), 0x78)
    return codes.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 7)


@mutant("encode-e3m4", feedback="below 0.25 there are 15 more numbers, in steps of 1/64")
def encode_e3m4(x):
    """Below the smallest normal number there is nothing."""
    size = x.abs().clamp(max=16)
    exponent = torch.frexp(size.clamp(min=0.25))[1] - 1
    steps = torch.ldexp(size, 4 - exponent).round()
    codes = (steps + 16 * (exponent + 2)).masked_fill(x.isnan(), 0x78)
    codes = codes * (size >= 0.25)
    return codes.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 7)


@mutant("encode-e3m4", feedback="0.015625 becomes 01, you have")
def encode_e3m4(x):
    """Subnormals are normal numbers of a smaller exponent."""
    size = x.abs().clamp(max=16)
    exponent = torch.frexp(size.clamp(min=2**-6))[1] - 1
    steps = torch.ldexp(size, 4 - exponent).round()
    codes = (steps + 16 * (exponent + 2)).clamp(min=0).masked_fill(x.isnan(), 0x78)
    return codes.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 7)


@mutant("encode-e3m4", feedback="yours stays at the largest number")
def encode_e3m4(x):
    """Saturates, as is usual for FP8 in training."""
    size = x.abs().clamp(max=15.5)
    exponent = torch.frexp(size.clamp(min=0.25))[1] - 1
    steps = torch.ldexp(size, 4 - exponent).round()
    codes = (steps + 16 * (exponent + 2)).masked_fill(x.isnan(), 0x78)
    return codes.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 7)


@mutant("encode-e3m4", feedback="infinity is 70, with its sign f0; a mantissa other than 0 makes it NaN")
def encode_e3m4(x):
    """NaN for what is too large, as E4M3 has it."""
    size = x.abs().clamp(max=16)
    exponent = torch.frexp(size.clamp(min=0.25))[1] - 1
    steps = torch.ldexp(size, 4 - exponent).round()
    codes = (steps + 16 * (exponent + 2)).masked_fill(~(x.abs() < 15.75), 0x7F)
    return codes.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 7)


@mutant("encode-e3m4", feedback="infinity is 70, with its sign f0; a mantissa other than 0 makes it NaN")
def encode_e3m4(x):
    """No specials: the highest exponent is for numbers, too."""
    size = x.abs().clamp(max=31)
    exponent = torch.frexp(size.clamp(min=0.25))[1] - 1
    steps = torch.ldexp(size, 4 - exponent).round()
    codes = (steps + 16 * (exponent + 2)).masked_fill(x.isnan(), 0x78)
    return codes.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 7)


@mutant("encode-e3m4", feedback="up to the middle between 15.5 and 16 it rounds to 15.5")
def encode_e3m4(x):
    """Infinity from the largest number on."""
    size = x.abs().clamp(max=16)
    exponent = torch.frexp(size.clamp(min=0.25))[1] - 1
    steps = torch.ldexp(size, 4 - exponent).round()
    codes = (steps + 16 * (exponent + 2)).masked_fill(size > 15.5, 0x70).masked_fill(x.isnan(), 0x78)
    return codes.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 7)


@mutant("encode-e3m4", feedback="NaN becomes a code from 71 to 7f")
def encode_e3m4(x):
    """NaN becomes infinity."""
    size = x.abs().clamp(max=16)
    exponent = torch.frexp(size.clamp(min=0.25))[1] - 1
    steps = torch.ldexp(size, 4 - exponent).round()
    codes = (steps + 16 * (exponent + 2)).masked_fill(x.isnan(), 0x70)
    return codes.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 7)


@mutant("encode-e3m4", feedback="zero keeps its sign")
def encode_e3m4(x):
    """Zero loses its sign."""
    size = x.abs().clamp(max=16)
    exponent = torch.frexp(size.clamp(min=0.25))[1] - 1
    steps = torch.ldexp(size, 4 - exponent).round()
    codes = (steps + 16 * (exponent + 2)).masked_fill(x.isnan(), 0x78)
    return codes.to(torch.uint8) | ((x < 0).to(torch.uint8) << 7)


@mutant("encode-e3m4", feedback="one byte a value")
def encode_e3m4(x):
    """Codes of 32 bits."""
    size = x.abs().clamp(max=16)
    exponent = torch.frexp(size.clamp(min=0.25))[1] - 1
    steps = torch.ldexp(size, 4 - exponent).round()
    codes = (steps + 16 * (exponent + 2)).masked_fill(x.isnan(), 0x78)
    return codes.int() + 128 * torch.signbit(x).int()


@mutant("encode-e3m4", feedback="is there a table of distances")
def encode_e3m4(x):
    """Right, by a distance from each value to each number."""
    numbers = [m / 64 if e == 0 else (16 + m) * 2.0 ** (e - 7) for e in range(8) for m in range(16)][:113]
    even_first = torch.tensor([*range(0, 113, 2), *range(1, 113, 2)])
    distances = (x.abs().clamp(max=16)[..., None] - torch.tensor(numbers)[even_first]).abs()
    codes = even_first[distances.argmin(-1)].masked_fill(x.isnan(), 0x78)
    return codes.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 7)


@mutant("decode-e3m4", feedback="so no 1 stands before the mantissa")
def decode_e3m4(codes):
    """A 1 before every mantissa."""
    exponent, mantissa = (codes >> 4 & 7).int(), (codes & 15).float()
    size = torch.ldexp(mantissa + 16, exponent - 7)
    size = torch.where(exponent == 7, torch.where(mantissa == 0, torch.inf, torch.nan), size)
    return torch.where(codes >= 128, -size, size)


@mutant("decode-e3m4", feedback="the bias is 3")
def decode_e3m4(codes):
    """A bias of 4."""
    exponent, mantissa = (codes >> 4 & 7).int(), (codes & 15).float()
    size = torch.where(exponent == 0, mantissa / 64, torch.ldexp(mantissa + 16, exponent - 8))
    size = torch.where(exponent == 7, torch.where(mantissa == 0, torch.inf, torch.nan), size)
    return torch.where(codes >= 128, -size, size)


@mutant("decode-e3m4", feedback="stands for")
def decode_e3m4(codes):
    """The highest exponent is one like the others."""
    exponent, mantissa = (codes >> 4 & 7).int(), (codes & 15).float()
    size = torch.where(exponent == 0, mantissa / 64, torch.ldexp(mantissa + 16, exponent - 7))
    return torch.where(codes >= 128, -size, size)


@mutant("decode-e3m4", feedback="80 stands for -0, yours for 0")
def decode_e3m4(codes):
    """Forgets the sign of zero."""
    exponent, mantissa = (codes >> 4 & 7).int(), (codes & 15).float()
    size = torch.where(exponent == 0, mantissa / 64, torch.ldexp(mantissa + 16, exponent - 7))
    size = torch.where(exponent == 7, torch.where(mantissa == 0, torch.inf, torch.nan), size)
    return torch.where(codes >= 128, 0 - size, size)


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


@mutant("loss-scale", feedback="the scale never falls in yours")
class LossScale:
    """Never backs off."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            return False
        for weight in weights:
            weight.grad /= self.scale
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="the scale doubles after steps")
class LossScale:
    """Never grows."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            return False
        for weight in weights:
            weight.grad /= self.scale
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="the scale falls at every overflow in yours: patience is used up first")
class LossScale:
    """No patience."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if True:
                self.scale = max(self.scale / 2, self.least)
            return False
        for weight in weights:
            weight.grad /= self.scale
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="the scale falls one overflow too late in yours")
class LossScale:
    """One overflow too patient."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience < 0:
                self.scale = max(self.scale / 2, self.least)
            return False
        for weight in weights:
            weight.grad /= self.scale
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="the scale never falls below `least`")
class LossScale:
    """Falls without end."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = self.scale / 2
            return False
        for weight in weights:
            weight.grad /= self.scale
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="patience is full again after a good step in yours")
class LossScale:
    """A good step gives the patience back."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            return False
        for weight in weights:
            weight.grad /= self.scale
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good, self.patience = self.good + 1, self.full
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="patience is full again when the scale grows")
class LossScale:
    """Once used up, patience is never full again."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            return False
        for weight in weights:
            weight.grad /= self.scale
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.patience
        return True


@mutant("loss-scale", feedback="a skipped step begins the count again")
class LossScale:
    """Counts good steps, in a row or not."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.patience -= 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            return False
        for weight in weights:
            weight.grad /= self.scale
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="a step with an infinite or NaN gradient is skipped")
class LossScale:
    """Steps in any case."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
        for weight in weights:
            weight.grad /= self.scale
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="a step with an infinite or NaN gradient is skipped")
class LossScale:
    """Looks for infinity alone, and NaN goes through."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if any(weight.grad.isinf().any() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            return False
        for weight in weights:
            weight.grad /= self.scale
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="wherever it is")
class LossScale:
    """Looks at the first weight alone."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights[:1]):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            return False
        for weight in weights:
            weight.grad /= self.scale
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="a skipped step does not touch it")
class LossScale:
    """Gives the optimizer zeros to step with: its moments fade, the weights go on."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            for group in optimizer.param_groups:
                rate, group["lr"] = group["lr"], 0.0
            for weight in weights:
                weight.grad.zero_()
            optimizer.step()
            optimizer.param_groups[0]["lr"] = rate
            return False
        for weight in weights:
            weight.grad /= self.scale
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="a step with an infinite or NaN gradient is skipped")
class LossScale:
    """Puts 0 in the place of what is infinite, and steps: momentum moves the weights."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            for weight in weights:
                weight.grad = torch.nan_to_num(weight.grad, 0.0, 0.0, 0.0)
            optimizer.step()
            return False
        for weight in weights:
            weight.grad /= self.scale
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="you clip first, and take the scale off what was clipped")
class LossScale:
    """Clips gradients that still carry the scale."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            return False
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        for weight in weights:
            weight.grad /= self.scale
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="nothing is clipped in yours")
class LossScale:
    """Does not clip."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            return False
        for weight in weights:
            weight.grad /= self.scale
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="one norm for all gradients together")
class LossScale:
    """Clips each weight by its own norm."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            return False
        for weight in weights:
            weight.grad /= self.scale
        for weight in weights:
            torch.nn.utils.clip_grad_norm_([weight], max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="are they divided by the scale of the step")
class LossScale:
    """Does not divide."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            return False
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="are they divided by the scale of the step")
class LossScale:
    """Divides by the scale that comes next."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            return False
        for weight in weights:
            weight.grad /= self.full * self.scale * 2
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="multiply the loss before its backward")
class LossScale:
    """Keeps books on a scale that nothing is multiplied by."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        loss.backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            return False
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="and cleared before it")
class LossScale:
    """Adds to the gradients of the step before."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            return False
        for weight in weights:
            weight.grad /= self.scale
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return True


@mutant("loss-scale", feedback="step returns")
class LossScale:
    """Says nothing of what it did."""

    def __init__(self, scale, interval, patience, least):
        self.scale, self.interval, self.full, self.least = scale, interval, patience, least
        self.good, self.patience = 0, patience

    def step(self, loss, weights, optimizer, max_norm):
        optimizer.zero_grad()
        (loss * self.scale).backward()
        if not all(weight.grad.isfinite().all() for weight in weights):
            self.good, self.patience = 0, self.patience - 1
            if self.patience <= 0:
                self.scale = max(self.scale / 2, self.least)
            return False
        for weight in weights:
            weight.grad /= self.scale
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good, self.patience = 2 * self.scale, 0, self.full
        return None


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
class TightSGD:
    """Has helpers round, and does the rest itself."""

    def __init__(self, weights, lr, momentum, seed):
        from helpers.techniques.precision import stochastically_rounded

        self.weights, self.lr, self.momentum, self.rounded = weights, lr, momentum, stochastically_rounded
        self.moments = [torch.zeros_like(weight) for weight in weights]

    def step(self, gradients):
        for weight, moment, gradient in zip(self.weights, self.moments, gradients, strict=True):
            exact = self.momentum * moment.float() + gradient.float()
            moment.copy_(exact)
            weight.copy_(self.rounded(weight.float() - self.lr * exact))

    def values(self):
        return [weight.float() for weight in self.weights]


@mutant("tight-sgd", feedback="the lower bits are cut off, without chance")
class TightSGD:
    """Cuts off without chance, and calls it stochastic."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr, self.momentum = weights, lr, momentum
        self.moments = [torch.zeros_like(weight) for weight in weights]
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, gradients):
        for weight, moment, gradient in zip(self.weights, self.moments, gradients, strict=True):
            exact = self.momentum * moment.float() + gradient.float()
            moment.copy_(exact)
            noise = 0
            bits = (weight.float() - self.lr * exact).view(torch.int32) + noise
            weight.copy_((bits & -(2**16)).view(torch.float32))

    def values(self):
        return [weight.float() for weight in self.weights]


@mutant("tight-sgd", feedback="the lower bits are cut off, not rounded once more")
class TightSGD:
    """Adds noise, and rounds to nearest."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr, self.momentum = weights, lr, momentum
        self.moments = [torch.zeros_like(weight) for weight in weights]
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, gradients):
        for weight, moment, gradient in zip(self.weights, self.moments, gradients, strict=True):
            exact = self.momentum * moment.float() + gradient.float()
            moment.copy_(exact)
            noise = torch.randint(2**16, exact.shape, dtype=torch.int32, generator=self.generator)
            bits = (weight.float() - self.lr * exact).view(torch.int32) + noise
            weight.copy_(bits.view(torch.float32))

    def values(self):
        return [weight.float() for weight in self.weights]


@mutant("tight-sgd", feedback="steps of BF16 off")
class TightSGD:
    """Half of the noise: rounds down too often."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr, self.momentum = weights, lr, momentum
        self.moments = [torch.zeros_like(weight) for weight in weights]
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, gradients):
        for weight, moment, gradient in zip(self.weights, self.moments, gradients, strict=True):
            exact = self.momentum * moment.float() + gradient.float()
            moment.copy_(exact)
            noise = torch.randint(2**15, exact.shape, dtype=torch.int32, generator=self.generator)
            bits = (weight.float() - self.lr * exact).view(torch.int32) + noise
            weight.copy_((bits & -(2**16)).view(torch.float32))

    def values(self):
        return [weight.float() for weight in self.weights]


@mutant("tight-sgd", feedback="are the random numbers the same in every step?")
class TightSGD:
    """The same random numbers in every step."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr, self.momentum = weights, lr, momentum
        self.moments = [torch.zeros_like(weight) for weight in weights]
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, gradients):
        for weight, moment, gradient in zip(self.weights, self.moments, gradients, strict=True):
            exact = self.momentum * moment.float() + gradient.float()
            moment.copy_(exact)
            noise = torch.randint(2**16, exact.shape, dtype=torch.int32, generator=torch.Generator().manual_seed(1))
            bits = (weight.float() - self.lr * exact).view(torch.int32) + noise
            weight.copy_((bits & -(2**16)).view(torch.float32))

    def values(self):
        return [weight.float() for weight in self.weights]


@mutant("tight-sgd", feedback="steps of BF16 off")
class TightSGD:
    """One random number for all weights."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr, self.momentum = weights, lr, momentum
        self.moments = [torch.zeros_like(weight) for weight in weights]
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, gradients):
        for weight, moment, gradient in zip(self.weights, self.moments, gradients, strict=True):
            exact = self.momentum * moment.float() + gradient.float()
            moment.copy_(exact)
            noise = torch.randint(2**16, (), dtype=torch.int32, generator=self.generator)
            bits = (weight.float() - self.lr * exact).view(torch.int32) + noise
            weight.copy_((bits & -(2**16)).view(torch.float32))

    def values(self):
        return [weight.float() for weight in self.weights]


@mutant("tight-sgd", feedback="there is no momentum in yours")
class TightSGD:
    """No momentum."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr, self.momentum = weights, lr, momentum
        self.moments = [torch.zeros_like(weight) for weight in weights]
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, gradients):
        for weight, moment, gradient in zip(self.weights, self.moments, gradients, strict=True):
            exact = gradient.float()
            moment.copy_(exact)
            noise = torch.randint(2**16, exact.shape, dtype=torch.int32, generator=self.generator)
            bits = (weight.float() - self.lr * exact).view(torch.int32) + noise
            weight.copy_((bits & -(2**16)).view(torch.float32))

    def values(self):
        return [weight.float() for weight in self.weights]


@mutant("tight-sgd", feedback="the gradient is not multiplied by 1 − momentum")
class TightSGD:
    """The gradient counts 1 - momentum, as in a running mean."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr, self.momentum = weights, lr, momentum
        self.moments = [torch.zeros_like(weight) for weight in weights]
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, gradients):
        for weight, moment, gradient in zip(self.weights, self.moments, gradients, strict=True):
            exact = self.momentum * moment.float() + (1 - self.momentum) * gradient.float()
            moment.copy_(exact)
            noise = torch.randint(2**16, exact.shape, dtype=torch.int32, generator=self.generator)
            bits = (weight.float() - self.lr * exact).view(torch.int32) + noise
            weight.copy_((bits & -(2**16)).view(torch.float32))

    def values(self):
        return [weight.float() for weight in self.weights]


@mutant("tight-sgd", feedback="the weights move the other way in yours")
class TightSGD:
    """The wrong way."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr, self.momentum = weights, lr, momentum
        self.moments = [torch.zeros_like(weight) for weight in weights]
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, gradients):
        for weight, moment, gradient in zip(self.weights, self.moments, gradients, strict=True):
            exact = self.momentum * moment.float() + gradient.float()
            moment.copy_(exact)
            noise = torch.randint(2**16, exact.shape, dtype=torch.int32, generator=self.generator)
            bits = (weight.float() + self.lr * exact).view(torch.int32) + noise
            weight.copy_((bits & -(2**16)).view(torch.float32))

    def values(self):
        return [weight.float() for weight in self.weights]


@mutant("tight-sgd", feedback="what is in FP32 takes 4")
class TightSGD:
    """The momentum in FP32."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.lr, self.momentum = weights, lr, momentum
        self.moments = [torch.zeros(weight.shape) for weight in weights]
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, gradients):
        for weight, moment, gradient in zip(self.weights, self.moments, gradients, strict=True):
            exact = self.momentum * moment.float() + gradient.float()
            moment.copy_(exact)
            noise = torch.randint(2**16, exact.shape, dtype=torch.int32, generator=self.generator)
            bits = (weight.float() - self.lr * exact).view(torch.int32) + noise
            weight.copy_((bits & -(2**16)).view(torch.float32))

    def values(self):
        return [weight.float() for weight in self.weights]


@mutant("tight-sgd", feedback="what is in FP32 takes 4")
class TightSGD:
    """An FP32 master copy beside the weights and their momentum."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights, self.masters = weights, [weight.float() for weight in weights]
        self.optimizer = torch.optim.SGD(self.masters, lr=lr, momentum=momentum)

    def step(self, gradients):
        for master, gradient in zip(self.masters, gradients, strict=True):
            master.grad = gradient.float()
        self.optimizer.step()
        self.optimizer.zero_grad()
        for weight, master in zip(self.weights, self.masters, strict=True):
            weight.copy_(master)

    def values(self):
        return [master.clone() for master in self.masters]


@mutant("tight-sgd", feedback="bytes live beside the weights")
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


@mutant("tight-sgd", feedback="change them in place")
class TightSGD:
    """Values of its own, in new tensors; the weights of the model stay as they were."""

    def __init__(self, weights, lr, momentum, seed):
        self.now, self.lr, self.momentum = [weight.clone() for weight in weights], lr, momentum
        self.generator = torch.Generator().manual_seed(seed)
        self.moments = [0.0 for weight in weights]

    def step(self, gradients):
        for number, gradient in enumerate(gradients):
            self.moments[number] = self.momentum * self.moments[number] + gradient.float().mean().item()
            exact = self.now[number].float() - self.lr * self.moments[number]
            noise = torch.randint(2**16, exact.shape, dtype=torch.int32, generator=self.generator)
            self.now[number] = ((exact.view(torch.int32) + noise) & -(2**16)).view(torch.float32).bfloat16()

    def values(self):
        return [now.float() for now in self.now]


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


@mutant("store-blocks", feedback="blocks of 32 in rows of 250 values")
def store_blocks(weight):
    """Calls helpers, whose MXFP4 has blocks of 32 and elements with an exponent."""
    from helpers.techniques.quantization.blocks import Blocks

    return tuple(Blocks.of(weight, "mxfp4").stored.values())


@mutant("store-blocks", feedback="each block of 24 has a scale of its own")
def store_blocks(weight):
    """One exponent for the whole weight."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    mantissa, exponent = torch.frexp(blocks.abs().amax(1, keepdim=True) / 7)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(-126, 127)
    exponent = exponent.amax().expand_as(exponent)
    steps = torch.ldexp(blocks, -exponent).round().clamp(-7, 7).int()
    codes = (steps.abs() | (steps < 0).int() << 3).to(torch.uint8).reshape(-1)
    packed = (codes[::2] << 4 | codes[1::2])[: -(-count // 2)].clone()
    return packed, (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("store-blocks", feedback="bytes of scales for")
def store_blocks(weight):
    """An exponent for each row of the weight's values, and no sharing in blocks of 24."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    mantissa, exponent = torch.frexp(blocks.abs().amax(1, keepdim=True) / 7)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(-126, 127)
    steps = torch.ldexp(blocks, -exponent).round().clamp(-7, 7).int()
    codes = (steps.abs() | (steps < 0).int() << 3).to(torch.uint8).reshape(-1)
    packed = (codes[::2] << 4 | codes[1::2])[: -(-count // 2)].clone()
    exponent = exponent.expand(-1, 24)
    return packed, (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("store-blocks", feedback="bytes of codes for")
def store_blocks(weight):
    """One code to a byte."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    mantissa, exponent = torch.frexp(blocks.abs().amax(1, keepdim=True) / 7)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(-126, 127)
    steps = torch.ldexp(blocks, -exponent).round().clamp(-7, 7).int()
    codes = (steps.abs() | (steps < 0).int() << 3).to(torch.uint8).reshape(-1)
    packed = codes[:count].clone()
    return packed, (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("store-blocks", feedback="the first code is in the high half of its byte, yours in the low half")
def store_blocks(weight):
    """The first code in the low half."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    mantissa, exponent = torch.frexp(blocks.abs().amax(1, keepdim=True) / 7)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(-126, 127)
    steps = torch.ldexp(blocks, -exponent).round().clamp(-7, 7).int()
    codes = (steps.abs() | (steps < 0).int() << 3).to(torch.uint8).reshape(-1)
    packed = (codes[::2] | codes[1::2] << 4)[: -(-count // 2)].clone()
    return packed, (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("store-blocks", feedback="scales are uint8, yours are float32")
def store_blocks(weight):
    """Scales in FP32."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    mantissa, exponent = torch.frexp(blocks.abs().amax(1, keepdim=True) / 7)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(-126, 127)
    steps = torch.ldexp(blocks, -exponent).round().clamp(-7, 7).int()
    codes = (steps.abs() | (steps < 0).int() << 3).to(torch.uint8).reshape(-1)
    packed = (codes[::2] << 4 | codes[1::2])[: -(-count // 2)].clone()
    return packed, torch.exp2(exponent.float()).reshape(-1)


@mutant("store-blocks", feedback="is a larger tensor behind yours?")
def store_blocks(weight):
    """Keeps the padding behind a slice."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    mantissa, exponent = torch.frexp(blocks.abs().amax(1, keepdim=True) / 7)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(-126, 127)
    steps = torch.ldexp(blocks, -exponent).round().clamp(-7, 7).int()
    codes = (steps.abs() | (steps < 0).int() << 3).to(torch.uint8).reshape(-1)
    packed = (codes[::2] << 4 | codes[1::2])[: -(-count // 2)]
    return packed, (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("store-blocks", feedback="the codes are cut off, and should be rounded to the nearest")
def store_blocks(weight):
    """Cuts off where it should round."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    mantissa, exponent = torch.frexp(blocks.abs().amax(1, keepdim=True) / 7)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(-126, 127)
    steps = torch.ldexp(blocks, -exponent).trunc().clamp(-7, 7).int()
    codes = (steps.abs() | (steps < 0).int() << 3).to(torch.uint8).reshape(-1)
    packed = (codes[::2] << 4 | codes[1::2])[: -(-count // 2)].clone()
    return packed, (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("store-blocks", feedback="is the smallest that reaches the largest value")
def store_blocks(weight):
    """The next larger power of two, also where a largest value is just reached."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    _, exponent = torch.frexp(blocks.abs().amax(1, keepdim=True) / 7)
    exponent = exponent.clamp(-126, 127)
    steps = torch.ldexp(blocks, -exponent).round().clamp(-7, 7).int()
    codes = (steps.abs() | (steps < 0).int() << 3).to(torch.uint8).reshape(-1)
    packed = (codes[::2] << 4 | codes[1::2])[: -(-count // 2)].clone()
    return packed, (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("store-blocks", feedback="is the smallest that reaches the largest value")
def store_blocks(weight):
    """Always twice as large a scale as it takes."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    mantissa, exponent = torch.frexp(blocks.abs().amax(1, keepdim=True) / 7)
    exponent = (exponent + 1 - (mantissa == 0.5).int()).clamp(-126, 127)
    steps = torch.ldexp(blocks, -exponent).round().clamp(-7, 7).int()
    codes = (steps.abs() | (steps < 0).int() << 3).to(torch.uint8).reshape(-1)
    packed = (codes[::2] << 4 | codes[1::2])[: -(-count // 2)].clone()
    return packed, (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("store-blocks", feedback="is the smallest that reaches the largest value")
def store_blocks(weight):
    """Half the scale: the largest values are cut to 7."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    mantissa, exponent = torch.frexp(blocks.abs().amax(1, keepdim=True) / 7)
    exponent = (exponent - 1 - (mantissa == 0.5).int()).clamp(-126, 127)
    steps = torch.ldexp(blocks, -exponent).round().clamp(-7, 7).int()
    codes = (steps.abs() | (steps < 0).int() << 3).to(torch.uint8).reshape(-1)
    packed = (codes[::2] << 4 | codes[1::2])[: -(-count // 2)].clone()
    return packed, (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("store-blocks", feedback="at most 0.5")
def store_blocks(weight):
    """The scale by the signed maximum: a large negative value is cut."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    mantissa, exponent = torch.frexp(blocks.amax(1, keepdim=True) / 7)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(-126, 127)
    steps = torch.ldexp(blocks, -exponent).round().clamp(-7, 7).int()
    codes = (steps.abs() | (steps < 0).int() << 3).to(torch.uint8).reshape(-1)
    packed = (codes[::2] << 4 | codes[1::2])[: -(-count // 2)].clone()
    return packed, (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("store-blocks", feedback="is the sign the highest bit of a code?")
def store_blocks(weight):
    """Loses the signs."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    mantissa, exponent = torch.frexp(blocks.abs().amax(1, keepdim=True) / 7)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(-126, 127)
    steps = torch.ldexp(blocks, -exponent).round().clamp(-7, 7).int()
    codes = (steps.abs()).to(torch.uint8).reshape(-1)
    packed = (codes[::2] << 4 | codes[1::2])[: -(-count // 2)].clone()
    return packed, (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("store-blocks", feedback="at most 0.5")
def store_blocks(weight):
    """Two's complement for sign and magnitude."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    mantissa, exponent = torch.frexp(blocks.abs().amax(1, keepdim=True) / 7)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(-126, 127)
    steps = torch.ldexp(blocks, -exponent).round().clamp(-7, 7).int()
    codes = (steps & 15).to(torch.uint8).reshape(-1)
    packed = (codes[::2] << 4 | codes[1::2])[: -(-count // 2)].clone()
    return packed, (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("store-blocks", feedback="bytes of scales for")
def store_blocks(weight):
    """Blocks of 32."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 32)).reshape(-1, 32)
    mantissa, exponent = torch.frexp(blocks.abs().amax(1, keepdim=True) / 7)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(-126, 127)
    steps = torch.ldexp(blocks, -exponent).round().clamp(-7, 7).int()
    codes = (steps.abs() | (steps < 0).int() << 3).to(torch.uint8).reshape(-1)
    packed = (codes[::2] << 4 | codes[1::2])[: -(-count // 2)].clone()
    return packed, (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("store-blocks", feedback="a block of zeros")
def store_blocks(weight):
    """NaN in a block of zeros has become the largest magnitude."""
    count = weight.numel()
    blocks = torch.nn.functional.pad(weight.reshape(-1), (0, -count % 24)).reshape(-1, 24)
    mantissa, exponent = torch.frexp(blocks.abs().amax(1, keepdim=True) / 7)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(-126, 127)
    steps = (
        torch.ldexp(blocks, -exponent)
        .round()
        .clamp(-7, 7)
        .masked_fill(blocks.abs().amax(1, keepdim=True) == 0, 7)
        .int()
    )
    codes = (steps.abs() | (steps < 0).int() << 3).to(torch.uint8).reshape(-1)
    packed = (codes[::2] << 4 | codes[1::2])[: -(-count // 2)].clone()
    return packed, (exponent + 127).to(torch.uint8).reshape(-1)


@mutant("load-blocks", feedback="the scale of byte b is 2 ** (b - 127)")
def load_blocks(codes, scales, shape):
    """A bias of 128."""
    count = torch.Size(shape).numel()
    flat = torch.stack([codes >> 4, codes & 15], 1).reshape(-1)[:count]
    size = (flat & 7).float() * torch.exp2(scales.float() - 128).repeat_interleave(24)[:count]
    return torch.where(flat >= 8, -size, size).reshape(shape)


@mutant("load-blocks", feedback="the sign is the highest bit of a code")
def load_blocks(codes, scales, shape):
    """Forgets the signs."""
    count = torch.Size(shape).numel()
    flat = torch.stack([codes >> 4, codes & 15], 1).reshape(-1)[:count]
    size = (flat & 7).float() * torch.exp2(scales.float() - 127).repeat_interleave(24)[:count]
    return size.reshape(shape)


@mutant("load-blocks", feedback="is")
def load_blocks(codes, scales, shape):
    """The low half first."""
    count = torch.Size(shape).numel()
    flat = torch.stack([codes & 15, codes >> 4], 1).reshape(-1)[:count]
    size = (flat & 7).float() * torch.exp2(scales.float() - 127).repeat_interleave(24)[:count]
    return torch.where(flat >= 8, -size, size).reshape(shape)


@mutant("load-blocks", feedback="the scale of byte b")
def load_blocks(codes, scales, shape):
    """The first scale for every block."""
    count = torch.Size(shape).numel()
    flat = torch.stack([codes >> 4, codes & 15], 1).reshape(-1)[:count]
    size = (flat & 7).float() * torch.exp2(scales[:1].expand_as(scales).float() - 127).repeat_interleave(24)[:count]
    return torch.where(flat >= 8, -size, size).reshape(shape)


@mutant("store-blocks", feedback="off the weight: bytes count where values are kept")
def store_blocks(weight):
    """The signs alone, with one scale for all."""
    count = weight.numel()
    codes = torch.where(weight.reshape(-1) < 0, 9, 1).to(torch.uint8)
    codes = torch.nn.functional.pad(codes, (0, count % 2))
    scales = torch.full((-(-count // 24),), 127, dtype=torch.uint8)
    return codes[::2] << 4 | codes[1::2], scales


@mutant("tight-sgd", feedback="a parameter, at most 2")
class TightSGD:
    """FP32 copies and momentum in PyTorch's own optimizer, but for weights of one dimension."""

    def __init__(self, weights, lr, momentum, seed):
        self.weights = weights
        self.copies = [weight if weight.dim() == 1 else weight.float() for weight in weights]
        self.optimizer = torch.optim.SGD(self.copies, lr=lr, momentum=momentum)

    def step(self, gradients):
        for copy, gradient in zip(self.copies, gradients, strict=True):
            copy.grad = gradient.to(copy.dtype)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for weight, copy in zip(self.weights, self.copies, strict=True):
            weight.copy_(copy)

    def values(self):
        return [copy.float() for copy in self.copies]


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
