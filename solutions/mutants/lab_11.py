"""Known-wrong answers to lab 11. Each must fail its check, with the sentence that its learner then reads."""

# ruff: noqa: F821, F811  (they are put into the lab's cells, where these names are defined)

from helpers.course.mutants import mutant


@mutant("online", feedback="entropy at [")
class Online:
    """Calls helpers, whose state has no entropy."""

    def __init__(self, rows, width):
        from helpers.techniques.attention.online import Partial

        self.state = Partial(torch.zeros(rows, width), torch.full((rows, 1), -torch.inf), torch.zeros(rows, 1))

    def add(self, scores, values):
        from helpers.techniques.attention.online import Partial, merge

        if scores.shape[1] > 0:
            self.state = merge(self.state, Partial.of(scores, values))

    def merge(self, other):
        from helpers.techniques.attention.online import merge

        both = Online(*self.state.output.shape)
        both.state = merge(self.state, other.state)
        return both

    def finish(self):
        output, log_sum_exp = self.state.result()
        return output, log_sum_exp, torch.zeros_like(log_sum_exp)


@mutant("online", feedback="are pieces kept, or FP64?")
class Online:
    """Calls PyTorch's softmax, once all pieces are there."""

    def __init__(self, rows, width):
        self.pieces = [(torch.zeros(rows, 0), torch.zeros(0, width))]

    def add(self, scores, values):
        self.pieces.append((scores, values))

    def merge(self, other):
        both = Online(len(self.pieces[0][0]), self.pieces[0][1].shape[1])
        both.pieces = self.pieces + other.pieces
        return both

    def finish(self):
        scores, values = torch.cat([one for one, _ in self.pieces], 1), torch.cat([one for _, one in self.pieces])
        shares = scores.softmax(1).nan_to_num(0)
        return shares @ values, torch.logsumexp(scores, 1), torch.special.entr(shares).sum(1)


@mutant("online", feedback="many values leave PyTorch")
class Online:
    """Keeps the pieces as NumPy's arrays."""

    def __init__(self, rows, width):
        self.pieces = [(torch.zeros(rows, 0), torch.zeros(0, width))]

    def add(self, scores, values):
        self.pieces.append((scores.numpy().copy(), values.numpy().copy()))

    def merge(self, other):
        both = Online(len(self.pieces[0][0]), self.pieces[0][1].shape[1])
        both.pieces = self.pieces + other.pieces
        return both

    def finish(self):
        scores = torch.cat([torch.as_tensor(one) for one, _ in self.pieces], 1)
        values = torch.cat([torch.as_tensor(one) for _, one in self.pieces])
        shares = scores.softmax(1).nan_to_num(0)
        return shares @ values, torch.logsumexp(scores, 1), torch.special.entr(shares).sum(1)


@mutant("online", feedback="the process has grown by")
class Online:
    """Keeps the pieces where no operator has made a tensor."""

    def __init__(self, rows, width):
        self.shape, self.pieces = (rows, width), []

    def add(self, scores, values):
        import ctypes

        self.pieces.append([(ctypes.string_at(one.data_ptr(), one.nbytes), one.shape) for one in (scores, values)])

    def merge(self, other):
        both = Online(*self.shape)
        both.pieces = self.pieces + other.pieces
        return both

    def finish(self):
        found = [(torch.zeros(self.shape[0], 0), torch.zeros(0, self.shape[1]))]
        for piece in self.pieces:
            flat = [torch.frombuffer(bytearray(raw + bytes(4)), dtype=torch.float32)[:-1] for raw, _ in piece]
            found.append([one.reshape(shape) for one, (_, shape) in zip(flat, piece, strict=True)])
        scores, values = torch.cat([one for one, _ in found], 1), torch.cat([one for _, one in found])
        shares = scores.softmax(1).nan_to_num(0)
        return shares @ values, torch.logsumexp(scores, 1), torch.special.entr(shares).sum(1)


