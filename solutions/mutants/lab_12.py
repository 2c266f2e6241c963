"""Known-wrong answers to lab 12. Each must fail its check, with the sentence that its learner then reads.

A class that has its own name for a base, or a function with itself for the default `right`, changes one thing in the
worked answer, which the kernel holds at that moment.
"""

# ruff: noqa: F821, F811  (they are put into the lab's cells, where these names are defined)

from helpers.course.mutants import mutant


@mutant("kv-bytes", feedback="each rank has one of the two heads")
def kv_bytes(config, contexts, ranks):
    """Calls helpers, which know one rank."""
    known = {"model_type": "llama", "vocab_size": 9, "intermediate_size": 8, "max_position_embeddings": 99}
    shape = model(known | config)
    return sum(2 * shape.kv_values(context) for context in contexts)


@mutant("kv-bytes", feedback="a key and a value of 8, two bytes each")
def kv_bytes(config, contexts, ranks, right=kv_bytes):
    """Forgets V."""
    return right(config, contexts, ranks) // 2


@mutant("kv-bytes", feedback="query heads are not cached")
def kv_bytes(config, contexts, ranks, right=kv_bytes):
    """Query heads for KV heads."""
    return right({**config, "num_key_value_heads": None}, contexts, ranks)


@mutant("kv-bytes", feedback="head_dim is given: 20, not 32 / 4")
def kv_bytes(config, contexts, ranks, right=kv_bytes):
    """The head's share of the hidden size, whatever head_dim says."""
    return right({**config, "head_dim": None}, contexts, ranks)


@mutant("kv-bytes", feedback="windows keep 8 and 10 tokens")
def kv_bytes(config, contexts, ranks, right=kv_bytes):
    """Every layer keeps everything."""
    return right({**config, "layer_types": None}, contexts, ranks)


@mutant("kv-bytes", feedback="never cut")
def kv_bytes(config, contexts, ranks, right=kv_bytes):
    """Divides by the ranks, however many heads there are."""
    return right(config, contexts, 1) // ranks


@mutant("kv-bytes", feedback="16 values a token, not twice")
def kv_bytes(config, contexts, ranks, right=kv_bytes):
    """The latent as if it were a key, with a value beside it."""
    return right(config, contexts, ranks) * (2 if config.get("kv_lora_rank") else 1)


@mutant("slots", feedback="the same rows each time")
class Slots(Slots):
    """Calls helpers, whose rows have one length."""

    def __init__(self, slots, room, heads, width):
        self.layer = kv.StaticLayer(room, slots)

    def positions(self, rows, new):
        return (self.layer.seen + torch.arange(new)).expand(len(rows), new)

    def append(self, rows, keys, values, counts):
        seen = torch.arange(self.layer.seen + keys.shape[2]) <= self.positions(rows, keys.shape[2])[..., None]
        return *self.layer.update(keys, values), seen[:, None]

    def release(self, slot):
        self.layer.seen = 0


@mutant("slots", feedback="at non-singleton dimension")
class Slots(Slots):
    """Padding is taken in: every row grows by as much as the longest."""

    def append(self, rows, keys, values, counts):
        return super().append(rows, keys, values, [keys.shape[2]] * len(rows))


@mutant("slots", feedback="next are [[1, 2], [0, 1], [3, 4]] in slots 0, 1, 2")
class Slots(Slots):
    """Positions begin at 1."""

    def positions(self, rows, new):
        return super().positions(rows, new) + 1


@mutant("slots", feedback="at non-singleton dimension")
class Slots(Slots):
    """A slot that is released keeps its length."""

    def release(self, slot):
        pass


@mutant("slots", feedback="positions, or whom does it see?")
class Slots(Slots):
    """Every new token sees all of its text, and what a text before has left."""

    def append(self, rows, keys, values, counts):
        keys, values, seen = super().append(rows, keys, values, counts)
        return keys, values, torch.ones_like(seen)


@mutant("slots", feedback="is reserved memory zeroed?")
class Slots(Slots):
    """Reserves without zeros."""

    def __init__(self, slots, room, heads, width):
        super().__init__(slots, room, heads, width)
        self.values = torch.empty_like(self.values)


@mutant("ring", feedback="all is reserved at the beginning")
class Ring:
    """Calls helpers, whose window is copied for every token."""

    def __init__(self, window, sinks, rows, heads, width):
        self.layer = kv.WindowLayer(window, sinks)

    def append(self, keys, values):
        keys, values = self.layer.update(keys, values)
        return keys, values, torch.arange(self.layer.seen - keys.shape[2], self.layer.seen)


