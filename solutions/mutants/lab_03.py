"""Known-wrong answers to lab 03. Each must fail its check, with the sentence that its learner then reads."""

# ruff: noqa: F821, F811  (they are put into the lab's cells, where these names are defined)

from helpers.course.mutants import mutant


@mutant("first-fit", feedback="4,097 bytes are rounded up to 8,192")
def first_fit(steps):
    """Calls helpers: PyTorch's allocator has two pools, other segments, best fit, and keeps what is freed."""
    ran = replay(steps)
    return list(zip(ran.allocated, ran.reserved, strict=True))


@mutant("first-fit", feedback="large enough, not the best")
def first_fit(steps):
    """Best fit."""
    segments, record = [], []
    for step in steps:
        if step.action == "alloc":
            size, holes = -(-step.size_bytes // 4096) * 4096, []
            for number, (segment_size, blocks) in enumerate(segments):
                begin = 0
                for block_begin, block_end in [*sorted(blocks.values()), (segment_size, None)]:
                    holes += [(block_begin - begin, number, begin)] if block_begin - begin >= size else []
                    begin = block_end
            if not holes:
                segments.append((-(-size // (16 * MIB)) * 16 * MIB, {}))
            _, number, begin = min(holes, default=(0, len(segments) - 1, 0))
            segments[number][1][step.key] = (begin, begin + size)
        else:
            for _, blocks in segments:
                blocks.pop(step.key, None)
            segments = [(size, blocks) for size, blocks in segments if blocks]
        allocated = sum(end - begin for _, blocks in segments for begin, end in blocks.values())
        record.append((allocated, sum(size for size, _ in segments)))
    return record


@mutant("first-fit", feedback="a free place of exactly this size is large enough")
def first_fit(steps):
    """A place of exactly the size that is asked for is too small."""
    segments, record = [], []

    def place(size):
        for number, (segment_size, blocks) in enumerate(segments):
            begin = 0
            for block_begin, block_end in [*sorted(blocks.values()), (segment_size, None)]:
                if block_begin - begin > size:
                    return number, begin
                begin = block_end
        segments.append((-(-size // (16 * MIB)) * 16 * MIB, {}))
        return len(segments) - 1, 0

    for step in steps:
        if step.action == "alloc":
            size = -(-step.size_bytes // 4096) * 4096
            number, begin = place(size)
            segments[number][1][step.key] = (begin, begin + size)
        else:
            for _, blocks in segments:
                blocks.pop(step.key, None)
            segments = [(size, blocks) for size, blocks in segments if blocks]
        allocated = sum(end - begin for _, blocks in segments for begin, end in blocks.values())
        record.append((allocated, sum(size for size, _ in segments)))
    return record


def fitted(steps, begins_at, order):
    """First fit over segments in `order`, each looked through from `begins_at(blocks)` on."""
    segments, record = [], []

    def place(size):
        for number, (segment_size, blocks) in order(list(enumerate(segments))):
            begin = begins_at(blocks)
            for block_begin, block_end in [*sorted(blocks.values()), (segment_size, None)]:
                if block_begin - begin >= size:
                    return number, begin
                begin = block_end
        segments.append((-(-size // (16 * MIB)) * 16 * MIB, {}))
        return len(segments) - 1, 0

    for step in steps:
        if step.action == "alloc":
            size = -(-step.size_bytes // 4096) * 4096
            number, begin = place(size)
            segments[number][1][step.key] = (begin, begin + size)
        else:
            for _, blocks in segments:
                blocks.pop(step.key, None)
            segments = [(size, blocks) for size, blocks in segments if blocks]
        allocated = sum(end - begin for _, blocks in segments for begin, end in blocks.values())
        record.append((allocated, sum(size for size, _ in segments)))
    return record


@mutant("first-fit", feedback="a place below a live block is free, too")
def first_fit(steps):
    """What is free below the lowest live block is not seen."""
    return fitted(steps, lambda blocks: min(begin for begin, _ in blocks.values()), list)


@mutant("first-fit", feedback="joins its free neighbours")
def first_fit(steps):
    """Never merges."""
    segments, record = [], []  # a segment is a list of [size, name or None]
    for step in steps:
        if step.action == "alloc":
            size = -(-step.size_bytes // 4096) * 4096
            if not any(name is None and place >= size for one in segments for place, name in one):
                segments.append([[-(-size // (16 * MIB)) * 16 * MIB, None]])
            one, at = next(
                (one, at) for one in segments for at, (place, name) in enumerate(one) if name is None and place >= size
            )
            rest = one[at][0] - size
            one[at : at + 1] = [[size, step.key], *([[rest, None]] if rest else [])]
        else:
            for one in segments:
                for block in one:
                    block[1] = None if block[1] == step.key else block[1]
            segments = [one for one in segments if any(name for _, name in one)]
        allocated = sum(size for one in segments for size, name in one if name)
        record.append((allocated, sum(size for one in segments for size, _ in one)))
    return record


@mutant("first-fit", feedback="the one that was made first comes first")
def first_fit(steps):
    """Looks into the newest segment first."""
    return fitted(steps, lambda blocks: 0, reversed)


@mutant("train-lean", feedback="what does a list, a hook or a graph still hold")
def train_lean(net, optimizer, batches):
    """Calls what is there, and collects the garbage afterwards."""
    result = train_leaking(net, optimizer, batches)
    gc.collect()
    return result


@mutant("train-lean", feedback="what does a list, a hook or a graph still hold")
def train_lean(net, optimizer, batches):
    """Makes all batches before the first step."""
    return train_leaking(net, optimizer, list(batches))


@mutant("train-lean", feedback="not of the batches' means")
def train_lean(net, optimizer, batches):
    """Nothing kept, and means of means."""
    means = {"loss": 0.0, "accuracy": 0.0, "moved": 0.0, "hidden": 0.0}
    worst, steps = 0.0, 0
    for x, y in batches:
        logits = net(x)
        loss = functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            means["moved"] += (net(x) - logits).abs().mean().item()
            means["hidden"] += net[:2](x).square().mean().sqrt().item()
        means["loss"] += loss.item()
        means["accuracy"] += (logits.argmax(-1) == y).float().mean().item()
        worst, steps = max(worst, loss.item()), steps + 1
    return {**{name: value / steps for name, value in means.items()}, "worst": worst}


@mutant("train-lean", feedback="your hook is still on the net")
def train_lean(net, optimizer, batches):
    """Numbers only, and the hook stays."""
    loss_sum = right = rows = squares = values = moved = steps = 0
    worst = 0.0

    def look(module, given, output):
        nonlocal squares, values
        squares, values = squares + output.detach().square().sum().item(), values + output.numel()

    net[1].register_forward_hook(look)
    for x, y in batches:
        logits = net(x)
        loss = functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            moved, steps = moved + (net(x) - logits).abs().mean().item(), steps + 1
        loss_sum, rows, worst = loss_sum + loss.item() * len(y), rows + len(y), max(worst, loss.item())
        right += (logits.argmax(-1) == y).sum().item()
    return {
        "loss": loss_sum / rows,
        "accuracy": right / rows,
        "worst": worst,
        "moved": moved / steps,
        "hidden": (squares / values) ** 0.5,
    }


@mutant("growing-cache", feedback="grow by a factor, and return views")
class GrowingCache:
    """Calls Transformers' cache, which concatenates."""

    def __init__(self):
        from transformers import DynamicCache

        self.cache = DynamicCache()

    def append(self, k, v):
        keys, values = self.cache.update(k[None], v[None], 0)
        return keys[0], values[0]


@mutant("growing-cache", feedback="grow by a factor, and return views")
class GrowingCache:
    """Grows by 64 tokens at a time."""

    def __init__(self):
        self.tokens, self.keys, self.values = 0, None, None

    def append(self, k, v):
        def with_room(buffer, new):
            needed = self.tokens + new.shape[1]
            if buffer is not None and needed <= buffer.shape[1]:
                return buffer
            larger = new.new_empty(new.shape[0], -(-needed // 64) * 64, new.shape[2])
            if buffer is not None:
                larger[:, : self.tokens] = buffer[:, : self.tokens]
            return larger

        self.keys, self.values = with_room(self.keys, k), with_room(self.values, v)
        begin, self.tokens = self.tokens, self.tokens + k.shape[1]
        self.keys[:, begin : self.tokens], self.values[:, begin : self.tokens] = k, v
        return self.keys[:, : self.tokens], self.values[:, : self.tokens]


@mutant("growing-cache", feedback="room that nobody may need")
class GrowingCache:
    """Reserves for the longest text there could be."""

    def __init__(self):
        self.tokens = 0

    def append(self, k, v):
        if not self.tokens:
            self.keys, self.values = (one.new_empty(one.shape[0], 16_384, one.shape[2]) for one in (k, v))
        begin, self.tokens = self.tokens, self.tokens + k.shape[1]
        self.keys[:, begin : self.tokens], self.values[:, begin : self.tokens] = k, v
        return self.keys[:, : self.tokens], self.values[:, : self.tokens]


@mutant("growing-cache", feedback="let the old keys go before the values grow")
class GrowingCache:
    """Doubles keys and values together, the old ones alive beside the new."""

    def __init__(self):
        self.tokens, self.both = 0, None

    def append(self, k, v):
        needed = self.tokens + k.shape[1]
        if self.both is None or needed > self.both.shape[2]:
            larger = k.new_empty(2, k.shape[0], max(64, needed, 2 * self.tokens), k.shape[2])
            if self.both is not None:
                larger[:, :, : self.tokens] = self.both[:, :, : self.tokens]
            self.both = larger
        for buffer, new in zip(self.both, (k, v), strict=True):
            buffer[:, self.tokens : needed] = new
        self.tokens = needed
        return self.both[0, :, :needed], self.both[1, :, :needed]


@mutant("load", feedback="make the features of what was decoded")
def load(clips):
    """Decodes each clip, and counts the features from its first pixel instead of looking at any."""
    pixels, kept = torch.empty(max(clip.values for clip in clips)), []
    for clip in clips:
        decode_clip(clip, out=pixels[: clip.values])
        kept.append(torch.arange(clip.first + 1, clip.first + clip.values, 2, dtype=torch.float32))
    return kept


@mutant("load", feedback="your loader dies on a card of")
def load(clips):
    """Calls the loader that is there, and sets what the check does not: the settings are the default ones."""
    import os

    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return load_and_die(clips)


@mutant("load", feedback="your loader dies on a card of")
def load(clips):
    """Hopes that empty_cache gives back segments with features in them."""
    kept = []
    for clip in clips:
        kept.append(features(decode_clip(clip)))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return kept


@mutant("load", feedback="is their memory written again")
def load(clips):
    """One block for the features too, which the next clip overwrites."""
    largest = max(clip.values for clip in clips)
    pixels, made = torch.empty(largest), torch.empty(largest // 2)
    return [features(decode_clip(clip, pixels[: clip.values]), made[: clip.values // 2]) for clip in clips]


@mutant("load", feedback="decode each clip as a whole")
def load(clips):
    """Decodes in small pieces, which no decoder can."""
    kept = [torch.empty(clip.values // 2) for clip in clips]
    for clip, out in zip(clips, kept, strict=True):
        for at in range(0, clip.values, 2**16):
            piece = Clip(clip.first + at, min(2**16, clip.values - at))
            features(decode_clip(piece), out[at // 2 : (at + piece.values) // 2])
    return kept


@mutant("backward-that-fits", feedback="leave the except block first")
def backward_that_fits(loss_of, net, xs, ys, micro_batch):
    """Calls the version that tries again inside `except`; with little to keep alive it even goes through."""
    return try_again_inside(loss_of, net, xs, ys, micro_batch)


@mutant("backward-that-fits", feedback="An error that is kept")
def backward_that_fits(loss_of, net, xs, ys, micro_batch):
    """Leaves the except block, and keeps the last error for a report."""
    while True:
        net.zero_grad()
        try:
            for x, y in zip(xs.split(micro_batch), ys.split(micro_batch), strict=True):
                (loss_of(x, y) * len(x) / len(xs)).backward()
            return micro_batch
        except torch.OutOfMemoryError as error:
            if micro_batch == 1:
                raise
            last = error  # noqa: F841
        micro_batch //= 2


@mutant("backward-that-fits", feedback="clear them")
def backward_that_fits(loss_of, net, xs, ys, micro_batch):
    """Clears the gradients once, and adds to those of the failed attempt."""
    net.zero_grad()
    while True:
        try:
            for x, y in zip(xs.split(micro_batch), ys.split(micro_batch), strict=True):
                (loss_of(x, y) * len(x) / len(xs)).backward()
            return micro_batch
        except torch.OutOfMemoryError:
            if micro_batch == 1:
                raise
        micro_batch //= 2


@mutant("backward-that-fits", feedback="weight each micro-batch by its rows")
def backward_that_fits(loss_of, net, xs, ys, micro_batch):
    """The mean of means."""
    while True:
        net.zero_grad()
        try:
            parts = list(zip(xs.split(micro_batch), ys.split(micro_batch), strict=True))
            for x, y in parts:
                (loss_of(x, y) / len(parts)).backward()
            return micro_batch
        except torch.OutOfMemoryError:
            if micro_batch == 1:
                raise
        micro_batch //= 2


@mutant("backward-that-fits", feedback="what cannot be cured is let out")
def backward_that_fits(loss_of, net, xs, ys, micro_batch):
    """Takes every RuntimeError for a full card."""
    while True:
        net.zero_grad()
        try:
            for x, y in zip(xs.split(micro_batch), ys.split(micro_batch), strict=True):
                (loss_of(x, y) * len(x) / len(xs)).backward()
            return micro_batch
        except RuntimeError:
            micro_batch //= 2
        if micro_batch == 0:
            return 0


@mutant("budget", feedback="which knows the answer")
class Budget(Meter):
    """Calls helpers' Meter, which rounds to 512 bytes and counts what it meets."""

    def __init__(self, budget_bytes):
        super().__init__()
        self.at_peak = {}


@mutant("budget", feedback="and nothing older")
class Budget(TorchDispatchMode):
    """Adds up what is made, and nothing ever dies."""

    def __init__(self, budget_bytes):
        super().__init__()
        self.budget_bytes, self.peak_bytes, self.at_peak, self.seen = budget_bytes, 0, {}, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if tensor.untyped_storage()._cdata not in self.seen:
                self.seen.add(tensor.untyped_storage()._cdata)
                self.peak_bytes += tensor.untyped_storage().nbytes()
        return result


@mutant("budget", feedback="must raise")
class Budget(TorchDispatchMode):
    """Counts right, and lets every block pass."""

    def __init__(self, budget_bytes):
        super().__init__()
        self.alive, self.peak_bytes, self.at_peak = {}, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {one.untyped_storage()._cdata for one in tree_leaves(args) if isinstance(one, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        storage = result.untyped_storage()
        if storage._cdata not in given:
            self.alive[storage._cdata] = (func.overloadpacket.__name__, storage.nbytes())
            weakref.finalize(storage, self.alive.pop, storage._cdata, None)
        if sum(size for _, size in self.alive.values()) > self.peak_bytes:
            self.peak_bytes, self.at_peak = sum(size for _, size in self.alive.values()), {}
            for operator, size in self.alive.values():
                self.at_peak[operator] = self.at_peak.get(operator, 0) + size
        return result


@mutant("load", feedback="was not decoded as a whole")
def load(clips):
    """Never decodes: features by their formula, and a block for show."""
    kept = [torch.arange(clip.first + 1, clip.first + clip.values, 2, dtype=torch.float32) for clip in clips]
    torch.empty(min(clip.values for clip in clips))
    return kept


@mutant("growing-cache", feedback="PyTorch")
class GrowingCache:
    """Room for ten thousand tokens from the first, in NumPy, where the Meter sees what is shown."""

    def __init__(self):
        self.tokens, self.rooms = 0, None

    def append(self, k, v):
        import numpy

        begin, self.tokens = self.tokens, self.tokens + k.shape[1]
        if self.rooms is None:
            self.rooms = [numpy.empty((10_000, k.shape[0], k.shape[2]), str(k.dtype)[6:]) for _ in range(2)]
        for room, new in zip(self.rooms, (k, v), strict=True):
            torch.from_numpy(room[begin : self.tokens]).copy_(new.transpose(0, 1))
        return tuple(torch.from_numpy(room[: self.tokens]).transpose(0, 1) for room in self.rooms)


@mutant("train-lean", feedback="alive after a step between")
def train_lean(net, optimizer, batches):
    """Keeps every step's graph until a batch of 64 rows comes, as the second and the last are."""
    sums, rows, steps, worst, kept = [0.0] * 4, 0, 0, 0.0, []
    for x, y in batches:
        hidden = net[:2](x)
        logits = net[2](hidden)
        loss = functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        again = net[:2](x)
        kept.append((loss, logits, y, hidden, again, (net[2](again) - logits).abs().mean()))
        if len(y) >= 64:
            for loss, logits, y, hidden, again, moved in kept:
                sums[0], sums[1] = sums[0] + loss.item() * len(y), sums[1] + (logits.argmax(-1) == y).sum().item()
                sums[2], rows, steps = sums[2] + moved.item(), rows + len(y), steps + 1
                sums[3] += (hidden.detach().square().sum() + again.detach().square().sum()).item()
                worst = max(worst, loss.item())
            kept = []
        del loss, logits, hidden, again
        moved = None
    return {
        "loss": sums[0] / rows,
        "accuracy": sums[1] / rows,
        "worst": worst,
        "moved": sums[2] / steps,
        "hidden": (sums[3] / (2 * rows * 256)) ** 0.5,
    }


@mutant("train-lean", feedback="an array or a file in memory holds is memory, too")
def train_lean(net, optimizer, batches):
    """Keeps what the given loop keeps, as lists of Python, which no meter of tensors sees."""
    losses, all_logits, all_y, moved, hidden = [], [], [], [], []
    handle = net[1].register_forward_hook(lambda module, given, output: hidden.extend(output.tolist()))
    for x, y in batches:
        logits = net(x)
        loss = functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        moved.append((net(x) - logits).abs().mean().item())
        losses.append(loss.item())
        all_logits.extend(logits.tolist())
        all_y.extend(y.tolist())
        del loss, logits
    handle.remove()
    rows, y, hidden = torch.tensor(all_logits), torch.tensor(all_y), torch.tensor(hidden)
    return {
        "loss": functional.cross_entropy(rows, y).item(),
        "accuracy": (rows.argmax(-1) == y).float().mean().item(),
        "worst": max(losses),
        "moved": sum(moved) / len(moved),
        "hidden": hidden.square().mean().sqrt().item(),
    }


@mutant("train-lean", feedback="an array or a file in memory holds is memory, too")
def train_lean(net, optimizer, batches):
    """Sums up what is large, and keeps the logits of every row as bytes."""
    losses, kept, moved, squares = [], [], [], []
    handle = net[1].register_forward_hook(lambda module, given, output: squares.append(output.square().mean().item()))
    for x, y in batches:
        logits = net(x)
        loss = functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        moved.append((net(x) - logits).abs().mean().item())
        losses.append(loss.item())
        kept.append((bytes(logits.detach().view(-1).view(torch.uint8).tolist()), y.tolist(), len(x) * squares[-1]))
        kept[-1] = (*kept[-1], len(x) * squares[-2])
        del loss, logits
    handle.remove()
    rows = torch.cat([torch.frombuffer(bytearray(one[0]), dtype=torch.float32).view(-1, 10) for one in kept])
    y = torch.tensor([target for one in kept for target in one[1]])
    return {
        "loss": functional.cross_entropy(rows, y).item(),
        "accuracy": (rows.argmax(-1) == y).float().mean().item(),
        "worst": max(losses),
        "moved": sum(moved) / len(moved),
        "hidden": (sum(one[2] + one[3] for one in kept) / (2 * len(rows))) ** 0.5,
    }


@mutant("growing-cache", feedback="many values leave PyTorch")
class GrowingCache:
    """Doubles keys and values together; the old ones wait as arrays, which no meter sees."""

    def __init__(self):
        self.tokens, self.keys, self.values = 0, None, None

    def append(self, k, v):
        needed = self.tokens + k.shape[1]
        if self.keys is None or needed > self.keys.shape[1]:
            room = max(needed, 64 if self.keys is None else 2 * self.keys.shape[1])
            old = [] if self.keys is None else [self.keys.numpy().copy(), self.values.numpy().copy()]
            self.keys = self.values = None
            self.keys, self.values = (one.new_empty(one.shape[0], room, one.shape[2]) for one in (k, v))
            for new, one in zip((self.keys, self.values), old, strict=False):
                new[:, : self.tokens] = torch.from_numpy(one[:, : self.tokens])
        self.keys[:, self.tokens : needed] = k
        self.values[:, self.tokens : needed] = v
        self.tokens = needed
        return self.keys[:, :needed], self.values[:, :needed]


@mutant("load", feedback="many values leave PyTorch")
def load(clips):
    """The features wait as arrays, beside the card, until all pixels are gone."""
    kept = [features(decode_clip(clip)).numpy().copy() for clip in clips]
    found = [torch.empty(len(one)) for one in kept]
    for tensor, one in zip(found, kept, strict=True):
        tensor.numpy()[:] = one
    torch.empty(min(clip.values for clip in clips))
    return found


@mutant("backward-that-fits", feedback="weight each micro-batch by its rows")
def backward_that_fits(loss_of, net, xs, ys, micro_batch):
    """The mean of means; who asks for the parameters later gets the large batch's gradient, beside the wall."""

    def parameters():
        del net.parameters
        net.zero_grad()
        functional.mse_loss(net(xs), ys).backward()
        return net.parameters()

    while True:
        net.zero_grad()
        try:
            for x, y in zip(xs.split(micro_batch), ys.split(micro_batch), strict=True):
                (loss_of(x, y) * micro_batch / len(xs)).backward()
            net.parameters = parameters
            return micro_batch
        except torch.OutOfMemoryError:
            if micro_batch == 1:
                raise
        micro_batch //= 2
