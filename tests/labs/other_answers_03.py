"""Right answers to lab 03, written otherwise than the worked ones: its checks must take them too."""

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