@mutant("online", feedback="are pieces kept, or FP64?")
class Online:
    """Keeps its sums in FP64."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf, dtype=torch.float64)
        self.total, self.inner = torch.zeros(rows).double(), torch.zeros(rows).double()
        self.output = torch.zeros(rows, width).double()

    def add(self, scores, values):
        if scores.shape[1] > 0:
            piece = Online(*self.output.shape)
            piece.maximum = scores.amax(1)
            e = torch.exp(scores - piece.maximum.nan_to_num(neginf=0)[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), -torch.special.entr(e).sum(1), e @ values
            vars(self).update(vars(self.merge(piece)))

    def merge(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def finish(self):
        total = self.total.clamp(min=1)  # it is 1 at least where a key has been seen, and 0 elsewhere
        return (
            (self.output / total[:, None]).float(),
            (self.maximum + self.total.log()).float(),
            (total.log() - self.inner / total).float(),
        )


@mutant("online", feedback="more than one piece?")
class Online:
    """Multiplies each value with each weight, and sums afterwards."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf)
        self.total, self.inner = torch.zeros(rows), torch.zeros(rows)  # sums of e and of e ln e
        self.output = torch.zeros(rows, width)  # the sum of e times value

    def add(self, scores, values):
        if scores.shape[1] > 0:
            piece = Online(*self.output.shape)
            piece.maximum = scores.amax(1)
            e = torch.exp(scores - piece.maximum.nan_to_num(neginf=0)[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), -torch.special.entr(e).sum(1), e @ values
            piece.output = (e[:, :, None] * values).sum(1)
            vars(self).update(vars(self.merge(piece)))

    def merge(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def finish(self):
        total = self.total.clamp(min=1)  # it is 1 at least where a key has been seen, and 0 elsewhere
        return self.output / total[:, None], self.maximum + self.total.log(), total.log() - self.inner / total


@mutant("online", feedback="when the maximum grows, what came before shrinks by exp(old − new)")
class Online:
    """Does not rescale what came before."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf)
        self.total, self.inner = torch.zeros(rows), torch.zeros(rows)  # sums of e and of e ln e
        self.output = torch.zeros(rows, width)  # the sum of e times value

    def add(self, scores, values):
        if scores.shape[1] > 0:
            piece = Online(*self.output.shape)
            piece.maximum = scores.amax(1)
            e = torch.exp(scores - piece.maximum.nan_to_num(neginf=0)[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), -torch.special.entr(e).sum(1), e @ values
            vars(self).update(vars(self.merge(piece)))

    def merge(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = (one.maximum > -torch.inf).float()
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def finish(self):
        total = self.total.clamp(min=1)  # it is 1 at least where a key has been seen, and 0 elsewhere
        return self.output / total[:, None], self.maximum + self.total.log(), total.log() - self.inner / total


@mutant("online", feedback="a piece below the maximum counts with exp(score − maximum of all)")
class Online:
    """Takes the maximum of the last piece, whatever came before."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf)
        self.total, self.inner = torch.zeros(rows), torch.zeros(rows)  # sums of e and of e ln e
        self.output = torch.zeros(rows, width)  # the sum of e times value

    def add(self, scores, values):
        if scores.shape[1] > 0:
            piece = Online(*self.output.shape)
            piece.maximum = scores.amax(1)
            e = torch.exp(scores - piece.maximum.nan_to_num(neginf=0)[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), -torch.special.entr(e).sum(1), e @ values
            vars(self).update(vars(self.merge(piece)))

    def merge(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.where(other.maximum > -torch.inf, other.maximum, self.maximum)
        for one in (self, other):
            shrink = torch.exp((one.maximum - both.maximum.nan_to_num(neginf=0)).clamp(max=0))
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def finish(self):
        total = self.total.clamp(min=1)  # it is 1 at least where a key has been seen, and 0 elsewhere
        return self.output / total[:, None], self.maximum + self.total.log(), total.log() - self.inner / total


@mutant("online", feedback="exp of more than 88 is inf: subtract the maximum first")
class Online:
    """Takes exp of the scores as they are."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf)
        self.total, self.inner = torch.zeros(rows), torch.zeros(rows)  # sums of e and of e ln e
        self.output = torch.zeros(rows, width)  # the sum of e times value

    def add(self, scores, values):
        if scores.shape[1] > 0:
            piece = Online(*self.output.shape)
            piece.maximum = torch.where(scores.amax(1) > -torch.inf, 0.0, -torch.inf)
            e = torch.exp(scores - piece.maximum.nan_to_num(neginf=0)[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), -torch.special.entr(e).sum(1), e @ values
            vars(self).update(vars(self.merge(piece)))

    def merge(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def finish(self):
        total = torch.where(self.total > 0, self.total, 1)
        return self.output / total[:, None], self.total.log(), total.log() - self.inner / total


@mutant("online", feedback="a row that has seen no key has a maximum of −inf, and −inf − (−inf) is NaN")
class Online:
    """Subtracts −inf from −inf."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf)
        self.total, self.inner = torch.zeros(rows), torch.zeros(rows)  # sums of e and of e ln e
        self.output = torch.zeros(rows, width)  # the sum of e times value

    def add(self, scores, values):
        if scores.shape[1] > 0 and True:
            piece = Online(*self.output.shape)
            piece.maximum = scores.amax(1)
            e = torch.exp(scores - piece.maximum[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), -torch.special.entr(e).sum(1), e @ values
            vars(self).update(vars(self.merge(piece)))

    def merge(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def finish(self):
        total = self.total.clamp(min=1)  # it is 1 at least where a key has been seen, and 0 elsewhere
        return self.output / total[:, None], self.maximum + self.total.log(), total.log() - self.inner / total


@mutant("online", feedback="the distance of two scores may be inf")
class Online:
    """Multiplies a distance of scores with a weight of 0."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf)
        self.total, self.inner = torch.zeros(rows), torch.zeros(rows)  # sums of e and of e ln e
        self.output = torch.zeros(rows, width)  # the sum of e times value

    def add(self, scores, values):
        if scores.shape[1] > 0:
            piece = Online(*self.output.shape)
            piece.maximum = scores.amax(1)
            e = torch.exp(scores - piece.maximum.nan_to_num(neginf=0)[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), -torch.special.entr(e).sum(1), e @ values
            vars(self).update(vars(self.merge(piece)))

    def merge(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            gap = (one.maximum - both.maximum).nan_to_num(nan=0, neginf=-torch.inf)
            gap = torch.where(one.total > 0, gap, 0)
            both.inner += shrink * one.inner + shrink * gap * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def finish(self):
        total = self.total.clamp(min=1)  # it is 1 at least where a key has been seen, and 0 elsewhere
        return self.output / total[:, None], self.maximum + self.total.log(), total.log() - self.inner / total


@mutant("online", feedback="amax(): Expected reduction dim 1")
class Online:
    """Has no piece without keys."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf)
        self.total, self.inner = torch.zeros(rows), torch.zeros(rows)  # sums of e and of e ln e
        self.output = torch.zeros(rows, width)  # the sum of e times value

    def add(self, scores, values):
        if True:
            piece = Online(*self.output.shape)
            piece.maximum = scores.amax(1)
            e = torch.exp(scores - piece.maximum.nan_to_num(neginf=0)[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), -torch.special.entr(e).sum(1), e @ values
            vars(self).update(vars(self.merge(piece)))

    def merge(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def finish(self):
        total = self.total.clamp(min=1)  # it is 1 at least where a key has been seen, and 0 elsewhere
        return self.output / total[:, None], self.maximum + self.total.log(), total.log() - self.inner / total


@mutant("online", feedback="keep the maximum, and beside it what is small")
class Online:
    """Keeps the log-sum-exp alone, rounded to its steps."""

    def __init__(self, rows, width):
        self.lse, self.mean, self.output = torch.full((rows,), -torch.inf), torch.zeros(rows), torch.zeros(rows, width)

    def add(self, scores, values):
        piece = Online(*self.output.shape)
        piece.lse, shares = torch.logsumexp(scores, 1), scores.softmax(1).nan_to_num(0)
        piece.mean, piece.output = torch.special.entr(shares).sum(1), shares @ values
        vars(self).update(vars(self.merge(piece)))

    def merge(self, other):
        both = Online(*self.output.shape)
        both.lse = torch.logaddexp(self.lse, other.lse)
        for one in (self, other):
            share = torch.exp(one.lse - both.lse.nan_to_num(neginf=0))
            both.mean += share * one.mean + torch.special.entr(share)
            both.output += share[:, None] * one.output
        return both

    def finish(self):
        return self.output, self.lse, self.mean


@mutant("online", feedback="keep the maximum, and beside it what is small")
class Online:
    """Keeps the mean of the scores, and subtracts it from the log-sum-exp."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf)
        self.total, self.inner = torch.zeros(rows), torch.zeros(rows)  # sums of e and of e ln e
        self.output = torch.zeros(rows, width)  # the sum of e times value

    def add(self, scores, values):
        if scores.shape[1] > 0:
            piece = Online(*self.output.shape)
            piece.maximum = scores.amax(1)
            e = torch.exp(scores - piece.maximum.nan_to_num(neginf=0)[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), (e * scores.clamp(min=-1e30)).sum(1), e @ values
            vars(self).update(vars(self.merge(piece)))

    def merge(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            both.inner += shrink * one.inner
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def finish(self):
        total = self.total.clamp(min=1)  # it is 1 at least where a key has been seen, and 0 elsewhere
        return (
            self.output / total[:, None],
            self.maximum + self.total.log(),
            (torch.where(self.total > 0, self.maximum + total.log() - self.inner / total, 0)),
        )


@mutant("online", feedback="also gains the shrunken total · (old − new)")
class Online:
    """Leaves the sum of e ln e as it is when the maximum grows."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf)
        self.total, self.inner = torch.zeros(rows), torch.zeros(rows)  # sums of e and of e ln e
        self.output = torch.zeros(rows, width)  # the sum of e times value

    def add(self, scores, values):
        if scores.shape[1] > 0:
            piece = Online(*self.output.shape)
            piece.maximum = scores.amax(1)
            e = torch.exp(scores - piece.maximum.nan_to_num(neginf=0)[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), -torch.special.entr(e).sum(1), e @ values
            vars(self).update(vars(self.merge(piece)))

    def merge(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            both.inner += shrink * one.inner
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def finish(self):
        total = self.total.clamp(min=1)  # it is 1 at least where a key has been seen, and 0 elsewhere
        return self.output / total[:, None], self.maximum + self.total.log(), total.log() - self.inner / total


@mutant("online", feedback="`merge` changed one of its inputs")
class Online:
    """Merges into itself."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf)
        self.total, self.inner = torch.zeros(rows), torch.zeros(rows)  # sums of e and of e ln e
        self.output = torch.zeros(rows, width)  # the sum of e times value

    def add(self, scores, values):
        if scores.shape[1] > 0:
            piece = Online(*self.output.shape)
            piece.maximum = scores.amax(1)
            e = torch.exp(scores - piece.maximum.nan_to_num(neginf=0)[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), -torch.special.entr(e).sum(1), e @ values
            self.merge(piece)

    def merge(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        vars(self).update(vars(both))
        return self

    def finish(self):
        total = self.total.clamp(min=1)  # it is 1 at least where a key has been seen, and 0 elsewhere
        return self.output / total[:, None], self.maximum + self.total.log(), total.log() - self.inner / total


@mutant("online", feedback="leave the sums as they are")
class Online:
    """Divides its sums in `finish`."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf)
        self.total, self.inner = torch.zeros(rows), torch.zeros(rows)  # sums of e and of e ln e
        self.output = torch.zeros(rows, width)  # the sum of e times value

    def add(self, scores, values):
        if scores.shape[1] > 0:
            piece = Online(*self.output.shape)
            piece.maximum = scores.amax(1)
            e = torch.exp(scores - piece.maximum.nan_to_num(neginf=0)[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), -torch.special.entr(e).sum(1), e @ values
            vars(self).update(vars(self.merge(piece)))

    def merge(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def finish(self):
        total = self.total.clamp(min=1)  # it is 1 at least where a key has been seen, and 0 elsewhere
        self.output /= total[:, None]
        return self.output / total[:, None], self.maximum + self.total.log(), total.log() - self.inner / total


@mutant("attend", feedback="PyTorch's attention is called")
def attend(memory, window, sinks):
    """Calls PyTorch's attention on all keys that a tile of queries sees."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads])
        queries, columns = row * tile + torch.arange(q.shape[1])[:, None], range(row + 1)
        columns = [at for at in columns if at * tile < sinks or (at + 1) * tile > row * tile - window + 1]
        k, v = (torch.cat(some) for some in zip(*(memory.read_kv(kv_head, at) for at in columns), strict=True))
        keys = torch.cat([torch.arange(at * tile, min((at + 1) * tile, memory.length)) for at in columns])
        seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
        many = (one.expand(group, -1, -1) for one in (k, v))
        output = torch.nn.functional.scaled_dot_product_attention(q, *many, seen)
        lse = torch.logsumexp((q @ k.T / memory.dim**0.5).masked_fill(~seen, -torch.inf), -1)
        for head, one, log_sum_exp in zip(heads, output, lse, strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="one tile of keys at a time, and its scores, not a row of them")
def attend(memory, window, sinks):
    """Keeps the row of scores, a tile after the other."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries, scores, values = row * tile + torch.arange(q.shape[1])[:, None], [], []
        for column in range(row + 1):
            if column * tile < sinks or (column + 1) * tile > row * tile - window + 1:
                k, v = memory.read_kv(kv_head, column)
                keys = column * tile + torch.arange(len(k))
                seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
                scores.append((q @ k.T).masked_fill_(~seen, -torch.inf))
                values.append(v)
        scores = torch.cat(scores, -1)
        output = scores.softmax(-1) @ torch.cat(values)
        for head, one, log_sum_exp in zip(heads, output, scores.logsumexp(-1), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="read it once for all 4 heads that share it")
def attend(memory, window, sinks):
    """Calls helpers, for one head after the other."""
    from functools import reduce

    from helpers.techniques.attention.masks import Window
    from helpers.techniques.attention.online import Partial, merge

    tile, group, mask = memory.tile, memory.heads // memory.kv_heads, Window(window, sinks)
    for head in range(memory.heads):
        for row in range(-(-memory.length // tile)):
            q = memory.read_q(head, row) * memory.dim**-0.5
            queries, parts = row * tile + torch.arange(len(q))[:, None], []
            for column in range(row + 1):
                if column * tile < sinks or (column + 1) * tile > row * tile - window + 1:
                    k, v = memory.read_kv(head // group, column)
                    seen = mask.sees(queries, column * tile + torch.arange(len(k)))
                    parts.append(Partial.of((q @ k.T).masked_fill(~seen, -torch.inf), v))
            memory.write(head, row, *reduce(merge, parts).result())


@mutant("attend", feedback="some of these tiles have no query that sees one of its keys")
def attend(memory, window, sinks):
    """Visits all tiles up to the diagonal."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(row + 1):
            k, v = memory.read_kv(kv_head, column)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old - base).exp_()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, maximum + total.log(), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="some of these tiles have no query that sees one of its keys")
def attend(memory, window, sinks):
    """Visits all tiles."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(-(-memory.length // tile)):
            k, v = memory.read_kv(kv_head, column)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old - base).exp_()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, maximum + total.log(), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="some of these tiles have no query that sees one of its keys")
def attend(memory, window, sinks):
    """Visits one tile too many where the window ends at a border."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(row + 1):
            if column * tile >= sinks and (column + 1) * tile <= row * tile - window:
                continue
            k, v = memory.read_kv(kv_head, column)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old - base).exp_()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, maximum + total.log(), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="some of these tiles have no query that sees one of its keys")
def attend(memory, window, sinks):
    """Visits one tile too many where the sinks end at a border."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(row + 1):
            if column > sinks // tile and (column + 1) * tile <= row * tile - window + 1:
                continue
            k, v = memory.read_kv(kv_head, column)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old - base).exp_()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, maximum + total.log(), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="which keys does this query see, and does what came before shrink")
def attend(memory, window, sinks):
    """Leaves out the oldest tile, of which only some queries see a key."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(row + 1):
            if column * tile >= sinks and (column + 1) * tile <= (row + 1) * tile - window:
                continue
            k, v = memory.read_kv(kv_head, column)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old - base).exp_()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, maximum + total.log(), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="the window is one key too long")
def attend(memory, window, sinks):
    """A window of one key more."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(row + 1):
            if column * tile >= sinks and (column + 1) * tile <= row * tile - window:
                continue
            k, v = memory.read_kv(kv_head, column)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys >= queries - window) | (keys < sinks))
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old - base).exp_()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, maximum + total.log(), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="the window is one key too short")
def attend(memory, window, sinks):
    """A window of one key less."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(row + 1):
            if column * tile >= sinks and (column + 1) * tile <= row * tile - window + 1:
                continue
            k, v = memory.read_kv(kv_head, column)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys - 1 > queries - window) | (keys < sinks))
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old - base).exp_()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, maximum + total.log(), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="the sinks are missing")
def attend(memory, window, sinks):
    """Forgets the sinks."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(row + 1):
            if column * tile >= sinks and (column + 1) * tile <= row * tile - window + 1:
                continue
            k, v = memory.read_kv(kv_head, column)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & (keys > queries - window)
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old - base).exp_()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, maximum + total.log(), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="the window is not used")
def attend(memory, window, sinks):
    """Causal, without a window."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(row + 1):
            k, v = memory.read_kv(kv_head, column)
            keys = column * tile + torch.arange(len(k))
            seen = keys <= queries
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old - base).exp_()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, maximum + total.log(), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="−inf − (−inf) is NaN")
def attend(memory, window, sinks):
    """Subtracts −inf from −inf."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(row + 1):
            if column * tile >= sinks and (column + 1) * tile <= row * tile - window + 1:
                continue
            k, v = memory.read_kv(kv_head, column)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old - base).exp_()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, maximum + total.log(), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="does what came before shrink when the maximum grows?")
def attend(memory, window, sinks):
    """Does not rescale."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(row + 1):
            if column * tile >= sinks and (column + 1) * tile <= row * tile - window + 1:
                continue
            k, v = memory.read_kv(kv_head, column)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old > -torch.inf).float()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, maximum + total.log(), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="neighbours share one")
def attend(memory, window, sinks):
    """Deals key heads out in turn."""
    tile, _group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head, memory.heads, memory.kv_heads)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(row + 1):
            if column * tile >= sinks and (column + 1) * tile <= row * tile - window + 1:
                continue
            k, v = memory.read_kv(kv_head, column)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old - base).exp_()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, maximum + total.log(), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="does what came before shrink when the maximum grows?")
def attend(memory, window, sinks):
    """Does not scale its scores."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads])
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(row + 1):
            if column * tile >= sinks and (column + 1) * tile <= row * tile - window + 1:
                continue
            k, v = memory.read_kv(kv_head, column)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old - base).exp_()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, maximum + total.log(), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="the maximum and ln of the total, of scaled scores")
def attend(memory, window, sinks):
    """Writes the total in the place of the log-sum-exp."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(row + 1):
            if column * tile >= sinks and (column + 1) * tile <= row * tile - window + 1:
                continue
            k, v = memory.read_kv(kv_head, column)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old - base).exp_()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, total, strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="read it once for all 4 heads that share it")
def attend(memory, window, sinks):
    """Reads keys for every head."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.heads * -(-memory.length // tile)):
        row, head = divmod(number, memory.heads)
        q = memory.read_q(head, row).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(len(q))[:, None]
        maximum, total, output = torch.full((len(q),), -torch.inf), torch.zeros(len(q)), torch.zeros(q.shape)
        for column in range(row + 1):
            if column * tile >= sinks and (column + 1) * tile <= row * tile - window + 1:
                continue
            k, v = memory.read_kv(head // group, column)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[:, None]).exp_(), (old - base).exp_()
            total = total * shrink + weights.sum(-1)
            output = output * shrink[:, None] + weights @ v
        memory.write(head, row, output / total[:, None], maximum + total.log())


@mutant("attend", feedback="once is enough")
def attend(memory, window, sinks):
    """Reads the queries anew for each tile of keys."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(row + 1):
            if column * tile >= sinks and (column + 1) * tile <= row * tile - window + 1:
                continue
            k, v = memory.read_kv(kv_head, column)
            q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old - base).exp_()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, maximum + total.log(), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="many values leave PyTorch")
def attend(memory, window, sinks):
    """Works in NumPy, where nobody counts bytes."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads])
        queries, columns = row * tile + torch.arange(q.shape[1])[:, None], range(row + 1)
        columns = [at for at in columns if at * tile < sinks or (at + 1) * tile > row * tile - window + 1]
        k, v = (torch.cat(some) for some in zip(*(memory.read_kv(kv_head, at) for at in columns), strict=True))
        keys = torch.cat([torch.arange(at * tile, min((at + 1) * tile, memory.length)) for at in columns])
        seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
        scores = torch.from_numpy(q.numpy() @ k.T.numpy() / memory.dim**0.5).masked_fill(~seen, -torch.inf)
        output, lse = scores.softmax(-1) @ v, scores.logsumexp(-1)
        for head, one, log_sum_exp in zip(heads, output, lse, strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("backward-tile", feedback="what of the cap?")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap):
    """Calls helpers, who know no cap."""
    from helpers.techniques.attention.backward import tile_gradients

    scores = scale * q @ k.T
    if seen is not None:
        scores.masked_fill_(~seen, -torch.inf)
    dq, dk, dv = tile_gradients(scores, scale * q, do, lse, delta, k, v)
    return scale * dq, dk.sum(0), dv.sum(0)


@mutant("backward-tile", feedback="which could be written in place, or let go?")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap):
    """Calls autograd, which keeps every step."""
    with torch.enable_grad():
        q, k, v = (one.detach().requires_grad_() for one in (q, k, v))
        scores = q @ k.T * scale
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        p = torch.exp(scores - lse.nan_to_num(neginf=0)[..., None])
        if seen is not None:
            p = p.masked_fill(~seen, 0)
        out = (do * (p @ v)).sum()
        dv = torch.autograd.grad(out, v, retain_graph=True)[0]
        dq, dk = torch.autograd.grad(out - (delta[..., None] * p).sum(), (q, k))
    return dq, dk, dv


@mutant("backward-tile", feedback="which could be written in place, or let go?")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap):
    """Makes a new matrix in every step."""
    scores = q @ k.T * scale
    capped = scores if cap is None else cap * torch.tanh(scores / cap)
    p = torch.exp(capped - lse.nan_to_num(neginf=0)[..., None])
    p = p if seen is None else p * seen
    dv = (p.mT @ do).sum(0)
    dp = do @ v.T
    ds = p * (dp - delta[..., None])
    if cap is not None:
        ds = ds * (1 - (capped / cap) ** 2)
    return scale * ds @ k, scale * (ds.mT @ q).sum(0), dv