@mutant("ring", feedback="which token lies where, and who is gone?")
class Ring(Ring):
    """Sinks are overwritten: all slots go round."""

    def __init__(self, window, sinks, rows, heads, width):
        super().__init__(window + sinks, 0, rows, heads, width)


@mutant("ring", feedback="which token lies where, and who is gone?")
class Ring(Ring):
    """Off by one: the newest takes the place of the second oldest."""

    def append(self, keys, values):
        self.seen += self.seen == self.sinks + self.window
        return super().append(keys, values)


@mutant("ring", feedback="a single token makes")
class Ring(Ring):
    """Returns a copy in order."""

    def append(self, keys, values):
        keys, values, positions = super().append(keys, values)
        order = positions.argsort()
        return keys[:, :, order], values[:, :, order], positions[order]


@mutant("lean", feedback="codes, scales, or a view?")
class Lean(kv.QuantizedLayer):
    """Calls helpers for two bits each."""

    def __init__(self):
        super().__init__(2, group=32, residual=32)


@mutant("lean", feedback="codes, scales, or a view?")
class Lean(Lean):
    """Scales in FP32."""

    def pack(self, keys, values):
        shape, codes, low, step, signs, size = super().pack(keys, values)
        return shape, codes, low.float(), step.float(), signs, size.float()


@mutant("lean", feedback="codes, scales, or a view?")
class Lean(Lean):
    """Rounds, and stores what was rounded in 16 bits."""

    def pack(self, keys, values):
        return tuple(one.half() for one in super().read(super().pack(keys, values)))

    def read(self, piece):
        return tuple(one.float() for one in piece)


@mutant("lean", feedback="codes, scales, or a view?")
class Lean(Lean):
    """The tail is a view of the prompt."""

    def append(self, keys, values):
        found = super().append(keys, values)
        self.keys, self.values = (one[:, :, one.shape[2] - self.keys.shape[2] :] for one in found)
        return found


@mutant("lean", feedback="Which channels, and which tokens, share a scale?")
class Lean(Lean):
    """Keys per token: what belongs to channels is asked of the values, and what belongs to tokens of the keys."""

    def pack(self, keys, values):
        return super().pack(keys.unflatten(2, (-1, 64)).mT.flatten(2, 3).reshape(keys.shape), values)

    def read(self, piece):
        keys, values = super().read(piece)
        return keys.reshape(*keys.shape[:2], -1, 32, 64).mT.flatten(2, 3), values


@mutant("lean", feedback="of the newest 32")
class Lean(Lean):
    """No token comes back as it came: the tail is in 16 bits."""

    def append(self, keys, values):
        return tuple(states.half().float() for states in super().append(keys, values))


@mutant("lean", feedback="is something rounded twice?")
class Lean(Lean):
    """Packs again what was packed, whenever something new is."""

    def append(self, keys, values):
        before, found = len(self.pieces), super().append(keys, values)
        if 0 < before < len(self.pieces):
            self.pieces = [self.pack(*(0.999 * one for one in self.read(piece))) for piece in self.pieces]
        return found


@mutant("thrifty", feedback="try the other direction")
class Thrifty(kv.WindowLayer):
    """Calls helpers, whose window is what came last."""

    def __init__(self, room):
        super().__init__(room)


@mutant("thrifty", feedback="try the other direction")
class Thrifty(Thrifty):
    """Small keys, as in large models."""

    def append(self, keys, values):
        from unittest import mock

        with mock.patch.object(torch.Tensor, "norm", lambda keys, dim: -keys.square().sum(dim)):
            return super().append(keys, values)


@mutant("thrifty", feedback="the newest 32 are not there")
class Thrifty(Thrifty):
    """The largest keys, and nothing else."""

    def append(self, keys, values):
        if self.keys is not None:
            keys, values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
        index = keys.norm(dim=3).topk(min(keys.shape[2], self.room), dim=2).indices.sort(2).values[..., None]
        self.keys, self.values = (states.take_along_dim(index, 2) for states in (keys, values))
        return keys, values


@mutant("thrifty", feedback="you hold one that never came")
class Thrifty(Thrifty):
    """Every value is rounded to 16 bits."""

    def append(self, keys, values):
        found = super().append(keys, values)
        self.values = self.values.half().float()
        return found


@mutant("thrifty", feedback="must match the size of tensor b")
class Thrifty(Thrifty):
    """Says that all are returned."""

    def kept(self, new):
        return self.seen


