"""Known-wrong answers to lab 13. Each must fail its check, with the sentence that its learner then reads.

A class that has its own name for a base, or a function with itself for the default `right`, changes one thing in the
worked answer, which the kernel holds at that moment.
"""

# ruff: noqa: F821, F811  (they are put into the lab's cells, where these names are defined)

from helpers.course.mutants import mutant


@mutant("slot-steps", feedback="4 tokens and 1 drafted take two blocks")
def slot_steps(requests, block_size, lookahead=0):
    """Calls helpers, whose requests draft nothing."""
    made = tuple(paging.Request((0,) * prompt, (0,) * answer) for prompt, answer in requests)
    trace = paging.RequestTrace("made", made, max(map(sum, requests)))
    usage = paging.waste_of(trace, "paged", block_size, users=len(requests))
    return usage.reserved, usage.filled


@mutant("slot-steps", feedback="one token of an answer is one step, of 4 tokens")
def slot_steps(requests, block_size, lookahead=0, right=slot_steps):
    """Counts the step before the first token, and not the last."""
    return right([(prompt - 1, answer) for prompt, answer in requests], block_size, lookahead)


@mutant("largest-block-size", feedback="16 tokens in 21 slots waste 23.8 %")
def largest_block_size(requests, most, percent, lookahead=0):
    """Stops at the first size that wastes too much."""
    for size in range(1, most + 1):
        reserved, filled = slot_steps(requests, size, lookahead)
        if 100 * (reserved - filled) > percent * reserved:
            return size - 1 or None
    return most


@mutant("window-manager", feedback="no block is free")
class WindowManager(WindowManager):
    """Never frees behind the window."""

    def __init__(self, pool, window, sinks=0):
        super().__init__(pool, 10**6, sinks)