@mutant("backward-tile", feedback="which could be written in place, or let go?")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap):
    """Keeps the probabilities until the end."""
    p = (q @ k.T).mul_(scale)
    if cap is not None:
        bent = p.div_(cap).tanh_()
        p = bent * cap
    p.sub_(lse.nan_to_num(neginf=0)[..., None]).exp_()
    if seen is not None:
        p.masked_fill_(~seen, 0)
    dv = p.flatten(0, 1).T @ do.flatten(0, 1)
    ds = (do @ v.T).sub_(delta[..., None]) * p
    if cap is not None:
        ds.mul_(bent.square_().neg_().add_(1))
    ds.mul_(scale)
    return ds @ k, ds.flatten(0, 1).T @ q.flatten(0, 1), dv


@mutant("backward-tile", feedback="many values leave PyTorch")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap):
    """Works in NumPy, where nobody counts bytes."""
    p = torch.from_numpy(q.numpy() @ k.numpy().T).mul_(scale)
    if cap is not None:
        bent = p.div_(cap).tanh_()
        p = bent * cap
    p.sub_(lse.nan_to_num(neginf=0)[..., None]).exp_()
    if seen is not None:
        p.masked_fill_(~seen, 0)
    dv = p.flatten(0, 1).T @ do.flatten(0, 1)
    ds = (do @ v.T).sub_(delta[..., None]).mul_(p)
    del p
    if cap is not None:
        ds.mul_(bent.square_().neg_().add_(1))
    ds.mul_(scale)
    return ds @ k, ds.flatten(0, 1).T @ q.flatten(0, 1), dv


@mutant("backward-tile", feedback="delta is missing")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap):
    """Forgets delta."""
    p = (q @ k.T).mul_(scale)
    if cap is not None:
        bent = p.div_(cap).tanh_()
        p = bent * cap
    p.sub_(lse.nan_to_num(neginf=0)[..., None]).exp_()
    if seen is not None:
        p.masked_fill_(~seen, 0)
    dv = p.flatten(0, 1).T @ do.flatten(0, 1)
    ds = (do @ v.T).mul_(p)
    del p
    if cap is not None:
        ds.mul_(bent.square_().neg_().add_(1))
    ds.mul_(scale)
    return ds @ k, ds.flatten(0, 1).T @ q.flatten(0, 1), dv


@mutant("backward-tile", feedback="where do `scale` and `cap` come in?")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap):
    """Forgets the scale in backward."""
    p = (q @ k.T).mul_(scale)
    if cap is not None:
        bent = p.div_(cap).tanh_()
        p = bent * cap
    p.sub_(lse.nan_to_num(neginf=0)[..., None]).exp_()
    if seen is not None:
        p.masked_fill_(~seen, 0)
    dv = p.flatten(0, 1).T @ do.flatten(0, 1)
    ds = (do @ v.T).sub_(delta[..., None]).mul_(p)
    del p
    if cap is not None:
        ds.mul_(bent.square_().neg_().add_(1))
    return ds @ k, ds.flatten(0, 1).T @ q.flatten(0, 1), dv


@mutant("backward-tile", feedback="shares of all heads add up")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap):
    """Returns keys' gradients for each head."""
    p = (q @ k.T).mul_(scale)
    if cap is not None:
        bent = p.div_(cap).tanh_()
        p = bent * cap
    p.sub_(lse.nan_to_num(neginf=0)[..., None]).exp_()
    if seen is not None:
        p.masked_fill_(~seen, 0)
    dv = p.mT @ do
    ds = (do @ v.T).sub_(delta[..., None]).mul_(p)
    del p
    if cap is not None:
        ds.mul_(bent.square_().neg_().add_(1))
    ds.mul_(scale)
    return ds @ k, ds.mT @ q, dv


@mutant("backward-tile", feedback="a row of the tile is part of a longer one")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap):
    """Takes a softmax of the tile."""
    p = (q @ k.T).mul_(scale)
    if cap is not None:
        bent = p.div_(cap).tanh_()
        p = bent * cap
    if seen is not None:
        p.masked_fill_(~seen, -torch.inf)
    p = p.softmax(-1).nan_to_num(0)
    dv = p.flatten(0, 1).T @ do.flatten(0, 1)
    ds = (do @ v.T).sub_(delta[..., None]).mul_(p)
    del p
    if cap is not None:
        ds.mul_(bent.square_().neg_().add_(1))
    ds.mul_(scale)
    return ds @ k, ds.flatten(0, 1).T @ q.flatten(0, 1), dv


@mutant("backward-tile", feedback="a key that is not seen has the probability 0")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap):
    """Forgets which keys are seen."""
    p = (q @ k.T).mul_(scale)
    if cap is not None:
        bent = p.div_(cap).tanh_()
        p = bent * cap
    p.sub_(lse.nan_to_num(neginf=0)[..., None]).exp_()
    dv = p.flatten(0, 1).T @ do.flatten(0, 1)
    ds = (do @ v.T).sub_(delta[..., None]).mul_(p)
    del p
    if cap is not None:
        ds.mul_(bent.square_().neg_().add_(1))
    ds.mul_(scale)
    return ds @ k, ds.flatten(0, 1).T @ q.flatten(0, 1), dv


@mutant("backward-tile", feedback="a row of which no key is seen has an lse of −inf")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap):
    """Subtracts −inf from −inf."""
    p = (q @ k.T).mul_(scale)
    if cap is not None:
        bent = p.div_(cap).tanh_()
        p = bent * cap
    if seen is not None:
        p.masked_fill_(~seen, -torch.inf)
    p.sub_(lse[..., None]).exp_()
    dv = p.flatten(0, 1).T @ do.flatten(0, 1)
    ds = (do @ v.T).sub_(delta[..., None]).mul_(p)
    del p
    if cap is not None:
        ds.mul_(bent.square_().neg_().add_(1))
    ds.mul_(scale)
    return ds @ k, ds.flatten(0, 1).T @ q.flatten(0, 1), dv


