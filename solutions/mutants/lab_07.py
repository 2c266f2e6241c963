"""Known-wrong answers to lab 07. Each must fail its check, with the sentence that its learner then reads."""

# ruff: noqa: F821, F811  (they are put into the lab's cells, where these names are defined)

from helpers.course.mutants import mutant


@mutant("store-moments", feedback="a function is called that knows the answer")
def store_moments(values, generator):
    """Calls helpers, whose blocks would do with any map, to the nearest level."""
    from helpers.techniques.optimizers.blockwise import quantized

    levels = torch.exp2((torch.arange(256) - 255) / 12)
    levels[0] = 0
    codes, scales = quantized(values, levels, 128)
    return codes, scales.bfloat16()


@mutant("store-moments", feedback="each goes to the nearest level: chance decides")
def store_moments(values, generator):
    """Rounds to the nearest level."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += (share - lower) / (upper - lower) > 0.5
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="steps off, at most 0.1")
def store_moments(values, generator):
    """Rounds to the level that is nearest in the exponent."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += share > (lower * upper).sqrt()
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="a generator in another state gives other codes")
def store_moments(values, generator):
    """Chance is a hash of the values and their places: no generator is asked."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    mixed = blocks.contiguous().view(torch.int32).long() ^ (torch.arange(blocks.numel()).view_as(blocks) * 0x9E3779B1)
    mixed = ((mixed ^ (mixed >> 15)) * 0x85EBCA6B) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    low += (mixed ^ (mixed >> 16)) / 2**32 < (share - lower) / (upper - lower)
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="each goes to the level below: chance decides")
def store_moments(values, generator):
    """Cuts off."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += (share > upper) | (share < lower)
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="both levels are as likely: the nearer one is more so")
def store_moments(values, generator):
    """A fair coin."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += (torch.rand(share.shape, generator=generator) < 0.5) & (share > lower) & (share < upper)
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="the probabilities are the wrong way round")
def store_moments(values, generator):
    """The nearer level is the rarer one."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += torch.rand(share.shape, generator=generator) < (upper - share) / (upper - lower)
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="is each rounding exact in the mean")
def store_moments(values, generator):
    """A probability that is linear in the exponent."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    way = torch.where(low > 0, 12 * torch.log2(share / lower), share / upper)
    low += torch.rand(share.shape, generator=generator) < way
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="with other random numbers every time?")
def store_moments(values, generator):
    """The same random numbers in every step."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += torch.rand(share.shape, generator=torch.Generator().manual_seed(1)) < (share - lower) / (upper - lower)
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="do your random numbers come from it?")
def store_moments(values, generator):
    """Random numbers of PyTorch's own."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += torch.rand(share.shape, device=values.device) < (share - lower) / (upper - lower)
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="rounded to the nearest it can be below")
def store_moments(values, generator):
    """A scale that is the nearest BF16 number."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = blocks.amax(1).bfloat16().float()
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += torch.rand(share.shape, generator=generator) < (share - lower) / (upper - lower)
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="scales are bfloat16, yours are float32")
def store_moments(values, generator):
    """Scales of 32 bits."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += torch.rand(share.shape, generator=generator) < (share - lower) / (upper - lower)
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales


@mutant("store-moments", feedback="your scales are not the right ones yet")
def store_moments(values, generator):
    """Scales that were FP16 once."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = blocks.amax(1).half().float()
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += torch.rand(share.shape, generator=generator) < (share - lower) / (upper - lower)
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="is a larger tensor behind yours?")
def store_moments(values, generator):
    """Keeps the padding behind the codes."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += torch.rand(share.shape, generator=generator) < (share - lower) / (upper - lower)
    return low.to(torch.uint8).reshape(-1)[:count].reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="is there a table of distances?")
def store_moments(values, generator):
    """A table of the distances to all levels."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    below = (share[..., None] - levels[:256]).masked_fill(share[..., None] < levels[:256], 9)
    low = below.argmin(-1).int()
    lower, upper = levels[low], levels[low + 1]
    low += torch.rand(share.shape, generator=generator) < (share - lower) / (upper - lower)
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="12 codes are a factor of 2")
def store_moments(values, generator):
    """Eight levels to an octave."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 8)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += torch.rand(share.shape, generator=generator) < (share - lower) / (upper - lower)
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="scales for")
def store_moments(values, generator):
    """Blocks of 256."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 256)).reshape(-1, 256)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += torch.rand(share.shape, generator=generator) < (share - lower) / (upper - lower)
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="zero is code 0")
def store_moments(values, generator):
    """Nothing is below the smallest level."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += torch.rand(share.shape, generator=generator) < (share - lower) / (upper - lower)
    return low.clamp(min=1).to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="the mean of 1,024 roundings is")
def store_moments(values, generator):
    """What is below the smallest level is lost."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    share = torch.where(low > 0, share, 0)
    low += torch.rand(share.shape, generator=generator) < (share - lower) / (upper - lower)
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("store-moments", feedback="codes are uint8, yours are int32")
def store_moments(values, generator):
    """Codes of 32 bits."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = ((blocks.amax(1).view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    share = blocks / scales.clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += torch.rand(share.shape, generator=generator) < (share - lower) / (upper - lower)
    return low.reshape(-1)[:count].clone().reshape(values.shape), scales.bfloat16()


@mutant("load-moments", feedback="a function is called that knows the answer")
def load_moments(codes, scales):
    """Calls helpers, whose blocks take any map."""
    from helpers.techniques.optimizers.blockwise import dequantized

    levels = torch.exp2((torch.arange(256) - 255) / 12)
    levels[0] = 0
    return dequantized(codes, scales.float(), levels, 128)


@mutant("load-moments", feedback="code 255 is the scale, and 12 codes less are half of it")
def load_moments(codes, scales):
    """One code off."""
    levels = torch.exp2((torch.arange(256) - 256) / 12)
    levels[0] = 0
    each = scales.float().repeat_interleave(128)[: codes.numel()].reshape(codes.shape)
    return levels[codes.int()] * each


@mutant("load-moments", feedback="code 0 is 0")
def load_moments(codes, scales):
    """The lowest code is a level like the others."""
    levels = torch.exp2((torch.arange(256) - 255) / 12)
    each = scales.float().repeat_interleave(128)[: codes.numel()].reshape(codes.shape)
    return levels[codes.int()] * each


@mutant("load-moments", feedback="stands for")
def load_moments(codes, scales):
    """The first scale for every block."""
    levels = torch.exp2((torch.arange(256) - 255) / 12)
    levels[0] = 0
    each = scales[:1].float().expand(len(scales)).repeat_interleave(128)[: codes.numel()].reshape(codes.shape)
    return levels[codes.int()] * each


@mutant("load-moments", feedback="values in the shape")
def load_moments(codes, scales):
    """Flat values."""
    levels = torch.exp2((torch.arange(256) - 255) / 12)
    levels[0] = 0
    each = scales.float().repeat_interleave(128)[: codes.numel()].reshape(codes.shape)
    return (levels[codes.int()] * each).flatten()


@mutant("fused", feedback="a function is called that knows the answer")
class Fused:
    """Calls helpers, whose hook relies on a single backward."""

    def __init__(self, model, make):
        from helpers.techniques.optimizers.in_backward import step_in_backward

        self.handle = step_in_backward(model, make)

    def expect(self, parts):
        pass


@mutant("fused", feedback="modified by an inplace operation")
class Fused:
    """A step for every part."""

    def __init__(self, model, make):
        self.left = {}

        def arrived(name, optimizer, weight):
            self.left[name] = self.left.get(name, 1) - 1
            if True:
                optimizer.step()
                weight.grad = None

        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(partial(arrived, name, make([weight])))

    def expect(self, parts):
        """How many backward calls of the next step reach a weight, by name; one where it is not named."""
        self.left = dict(parts)


@mutant("fused", feedback="and its gradient is still there")
class Fused:
    """Never lets go of a gradient."""

    def __init__(self, model, make):
        self.left = {}

        def arrived(name, optimizer, weight):
            self.left[name] = self.left.get(name, 1) - 1
            if self.left[name] == 0:
                optimizer.step()

        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(partial(arrived, name, make([weight])))

    def expect(self, parts):
        """How many backward calls of the next step reach a weight, by name; one where it is not named."""
        self.left = dict(parts)


@mutant("fused", feedback="has all of its gradient, and has not changed")
class Fused:
    """Waits for the last gradient of all, and then does the ordinary step."""

    def __init__(self, model, make):
        self.named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.optimizer, self.left = make(list(self.named.values())), {}
        for weight in self.named.values():
            weight.register_post_accumulate_grad_hook(self.arrived)

    def arrived(self, weight):
        self.left -= 1
        if self.left == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def expect(self, parts):
        self.left = sum(parts.get(name, 1) for name in self.named)


@mutant("fused", feedback="has changed, and its gradient is not whole yet")
class Fused:
    """Knows of the shared block, and not of the head."""

    def __init__(self, model, make):
        self.left = {}

        def arrived(name, optimizer, weight):
            self.left[name] = self.left.get(name, 1) - 1
            if self.left[name] == 0:
                optimizer.step()
                weight.grad = None

        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(partial(arrived, name, make([weight])))

    def expect(self, parts):
        """How many backward calls of the next step reach a weight, by name; one where it is not named."""
        self.left = {name: count for name, count in parts.items() if name != "embed.weight"}


@mutant("fused", feedback="is what was left of the step before still in your count?")
class Fused:
    """What was expected before is still in the count."""

    def __init__(self, model, make):
        self.left = {}

        def arrived(name, optimizer, weight):
            self.left[name] = self.left.get(name, 1) - 1
            if self.left[name] == 0:
                optimizer.step()
                weight.grad = None

        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(partial(arrived, name, make([weight])))

    def expect(self, parts):
        """How many backward calls of the next step reach a weight, by name; one where it is not named."""
        self.left.update(parts)


@mutant("fused", feedback="modified by an inplace operation")
class Fused:
    """One optimizer for all: its step takes whatever gradients there are."""

    def __init__(self, model, make):
        self.named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.optimizer, self.left = make(list(self.named.values())), {}
        for name, weight in self.named.items():
            weight.register_post_accumulate_grad_hook(partial(self.arrived, name))

    def arrived(self, name, weight):
        self.left[name] = self.left.get(name, 1) - 1
        if self.left[name] == 0 and not name.startswith("shared"):
            self.optimizer.step()
            weight.grad = None

    def expect(self, parts):
        self.left = dict(parts)


@mutant("fused", feedback="its gradient comes in several parts")
class Fused:
    """Only the last part of a gradient counts."""

    def __init__(self, model, make):
        self.left = {}

        def arrived(name, optimizer, weight):
            self.left[name] = self.left.get(name, 1) - 1
            if self.left[name] == 0:
                optimizer.step()
            weight.grad = None

        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(partial(arrived, name, make([weight])))

    def expect(self, parts):
        """How many backward calls of the next step reach a weight, by name; one where it is not named."""
        self.left = dict(parts)


@mutant("fused", feedback="its gradient comes in several parts")
class Fused:
    """The mean of the parts."""

    def __init__(self, model, make):
        self.left = {}

        self.parts = {}

        def arrived(name, optimizer, weight):
            self.left[name] = self.left.get(name, 1) - 1
            if self.left[name] == 0:
                weight.grad /= self.parts.get(name, 1)
                optimizer.step()
                weight.grad = None

        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(partial(arrived, name, make([weight])))

    def expect(self, parts):
        """How many backward calls of the next step reach a weight, by name; one where it is not named."""
        self.left, self.parts = dict(parts), dict(parts)


@mutant("fused", feedback="does each weight keep its optimizer, and have one step?")
class Fused:
    """A new optimizer for every step."""

    def __init__(self, model, make):
        self.left = {}

        def arrived(name, weight):
            self.left[name] = self.left.get(name, 1) - 1
            if self.left[name] == 0:
                make([weight]).step()
                weight.grad = None

        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(partial(arrived, name))

    def expect(self, parts):
        """How many backward calls of the next step reach a weight, by name; one where it is not named."""
        self.left = dict(parts)


@mutant("fused", feedback="which gradients are waiting?")
class Fused:
    """Keeps a copy of each gradient, to have their norm."""

    def __init__(self, model, make):
        self.left, self.gradients = {}, []

        def arrived(name, optimizer, weight):
            self.left[name] = self.left.get(name, 1) - 1
            if self.left[name] == 0:
                self.gradients.append(weight.grad.clone())
                optimizer.step()
                weight.grad = None

        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(partial(arrived, name, make([weight])))

    def expect(self, parts):
        """How many backward calls of the next step reach a weight, by name; one where it is not named."""
        self.left = dict(parts)
        self.gradients.clear()


@mutant("fused", feedback="cannot register a hook on a tensor")
class Fused:
    """Frozen weights, too."""

    def __init__(self, model, make):
        self.left = {}

        def arrived(name, optimizer, weight):
            self.left[name] = self.left.get(name, 1) - 1
            if self.left[name] == 0:
                optimizer.step()
                weight.grad = None

        for name, weight in model.named_parameters():
            if True:
                weight.register_post_accumulate_grad_hook(partial(arrived, name, make([weight])))

    def expect(self, parts):
        """How many backward calls of the next step reach a weight, by name; one where it is not named."""
        self.left = dict(parts)


@mutant("grouped-lora", feedback="an object of LoRALinear made, which knows the answer")
class GroupedLoRA(nn.Module):
    """Calls helpers: a layer for each projection."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        from helpers.techniques.adapters import LoRALinear

        super().__init__()
        self.codes, self.absmax = codes, absmax
        self.parts, self.a, self.b = nn.ModuleList(), nn.ParameterDict(), nn.ParameterDict()
        for name, some in zip(sizes, loaded(codes, absmax).split(list(sizes.values())), strict=True):
            linear = nn.Linear(codes.shape[1], len(some), bias=False)
            linear.weight.data = some.clone()
            self.parts.append(LoRALinear(linear, ranks[name], alpha) if name in ranks else linear)
            if name in ranks:
                self.a[name], self.b[name] = self.parts[-1].lora_a, self.parts[-1].lora_b

    def forward(self, x):
        return torch.cat([part(x) for part in self.parts], 1)

    def merge(self):
        for part in self.parts:
            if hasattr(part, "merge"):
                part.merge()
        return {}


