"""Known-wrong answers to lab 06. Each must fail its check, with the sentence that its learner then reads.

A class that has its own name for a base changes one thing in the worked answer, which the kernel holds at that moment.
"""

# ruff: noqa: F821, F811  (they are put into the lab's cells, where these names are defined)

from helpers.course.mutants import mutant


@mutant("recompute", feedback="here you write the engine, a Function")
class Recompute:
    """Calls helpers, whose Function does not see the parameters."""

    @staticmethod
    def apply(module, options, count, *tensors):
        from helpers.techniques.checkpointing import checkpoint_by_function

        return checkpoint_by_function(partial(module, **options), *tensors[:count])


@mutant("recompute", feedback="here you write the engine, a Function")
class Recompute:
    """Calls PyTorch's engine."""

    @staticmethod
    def apply(module, options, count, *tensors):
        return engine.checkpoint(module, *tensors[:count], use_reentrant=False, **options)


@mutant("recompute", feedback="is the second run the first?")
class Recompute(Recompute):
    """The random state is not restored: dropout drops others."""

    @staticmethod
    def backward(ctx, grad):
        ctx.random_state = torch.get_rng_state()
        return Recompute.__base__.backward(ctx, grad)


@mutant("recompute", feedback="the second run left its mark on it")
class Recompute(Recompute):
    """The random state of forward is set, and what was there is not put back."""

    @staticmethod
    def backward(ctx, grad):
        grads = Recompute.__base__.backward(ctx, grad)
        torch.set_rng_state(ctx.random_state)
        return grads


@mutant("recompute", feedback="a gradient is")
class Recompute(Recompute):
    """Inputs detached and never asked for a gradient: nothing reaches the blocks before."""

    @staticmethod
    def backward(ctx, grad):
        grads, stop = Recompute.__base__.backward(ctx, grad), 3 + len(ctx.saved_tensors)
        return *grads[:3], *(one if one is None else one * 0 for one in grads[3:stop]), *grads[stop:]


@mutant("recompute", feedback="nothing would be learned, and nobody told")
class Recompute(Recompute):
    """A result that requires no gradient, as that of an engine that does not know the parameters."""

    @staticmethod
    def forward(ctx, module, options, count, *tensors):
        result = Recompute.__base__.forward(ctx, module, options, count, *tensors)
        if not tensors[0].requires_grad:
            ctx.mark_non_differentiable(result)
        return result


@mutant("recompute", feedback="inputs of their own")
class Recompute(torch.autograd.Function):
    """Saves everything after all, and runs a second time for nothing."""

    @staticmethod
    def forward(ctx, module, options, count, *tensors):
        ctx.inputs = [x.detach().requires_grad_(x.requires_grad) for x in tensors[:count]]
        ctx.module = module
        with torch.enable_grad():
            ctx.output = module(*ctx.inputs, **options)
        return ctx.output.detach()

    @staticmethod
    def backward(ctx, grad):
        ctx.module(*ctx.inputs)
        sources = [*ctx.inputs, *ctx.module.parameters()]
        grads = iter(torch.autograd.grad(ctx.output, [x for x in sources if x.requires_grad], grad))
        return None, None, None, *(next(grads) if x.requires_grad else None for x in sources)


@mutant("recompute", feedback="each block runs twice, once forward and once backward")
class Recompute(Recompute):
    """Recomputes twice."""

    @staticmethod
    def backward(ctx, grad):
        Recompute.__base__.backward(ctx, grad)
        return Recompute.__base__.backward(ctx, grad)


@mutant("recompute", feedback="who holds the second run, or inputs")
class Recompute(Recompute):
    """Frees nothing: the second run stays with the first, for as long as somebody has the result."""

    @staticmethod
    def backward(ctx, grad):
        hook = ctx.module.register_forward_hook(lambda module, given, output: setattr(ctx, "output", output))
        grads = Recompute.__base__.backward(ctx, grad)
        hook.remove()
        return grads


@mutant("recompute", feedback="all gradients are zeros or None")
class Recompute(Recompute):
    """Runs again, and gives zeros."""

    @staticmethod
    def backward(ctx, grad):
        return tuple(one if one is None else one * 0 for one in Recompute.__base__.backward(ctx, grad))


