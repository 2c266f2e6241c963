"""Right answers to lab 12, written otherwise than the worked ones: the checks must give each all of its points."""

# ruff: noqa: F821, N801  (they run where the lab's names are defined)

from __future__ import annotations


def kv_bytes_layer_by_layer(config, contexts, ranks):
    """User by user and layer by layer."""
    total, kinds = 0, config.get("layer_types")
    for layer in range(config["num_hidden_layers"] - (config.get("num_kv_shared_layers") or 0)):
        for tokens in contexts:
            if kinds and kinds[layer].startswith("sliding"):
                tokens = min(tokens, config["sliding_window"])
            if "kv_lora_rank" in config:
                total += 2 * tokens * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
                continue
            kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
            width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
            total += 4 * tokens * max(1, kv_heads // ranks) * width
    return total


class Slots_in_one_tensor:
    """Keys and values in one tensor, written with one indexed assignment; all of the room is returned."""

    def __init__(self, slots, room, heads, width):
        self.both = torch.zeros(2, slots, room, heads, width)
        self.taken = torch.zeros(slots, dtype=torch.long)

    def positions(self, rows, new):
        return torch.stack([torch.arange(new) + self.taken[row] for row in rows])

    def append(self, rows, keys, values, counts):
        start, count, room = self.taken[rows], torch.tensor(counts), self.both.shape[2]
        at = torch.arange(keys.shape[2])
        row, token = torch.nonzero(at < count[:, None], as_tuple=True)
        for mine, new in zip(self.both, (keys, values), strict=True):
            mine[torch.tensor(rows)[row], start[row] + token] = new[row, :, token]
        self.taken[rows] = start + count
        last = (start[:, None] + at).minimum((start + count - 1)[:, None])
        seen = torch.arange(room) <= last[..., None]
        return *self.both[:, rows].transpose(2, 3), seen[:, None]

    def release(self, slot):
        self.taken[slot] = 0
        self.both[:, slot] = 0


class Ring_token_by_token:
    """One tensor for both; the positions start at -1."""

    def __init__(self, window, sinks, rows, heads, width):
        self.window, self.sinks, self.seen = window, sinks, 0
        self.both = torch.zeros(rows, heads, window + sinks, 2 * width)
        self.place = torch.full((window + sinks,), -1)

    def append(self, keys, values):
        new, found = keys.shape[2], None
        if new > 1:
            there = self.place >= 0
            old = self.both[:, :, there].chunk(2, dim=3)
            at = torch.cat([self.place[there], torch.arange(self.seen, self.seen + new)])
            found = torch.cat([old[0], keys], 2), torch.cat([old[1], values], 2), at
        for token in range(new):
            slot = self.seen
            if slot >= self.sinks:
                slot = self.sinks + (slot - self.sinks) % self.window
            self.both[:, :, slot] = torch.cat([keys[:, :, token], values[:, :, token]], -1)
            self.place[slot] = self.seen
            self.seen += 1
        if new > 1:
            return found
        filled = int((self.place >= 0).sum())
        return *self.both[:, :, :filled].chunk(2, dim=3), self.place[:filled]


class Lean_piece_by_piece(KVLayer):
    """Each 64 tokens apart, around their middle."""

    def append(self, keys, values):
        if not self.seen:
            self.parts = [[], [], [], [], []]
            self.keys, self.values = keys[:, :, :0].clone(), values[:, :, :0].clone()
        self.keys, self.values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
        results = [one for one in zip(*(self.read(part) for part in zip(*self.parts, strict=True)), strict=True) if one]
        results = [
            torch.cat([*old, tail], 2) for old, tail in zip(results or [(), ()], (self.keys, self.values), strict=True)
        ]
        while self.keys.shape[2] >= 96:
            for kept, one in zip(self.parts, self.pack(self.keys[:, :, :64], self.values[:, :, :64]), strict=True):
                kept.append(one)
            self.keys, self.values = self.keys[:, :, 64:].clone(), self.values[:, :, 64:].clone()
        return results

    def pack(self, keys, values):
        high, low = keys.amax(2, keepdim=True), keys.amin(2, keepdim=True)
        middle, reach = ((high + low) / 2).half(), ((high - low) / 2).half()
        codes = ((keys - middle) / reach.clamp(min=1e-3) * 3.5 + 3.5).round().clamp(0, 7)
        return packed(codes, 3), middle, reach, packed(values >= 0, 1), values.abs().mean(3, keepdim=True).half()

    def read(self, part):
        codes, middle, reach, signs, size = part
        shape = *size.shape[:3], middle.shape[3]
        count = torch.Size(shape).numel()
        keys = middle.float() + reach.float() * (unpacked(codes, 3, count).view(shape) - 3.5) / 3.5
        return keys, torch.where(unpacked(signs, 1, count).view(shape) > 0, size.float(), -size.float())


class Thrifty_one_choice_for_all_heads(KVLayer):
    """One choice for all heads of a row, kept as copies."""

    def __init__(self, room):
        super().__init__()
        self.room, self.count = room, 0

    def kept(self, new):
        return self.count

    def append(self, keys, values):
        given = keys, values
        if self.count:
            given = tuple(torch.cat(pair, 2) for pair in zip((self.keys, self.values), given, strict=True))
        older = given[0].shape[2] - 32
        best = slice(None)
        if older > self.room - 32:  # one choice for all heads
            best = given[0][:, :, :older].square().sum(3).sqrt().sum(1).topk(self.room - 32).indices.sort().values
            best = torch.cat([best, torch.arange(older, older + 32).expand(len(best), -1)], 1)
            self.keys, self.values = (torch.stack([one[row][:, best[row]] for row in range(len(one))]) for one in given)
        else:
            self.keys, self.values = (one.clone() for one in given)
        self.count = self.keys.shape[2]
        return given


def fit_bit_by_bit(shape, contexts, free_bytes, value_bytes):
    """Sums first; the length bit by bit; a list comes back."""

    def needs(tokens):
        return value_bytes * shape.kv_values(tokens) if tokens else 0

    taken = [0]
    for context in contexts:
        taken.append(taken[-1] + needs(context))
    users = max(count for count, size in enumerate(taken) if size <= free_bytes)
    tokens, step = 0, 2**20
    while step:
        if tokens + step <= shape.max_positions and needs(tokens + step) <= free_bytes - taken[users]:
            tokens += step
        step //= 2
    return [users, tokens]


def serve_token_by_token(network, requests, free_bytes, new_tokens):
    """All users go on in turn, token by token."""
    count, tokens = fit(model(network.config), [one.context for one in requests], free_bytes, 4)
    answers, caches = [[] for _ in range(count)], []
    for one in requests[:count]:
        caches.append(kv.cache_of(network, f"static:{one.context}"))
    given = [one.ids for one in requests[:count]]
    with torch.no_grad():
        for _ in range(new_tokens):
            for user, cache in enumerate(caches):
                logits = network(given[user], past_key_values=cache).logits[:, -1]
                given[user] = logits.argmax(-1, keepdim=True)
                answers[user].append(given[user].item())
    return answers, (f"Only {tokens:,} tokens are free." if count < len(requests) else None)


def kv_bytes_in_numpy(config, contexts, ranks):
    """Arrays of NumPy, whose integers come back; a print is left in."""
    import numpy as np

    layers = config["num_hidden_layers"] - (config.get("num_kv_shared_layers") or 0)
    kinds = np.array((config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"])[:layers])
    texts = np.array(contexts, dtype=object)
    window = np.minimum(texts, config.get("sliding_window") or 10**30)
    tokens = sum(int((texts if kind == "full_attention" else window).sum()) for kind in kinds)
    print("tokens", tokens)
    if config.get("kv_lora_rank"):
        return 2 * tokens * np.int64(config["kv_lora_rank"] + config["qk_rope_head_dim"])
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return tokens * np.int64(4 * width * max(1, heads // ranks))


class Slots_with_lists_of_lengths:
    """Positions come back as whole numbers of 32 bits; a slot is wiped when it is released."""

    def __init__(self, slots, room, heads, width):
        self.store, self.of = torch.zeros(slots, heads, room, 2 * width), dict.fromkeys(range(slots), 0)

    def positions(self, rows, new):
        return torch.tensor([[*range(self.of[row], self.of[row] + new)] for row in rows], dtype=torch.int32)

    def append(self, rows, keys, values, counts):
        at = self.positions(rows, keys.shape[2])
        for i, row in enumerate(rows):
            for token in range(counts[i]):
                self.store[row, :, self.of[row]] = torch.cat([keys[i, :, token], values[i, :, token]], -1)
                self.of[row] += 1
        end = max(self.of[row] for row in rows)
        found = torch.stack([self.store[row, :, :end] for row in rows])
        return [*found.chunk(2, dim=-1), torch.stack([torch.arange(end) <= one[:, None] for one in at])[:, None]]

    def release(self, slot):
        self.of[slot] = 0
        self.store[slot].zero_()


class Ring_with_a_list_of_positions:
    """The positions are a list of Python's, from which a tensor is made at the end; printed on the way."""

    def __init__(self, window, sinks, rows, heads, width):
        self.size, self.sinks, self.where = window + sinks, sinks, []
        self.keys, self.values = (torch.zeros(rows, heads, self.size, width) for _ in range(2))
        self.count = 0

    def _write(self, keys, values):
        for token in range(keys.shape[2]):
            at, window = self.count, self.size - self.sinks
            slot = at if at < self.size else self.sinks + (at - self.sinks) % window
            self.keys[:, :, slot], self.values[:, :, slot] = keys[:, :, token], values[:, :, token]
            self.where[slot : slot + 1] = [at]
            self.count += 1

    def append(self, keys, values):
        new = keys.shape[2]
        filled = len(self.where)
        if new == 1:
            self._write(keys, values)
            filled = len(self.where)
            return [self.keys[:, :, :filled], self.values[:, :, :filled], torch.tensor(self.where)]
        both = ((self.keys, keys), (self.values, values))
        found = [torch.cat([old[:, :, :filled], mine], 2) for old, mine in both]
        found.append(torch.tensor(self.where + list(range(self.count, self.count + new))))
        print(self.count, "tokens so far")
        self._write(keys, values)
        return found


class Thrifty_by_norms_of_all_channels(KVLayer):
    """The tail apart, whose sizes are not asked for; a list comes back."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def kept(self, new):
        return min(self.seen, self.room)

    def append(self, keys, values):
        if self.seen:
            keys, values = (torch.cat(pair, 2) for pair in ((self.keys, keys), (self.values, values)))
        self.keys, self.values = keys.clone(), values.clone()
        if keys.shape[2] > self.room:
            index = torch.linalg.vector_norm(keys[:, :, :-32], dim=-1).argsort(dim=2, descending=True)
            index = index[:, :, : self.room - 32].sort(dim=2).values[..., None]
            picked = [torch.take_along_dim(one[:, :, :-32], index, 2) for one in (keys, values)]
            self.keys, self.values = (
                torch.cat([old, new[:, :, -32:]], 2) for old, new in zip(picked, (keys, values), strict=True)
            )
        return [keys, values]


def fit_with_bisect(shape, contexts, free_bytes, value_bytes):
    """`bisect` and `accumulate`; scalars of NumPy come back."""
    from bisect import bisect_right
    from itertools import accumulate

    import numpy as np

    def bytes_of(tokens):
        return shape.kv_values(tokens) * value_bytes if tokens else 0

    taken = [*accumulate(map(bytes_of, contexts), initial=0)]
    users = bisect_right(taken, free_bytes) - 1
    tokens = bisect_right(range(shape.max_positions + 1), free_bytes - taken[users], key=bytes_of) - 1
    return np.array([users, tokens])


def serve_as_a_generator(network, requests, free_bytes, new_tokens):
    """The answers are tensors; the message is first."""
    users, tokens = fit(model(network.config), [one.context for one in requests], free_bytes, 4)
    message = f"You may have {tokens} tokens" if users < len(requests) else None
    pairs = [(one, kv.cache_of(network, "static", max_tokens=one.context)) for one in requests[:users]]
    yield torch.cat([kv.greedy(network, one.ids, new_tokens, cache).tokens for one, cache in pairs])
    yield message
