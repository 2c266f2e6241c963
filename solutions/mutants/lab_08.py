"""Known-wrong answers to lab 08. Each must fail its check, with the sentence that its learner then reads.

A function with itself for the default `right` changes one thing in the worked answer, which the kernel holds at that
moment.
"""

# ruff: noqa: F811, F821  (they are put into the lab's cells, where these names are defined)

from helpers.course.mutants import mutant


@mutant("prefill-batch", feedback="the copies are not hidden yet, and")
def prefill_batch(layer, stored, tokens, flops_per_s, link_bytes_per_s):
    """Floor for ceil."""
    copied_bytes = -(-layer.weights // stored.values) * stored.size_bytes
    flops = 2 * layer.weights * tokens + 2 * layer.heads * layer.head_width * tokens * (tokens + 1)
    return max(1, copied_bytes * flops_per_s // (flops * link_bytes_per_s))


@mutant("prefill-batch", feedback="are enough already")
def prefill_batch(layer, stored, tokens, flops_per_s, link_bytes_per_s):
    """Calls helpers, whose rule of thumb knows BF16 and no attention."""
    import math

    from helpers.memory import offload

    return math.ceil(offload.break_even_tokens(flops_per_s, link_bytes_per_s, "bf16") / tokens)


@mutant("prefill-batch", feedback="the copies are not hidden yet, and")
def prefill_batch(layer, stored, tokens, flops_per_s, link_bytes_per_s):
    """Every token sees every token."""
    copied_bytes = -(-layer.weights // stored.values) * stored.size_bytes
    flops = 2 * layer.weights * tokens + 4 * layer.heads * layer.head_width * tokens * tokens
    return -(-copied_bytes * flops_per_s // (flops * link_bytes_per_s))


@mutant("prefill-batch", feedback="are enough already")
def prefill_batch(layer, stored, tokens, flops_per_s, link_bytes_per_s):
    """Forgets attention."""
    copied_bytes = -(-layer.weights // stored.values) * stored.size_bytes
    return -(-copied_bytes * flops_per_s // (2 * layer.weights * tokens * link_bytes_per_s))


@mutant("prefill-batch", feedback="exactly")
def prefill_batch(layer, stored, tokens, flops_per_s, link_bytes_per_s):
    """Divides floats, and rounds what they say up."""
    import math

    copied_s = math.ceil(layer.weights / stored.values) * stored.size_bytes / link_bytes_per_s
    flops = 2 * layer.weights * tokens + 2 * layer.heads * layer.head_width * tokens * (tokens + 1)
    return math.ceil(copied_s / (flops / flops_per_s))


@mutant("prefill-batch", feedback="are enough already")
def prefill_batch(layer, stored, tokens, flops_per_s, link_bytes_per_s, right=prefill_batch):
    """Wants the work to take longer than the copies, not as long."""
    batch = right(layer, stored, tokens, flops_per_s, link_bytes_per_s)
    flops = batch * (2 * layer.weights * tokens + 2 * layer.heads * layer.head_width * tokens * (tokens + 1))
    copied_bytes = -(-layer.weights // stored.values) * stored.size_bytes
    return batch + (flops * link_bytes_per_s == copied_bytes * flops_per_s)


@mutant("decode-batch", feedback="the copies are not hidden yet, and")
def decode_batch(layer, stored, context, flops_per_s, link_bytes_per_s):
    """Forgets that the caches come over the link, too."""
    copied_bytes = -(-layer.weights // stored.values) * stored.size_bytes
    flops = 2 * layer.weights + 4 * layer.heads * layer.head_width * context
    return -(-copied_bytes * flops_per_s // (flops * link_bytes_per_s))


@mutant("decode-batch", feedback="the copies are not hidden yet, and")
def decode_batch(layer, stored, context, flops_per_s, link_bytes_per_s):
    """One cache for the whole batch."""
    copied_bytes = -(-layer.weights // stored.values) * stored.size_bytes + layer.kv_bytes * context
    flops = 2 * layer.weights + 4 * layer.heads * layer.head_width * context
    return -(-copied_bytes * flops_per_s // (flops * link_bytes_per_s))


@mutant("decode-batch", feedback="so no batch hides the weights as well, and the answer is None, not -")
def decode_batch(layer, stored, context, flops_per_s, link_bytes_per_s):
    """A quotient that is negative where no batch will do."""
    copied_bytes = -(-layer.weights // stored.values) * stored.size_bytes
    flops = 2 * layer.weights + 4 * layer.heads * layer.head_width * context
    hidden = flops * link_bytes_per_s - layer.kv_bytes * context * flops_per_s
    return -(-copied_bytes * flops_per_s // hidden) if hidden else None


@mutant("decode-batch", feedback="hide the copies, you have None")
def decode_batch(layer, stored, context, flops_per_s, link_bytes_per_s):
    """Looks for a batch up to a thousand."""
    copied_bytes = -(-layer.weights // stored.values) * stored.size_bytes
    flops = 2 * layer.weights + 4 * layer.heads * layer.head_width * context
    for batch in range(1, 1001):
        bytes_ = copied_bytes + batch * layer.kv_bytes * context
        if batch * flops * link_bytes_per_s >= bytes_ * flops_per_s:
            return batch
    return None


@mutant("decode-batch", feedback="hide the copies, you have None")
def decode_batch(layer, stored, context, flops_per_s, link_bytes_per_s):
    """A decode step behind a link is never hidden."""


@mutant("train-step", feedback="copies run beside computation")
def train_step(device, layers, micro_batches=1):
    """Waits for every copy before the next order."""
    holds, last = [None, None], None
    for number in range(2 * micro_batches):
        for layer in range(layers)[:: -1 if number % 2 else 1]:
            at = layer % 2
            if holds[at] != layer:
                holds[at], last = layer, device.fetch(layer, at, after=[last])
            if number % 2 == 0:
                last = device.forward(layer, at, after=[last])
            else:
                last = device.backward(layer, at, at, after=[last])
                last = device.send(layer, at, after=[last])


@mutant("train-step", feedback="is fetched into buffer")
def train_step(device, layers, micro_batches=1):
    """Fetches every layer in every turn, also those that are there at the turn."""
    used, sent = [None, None], [None, None]
    for number in range(2 * micro_batches):
        for layer in range(layers)[:: -1 if number % 2 else 1]:
            at = layer % 2
            arrived = device.fetch(layer, at, after=[used[at]])
            if number % 2 == 0:
                used[at] = device.forward(layer, at, after=[arrived])
            else:
                used[at] = device.backward(layer, at, at, after=[arrived, sent[at]])
                sent[at] = device.send(layer, at, after=[used[at]])


@mutant("train-step", feedback="take their place")
def train_step(device, layers, micro_batches=1):
    """Forgets the event before it overwrites a buffer: the layer there may still compute."""
    holds, arrived, sent = [None, None], [None, None], [None, None]
    for number in range(2 * micro_batches):
        for layer in range(layers)[:: -1 if number % 2 else 1]:
            at = layer % 2
            if holds[at] != layer:
                holds[at], arrived[at] = layer, device.fetch(layer, at)
            if number % 2 == 0:
                device.forward(layer, at, after=[arrived[at]])
            else:
                made = device.backward(layer, at, at, after=[arrived[at], sent[at]])
                sent[at] = device.send(layer, at, after=[made])


@mutant("train-step", feedback="begins before its weights are there")
def train_step(device, layers, micro_batches=1):
    """A layer does not wait for its weights."""
    holds, used, sent = [None, None], [None, None], [None, None]
    for number in range(2 * micro_batches):
        for layer in range(layers)[:: -1 if number % 2 else 1]:
            at = layer % 2
            if holds[at] != layer:
                holds[at] = layer
                device.fetch(layer, at, after=[used[at]])
            if number % 2 == 0:
                used[at] = device.forward(layer, at)
            else:
                used[at] = device.backward(layer, at, at, after=[sent[at]])
                sent[at] = device.send(layer, at, after=[used[at]])


@mutant("train-step", feedback="is overwritten by that of layer")
def train_step(device, layers, micro_batches=1):
    """Forgets that a gradient's place is free once it has been sent, and not before."""
    holds, arrived, used = [None, None], [None, None], [None, None]
    for number in range(2 * micro_batches):
        for layer in range(layers)[:: -1 if number % 2 else 1]:
            at = layer % 2
            if holds[at] != layer:
                holds[at], arrived[at] = layer, device.fetch(layer, at, after=[used[at]])
            if number % 2 == 0:
                used[at] = device.forward(layer, at, after=[arrived[at]])
            else:
                used[at] = device.backward(layer, at, at, after=[arrived[at]])
                device.send(layer, at, after=[used[at]])


@mutant("train-step", feedback="there are two buffers, 0 and 1, and no buffer 2")
def train_step(device, layers, micro_batches=1):
    """Three buffers."""
    used = [None, None, None]
    for layer in range(layers):
        arrived = device.fetch(layer, layer % 3, after=[used[layer % 3]])
        used[layer % 3] = device.forward(layer, layer % 3, after=[arrived])
    for layer in reversed(range(layers)):
        made = device.backward(layer, layer % 3, layer % 2, after=[used[layer % 3]])
        device.send(layer, layer % 2, after=[made])


@mutant("train-step", feedback="For what does it wait?")
def train_step(device, layers, micro_batches=1):
    """The next backward waits until the gradient before it is down."""
    holds, arrived, used, sent = [None, None], [None, None], [None, None], None
    for number in range(2 * micro_batches):
        for layer in range(layers)[:: -1 if number % 2 else 1]:
            at = layer % 2
            if holds[at] != layer:
                holds[at], arrived[at] = layer, device.fetch(layer, at, after=[used[at]])
            if number % 2 == 0:
                used[at] = device.forward(layer, at, after=[arrived[at]])
            else:
                used[at] = device.backward(layer, at, at, after=[arrived[at], sent])
                sent = device.send(layer, at, after=[used[at]])


@mutant("train-step", feedback="For what does it wait?")
def train_step(device, layers, micro_batches=1):
    """A copy waits for the layer just before it, whose buffer is the other one."""
    holds, arrived, last, sent = [None, None], [None, None], None, [None, None]
    for number in range(2 * micro_batches):
        for layer in range(layers)[:: -1 if number % 2 else 1]:
            at = layer % 2
            if holds[at] != layer:
                holds[at], arrived[at] = layer, device.fetch(layer, at, after=[last])
            if number % 2 == 0:
                last = device.forward(layer, at, after=[arrived[at]])
            else:
                last = device.backward(layer, at, at, after=[arrived[at], sent[at]])
                sent[at] = device.send(layer, at, after=[last])


@mutant("train-step", feedback="and is there: in buffer")
def train_step(device, layers, micro_batches=1):
    """Begins every micro-batch with empty buffers: fetches again at the bottom."""
    used, sent = [None, None], [None, None]
    for _ in range(micro_batches):
        holds, arrived = [None, None], [None, None]
        for number in range(2):
            for layer in range(layers)[:: -1 if number % 2 else 1]:
                at = layer % 2
                if holds[at] != layer:
                    holds[at], arrived[at] = layer, device.fetch(layer, 1 - at, after=[used[at]])
                if number % 2 == 0:
                    used[at] = device.forward(layer, 1 - at, after=[arrived[at]])
                else:
                    used[at] = device.backward(layer, 1 - at, at, after=[arrived[at], sent[at]])
                    sent[at] = device.send(layer, at, after=[used[at]])


@mutant("train-step", feedback="layers compute, and")
def train_step(device, layers, micro_batches=1):
    """Calls helpers: the chapter's streamer knows forward alone."""
    from torch import nn

    from helpers.techniques import offload

    streams = offload.SimulatedStreams(1e9, 1e12)
    model = [nn.Linear(1, 1) for _ in range(layers)]
    with offload.WeightStreamer(model, streams), torch.no_grad():
        for layer in model:
            layer(torch.ones(1))
    events = {}
    for span in streams.log:
        layer = int(span.name.split()[1])
        if span.lane is offload.Lane.COMPUTE:
            device.forward(layer, span.buffer, after=[events[layer]])
        elif layer not in events:
            events[layer] = device.fetch(layer, span.buffer)


@mutant("train-step", feedback="each layer sends 3 of its gradients down")
def train_step(device, layers, micro_batches=1, right=train_step):
    """Sends a gradient only after the last micro-batch."""

    class Later(Device):
        def send(self, layer, place, after=()):
            sent = sum(order[0] == "backward" and order[1] == layer for order in self.orders)
            return super().send(layer, place, after) if sent == micro_batches else None

    later = Later()
    right(later, layers, micro_batches)
    device.orders += later.orders


@mutant("train-step", feedback="is never sent")
def train_step(device, layers, micro_batches=1):
    """Sends the gradients of the layers that are fetched for backward, and forgets the two at the turn."""
    holds, arrived, used, sent = [None, None], [None, None], [None, None], [None, None]
    for number in range(2 * micro_batches):
        for layer in range(layers)[:: -1 if number % 2 else 1]:
            at, again = layer % 2, holds[layer % 2] != layer
            if again:
                holds[at], arrived[at] = layer, device.fetch(layer, at, after=[used[at]])
            if number % 2 == 0:
                used[at] = device.forward(layer, at, after=[arrived[at]])
            else:
                used[at] = device.backward(layer, at, at, after=[arrived[at], sent[at]])
                sent[at] = device.send(layer, at, after=[used[at]]) if again else None


@mutant("train-step", feedback="the gradient")
def train_step(device, layers, micro_batches=1):
    """Forgets which gradients of the micro-batch before are still on their way."""
    holds, arrived, used, sent = ([None, None] for _ in range(4))
    for number in range(2 * micro_batches):
        if number % 2 == 0:
            sent = [None, None]
        for layer in range(layers)[:: -1 if number % 2 else 1]:
            at = layer % 2
            if holds[at] != layer:
                holds[at], arrived[at] = layer, device.fetch(layer, at, after=[used[at]])
            if number % 2 == 0:
                used[at] = device.forward(layer, at, after=[arrived[at]])
            else:
                used[at] = device.backward(layer, at, at, after=[arrived[at], sent[at]])
                sent[at] = device.send(layer, at, after=[used[at]])


@mutant("train-step", feedback="orders are given, for")
def train_step(device, layers, micro_batches=1, right=train_step):
    """Fetches on and on when nothing is left to compute."""
    right(device, layers, micro_batches)
    for number in range(2000):
        device.fetch(number % layers, 0)


@mutant("loader", feedback="in the order of arrival: less than three quarters of them")
class Loader(Loader):
    """In the order of arrival, with least recently used eviction."""

    def next(self, waiting, loaded, running):
        return super().next(waiting[:1], loaded, running)


@mutant("loader", feedback="in the order of arrival: less than three quarters of them")
class Loader(Loader):
    """Good in the queue that never changes, and in the order of arrival elsewhere."""

    is_known = None

    def next(self, waiting, loaded, running):
        if self.is_known is None:
            self.is_known = waiting[0].arrived_ms == 301
        return super().next(waiting if self.is_known else waiting[:1], loaded, running)


@mutant("loader", feedback="is evicted, and is running")
class Loader:
    """Evicts what is running."""

    def __init__(self, sizes, budget, patience):
        self.sizes, self.budget, self.begun = sizes, budget, {}

    def next(self, waiting, loaded, running):
        request = min(waiting, key=lambda one: one.model not in loaded)
        leave, used = [], sum(self.sizes[name] for name in {*loaded, request.model})
        for name in sorted(set(loaded) - {request.model}, key=lambda name: self.begun[name]):
            if used > self.budget:
                leave.append(name)
                used -= self.sizes[name]
        self.begun[request.model] = len(self.begun) + max(self.begun.values(), default=0)
        return request.number, leave


@mutant("loader", feedback="is overtaken by")
class Loader(Loader):
    """Serves loaded models first, for ever: a request for another one starves."""

    def __init__(self, sizes, budget, patience):
        super().__init__(sizes, budget, 10**9)


@mutant("loader", feedback="are the most")
class Loader(Loader):
    """Looks whether patience is used up after it was."""

    def __init__(self, sizes, budget, patience):
        super().__init__(sizes, budget, patience + 1)


@mutant("loader", feedback="is overtaken by")
class Loader(Loader):
    """Counts how often the oldest request was overtaken, and forgets those behind it."""

    def next(self, waiting, loaded, running):
        self.overtaken = {waiting[0].number: self.overtaken.get(waiting[0].number, 0)}
        return super().next(waiting, loaded, running)


@mutant("loader", feedback="idle models, the least recently used first, are")
class Loader(Loader):
    """Evicts the model that was used last."""

    def next(self, waiting, loaded, running):
        usual, self.begun = self.begun, OrderedDict(reversed(self.begun.items()))
        before = dict(self.begun)
        found = super().next(waiting, loaded, running)
        self.begun = usual
        if found is not None:
            name = next(one.model for one in waiting if one.number == found[0])
            self.begun[name] = before.get(name, True)
            self.begun.move_to_end(name)
        return found


@mutant("loader", feedback="idle models, the least recently used first, are")
class Loader(Loader):
    """Evicts the model that was loaded first, whenever it was used."""

    def next(self, waiting, loaded, running):
        before = list(self.begun)
        found = super().next(waiting, loaded, running)
        for name in before if found else []:
            if name in loaded and name not in found[1]:
                self.begun.move_to_end(name)
        for name in [name for name in self.begun if name not in before or (found and name in found[1])]:
            self.begun.move_to_end(name)
        return found


@mutant("loader", feedback="nobody needs to leave")
class Loader(Loader):
    """Evicts all idle models, and loads what is asked for."""

    def next(self, waiting, loaded, running):
        found = super().next(waiting, loaded, running)
        name = found and next(one.model for one in waiting if one.number == found[0])
        return found and (found[0], [one for one in loaded if one not in running and one != name])


@mutant("loader", feedback="bytes")
class Loader(Loader):
    """Never evicts anybody."""

    def next(self, waiting, loaded, running):
        found = super().next(waiting, loaded, running)
        return found and (found[0], [])


@mutant("loader", feedback="bytes")
class Loader(Loader):
    """Has room for three models, whatever their sizes."""

    def __init__(self, sizes, budget, patience):
        super().__init__(dict.fromkeys(sizes, 1), 3, patience)


@mutant("loader", feedback="None helps nobody")
class Loader(Loader):
    """Waits until somebody asks for a loaded model."""

    def next(self, waiting, loaded, running):
        found = super().next(waiting, loaded, running)
        name = found and next(one.model for one in waiting if one.number == found[0])
        return found if name in loaded else None


@mutant("loader", feedback="does nobody wait who could begin?")
class Loader(Loader):
    """Lets one request run at a time."""

    def next(self, waiting, loaded, running):
        return None if running else super().next(waiting, loaded, running)


@mutant("loader", feedback="in the order of arrival: less than three quarters of them")
class Loader:
    """Calls helpers: the chapter's pool knows nobody who waits."""

    def __init__(self, sizes, budget, patience):
        from helpers.techniques import offload

        self.pool = offload.ModelPool(budget // 10**5 + 1536, offload.SimulatedStreams(1e9, 1e12))
        for name, size in sizes.items():
            self.pool.add(name, torch.nn.Linear(size // 4 // 10**5, 1, bias=False))

    def next(self, waiting, loaded, running):
        import contextlib

        request = waiting[0]
        with contextlib.ExitStack() as users, contextlib.suppress(Exception):
            for name in running:
                users.enter_context(self.pool.use(name))
            before = self.pool.loaded
            users.enter_context(self.pool.use(request.model))
            return request.number, [name for name in before if name not in self.pool.loaded]
        return None


@mutant("spill-oldest", feedback="bytes lie on the device and")
class SpillOldest(SpillOldest):
    """Keeps the oldest instead of the newest: what does not fit when it is saved leaves at once."""

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.keep or storage.nbytes() < 1024:
            return tensor
        if (saved := self.known.get(key)) is None:
            saved = self.known[key] = Saved(torch.empty(0, dtype=torch.uint8).set_(storage))
            weakref.finalize(storage, self.known.pop, key, None)
            here = [one() for one in self.here if one() is not None]
            if sum(one.whole.nbytes for one in [*here, saved]) > self.budget:
                saved.ticket, saved.whole = self.host.put(saved.whole), None
            else:
                self.here = [weakref.ref(one) for one in [*here, saved]]
        saved.savers += 1
        return saved, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


@mutant("spill-oldest", feedback="bytes lie on the device and")
class SpillOldest(SpillOldest):
    """Calls helpers: everything leaves, and no budget is looked at."""

    def __init__(self, host, budget, keep=()):
        from helpers.techniques.checkpointing import Offload

        self.hooks = Offload(keep=keep)

    def pack(self, tensor):
        return self.hooks.pack(tensor)

    def unpack(self, packed):
        return self.hooks.unpack(packed)


@mutant("spill-oldest", feedback="bytes lie on the device and")
class SpillOldest(SpillOldest):
    """Copies what does not fit to the host, and holds on to the tensor."""

    def pack(self, tensor):
        self.held = [*getattr(self, "held", []), tensor.detach()]
        return super().pack(tensor)


@mutant("spill-oldest", feedback="bytes lie on the device and")
class SpillOldest(SpillOldest):
    """Lets go only when the budget has been passed by a whole storage."""

    def __init__(self, host, budget, keep=()):
        super().__init__(host, budget, keep)
        self.most = budget

    def pack(self, tensor):
        self.budget = self.most + tensor.untyped_storage().nbytes()
        return super().pack(tensor)


@mutant("spill-oldest", feedback="bytes lie on the device and")
class SpillOldest(SpillOldest):
    """Leaves one byte of the budget unused: what fits exactly is sent away."""

    def __init__(self, host, budget, keep=()):
        super().__init__(host, max(0, budget - 1), keep)


@mutant("spill-oldest", feedback="come back, yours")
class SpillOldest(SpillOldest):
    """Brings a storage back for each of those who saved it."""

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        saved, dtype, *view = packed
        whole = self.host.get(saved.ticket) if saved.whole is None else saved.whole
        return whole.view(dtype).as_strided(*view)


@mutant("spill-oldest", feedback="leave, yours")
class SpillOldest(SpillOldest):
    """Takes every tensor for a storage of its own, and moves views one by one."""

    def pack(self, tensor):
        self.known.clear()
        return super().pack(tensor)


@mutant("spill-oldest", feedback="what else is there?")
class SpillOldest(SpillOldest):
    """What came back stays until the graph is gone."""

    def unpack(self, packed):
        if not isinstance(packed, torch.Tensor):
            packed[0].savers = 10**9
        return super().unpack(packed)


@mutant("spill-oldest", feedback="where is what came back?")
class SpillOldest(SpillOldest):
    """Says that what came back lies on the host, and keeps it."""

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        saved, dtype, *view = packed
        if (whole := saved.whole) is None:
            with places.at(places.Place.HOST):
                back = self.host.get(saved.ticket) if saved.asked % saved.savers == 0 else None
            saved.asked += 1
            whole = saved.back = back if saved.back is None else saved.back
        return whole.view(dtype).as_strided(*view)


@mutant("spill-oldest", feedback="bytes come back in one pass, and in three")
class SpillOldest(SpillOldest):
    """Counts how often a storage came back, and never begins anew: the next pass brings it back for each saver."""

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        saved, dtype, *view = packed
        if (whole := saved.whole) is None:
            whole = self.host.get(saved.ticket) if saved.back is None else saved.back
            saved.asked += 1
            saved.back = whole if saved.asked < saved.savers else None
        return whole.view(dtype).as_strided(*view)


@mutant("spill-oldest", feedback="after the forward pass")
class SpillOldest(SpillOldest):
    """Has matrices travel, and works with the originals, which it holds."""

    def pack(self, tensor):
        packed = super().pack(tensor)
        return packed if isinstance(packed, torch.Tensor) or tensor.dim() < 2 else [packed, tensor.detach()]

    def unpack(self, packed):
        if isinstance(packed, list):
            super().unpack(packed[0])
            return packed[1]
        return super().unpack(packed)


@mutant("spill-oldest", feedback="other values come back")
class SpillOldest(SpillOldest):
    """Reads the host's memory where it lies: the private part of a ticket."""

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        saved, dtype, *view = packed
        if (whole := saved.whole) is None:
            if saved.asked % saved.savers == 0:
                self.host.get(saved.ticket)
            saved.asked += 1
            whole = saved.ticket._flat
        return whole.view(dtype).as_strided(*view)


@mutant("spill-oldest", feedback="gradients differ from those without hooks")
class SpillOldest(SpillOldest):
    """Copies once with the host's own method, and for every other saver with another host's."""

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        saved, dtype, *view = packed
        if (whole := saved.whole) is None:
            whole = (Host() if saved.asked % saved.savers else self.host).get(saved.ticket)
            saved.asked += 1
        return whole.view(dtype).as_strided(*view)


@mutant("spill-oldest", feedback="what else is there?")
class SpillOldest(SpillOldest):
    """Keeps what came back in pieces, each too small to count."""

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        saved, dtype, *view = packed
        if (whole := saved.whole) is None:
            if saved.asked % saved.savers == 0:
                saved.back = [one.clone() for one in self.host.get(saved.ticket).split(512)]
            saved.asked += 1
            whole = torch.cat(saved.back)
        return whole.view(dtype).as_strided(*view)


@mutant("spill-oldest", feedback="what else is there?")
class SpillOldest(SpillOldest):
    """Brings everything back as soon as backward begins."""

    def unpack(self, packed):
        if not isinstance(packed, torch.Tensor):
            for saved in {*self.known.values(), *self.gone} if packed[0].whole is None else self.gone:
                if saved.ticket is not None and saved.back is None:
                    saved.back, saved.asked = self.host.get(saved.ticket), -1
        return super().unpack(packed)

    def pack(self, tensor):
        packed = super().pack(tensor)
        if not isinstance(packed, torch.Tensor):
            self.gone.add(packed[0])
        return packed

    gone = weakref.WeakSet()


@mutant("spill-oldest", feedback="in the second forward pass")
class SpillOldest(SpillOldest):
    """Adds up what was saved and takes off what has left, and never what is gone: the next batch has less."""

    used = 0

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.keep or storage.nbytes() < 1024:
            return tensor
        if (saved := self.known.get(key)) is None:
            saved = self.known[key] = Saved(torch.empty(0, dtype=torch.uint8).set_(storage))
            weakref.finalize(storage, self.known.pop, key, None)
            self.here.append(weakref.ref(saved))
            self.used += storage.nbytes()
            while self.used > self.budget and self.here:
                oldest = self.here.pop(0)()
                if oldest is not None:
                    self.used -= oldest.whole.nbytes
                    oldest.ticket, oldest.whole = self.host.put(oldest.whole), None
        saved.savers += 1
        return saved, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


@mutant("spill-oldest", feedback="storage")  # bytes are left, or one has its address and is too short: by chance
class SpillOldest(SpillOldest):
    """Takes an address for a name, also when its storage is gone and another one lies there."""

    def __init__(self, host, budget, keep=()):
        super().__init__(host, budget, keep)

        class Stubborn(dict):
            def pop(self, *_):
                return None

        self.known = Stubborn()


@mutant("spill-oldest", feedback="bytes are kept in arrays or lists")
class SpillOldest(SpillOldest):
    """Keeps a copy in NumPy beside the host's, where no meter sees it."""

    def pack(self, tensor):
        packed = super().pack(tensor)
        if isinstance(packed, torch.Tensor):
            return packed
        return *packed, tensor.detach().numpy().copy()

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        *packed, array = packed
        super().unpack(packed)
        return torch.from_numpy(array)


@mutant("spill-oldest", feedback="other values come back: from where?")
class SpillOldest(SpillOldest):
    """Reads from a file of its own what the host has, too."""

    def pack(self, tensor):
        import tempfile

        packed = super().pack(tensor)
        if isinstance(packed, torch.Tensor):
            return packed
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # the graph closes it
        file.write(tensor.detach().numpy().tobytes())
        return *packed, file

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        *packed, file = packed
        tensor = super().unpack(packed)
        if packed[0].whole is None:
            file.seek(0)
            tensor.copy_(torch.frombuffer(bytearray(file.read()), dtype=tensor.dtype).view(tensor.shape))
        return tensor


@mutant("spill-oldest", feedback="gradients differ from those without hooks")
class SpillOldest(SpillOldest):
    """Forgets where in its storage a view begins."""

    def unpack(self, packed):
        if not isinstance(packed, torch.Tensor):
            packed = *packed[:4], 0
        return super().unpack(packed)


@mutant("spill-oldest", feedback="leave, yours")
class SpillOldest(SpillOldest):
    """Sends parameters away, too."""

    def __init__(self, host, budget, keep=()):
        super().__init__(host, budget)


@mutant("spill-oldest", feedback="bytes lie on the device and")
class SpillOldest(SpillOldest):
    """The graph is held by what it keeps: the tensor, with its history."""

    def pack(self, tensor):
        packed = super().pack(tensor)
        if not isinstance(packed, torch.Tensor):
            packed[0].tensor = tensor
        return packed
