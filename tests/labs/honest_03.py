"""Honest answers to lab 03, written otherwise than the worked ones: each must get all points of its question."""

# ruff: noqa: F821  (they run where the lab's names are defined)

from __future__ import annotations

from itertools import pairwise


def first_fit_page_by_page(steps):
    """The same rules on maps of 4 KiB pages, one byte each: 0 is free."""
    segments, where, record = [], {}, []
    for step in steps:
        if step.action == "alloc":
            pages = -(-step.size_bytes // 4096)
            segment = next((one for one in segments if bytes(pages) in one), None)
            if segment is None:
                segments.append(segment := bytearray(-(-pages // 4096) * 4096))
            start = segment.find(bytes(pages))
            where[step.key] = segment, slice(start, start + pages)
            segment[start : start + pages] = b"x" * pages
        else:
            segment, span = where.pop(step.key)
            segment[span] = bytes(span.stop - span.start)
            segments = [one for one in segments if any(one)]
        used = sum(one.count(b"x") for one in segments)
        record.append([used * 4096, sum(map(len, segments)) * 4096])
    return record


def train_lean_layer_by_layer(net, optimizer, batches):
    """Looks at the hidden layer itself, without a hook, and sums in tensors of one number."""
    sums, steps, rows, worst = torch.zeros(4, dtype=torch.float64), 0, 0, -1.0
    for x, y in batches:
        hidden = net[1](net[0](x))
        logits = net[2](hidden)
        losses = functional.cross_entropy(logits, y, reduction="none")
        optimizer.zero_grad(set_to_none=True)
        losses.mean().backward()
        optimizer.step()
        with torch.no_grad():
            again = net[1](net[0](x))
            moved = (net[2](again) - logits).abs().mean()
            squares = hidden.double().square().sum() + again.double().square().sum()
            right = (logits.argmax(1) == y).double().sum()
            sums += torch.stack([losses.double().sum(), right, moved.double(), squares])
            worst = max(worst, losses.mean().item())
        steps, rows = steps + 1, rows + len(y)
        del hidden, logits, losses, again, moved, squares, right
    loss, right, moved, squares = sums.tolist()
    return {
        "loss": loss / rows,
        "accuracy": right / rows,
        "worst": worst,
        "moved": moved / steps,
        "hidden": (squares / (2 * rows * 256)) ** 0.5,
    }


class GrowingCacheByHalf:
    """Grows by half, one buffer after the other."""

    def __init__(self):
        self.tokens, self.buffers = 0, [None, None]

    def append(self, k, v):
        begin, self.tokens = self.tokens, self.tokens + k.shape[1]
        for number, new in enumerate((k, v)):
            buffer = self.buffers[number]
            if buffer is None or buffer.shape[1] < self.tokens:
                room = max(self.tokens, begin * 3 // 2, 32)
                larger = torch.empty((new.shape[0], room, new.shape[2]), dtype=new.dtype, device=new.device)
                if buffer is not None:
                    larger[:, :begin].copy_(buffer[:, :begin])
                self.buffers[number] = buffer = larger
            buffer[:, begin : self.tokens].copy_(new)
            del buffer
        keys, values = self.buffers
        return keys.narrow(1, 0, self.tokens), values.narrow(1, 0, self.tokens)


def load_one_block_for_features(clips):
    """One block holds the features of all."""
    kept = torch.empty(sum(clip.values for clip in clips) // 2).split([clip.values // 2 for clip in clips])
    return [features(decode_clip(clip), out) for clip, out in zip(clips, kept, strict=True)]


def load_largest_first(clips):
    """Another order, put right at the end."""
    kept = {}
    for clip in sorted(clips, key=lambda clip: -clip.values):
        kept[clip] = features(decode_clip(clip))
    return [kept[clip] for clip in clips]


def backward_that_fits_by_a_helper(loss_of, net, xs, ys, micro_batch):
    """Each attempt in a function of its own, the sizes before it: 320, 160, 80 and so on."""

    def went_through(size):
        for parameter in net.parameters():
            parameter.grad = None
        edges = [*range(0, len(xs), size), len(xs)]
        try:
            for begin, end in pairwise(edges):
                loss = loss_of(xs[begin:end], ys[begin:end])
                (loss * ((end - begin) / len(xs))).backward()
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            return False
        return True

    while not went_through(micro_batch):
        micro_batch //= 2
    return micro_batch


class BudgetOfStorages(TorchDispatchMode):
    """Keeps what is alive by number of birth, and adds up anew at each operator."""

    def __init__(self, budget_bytes):
        super().__init__()
        self.budget_bytes, self.peak_bytes, self.at_peak = budget_bytes, 0, {}
        self.born, self.known = {}, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        old = {one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in old | set(self.known):
                number = len(self.born)
                self.born[number], self.known[storage._cdata] = (func.overloadpacket.__name__, storage.nbytes()), number
                weakref.finalize(storage, self.known.pop, storage._cdata)
        by_operator = {}
        for operator, size in map(self.born.get, self.known.values()):
            by_operator[operator] = by_operator.get(operator, 0) + size
        if sum(by_operator.values()) > self.peak_bytes:
            self.peak_bytes, self.at_peak = sum(by_operator.values()), by_operator
        return result

    def __exit__(self, kind, error, trace):
        super().__exit__(kind, error, trace)
        if error is None and self.peak_bytes > self.budget_bytes:
            rows = sorted((-size, operator) for operator, size in self.at_peak.items())[:3]
            made = ", ".join(f"{operator} {-size:,}" for size, operator in rows)
            raise AssertionError(f"peak {self.peak_bytes:,} bytes, budget {self.budget_bytes:,}: {made}")


def first_fit_in_numpy(steps):
    """An array comes back; the free places are looked for among the borders of what lies there."""
    import numpy as np

    segments, record = {}, []
    for step in steps:
        print(step.action, step.key)
        if step.action == "free":
            for blocks in segments.values():
                blocks[:] = [block for block in blocks if block[2] != step.key]
            segments = {key: blocks for key, blocks in segments.items() if len(blocks) > 2}
        else:
            size = np.ceil(step.size_bytes / 4096).astype(int) * 4096
            places = [(key, at, left[1]) for key, blocks in segments.items()
                      for at, (left, right) in enumerate(pairwise(blocks), 1)
                      if right[0] - left[1] >= size]  # fmt: skip
            if not places:
                new, end = max(segments, default=0) + 1, -(-size // 2**24) * 2**24
                segments[new] = [(0, 0, None), (end, end, None)]
                places = [(new, 1, 0)]
            key, at, begin = places[0]
            segments[key].insert(at, (begin, begin + size, step.key))
        sizes = [[end - begin for begin, end, _ in blocks] for blocks in segments.values()]
        record.append((sum(map(sum, sizes)), sum(blocks[-1][0] for blocks in segments.values())))
    return np.array(record)


def train_lean_with_a_helper(net, optimizer, batches):
    """One step in a function of its own, whose tensors end with it; tensors of one number come back."""
    from collections import Counter

    total, worst, squares = Counter(), [], []
    handle = net[1].register_forward_hook(lambda *given: squares.append(given[2].detach().square().sum().item()))

    def step(x, y):
        logits = net(x)
        loss = functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        moved = (net(x).detach() - logits.detach()).abs().mean()
        right = (logits.argmax(-1) == y).sum().item()
        return {"loss": loss.item() * len(y), "accuracy": right, "moved": moved.item(), "rows": len(y), "steps": 1}

    for x, y in batches:
        found = step(x, y)
        worst = [max(*worst, found["loss"] / found["rows"])] if worst else [found["loss"] / found["rows"]]
        total.update(found)
    handle.remove()
    print(total)
    answer = Counter(worst=worst[0], moved=total["moved"] / total["steps"])
    answer["loss"], answer["accuracy"] = total["loss"] / total["rows"], total["accuracy"] / total["rows"]
    answer["hidden"] = (sum(squares) / (2 * 256 * total["rows"])) ** 0.5
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in answer.items()}


class GrowingCacheInAList:
    """A list of two buffers, a helper of its own, and a list that comes back."""

    def __init__(self):
        self.begin, self.rows = 0, []

    def _room(self, number, tokens):
        old = self.rows[number]
        if old.size(1) < tokens:
            self.rows[number] = old.new_empty(old.size(0), max(tokens, int(old.size(1) * 1.8)), old.size(2))
            self.rows[number].narrow(1, 0, self.begin).copy_(old.narrow(1, 0, self.begin))

    def append(self, k, v):
        if not self.rows:
            self.rows = [k.new_empty(k.size(0), max(16, k.size(1)), k.size(2)) for _ in "kv"]
        end = self.begin + k.size(1)
        for number, new in enumerate([k, v]):
            self._room(number, end)
            self.rows[number].narrow(1, self.begin, new.size(1)).copy_(new)
        self.begin = end
        return [row[:, :end] for row in self.rows]


def load_yields(clips):
    """A generator of features, and a print left over."""
    pixels = torch.empty(max(clips, key=lambda clip: clip.values).values, dtype=torch.float32)
    for number, clip in enumerate(clips):
        print("clip", number)
        yield features(decode_clip(clip, pixels.narrow(0, 0, clip.values)))


def backward_that_fits_with_a_flag(loss_of, net, xs, ys, micro_batch):
    """Notes that it failed, and tries again outside; a tensor of one number comes back."""
    while micro_batch:
        net.zero_grad(set_to_none=True)
        failed = False
        try:
            for begin in range(0, len(xs), micro_batch):
                x, y = xs[begin : begin + micro_batch], ys[begin : begin + micro_batch]
                loss_of(x, y).mul(len(x)).div(len(xs)).backward()
        except torch.OutOfMemoryError as error:
            print("again", error)
            failed = True
            if micro_batch < 2:
                raise
        if not failed:
            return torch.tensor(micro_batch)
        micro_batch = micro_batch // 2
    return None


class BudgetWithACounter(TorchDispatchMode):
    """A Counter of bytes by operator, kept up to date; a tensor's storage goes out of it when it dies."""

    def __init__(self, budget_bytes):
        from collections import Counter

        super().__init__()
        self.budget, self.live, self.keys = budget_bytes, Counter(), set()
        self.peak_bytes, self.at_peak = 0, Counter()

    def _dies(self, key, name, size):
        self.keys.discard(key)
        self.live[name] -= size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [one for one in tree_leaves([args, kwargs]) if isinstance(one, torch.Tensor)]
        before = {one.untyped_storage()._cdata for one in given}
        out = func(*args, **(kwargs or {}))
        for one in tree_leaves(out):
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                key, name = storage._cdata, func.overloadpacket.__name__
                if key not in before and key not in self.keys:
                    self.keys.add(key)
                    self.live[name] += storage.nbytes()
                    weakref.finalize(storage, self._dies, key, name, storage.nbytes())
        if self.live.total() > self.peak_bytes:
            self.peak_bytes, self.at_peak = self.live.total(), +self.live
        return out

    def __exit__(self, kind, error, trace):
        super().__exit__(kind, error, trace)
        if kind or self.peak_bytes <= self.budget:
            return
        rows = sorted(self.at_peak.items(), key=lambda row: (-row[1], row[0]))
        said = ", ".join(f"{name} {size:,}" for name, size in rows[:3])
        raise AssertionError(f"peak {self.peak_bytes:,} bytes, budget {self.budget:,}: {said}")