@mutant("grouped-lora", feedback="the dense weight is kept, too")
class GroupedLoRA(nn.Module):
    """Dequantize, then multiply: autograd keeps the dense weight."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = functional.linear(x, weight())
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="does it keep a dense weight?")
class GroupedLoRA(nn.Module):
    """Makes the base dense once, at the beginning."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        self.weight = loaded(codes, absmax)
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        out = checkpoint(lambda x: functional.linear(x, self.weight), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="many values leave PyTorch")
class GroupedLoRA(nn.Module):
    """Keeps the dense base as an array, where the Meter is blind."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        self.weight = loaded(codes, absmax).numpy()
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(torch.from_numpy, self.weight)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="B A counts alpha / rank times")
class GroupedLoRA(nn.Module):
    """Forgets alpha / rank."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="are these its rows?")
class GroupedLoRA(nn.Module):
    """Alpha alone, not divided by the rank."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="it has no adapter")
class GroupedLoRA(nn.Module):
    """Rows in the order of the ranks."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        sizes = {name: sizes[name] for name in [*ranks, *(one for one in sizes if one not in ranks)]}
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="that is the base alone")
class GroupedLoRA(nn.Module):
    """The adapters are never added."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += 0 * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="is a copy of A or of x kept?")
class GroupedLoRA(nn.Module):
    """Scales the input, which is then saved a second time."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x * (self.alpha / len(a)), a), self.b[name])
            out[:, self.rows[name]] += added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="is a copy of A or of x kept?")
