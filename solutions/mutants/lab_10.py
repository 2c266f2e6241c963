"""Known-wrong answers to lab 10. Each must fail its check, with the sentence that its learner then reads.

A class that has its own name for a base, or a function with itself for the default `right`, changes one thing in the
worked answer, which the kernel holds at that moment.
"""

# ruff: noqa: F821, F811  (they are put into the lab's cells, where these names are defined)

from helpers.course.mutants import mutant


@mutant("from-all-tokens", feedback="save this rank's, and gather them again")
class FromAllTokens:
    """Calls helpers: its entry, and PyTorch's linear layer keeps all tokens."""

    @staticmethod
    def apply(mine, weight, bias, group):
        return linear(gather_tokens(mine, group), weight, bias)


@mutant("from-all-tokens", feedback="the gradient of x is not that of the whole layer")
class FromAllTokens(FromAllTokens):
    """Only this rank's contribution to the gradient of its tokens."""

    @staticmethod
    def backward(ctx, grad):
        found = FromAllTokens.__base__.backward(ctx, grad)
        return (grad @ ctx.saved_tensors[1])[:, part(grad.shape[1], ctx.group)], *found[1:]


@mutant("from-all-tokens", feedback="one all-gather and one reduce-scatter")
class FromAllTokens(FromAllTokens):
    """Gathers by adding up tensors that are empty but for this rank's tokens."""

    @staticmethod
    def forward(ctx, mine, weight, bias, group):
        ctx.group = group
        ctx.save_for_backward(mine, weight)
        whole = mine.new_zeros(1, mine.shape[1] * group.size(), mine.shape[2])
        whole[:, part(whole.shape[1], group)] = mine
        return linear(summed(whole, group), weight, bias)


@mutant("from-all-tokens", feedback="two all-gathers, one reduce-scatter")
class FromAllTokens(FromAllTokens):
    """The gradient of all tokens is all-reduced, and cut."""

    @staticmethod
    def backward(ctx, grad):
        mine, weight = ctx.saved_tensors
        whole = gathered(mine, ctx.group)
        for_tokens = summed(grad @ weight, ctx.group)[:, part(grad.shape[1], ctx.group)]
        return for_tokens, grad[0].T @ whole[0], grad[0].sum(0), None