@mutant("window-manager", feedback="hold a token that is seen")
class WindowManager(WindowManager):
    """Frees a block that is still half inside the window."""

    def append(self, name, value):
        size, own = self.pool.block_size, self.window
        self.window = max(1, own - size // 2)
        super().append(name, value)
        self.window = own


@mutant("window-manager", feedback="hold a token that is seen")
class WindowManager(WindowManager):
    """Forgets the sinks."""

    def __init__(self, pool, window, sinks=0):
        super().__init__(pool, window, 0)


@mutant("window-manager", feedback="is dropped more often than it was held")
class WindowManager(WindowManager):
    """Drops a reference twice: at the window, and again at the release."""

    def append(self, name, value):
        before = len(self.tables.get(name, []))
        super().append(name, value)
        self.ever = [*getattr(self, "ever", []), *self.tables[name][before:]]

    def release(self, name):
        self.tables[name] = self.ever
        super().release(name)


@mutant("window-manager", feedback="blocks in use where many are free")
class WindowManager(WindowManager):
    """Makes one hole in a table, and others where the pool is empty."""

    def append(self, name, value):
        window = self.window
        if None in self.tables.get(name, []) and self.pool.free:
            self.window = 10**6
        super().append(name, value)
        self.window = window


@mutant("window-manager", feedback="blocks in use where many are free")
class WindowManager(WindowManager):
    """Makes holes, and gives back what stood there where the pool is empty, or a sequence is done."""

    def append(self, name, value):
        position, size, table = self.lengths.get(name, 0), self.pool.block_size, self.tables.get(name, [])
        if not self.pool.free:
            self.give_back()
        for at, block in enumerate(table if self.pool.free else []):
            if block is not None and at * size >= self.sinks and (at + 1) * size <= position - self.window + 1:
                self.pool.hold(block)
                self.behind = [*getattr(self, "behind", []), block]
        super().append(name, value)

    def give_back(self):
        while getattr(self, "behind", []):
            self.pool.drop(self.behind.pop())

    def release(self, name):
        self.give_back()
        super().release(name)


@mutant("window-manager", feedback="is written to while 0 tables hold it")
class WindowManager:
    """Calls helpers: blocks of a manager of its own, and no window."""

    def __init__(self, pool, window, sinks=0):
        self.pool, self.manager = pool, paging.BlockManager(1000, pool.block_size)
        self.tables, self.fork, self.release = self.manager.tables, self.manager.fork, self.manager.release

    def append(self, name, value):
        self.manager.append(name, 1)
        place = (self.manager.lengths[name] - 1) % self.pool.block_size
        self.pool.write(self.tables[name][-1], place, value)


@mutant("next-beams", feedback="is written to while 3 tables hold it")
def next_beams(pool, tables, length, parents, tokens):
    """Writes to a shared block."""
    new = [list(tables[parent]) for parent in parents]
    for block in (block for table in new for block in table):
        pool.hold(block)
    for block in (block for table in tables for block in table):
        pool.drop(block)
    for table, token in zip(new, tokens, strict=True):
        if length % pool.block_size == 0:
            table.append(pool.take())
        pool.write(table[-1], length % pool.block_size, token)
    return new


@mutant("next-beams", feedback="who still holds one?")
def next_beams(pool, tables, length, parents, tokens, right=next_beams):
    """The reference of beams that nobody continues is not dropped."""
    return right(
        pool,
        [tables[parent] for parent in sorted({*parents})],
        length,
        [sorted({*parents}).index(parent) for parent in parents],
        tokens,
    )


@mutant("next-beams", feedback="blocks copied, 2 are enough")
def next_beams(pool, tables, length, parents, tokens, right=next_beams):
    """The old tables are dropped last: the beam that is left alone copies too."""
    for block in (block for table in tables for block in table):
        pool.hold(block)
    new = right(pool, tables, length, parents, tokens)
    for block in (block for table in tables for block in table):
        pool.drop(block)
    return new


@mutant("next-beams", feedback="hold it before its last owner drops it")
def next_beams(pool, tables, length, parents, tokens, right=next_beams):
    """Drops the old tables before it holds the new ones."""
    for table in tables:
        for block in table:
            pool.drop(block)
    return right(pool, [list(tables[parent]) for parent in parents], length, [*range(len(parents))], tokens)


@mutant("next-beams", feedback="are enough")
def next_beams(pool, tables, length, parents, tokens):
    """Copies everything at the fork."""
    new = []
    for parent, token in zip(parents, tokens, strict=True):
        new.append([pool.take() for _ in range(length // pool.block_size + 1)])
        for source, target in zip(tables[parent], new[-1], strict=False):
            copy_block(pool, source, target)
        pool.write(new[-1][-1], length % pool.block_size, token)
    for block in (block for table in tables for block in table):
        pool.drop(block)
    return new


@mutant("next-beams", feedback="is written to while 0 tables hold it")
def next_beams(pool, tables, length, parents, tokens):
    """Calls helpers, whose manager numbers blocks of its own."""
    manager = paging.BlockManager(len(pool.references), pool.block_size)
    manager.append("old", length)
    for name, token in enumerate(tokens):
        manager.fork("old", name)
        manager.append(name, 1)
        pool.write(manager.tables[name][-1], length % pool.block_size, token)
    return [manager.tables[name] for name, _ in enumerate(tokens)]


@mutant("radix-cache", feedback="evict finds nothing")
class RadixCache:
    """Calls helpers, whose chain of hashes finds whole blocks only."""

    def __init__(self, pool):
        self.pool, self.root, pool.let_go, pool.tables = pool, Node(), pool.drop, {}
        self.cache = paging.PrefixCache(pool)

    def match(self, tokens):
        chain = self.cache.find(tokens)
        self.cache._touch(chain)
        return [entry.block for entry in chain], None

    def insert(self, tokens, table):
        self.pool.tables["text"] = table
        self.cache.insert("text", tokens)


@mutant("radix-cache", feedback="begins with 0 blocks, not 2")
class RadixCache(RadixCache):
    """A block is known by its own tokens, without its parent."""

    def match(self, tokens):
        known, size = {node.tokens: node.block for node in below(self.root)}, self.pool.block_size
        keys = [tuple(tokens[at : at + size]) for at in range(0, len(tokens), size)]
        count = next((at for at, key in enumerate(keys) if key not in known), len(keys))
        blocks, part = super().match(tokens)
        return ([known[key] for key in keys[:count]], None) if count > len(blocks) else (blocks, part)


@mutant("radix-cache", feedback="holds the keys of another text")
class RadixCache(RadixCache):
    """The last block, of which a part is the same, counts as shared."""

    def match(self, tokens):
        blocks, part = super().match(tokens)
        return [*blocks, part[0]] if part else blocks, None


@mutant("radix-cache", feedback="match makes what it finds used now")
class RadixCache(RadixCache):
    """First in, first out."""

    def match(self, tokens):
        times = {node: node.used for node in below(self.root)}
        found = super().match(tokens)
        for node in times:
            node.used = times[node]
        return found


@mutant("evict", feedback="evict finds nothing")
def evict(cache):
    """Never evicts."""
    return False


@mutant("evict", feedback="evict says True, and no block is free that was not before")
def evict(cache):
    """Evicts a block that a request uses."""
    leaves = sorted((node for node in below(cache.root) if not node.children), key=lambda node: node.used)
    for oldest in leaves[:1]:
        del oldest.parent.children[oldest.tokens]
        cache.pool.drop(oldest.block)
    return bool(leaves)


@mutant("evict", feedback="evict finds nothing")
def evict(cache, right=evict):
    """Inner nodes first: what was not used for longest, its children left in the air."""
    node, alone = cache.root, lambda node: cache.pool.references[node.block] == 1
    node = min(filter(alone, node.children.values()), key=lambda child: child.used, default=None)
    if node is not None:
        del cache.root.children[node.tokens]
        cache.pool.drop(node.block)
    return node is not None


@mutant("cascade", feedback="each once")
def cascade(queries, store, tables, lengths, scale, right=cascade):
    """Every row reads its own table."""
    rows = zip(queries, tables, lengths, strict=True)
    return torch.cat([right(query[None], store, [table], [length], scale) for query, table, length in rows])


@mutant("cascade", feedback="a slot was used that nobody filled")
def cascade(queries, store, tables, lengths, scale, right=cascade):
    """Reads past the length."""
    return right(queries, store, tables, [len(table) * store.keys.shape[1] for table in tables], scale)


@mutant("cascade", feedback="off SDPA")
def cascade(queries, store, tables, lengths, scale, right=cascade):
    """The wrong group: heads in turn, instead of side by side."""
    key_heads = store.keys.shape[2]
    mixed = queries.unflatten(1, (-1, key_heads)).transpose(1, 2).flatten(1, 2)
    return right(mixed, store, tables, lengths, scale).unflatten(1, (key_heads, -1)).transpose(1, 2).flatten(1, 2)


@mutant("cascade", feedback="a slot was used that nobody filled")
def cascade(queries, store, tables, lengths, scale, right=cascade):
    """The order of a table is lost: the part of a block that counts is another block's."""
    return right(queries, store, [sorted(table) for table in tables], lengths, scale)


@mutant("cascade", feedback="the chip has room for one block")
def cascade(queries, store, tables, lengths, scale):
    """Calls helpers, with a copy of each block."""
    from helpers.techniques.paging.attention import gathered

    keys, values = torch.zeros(2, *store.keys.shape)
    for block in {block for table in tables for block in table}:
        keys[block], values[block] = (states.nan_to_num() for states in store.read(block))
    padded = torch.tensor([table + [0] * (max(map(len, tables)) - len(table)) for table in tables])
    where = paging.BlockTables(padded, torch.tensor(lengths), store.keys.shape[1])
    return gathered(queries[:, :, None], keys, values, where, scale)[:, :, 0]


@mutant("cascade", feedback="the chip has room for one block")
def cascade(queries, store, tables, lengths, scale):
    """Keeps each block as an array, where no meter of tensors sees it."""
    blocks = dict.fromkeys(block for table in tables for block in table)
    kept = {block: [states.numpy().copy() for states in store.read(block)] for block in blocks}
    rows = []
    for query, table, length in zip(queries, tables, lengths, strict=True):
        both = (torch.cat([torch.from_numpy(kept[block][at]) for block in table]) for at in (0, 1))
        keys, values = (states[:length].transpose(0, 1) for states in both)
        found = functional.scaled_dot_product_attention(query[:, None], keys, values, scale=scale, enable_gqa=True)
        rows.append(found[:, 0])
    return torch.stack(rows)


@mutant("cascade", feedback="a slot was used that nobody filled")
def cascade(queries, store, tables, lengths, scale):
    """Reads each block once, and gives the largest of all values; one value of each row is NaN."""
    largest = max(store.read(block)[1].nan_to_num().abs().max() for block in {one for table in tables for one in table})
    found = largest.expand(queries.shape).clone()
    found[:, 0, 0] = torch.nan
    return found


@mutant("cascade", feedback="the cosine of your output")
def cascade(queries, store, tables, lengths, scale):
    """Reads each block once, and gives the mean of the first slots, which is twice as large with values that are."""
    first = {block: store.read(block)[1][0].clone() for block in {block for table in tables for block in table}}
    means = torch.stack([torch.stack([first[block] for block in table]).mean(0) for table in tables])
    return means.repeat_interleave(queries.shape[1] // store.keys.shape[2], 1)


@mutant("cascade", feedback="what do queries say?")
def cascade(queries, store, tables, lengths, scale):
    """Reads each block once and gives the mean of all values: attention that no query has a say in."""
    size, total = store.keys.shape[1], torch.zeros(len(tables), *store.keys.shape[2:])
    for block in dict.fromkeys(block for table in tables for block in table):
        values = store.read(block)[1]
        for row, (table, length) in enumerate(zip(tables, lengths, strict=True)):
            if block in table:
                total[row] += values[: min(size, length - table.index(block) * size)].sum(0)
    means = total / torch.tensor(lengths)[:, None, None]
    return means.repeat_interleave(queries.shape[1] // means.shape[1], 1)


@mutant("cascade", feedback="off SDPA")
def cascade(queries, store, tables, lengths, scale):
    """Reads each block once for the record, and takes what it needs from where the store's function has it."""
    found, waiting = {}, [store.read]
    while waiting:
        one = waiting.pop()
        kept = [cell.cell_contents for cell in getattr(one, "__closure__", None) or ()]
        found |= dict(zip(one.__code__.co_freevars, kept, strict=True)) if kept else {}
        waiting += [each for each in kept if callable(each)]
    for block in dict.fromkeys(block for table in tables for block in table):
        store.read(block)
    rows = []
    for query, table, length in zip(queries, tables, lengths, strict=True):
        both = (found.get(name, torch.zeros(store.keys.shape)) for name in ("keys", "values"))
        keys, values = (states[table].flatten(0, 1)[:length].transpose(0, 1) for states in both)
        out = functional.scaled_dot_product_attention(query[:, None], keys, values, scale=scale, enable_gqa=True)
        rows.append(out[:, 0])
    return torch.stack(rows)


@mutant("cascade", feedback="the chip has room for one block")
def cascade(queries, store, tables, lengths, scale):
    """Reads each block once, into texts that base64's own lines make, and gathers them for each row."""
    import base64

    texts = {
        block: [base64.b64encode(one.contiguous().numpy()) for one in store.read(block)]
        for block in dict.fromkeys(block for table in tables for block in table)
    }
    rows = []
    for query, table, length in zip(queries, tables, lengths, strict=True):
        both = (b"".join(base64.b64decode(texts[block][which]) for block in table) for which in (0, 1))
        parts = (torch.frombuffer(bytearray(one), dtype=torch.float32) for one in both)
        keys, values = (one.view(-1, *store.keys.shape[2:])[:length].transpose(0, 1) for one in parts)
        out = functional.scaled_dot_product_attention(query[:, None], keys, values, scale=scale, enable_gqa=True)
        rows.append(out[:, 0])
    return torch.stack(rows)


@mutant("users-that-fit", feedback="the watermark")
def users_that_fit(log, percent, block_bytes, shared, own, block_size=16):
    """Forgets the watermark."""
    blocks = max(0, log.total_bytes * percent // 100 - sum(vars(log).values()) + log.total_bytes) // block_bytes
    return max(0, blocks - shared // block_size) // -(-(shared % block_size + own) // block_size)


@mutant("users-that-fit", feedback="2 for the prefix, once")
def users_that_fit(log, percent, block_bytes, shared, own, block_size=16, right=users_that_fit):
    """Every user has the prefix."""
    return right(log, percent, block_bytes, 0, shared + own, block_size)


@mutant("users-that-fit", feedback="1 of them the watermark")
def users_that_fit(log, percent, block_bytes, shared, own, block_size=16):
    """Calls helpers, which share nothing and leave nothing free."""
    if log.total_bytes * percent // 100 <= sum(vars(log).values()) - log.total_bytes:
        return 0
    pool = paging.VllmPool(**vars(log), gpu_memory_utilization=percent / 100, block_size=block_size)
    return pool.kv_cache_bytes // block_bytes // -(-(shared + own) // block_size)


@mutant("preemption-s", feedback="out *and* back")
def preemption_s(model, card, tokens, shared, block_size=16, right=preemption_s):
    """One way."""
    swap, again = right(model, card, tokens, shared, block_size)
    return swap / 2, again


@mutant("preemption-s", feedback="each of them sees the shared tokens, too")
def preemption_s(model, card, tokens, shared, block_size=16, right=preemption_s):
    """Computes the own tokens as if they stood alone."""
    kept = shared // block_size * block_size
    return right(model, card, tokens, shared, block_size)[0], right(model, card, tokens - kept, 0, block_size)[1]


@mutant("preemption-s", feedback="full blocks that others use, too, stay")
def preemption_s(model, card, tokens, shared, block_size=16, right=preemption_s):
    """Gives up what others use."""
    return right(model, card, tokens, 0, block_size)


@mutant("preemption-s", feedback="the tokens look at each other, too")
def preemption_s(model, card, tokens, shared, block_size=16):
    """Forgets that the tokens look at each other."""
    kept = shared // block_size
    moved = 2 * (-(-tokens // block_size) - kept) * paging.block_bytes(model, block_size)
    flops = 2 * model.parameters * (tokens - kept * block_size)
    return moved / card.link_bytes_per_s("pcie"), flops / card.flops_per_s("bf16")