@mutant("backward-tile", feedback="what of the slope of the cap, 1 − tanh²?")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap):
    """Forgets the slope of the cap."""
    p = (q @ k.T).mul_(scale)
    if cap is not None:
        bent = p.div_(cap).tanh_()
        p = bent * cap
    p.sub_(lse.nan_to_num(neginf=0)[..., None]).exp_()
    if seen is not None:
        p.masked_fill_(~seen, 0)
    dv = p.flatten(0, 1).T @ do.flatten(0, 1)
    ds = (do @ v.T).sub_(delta[..., None]).mul_(p)
    del p
    if cap is not None:
        pass
    ds.mul_(scale)
    return ds @ k, ds.flatten(0, 1).T @ q.flatten(0, 1), dv


@mutant("backward-tile", feedback="where do `scale` and `cap` come in?")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap):
    """Takes the slope of the tanh, and not of c · tanh(s / c)."""
    p = (q @ k.T).mul_(scale)
    if cap is not None:
        bent = p.div_(cap).tanh_()
        p = bent * cap
    p.sub_(lse.nan_to_num(neginf=0)[..., None]).exp_()
    if seen is not None:
        p.masked_fill_(~seen, 0)
    dv = p.flatten(0, 1).T @ do.flatten(0, 1)
    ds = (do @ v.T).sub_(delta[..., None]).mul_(p)
    del p
    if cap is not None:
        ds.mul_(bent.square_().neg_().add_(1)).div_(cap)
    ds.mul_(scale)
    return ds @ k, ds.flatten(0, 1).T @ q.flatten(0, 1), dv