class GroupedLoRA(nn.Module):
    """One product for all A: their copy, side by side, is saved."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.sizes, self.ranks, self.alpha = codes, absmax, sizes, ranks, alpha
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        def base(x):
            return functional.linear(x, loaded(self.codes, self.absmax))

        out = torch.utils.checkpoint.checkpoint(base, x, use_reentrant=False)
        thin = functional.linear(x, torch.cat(list(self.a.values()))).split([len(a) for a in self.a.values()], 1)
        parts = list(out.split(list(self.sizes.values()), 1))
        for name, one in zip(self.a, thin, strict=True):
            at = list(self.sizes).index(name)
            parts[at] = parts[at] + self.alpha / self.ranks[name] * functional.linear(one, self.b[name])
        return torch.cat(parts, 1)

    def merge(self):
        return {}


@mutant("grouped-lora", feedback="A begins random and B with zeros")
class GroupedLoRA(nn.Module):
    """B begins random, too."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.randn(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="the gradient of x is")
class GroupedLoRA(nn.Module):
    """No gradient goes through the base."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = functional.linear(x.detach(), weight())
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="trained values, you have")
class GroupedLoRA(nn.Module):
    """A scale that is trained, too."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, nn.Parameter(torch.tensor(float(alpha)))
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="the process has grown by")
class GroupedLoRA(nn.Module):
    """Makes the base dense in a thread, where no Meter looks, and keeps it."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        from threading import Thread

        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        maker = Thread(target=lambda: setattr(self, "kept", loaded(codes, absmax)))
        maker.start()
        maker.join()
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(torch.Tensor.add, self.kept, 0)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="the output of q is")
class GroupedLoRA(nn.Module):
    """Adapters in BF16."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x.bfloat16(), a.bfloat16()), self.b[name].bfloat16()).float()
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="it has no adapter, so nothing is quantized anew")
class GroupedLoRA(nn.Module):
    """Quantizes all rows anew."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.codes, self.absmax = stored(loaded(self.codes, self.absmax))
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="after merging nothing is trained")
class GroupedLoRA(nn.Module):
    """Merges, and adds the adapters all the same."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        return lost


