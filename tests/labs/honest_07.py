"""Honest answers to lab 07, written otherwise than the worked ones. Each must earn every point."""

# ruff: noqa: F821, N801  (they run where the lab's names are defined, and are named as the answer and how it is written)

from __future__ import annotations

import math
from functools import partial

import torch
from torch import nn
from torch.nn import functional


def store_moments_by_logarithms(values, generator):
    """The level below is a logarithm, cut off, and put right where that is one off."""
    flat = values.flatten()
    count, blocks = len(flat), -(-len(flat) // 128)
    padded = torch.zeros(128 * blocks)
    padded[:count] = flat
    padded = padded.view(blocks, 128)
    largest = padded.max(1).values
    near = largest.to(torch.bfloat16)
    scales = torch.where(
        near.float() < largest, torch.nextafter(near, torch.tensor(math.inf, dtype=torch.bfloat16)), near
    )
    share = (padded / scales.float()[:, None]).nan_to_num(0)

    def level(place):
        return torch.where(place > 0, torch.exp2((place - 255) / 12), 0)

    place = (255 + 12 * torch.log2(share.clamp(min=1e-30))).floor().clamp(0, 255)
    place += level(place + 1) <= share
    place -= (level(place) > share).float()
    lower = level(place)
    threshold = lower + torch.rand(share.shape, generator=generator) * (level(place + 1) - lower)
    place += share > threshold
    print("blocks", blocks)
    return place.byte().flatten()[:count].clone().view_as(values), scales


def store_moments_with_bernoulli(values, generator):
    """Probabilities first, and PyTorch draws; in FP64."""
    flat = torch.zeros(math.ceil(values.numel() / 128), 128)
    flat.view(-1)[: values.numel()] = values.reshape(-1)
    scales = not_below(torch.max(flat, dim=1)[0])
    levels = torch.tensor([0.0] + [2 ** ((code - 255) / 12) for code in range(1, 257)])
    where = scales > 0
    share = torch.zeros_like(flat)
    share[where] = flat[where] / scales[where].float().unsqueeze(1)
    codes = torch.searchsorted(levels, share, right=True) - 1
    codes = codes.clamp(max=255)
    chance = ((share - levels[codes]) / (levels[codes + 1] - levels[codes])).clamp(0, 1)
    codes = (codes + torch.bernoulli(chance, generator=generator)).to(torch.uint8)
    return codes.view(-1)[: values.numel()].clone().view(values.shape), scales


def store_moments_with_noise_of_a_word(values, generator):
    """Chance as whole numbers of 16 bits; a piece at a time."""
    table = torch.cat([torch.zeros(1), torch.exp2((torch.arange(1, 257) - 255).double() / 12).float()])
    codes, scales = [], []
    for part in values.flatten().split(128 * 4096):
        blocks = functional.pad(part, (0, -len(part) % 128)).view(-1, 128)
        bits = blocks.amax(1).view(torch.int32)
        scale = ((bits >> 16) + ((bits & 65535) > 0).int() << 16).view(torch.float32)
        share = torch.where(scale[:, None] > 0, blocks / scale[:, None], 0.0)
        low = torch.searchsorted(table, share, right=True, out_int32=True).sub_(1).clamp_(max=255)
        way = (share - table[low]) / (table[low + 1] - table[low]) * 65536
        low += torch.randint(65536, share.shape, generator=generator, dtype=torch.int32) < way.round()
        codes.append(low.to(torch.uint8).flatten()[: len(part)])
        scales.append(scale.to(torch.bfloat16))
    return [torch.cat(codes).clone().reshape(values.shape), torch.cat(scales)]


def load_moments_one_by_one(codes, scales):
    found = [0.0 if code == 0 else scales[at // 128].item() * 2 ** ((code - 255) / 12)
             for at, code in enumerate(codes.flatten().tolist())]  # fmt: skip
    return torch.tensor(found).reshape(codes.shape)


def load_moments_in_double(codes, scales):
    """Block by block, in FP64; twelve roots of two."""
    parts = []
    for part, scale in zip(codes.reshape(-1).split(128), scales.double(), strict=True):
        parts.append(scale * (2 ** (1 / 12)) ** (part.double() - 255) * (part != 0))
    print(len(parts), "blocks")
    return torch.cat(parts).float().view_as(codes)


class Fused_with_optimizers_made_late:
    """An optimizer is made when its weight first needs it; what is still to come is counted upwards."""

    def __init__(self, model, make):
        self.make, self.optimizers, self.parts, self.seen = make, {}, {}, {}
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(lambda weight, name=name: self.step(name, weight))

    def step(self, name, weight):
        self.seen[name] = self.seen.get(name, 0) + 1
        if self.seen[name] == self.parts.get(name, 1):
            if name not in self.optimizers:
                self.optimizers[name] = self.make([weight])
            self.optimizers[name].step()
            self.optimizers[name].zero_grad(set_to_none=True)

    def expect(self, parts):
        print("expecting", len(parts))
        self.parts, self.seen = parts, {}


class Fused_that_adds_up_itself:
    """Parts of a gradient lie in a place of its own until the last one comes."""

    def __init__(self, model, make):
        self.left = {}
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                arrived = partial(self.arrived, name, make([weight]), [None])
                weight.register_post_accumulate_grad_hook(arrived)

    def arrived(self, name, optimizer, kept, weight):
        kept[0] = weight.grad if kept[0] is None else kept[0].add_(weight.grad)
        weight.grad = None
        self.left[name] = self.left.get(name, 1) - 1
        if not self.left[name]:
            weight.grad = kept.pop()
            kept.append(None)
            optimizer.step()
            weight.grad = None

    def expect(self, parts):
        self.left = {**parts}


class GroupedLoRA_with_a_function(nn.Module):
    """The base's product keeps nothing: its backward loads the weight again."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.register_buffer("codes", codes)
        self.register_buffer("absmax", absmax)
        self.sizes, self.scale = sizes, {name: alpha / rank for name, rank in ranks.items()}
        self.a = nn.ParameterDict({name: torch.rand(rank, codes.shape[1]) - 0.5 for name, rank in ranks.items()})
        self.b = nn.ParameterDict({name: torch.zeros(sizes[name], rank) for name, rank in ranks.items()})

        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x @ loaded(self.codes, self.absmax).T

            @staticmethod
            def backward(ctx, grad):
                return grad @ loaded(self.codes, self.absmax)

        self.product = Product

    def forward(self, x):
        parts = []
        for name, part in zip(self.sizes, self.product.apply(x).split(list(self.sizes.values()), -1), strict=True):
            if name in self.a:
                part = part + self.scale[name] * (x @ self.a[name].T @ self.b[name].T)
            parts.append(part)
        return torch.cat(parts, -1)

    @torch.no_grad()
    def merge(self):
        lost, first = {}, 0
        for name, size in self.sizes.items():
            rows = slice(first, first + size)
            first += size
            if name in self.a:
                delta = self.scale[name] * (self.b.pop(name) @ self.a.pop(name))
                wanted = loaded(self.codes[rows], self.absmax[rows]) + delta
                for kept, new in zip((self.codes, self.absmax), stored(wanted), strict=True):
                    kept[rows] = new
                lost[name] = torch.dist(loaded(self.codes[rows], self.absmax[rows]), wanted) / delta.norm()
        return lost


class GroupedLoRA_with_hooks_for_what_is_saved(nn.Module):
    """Autograd saves a note in the place of the dense weight, and makes it again when it reads the note."""

    def __init__(self, codes, absmax, sizes, ranks, alpha):
        super().__init__()
        self.codes, self.absmax, self.ranks, self.alpha = codes, absmax, ranks, alpha
        self.first, self.sizes, at = {}, sizes, 0
        for name, size in sizes.items():
            self.first[name], at = at, at + size
        self.a, self.b = nn.ParameterDict(), nn.ParameterDict()
        for name, rank in ranks.items():
            self.a[name] = nn.Parameter(torch.nn.init.xavier_normal_(torch.empty(rank, codes.size(1))))
            self.b[name] = nn.Parameter(torch.zeros(sizes[name], rank))

    def forward(self, x):
        weight = loaded(self.codes, self.absmax)
        key = weight.untyped_storage().data_ptr()

        def pack(tensor):
            return tuple(tensor.shape) if tensor.untyped_storage().data_ptr() == key else tensor

        def unpack(found):
            if isinstance(found, torch.Tensor):
                return found
            again = loaded(self.codes, self.absmax)
            return again if tuple(again.shape) == found else again.T

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            out = functional.linear(x, weight)
        del weight, pack
        for name in self.a:
            thin = functional.linear(x, self.a[name])
            added = functional.linear(thin, self.b[name]).mul(self.alpha / self.ranks[name])
            out.narrow(1, self.first[name], self.sizes[name]).add_(added)
        return out

    def merge(self):
        lost = {}
        for name in list(self.a):
            delta = (self.alpha / self.ranks[name]) * self.b[name].detach() @ self.a[name].detach()
            dense = loaded(self.codes, self.absmax)
            part = slice(self.first[name], self.first[name] + self.sizes[name])
            wanted = dense[part] + delta
            codes, absmax = stored(wanted)
            self.codes = torch.cat([self.codes[: part.start], codes, self.codes[part.stop :]])
            self.absmax = torch.cat([self.absmax[: part.start], absmax, self.absmax[part.stop :]])
            lost[name] = math.sqrt((loaded(codes, absmax) - wanted).square().sum() / delta.square().sum())
        self.a, self.b = nn.ParameterDict(), nn.ParameterDict()
        return lost


def fastest_from_the_quickest_way(space, peak_of, card_bytes, least):
    """Combinations in the order of their cost for a sequence, with a bound on what each could reach."""
    combinations = []
    for (base, how), (fixed, each) in space["time"].items():
        for targets in space["targets"]:
            values = sum(a + b for a, b in (space["linears"][name] for name in targets)) * space["layers"]
            ranks = sorted(rank for rank in space["ranks"] if rank * values >= least)
            if ranks:
                combinations.append(
                    (each, fixed, {"base": base, "checkpointing": how, "targets": targets, "rank": ranks[0]})
                )
    combinations.sort(key=lambda one: one[:2])
    best, speed = None, 0.0
    for each, fixed, plan in combinations:
        low = math.floor(speed * fixed / (1 - speed * each) + 1e-9) if speed * each < 1 else space["most"]
        if low >= space["most"] or peak_of({**plan, "micro_batch": low + 1}) > card_bytes:
            continue
        low, high = low + 1, None
        while high is None or high - low > 1:
            middle = min(2 * low, space["most"] + 1) if high is None else (low + high) // 2
            if middle <= space["most"] and peak_of({**plan, "micro_batch": middle}) <= card_bytes:
                low = middle
            else:
                high = middle
        if low / (fixed + low * each) > speed:
            best, speed = {**plan, "micro_batch": low}, low / (fixed + low * each)
    print(best)
    return best


def fastest_with_a_line_through_two_peaks(space, peak_of, card_bytes, least):
    """The peak is about a line: guess where it meets the card, and walk from there. Answers are remembered."""
    known = {}

    def fits(plan, rows):
        key = plan["base"], plan["checkpointing"], plan["targets"], rows
        if key not in known:
            known[key] = peak_of(dict(plan, micro_batch=rows))
        return known[key] <= card_bytes

    def largest(plan, least_rows):
        if not fits(plan, least_rows):
            return 0
        ahead = least_rows
        if ahead < space["most"] and fits(plan, ahead + 1):
            more = known[plan["base"], plan["checkpointing"], plan["targets"], ahead + 1]
            slope = more - known[plan["base"], plan["checkpointing"], plan["targets"], ahead]
            ahead = ahead + 1 + (card_bytes - more) // slope if slope > 0 else ahead + 1
            ahead = max(least_rows, min(ahead, space["most"]))
        while not fits(plan, ahead):
            ahead -= 1
        while ahead < space["most"] and fits(plan, ahead + 1):
            ahead += 1
        return ahead

    found = (0.0, None)
    for targets in space["targets"]:
        trained = space["layers"] * sum(map(sum, (space["linears"][name] for name in targets)))
        rank = next((rank for rank in space["ranks"] if rank * trained >= least), None)
        for base in space["bases"] if rank else ():
            for how in space["checkpointing"]:
                fixed, each = space["time"][base, how]
                plan = {"base": base, "checkpointing": how, "targets": targets, "rank": rank}
                rows = 1
                while rows <= space["most"] and rows / (fixed + rows * each) <= found[0]:
                    rows += 1
                rows = largest(plan, rows) if rows <= space["most"] else 0
                if rows:
                    found = max(
                        found, (rows / (fixed + rows * each), dict(plan, micro_batch=rows)), key=lambda one: one[0]
                    )
    return found[1]


def adapter_bytes_by_tensors(layers, ranks):
    import numpy as np

    kept, gradients = np.int64(0), [0]
    for layer, rank in zip(layers, ranks, strict=True):
        for n in (np.int64(rank * layer["inputs"]), np.int64(rank * layer["outputs"])):
            state = n + 4 * math.ceil(n / 256) if n >= 4096 else 4 * n
            kept += 2 * n + 2 * state
            gradients.append(2 * n)
    return kept + max(gradients)


def choose_ranks_by_gains(layers, budget):
    """For every sum of gains the fewest bytes, in a dict; a new one for every largest gradient."""

    def parts(layer, rank):
        kept, largest = 0, 0
        for n in (rank * layer["inputs"], rank * layer["outputs"]):
            kept += 2 * n + 2 * (n + 4 * -(-n // 256) if n >= 4096 else 4 * n)
            largest = max(largest, 2 * n)
        return kept, largest

    best = (0, [0] * len(layers))
    for limit in {parts(layer, rank)[1] for layer in layers for rank in layer["gains"]}:
        table = {0: (0, None)}
        for layer in layers:
            new = {}
            for gain, (size, way) in table.items():
                for rank, gained in [(0, 0), *layer["gains"].items()]:
                    kept, gradient = parts(layer, rank)
                    total = size + kept
                    if (
                        gradient <= limit
                        and total + limit <= budget
                        and total < new.get(gain + gained, (total + 1,))[0]
                    ):
                        new[gain + gained] = (total, (way, rank))
            table = new
        if table and max(table) > best[0]:
            way, ranks = table[max(table)][1], []
            while way:
                way, rank = way
                ranks.append(rank)
            best = (max(table), ranks[::-1])
    return best[1]


def choose_ranks_by_branches(layers, budget):
    """The same walk with what cannot be told apart left out, and a tuple of NumPy's numbers for an answer."""
    import numpy as np

    def bytes_of(layer, rank):
        sizes = [rank * layer["inputs"], rank * layer["outputs"]]
        states = [8 * n if n < 4096 else 2 * n + 8 * math.ceil(n / 256) for n in sizes]
        return sum(states) + 2 * sum(sizes), 2 * max(sizes)

    fronts = {}  # the largest gradient so far -> {gain: (bytes, ranks)}
    fronts[0] = {0: (0, ())}
    for layer in layers:
        longer = {}
        for largest, table in fronts.items():
            for rank, gained in {0: 0, **layer["gains"]}.items():
                more, needs = bytes_of(layer, rank)
                now = max(largest, needs)
                for gain, (size, ranks) in table.items():
                    if size + more + now <= budget:
                        into = longer.setdefault(now, {})
                        if gain + gained not in into or into[gain + gained][0] > size + more:
                            into[gain + gained] = (size + more, (*ranks, rank))
        fronts = longer
    found = [(gain, ranks) for table in fronts.values() for gain, (_, ranks) in table.items()]
    return tuple(np.int32(rank) for rank in max(found)[1])
