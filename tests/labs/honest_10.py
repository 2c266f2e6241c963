"""Right answers to lab 10, as honest people write them: each is named after the answer that it replaces.

All must get full points. They are put into the answer's cell, where the lab's names are defined.
"""

# ruff: noqa: F821  (they run where the lab's names are defined)

from __future__ import annotations


class FromAllTokens_by_lists(torch.autograd.Function):  # noqa: N801 - named after the answer
    """Lists of tensors, einsum, and torch's own collectives."""

    @staticmethod
    def forward(ctx, mine, weight, bias, group):
        ctx.mine, ctx.weight, ctx.group = mine, weight, group
        return nn.functional.linear(FromAllTokens_by_lists.all_of(mine, group), weight, bias)

    @staticmethod
    def all_of(mine, group):
        parts = [torch.empty_like(mine) for _ in range(group.size())]
        dist.all_gather(parts, mine.contiguous(), group=group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx, grad):
        whole, count = FromAllTokens_by_lists.all_of(ctx.mine, ctx.group), ctx.group.size()
        for_weight = torch.einsum("bto,btw->ow", grad, whole)
        pieces = [piece.contiguous() for piece in (grad @ ctx.weight).chunk(count, dim=1)]
        for_mine = torch.empty_like(ctx.mine)
        dist.reduce_scatter(for_mine, pieces, group=ctx.group)
        return for_mine, for_weight, grad.sum(dim=(0, 1)), None


class FromAllTokens_when_wanted(torch.autograd.Function):  # noqa: N801 - named after the answer
    """Looks at what is wanted, and forgets what it gathered at once."""

    @staticmethod
    def forward(ctx, mine, weight, bias, group):
        ctx.save_for_backward(mine, weight)
        ctx.group = group
        whole = gathered(mine, group)
        found = torch.addmm(bias, whole.squeeze(0), weight.t())
        del whole
        return found.unsqueeze(0)

    @staticmethod
    def backward(ctx, grad):
        mine, weight = ctx.saved_tensors
        for_mine = for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            for_mine = summed_part(torch.matmul(grad, weight), ctx.group)
        if ctx.needs_input_grad[1]:
            for_weight = torch.mm(grad.squeeze(0).t(), gathered(mine, ctx.group).squeeze(0))
        if ctx.needs_input_grad[2]:
            for_bias = grad.flatten(0, 1).sum(0)
        return for_mine, for_weight, for_bias, None


class FromAllTokens_functional(torch.autograd.Function):  # noqa: N801 - named after the answer
    """Functional collectives, which return what they gather; einsum."""

    @staticmethod
    def forward(ctx, mine, weight, bias, group):
        from torch.distributed._functional_collectives import all_gather_tensor

        ctx.group = group
        ctx.save_for_backward(mine, weight)
        return torch.einsum("btw,ow->bto", all_gather_tensor(mine, 1, group), weight) + bias

    @staticmethod
    def backward(ctx, grad):
        from torch.distributed._functional_collectives import all_gather_tensor, reduce_scatter_tensor

        mine, weight = ctx.saved_tensors
        whole = all_gather_tensor(mine, gather_dim=1, group=ctx.group)
        for_mine = reduce_scatter_tensor(grad @ weight, "sum", 1, ctx.group)
        return for_mine, torch.einsum("bto,btw->ow", grad, whole), grad.sum((0, 1)), None


class FromAllTokens_around_a_ring(torch.autograd.Function):  # noqa: N801 - named after the answer
    """Sends and receives around a ring, and a reduce-scatter that is an all-to-all."""

    @staticmethod
    def forward(ctx, mine, weight, bias, group):
        ctx.group = group
        ctx.save_for_backward(mine, weight)
        return linear(FromAllTokens_around_a_ring.all_of(mine, group), weight, bias)

    @staticmethod
    def all_of(mine, group):
        size, rank = group.size(), group.rank()
        behind, ahead = (dist.get_global_rank(group, (rank + by) % size) for by in (1, -1))
        parts = {rank: mine.contiguous()}
        for step in range(size - 1):
            came = torch.empty_like(parts[rank])
            both = [
                dist.P2POp(dist.isend, parts[(rank - step) % size], behind, group),
                dist.P2POp(dist.irecv, came, ahead, group),
            ]
            for work in dist.batch_isend_irecv(both):
                work.wait()
            parts[(rank - step - 1) % size] = came
        return torch.cat([parts[each] for each in range(size)], dim=1)

    @staticmethod
    def backward(ctx, grad):
        mine, weight = ctx.saved_tensors
        whole = FromAllTokens_around_a_ring.all_of(mine, ctx.group)
        pieces = torch.stack((grad @ weight).chunk(ctx.group.size(), 1))
        came = torch.empty_like(pieces)
        dist.all_to_all_single(came, pieces, group=ctx.group)
        return came.sum(0), grad[0].T @ whole[0], grad[0].sum(0), None