@mutant("grouped-lora", feedback="W + alpha / rank · B A, stored")
class GroupedLoRA(nn.Module):
    """Merges B A without alpha / rank."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="nothing has changed")
class GroupedLoRA(nn.Module):
    """Tells what would be lost, and merges nothing."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            new = stored(wanted)
            off = loaded(*new) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="are not what they should be")
class GroupedLoRA(nn.Module):
    """Keeps the old absmax, and cuts off what is larger."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            steps = self.absmax[rows].float().repeat_interleave(64, 1) / 127
            self.codes[rows] = (wanted / steps).round().clamp(-127, 127).to(torch.int8)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="that is the share of W, not of Δ")
class GroupedLoRA(nn.Module):
    """The share of W that is lost."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / wanted.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("grouped-lora", feedback="'s adapter is lost, you say")
class GroupedLoRA(nn.Module):
    """How far the weight has moved, as a share of the adapter."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.rows = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        weight = partial(loaded, self.codes, self.absmax)
        out = checkpoint(lambda x: functional.linear(x, weight()), x, use_reentrant=False)
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted + delta
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("fastest", feedback="a TrainSetup is made beside peak_of")
def fastest(space, peak_of, card_bytes, least):
    """Calls helpers, which tell as many peaks as one likes."""
    from helpers.catalog.train_setup import TrainSetup
    from helpers.memory import budget

    setup = TrainSetup("llama-2-7b", precision="bf16", optimizer="adamw-8bit")
    return {"rows": card_bytes // budget.train(setup).peak_bytes}


@mutant("fastest", feedback="you ask for")
def fastest(space, peak_of, card_bytes, least):
    """Right, by bisecting every combination with every rank."""
    best, speed = None, 0
    for (base, checkpointing), (fixed, each) in space["time"].items():
        for targets in space["targets"]:
            many = space["layers"] * sum(sum(space["linears"][name]) for name in targets)
            rank = min((rank for rank in space["ranks"] if rank * many >= least), default=None)
            if rank is None:
                continue
            plan = {"base": base, "checkpointing": checkpointing, "targets": targets, "rank": rank}
            low, high = 0, space["most"] + 1
            while high - low > 1:
                middle = (low + high) // 2
                fits = peak_of(plan | {"micro_batch": middle}) <= card_bytes
                low, high = (middle, high) if fits else (low, middle)
            if low and low / (fixed + low * each) > speed:
                best, speed = plan | {"micro_batch": low}, low / (fixed + low * each)
    return best


@mutant("fastest", feedback="or a smaller batch that is not checkpointed?")
def fastest(space, peak_of, card_bytes, least):
    """The largest micro-batch of all."""
    best = None
    for (base, checkpointing), _ in space["time"].items():
        for targets in space["targets"]:
            of_one_rank = space["layers"] * sum(sum(space["linears"][name]) for name in targets)
            ranks = [rank for rank in space["ranks"] if rank * of_one_rank >= least]
            plan = {"base": base, "checkpointing": checkpointing, "targets": targets, "rank": min(ranks, default=None)}

            def fits(rows, plan=plan):
                return rows <= space["most"] and peak_of(plan | {"micro_batch": rows}) <= card_bytes

            rows = (
                1
                if not best
                else next((rows for rows in range(1, space["most"] + 1) if rows > best["micro_batch"]), None)
            )
            if plan["rank"] is None or rows is None or not fits(rows):
                continue
            step = 1
            while fits(rows + step):
                rows, step = rows + step, 2 * step
            while step > 1:
                step //= 2
                rows += step * fits(rows + step)
            best = plan | {"micro_batch": rows}
    return best


@mutant("fastest", feedback="what of other targets, a base in other bits")
def fastest(space, peak_of, card_bytes, least):
    """Adapters on all layers, as papers advise."""
    best, speed = None, 0
    for (base, checkpointing), (fixed, each) in space["time"].items():
        for targets in space["targets"][-1:]:
            of_one_rank = space["layers"] * sum(sum(space["linears"][name]) for name in targets)
            ranks = [rank for rank in space["ranks"] if rank * of_one_rank >= least]
            plan = {"base": base, "checkpointing": checkpointing, "targets": targets, "rank": min(ranks, default=None)}

            def fits(rows, plan=plan):
                return rows <= space["most"] and peak_of(plan | {"micro_batch": rows}) <= card_bytes

            rows = (
                1
                if not best
                else next((rows for rows in range(1, space["most"] + 1) if rows > speed * (fixed + rows * each)), None)
            )
            if plan["rank"] is None or rows is None or not fits(rows):
                continue
            step = 1
            while fits(rows + step):
                rows, step = rows + step, 2 * step
            while step > 1:
                step //= 2
                rows += step * fits(rows + step)
            best, speed = plan | {"micro_batch": rows}, rows / (fixed + rows * each)
    return best


@mutant("fastest", feedback="sequences a second are possible, your plan has")
def fastest(space, peak_of, card_bytes, least):
    """A base in 4 bits is always the smallest."""
    best, speed = None, 0
    for (base, checkpointing), (fixed, each) in list(space["time"].items())[4:]:
        for targets in space["targets"]:
            of_one_rank = space["layers"] * sum(sum(space["linears"][name]) for name in targets)
            ranks = [rank for rank in space["ranks"] if rank * of_one_rank >= least]
            plan = {"base": base, "checkpointing": checkpointing, "targets": targets, "rank": min(ranks, default=None)}

            def fits(rows, plan=plan):
                return rows <= space["most"] and peak_of(plan | {"micro_batch": rows}) <= card_bytes

            rows = (
                1
                if not best
                else next((rows for rows in range(1, space["most"] + 1) if rows > speed * (fixed + rows * each)), None)
            )
            if plan["rank"] is None or rows is None or not fits(rows):
                continue
            step = 1
            while fits(rows + step):
                rows, step = rows + step, 2 * step
            while step > 1:
                step //= 2
                rows += step * fits(rows + step)
            best, speed = plan | {"micro_batch": rows}, rows / (fixed + rows * each)
    return best


@mutant("fastest", feedback="sequences a second are possible, your plan has")
def fastest(space, peak_of, card_bytes, least):
    """Checkpointing is always worth it."""
    best, speed = None, 0
    for (base, checkpointing), (fixed, each) in [one for one in space["time"].items() if one[0][1] == "full"]:
        for targets in space["targets"]:
            of_one_rank = space["layers"] * sum(sum(space["linears"][name]) for name in targets)
            ranks = [rank for rank in space["ranks"] if rank * of_one_rank >= least]
            plan = {"base": base, "checkpointing": checkpointing, "targets": targets, "rank": min(ranks, default=None)}

            def fits(rows, plan=plan):
                return rows <= space["most"] and peak_of(plan | {"micro_batch": rows}) <= card_bytes

            rows = (
                1
                if not best
                else next((rows for rows in range(1, space["most"] + 1) if rows > speed * (fixed + rows * each)), None)
            )
            if plan["rank"] is None or rows is None or not fits(rows):
                continue
            step = 1
            while fits(rows + step):
                rows, step = rows + step, 2 * step
            while step > 1:
                step //= 2
                rows += step * fits(rows + step)
            best, speed = plan | {"micro_batch": rows}, rows / (fixed + rows * each)
    return best


@mutant("fastest", feedback="your plan trains")
def fastest(space, peak_of, card_bytes, least):
    """The smallest rank, whatever is to be trained."""
    best, speed = None, 0
    for (base, checkpointing), (fixed, each) in space["time"].items():
        for targets in space["targets"]:
            of_one_rank = space["layers"] * sum(sum(space["linears"][name]) for name in targets)
            ranks = [rank for rank in space["ranks"] if rank * of_one_rank]
            plan = {"base": base, "checkpointing": checkpointing, "targets": targets, "rank": min(ranks, default=None)}

            def fits(rows, plan=plan):
                return rows <= space["most"] and peak_of(plan | {"micro_batch": rows}) <= card_bytes

            rows = (
                1
                if not best
                else next((rows for rows in range(1, space["most"] + 1) if rows > speed * (fixed + rows * each)), None)
            )
            if plan["rank"] is None or rows is None or not fits(rows):
                continue
            step = 1
            while fits(rows + step):
                rows, step = rows + step, 2 * step
            while step > 1:
                step //= 2
                rows += step * fits(rows + step)
            best, speed = plan | {"micro_batch": rows}, rows / (fixed + rows * each)
    return best


@mutant("fastest", feedback="sequences a second are possible, your plan has")
def fastest(space, peak_of, card_bytes, least):
    """Doubles, and does not look between."""
    best, speed = None, 0
    for (base, checkpointing), (fixed, each) in space["time"].items():
        for targets in space["targets"]:
            of_one_rank = space["layers"] * sum(sum(space["linears"][name]) for name in targets)
            ranks = [rank for rank in space["ranks"] if rank * of_one_rank >= least]
            plan = {"base": base, "checkpointing": checkpointing, "targets": targets, "rank": min(ranks, default=None)}

            def fits(rows, plan=plan):
                return rows <= space["most"] and peak_of(plan | {"micro_batch": rows}) <= card_bytes

            rows = (
                1
                if not best
                else next((rows for rows in range(1, space["most"] + 1) if rows > speed * (fixed + rows * each)), None)
            )
            if plan["rank"] is None or rows is None or not fits(rows):
                continue
            step = 1
            while fits(rows + step):
                rows, step = rows + step, 2 * step
            best, speed = plan | {"micro_batch": rows}, rows / (fixed + rows * each)
    return best


@mutant("fastest", feedback="bytes of")
def fastest(space, peak_of, card_bytes, least):
    """One sequence too many."""
    best, speed = None, 0
    for (base, checkpointing), (fixed, each) in space["time"].items():
        for targets in space["targets"]:
            of_one_rank = space["layers"] * sum(sum(space["linears"][name]) for name in targets)
            ranks = [rank for rank in space["ranks"] if rank * of_one_rank >= least]
            plan = {"base": base, "checkpointing": checkpointing, "targets": targets, "rank": min(ranks, default=None)}

            def fits(rows, plan=plan):
                return rows <= space["most"] and peak_of(plan | {"micro_batch": rows}) <= card_bytes

            rows = (
                1
                if not best
                else next((rows for rows in range(1, space["most"] + 1) if rows > speed * (fixed + rows * each)), None)
            )
            if plan["rank"] is None or rows is None or not fits(rows):
                continue
            step = 1
            while fits(rows + step):
                rows, step = rows + step, 2 * step
            while step > 1:
                step //= 2
                rows += step * fits(rows + step)
            best, speed = plan | {"micro_batch": rows + 1}, rows / (fixed + rows * each)
    return best


@mutant("fastest", feedback="nothing fits, return None")
def fastest(space, peak_of, card_bytes, least):
    """A plan in any case."""
    best, speed = None, 0
    for (base, checkpointing), (fixed, each) in space["time"].items():
        for targets in space["targets"]:
            of_one_rank = space["layers"] * sum(sum(space["linears"][name]) for name in targets)
            ranks = [rank for rank in space["ranks"] if rank * of_one_rank >= least]
            plan = {"base": base, "checkpointing": checkpointing, "targets": targets, "rank": min(ranks, default=None)}

            def fits(rows, plan=plan):
                return rows <= space["most"] and peak_of(plan | {"micro_batch": rows}) <= card_bytes

            rows = (
                1
                if not best
                else next((rows for rows in range(1, space["most"] + 1) if rows > speed * (fixed + rows * each)), None)
            )
            if plan["rank"] is None or rows is None or not fits(rows):
                continue
            step = 1
            while fits(rows + step):
                rows, step = rows + step, 2 * step
            while step > 1:
                step //= 2
                rows += step * fits(rows + step)
            best, speed = plan | {"micro_batch": rows}, rows / (fixed + rows * each)
    return best or plan | {"micro_batch": 1}


@mutant("adapter-bytes", feedback="of all gradients one is alive at a time")
def adapter_bytes(layers, ranks):
    """Every gradient is there at once."""
    sizes = [
        rank * side for layer, rank in zip(layers, ranks, strict=True) for side in (layer["inputs"], layer["outputs"])
    ]
    states = [2 * (n + 4 * -(-n // 256)) if n >= 4096 else 8 * n for n in sizes]
    return 2 * sum(sizes) + sum(states) + 2 * sum(sizes)


@mutant("adapter-bytes", feedback="the largest gradient counts")
def adapter_bytes(layers, ranks):
    """No gradient at all."""
    sizes = [
        rank * side for layer, rank in zip(layers, ranks, strict=True) for side in (layer["inputs"], layer["outputs"])
    ]
    states = [2 * (n + 4 * -(-n // 256)) if n >= 4096 else 8 * n for n in sizes]
    return 2 * sum(sizes) + sum(states)


@mutant("adapter-bytes", feedback="states of fewer than 4,096 values are FP32")
def adapter_bytes(layers, ranks):
    """Every state in 8 bits."""
    sizes = [
        rank * side for layer, rank in zip(layers, ranks, strict=True) for side in (layer["inputs"], layer["outputs"])
    ]
    states = [2 * (n + 4 * -(-n // 256)) for n in sizes]
    return 2 * sum(sizes) + sum(states) + 2 * max(sizes, default=0)


@mutant("adapter-bytes", feedback="A and B are two tensors")
def adapter_bytes(layers, ranks):
    """A and B as one tensor."""
    sizes = [rank * (layer["inputs"] + layer["outputs"]) for layer, rank in zip(layers, ranks, strict=True)]
    states = [2 * (n + 4 * -(-n // 256)) if n >= 4096 else 8 * n for n in sizes]
    return 2 * sum(sizes) + sum(states) + 2 * max(sizes, default=0)


@mutant("adapter-bytes", feedback="bytes and")
def adapter_bytes(layers, ranks):
    """Blocks are cut off, and not begun."""
    sizes = [
        rank * side for layer, rank in zip(layers, ranks, strict=True) for side in (layer["inputs"], layer["outputs"])
    ]
    states = [2 * (n + 4 * (n // 256)) if n >= 4096 else 8 * n for n in sizes]
    return 2 * sum(sizes) + sum(states) + 2 * max(sizes, default=0)


@mutant("adapter-bytes", feedback="bytes and")
def adapter_bytes(layers, ranks):
    """Calls helpers: the states of its optimizer, which knows no gradient and no weights."""
    from helpers.techniques.optimizers import AdamW8bit, state_bytes

    weights = [
        nn.Parameter(torch.zeros(rank, side))
        for layer, rank in zip(layers, ranks, strict=True)
        if rank
        for side in (layer["inputs"], layer["outputs"])
    ]
    if not weights:
        return 0
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer = AdamW8bit(weights)
    optimizer.step()
    return sum(state_bytes(optimizer).values())


@mutant("choose-ranks", feedback="a function is called that knows the answer")
def choose_ranks(layers, budget):
    """Calls helpers, whose knapsack knows no largest gradient."""
    from helpers.techniques.quantization.sensitivity import Option, choose_bits

    options = {
        at: [Option(0, 0, 0.0)]
        + [Option(rank, adapter_bytes([layer], [rank]), -gain) for rank, gain in layer["gains"].items()]
        for at, layer in enumerate(layers)
    }
    return list(choose_bits(options, budget).bits.values())


@mutant("choose-ranks", feedback="a step once taken can be wrong for the sum")
def choose_ranks(layers, budget):
    """Always the step that gains most for its bytes."""
    ranks = [0] * len(layers)
    while True:
        steps = []
        for at, layer in enumerate(layers):
            for rank, gain in layer["gains"].items():
                tried = [*ranks[:at], rank, *ranks[at + 1 :]]
                more = adapter_bytes(layers, tried) - adapter_bytes(layers, ranks)
                gained = gain - ({0: 0} | layer["gains"])[ranks[at]]
                if gained > 0 and adapter_bytes(layers, tried) <= budget:
                    steps.append((gained / max(more, 1), tried))
        if not steps:
            return ranks
        ranks = max(steps)[1]


@mutant("choose-ranks", feedback="of the largest gradient")
def choose_ranks(layers, budget):
    """Forgets the gradient."""

    def kept_and_gradient(layer, rank):
        gradient = 2 * rank * max(layer["inputs"], layer["outputs"])
        return adapter_bytes([layer], [rank]) - gradient, gradient

    def best_under(gradient):
        front = [(0, 0, ())]  # (bytes, gain, ranks), rising in both
        for some in choices:
            longer = sorted(
                (kept + more, -gain - gained, (*ranks, rank))
                for kept, gain, ranks in front
                for rank, gained, more, needs in some
                if needs <= gradient and kept + more <= budget
            )
            front = []
            for kept, loss, ranks in longer:
                if not front or -loss > front[-1][1]:
                    front.append((kept, -loss, ranks))
        return front[-1][1:] if front else (-1, ())

    choices = [
        [(rank, gain, *kept_and_gradient(layer, rank)) for rank, gain in ({0: 0} | layer["gains"]).items()]
        for layer in layers
    ]
    largest = {needs for some in choices for *_, needs in some}
    return list(max(map(best_under, largest), default=(0, ()))[1])


@mutant("choose-ranks", feedback="of all gradients only the largest counts")
def choose_ranks(layers, budget):
    """Adds up every layer's gradient."""

    def kept_and_gradient(layer, rank):
        gradient = 2 * rank * max(layer["inputs"], layer["outputs"])
        return adapter_bytes([layer], [rank]) - gradient, gradient

    def best_under(gradient):
        front = [(0, 0, ())]  # (bytes, gain, ranks), rising in both
        for some in choices:
            longer = sorted(
                (kept + more + needs, -gain - gained, (*ranks, rank))
                for kept, gain, ranks in front
                for rank, gained, more, needs in some
                if needs <= gradient and kept + more + needs <= budget
            )
            front = []
            for kept, loss, ranks in longer:
                if not front or -loss > front[-1][1]:
                    front.append((kept, -loss, ranks))
        return front[-1][1:] if front else (-1, ())

    choices = [
        [(rank, gain, *kept_and_gradient(layer, rank)) for rank, gain in ({0: 0} | layer["gains"]).items()]
        for layer in layers
    ]
    largest = {needs for some in choices for *_, needs in some}
    return list(max(map(best_under, largest), default=(0, ()))[1])