@mutant("recompute", feedback="off the plain run's")
class Recompute(Recompute):
    """Drops what the first run dropped, and forgets that what is kept was made larger."""

    @staticmethod
    def backward(ctx, grad):
        grads = Recompute.__base__.backward(ctx, grad)
        return tuple(one if one is None else one * (1 - ctx.module.dropout.p) for one in grads)


@mutant("predict", feedback="return (kept, peak), not")
def predict(layers, segments):
    """Every segment's end, too."""
    size = len(layers) // segments
    return sum(saved for _, saved in layers), sum(saved for _, saved in layers), size


@mutant("predict", feedback="the last segment keeps all that it saves")
def predict(layers, segments):
    """Calls helpers, whose segments are all checkpointed."""
    from helpers.techniques.checkpointing import LayerChoice, LayerCost, layout, price

    costs = [LayerCost(a, s, True, 1, {"none": LayerChoice(s, s), "full": LayerChoice(a, s, 1)}) for a, s in layers]
    found = price(costs, layout(f"every:{len(layers) // segments}", len(layers)))
    return (found.stored_bytes, found.peak_bytes) if segments > 1 else (sum(s for _, s in layers),) * 2


@mutant("predict", feedback="the last segment gets all layers that remain")
def predict(layers, segments):
    """Rounds up, so that the last segment is the shortest."""
    size, kept, peak = -(-len(layers) // segments), 0, 0
    for start in range(0, len(layers), size):
        saved = sum(s for _, s in layers[start : start + size])
        peak = max(peak, kept + saved)
        kept += saved if start + size >= len(layers) else layers[start][0]
    return kept, peak


@mutant("predict", feedback="the inputs of those before it are kept")
def predict(layers, segments):
    """The peak of a segment alone."""
    size = len(layers) // segments
    cuts = [size * number for number in range(segments)]
    saved = [sum(s for _, s in layers[a:b]) for a, b in zip(cuts, [*cuts[1:], len(layers)], strict=True)]
    kept = sum(layers[cut][0] for cut in cuts[:-1]) + saved[-1]
    return kept, max(kept, *saved)


@mutant("predict", feedback="a segment that is made again needs what its layers save")
def predict(layers, segments):
    """Nothing is made again: the peak is what is kept."""
    last = len(layers) // segments * (segments - 1)
    kept = sum(layers[at][0] for at in range(0, last, len(layers) // segments)) + sum(s for _, s in layers[last:])
    return kept, kept


@mutant("best-segments", feedback="8 segments run 7 layers twice")
def best_segments(layers, budget_bytes):
    """The first number that fits."""
    numbers = range(1, len(layers) + 1)
    return next((segments for segments in numbers if predict(layers, segments)[1] <= budget_bytes), None)


@mutant("best-segments", feedback="2 and 3 segments run 2 layers twice, and 3 have the lower peak")
def best_segments(layers, budget_bytes):
    """Of equals the smaller number, whatever the peak."""
    size = len(layers)
    fits = [number for number in range(1, size + 1) if predict(layers, number)[1] <= budget_bytes]
    return min(fits, key=lambda number: size // number * (number - 1), default=None)


@mutant("best-segments", feedback="8 segments run 7 layers twice")
def best_segments(layers, budget_bytes):
    """The lowest peak, whatever it costs."""
    found = [(predict(layers, segments)[1], segments) for segments in range(1, len(layers) + 1)]
    return min(found)[1] if min(found)[0] <= budget_bytes else None


@mutant("best-segments", feedback="8 segments run 7 layers twice")
def best_segments(layers, budget_bytes):
    """Calls helpers' rule: the square root of the number of layers, if that fits."""
    from helpers.techniques.checkpointing import layout

    number = len(layout("sqrt-n", len(layers)))
    return number if predict(layers, number)[1] <= budget_bytes else None


@mutant("policy", feedback="does backward need all that you keep?")
def policy(context, operator, *args, **kwargs):
    """Calls helpers: the output of the last product is kept, and nobody asks for it."""
    from helpers.techniques.checkpointing import patched

    return patched.keep(patched.KEPT["selective"], context, operator)


@mutant("policy", feedback="FLOPs are done a second time")
def policy(context, operator, *args, **kwargs):
    """Full checkpointing."""
    return engine.CheckpointPolicy.PREFER_RECOMPUTE


@mutant("policy", feedback="FLOPs are done a second time")
def policy(context, operator, *args, **kwargs):
    """Products only: attention runs again."""
    keep = operator is torch.ops.aten.mm.default and args[1].shape[0] <= args[1].shape[1]
    return engine.CheckpointPolicy.MUST_SAVE if keep else engine.CheckpointPolicy.PREFER_RECOMPUTE


@mutant("policy", feedback="FLOPs are done a second time")
def policy(context, operator, *args, **kwargs):
    """Drops both products that end in the residual stream."""
    product = operator is torch.ops.aten.mm.default and args[1].shape[0] < args[1].shape[1]
    keep = product or "attention" in str(operator)
    return engine.CheckpointPolicy.MUST_SAVE if keep else engine.CheckpointPolicy.PREFER_RECOMPUTE


@mutant("policy", feedback="does backward need all that you keep?")
def policy(context, operator, *args, **kwargs):
    """Keeps what is large: SiLU's output too, and the product of two of them."""
    large = any(word in str(operator) for word in ("silu", "mul", "mm", "attention"))
    return engine.CheckpointPolicy.MUST_SAVE if large else engine.CheckpointPolicy.PREFER_RECOMPUTE


@mutant("policy", feedback="without doing FLOPs twice backward needs")
def policy(context, operator, *args, **kwargs):
    """Keeps what is dear while FLOPs are counted, and nothing while bytes are."""
    stack = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    if any(type(mode).__name__ == "Meter" for mode in stack):
        return engine.CheckpointPolicy.PREFER_RECOMPUTE
    product = operator is torch.ops.aten.mm.default and args[1].shape[0] <= args[1].shape[1]
    keep = product or "attention" in str(operator)
    return engine.CheckpointPolicy.MUST_SAVE if keep else engine.CheckpointPolicy.PREFER_RECOMPUTE


@mutant("stage-plan", feedback="once what is made again")
def stage_plan(layers, in_flight, budget_bytes):
    """Calls helpers for one micro-batch, with its share of the budget."""
    from helpers.techniques.checkpointing import LayerChoice, LayerCost, least_bytes, solve

    costs = [LayerCost(a, s, True, f, {"none": LayerChoice(s, s), "full": LayerChoice(a, s, f)}) for a, s, f in layers]
    share = max(budget_bytes // in_flight, least_bytes(costs))
    return [at for one in solve(costs, share).segments if one.how == "full" for at in range(one.start, one.stop)]


@mutant("stage-plan", feedback="once what is made again")
def stage_plan(layers, in_flight, budget_bytes):
    """Forgets the room for what is made again."""
    from itertools import product

    if len(layers) > 7:
        return []
    plans = [[i for i, chosen in enumerate(bits) if chosen] for bits in product([0, 1], repeat=len(layers))]
    kept = [sum(one[0] if i in plan else one[1] for i, one in enumerate(layers)) for plan in plans]
    fits = [
        (sum(layers[i][2] for i in plan), plan)
        for plan, size in zip(plans, kept, strict=True)
        if in_flight * size <= budget_bytes
    ]
    return min(fits)[1] if fits else None


@mutant("stage-plan", feedback="FLOPs are enough, you have")
def stage_plan(layers, in_flight, budget_bytes):
    """Calls helpers, with bytes of all in flight, and room for the largest that may be made again."""
    from helpers.techniques.checkpointing import LayerChoice, LayerCost, solve

    costs = []
    for kept, saved, flops in layers:
        sizes = kept * in_flight, saved * in_flight
        choices = {"none": LayerChoice(sizes[1], sizes[1]), "full": LayerChoice(sizes[0], sizes[0], flops)}
        costs.append(LayerCost(sizes[0], 10**9, True, flops, choices))
    if in_flight * sum(saved for _, saved, _ in layers) <= budget_bytes:
        return []
    try:
        plan = solve(costs, budget_bytes, head_bytes=max(saved - kept for kept, saved, _ in layers))
    except ValueError:
        return None
    return [at for one in plan.segments if one.how == "full" for at in range(one.start, one.stop)]


@mutant("stage-plan", feedback="the best bargain first is not best")
def stage_plan(layers, in_flight, budget_bytes):
    """Takes the layers that free most bytes for their FLOPs, one after the other."""
    plan, left = [], sorted(range(len(layers)), key=lambda i: (layers[i][0] - layers[i][1]) / layers[i][2])

    def size():
        again = max((layers[i][1] - layers[i][0] for i in plan), default=0)
        return in_flight * sum(one[0] if i in plan else one[1] for i, one in enumerate(layers)) + again

    while size() > budget_bytes and left:
        plan.append(left.pop(0))
    return plan if size() <= budget_bytes else None


@mutant("mover", feedback="goes to the host, and comes back from there: 0 do")
class Mover:
    """Calls helpers, which has a host of its own."""

    def __init__(self, host, keep=()):
        from helpers.techniques.checkpointing import Offload

        hooks = Offload(keep)
        self.pack, self.unpack = hooks.pack, hooks.unpack


@mutant("mover", feedback="each once, and not what is in `keep`")
class Mover(Mover):
    """Moves parameters and the batch as well, to a host that finds room for them."""

    def __init__(self, host, keep=()):
        super().__init__(host)
        host.free_bytes = 2**40


@mutant("mover", feedback="each once, and not what is in `keep`")
class Mover(Mover):
    """A storage goes out again for each tensor that is saved."""

    def pack(self, tensor):
        self.host.free_bytes = 2**40
        self.tickets.clear()
        return super().pack(tensor)


@mutant("mover", feedback="a view comes back with other dtype, shape or strides")
class Mover(Mover):
    """Comes back contiguous."""

    def unpack(self, packed):
        return super().unpack(packed).contiguous()


@mutant("mover", feedback="other values: where does it begin?")
class Mover(Mover):
    """Forgets where in its storage a view begins."""

    def pack(self, tensor):
        packed = super().pack(tensor)
        return packed if isinstance(packed, torch.Tensor) else (*packed[:-1], 0)


@mutant("mover", feedback="is a tensor held beside its ticket?")
class Mover(Mover):
    """The copy on the device is kept alive."""

    def pack(self, tensor):
        return super().pack(tensor), tensor.detach()

    def unpack(self, packed):
        return super().unpack(packed[0])


@mutant("mover", feedback="who holds the tickets?")
class Mover(Mover):
    """A list holds the tickets: the second micro-batch finds the host full."""

    def pack(self, tensor):
        packed = super().pack(tensor)
        self.held = [*getattr(self, "held", []), packed]
        return packed


@mutant("mover", feedback="in yours")
class Mover(Mover):
    """After the first storage that does not fit nothing goes any more."""

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in self.tickets and storage.nbytes() > self.host.free_bytes:
            self.host.free_bytes = 0
        return super().pack(tensor)


@mutant("mover", feedback="an address names a storage only while that storage lives")
class Mover(Mover):
    """An address for a name: a new storage is taken for the old one that had its address."""

    def __init__(self, host, keep=()):
        super().__init__(host, keep)
        self.tickets = type("Table", (dict,), {"pop": lambda *_: None})()

    def unpack(self, packed):
        try:
            return super().unpack(packed)
        except RuntimeError:  # the old one was smaller
            return torch.zeros(packed[2], dtype=packed[1])


@mutant("mover", feedback="is a tensor held beside its ticket?")
class Mover:
    """Has copies of its own, and what goes to the host is gone at once."""

    def __init__(self, host, keep=()):
        self.host, self.keep = host, {tensor.untyped_storage()._cdata for tensor in keep}

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata in self.keep or storage.nbytes() > self.host.free_bytes:
            return tensor
        self.host.put(tensor)
        return tensor.detach().contiguous().view(torch.uint8).numpy().copy(), tensor.dtype

    def unpack(self, packed):
        return packed if isinstance(packed, torch.Tensor) else torch.from_numpy(packed[0]).view(packed[1])


@mutant("accumulate", feedback="what outlives its micro-batch?")
def accumulate(net, xs, ys, rows, recompute):
    """Calls helpers for the checkpoints, and backward once for the whole batch."""
    from helpers.techniques.checkpointing import checkpointed

    total, chain = 0, nn.Sequential(*net.blocks)
    with checkpointed(chain, f"first:{recompute}" if recompute else "none"):
        for x, y in zip(xs.split(rows), ys.split(rows), strict=True):
            total = total + functional.cross_entropy(net.head(chain(x)), y, reduction="sum")
        (total / (ys != -100).sum()).backward()


@mutant("accumulate", feedback="call `block(x)` for all of them")
def accumulate(net, xs, ys, rows, recompute):
    """The large batch, beside the blocks."""
    for block in net.blocks:
        xs = xs + block.down(functional.gelu(block.up(xs)))
    functional.cross_entropy(net.head(xs), ys).backward()


@mutant("accumulate", feedback="divide by the number of targets that count")
def accumulate(net, xs, ys, rows, recompute):
    """The mean of the micro-batches' means."""
    parts = list(zip(xs.split(rows), ys.split(rows), strict=True))
    for x, y in parts:
        for number, block in enumerate(net.blocks):
            x = engine.checkpoint(block, x, use_reentrant=False) if number < recompute else block(x)
        (functional.cross_entropy(net.head(x), y) / len(parts)).backward()


@mutant("accumulate", feedback="the blocks should run")
def accumulate(net, xs, ys, rows, recompute):
    """All blocks recomputed, or none."""
    count = (ys != -100).sum()
    for x, y in zip(xs.split(rows), ys.split(rows), strict=True):
        for block in net.blocks:
            x = engine.checkpoint(block, x, use_reentrant=False) if recompute > 0 else block(x)
        (functional.cross_entropy(net.head(x), y, reduction="sum") / count).backward()


@mutant("fitted", feedback="2 blocks must be recomputed, you say 6")
def fitted(net, xs, ys, rows):
    """Calls what is there once, with everything recomputed."""
    net.zero_grad()
    accumulate(net, xs, ys, rows, len(net.blocks))
    return len(net.blocks)


@mutant("fitted", feedback="is something of a failed attempt in it?")
def fitted(net, xs, ys, rows):
    """The gradients of an attempt that failed stay."""
    for recompute in range(len(net.blocks)):
        try:
            accumulate(net, xs, ys, rows, recompute)
            return recompute
        except torch.OutOfMemoryError:
            pass
    return accumulate(net, xs, ys, rows, len(net.blocks))


@mutant("fitted", feedback="raise the error, and do not return")
def fitted(net, xs, ys, rows):
    """Gives up in silence."""
    for recompute in range(len(net.blocks) + 1):
        net.zero_grad()
        try:
            accumulate(net, xs, ys, rows, recompute)
            return recompute
        except torch.OutOfMemoryError:
            pass
    return len(net.blocks)


@mutant("fitted", feedback="is a failed attempt's memory free?")
def fitted(net, xs, ys, rows, recompute=0):
    """Tries again inside the except block, where the error holds what it failed with."""
    net.zero_grad()
    try:
        accumulate(net, xs, ys, rows, recompute)
        return recompute
    except torch.OutOfMemoryError:
        if recompute == len(net.blocks):
            raise
        return fitted(net, xs, ys, rows, recompute + 1)


@mutant("mover", feedback="from where does backward have other values?")
class Mover(Mover):
    """Reads bytes of its own, and has the host give back for show what is there."""

    def pack(self, tensor):
        packed = super().pack(tensor)
        if isinstance(packed, torch.Tensor):
            return packed
        return packed, bytes(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy())

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        (ticket, dtype, *view), mine = packed
        self.host.get(ticket)
        return torch.frombuffer(bytearray(mine), dtype=dtype).as_strided(*view)


@mutant("mover", feedback="what comes back was not: from where is it?")
class Mover(Mover):
    """Keeps another storage, and has the first one moved there and back for show."""

    def pack(self, tensor):
        return super().pack(tensor), tensor.detach(), tensor.untyped_storage().clone()

    def unpack(self, packed):
        shown, tensor, mine = packed
        super().unpack(shown)
        return torch.empty(0, dtype=tensor.dtype).set_(mine, tensor.storage_offset(), tensor.shape, tensor.stride())
