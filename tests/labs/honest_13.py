"""Right answers to lab 13, written otherwise than the worked ones: the checks must give each all of its points."""

# ruff: noqa: F821, N801  (they run where the lab's names are defined)

from __future__ import annotations


def slot_steps_in_closed_form(requests, block_size, lookahead=0):
    """Block by block, without a step; a list comes back."""
    filled = sum(answer * prompt + answer * (answer + 1) // 2 for prompt, answer in requests)
    blocks = 0
    for prompt, answer in requests:
        last = prompt + answer + lookahead
        for end in range((prompt + lookahead) // block_size, -(-last // block_size)):
            begin = max(end * block_size, prompt + lookahead)
            blocks += (min((end + 1) * block_size, last) - begin) * (end + 1)
    return [blocks * block_size, filled]


def largest_block_size_from_below(requests, most, percent, lookahead=0):
    """Shares as floats, from the smallest up."""
    best = None
    for size in range(1, most + 1):
        reserved, filled = slot_steps(requests, size, lookahead)
        if 1 - filled / reserved <= percent / 100:
            best = size
    return best


class WindowManager_from_the_first:
    """Remembers the first block that has not gone."""

    def __init__(self, pool, window, sinks=0):
        self.given, self.window, self.tables, self.count, self.next = pool, window, {}, {}, {}
        self.first = -(-sinks // pool.block_size)

    def append(self, name, value):
        size, at = self.given.block_size, self.count.get(name, 0)
        table, gone = self.tables.setdefault(name, []), self.next.get(name, self.first)
        while gone < len(table) and gone * size + size - 1 <= at - self.window:
            self.given.drop(table[gone])
            table[gone], gone = None, gone + 1
        self.next[name], self.count[name] = gone, at + 1
        if at // size == len(table):
            table += [self.given.take()]
        self.given.write(table[at // size], at % size, value)

    def fork(self, parent, child):
        for state in (self.count, self.next):
            state[child] = state[parent]
        self.tables[child] = [*self.tables[parent]]
        [self.given.hold(block) for block in self.tables[child] if block is not None]

    def release(self, name):
        while self.tables[name]:
            block = self.tables[name].pop()
            if block is not None:
                self.given.drop(block)
        for state in (self.count, self.next, self.tables):
            state.pop(name)


def next_beams_by_parent(pool, tables, length, parents, tokens):
    """Parent by parent; the first child stays where it is."""
    new, (at, place) = [None] * len(parents), divmod(length, pool.block_size)
    for number, table in enumerate(tables):
        children = [k for k, parent in enumerate(parents) if parent == number]
        if not children:
            [pool.drop(block) for block in table]
    for number, table in enumerate(tables):
        for child in [k for k, parent in enumerate(parents) if parent == number][:0:-1]:
            [pool.hold(block) for block in table[:at]]
            new[child] = [*table[:at], pool.take()]
            if place:
                copy_block(pool, table[at], new[child][-1])
        if number in parents:
            new[parents.index(number)] = table if place else [*table, pool.take()]
    for table, token in zip(new, tokens, strict=True):
        if pool.references[table[-1]] > 1:
            table[-1:] = [pool.take(), pool.drop(table[-1])][:1]
        pool.write(table[-1], place, token)
    return tuple(new)


def evict_from_the_root(cache):
    """Walks the tree with a list of its own."""
    oldest, todo = None, [cache.root]
    while todo:
        node = todo.pop()
        todo += node.children.values()
        free = node.block is not None and not node.children and cache.pool.references[node.block] < 2
        if free and (oldest is None or node.used < oldest.used):
            oldest = node
    if oldest:
        oldest.parent.children.pop(oldest.tokens)
        cache.pool.drop(oldest.block)
    return oldest is not None


def cascade_with_logsumexp(queries, store, tables, lengths, scale):
    """All rows of a block at once, with logsumexp."""
    count, heads, _ = queries.shape
    groups = heads // store.keys.shape[2]
    out, lse = torch.zeros_like(queries), torch.full((count, heads, 1), float("-inf"))
    for block in sorted({block for table in tables for block in table}):
        keys, values = (part.repeat_interleave(groups, 1) for part in store.read(block))
        rows = [row for row, table in enumerate(tables) if block in table]
        fill = [lengths[row] - tables[row].index(block) * len(keys) for row in rows]
        behind = torch.arange(len(keys)) >= torch.tensor(fill)[:, None, None]
        scores = torch.einsum("rhd,shd->rhs", queries[rows], keys.nan_to_num()) * scale
        scores = scores.masked_fill(behind, float("-inf"))
        here = scores.logsumexp(-1, keepdim=True)
        new = torch.logaddexp(lse[rows], here)
        part = torch.einsum("rhs,shd->rhd", (scores - new).exp(), values.nan_to_num())
        out[rows], lse[rows] = out[rows] * (lse[rows] - new).exp() + part, new
    return out


def users_that_fit_one_by_one(log, percent, block_bytes, shared, own, block_size=16):
    """Lets users in one by one."""
    left = int(log.total_bytes * percent / 100) - log.weight_bytes - log.non_torch_bytes - log.peak_activation_bytes
    blocks, users = left // block_bytes, 0
    free = blocks - int(0.01 * blocks) - shared // block_size
    each = (shared % block_size + own + block_size - 1) // block_size
    while free >= each:
        free, users = free - each, users + 1
    return users


def preemption_s_with_gauss(model, card, tokens, shared, block_size=16):
    """Sums by formula."""
    first = shared - shared % block_size
    own_bytes = (-(-tokens // block_size) - first // block_size) * paging.block_bytes(model, block_size)
    seen = (tokens * (tokens + 1) - first * (first + 1)) // 2
    width = model.layers[0].attention.heads * model.layers[0].attention.head_dim
    flops = 2 * model.parameters * (tokens - first) + 4 * len(model.layers) * width * seen
    return 2 * own_bytes / card.link_bytes_per_s("pcie"), flops / card.flops_per_s("bf16")


def slot_steps_in_numpy(requests, block_size, lookahead=0):
    """Arrays of NumPy, and its integers; a print is left in."""
    import numpy as np

    tokens = np.concatenate([np.arange(prompt + 1, prompt + answer + 1) for prompt, answer in requests])
    reserved = np.ceil((tokens + lookahead) / block_size).astype(np.int64) * block_size
    print("steps:", len(tokens))
    return np.array([reserved.sum(), tokens.sum()])


def largest_block_size_as_a_scalar(requests, most, percent, lookahead=0):
    """A generator, and a tensor for a number."""
    fits = (
        size
        for size in reversed(range(1, most + 1))
        for reserved, filled in [slot_steps(requests, size, lookahead)]
        if 100 * reserved - 100 * filled <= percent * reserved
    )
    size = next(fits, None)
    return size if size is None else torch.tensor(size)


class WindowManager_with_subclassed_dicts:
    """Tables in an OrderedDict; lengths in a Counter; prints what goes."""

    def __init__(self, pool, window, sinks=0):
        from collections import Counter, OrderedDict

        self.pool, self.window, self.sinks = pool, window, sinks
        self.tables, self.count = OrderedDict(), Counter()

    def _unseen(self, at, position):
        size = self.pool.block_size
        return all(p >= self.sinks and p <= position - self.window for p in range(at * size, (at + 1) * size))

    def append(self, name, value):
        position = self.count[name]
        self.count[name] += 1
        if name not in self.tables:
            self.tables[name] = []
        table = self.tables[name]
        for at in [at for at, block in enumerate(table) if block is not None and self._unseen(at, position)]:
            self.pool.drop(table[at])
            table[at] = None
            print("gone", name, at)
        at, place = divmod(position, self.pool.block_size)
        if place == 0:
            table.append(self.pool.take())
        self.pool.write(table[at], place, value)

    def fork(self, parent, child):
        self.tables[child] = self.tables[parent].copy()
        self.count[child] = self.count[parent]
        for block in filter(lambda block: block is not None, self.tables[child]):
            self.pool.hold(block)

    def release(self, name):
        for block in self.tables.pop(name):
            if block is not None:
                self.pool.drop(block)
        self.count.pop(name)


def next_beams_in_arrays(pool, tables, length, parents, tokens):
    """A generator of arrays."""
    import numpy as np

    rows = [list(tables[parent]) for parent in parents]
    [pool.hold(block) for row in rows for block in row]
    [pool.drop(block) for table in tables for block in table]
    for row, token in zip(rows, tokens, strict=True):
        if length % pool.block_size == 0:
            row.append(pool.take())
        elif pool.references[row[-1]] > 1:
            mine = pool.take()
            for place in range(length % pool.block_size):
                pool.write(mine, place, pool.memory[row[-1]][place])
            pool.drop(row[-1])
            row[-1] = mine
        pool.write(row[-1], length % pool.block_size, token)
    return (np.array(row) for row in rows)


class RadixCache_with_a_walk:
    """One walk for both methods; lists come back."""

    def __init__(self, pool):
        self.pool, self.root, self.now = pool, Node(), 0

    def _walk(self, tokens):
        size, node, path = self.pool.block_size, self.root, []
        for at in range(0, len(tokens), size):
            node = node.children.get(tuple(tokens[at : at + size]))
            if node is None:
                break
            path.append(node)
        return path

    def match(self, tokens):
        self.now += 1
        path = self._walk(tokens)
        rest, part = tokens[len(path) * self.pool.block_size :], None
        children = (path[-1] if path else self.root).children.values()
        scored = [(common(child.tokens, rest), child.used, child) for child in children]
        scored.sort(key=lambda one: one[:2])
        if scored and scored[-1][0]:
            path.append(scored[-1][2])
            part = [path[-1].block, scored[-1][0]]
        for node in path:
            node.used = self.now
        return [[node.block for node in path][: len(path) - (part is not None)], part]

    def insert(self, tokens, table):
        self.now += 1
        size, node = self.pool.block_size, self.root
        for at, block in zip(range(0, len(tokens) // size * size, size), table, strict=False):
            key = tuple(tokens[at : at + size])
            if key not in node.children:
                node.children[key] = Node(node, key, block)
                self.pool.hold(block)
            node = node.children[key]
            node.used = self.now


def cascade_block_by_block_for_all_rows(queries, store, tables, lengths, scale):
    """Scores for every row of a block, kept as lists of exponentials' sums in double precision."""
    size, key_heads, dim = store.keys.shape[1:]
    q = queries.double().unflatten(1, (key_heads, -1)) * scale
    top = {row: torch.full(q.shape[1:3], -torch.inf, dtype=torch.double) for row in range(len(tables))}
    below = {row: torch.zeros(q.shape[1:3], dtype=torch.double) for row in top}
    above = {row: torch.zeros(*q.shape[1:3], dim, dtype=torch.double) for row in top}
    for block in dict.fromkeys(block for table in tables for block in table):
        keys, values = (states.double() for states in store.read(block))
        for row, table in enumerate(tables):
            if block in table:
                n = min(size, lengths[row] - table.index(block) * size)
                scores = torch.einsum("kgd,skd->kgs", q[row], keys[:n])
                new = torch.maximum(top[row], scores.amax(-1))
                shrink, weight = (top[row] - new).exp(), (scores - new[..., None]).exp()
                below[row] = below[row] * shrink + weight.sum(-1)
                above[row] = above[row] * shrink[..., None] + torch.einsum("kgs,skd->kgd", weight, values[:n])
                top[row] = new
    return torch.stack([(above[row] / below[row][..., None]).flatten(0, 1) for row in top]).to(queries.dtype)


def users_that_fit_with_divmod(log, percent, block_bytes, shared, own, block_size=16):
    """`divmod`, NumPy's integers; a print is left in."""
    import numpy as np

    budget = np.int64(log.total_bytes) * percent // 100
    left = budget - (log.weight_bytes + log.non_torch_bytes + log.peak_activation_bytes)
    blocks = max(np.int64(0), left) // block_bytes
    whole, part = divmod(shared, block_size)
    needed, more = divmod(part + own, block_size)
    print("blocks", blocks)
    return max(np.int64(0), (blocks - blocks // 100 - whole) // (needed + (more > 0)))


def preemption_s_as_tensors(model, card, tokens, shared, block_size=16):
    """A tensor of two values."""
    kept = shared // block_size * block_size
    moved = 2.0 * paging.block_bytes(model, block_size) * -(-(tokens - kept) // block_size)
    positions = torch.arange(kept, tokens, dtype=torch.double)
    flops = 2 * model.parameters * len(positions)
    flops += 4 * len(model.layers) * model.heads * model.head_dim * (positions + 1).sum()
    swap_s = moved / card.link_bytes_per_s("pcie")
    return torch.tensor([swap_s, flops / card.flops_per_s("bf16")], dtype=torch.double)