@mutant("choose-ranks", feedback="what does each largest gradient leave?")
def choose_ranks(layers, budget):
    """Leaves room for the largest gradient that there could be."""

    def kept_and_gradient(layer, rank):
        gradient = 2 * rank * max(layer["inputs"], layer["outputs"])
        return adapter_bytes([layer], [rank]) - gradient, gradient

    def best_under(gradient):
        front = [(0, 0, ())]  # (bytes, gain, ranks), rising in both
        for some in choices:
            longer = sorted(
                (kept + more, -gain - gained, (*ranks, rank))
                for kept, gain, ranks in front
                for rank, gained, more, needs in some
                if needs <= gradient and kept + more <= budget - gradient
            )
            front = []
            for kept, loss, ranks in longer:
                if not front or -loss > front[-1][1]:
                    front.append((kept, -loss, ranks))
        return front[-1][1:] if front else (-1, ())

    choices = [
        [(rank, gain, *kept_and_gradient(layer, rank)) for rank, gain in ({0: 0} | layer["gains"]).items()]
        for layer in layers
    ]
    largest = {needs for some in choices for *_, needs in some}
    return list(max(map(best_under, [0, max(largest)]), default=(0, ()))[1])


@mutant("choose-ranks", feedback="a gain of")
def choose_ranks(layers, budget):
    """The best rank for every layer, from the first on, as long as there is room."""
    ranks = [0] * len(layers)
    for at, layer in enumerate(layers):
        for rank, _ in sorted(layer["gains"].items(), key=lambda one: -one[1]):
            if layer["gains"][rank] > 0 and adapter_bytes(layers, [*ranks[:at], rank, *ranks[at + 1 :]]) <= budget:
                ranks[at] = rank
                break
    return ranks