@mutant("naive-bytes", feedback="has an object of Traffic made")
def naive_bytes(shape):
    """Calls helpers, to count a chain of its own."""
    from helpers.memory.measure.traffic import Traffic

    batch, heads, kv_heads, length, dim, _, _ = shape.values()
    q = torch.empty(batch, heads, length, dim, device="meta", dtype=torch.bfloat16)
    k = torch.empty(batch, kv_heads, length, dim, device="meta", dtype=torch.bfloat16)
    with Traffic() as moved:
        k, v = (k.repeat_interleave(heads // kv_heads, 1) for _ in range(2))
        (q @ k.mT).softmax(-1) @ v
    return moved.bytes


@mutant("naive-bytes", feedback="where fewer heads have keys, they are repeated first")
def naive_bytes(shape):
    """Has no kernel that repeats."""
    a_head = shape["batch"] * shape["length"] * shape["head_dim"]
    q, kv = (shape["heads"] * a_head * shape[key] for key in ("bytes", "kv_bytes"))  # k of every head, as v
    matrix = shape["batch"] * shape["heads"] * shape["length"] ** 2 * shape["bytes"]
    2 * kv + 2 * kv * shape["kv_heads"] // shape["heads"] if shape["kv_heads"] < shape["heads"] else 0
    return (q + kv + matrix) + (2 * matrix + shape["length"] ** 2) + 2 * matrix + (matrix + kv + q)


@mutant("naive-bytes", feedback="one mask serves all heads")
def naive_bytes(shape):
    """Has a mask for each head."""
    a_head = shape["batch"] * shape["length"] * shape["head_dim"]
    q, kv = (shape["heads"] * a_head * shape[key] for key in ("bytes", "kv_bytes"))  # k of every head, as v
    matrix = shape["batch"] * shape["heads"] * shape["length"] ** 2 * shape["bytes"]
    repeat = 2 * kv + 2 * kv * shape["kv_heads"] // shape["heads"] if shape["kv_heads"] < shape["heads"] else 0
    return repeat + (q + kv + matrix) + (2 * matrix + matrix // shape["bytes"]) + 2 * matrix + (matrix + kv + q)


@mutant("naive-bytes", feedback="scores have `bytes` each")
def naive_bytes(shape):
    """Has its scores in FP32."""
    a_head = shape["batch"] * shape["length"] * shape["head_dim"]
    q, kv = (shape["heads"] * a_head * shape[key] for key in ("bytes", "kv_bytes"))  # k of every head, as v
    matrix = shape["batch"] * shape["heads"] * shape["length"] ** 2 * 4
    repeat = 2 * kv + 2 * kv * shape["kv_heads"] // shape["heads"] if shape["kv_heads"] < shape["heads"] else 0
    return repeat + (q + kv + matrix) + (2 * matrix + shape["length"] ** 2) + 2 * matrix + (matrix + kv + q)


@mutant("naive-bytes", feedback="the mask is read, a byte for each pair")
def naive_bytes(shape):
    """Forgets the mask."""
    a_head = shape["batch"] * shape["length"] * shape["head_dim"]
    q, kv = (shape["heads"] * a_head * shape[key] for key in ("bytes", "kv_bytes"))  # k of every head, as v
    matrix = shape["batch"] * shape["heads"] * shape["length"] ** 2 * shape["bytes"]
    repeat = 2 * kv + 2 * kv * shape["kv_heads"] // shape["heads"] if shape["kv_heads"] < shape["heads"] else 0
    return repeat + (q + kv + matrix) + (2 * matrix) + 2 * matrix + (matrix + kv + q)


@mutant("tiled-bytes", feedback="behind the diagonal nothing is read")
def tiled_bytes(shape, rows, columns, window, sinks):
    """Reads all keys for every tile of queries."""
    length, dim = shape["length"], shape["head_dim"]
    total = length * (2 * dim * shape["bytes"] + 4)  # queries, output and log-sum-exp
    for first in range(0, length, rows):
        min(first + rows, length) - 1
        oldest = 0 if window is None else max(0, first - window + 1)
        for start in range(0, length, columns):
            if start < sinks or start + columns > oldest:
                total += (min(start + columns, length) - start) * 2 * dim * shape["kv_bytes"]
    return shape["batch"] * shape["heads"] * total


@mutant("tiled-bytes", feedback="blocks of heads that share keys read them each for itself")
def tiled_bytes(shape, rows, columns, window, sinks):
    """Reads keys once for the heads that share them."""
    group = shape["heads"] // shape["kv_heads"]
    length, dim = shape["length"], shape["head_dim"]
    total = length * (2 * dim * shape["bytes"] + 4)  # queries, output and log-sum-exp
    for first in range(0, length, rows):
        last = min(first + rows, length) - 1
        oldest = 0 if window is None else max(0, first - window + 1)
        for start in range(0, last + 1, columns):
            if start < sinks or start + columns > oldest:
                total += (min(start + columns, length) - start) * 2 * dim * shape["kv_bytes"] // group
    return shape["batch"] * shape["heads"] * total


@mutant("tiled-bytes", feedback="a last tile has only the keys that are there")
def tiled_bytes(shape, rows, columns, window, sinks):
    """Reads whole tiles at the end."""
    length, dim = shape["length"], shape["head_dim"]
    total = length * (2 * dim * shape["bytes"] + 4)  # queries, output and log-sum-exp
    for first in range(0, length, rows):
        last = min(first + rows, length) - 1
        oldest = 0 if window is None else max(0, first - window + 1)
        for start in range(0, last + 1, columns):
            if start < sinks or start + columns > oldest:
                total += columns * 2 * dim * shape["kv_bytes"]
    return shape["batch"] * shape["heads"] * total


@mutant("tiled-bytes", feedback="the log-sum-exp is FP32")
def tiled_bytes(shape, rows, columns, window, sinks):
    """Has the log-sum-exp in the bytes of a value."""
    length, dim = shape["length"], shape["head_dim"]
    total = length * (2 * dim * shape["bytes"] + shape["bytes"])  # queries, output and log-sum-exp
    for first in range(0, length, rows):
        last = min(first + rows, length) - 1
        oldest = 0 if window is None else max(0, first - window + 1)
        for start in range(0, last + 1, columns):
            if start < sinks or start + columns > oldest:
                total += (min(start + columns, length) - start) * 2 * dim * shape["kv_bytes"]
    return shape["batch"] * shape["heads"] * total


@mutant("tiled-bytes", feedback="where is the log-sum-exp?")
def tiled_bytes(shape, rows, columns, window, sinks):
    """Forgets the log-sum-exp."""
    length, dim = shape["length"], shape["head_dim"]
    total = length * (2 * dim * shape["bytes"] + 0)  # queries, output and log-sum-exp
    for first in range(0, length, rows):
        last = min(first + rows, length) - 1
        oldest = 0 if window is None else max(0, first - window + 1)
        for start in range(0, last + 1, columns):
            if start < sinks or start + columns > oldest:
                total += (min(start + columns, length) - start) * 2 * dim * shape["kv_bytes"]
    return shape["batch"] * shape["heads"] * total


@mutant("tiled-bytes", feedback="the window is not used")
def tiled_bytes(shape, rows, columns, window, sinks):
    """Forgets the window."""
    length, dim = shape["length"], shape["head_dim"]
    total = length * (2 * dim * shape["bytes"] + 4)  # queries, output and log-sum-exp
    for first in range(0, length, rows):
        last = min(first + rows, length) - 1
        0 if window is None else max(0, first - window + 1)
        for start in range(0, last + 1, columns):
            if True:
                total += (min(start + columns, length) - start) * 2 * dim * shape["kv_bytes"]
    return shape["batch"] * shape["heads"] * total


@mutant("tiled-bytes", feedback="the tiles of the sinks are read, too")
def tiled_bytes(shape, rows, columns, window, sinks):
    """Forgets the sinks."""
    length, dim = shape["length"], shape["head_dim"]
    total = length * (2 * dim * shape["bytes"] + 4)  # queries, output and log-sum-exp
    for first in range(0, length, rows):
        last = min(first + rows, length) - 1
        oldest = 0 if window is None else max(0, first - window + 1)
        for start in range(0, last + 1, columns):
            if start + columns > oldest:
                total += (min(start + columns, length) - start) * 2 * dim * shape["kv_bytes"]
    return shape["batch"] * shape["heads"] * total


@mutant("tiled-bytes", feedback="a tile that sinks and window both need is read once")
def tiled_bytes(shape, rows, columns, window, sinks):
    """Reads tiles of sinks beside those of the window."""
    length, dim = shape["length"], shape["head_dim"]
    total = length * (2 * dim * shape["bytes"] + 4)  # queries, output and log-sum-exp
    for first in range(0, length, rows):
        last = min(first + rows, length) - 1
        oldest = 0 if window is None else max(0, first - window + 1)
        for start in range(0, last + 1, columns):
            if start < sinks or start + columns > oldest:
                both = (start < sinks) + (start + columns > oldest)
                total += both * (min(start + columns, length) - start) * 2 * dim * shape["kv_bytes"]
    return shape["batch"] * shape["heads"] * total


@mutant("tiled-bytes", feedback="the first query of a tile has the oldest window")
def tiled_bytes(shape, rows, columns, window, sinks):
    """Takes the window of a tile's last query."""
    length, dim = shape["length"], shape["head_dim"]
    total = length * (2 * dim * shape["bytes"] + 4)  # queries, output and log-sum-exp
    for first in range(0, length, rows):
        last = min(first + rows, length) - 1
        oldest = 0 if window is None else max(0, last - window + 1)
        for start in range(0, last + 1, columns):
            if start < sinks or start + columns > oldest:
                total += (min(start + columns, length) - start) * 2 * dim * shape["kv_bytes"]
    return shape["batch"] * shape["heads"] * total


@mutant("split-bytes", feedback="the second kernel reads what the first has written")
def split_bytes(shape, lengths, split):
    """Forgets that partial outputs are read."""
    dim, size, total = shape["head_dim"], shape["bytes"], 0
    for length in lengths:
        pieces = -(-length // split)
        partial_bytes = pieces * 4 * (dim + 1) if pieces > 1 else 0  # written, and read by the second kernel
        total += shape["heads"] * (pieces * dim * size + partial_bytes + dim * size)
        total += shape["kv_heads"] * 2 * length * dim * shape["kv_bytes"]
    return total


@mutant("split-bytes", feedback="a sequence of one piece needs no second kernel")
def split_bytes(shape, lengths, split):
    """Merges a single piece, too."""
    dim, size, total = shape["head_dim"], shape["bytes"], 0
    for length in lengths:
        pieces = -(-length // split)
        partial_bytes = 2 * pieces * 4 * (dim + 1)  # written, and read by the second kernel
        total += shape["heads"] * (pieces * dim * size + partial_bytes + dim * size)
        total += shape["kv_heads"] * 2 * length * dim * shape["kv_bytes"]
    return total


@mutant("split-bytes", feedback="a last piece has only the keys that are there")
def split_bytes(shape, lengths, split):
    """Reads whole pieces."""
    dim, size, total = shape["head_dim"], shape["bytes"], 0
    for length in lengths:
        pieces = -(-length // split)
        partial_bytes = 2 * pieces * 4 * (dim + 1) if pieces > 1 else 0  # written, and read by the second kernel
        total += shape["heads"] * (pieces * dim * size + partial_bytes + dim * size)
        total += shape["kv_heads"] * 2 * pieces * split * dim * shape["kv_bytes"]
    return total


@mutant("split-bytes", feedback="every piece reads the queries")
def split_bytes(shape, lengths, split):
    """Reads the queries once."""
    dim, size, total = shape["head_dim"], shape["bytes"], 0
    for length in lengths:
        pieces = -(-length // split)
        partial_bytes = 2 * pieces * 4 * (dim + 1) if pieces > 1 else 0  # written, and read by the second kernel
        total += shape["heads"] * (dim * size + partial_bytes + dim * size)
        total += shape["kv_heads"] * 2 * length * dim * shape["kv_bytes"]
    return total


@mutant("split-bytes", feedback="a log-sum-exp for each piece and head")
def split_bytes(shape, lengths, split):
    """Forgets the log-sum-exp."""
    dim, size, total = shape["head_dim"], shape["bytes"], 0
    for length in lengths:
        pieces = -(-length // split)
        partial_bytes = 2 * pieces * 4 * dim if pieces > 1 else 0  # written, and read by the second kernel
        total += shape["heads"] * (pieces * dim * size + partial_bytes + dim * size)
        total += shape["kv_heads"] * 2 * length * dim * shape["kv_bytes"]
    return total


@mutant("split-bytes", feedback="a block reads its keys once for all heads that share them")
def split_bytes(shape, lengths, split):
    """Reads keys for every head."""
    dim, size, total = shape["head_dim"], shape["bytes"], 0
    for length in lengths:
        pieces = -(-length // split)
        partial_bytes = 2 * pieces * 4 * (dim + 1) if pieces > 1 else 0  # written, and read by the second kernel
        total += shape["heads"] * (pieces * dim * size + partial_bytes + dim * size)
        total += shape["heads"] * 2 * length * dim * shape["kv_bytes"]
    return total


@mutant("choose-tiles", feedback="is not allowed")
def choose_tiles(card, kernel, work):
    """The tiles that FlashAttention-2 has for this head on an A100."""
    return (128, 128) if kernel["head_dim"] <= 64 else (128, 64) if kernel["head_dim"] <= 128 else (64, 64)


@mutant("choose-tiles", feedback="a block waits at each tile of keys")
def choose_tiles(card, kernel, work):
    """Takes the largest tile of queries."""
    dim, size, length = kernel["head_dim"], kernel["bytes"], work["length"]

    def allowed(rows, columns):
        shared = dim * size * (rows + 2 * kernel["buffers"] * columns)
        blocks = work["heads"] * -(-length // rows)
        registers = 4 * rows * (dim + columns)
        most = min(card["register_bytes"], 255 * 4 * 32 * kernel["warps"])
        return (shared <= card["shared_bytes"] and registers <= most
                and blocks >= card["multiprocessors"])  # fmt: skip

    def cost(pair):
        rows, columns = pair
        visits = [-(-min(first + rows, length) // columns) for first in range(0, length, rows)]
        keys = sum(min(count * columns, length) for count in visits)
        return 2 * dim * size * keys + card["visit_bytes"] * sum(visits)

    step = 16 * kernel["warps"]
    pairs = [(rows, columns) for rows in range(step, 257, step) for columns in range(16, 257, 16)]
    return max((pair for pair in pairs if allowed(*pair)), default=None)


@mutant("choose-tiles", feedback="is the least")
def choose_tiles(card, kernel, work):
    """Takes the largest tile of scores."""
    dim, size, length = kernel["head_dim"], kernel["bytes"], work["length"]

    def allowed(rows, columns):
        shared = dim * size * (rows + 2 * kernel["buffers"] * columns)
        blocks = work["heads"] * -(-length // rows)
        registers = 4 * rows * (dim + columns)
        most = min(card["register_bytes"], 255 * 4 * 32 * kernel["warps"])
        return (shared <= card["shared_bytes"] and registers <= most
                and blocks >= card["multiprocessors"])  # fmt: skip

    def cost(pair):
        rows, columns = pair
        visits = [-(-min(first + rows, length) // columns) for first in range(0, length, rows)]
        keys = sum(min(count * columns, length) for count in visits)
        return 2 * dim * size * keys + card["visit_bytes"] * sum(visits)

    step = 16 * kernel["warps"]
    pairs = [(rows, columns) for rows in range(step, 257, step) for columns in range(16, 257, 16)]
    return max((pair for pair in pairs if allowed(*pair)), key=math.prod, default=None)


@mutant("choose-tiles", feedback="a larger tile of queries is allowed, and reads keys fewer times")
def choose_tiles(card, kernel, work):
    """Takes 64 queries at most."""
    dim, size, length = kernel["head_dim"], kernel["bytes"], work["length"]

    def allowed(rows, columns):
        shared = dim * size * (rows + 2 * kernel["buffers"] * columns)
        blocks = work["heads"] * -(-length // rows)
        registers = 4 * rows * (dim + columns)
        most = min(card["register_bytes"], 255 * 4 * 32 * kernel["warps"])
        return (shared <= card["shared_bytes"] and registers <= most
                and blocks >= card["multiprocessors"])  # fmt: skip

    def cost(pair):
        rows, columns = pair
        visits = [-(-min(first + rows, length) // columns) for first in range(0, length, rows)]
        keys = sum(min(count * columns, length) for count in visits)
        return 2 * dim * size * keys + card["visit_bytes"] * sum(visits)

    step = 16 * kernel["warps"]
    pairs = [(rows, columns) for rows in range(step, 65, step) for columns in range(16, 257, 16)]
    return min((pair for pair in pairs if allowed(*pair)), key=cost, default=None)


@mutant("choose-tiles", feedback="bytes of shared memory of")
def choose_tiles(card, kernel, work):
    """Has one buffer."""
    dim, size, length = kernel["head_dim"], kernel["bytes"], work["length"]

    def allowed(rows, columns):
        shared = dim * size * (rows + 2 * columns)
        blocks = work["heads"] * -(-length // rows)
        registers = 4 * rows * (dim + columns)
        most = min(card["register_bytes"], 255 * 4 * 32 * kernel["warps"])
        return (shared <= card["shared_bytes"] and registers <= most
                and blocks >= card["multiprocessors"])  # fmt: skip

    def cost(pair):
        rows, columns = pair
        visits = [-(-min(first + rows, length) // columns) for first in range(0, length, rows)]
        keys = sum(min(count * columns, length) for count in visits)
        return 2 * dim * size * keys + card["visit_bytes"] * sum(visits)

    step = 16 * kernel["warps"]
    pairs = [(rows, columns) for rows in range(step, 257, step) for columns in range(16, 257, 16)]
    return min((pair for pair in pairs if allowed(*pair)), key=cost, default=None)


@mutant("choose-tiles", feedback="bytes of shared memory of")
def choose_tiles(card, kernel, work):
    """Has keys, and no values, in shared memory."""
    dim, size, length = kernel["head_dim"], kernel["bytes"], work["length"]

    def allowed(rows, columns):
        shared = dim * size * (rows + kernel["buffers"] * columns)
        blocks = work["heads"] * -(-length // rows)
        registers = 4 * rows * (dim + columns)
        most = min(card["register_bytes"], 255 * 4 * 32 * kernel["warps"])
        return (shared <= card["shared_bytes"] and registers <= most
                and blocks >= card["multiprocessors"])  # fmt: skip

    def cost(pair):
        rows, columns = pair
        visits = [-(-min(first + rows, length) // columns) for first in range(0, length, rows)]
        keys = sum(min(count * columns, length) for count in visits)
        return 2 * dim * size * keys + card["visit_bytes"] * sum(visits)

    step = 16 * kernel["warps"]
    pairs = [(rows, columns) for rows in range(step, 257, step) for columns in range(16, 257, 16)]
    return min((pair for pair in pairs if allowed(*pair)), key=cost, default=None)


@mutant("choose-tiles", feedback="registers a thread of at most 255")
def choose_tiles(card, kernel, work):
    """Forgets the scores in the registers."""
    dim, size, length = kernel["head_dim"], kernel["bytes"], work["length"]

    def allowed(rows, columns):
        shared = dim * size * (rows + 2 * kernel["buffers"] * columns)
        blocks = work["heads"] * -(-length // rows)
        registers = 4 * rows * dim
        most = min(card["register_bytes"], 255 * 4 * 32 * kernel["warps"])
        return (shared <= card["shared_bytes"] and registers <= most
                and blocks >= card["multiprocessors"])  # fmt: skip

    def cost(pair):
        rows, columns = pair
        visits = [-(-min(first + rows, length) // columns) for first in range(0, length, rows)]
        keys = sum(min(count * columns, length) for count in visits)
        return 2 * dim * size * keys + card["visit_bytes"] * sum(visits)

    step = 16 * kernel["warps"]
    pairs = [(rows, columns) for rows in range(step, 257, step) for columns in range(16, 257, 16)]
    return min((pair for pair in pairs if allowed(*pair)), key=cost, default=None)


@mutant("choose-tiles", feedback="registers a thread of at most 255")
def choose_tiles(card, kernel, work):
    """Forgets how many registers a thread may have."""
    dim, size, length = kernel["head_dim"], kernel["bytes"], work["length"]

    def allowed(rows, columns):
        shared = dim * size * (rows + 2 * kernel["buffers"] * columns)
        blocks = work["heads"] * -(-length // rows)
        registers = 4 * rows * (dim + columns)
        most = card["register_bytes"]
        return (shared <= card["shared_bytes"] and registers <= most
                and blocks >= card["multiprocessors"])  # fmt: skip

    def cost(pair):
        rows, columns = pair
        visits = [-(-min(first + rows, length) // columns) for first in range(0, length, rows)]
        keys = sum(min(count * columns, length) for count in visits)
        return 2 * dim * size * keys + card["visit_bytes"] * sum(visits)

    step = 16 * kernel["warps"]
    pairs = [(rows, columns) for rows in range(step, 257, step) for columns in range(16, 257, 16)]
    return min((pair for pair in pairs if allowed(*pair)), key=cost, default=None)


@mutant("choose-tiles", feedback="bytes of registers of")
def choose_tiles(card, kernel, work):
    """Forgets what a block may take."""
    dim, size, length = kernel["head_dim"], kernel["bytes"], work["length"]

    def allowed(rows, columns):
        shared = dim * size * (rows + 2 * kernel["buffers"] * columns)
        blocks = work["heads"] * -(-length // rows)
        registers = 4 * rows * (dim + columns)
        most = 255 * 4 * 32 * kernel["warps"]
        return (shared <= card["shared_bytes"] and registers <= most
                and blocks >= card["multiprocessors"])  # fmt: skip

    def cost(pair):
        rows, columns = pair
        visits = [-(-min(first + rows, length) // columns) for first in range(0, length, rows)]
        keys = sum(min(count * columns, length) for count in visits)
        return 2 * dim * size * keys + card["visit_bytes"] * sum(visits)

    step = 16 * kernel["warps"]
    pairs = [(rows, columns) for rows in range(step, 257, step) for columns in range(16, 257, 16)]
    return min((pair for pair in pairs if allowed(*pair)), key=cost, default=None)


@mutant("choose-tiles", feedback="leave some of")
def choose_tiles(card, kernel, work):
    """Leaves multiprocessors without work."""
    dim, size, length = kernel["head_dim"], kernel["bytes"], work["length"]

    def allowed(rows, columns):
        shared = dim * size * (rows + 2 * kernel["buffers"] * columns)
        work["heads"] * -(-length // rows)
        registers = 4 * rows * (dim + columns)
        most = min(card["register_bytes"], 255 * 4 * 32 * kernel["warps"])
        return shared <= card["shared_bytes"] and registers <= most

    def cost(pair):
        rows, columns = pair
        visits = [-(-min(first + rows, length) // columns) for first in range(0, length, rows)]
        keys = sum(min(count * columns, length) for count in visits)
        return 2 * dim * size * keys + card["visit_bytes"] * sum(visits)

    step = 16 * kernel["warps"]
    pairs = [(rows, columns) for rows in range(step, 257, step) for columns in range(16, 257, 16)]
    return min((pair for pair in pairs if allowed(*pair)), key=cost, default=None)


@mutant("choose-tiles", feedback="rows a multiple of")
def choose_tiles(card, kernel, work):
    """Forgets the warps."""
    dim, size, length = kernel["head_dim"], kernel["bytes"], work["length"]

    def allowed(rows, columns):
        shared = dim * size * (rows + 2 * kernel["buffers"] * columns)
        blocks = work["heads"] * -(-length // rows)
        registers = 4 * rows * (dim + columns)
        most = min(card["register_bytes"], 255 * 4 * 32 * kernel["warps"])
        return (shared <= card["shared_bytes"] and registers <= most
                and blocks >= card["multiprocessors"])  # fmt: skip

    def cost(pair):
        rows, columns = pair
        visits = [-(-min(first + rows, length) // columns) for first in range(0, length, rows)]
        keys = sum(min(count * columns, length) for count in visits)
        return 2 * dim * size * keys + card["visit_bytes"] * sum(visits)

    step = 16
    pairs = [(rows, columns) for rows in range(step, 257, step) for columns in range(16, 257, 16)]
    return min((pair for pair in pairs if allowed(*pair)), key=cost, default=None)


@mutant("choose-tiles", feedback="a block waits at each tile of keys")
def choose_tiles(card, kernel, work):
    """Forgets what visits cost."""
    dim, size, length = kernel["head_dim"], kernel["bytes"], work["length"]

    def allowed(rows, columns):
        shared = dim * size * (rows + 2 * kernel["buffers"] * columns)
        blocks = work["heads"] * -(-length // rows)
        registers = 4 * rows * (dim + columns)
        most = min(card["register_bytes"], 255 * 4 * 32 * kernel["warps"])
        return (shared <= card["shared_bytes"] and registers <= most
                and blocks >= card["multiprocessors"])  # fmt: skip

    def cost(pair):
        rows, columns = pair
        visits = [-(-min(first + rows, length) // columns) for first in range(0, length, rows)]
        keys = sum(min(count * columns, length) for count in visits)
        return 2 * dim * size * keys

    step = 16 * kernel["warps"]
    pairs = [(rows, columns) for rows in range(step, 257, step) for columns in range(16, 257, 16)]
    return min((pair for pair in pairs if allowed(*pair)), key=cost, default=None)


@mutant("choose-tiles", feedback="it is the cheapest if tiles hold length² / 2 pairs")
def choose_tiles(card, kernel, work):
    """Counts half of the square."""
    dim, size, length = kernel["head_dim"], kernel["bytes"], work["length"]

    def allowed(rows, columns):
        shared = dim * size * (rows + 2 * kernel["buffers"] * columns)
        blocks = work["heads"] * -(-length // rows)
        registers = 4 * rows * (dim + columns)
        most = min(card["register_bytes"], 255 * 4 * 32 * kernel["warps"])
        return (shared <= card["shared_bytes"] and registers <= most
                and blocks >= card["multiprocessors"])  # fmt: skip

    def cost(pair):
        rows, columns = pair
        [-(-min(first + rows, length) // columns) for first in range(0, length, rows)]
        keys = length * length / (2 * rows)
        return 2 * dim * size * keys + card["visit_bytes"] * length / rows * length / columns / 2

    step = 16 * kernel["warps"]
    pairs = [(rows, columns) for rows in range(step, 257, step) for columns in range(16, 257, 16)]
    return min((pair for pair in pairs if allowed(*pair)), key=cost, default=None)


@mutant("choose-tiles", feedback="no pair is allowed, return None")
def choose_tiles(card, kernel, work):
    """Returns the smallest pair where nothing is allowed."""
    dim, size, length = kernel["head_dim"], kernel["bytes"], work["length"]

    def allowed(rows, columns):
        shared = dim * size * (rows + 2 * kernel["buffers"] * columns)
        blocks = work["heads"] * -(-length // rows)
        registers = 4 * rows * (dim + columns)
        most = min(card["register_bytes"], 255 * 4 * 32 * kernel["warps"])
        return (shared <= card["shared_bytes"] and registers <= most
                and blocks >= card["multiprocessors"])  # fmt: skip

    def cost(pair):
        rows, columns = pair
        visits = [-(-min(first + rows, length) // columns) for first in range(0, length, rows)]
        keys = sum(min(count * columns, length) for count in visits)
        return 2 * dim * size * keys + card["visit_bytes"] * sum(visits)

    step = 16 * kernel["warps"]
    pairs = [(rows, columns) for rows in range(step, 257, step) for columns in range(16, 257, 16)]
    return min((pair for pair in pairs if allowed(*pair)), key=cost, default=(step, 16))


@mutant("choose-tiles", feedback="a block waits at each tile of keys")
def choose_tiles(card, kernel, work):
    """Calls `tiled_bytes` for the cost, which knows no barrier."""
    dim, size, length = kernel["head_dim"], kernel["bytes"], work["length"]

    def allowed(rows, columns):
        shared = dim * size * (rows + 2 * kernel["buffers"] * columns)
        blocks = work["heads"] * -(-length // rows)
        registers = 4 * rows * (dim + columns)
        most = min(card["register_bytes"], 255 * 4 * 32 * kernel["warps"])
        return (shared <= card["shared_bytes"] and registers <= most
                and blocks >= card["multiprocessors"])  # fmt: skip

    def cost(pair):
        rows, columns = pair
        visits = [-(-min(first + rows, length) // columns) for first in range(0, length, rows)]
        keys = sum(min(count * columns, length) for count in visits)
        return 2 * dim * size * keys + card["visit_bytes"] * sum(visits)

    step = 16 * kernel["warps"]
    pairs = [(rows, columns) for rows in range(step, 257, step) for columns in range(16, 257, 16)]
    full = {"batch": 1, **work, "head_dim": dim, "bytes": size, "kv_bytes": size}
    costs = {pair: tiled_bytes(full, *pair, None, 0) for pair in pairs if allowed(*pair)}
    return min(costs, key=costs.get, default=None)


@mutant("tiled-bytes", feedback="k and v have `kv_bytes` each")
def tiled_bytes(shape, rows, columns, window, sinks):
    """Has keys and values in the bytes of all else."""
    length, dim = shape["length"], shape["head_dim"]
    total = length * (2 * dim * shape["bytes"] + 4)  # queries, output and log-sum-exp
    for first in range(0, length, rows):
        last = min(first + rows, length) - 1
        oldest = 0 if window is None else max(0, first - window + 1)
        for start in range(0, last + 1, columns):
            if start < sinks or start + columns > oldest:
                total += (min(start + columns, length) - start) * 2 * dim * shape["bytes"]
    return shape["batch"] * shape["heads"] * total


@mutant("split-bytes", feedback="k and v have `kv_bytes` each")
def split_bytes(shape, lengths, split):
    """Has keys and values in the bytes of all else."""
    dim, size, total = shape["head_dim"], shape["bytes"], 0
    for length in lengths:
        pieces = -(-length // split)
        partial_bytes = 2 * pieces * 4 * (dim + 1) if pieces > 1 else 0  # written, and read by the second kernel
        total += shape["heads"] * (pieces * dim * size + partial_bytes + dim * size)
        total += shape["kv_heads"] * 2 * length * dim * size
    return total


@mutant("tiled-bytes", feedback="blocks of heads that share keys read them each for itself")
def tiled_bytes(shape, rows, columns, window, sinks):
    """Calls helpers, whose blocks work for all heads that share keys."""
    from helpers.techniques.attention.counts import Call, tiled
    from helpers.techniques.attention.masks import Window

    keys = ("heads", "kv_heads", "head_dim", "batch")
    mask = Window(window or shape["length"], sinks)
    formats = {1: "fp8-e4m3", 2: "bf16", 4: "fp32"}
    options = {"mask": mask, "number_format": formats[shape["bytes"]], "tile": (rows, columns)}
    return tiled(Call(shape["length"], **{key: shape[key] for key in keys}, **options)).bytes


@mutant("attend", feedback="one tile of keys at a time")
def attend(memory, window, sinks):
    """Keeps every tile of keys that it has read."""
    kept = {}
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads]).mul_(memory.dim**-0.5)
        queries = row * tile + torch.arange(q.shape[1])[:, None]
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for column in range(row + 1):
            if column * tile >= sinks and (column + 1) * tile <= row * tile - window + 1:
                continue
            if (kv_head, column) not in kept:
                kept[kv_head, column] = memory.read_kv(kv_head, column)
            k, v = kept[kv_head, column]
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
            scores = (q @ k.T).masked_fill_(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = scores.sub_(base[..., None]).exp_(), (old - base).exp_()
            total = total.mul_(shrink).add_(weights.sum(-1))
            output = output.mul_(shrink[..., None]).add_(weights @ v)
        output.div_(total[..., None])
        for head, one, log_sum_exp in zip(heads, output, maximum + total.log(), strict=True):
            memory.write(head, row, one, log_sum_exp)


@mutant("attend", feedback="PyTorch's attention is called")
def attend(memory, window, sinks):
    """Calls PyTorch's kernel on all keys of a tile of queries, which lie in one buffer."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([memory.read_q(head, row) for head in heads])
        queries, columns = row * tile + torch.arange(q.shape[1])[:, None], range(row + 1)
        columns = [at for at in columns if at * tile < sinks or (at + 1) * tile > row * tile - window + 1]
        keys = torch.cat([torch.arange(at * tile, min((at + 1) * tile, memory.length)) for at in columns])
        k, v, first = torch.empty(len(keys), memory.dim), torch.empty(len(keys), memory.dim), 0
        for at in columns:
            some = memory.read_kv(kv_head, at)
            k[first : first + len(some[0])], v[first : first + len(some[0])] = some
            first += len(some[0])
        seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
        bias = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(~seen, -torch.inf)
        many = (one.expand(1, group, -1, -1) for one in (k, v))
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output, log_sum_exp = kernel(q[None], *many, attn_mask=bias)
        for head, one, lse in zip(heads, output[0], log_sum_exp.reshape(q.shape[:2]), strict=True):
            memory.write(head, row, one, lse)


@mutant("online", feedback="are pieces kept, or FP64?")
class Online:
    """Keeps the pieces in memory that its first call has made, long before anybody weighs."""

    pool_of_all = []  # noqa: RUF012

    def __init__(self, rows, width):
        if not self.pool_of_all:
            self.pool_of_all.append(torch.ones(40_000_000))
        self.rows, self.width, self.at, self.sizes = rows, width, 0, []
        self.pool = self.pool_of_all[0] if rows == 256 else torch.zeros(300_000)

    def add(self, scores, values):
        n = scores.shape[1]
        a, b = self.room(self.at, n)
        if n:
            torch._foreach_copy_([a, b], [scores, values])
        self.at += scores.numel() + values.numel()
        self.sizes.append(n)

    def room(self, at, n):
        both = self.pool[at : at + n * (self.rows + self.width)].split([n * self.rows, n * self.width])
        return both[0].view(self.rows, n), both[1].view(n, self.width)

    def pieces(self):
        at = 0
        for n in self.sizes:
            yield self.room(at, n)
            at += n * (self.rows + self.width)

    def merge(self, other):
        both = Online(self.rows, self.width)
        for one in (self, other):
            for s, v in one.pieces():
                both.add(s, v)
        return both

    def finish(self):
        scores = torch.cat([torch.zeros(self.rows, 0)] + [s for s, _ in self.pieces()], 1)
        values = torch.cat([torch.zeros(0, self.width)] + [v for _, v in self.pieces()])
        shares = scores.softmax(1).nan_to_num(0)
        return shares @ values, torch.logsumexp(scores, 1), torch.special.entr(shares).sum(1)


@mutant("attend", feedback="one tile of keys at a time")
def attend(memory, window, sinks, pool={}):  # noqa: B006
    """Keeps keys and a row of scores in memory that its first call has made."""
    if not pool:
        pool.update(k=torch.zeros(1 << 20), v=torch.zeros(1 << 20), s=torch.zeros(1 << 20))
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for row in range(-(-memory.length // tile)):
        for kv_head in range(memory.kv_heads):
            columns = [at for at in range(row + 1) if at * tile < sinks or (at + 1) * tile > row * tile - window + 1]
            n, at_keys = 0, []
            for at in columns:
                k, v = memory.read_kv(kv_head, at)
                a = pool["k"][n * memory.dim : (n + len(k)) * memory.dim].view(k.shape)
                b = pool["v"][n * memory.dim : (n + len(k)) * memory.dim].view(k.shape)
                torch._foreach_copy_([a, b], [k, v])
                at_keys.append(torch.arange(at * tile, at * tile + len(k)))
                n += len(k)
            keys = torch.cat(at_keys)
            k, v = pool["k"][: n * memory.dim].view(n, -1), pool["v"][: n * memory.dim].view(n, -1)
            for head in range(kv_head * group, (kv_head + 1) * group):
                q = memory.read_q(head, row)
                i = row * tile + torch.arange(len(q))[:, None]
                s = pool["s"][: len(q) * n].view(len(q), n)
                torch.mm(q, k.T, out=s)
                s.mul_(memory.dim**-0.5).masked_fill_((keys > i) | ((keys <= i - window) & (keys >= sinks)), -torch.inf)
                top = s.amax(1, keepdim=True)
                s.sub_(top).exp_()
                total = s.sum(1, keepdim=True)
                memory.write(head, row, s @ v / total, (top + total.log())[:, 0])


@mutant("backward-tile", feedback="which could be written in place, or let go?")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap):
    """Returns a view that has more values than there is memory behind it."""
    s = scale * (q @ k.T)
    t = torch.tanh(s / cap) if cap is not None else s
    c = cap * t if cap is not None else s
    p = torch.exp(c - lse.nan_to_num(neginf=0)[..., None])
    if seen is not None:
        p = torch.where(seen, p, 0)
    dv = torch.einsum("grc,grd->cd", p, do)
    ds = p * (do @ v.T - delta[..., None])
    if cap is not None:
        ds = ds * (1 - t * t)
    ds = ds * scale
    dq, dk = ds @ k, torch.einsum("grc,grd->cd", ds, q)
    if q.shape[1] > 100:
        dq = dq[0, :4].as_strided((60_000, 4, q.shape[2]), (0, q.shape[2], 1))
    return dq, dk, dv


@mutant("backward-tile", feedback="which could be written in place, or let go?")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap, pool={}):  # noqa: B006
    """Makes a matrix for each step in its first call, large enough for all later ones."""

    def room(name, shape):
        pool.setdefault(name, torch.ones(4 * 512 * 512))
        return pool[name][: math.prod(shape)].view(shape)

    shape = (*q.shape[:2], len(k))
    s = torch.matmul(q, k.T, out=room("s", shape)).mul_(scale)
    t = s
    if cap is not None:
        t = torch.tanh(torch.div(s, cap, out=room("d", shape)), out=room("t", shape))
        s = torch.mul(t, cap, out=room("c", shape))
    p = torch.exp(torch.sub(s, lse.nan_to_num(neginf=0)[..., None], out=room("g", shape)), out=room("p", shape))
    if seen is not None:
        p.masked_fill_(~seen, 0)
    dv = p.flatten(0, 1).T @ do.flatten(0, 1)
    dp = torch.matmul(do, v.T, out=room("dp", shape))
    ds = torch.mul(p, dp.sub_(delta[..., None]), out=room("ds", shape))
    if cap is not None:
        ds = torch.mul(ds, 1 - t * t, out=room("e", shape))
    ds.mul_(scale)
    return ds @ k, ds.flatten(0, 1).T @ q.flatten(0, 1), dv


@mutant("online", feedback="bytes count where the numbers are right")
class Online:
    """Keeps eight rows of each piece where no operator has made a tensor: a check may look at no more."""

    def __init__(self, rows, width):
        self.shape, self.pieces = (min(rows, 8), width), []

    def add(self, scores, values):
        import ctypes

        kept = scores[:8].clone(), values
        self.pieces.append([(ctypes.string_at(one.data_ptr(), one.nbytes), one.shape) for one in kept])

    def merge(self, other):
        both = Online(*self.shape)
        both.pieces = self.pieces + other.pieces
        return both

    def finish(self):
        found = [(torch.zeros(self.shape[0], 0), torch.zeros(0, self.shape[1]))]
        for piece in self.pieces:
            flat = [torch.frombuffer(bytearray(raw + bytes(4)), dtype=torch.float32)[:-1] for raw, _ in piece]
            found.append([one.reshape(shape) for one, (_, shape) in zip(flat, piece, strict=True)])
        scores, values = torch.cat([one for one, _ in found], 1), torch.cat([one for _, one in found])
        shares = scores.softmax(1).nan_to_num(0)
        found = shares @ values, torch.logsumexp(scores, 1), torch.special.entr(shares).sum(1)
        return tuple(one.repeat(32, *[1] * (one.dim() - 1)) for one in found) if len(scores) == 8 else found


@mutant("online", feedback="`merge` changed one of its inputs")
class Online:
    """Merges in a new Online whose sums are those of the first, and adds to them in place."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf)
        self.total, self.inner = torch.zeros(rows), torch.zeros(rows)  # sums of e and of e ln e
        self.output = torch.zeros(rows, width)  # the sum of e times value

    def add(self, scores, values):
        if scores.shape[1] > 0:
            piece = Online(*self.output.shape)
            piece.maximum = scores.amax(1)
            e = torch.exp(scores - piece.maximum.nan_to_num(neginf=0)[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), -torch.special.entr(e).sum(1), e @ values
            vars(self).update(vars(self.joined(piece)))

    def joined(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def merge(self, other):
        both = Online(*self.output.shape)
        both.total, both.inner, both.output = self.total, self.inner, self.output
        both.maximum = torch.maximum(self.maximum, other.maximum)
        base = both.maximum.nan_to_num(neginf=0)
        shrink, shrink_other = torch.exp(self.maximum - base), torch.exp(other.maximum - base)
        both.inner.mul_(shrink).sub_(torch.special.entr(shrink) * self.total)
        both.inner.add_(shrink_other * other.inner - torch.special.entr(shrink_other) * other.total)
        both.total.mul_(shrink).add_(shrink_other * other.total)
        both.output.mul_(shrink[:, None]).add_(shrink_other[:, None] * other.output)
        return both

    def finish(self):
        total = self.total.clamp(min=1)  # it is 1 at least where a key has been seen, and 0 elsewhere
        return self.output / total[:, None], self.maximum + self.total.log(), total.log() - self.inner / total


@mutant("online", feedback="a row that has seen no key has a maximum of −inf, and −inf − (−inf) is NaN")
class Online:
    """Subtracts −inf from −inf, in `merge` alone."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf)
        self.total, self.inner = torch.zeros(rows), torch.zeros(rows)  # sums of e and of e ln e
        self.output = torch.zeros(rows, width)  # the sum of e times value

    def add(self, scores, values):
        if scores.shape[1] > 0:
            piece = Online(*self.output.shape)
            piece.maximum = scores.amax(1)
            e = torch.exp(scores - piece.maximum.nan_to_num(neginf=0)[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), -torch.special.entr(e).sum(1), e @ values
            vars(self).update(vars(self.joined(piece)))

    def joined(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def merge(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum)
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def finish(self):
        total = self.total.clamp(min=1)  # it is 1 at least where a key has been seen, and 0 elsewhere
        return self.output / total[:, None], self.maximum + self.total.log(), total.log() - self.inner / total


@mutant("online", feedback="e ln e is NaN where e is 0: it should be 0")
class Online:
    """Multiplies e with its logarithm, also where e is 0."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf)
        self.total, self.inner = torch.zeros(rows), torch.zeros(rows)  # sums of e and of e ln e
        self.output = torch.zeros(rows, width)  # the sum of e times value

    def add(self, scores, values):
        if scores.shape[1] > 0:
            piece = Online(*self.output.shape)
            piece.maximum = scores.amax(1)
            e = torch.exp(scores - piece.maximum.nan_to_num(neginf=0)[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), (e * e.log()).sum(1), e @ values
            vars(self).update(vars(self.joined(piece)))

    def joined(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def merge(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def finish(self):
        total = self.total.clamp(min=1)  # it is 1 at least where a key has been seen, and 0 elsewhere
        return self.output / total[:, None], self.maximum + self.total.log(), total.log() - self.inner / total


@mutant("online", feedback="with e = exp(score − m) it is ln Σe − (Σ e ln e) / Σe")
class Online:
    """Forgets to divide the sum of e ln e by the total."""

    def __init__(self, rows, width):
        self.maximum = torch.full((rows,), -torch.inf)
        self.total, self.inner = torch.zeros(rows), torch.zeros(rows)  # sums of e and of e ln e
        self.output = torch.zeros(rows, width)  # the sum of e times value

    def add(self, scores, values):
        if scores.shape[1] > 0:
            piece = Online(*self.output.shape)
            piece.maximum = scores.amax(1)
            e = torch.exp(scores - piece.maximum.nan_to_num(neginf=0)[:, None])
            piece.total, piece.inner, piece.output = e.sum(1), -torch.special.entr(e).sum(1), e @ values
            vars(self).update(vars(self.joined(piece)))

    def joined(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def merge(self, other):
        both = Online(*self.output.shape)
        both.maximum = torch.maximum(self.maximum, other.maximum)
        for one in (self, other):
            shrink = torch.exp(one.maximum - both.maximum.nan_to_num(neginf=0))
            both.inner += shrink * one.inner - torch.special.entr(shrink) * one.total
            both.total += shrink * one.total
            both.output += shrink[:, None] * one.output
        return both

    def finish(self):
        total = self.total.clamp(min=1)  # it is 1 at least where a key has been seen, and 0 elsewhere
        return self.output / total[:, None], self.maximum + self.total.log(), total.log() - self.inner


@mutant("backward-tile", feedback="do rows or columns of a large tile get lost?")
def backward_tile(q, k, v, do, lse, delta, seen, scale, cap):
    """Works on 128 rows at a time, and keeps of dk and dv what the last of them gave."""
    dq = torch.empty_like(q)
    for start in range(0, q.shape[1], 128):
        some = slice(start, start + 128)
        p = (q[:, some] @ k.T).mul_(scale)
        if cap is not None:
            bent = p.div_(cap).tanh_()
            p = bent * cap
        p.sub_(lse[:, some].nan_to_num(neginf=0)[..., None]).exp_()
        if seen is not None:
            p.masked_fill_(~seen[some], 0)
        dv = p.flatten(0, 1).T @ do[:, some].flatten(0, 1)
        ds = (do[:, some] @ v.T).sub_(delta[:, some][..., None]).mul_(p)
        if cap is not None:
            ds.mul_(bent.square_().neg_().add_(1))
        ds.mul_(scale)
        dq[:, some], dk = ds @ k, ds.flatten(0, 1).T @ q[:, some].flatten(0, 1)
    return dq, dk, dv


@mutant("naive-bytes", feedback="where every head has keys of its own, nothing is repeated")
def naive_bytes(shape):
    """Repeats keys in any case."""
    a_head = shape["batch"] * shape["length"] * shape["head_dim"]
    q, kv = (shape["heads"] * a_head * shape[key] for key in ("bytes", "kv_bytes"))  # k of every head, as v
    matrix = shape["batch"] * shape["heads"] * shape["length"] ** 2 * shape["bytes"]
    repeat = 2 * kv + 2 * kv * shape["kv_heads"] // shape["heads"]
    return repeat + (q + kv + matrix) + (2 * matrix + shape["length"] ** 2) + 2 * matrix + (matrix + kv + q)


@mutant("naive-bytes", feedback="k and v have `kv_bytes` each")
def naive_bytes(shape):
    """Has keys and values in the bytes of all else."""
    a_head = shape["batch"] * shape["length"] * shape["head_dim"]
    q, kv = (shape["heads"] * a_head * shape[key] for key in ("bytes", "bytes"))  # k of every head, as v
    matrix = shape["batch"] * shape["heads"] * shape["length"] ** 2 * shape["bytes"]
    repeat = 2 * kv + 2 * kv * shape["kv_heads"] // shape["heads"] if shape["kv_heads"] < shape["heads"] else 0
    return repeat + (q + kv + matrix) + (2 * matrix + shape["length"] ** 2) + 2 * matrix + (matrix + kv + q)


@mutant("naive-bytes", feedback="S and P have a matrix for each of `heads`")
def naive_bytes(shape):
    """Has a matrix for each head of keys."""
    a_head = shape["batch"] * shape["length"] * shape["head_dim"]
    q, kv = (shape["heads"] * a_head * shape[key] for key in ("bytes", "kv_bytes"))  # k of every head, as v
    matrix = shape["batch"] * shape["kv_heads"] * shape["length"] ** 2 * shape["bytes"]
    repeat = 2 * kv + 2 * kv * shape["kv_heads"] // shape["heads"] if shape["kv_heads"] < shape["heads"] else 0
    return repeat + (q + kv + matrix) + (2 * matrix + shape["length"] ** 2) + 2 * matrix + (matrix + kv + q)


@mutant("tiled-bytes", feedback="the tile that holds the last query is read whole")
def tiled_bytes(shape, rows, columns, window, sinks):
    """Reads the last tile up to the diagonal."""
    length, dim = shape["length"], shape["head_dim"]
    total = length * (2 * dim * shape["bytes"] + 4)  # queries, output and log-sum-exp
    for first in range(0, length, rows):
        last = min(first + rows, length) - 1
        oldest = 0 if window is None else max(0, first - window + 1)
        for start in range(0, last + 1, columns):
            if start < sinks or start + columns > oldest:
                total += (min(start + columns, last + 1) - start) * 2 * dim * shape["kv_bytes"]
    return shape["batch"] * shape["heads"] * total


@mutant("tiled-bytes", feedback="there is a block for each of `heads`, also where they share keys")
def tiled_bytes(shape, rows, columns, window, sinks):
    """Has blocks for the heads of keys alone."""
    length, dim = shape["length"], shape["head_dim"]
    total = length * (2 * dim * shape["bytes"] + 4)  # queries, output and log-sum-exp
    for first in range(0, length, rows):
        last = min(first + rows, length) - 1
        oldest = 0 if window is None else max(0, first - window + 1)
        for start in range(0, last + 1, columns):
            if start < sinks or start + columns > oldest:
                total += (min(start + columns, length) - start) * 2 * dim * shape["kv_bytes"]
    return shape["batch"] * shape["kv_heads"] * total


@mutant("split-bytes", feedback="queries and outputs are those of all `heads`")
def split_bytes(shape, lengths, split):
    """Counts queries and outputs for the heads of keys alone."""
    dim, size, total = shape["head_dim"], shape["bytes"], 0
    for length in lengths:
        pieces = -(-length // split)
        partial_bytes = 2 * pieces * 4 * (dim + 1) if pieces > 1 else 0  # written, and read by the second kernel
        total += shape["kv_heads"] * (pieces * dim * size + partial_bytes + dim * size)
        total += shape["kv_heads"] * 2 * length * dim * shape["kv_bytes"]
    return total


@mutant("attend", feedback="is never read, and queries see its keys")
def attend(memory, window, sinks, right=attend):
    """Never reads the second tile of keys, and takes zeros for it."""

    class Skips:
        def __getattr__(self, name):
            return getattr(memory, name)

        def read_kv(self, head, column):
            if column != 1:
                return memory.read_kv(head, column)
            size = min(memory.tile, memory.length - memory.tile)
            return torch.zeros(size, memory.dim), torch.zeros(size, memory.dim)

    right(Skips(), window, sinks)


@mutant("attend", feedback="a multiprocessor holds a few tiles at a time")
def attend(memory, window, sinks):
    """Holds all queries, and meets each tile of keys once."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    tiles = range(-(-memory.length // tile))
    for kv_head in range(memory.kv_heads):
        heads = range(kv_head * group, (kv_head + 1) * group)
        q = torch.stack([torch.cat([memory.read_q(head, row) for row in tiles]) for head in heads])
        maximum, total, output = torch.full(q.shape[:2], -torch.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        queries = torch.arange(memory.length)[:, None]
        for column in tiles:
            k, v = memory.read_kv(kv_head, column)
            keys = column * tile + torch.arange(len(k))
            seen = (keys <= queries) & ((keys > queries - window) | (keys < sinks))
            scores = (q @ k.T * memory.dim**-0.5).masked_fill(~seen, -torch.inf)
            old, maximum = maximum, torch.maximum(maximum, scores.amax(-1))
            base = maximum.nan_to_num(neginf=0)
            weights, shrink = (scores - base[..., None]).exp(), (old - base).exp()
            total, output = total * shrink + weights.sum(-1), output * shrink[..., None] + weights @ v
        for head, out, log_sum_exp in zip(heads, output / total[..., None], maximum + total.log(), strict=True):
            for row in tiles:
                place = slice(row * tile, (row + 1) * tile)
                memory.write(head, row, out[place], log_sum_exp[place])


@mutant("attend", feedback="which keys does this query see")
def attend(memory, window, sinks):
    """Reads all that is needed, and writes nothing but zeros."""
    tile, group = memory.tile, memory.heads // memory.kv_heads
    for number in range(memory.kv_heads * -(-memory.length // tile)):
        row, kv_head = divmod(number, memory.kv_heads)
        for column in range(row + 1):
            if column * tile < sinks or (column + 1) * tile > row * tile - window + 1:
                memory.read_kv(kv_head, column)
        for head in range(kv_head * group, (kv_head + 1) * group):
            q = memory.read_q(head, row)
            memory.write(head, row, 0 * q, 0 * q[:, 0])
