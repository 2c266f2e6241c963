"""Known-wrong answers to lab 09. Each must fail its check, with the sentence that its learner then reads.

A class that has its own name for a base, or a function with itself for the default `right`, changes one thing in the
worked answer, which the kernel holds at that moment.
"""

# ruff: noqa: F821, F811  (they are put into the lab's cells, where these names are defined)

from helpers.course.mutants import mutant


@mutant("fsdp2", feedback="5 rows on 3 ranks: 2, 2 and 1")
def fsdp2(root, layers, ranks):
    """Calls helpers, whose flats are cut end to end."""
    units = [formula.Flat(sum(map(prod, unit)), ranks) for unit in (root, *layers)]
    sent = sum(4 * (2 + bool(at)) * (ranks - 1) * unit.shard for at, unit in enumerate(units))
    return [16 * sum(unit.shard for unit in units)] * ranks, sent


@mutant("fsdp2", feedback="parts of 2 rows, and the last rank has none")
def fsdp2(root, layers, ranks, right=fsdp2):
    """Rows as even as can be: 2, 2, 2, 1, 1 of eight."""
    held, sent = [0] * ranks, right(root, layers, ranks)[1]
    for rows, *rest in sum(layers, root):
        for rank in range(ranks):
            held[rank] += 8 * (-(-rows // ranks) + len(range(rank, rows, ranks))) * prod(rest)
    return held, sent


@mutant("mean-shard", feedback="here the adding is yours, in FP32")
def mean_shard(parameters):
    """Calls helpers, and adds in BF16."""
    from helpers.techniques.zero import Bucket

    bucket = Bucket(parameters)
    part = torch.empty(bucket.length // bucket.ranks, dtype=torch.bfloat16)
    reduce_scatter(part, bucket.take_gradients())
    return part.float() / bucket.ranks


@mutant("mean-shard", feedback="what does nobody need")
def mean_shard(parameters):
    """Every rank broadcasts its whole tensor."""
    flat = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters])
    flat, total = nn.functional.pad(flat.detach(), (0, -len(flat) % N)), 0
    for source in range(N):
        sent = flat.clone()
        dist.broadcast(sent, source)
        total = total + sent.float().chunk(N)[dist.get_rank()] / N
    return total


@mutant("mean-shard", feedback="padded with zeros at the end, until 3 divides it")
def mean_shard(parameters, right=mean_shard):
    """Forgets the remainder."""
    shard = right(parameters)
    return shard[: sum(p.numel() for p in parameters) // N].clone()


@mutant("mean-shard", feedback="laid end to end")
def mean_shard(parameters, right=mean_shard):
    """Every tensor padded and cut on its own."""
    return torch.cat([right([parameter]) for parameter in parameters])


@mutant("mean-shard", feedback="a missing gradient is zeros, in its place")
def mean_shard(parameters, right=mean_shard):
    """What has no gradient is moved to the end."""
    return right(sorted(parameters, key=lambda parameter: parameter.grad is None))


@mutant("mean-shard", feedback="was it added in FP32?")
def mean_shard(parameters, right=mean_shard):
    """Adds in BF16."""
    return right(parameters).bfloat16().float()


@mutant("mean-shard", feedback="a view keeps the whole alive")
def mean_shard(parameters, right=mean_shard):
    """The shard is cut from something larger."""
    shard = right(parameters)
    return torch.cat([shard] * N)[: len(shard)]


@mutant("by-tensor", feedback="nothing is divided")
class ByTensor:
    """Right values, and nothing is sharded."""

    def __init__(self, parameters, make):
        self.parameters, self.optimizer = parameters, make(parameters)

    def step(self):
        for parameter in self.parameters:
            dist.all_reduce(parameter.grad.div_(N))
        self.optimizer.step()
        self.optimizer.zero_grad()


@mutant("by-tensor", feedback="mean gradient, whole tensors, all shared?")
class ByTensor:
    """Calls helpers, whose shards have no rows and columns."""

    def __init__(self, parameters, make):
        from helpers.techniques.zero import Zero1

        self.step = Zero1(nn.ParameterList(parameters), make).step


@mutant("by-tensor", feedback="divide the list yourself")
class ByTensor:
    """Calls PyTorch's own, which wants averaged gradients everywhere."""

    def __init__(self, parameters, make):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        self.parameters = parameters
        self.optimizer = ZeroRedundancyOptimizer(parameters, lambda groups, **_: make(groups[0]["params"]))

    def step(self):
        for parameter in self.parameters:
            dist.all_reduce(parameter.grad.div_(N))
        self.optimizer.step()
        self.optimizer.zero_grad()


@mutant("by-tensor", feedback="does a rank keep what others own?")
class ByTensor(ByTensor):
    """The states of all tensors on every rank."""

    def __init__(self, parameters, make):
        ByTensor.__base__.__init__(self, parameters, make)
        self.unused = [torch.zeros_like(p) for p in parameters for _ in range(2) if self.owners[p] != dist.get_rank()]


@mutant("by-tensor", feedback="at most by the rule: largest first")
class ByTensor(ByTensor):
    """One after the other, whatever their size."""

    def __init__(self, parameters, make):
        self.owners = {parameter: at % N for at, parameter in enumerate(parameters)}
        mine = [one for one, owner in self.owners.items() if owner == dist.get_rank()]
        self.optimizer = make(mine) if mine else None


@mutant("by-tensor", feedback="who needs this gradient?")
class ByTensor(ByTensor):
    """Averages every gradient everywhere."""

    def step(self):
        for parameter in self.owners:
            dist.all_reduce(parameter.grad.div_(N))
        for parameter, owner in self.owners.items():
            parameter.grad = parameter.grad * N if owner == dist.get_rank() else torch.zeros_like(parameter)
        ByTensor.__base__.step(self)


@mutant("by-tensor", feedback="gradients are left behind")
class ByTensor(ByTensor):
    """Keeps the gradients of its own."""

    def step(self):
        ByTensor.__base__.step(self)
        for parameter in self.owners:
            parameter.grad = torch.zeros_like(parameter)


@mutant("by-tensor", feedback="mean gradient, whole tensors, all shared?")
class ByTensor(ByTensor):
    """Forgets to share what was updated."""

    def step(self):
        before = {parameter: parameter.detach().clone() for parameter in self.owners}
        ByTensor.__base__.step(self)
        for parameter in [one for one, owner in self.owners.items() if owner != dist.get_rank()]:
            parameter.data.copy_(before[parameter])


@mutant("by-tensor", feedback="optimizer got an empty parameter list")
class ByTensor(ByTensor):
    """A rank without tensors gets an optimizer nevertheless."""

    def __init__(self, parameters, make):
        ByTensor.__base__.__init__(self, parameters, make)
        self.optimizer = self.optimizer or make([])


@mutant("gathered", feedback="is a whole weight among them?")
class Gathered(Gathered):
    """Never frees what it gathered: it is saved for backward."""

    @staticmethod
    def forward(ctx, x, shard, rows):
        ctx.whole = shard.new_empty(len(shard) * N, shard.shape[1])
        all_gather(ctx.whole, shard)
        return Gathered.__base__.forward(ctx, x, shard, rows)


@mutant("gathered", feedback="is a whole weight among them?")
class Gathered:
    """Calls helpers' collectives around PyTorch's own linear, which saves the whole."""

    @staticmethod
    def apply(x, shard, rows):
        whole = shard.new_empty(len(shard) * N, shard.shape[1])
        all_gather(whole, shard.detach())
        whole.requires_grad_().register_hook(lambda grad: reduce_scatter(shard.grad, grad / N))
        shard.grad = torch.zeros_like(shard)
        return nn.functional.linear(x, whole[:rows])


@mutant("gathered", feedback="bytes sent")
class Gathered(Gathered):
    """Gathers in every backward, as FSDP2 does."""

    @staticmethod
    def backward(ctx, grad):
        if not ctx.needs_input_grad[0]:
            shard = ctx.saved_tensors[1]
            all_gather(shard.new_empty(len(shard) * N, shard.shape[1]), shard)
        return Gathered.__base__.backward(ctx, grad)


@mutant("gathered", feedback="3.000 times as long")
class Gathered(Gathered):
    """The sum over ranks, not the mean."""

    @staticmethod
    def backward(ctx, grad):
        for_x, for_shard, _ = Gathered.__base__.backward(ctx, grad)
        return for_x, None if for_shard is None else for_shard * N, None


@mutant("gathered", feedback="which rows?")
class Gathered(Gathered):
    """Turns the rows round."""

    @staticmethod
    def forward(ctx, x, shard, rows):
        return Gathered.__base__.forward(ctx, x, shard, rows).flip(1)


@mutant("gathered", feedback="cannot be multiplied")
class Gathered(Gathered):
    """Forgets the remainder."""

    @staticmethod
    def forward(ctx, x, shard, rows):
        return Gathered.__base__.forward(ctx, x, shard, len(shard) * N)


@mutant("clip", feedback="what is whole on every rank counts once")
def clip(sharded, whole, limit):
    """Calls helpers, which takes all for shards."""
    from types import SimpleNamespace as Part

    from helpers.techniques.zero import clip_shards

    grads = [*sharded, *whole, torch.zeros(1)]
    return clip_shards([Part(parameter=Part(grad=grad), weights=grad) for grad in grads], limit).item()


@mutant("clip", feedback="one number is enough")
def clip(sharded, whole, limit, right=clip):
    """Sends all gradients to everybody."""
    dist.all_gather_object([None] * N, sharded)
    return right(sharded, whole, limit)


@mutant("clip", feedback="one rank's inf is everybody's")
def clip(sharded, whole, limit, right=clip):
    """Scales by limit / inf."""
    kept = [grad.clone() for grad in (*sharded, *whole)]
    norm = right(sharded, whole, limit)
    for grad, old in zip((*sharded, *whole), kept, strict=True):
        grad.copy_(old * min(1.0, limit / (norm + 1e-6)))
    return norm


@mutant("clip", feedback="one rank's nan is everybody's")
def clip(sharded, whole, limit, right=clip):
    """Only the rank that sees the nan skips the step."""
    kept = [grad.clone() for grad in (*sharded, *whole)]
    norm = right(sharded, whole, limit)
    if all(grad.isfinite().all() for grad in kept):
        for grad, old in zip((*sharded, *whole), kept, strict=True):
            grad.copy_(old * min(1.0, limit / (norm + 1e-6)))
    return norm


@mutant("links-s", feedback="a group of several nodes sends all of it between them")
def links_s(setup, cluster, micro_batches):
    """Calls helpers for one kind of link."""
    moved = formula.traffic(setup, micro_batches)
    host = formula.link_bytes(setup, micro_batches).floor_s(cluster.host_bytes_per_s)
    return {"inside": formula.floor_s(moved, cluster.inside_bytes_per_s), "between": 0, "host": host}


@mutant("links-s", feedback="16 replicas of a shard of gradients between")
def links_s(setup, cluster, micro_batches, right=links_s):
    """Replicas all-reduce all gradients, not their shards."""
    found, shards = right(setup, cluster, micro_batches), setup.ranks
    return found | {"between": found["between"] * (shards if shards < cluster.ranks else 1)}


@mutant("links-s", feedback="replicas once a step")
def links_s(setup, cluster, micro_batches, right=links_s):
    """Replicas meet after every micro-batch."""
    return {link: seconds * micro_batches for link, seconds in right(setup, cluster, 1).items()}


@mutant("best-plan", feedback="1.293 s are possible")
def best_plan(setup, cluster, micro_batches):
    """Calls helpers' stage 3 over everybody."""
    plan = replace(setup, split=Split(cluster.ranks, zero=3))
    return plan if peak_bytes(plan) <= cluster.card.capacity_bytes else None


@mutant("best-plan", feedback="0.3818 s are possible")
def best_plan(setup, cluster, micro_batches, right=best_plan):
    """The best for one micro-batch."""
    return right(setup, cluster, 1)


@mutant("best-plan", feedback="bytes, a card has")
def best_plan(setup, cluster, micro_batches):
    """Whether it fits or not."""
    plans = [replace(setup, split=Split(group, zero=stage)) for stage in (2, 3) for group in cluster.groups]
    return min(plans, key=lambda plan: max(links_s(plan, cluster, micro_batches).values()))


@mutant("gathered", feedback="at least: the gradient of x needs")
class Gathered(Gathered):
    """Keeps what it gathered in bytes, and gathers nothing for backward."""

    @staticmethod
    def forward(ctx, x, shard, rows):
        whole = shard.new_empty(len(shard) * N, shard.shape[1])
        all_gather(whole, shard)
        ctx.save_for_backward(x, shard)
        ctx.rows, ctx.mine = rows, bytes(whole.numpy())
        return x @ whole[:rows].T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        whole = torch.frombuffer(bytearray(ctx.mine), dtype=grad.dtype).view(-1, x.shape[1])
        for_shard = None
        if ctx.needs_input_grad[1]:
            for_shard, all_rows = torch.empty_like(shard), torch.zeros_like(whole)
            all_rows[: ctx.rows] = grad.T @ x / N
            reduce_scatter(for_shard, all_rows)
        return grad @ whole[: ctx.rows] if ctx.needs_input_grad[0] else None, for_shard, None


@mutant("by-tensor", feedback="by which way do they go?")
class ByTensor(ByTensor):
    """Gradients by way of what lies below the collectives, where nobody counts."""

    def step(self):
        below = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        for parameter, owner in self.owners.items():
            below.allreduce([parameter.grad]).wait()
            parameter.grad = parameter.grad / N if owner == dist.get_rank() else None
        if self.optimizer:
            self.optimizer.step()
        for parameter, owner in self.owners.items():
            parameter.grad = None
            dist.broadcast(parameter.data, src=owner)


@mutant("clip", feedback="by which way?")
def clip(sharded, whole, limit, right=clip):
    """Nothing is sent: every rank takes its own part for all of it."""
    norm = sum((grad.float().square().sum() for grad in (*sharded, *whole)), torch.zeros(())).sqrt().item()
    for grad in (*sharded, *whole):
        grad.mul_(min(1.0, limit / (norm + 1e-6))) if norm < float("inf") else grad.zero_()
    return norm