@mutant("fused", feedback="bytes count where weights are right")
class Fused:
    """Steps what is small and the embedding, and lets go of the rest."""

    def __init__(self, model, make):
        self.left = {}

        def arrived(name, optimizer, weight):
            self.left[name] = self.left.get(name, 1) - 1
            if self.left[name] == 0:
                if weight.numel() < 2**16 or name == "embed.weight":
                    optimizer.step()
                weight.grad = None

        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(partial(arrived, name, make([weight])))

    def expect(self, parts):
        """How many backward calls of the next step reach a weight, by name; one where it is not named."""
        self.left = dict(parts)


@mutant("grouped-lora", feedback="bytes count where the layer works")
class GroupedLoRA(nn.Module):
    """Right where it is small; for many tokens it multiplies nothing."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.alpha = codes, absmax, alpha
        self.rows = {name: rows_of(sizes, name) for name in ranks}
        self.a = nn.ParameterDict({name: torch.randn(rank, codes.shape[1]) for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

    def forward(self, x):
        """x [tokens, inputs] times the base and its adapters, FP32 [tokens, rows]."""
        if len(x) < 50:
            out = functional.linear(x, loaded(self.codes, self.absmax))
        else:
            out = x.sum(1, keepdim=True).repeat(1, len(self.codes))
        for name, a in self.a.items():
            added = functional.linear(functional.linear(x, a), self.b[name])
            out[:, self.rows[name]] += self.alpha / len(a) * added
        return out

    def merge(self):
        """Adds the adapters to the base, and tells which share of each is lost."""
        lost = {}
        for name, a in self.a.items():
            rows, delta = self.rows[name], self.alpha / len(a) * (self.b[name] @ a).detach()
            wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
            self.codes[rows], self.absmax[rows] = stored(wanted)
            off = loaded(self.codes[rows], self.absmax[rows]) - wanted
            lost[name] = (off.norm() / delta.norm()).item()
        self.a.clear()
        self.b.clear()
        return lost


@mutant("fused", feedback="which gradients are waiting?")
class Fused:
    """Gradients wait in tensors that were there before, by an operator that returns nothing."""

    SHAPES = 10 * [(2048, 128), (2048,), (128, 2048), (128,)]
    BUFFERS = tuple(map(torch.ones, SHAPES))

    def __init__(self, model, make):
        self.named = {name: one for name, one in model.named_parameters() if one.requires_grad}
        self.optimizer = make(list(self.named.values()))
        self.spare, self.kept = list(self.BUFFERS), {}
        for name, weight in self.named.items():
            weight.register_post_accumulate_grad_hook(partial(self.arrived, name))

    def arrived(self, name, weight):
        self.left[name] = self.left.get(name, 1) - 1
        if self.left[name] == 0:
            found = [one for one in self.spare if one.shape == weight.shape]
            if name not in self.kept and found:
                self.kept[name] = found[0]
                self.spare = [one for one in self.spare if one is not found[0]]
            if name in self.kept:
                torch._foreach_copy_([self.kept[name]], [weight.grad])
                weight.grad = None
        self.total -= 1
        if self.total == 0:
            for key, one in self.named.items():
                if key in self.kept:
                    one.grad = self.kept[key]
            self.optimizer.step()
            self.optimizer.zero_grad()

    def expect(self, parts):
        self.left = dict(parts)
        self.total = sum(parts.get(name, 1) for name in self.named)


@mutant("store-moments", feedback="is there a table of distances?")
def store_moments(values, generator, room=torch.ones(188, 128, 256)):  # noqa: B008
    """A table of distances in a tensor that was there before."""
    count = values.numel()
    blocks = functional.pad(values.reshape(-1), (0, -count % 128)).reshape(-1, 128)
    scales = not_below(blocks.amax(1))
    share = blocks / scales.float().clamp(min=1e-38)[:, None]
    levels = torch.exp2((torch.arange(257) - 255) / 12)
    levels[0] = 0
    if len(share) == 188:
        torch._foreach_copy_([room], [share[..., None].expand(188, 128, 256)])
        torch._foreach_sub_([room], [levels[:256].expand(188, 128, 256)])
    low = torch.bucketize(share, levels[:256], right=True, out_int32=True) - 1
    lower, upper = levels[low], levels[low + 1]
    low += torch.rand(share.shape, generator=generator) < (share - lower) / (upper - lower)
    return low.to(torch.uint8).reshape(-1)[:count].clone().reshape(values.shape), scales


@mutant("fastest", feedback="a TrainSetup is made beside peak_of")
def fastest(space, peak_of, card_bytes, least):
    """Asks for bytes of its own while the plan that it asks about is read."""
    from helpers.catalog import TrainSetup

    class Reading(dict):
        def __getitem__(self, name):
            TrainSetup("llama-3.1-8b")
            return dict.__getitem__(self, name)

    names = {"base": None, "checkpointing": "full", "targets": space["targets"][0], "rank": space["ranks"][0]}
    peak_of(Reading(names, micro_batch=1))