class SplitMLP_by_hooks(nn.Module):  # noqa: N801 - named after the answer
    """No Function of its own: hooks on what is saved put this rank's tokens in the place of all."""

    def __init__(self, whole, group):
        super().__init__()
        self.size, self.rank, self.group = group.size(), group.rank(), group
        self.hidden = whole.gate.out_features
        rows = part(self.hidden, group)
        with torch.no_grad():
            for name in ("weight", "bias"):
                both = torch.cat([getattr(layer, name)[rows] for layer in (whole.gate, whole.up)])
                setattr(self, "gate_up" if name == "weight" else "gate_up_bias", nn.Parameter(both))
            self.down = nn.Parameter(whole.down.weight[:, rows].clone())
            self.down_bias = nn.Parameter(whole.down.bias.clone())
        self.down_bias.register_post_accumulate_grad_hook(self.add_up)

    def add_up(self, parameter):
        dist.all_reduce(parameter.grad, group=self.group)

    def forward(self, x, seeds):
        tokens, own, width = self.size * x.shape[1], x.shape[1], x.shape[-1]
        mine, columns, again = x.detach(), part(self.hidden, self.group), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda kept: again if kept.numel() == tokens * width else kept,
            lambda kept: gathered(mine, self.group).view(tokens, width) if kept is again else kept,
        ):
            both = nn.functional.linear(gather_tokens(x, self.group), self.gate_up, self.gate_up_bias)
        gate, up = both[..., : both.shape[-1] // 2], both[..., both.shape[-1] // 2 :]
        inside = nn.functional.silu(gate) * up * keep(seeds[0], slice(0, tokens), columns)
        out = scatter_tokens(inside @ self.down.T, self.group) + self.down_bias
        return out * keep(seeds[1], slice(own * self.rank, own * (self.rank + 1)), slice(0, width))


class SplitMLP_in_steps(nn.Module):  # noqa: N801 - named after the answer
    """Numbers on self, slices by hand, and a print that was left over."""

    def __init__(self, whole, group):
        super().__init__()
        hidden, size, rank = whole.up.out_features, dist.get_world_size(group), dist.get_rank(group)
        starts = [0]
        for each in range(size):
            starts.append(starts[-1] + hidden // size + (each < hidden % size))
        self.first, self.last, self.group, self.size, self.rank = starts[rank], starts[rank + 1], group, size, rank
        take = slice(self.first, self.last)
        self.gate_up = nn.Parameter(torch.vstack((whole.gate.weight.data[take], whole.up.weight.data[take])))
        self.gate_up_bias = nn.Parameter(torch.hstack((whole.gate.bias.data[take], whole.up.bias.data[take])))
        self.down = nn.Parameter(whole.down.weight.data[:, take].contiguous().clone())
        self.down_bias = nn.Parameter(whole.down.bias.data.clone())
        self.down_bias.register_hook(self.everybodys)
        print("rank", rank, "has", self.first, "to", self.last)

    def everybodys(self, grad):
        grad = grad.clone()
        dist.all_reduce(grad, op=dist.ReduceOp.SUM, group=self.group)
        return grad

    def forward(self, x, seeds):
        own, width = x.size(1), x.size(2)
        both = FromAllTokens.apply(x, self.gate_up, self.gate_up_bias, self.group)
        gate, up = both.split(self.last - self.first, dim=2)
        dropped = keep(seeds[0], slice(0, own * self.size), slice(self.first, self.last))
        product = torch.matmul(nn.functional.silu(gate).mul(up).mul(dropped), self.down.t())
        out = scatter_tokens(product, self.group).add(self.down_bias)
        return out.mul(keep(seeds[1], slice(own * self.rank, own * (self.rank + 1)), slice(0, width)))


class SplitMLP_with_its_share_of_the_bias(SplitMLP):  # noqa: N801 - named after the answer
    """Every rank adds its share of the bias, whose gradient then has all tokens: no all-reduce. Dropout by `where`."""

    def __init__(self, whole, group):
        SplitMLP_with_its_share_of_the_bias.__base__.__init__(self, whole, group)
        self.down_bias = nn.Parameter(self.down_bias.detach().clone())
        self.down_bias.register_hook(lambda grad: grad * group.size())

    def forward(self, x, seeds):
        size, tokens = self.group.size(), x.shape[1] * self.group.size()
        gate, up = FromAllTokens.apply(x, self.gate_up, self.gate_up_bias, self.group).chunk(2, -1)
        kept = keep(seeds[0], slice(0, tokens), part(self.hidden, self.group)) > 0
        inside = torch.where(kept, silu(gate) * up * 1.25, 0.0)
        result = scatter_tokens(linear(inside, self.down, self.down_bias / size), self.group)
        print(x)
        return result * keep(seeds[1], part(tokens, self.group), slice(0, x.shape[2]))


class SplitMLP_of_distributed_tensors(SplitMLP):  # noqa: N801 - named after the answer
    """A partial DTensor becomes one that is split by tokens; the bias's gradients are a partial one as well."""

    def __init__(self, whole, group):
        SplitMLP_of_distributed_tensors.__base__.__init__(self, whole, group)
        self.down_bias = nn.Parameter(self.down_bias.detach().clone())

    def forward(self, x, seeds):
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

        mesh, tokens = DeviceMesh.from_group(self.group, "cpu"), x.shape[1] * self.group.size()
        gate, up = FromAllTokens.apply(x, self.gate_up, self.gate_up_bias, self.group).chunk(2, -1)
        inside = silu(gate) * up * keep(seeds[0], slice(0, tokens), part(self.hidden, self.group))
        partial = DTensor.from_local(inside @ self.down.T, mesh, [Partial()])
        bias = DTensor.from_local(self.down_bias, mesh, [Replicate()]).to_local(grad_placements=[Partial()])
        result = partial.redistribute(mesh, [Shard(1)]).to_local() + bias
        return result * keep(seeds[1], part(tokens, self.group), slice(0, x.shape[2]))


def smoothed_loss_of_log_sums(logits, labels, mine, words, smoothing, group):
    """Log-sum-exps of all ranks are gathered; a function of one's own has the gradient."""
    here = torch.logsumexp(logits, -1).detach()
    parts = [torch.empty_like(here) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, here, group=group)
    whole = torch.logsumexp(torch.stack(parts), 0)
    inside = (labels >= mine.start) & (labels < mine.stop)
    at = torch.where(inside, labels - mine.start, 0)
    picked = torch.where(inside, logits[torch.arange(len(logits)), at], 0)
    wanted = sum_over_ranks((1 - smoothing) * picked + smoothing / words * logits.sum(-1), group)
    share = torch.exp(logits.detach() - whole[:, None])
    straight = (share * logits).sum(-1)
    losses = whole - wanted + straight - straight.detach()
    return torch.where(labels == -100, torch.zeros_like(losses), losses)


def smoothed_loss_as_a_function(logits, labels, mine, words, smoothing, group):
    """A Function, whose probabilities are made in place."""

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits):
            rows, missing = own_rows(labels, mine)
            top = logits.max(dim=-1).values
            dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
            picked = logits.gather(1, rows[:, None])[:, 0].masked_fill(missing, 0)
            wanted = (1 - smoothing) * picked + smoothing * logits.sum(-1) / words
            powers = (logits - top[:, None]).exp_()
            pair = torch.stack((powers.sum(-1), wanted))
            dist.all_reduce(pair, group=group)
            ctx.save_for_backward(powers.div_(pair[0][:, None]), rows, missing)
            return (pair[0].log() + top - pair[1]) * (labels != -100)

        @staticmethod
        def backward(ctx, grad):
            shares, rows, missing = ctx.saved_tensors
            grad = (grad * (labels != -100))[:, None]
            found = (shares - smoothing / words) * grad
            return found.scatter_add(1, rows[:, None], -(1 - smoothing) * grad.masked_fill(missing[:, None], 0))

    return Loss.apply(logits)


def smoothed_loss_in_place(logits, labels, mine, words, smoothing, group):
    """Subtracts in the logits themselves."""
    top = logits.detach().max(-1, keepdim=True).values
    dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
    shifted, (at, elsewhere) = logits.sub_(top), own_rows(labels, mine)
    target = shifted[torch.arange(len(labels)), at].masked_fill(elsewhere, 0)
    wanted = torch.einsum("tw->t", shifted) * (smoothing / words) + (1 - smoothing) * target
    total, wanted = sum_over_ranks(torch.cat([torch.exp(shifted).sum(1), wanted]), group).chunk(2)
    return torch.where(labels != -100, total.log() - wanted, torch.zeros_like(total))


def order_by_events(micro_batches, rooms):
    """A queue of what arrives when; the latest stage first."""
    import heapq

    stages = len(rooms)
    work = tuple([] for _ in range(stages))
    arrived = {"F": [set() for _ in rooms], "B": [set() for _ in rooms]}
    arrived["F"][0] = set(range(micro_batches))
    count, busy, events = {"F": [0] * stages, "B": [0] * stages}, [False] * stages, [(0, -1, "", 0)]
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, stage, kind, at = heapq.heappop(events)
            if stage < 0:
                continue
            busy[stage] = False
            if kind == "F":
                arrived["F" if stage + 1 < stages else "B"][min(stage + 1, stages - 1)].add(at)
            elif stage:
                arrived["B"][stage - 1].add(at)
        for stage in reversed(range(stages)):
            if busy[stage]:
                continue
            done_f, done_b = count["F"][stage], count["B"][stage]
            if done_b in arrived["B"][stage]:
                kind, at, takes = "B", done_b, 2
            elif done_f in arrived["F"][stage] and done_f - done_b < rooms[stage]:
                kind, at, takes = "F", done_f, 1
            else:
                continue
            count[kind][stage] += 1
            busy[stage] = True
            work[stage].append((kind, at))
            heapq.heappush(events, (now + takes, stage, kind, at))
    return work


def order_by_recursion(micro_batches, rooms):
    """What happens at a time, and then what happens from the next on."""
    last = len(rooms) - 1

    def from_time(now, counts, ends):
        if all(backwards == micro_batches for _, backwards in counts):
            return [()] * len(rooms)
        chosen = [()] * len(rooms)
        for stage, (forwards, backwards) in enumerate(counts):
            source = ("F", last, backwards) if stage == last else ("B", stage + 1, backwards)
            if ends.get(stage, 0) > now:
                continue
            if ends.get(source, now + 1) <= now:
                chosen[stage] = (("B", backwards),)
            elif forwards == micro_batches or forwards - backwards == rooms[stage]:
                continue
            elif stage == 0 or ends.get(("F", stage - 1, forwards), now + 1) <= now:
                chosen[stage] = (("F", forwards),)
        begun = {(kind, stage, at): now + 1 + (kind == "B") for stage, some in enumerate(chosen) for kind, at in some}
        busy = {stage: end for (_, stage, _), end in begun.items()}
        kinds = ["".join(kind for kind, _ in some) for some in chosen]
        counts = [(one + (kind == "F"), two + (kind == "B")) for (one, two), kind in zip(counts, kinds, strict=True)]
        return [some + rest for some, rest in zip(chosen, from_time(now + 1, counts, ends | begun | busy), strict=True)]

    return from_time(0, [(0, 0)] * len(rooms), {})


def order_in_arrays(micro_batches, rooms):
    """Arrays of NumPy for the ends; numbers of NumPy in the answer."""
    import numpy as np

    stages = len(rooms)
    ends = np.full((2, stages + 1, micro_batches + 1), np.inf)
    done, free, work, now = np.zeros((2, stages), dtype=int), np.zeros(stages), [[] for _ in rooms], 0
    while done[1].min() < micro_batches:
        for s in range(stages):
            f, b = done[:, s]
            source = ends[1, s + 1, b] if s < stages - 1 else ends[0, s, b]
            if free[s] <= now and source <= now:
                work[s].append(("B", b))
                done[1, s] += 1
                ends[1, s, b] = free[s] = now + 2
            elif free[s] <= now and f < micro_batches and f - b < rooms[s] and (s == 0 or ends[0, s - 1, f] <= now):
                work[s].append(("F", f))
                done[0, s] += 1
                ends[0, s, f] = free[s] = now + 1
        now += 1
    return work


def most_in_flight_by_halves(quickest, rooms):
    """The least room of a stage by bisection: more room never makes a step longer."""
    from bisect import bisect_left

    rooms = list(rooms)
    best = quickest(tuple(rooms))
    for stage in range(len(rooms))[::-1]:

        def is_enough(room, stage=stage):
            return quickest((*rooms[:stage], room, *rooms[stage + 1 :])) <= best

        rooms[stage] = 1 + bisect_left(range(1, rooms[stage]), True, key=is_enough)
    return tuple(rooms)


def most_in_flight_by_recursion(quickest, rooms):
    """One room less wherever it may be, the last stage first."""

    def fewer(rooms, stage):
        if stage < 0:
            return rooms
        less = (*rooms[:stage], rooms[stage] - 1, *rooms[stage + 1 :])
        if less[stage] < 1 or quickest(less) > limit:
            return fewer(rooms, stage - 1)
        return fewer(less, stage)

    limit = quickest(rooms)
    return list(fewer(tuple(rooms), len(rooms) - 1))


def seconds_by_hand(job, mesh, cluster):
    """Bytes first, then seconds, in another order; a print that was left over."""
    shape = job.model
    t, p, d = mesh.tensor, mesh.pipeline, mesh.data
    m = job.sequences / d
    fast, port, here = cluster.nvlink_bytes_per_s, cluster.network_bytes_per_s, cluster.per_machine
    tensor_link = fast if t <= here else min(fast, here * port)
    data_link = fast if t * d <= here else min(fast, (here // t or 1) * port)
    tensor_bytes = 2 * (t - 1) / t * (job.length * shape.hidden * 2) * 4 * (len(shape.layers) / p) * m
    data_bytes = 2 * (d - 1) / d * (2 * shape.parameters / (t * p))
    one = 6 * shape.parameters * job.length / (t * p) / cluster.flops_per_s + tensor_bytes / m / tensor_link
    print("one micro-batch takes", one)
    return {
        "data": data_bytes / data_link,
        "bubble": (p - 1) * one,
        "tensor": tensor_bytes / tensor_link,
        "compute": m * one - tensor_bytes / tensor_link,
    }


def best_mesh_in_a_loop(job, cluster):
    """A loop, the last of equals."""
    best, least = None, float("inf")
    for mesh in reversed(meshes(job, cluster)):
        if peak_bytes(job, mesh) > cluster.card.capacity_bytes:
            continue
        took = sum(seconds(job, mesh, cluster)[name] for name in ("compute", "tensor", "bubble", "data"))
        if took <= least:
            best, least = mesh, took
    return best


def dispatch_in_loops(tokens, chosen, experts, capacity, group):
    """Lists and loops, counts of 32 bits, and a generator of experts."""
    size, me, k = dist.get_world_size(group), dist.get_rank(group), chosen.shape[1]
    wishes = chosen.flatten().tolist()
    mine = torch.tensor([wishes.count(expert) for expert in range(experts)], dtype=torch.int32)
    table = torch.empty(size * experts, dtype=torch.int32)
    dist.all_gather_into_tensor(table, mine, group=group)
    counts = table.view(size, experts).tolist()
    room = [[0] * experts for _ in range(size)]
    for expert in range(experts):
        left = capacity
        for rank in range(size):
            room[rank][expert] = min(left, counts[rank][expert])
            left -= room[rank][expert]
    used, kept, rows = [0] * experts, [], [[] for _ in range(experts)]
    for at, expert in enumerate(wishes):
        fits = used[expert] < room[me][expert]
        kept.append(fits)
        if fits:
            used[expert] += 1
            rows[expert].append(at // k)
    each = experts // size
    sent = tokens[[row for some in rows for row in some]]
    outgoing = [sum(room[me][rank * each : (rank + 1) * each]) for rank in range(size)]
    incoming = [sum(room[rank][me * each : (me + 1) * each]) for rank in range(size)]
    came = torch.empty(sum(incoming), tokens.shape[1], dtype=tokens.dtype)
    dist.all_to_all_single(came, sent, incoming, outgoing, group=group)
    found, at = [[] for _ in range(each)], 0
    for rank in range(size):
        for expert in range(each):
            count = room[rank][me * each + expert]
            found[expert].append(came[at : at + count])
            at += count
    return torch.tensor(kept).reshape(chosen.shape), [torch.cat(some) for some in found]


def dispatch_by_running_sums(tokens, chosen, experts, capacity, group):
    """Running sums, and one expert after the other picked by a mask; the pair is a list."""
    ranks, me = group.size(), group.rank()
    hot = torch.zeros(chosen.numel(), experts, dtype=torch.long).scatter_(1, chosen.reshape(-1, 1), 1)
    parts = [torch.empty(experts, dtype=torch.long) for _ in range(ranks)]
    dist.all_gather(parts, hot.sum(dim=0), group=group)
    everybody = torch.stack(parts)
    before = everybody.cumsum(0) - everybody
    seat = (before[me] + hot.cumsum(0))[torch.arange(len(hot)), chosen.reshape(-1)]
    kept = seat <= capacity
    given = (torch.minimum(before + everybody, torch.tensor(capacity)) - before).clamp(min=0)
    owners = torch.arange(experts) * ranks // experts
    rows = torch.cat([tokens[(kept & (hot[:, one] > 0)).nonzero()[:, 0] // chosen.size(1)] for one in range(experts)])
    to = [int(given[me][owners == rank].sum()) for rank in range(ranks)]
    come = [int(given[rank][owners == me].sum()) for rank in range(ranks)]
    here = torch.empty((sum(come), tokens.size(1)), dtype=tokens.dtype)
    dist.all_to_all_single(here, rows, output_split_sizes=come, input_split_sizes=to, group=group)
    labels = torch.cat([torch.arange(experts)[owners == me].repeat_interleave(given[rank][owners == me])
                        for rank in range(ranks)])  # fmt: skip
    return [kept.reshape_as(chosen), [here[labels == one] for one in torch.arange(experts)[owners == me]]]


def dispatch_functional(tokens, chosen, experts, capacity, group):
    """Functional collectives, whose results are split as they come; bincount."""
    from torch.distributed._functional_collectives import all_gather_tensor, all_to_all_single

    size, rank, flat = group.size(), group.rank(), chosen.reshape(-1)
    table = all_gather_tensor(torch.bincount(flat, minlength=experts), 0, group).view(size, experts)
    room = (capacity - table.cumsum(0) + table).clamp(min=0).minimum(table)
    kept, rows = torch.zeros(len(flat), dtype=torch.bool), []
    for expert in range(experts):
        at = (flat == expert).nonzero()[:, 0][: int(room[rank, expert])]
        kept[at] = True
        rows.append(tokens[at // chosen.shape[1]])
    each = experts // size
    incoming = room[:, rank * each : (rank + 1) * each]
    came = all_to_all_single(
        torch.cat(rows), incoming.sum(1).tolist(), room[rank].view(size, -1).sum(1).tolist(), group
    )
    pieces = came.split(incoming.flatten().tolist())
    return kept.view_as(chosen), [torch.cat(pieces[expert::each]) for expert in range(each)]


def dispatch_by_sends(tokens, chosen, experts, capacity, group):
    """Arrays of NumPy, a send to each rank that gets something, and nothing for itself."""
    import numpy as np

    size, rank, k = group.size(), group.rank(), chosen.shape[1]
    flat, values, each = chosen.numpy().ravel(), tokens.numpy(), experts // size
    counts = [torch.empty(experts, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(counts, torch.from_numpy(np.bincount(flat, minlength=experts)), group=group)
    room = np.diff(np.minimum(np.stack(counts).cumsum(0), capacity), axis=0, prepend=0)
    seen, kept = np.zeros(experts, dtype=int), np.zeros(len(flat), dtype=bool)
    for at, expert in enumerate(flat):
        kept[at] = seen[expert] < room[rank, expert]
        seen[expert] += 1
    waiting, came = [], []
    for other in range(size):
        its = range(other * each, (other + 1) * each)
        rows = torch.from_numpy(np.concatenate([values[np.flatnonzero(kept & (flat == one)) // k] for one in its]))
        lengths = room[other, rank * each : (rank + 1) * each].tolist()
        buffer = rows if other == rank else torch.empty(sum(lengths), tokens.shape[1], dtype=tokens.dtype)
        if other != rank:
            both = ((dist.isend, rows), (dist.irecv, buffer))
            waiting += [
                dist.P2POp(how, what, dist.get_global_rank(group, other), group) for how, what in both if len(what)
            ]
        came.append(buffer.split(lengths))
    for work in dist.batch_isend_irecv(waiting) if waiting else ():
        work.wait()
    return kept.reshape(chosen.shape), (torch.cat(pieces) for pieces in zip(*came, strict=True))