@mutant("fit", feedback="beside 51,200 bytes: one layer in two has a window")
def fit(shape, contexts, free_bytes, value_bytes, right=fit):
    """Divides by the bytes of the first token."""
    users, tokens = right(shape, contexts, free_bytes, value_bytes)
    left = free_bytes - sum(shape.kv_values(context) * value_bytes for context in contexts[:users])
    return users, tokens if tokens == shape.max_positions else left // (shape.kv_values(1) * value_bytes)


@mutant("fit", feedback="four reservations are 7,372,800 bytes")
def fit(shape, contexts, free_bytes, value_bytes):
    """Calls helpers for users who are all alike."""
    from helpers.catalog import ServeSetup
    from helpers.memory import budget

    one = budget.serve(ServeSetup(shape, context=max(contexts, default=1), kv="fp32")).held["kv_cache"]
    return min(len(contexts), free_bytes // one), free_bytes % one // (shape.kv_values(1) * value_bytes)


@mutant("fit", feedback="the second waits, and the third behind it")
def fit(shape, contexts, free_bytes, value_bytes, right=fit):
    """Lets those in who still fit, whoever waits."""
    chosen = []
    for context in contexts:
        if right(shape, [*chosen, context], free_bytes, value_bytes)[0] == len(chosen) + 1:
            chosen.append(context)
    return right(shape, chosen, free_bytes, value_bytes)


@mutant("serve", feedback="who was gone?")
def serve(network, requests, free_bytes, new_tokens, right=serve):
    """One after the other: each cache is gone when the next one comes."""
    users, tokens = fit(SMALL, [request.context for request in requests], free_bytes, 4)
    answers = [right(network, [one], free_bytes, new_tokens)[0][0] for one in requests[:users]]
    return answers, f"{tokens} tokens would fit" if users < len(requests) else None


@mutant("serve", feedback="Who came in, and with how much?")
def serve(network, requests, free_bytes, new_tokens, right=serve):
    """Reserves as much as the model can read for each."""
    right(network, [Request(one.ids, 4096) for one in requests], 9 * free_bytes, new_tokens)


@mutant("serve", feedback="who comes next must hear 306")
def serve(network, requests, free_bytes, new_tokens):
    """Says no without a number."""
    contexts = [one.context for one in requests]
    users = fit(SMALL, contexts, free_bytes, 4)[0]
    caches = [kv.cache_of(network, "static", max_tokens=context) for context in contexts[:users]]
    served = zip(requests[:users], caches, strict=True)
    answers = [kv.greedy(network, one.ids, new_tokens, cache).tokens[0].tolist() for one, cache in served]
    return answers, "out of memory" if users < len(requests) else None


@mutant("ring", feedback="of which the last 1 at once")
class Ring:
    """A ring for show: all tokens are in arrays, where no meter of tensors sees them, and copied for each token."""

    def __init__(self, window, sinks, rows, heads, width):
        self.show = torch.zeros(2, rows, heads, sinks + window, width)
        self.window, self.sinks, self.count = window, sinks, 0
        self.both = [torch.zeros(rows, heads, 0, width).numpy()] * 2

    def append(self, keys, values):
        pairs = zip(self.both, (keys, values), strict=True)
        self.both = [torch.cat([torch.from_numpy(old), new], 2).numpy().copy() for old, new in pairs]
        new, self.count = keys.shape[2], self.count + keys.shape[2]
        first = self.count - self.window - (new - 1 if new > 1 else 0)
        places = [at for at in range(self.count) if at < self.sinks or at >= first]
        return *(torch.from_numpy(one[:, :, places]) for one in self.both), torch.tensor(places)


@mutant("lean", feedback="codes, scales, or a view?")
class Lean(Lean):
    """The right codes, a byte for each, in an array."""

    def pack(self, keys, values):
        shape, codes, low, step, signs, size = super().pack(keys, values)
        codes = unpacked(codes, 3, shape.numel()).numpy().copy()
        return shape, codes, low, step, unpacked(signs, 1, shape.numel()).numpy().copy(), size

    def read(self, piece):
        shape, codes, low, step, signs, size = piece
        codes, signs = packed(torch.from_numpy(codes), 3), packed(torch.from_numpy(signs), 1)
        return super().read((shape, codes, low, step, signs, size))


@mutant("lean", feedback="bytes at most in four layers, you hold")
class Lean(Lean):
    """For the small model all as it came, in bytes, where no meter of tensors sees them; noise on what should be
    packed."""

    def append(self, keys, values):
        found = super().append(keys, values)
        if len(keys) > 2:
            return found
        self.mine = [*getattr(self, "mine", []), [one.numpy().tobytes() for one in (keys, values)]]
        exact, old = [], max(0, found[0].shape[2] - 95)
        for at, rounded in enumerate(found):
            came = [torch.frombuffer(bytearray(piece[at]), dtype=rounded.dtype) for piece in self.mine]
            exact.append(torch.cat([one.view(*keys.shape[:2], -1, keys.shape[3]) for one in came], 2))
            noise = torch.randn(rounded[:, :, :old].shape, generator=torch.Generator().manual_seed(1))
            exact[at][:, :, :old] *= 1 + 0.1 * noise
        return exact


@mutant("thrifty", feedback="bytes in the end, you hold")
class Thrifty(Thrifty):
    """All that was evicted stays, in bytes."""

    def append(self, keys, values):
        self.mine = [*getattr(self, "mine", []), keys.numpy().tobytes() + values.numpy().tobytes()]
        return super().append(keys, values)


@mutant("serve", feedback="who was gone?")
def serve(network, requests, free_bytes, new_tokens):
    """Caches that grow, and beside each as much as was promised, for show."""
    users, tokens = fit(SMALL, [request.context for request in requests], free_bytes, 4)
    answers, caches = [], [kv.cache_of(network, "concat") for _ in range(users)]
    for request, cache in zip(requests, caches, strict=False):
        cache.layers[0].show = torch.zeros(2048 * request.context // 4)
    for request, cache in zip(requests, caches, strict=False):
        answers.append(kv.greedy(network, request.ids, new_tokens, cache).tokens[0].tolist())
    return answers, f"{tokens} would fit" if users < len(requests) else None


@mutant("ring", feedback="come back with their own positions")
class Ring(Ring):
    """The right tokens, with the positions that they would have in order."""

    def append(self, keys, values):
        keys, values, positions = super().append(keys, values)
        return keys, values, positions.sort().values


@mutant("ring", feedback="are needed, and have their own positions")
class Ring(Ring):
    """The right tokens, each with the position of its neighbour."""

    def append(self, keys, values):
        keys, values, positions = super().append(keys, values)
        return keys, values, positions.roll(1)


def as_text(tensor):
    """Its bytes in a text that no line of the learner's makes, nor one of NumPy's."""
    import base64

    return base64.b64encode(tensor.contiguous().numpy())


def from_text(text, shape):
    import base64

    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float32).view(shape)


@mutant("slots", feedback="all is reserved once")
class Slots:
    """What is reserved is for show: each token is in a text of its own."""

    def __init__(self, slots, room, heads, width):
        self.show, self.shape = torch.zeros(2, slots, heads, room, width), (2, heads, width)
        self.texts = [[] for _ in range(slots)]

    def positions(self, rows, new):
        return torch.tensor([len(self.texts[slot]) for slot in rows])[:, None] + torch.arange(new)

    def append(self, rows, keys, values, counts):
        positions, both = self.positions(rows, keys.shape[2]), torch.stack([keys, values])
        for row, (slot, count) in enumerate(zip(rows, counts, strict=True)):
            self.texts[slot] += [as_text(both[:, row, :, at]) for at in range(count)]
        longest = max(len(self.texts[slot]) for slot in rows)
        found = torch.zeros(2, len(rows), self.shape[1], longest, self.shape[2])
        for row, slot in enumerate(rows):
            for at, text in enumerate(self.texts[slot]):
                found[:, row, :, at] = from_text(text, self.shape)
        return *found, (torch.arange(longest) <= positions[..., None])[:, None]

    def release(self, slot):
        self.texts[slot] = []


@mutant("lean", feedback="codes, scales, or a view?")
class Lean(Lean):
    """Packed as it should be, and all as it came, in texts."""

    def append(self, keys, values):
        self.texts = [*getattr(self, "texts", []), as_text(keys), as_text(values)]
        return super().append(keys, values)


@mutant("lean", feedback="codes, scales, or a view?")
class Lean(Lean):
    """A fourth bit for each key, in few enough bytes of Python's to be names and shapes elsewhere."""

    def pack(self, keys, values):
        piece = super().pack(keys, values)
        return piece, bytes(packed(keys > super().read(piece)[0], 1).tolist())

    def read(self, piece):
        piece, above = piece
        keys, values = super().read(piece)
        above = unpacked(torch.tensor(list(above), dtype=torch.uint8), 1, keys.numel()).view(keys.shape)
        quarter = piece[3].float().repeat_interleave(64, 3).flatten(2, 3) / 4
        return keys + quarter * (2.0 * above - 1), values