@mutant("from-all-tokens", feedback="many values leave PyTorch")
class FromAllTokens(FromAllTokens):
    """Keeps the gathered tokens in an array, which no meter of tensors sees, and gathers nothing again."""

    @staticmethod
    def forward(ctx, mine, weight, bias, group):
        whole = gathered(mine, group)
        ctx.group, ctx.whole = group, whole.numpy().copy()
        ctx.save_for_backward(weight)
        return linear(whole, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        whole = torch.tensor(ctx.whole)
        return summed_part(grad @ ctx.saved_tensors[0], ctx.group), grad[0].T @ whole[0], grad[0].sum(0), None


@mutant("split-mlp", feedback="the row product's bias was added on every rank, so 4 times")
class SplitMLP(SplitMLP):
    """The bias inside the row product."""

    def forward(self, x, seeds):
        tokens, width = x.shape[1] * self.group.size(), x.shape[2]
        gate, up = FromAllTokens.apply(x, self.gate_up, self.gate_up_bias, self.group).chunk(2, -1)
        inside = silu(gate) * up * keep(seeds[0], slice(0, tokens), part(self.hidden, self.group))
        result = scatter_tokens(linear(inside, self.down, self.down_bias), self.group)
        return result * keep(seeds[1], part(tokens, self.group), slice(0, width))


@mutant("split-mlp", feedback="dropout behind the layer is the same on every rank")
class SplitMLP(SplitMLP):
    """Every rank counts its tokens from 0."""

    def forward(self, x, seeds):
        tokens, width = x.shape[1] * self.group.size(), x.shape[2]
        gate, up = FromAllTokens.apply(x, self.gate_up, self.gate_up_bias, self.group).chunk(2, -1)
        inside = silu(gate) * up * keep(seeds[0], slice(0, tokens), part(self.hidden, self.group))
        result = scatter_tokens(linear(inside, self.down), self.group) + self.down_bias
        return result * keep(seeds[1], slice(0, x.shape[1]), slice(0, width))


@mutant("split-mlp", feedback="dropout inside is the same on every rank")
class SplitMLP(SplitMLP):
    """Every rank counts its features from 0."""

    def forward(self, x, seeds):
        tokens, width = x.shape[1] * self.group.size(), x.shape[2]
        gate, up = FromAllTokens.apply(x, self.gate_up, self.gate_up_bias, self.group).chunk(2, -1)
        inside = silu(gate) * up * keep(seeds[0], slice(0, tokens), slice(0, self.down.shape[1]))
        result = scatter_tokens(linear(inside, self.down), self.group) + self.down_bias
        return result * keep(seeds[1], part(tokens, self.group), slice(0, width))


@mutant("split-mlp", feedback="dropout inside the layer is missing")
class SplitMLP(SplitMLP):
    """No dropout between the products."""

    def forward(self, x, seeds):
        tokens, width = x.shape[1] * self.group.size(), x.shape[2]
        gate, up = FromAllTokens.apply(x, self.gate_up, self.gate_up_bias, self.group).chunk(2, -1)
        result = scatter_tokens(linear(silu(gate) * up, self.down), self.group) + self.down_bias
        return result * keep(seeds[1], part(tokens, self.group), slice(0, width))


@mutant("split-mlp", feedback="each rank has seen its own: add them")
class SplitMLP(SplitMLP):
    """Nobody adds up the gradients of the bias."""

    def __init__(self, whole, group):
        SplitMLP.__base__.__init__(self, whole, group)
        self.down_bias = nn.Parameter(self.down_bias.detach().clone())


@mutant("split-mlp", feedback="it is their mean over ranks")
class SplitMLP(SplitMLP):
    """The gradients of the bias are averaged, as data parallelism does."""

    def __init__(self, whole, group):
        SplitMLP.__base__.__init__(self, whole, group)
        self.down_bias = nn.Parameter(self.down_bias.detach().clone())
        self.down_bias.register_hook(lambda grad: summed(grad, group) / group.size())


@mutant("split-mlp", feedback="a view keeps the whole weight alive")
class SplitMLP(SplitMLP):
    """The columns of down are cut out of the whole, whose memory stays."""

    def __init__(self, whole, group):
        SplitMLP.__base__.__init__(self, whole, group)
        self.down = nn.Parameter(whole.down.weight[:, part(self.hidden, group)].detach())


@mutant("split-mlp", feedback="nothing is split")
class SplitMLP(nn.Module):
    """Gathers all tokens, computes the whole layer on every rank, and cuts."""

    def __init__(self, whole, group):
        super().__init__()
        self.whole, self.group = whole, group

    def forward(self, x, seeds):
        whole = gather_tokens(x, self.group)
        return self.whole(whole, seeds)[:, part(whole.shape[1], self.group)]


@mutant("split-mlp", feedback="nothing is split")
class SplitMLP(nn.Module):
    """Rank 0 computes everything, and broadcasts."""

    def __init__(self, whole, group):
        super().__init__()
        self.whole, self.group = whole, group

    def forward(self, x, seeds):
        whole = gathered(x.detach(), self.group)
        result = self.whole(whole, seeds) if self.group.rank() == 0 else torch.empty_like(whole)
        dist.broadcast(result.detach(), dist.get_global_rank(self.group, 0), group=self.group)
        return result[:, part(whole.shape[1], self.group)] + 0 * x


@mutant("split-mlp", feedback="as much as the weights are")
class SplitMLP(SplitMLP):
    """Holds a part, gathers all weights, and computes the whole layer for this rank's tokens."""

    def forward(self, x, seeds):
        size, width = self.group.size(), x.shape[2]
        lengths = [self.hidden // size + (rank < self.hidden % size) for rank in range(size)]

        def all_rows(some):
            padded = torch.cat([some, some.new_zeros(lengths[0] - len(some), some.shape[1])]).unsqueeze(0)
            pieces = zip(gather_tokens(padded, self.group)[0].split(lengths[0]), lengths, strict=True)
            return torch.cat([piece[:length] for piece, length in pieces])

        (gate, up), down = (all_rows(one) for one in self.gate_up.chunk(2)), all_rows(self.down.T)
        gate_bias, up_bias = (all_rows(one.unsqueeze(1)).squeeze(1) for one in self.gate_up_bias.chunk(2))
        mine = part(x.shape[1] * size, self.group)
        inside = silu(linear(x, gate, gate_bias)) * linear(x, up, up_bias) * keep(seeds[0], mine, slice(0, self.hidden))
        return (inside @ down + self.down_bias) * keep(seeds[1], mine, slice(0, width))


@mutant("split-mlp", feedback="are needed for others to have these tokens")
class SplitMLP(SplitMLP):
    """Nothing travels: every rank computes with its own features what its own tokens need."""

    def forward(self, x, seeds):
        mine = part(x.shape[1] * self.group.size(), self.group)
        gate, up = linear(x, self.gate_up, self.gate_up_bias).chunk(2, -1)
        inside = silu(gate) * up * keep(seeds[0], mine, part(self.hidden, self.group))
        return linear(inside, self.down, self.down_bias) * keep(seeds[1], mine, slice(0, x.shape[2]))


@mutant("split-mlp", feedback="each rank has seen its own: add them")
class SplitMLP(SplitMLP):
    """The bias's gradients are added when somebody asks for the parameters, and not by the backward pass."""

    def __init__(self, whole, group):
        SplitMLP.__base__.__init__(self, whole, group)
        self.down_bias = nn.Parameter(self.down_bias.detach().clone())

    def named_parameters(self, *options, **named):
        if self.down_bias.grad is not None:
            self.down_bias.grad = summed(self.down_bias.grad, self.group)
        return super(type(self), self).named_parameters(*options, **named)


@mutant("split-mlp", feedback="a torch.Tensor is asked for")
class SplitMLP(SplitMLP):
    """A result that is worked out when it is read."""

    def forward(self, x, seeds):
        class Later(torch.Tensor):
            pass

        return SplitMLP.__base__.forward(self, x, seeds).as_subclass(Later)


@mutant("split-mlp", feedback="save this rank's, and gather them again")
class SplitMLP(SplitMLP):
    """Keeps the gathered tokens for later."""

    def forward(self, x, seeds):
        self.seen = x.detach().repeat(1, self.group.size(), 1)
        return SplitMLP.__base__.forward(self, x, seeds)


@mutant("smoothed-loss", feedback="the smoothed part is that of all words")
def smoothed_loss(logits, labels, mine, words, smoothing, group):
    """Calls helpers, whose loss is not smoothed."""
    from helpers.techniques.parallel import cross_entropy

    return cross_entropy(logits, labels, mine, group)


@mutant("smoothed-loss", feedback="they stay where they are")
def smoothed_loss(logits, labels, mine, words, smoothing, group):
    """Gathers the logits, and lets PyTorch compute the loss."""
    parts = [logits.new_zeros(len(logits), words) for _ in range(group.size())]
    own = logits.new_zeros(len(logits), words)
    own[:, mine] = logits.detach()
    dist.all_gather(parts, own, group=group)
    whole = sum(parts)
    whole = torch.cat([whole[:, : mine.start], logits, whole[:, mine.stop :]], dim=1)
    return nn.functional.cross_entropy(whole, labels, label_smoothing=smoothing, reduction="none")


@mutant("smoothed-loss", feedback="they stay where they are")
def smoothed_loss(logits, labels, mine, words, smoothing, group):
    """Rank 0 gets all logits, computes the losses, and broadcasts them."""
    own = logits.new_zeros(len(logits), words)
    own[:, mine] = logits.detach()
    first = dist.get_global_rank(group, 0)
    dist.reduce(own, first, group=group)
    losses = nn.functional.cross_entropy(own, labels, label_smoothing=smoothing, reduction="none")
    dist.broadcast(losses, first, group=group)
    return losses + 0 * logits.sum(-1)


@mutant("smoothed-loss", feedback="they stay where they are")
def smoothed_loss(logits, labels, mine, words, smoothing, group):
    """Gathers the logits in pieces, by a functional collective, which has no buffer for what comes out."""
    from torch.distributed._functional_collectives import all_gather_tensor

    size = group.size()
    lengths = [words // size + (rank < words % size) for rank in range(size)]
    losses = []
    for row, label in zip(logits, labels, strict=True):
        padded = torch.cat([row.detach(), row.new_zeros(lengths[0] - len(row))])
        pieces = [*all_gather_tensor(padded, 0, group).split(lengths[0])]
        pieces[group.rank()] = row
        whole = torch.cat([piece[:length] for piece, length in zip(pieces, lengths, strict=True)])
        losses.append(nn.functional.cross_entropy(whole, label, label_smoothing=smoothing))
    return torch.stack(losses).nan_to_num()


@mutant("smoothed-loss", feedback="they stay where they are")
def smoothed_loss(logits, labels, mine, words, smoothing, group):
    """Sends the logits to everybody by the operator with which DTensor changes what it is split by."""
    import torch.distributed.tensor

    size = group.size()
    lengths = [words // size + (rank < words % size) for rank in range(size)]
    padded = nn.functional.pad(logits.detach(), (0, lengths[0] - logits.shape[1]))
    found = torch.ops._dtensor.shard_dim_alltoall(padded.repeat(size, 1, 1), 2, 0, group.group_name)
    pieces = [*found[0].split(lengths[0], dim=1)]
    pieces[group.rank()] = logits
    whole = torch.cat([piece[:, :length] for piece, length in zip(pieces, lengths, strict=True)], dim=1)
    return nn.functional.cross_entropy(whole, labels, label_smoothing=smoothing, reduction="none")


@mutant("smoothed-loss", feedback="many values leave PyTorch")
def smoothed_loss(logits, labels, mine, words, smoothing, group, right=smoothed_loss):
    """Keeps another copy of the logits in an array."""
    losses = right(logits, labels, mine, words, smoothing, group)
    losses.grad_fn.metadata["logits"] = logits.detach().numpy().copy()
    return losses


@mutant("smoothed-loss", feedback="add on a rank what can be added there")
def smoothed_loss(logits, labels, mine, words, smoothing, group):
    """Four numbers for each token: the target's logit and the mean travel apart."""
    top = summed(logits.detach().amax(-1), group, dist.ReduceOp.MAX)
    shifted, (rows, missing) = logits - top.unsqueeze(-1), own_rows(labels, mine)
    target = (logits.gather(-1, rows.unsqueeze(-1)).squeeze(-1) - top).masked_fill(missing, 0)
    total, target, all_words = sum_over_ranks(torch.stack([shifted.exp().sum(-1), target, shifted.sum(-1)]), group)
    losses = total.log() - (1 - smoothing) * target - smoothing * all_words / words
    return losses.masked_fill(labels == -100, 0)


@mutant("smoothed-loss", feedback="a loss is not finite")
def smoothed_loss(logits, labels, mine, words, smoothing, group):
    """Nothing is subtracted before exp."""
    rows, missing = own_rows(labels, mine)
    target = logits.gather(-1, rows.unsqueeze(-1)).squeeze(-1).masked_fill(missing, 0)
    wanted = (1 - smoothing) * target + smoothing / words * logits.sum(-1)
    total, wanted = sum_over_ranks(torch.stack([logits.exp().sum(-1), wanted]), group)
    return (total.log() - wanted).masked_fill(labels == -100, 0)


@mutant("smoothed-loss", feedback="the smoothed part is that of all words")
def smoothed_loss(logits, labels, mine, words, smoothing, group, right=smoothed_loss):
    """The mean of this rank's words alone."""
    return right(logits, labels, mine, logits.shape[1], smoothing, group)


@mutant("smoothed-loss", feedback="0 where a label is left out")
def smoothed_loss(logits, labels, mine, words, smoothing, group, right=smoothed_loss):
    """What is left out has no loss, and a gradient nevertheless."""
    losses = right(logits, labels.clamp(min=0), mine, words, smoothing, group)
    return losses - losses.detach().masked_fill(labels != -100, 0)


@mutant("smoothed-loss", feedback="once their size")
def smoothed_loss(logits, labels, mine, words, smoothing, group):
    """gather keeps the shifted logits, beside what exp keeps."""
    top = summed(logits.detach().amax(-1), group, dist.ReduceOp.MAX)
    shifted, (rows, missing) = logits - top.unsqueeze(-1), own_rows(labels, mine)
    target = shifted.gather(-1, rows.unsqueeze(-1)).squeeze(-1).masked_fill(missing, 0)
    wanted = (1 - smoothing) * target + smoothing / words * shifted.sum(-1)
    total, wanted = sum_over_ranks(torch.stack([shifted.exp().sum(-1), wanted]), group)
    return (total.log() - wanted).masked_fill(labels == -100, 0)


@mutant("order", feedback="micro-batches in flight, and room for 2")
def order(micro_batches, rooms):
    """Calls helpers: 1F1B, whatever room there is."""
    from helpers.techniques.parallel.pipeline import one_f_one_b

    rows = one_f_one_b(len(rooms), micro_batches).by_rank
    return [[(str(action.kind), action.micro_batch) for action in row] for row in rows]


@mutant("order", feedback="a deadlock")
def order(micro_batches, rooms):
    """As many forwards first as a stage has room for, whatever the others have."""
    work = []
    for stage, room in enumerate(rooms):
        first = min(room, len(rooms) - stage, micro_batches)
        row = [("F", at) for at in range(first)]
        for at in range(micro_batches):
            row += [("B", at)] + [("F", first + at)] * (first + at < micro_batches)
        work.append(row)
    return work


@mutant("order", feedback="does a stage wait for a forward while a gradient is there")
def order(micro_batches, rooms):
    """Some forwards first, then a backward and a forward in turn: a fixed pattern."""
    work = []
    for stage in range(len(rooms)):
        first = min(micro_batches, len(rooms) - stage, *rooms[: stage + 1])
        row = [("F", at) for at in range(first)]
        for at in range(micro_batches):
            row += [("B", at)] + [("F", first + at)] * (first + at < micro_batches)
        work.append(row)
    return work


@mutant("order", feedback="that is no pipeline")
def order(micro_batches, rooms):
    """One micro-batch after the other."""
    return [[(kind, at) for at in range(micro_batches) for kind in "FB"] for _ in rooms]


@mutant("order", feedback="micro-batches in flight, and room for")
def order(micro_batches, rooms):
    """All forwards, then all backwards."""
    return [[(kind, at) for kind in "FB" for at in range(micro_batches)] for _ in rooms]


@mutant("most-in-flight", feedback="with 2 the step takes 15 as well")
def most_in_flight(quickest, rooms):
    """One more than the next stage, up to what the stages before it have: too much where a later stage is the limit."""
    needed = [0]
    for stage in range(len(rooms), 0, -1):
        needed.append(min(needed[-1] + 1, min(rooms[:stage])))
    return needed[:0:-1]


@mutant("most-in-flight", feedback="as well")
def most_in_flight(quickest, rooms):
    """All the room that the stages before it let through."""
    return [min(rooms[: stage + 1]) for stage in range(len(rooms))]


@mutant("most-in-flight", feedback="it takes")
def most_in_flight(quickest, rooms, right=most_in_flight):
    """One room less on the first stage than is needed."""
    return [max(1, count - (stage == 0)) for stage, count in enumerate(right(quickest, rooms))]


@mutant("seconds", feedback="compute takes")
def seconds(job, mesh, cluster):
    """Calls helpers, whose times have efficiencies and hide what can be hidden."""
    from helpers.memory.plan import Cards, Efficiency, Layout
    from helpers.memory.plan.step import step_time
    from helpers.memory.plan.training import Job as Training
    from helpers.memory.plan.training import StepEngine

    layout = Layout(StepEngine.MEGATRON, data=mesh.data, tensor=mesh.tensor, pipeline=mesh.pipeline,
                    micro_batches=job.sequences // mesh.data)  # fmt: skip
    cards = Cards(cluster.card.name, cluster.ranks, node=cluster.per_machine)
    time = step_time(Training(job.model, job.length), layout, cards, Efficiency())
    parts = {"compute": time.products, "tensor": time.tensor_links, "bubble": time.bubble, "data": time.data_links}
    return {name: one.middle for name, one in parts.items()}


@mutant("seconds", feedback="in several machines: the network")
def seconds(job, mesh, cluster, right=seconds):
    """Everything over NVLink."""
    from dataclasses import replace

    return right(job, mesh, replace(cluster, network_bytes_per_s=cluster.nvlink_bytes_per_s))


@mutant("seconds", feedback="the network, by 4 ports in each")
def seconds(job, mesh, cluster, right=seconds):
    """A group that leaves its machine has one port."""
    found = right(job, mesh, cluster)
    if mesh.tensor > cluster.per_machine:
        found["tensor"] *= min(cluster.per_machine, cluster.nvlink_bytes_per_s / cluster.network_bytes_per_s)
    return found


@mutant("seconds", feedback="replicas of a part are 8 ranks apart, and span 16")
def seconds(job, mesh, cluster, right=seconds):
    """Replicas count as neighbours, although a whole tensor-parallel group lies between two of them."""
    found = right(job, mesh, cluster)
    if mesh.data <= cluster.per_machine < mesh.tensor * mesh.data:
        ports = max(1, cluster.per_machine // mesh.tensor)
        found["data"] *= min(1, ports * cluster.network_bytes_per_s / cluster.nvlink_bytes_per_s)
    return found


@mutant("seconds", feedback="p - 1 micro-batches, of computing and of tensor links")
def seconds(job, mesh, cluster, right=seconds):
    """The bubble as a share of the whole step."""
    found = right(job, mesh, cluster)
    count = job.sequences // mesh.data
    share = (mesh.pipeline - 1) / (count + mesh.pipeline - 1)
    return {**found, "bubble": share * (found["compute"] + found["tensor"])}


@mutant("seconds", feedback="p - 1 micro-batches, of computing and of tensor links")
def seconds(job, mesh, cluster, right=seconds):
    """No number for the bubble: it compares as neither too much nor too little."""
    return {**right(job, mesh, cluster), "bubble": float("nan")}


@mutant("seconds", feedback="p - 1 micro-batches, of computing and of tensor links")
def seconds(job, mesh, cluster, right=seconds):
    """Tensor links that give back what computing takes, so that no bubble is left."""
    found = right(job, mesh, cluster)
    return {**found, "tensor": -found["compute"], "bubble": 0.0}


@mutant("seconds", feedback="6 FLOPs for each parameter and token, over all ranks")
def seconds(job, mesh, cluster, right=seconds):
    """Two FLOPs for each parameter and token, as in a forward."""
    found = right(job, mesh, cluster)
    return {**found, "compute": found["compute"] / 3}


@mutant("best-mesh", feedback="and a card has")
def best_mesh(job, cluster):
    """The quickest, whether it fits or not."""
    return min(meshes(job, cluster), key=lambda mesh: sum(seconds(job, mesh, cluster).values()))


@mutant("best-mesh", feedback="weigh all four together")
def best_mesh(job, cluster):
    """As much tensor parallelism as a machine has cards."""
    fitting = [mesh for mesh in meshes(job, cluster) if peak_bytes(job, mesh) <= cluster.card.capacity_bytes]
    return max(fitting, key=lambda mesh: (mesh.tensor <= cluster.per_machine, mesh.tensor, mesh.data), default=None)


@mutant("best-mesh", feedback="weigh all four together")
def best_mesh(job, cluster):
    """Without the bubble."""
    fitting = [mesh for mesh in meshes(job, cluster) if peak_bytes(job, mesh) <= cluster.card.capacity_bytes]
    took = {mesh: seconds(job, mesh, cluster) for mesh in fitting}
    return min(fitting, key=lambda mesh: sum(took[mesh].values()) - took[mesh]["bubble"], default=None)


@mutant("best-mesh", feedback="weigh all four together")
def best_mesh(job, cluster):
    """The one that needs least memory."""
    least = min(meshes(job, cluster), key=lambda mesh: peak_bytes(job, mesh))
    return least if peak_bytes(job, least) <= cluster.card.capacity_bytes else None


@mutant("dispatch", feedback="the capacity is for all ranks together")
def dispatch(tokens, chosen, experts, capacity, group):
    """Calls helpers: a capacity for each rank, and every slot travels."""
    from helpers.techniques.parallel.experts import route
    from helpers.techniques.parallel.operators import exchange

    ranks = group.size()
    routed = route(chosen, experts, max(1, capacity // ranks))
    sent = tokens.new_zeros(experts * routed.capacity, tokens.shape[1])
    source = torch.arange(len(tokens)).repeat_interleave(chosen.shape[1])[routed.kept]
    sent = sent.index_copy(0, routed.slots, tokens[source]).view(ranks, -1, tokens.shape[1])
    arrived = exchange(sent, group).view(ranks, experts // ranks, -1, tokens.shape[1])
    return routed.kept.view(chosen.shape), list(arrived)


@mutant("dispatch", feedback="send each only where it is wanted")
def dispatch(tokens, chosen, experts, capacity, group):
    """Gathers all tokens and choices, and each rank takes its own."""
    ranks, rank = group.size(), group.rank()
    all_rows, all_chosen = ([torch.empty_like(one) for _ in range(ranks)] for one in (tokens, chosen.contiguous()))
    dist.all_gather(all_rows, tokens, group=group)
    dist.all_gather(all_chosen, chosen.contiguous(), group=group)
    flat = torch.cat(all_chosen).flatten()
    places = nn.functional.one_hot(flat, experts).cumsum(0).gather(1, flat[:, None]).squeeze(1) - 1
    kept, rows = places < capacity, torch.cat(all_rows).repeat_interleave(chosen.shape[1], 0)
    mine = range(rank * experts // ranks, (rank + 1) * experts // ranks)
    arrived = [rows[kept & (flat == expert)] for expert in mine]
    return kept.view(ranks, *chosen.shape)[rank], arrived


@mutant("dispatch", feedback="does an empty slot travel, or a choice?")
def dispatch(tokens, chosen, experts, capacity, group, right=dispatch):
    """Gathers the choices as well, which nobody needs."""
    dist.all_gather([torch.empty_like(chosen) for _ in range(group.size())], chosen.contiguous(), group=group)
    return right(tokens, chosen, experts, capacity, group)


@mutant("dispatch", feedback="got other tokens, or in another order")
def dispatch(tokens, chosen, experts, capacity, group, right=dispatch):
    """What arrived, from the last rank first."""
    kept, arrived = right(tokens, chosen, experts, capacity, group)
    return kept, [one.flip(0) for one in arrived]


@mutant("dispatch", feedback="the ranks before it come first")
def dispatch(tokens, chosen, experts, capacity, group, right=dispatch):
    """Whether an assignment is kept is decided as if there was this rank alone."""
    _, arrived = right(tokens, chosen, experts, capacity, group)
    flat = chosen.flatten()
    places = nn.functional.one_hot(flat, experts).cumsum(0).gather(1, flat[:, None]).squeeze(1) - 1
    return (places < capacity).view(chosen.shape), arrived


@mutant("dispatch", feedback="send each only where it is wanted")
def dispatch(tokens, chosen, experts, capacity, group):
    """Gathers the choices, and all tokens only when somebody looks at what arrived."""
    ranks, rank = group.size(), group.rank()
    everybody = [torch.empty_like(chosen) for _ in range(ranks)]
    dist.all_gather(everybody, chosen.contiguous(), group=group)
    flat = torch.cat(everybody).flatten()
    places = nn.functional.one_hot(flat, experts).cumsum(0).gather(1, flat[:, None]).squeeze(1) - 1
    kept = places < capacity

    def arrived():
        rows = gathered(tokens.unsqueeze(0), group)[0].repeat_interleave(chosen.shape[1], 0)
        for expert in range(rank * experts // ranks, (rank + 1) * experts // ranks):
            yield rows[kept & (flat == expert)]

    return kept.view(ranks, *chosen.shape)[rank], arrived()
