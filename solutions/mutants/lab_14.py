"""Known-wrong answers to lab 14. Each must fail its check, with the sentence that its learner then reads.

A function with itself for the default `right` changes one thing in the worked answer, which the kernel holds at that
moment.
"""

# ruff: noqa: F811, F821  (they are put into the lab's cells, where these names are defined)

from helpers.course.mutants import mutant


@mutant("pack-rows", feedback="3 rows, 2 are enough")
def pack_rows(lengths, room):
    """First fit in the order in which they came."""
    rows = []
    for index, length in enumerate(lengths):
        for row in rows:
            if sum(lengths[one] for one in row) + length <= room:
                row.append(index)
                break
        else:
            rows.append([index])
    return rows


@mutant("pack-rows", feedback="look for room in every open row")
def pack_rows(lengths, room):
    """Longest first, and only the last row is open."""
    rows, left = [], 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if lengths[index] > left:
            rows.append([])
            left = room
        rows[-1].append(index)
        left -= lengths[index]
    return rows


@mutant("pack-rows", feedback="3 rows, 2 are enough")
def pack_rows(lengths, room, right=pack_rows):
    """A row is never filled to its last slot."""
    long = [index for index, length in enumerate(lengths) if length == room]
    short = [index for index, length in enumerate(lengths) if length < room]
    rows = right([lengths[index] for index in short], room - 1)
    return [[short[at] for at in row] for row in rows] + [[index] for index in long]


@mutant("pack-rows", feedback="is in no row")
def pack_rows(lengths, room, right=pack_rows):
    """Full rows are handed out, and the last one is forgotten."""
    return right(lengths, room)[:-1]


@mutant("row-inputs", feedback="sees nobody, not even itself: its softmax is NaN")
def row_inputs(row_lengths, room, window=None):
    """Calls helpers, and leaves padding without anybody to see."""
    from helpers.techniques.scheduling import batching

    used = sum(row_lengths)
    positions, mask = torch.zeros(room, dtype=torch.long), torch.zeros(room, room, dtype=torch.bool)
    positions[:used] = torch.cat([torch.arange(length) for length in row_lengths])
    mask[:used, :used] = batching.block_diagonal(row_lengths)
    return positions, mask


@mutant("row-inputs", feedback="and should see itself alone")
def row_inputs(row_lengths, room, window=None, right=row_inputs):
    """Calls helpers: padding is one more sequence, whose slots see each other."""
    from helpers.techniques.scheduling import batching

    positions, mask = right(row_lengths, room, window)
    if padding := room - sum(row_lengths):
        mask[-padding:] = batching.block_diagonal([*row_lengths, padding])[-padding:]
    return positions, mask


@mutant("row-inputs", feedback="has another output than alone; positions there are")
def row_inputs(row_lengths, room, window=None, right=row_inputs):
    """Positions run on through the row."""
    return torch.arange(room), right(row_lengths, room, window)[1]


@mutant("row-inputs", feedback="itself and at most 0 before it")
def row_inputs(row_lengths, room, window=None, right=row_inputs):
    """The window does not count the token itself."""
    return right(row_lengths, room, None if window is None else window + 1)


@mutant("row-inputs", feedback="changes with other neighbours or padding")
def row_inputs(row_lengths, room, window=None, right=row_inputs):
    """With a window, forgets where a sequence ends."""
    positions, mask = right(row_lengths, room, window)
    if window is not None:
        slots, used = torch.arange(room), sum(row_lengths)
        back = slots[:, None] - slots
        mask[:used] = ((back >= 0) & (back < window))[:used]
    return positions, mask


@mutant("row-inputs", feedback="bytes a pair; bool takes 1")
def row_inputs(row_lengths, room, window=None, right=row_inputs):
    """Ones and zeros as floats."""
    positions, mask = right(row_lengths, room, window)
    return positions, mask.float()


@mutant("row-inputs", feedback="padding has 0, and yours are")
def row_inputs(row_lengths, room, window=None, right=row_inputs):
    """Positions between the slots: a model rounds them down."""
    positions, mask = right(row_lengths, room, window)
    return positions + 0.5, mask


@mutant("row-inputs", feedback="padding has 0, and yours are")
def row_inputs(row_lengths, room, window=None, right=row_inputs):
    """Positions run on in the padding."""
    positions, mask = right(row_lengths, room, window)
    used = sum(row_lengths)
    positions[used:] = torch.arange(room - used) + 5
    return positions, mask


@mutant("row-inputs", feedback="itself and at most 11 before it")
def row_inputs(row_lengths, room, window=None, right=row_inputs):
    """A window that is larger than most sequences is taken for none."""
    return right(row_lengths, room, window if window is None or window <= 6 else None)


@mutant("row-inputs", feedback="does not see token 0 before it")
def row_inputs(row_lengths, room, window=None, right=row_inputs):
    """A token sees itself and the one before it, and no more."""
    return right(row_lengths, room, min(window or 2, 2))


@mutant("peak-blocks", feedback="has given its two blocks back")
def peak_blocks(sequences, block_size):
    """Adds up what everybody holds at the end."""
    return sum(-(-most // block_size) for _, most in sequences)


@mutant("peak-blocks", feedback="both are there until the end")
def peak_blocks(sequences, block_size):
    """Adds up what everybody holds now."""
    return sum(-(-tokens // block_size) for tokens, _ in sequences)


@mutant("peak-blocks", feedback="gives back its block in the step")
def peak_blocks(sequences, block_size):
    """Blocks are given back one step too late."""
    return max(
        (
            sum(-(-min(now + step, most) // block_size) for now, most in sequences if now + step <= most + 1)
            for step in range(max((most - now for now, most in sequences), default=-1) + 1)
        ),
        default=0,
    )


@mutant("peak-blocks", feedback="3 blocks at the peak, you have 2")
def peak_blocks(sequences, block_size):
    """Only the sequence that ends last counts, and those that go with it to the end are forgotten."""
    return max((-(-most // block_size) for _, most in sequences), default=0)


@mutant("peak-blocks", feedback="the peak of 63 comes after a thousand steps")
def peak_blocks(sequences, block_size):
    """Looks a hundred steps ahead."""
    steps = [[tokens + step for tokens, most in sequences if tokens + step <= most] for step in range(100)]
    return max(sum(-(-tokens // block_size) for tokens in there) for there in steps)


@mutant("peak-blocks", feedback="the peak is in step 1")
def peak_blocks(sequences, block_size):
    """Looks at every second step."""
    last = max((most - tokens for tokens, most in sequences), default=0)
    steps = [[tokens + step for tokens, most in sequences if tokens + step <= most] for step in range(0, last + 1, 2)]
    return max(sum(-(-tokens // block_size) for tokens in there) for there in steps)


@mutant("admits", feedback="is refused, although")
def admits(running, candidate, blocks, block_size):
    """Calls helpers, whose rule adds up what everybody holds at the end."""
    from helpers.techniques import scheduling

    if max(most for _, most in [*running, candidate]) > blocks * block_size:
        return False
    scheduler = scheduling.Scheduler(scheduling.Policy(admission="to-the-end"), blocks, block_size)
    for tokens, most in [*running, candidate]:
        scheduler.submit(range(tokens), max(1, most - tokens))
    return len(scheduler.schedule(0.0).chunks) > len(running)


@mutant("admits", feedback="is admitted, although")
def admits(running, candidate, blocks, block_size):
    """Looks at what is free now."""
    return sum(-(-tokens // block_size) for tokens, _ in [*running, candidate]) <= blocks


@mutant("admits", feedback="is refused, although")
def admits(running, candidate, blocks, block_size):
    """Keeps one block free."""
    return peak_blocks([*running, candidate], block_size) < blocks


@mutant("admits", feedback="is refused, although")
def admits(running, candidate, blocks, block_size):
    """Compares the candidate with what the others leave now, and forgets that they grow."""
    now = sum(-(-tokens // block_size) for tokens, _ in running)
    return now + -(-candidate[1] // block_size) <= blocks


@mutant("read-log", feedback="7 steps of a request in 5 steps")
def read_log(log, blocks, block_size, right=read_log):
    """Leaves out the last step of each entry."""
    return right([(name, step, first, max(first, last - 1)) for name, step, first, last in log], blocks, block_size)


@mutant("read-log", feedback="tokens are computed again")
def read_log(log, blocks, block_size, right=read_log):
    """Counts the first admission, too."""
    running, idle, _ = right(log, blocks, block_size)
    return running, idle, sum(first for _, _, first, _ in log)


@mutant("read-log", feedback="a block that is half full is held")
def read_log(log, blocks, block_size, right=read_log):
    """Counts the slots that no token fills as idle."""
    running, _, again = right(log, blocks, block_size)
    return running, right(log, blocks * block_size, 1)[1], again


@mutant("read-log", feedback="nobody runs in steps 0 to 2, and they count")
def read_log(log, blocks, block_size, right=read_log):
    """Counts the steps from the first entry on."""
    begun = min(step for _, step, _, _ in log)
    return right([(name, step - begun, first, last) for name, step, first, last in log], blocks, block_size)


@mutant("read-log", feedback="nobody runs in steps 0 to 2, and they count")
def read_log(log, blocks, block_size, right=read_log):
    """Counts the steps in which somebody runs."""
    running, idle, again = right(log, blocks, block_size)
    busy = {now for _, step, first, last in log for now in range(step, step + last - first + 1)}
    more = (max(busy) + 1) / len(busy)
    return running * more, 1 - (1 - idle) * more, again


@mutant("who-is-where", feedback="gaps")
def who_is_where(row, answer, right=who_is_where):
    """Calls helpers, whose rows take an answer to have as many gaps as tokens."""
    return nim.Row(*row).running, right(row, answer)[1]


@mutant("who-is-where", feedback="wait for their first token")
def who_is_where(row, answer, right=who_is_where):
    """Whoever does not decode must be waiting: takes the table to be free of errors."""
    decoding = right(row, answer)[0]
    return decoding, row[0] - decoding


@mutant("ttft-beyond", feedback="s to the first token")
def ttft_beyond(row, answer, clients):
    """Calls helpers, whose roofline knows one service only."""
    from helpers.techniques import scheduling

    fit = nim.users_that_fit()
    return scheduling.steady(nim.roofline(), clients, fit, nim.PROMPT, answer).ttft_s


@mutant("ttft-beyond", feedback="does not grow in proportion")
def ttft_beyond(row, answer, clients):
    """Twice the clients, twice the wait."""
    return row[1] * clients / row[0]


@mutant("ttft-beyond", feedback="does not grow in proportion")
def ttft_beyond(row, answer, clients):
    """Forgets that whoever decodes does not wait."""
    return clients * answer / row[3]


@mutant("most-users", feedback="the time between tokens sets the limit")
def most_users(rows, answer, ttft_s, itl_s):
    """The largest concurrency of the table that keeps both limits."""
    return max((row[0] for row in rows if row[1] <= ttft_s and row[2] <= itl_s), default=0)


@mutant("most-users", feedback="the time between tokens sets the limit")
def most_users(rows, answer, ttft_s, itl_s, right=most_users):
    """Looks at the time to the first token alone."""
    return right(rows, answer, ttft_s, 1e9)


@mutant("most-users", feedback="nobody can be served")
def most_users(rows, answer, ttft_s, itl_s, right=most_users):
    """Forgets that a prompt takes its time, even on an empty card."""
    highest = max(row[3] for row in rows)
    return right(rows, answer, max(ttft_s, *(row[1] for row in rows if row[3] < 0.98 * highest)), itl_s)


@mutant("most-users", feedback="are users too")
def most_users(rows, answer, ttft_s, itl_s, right=most_users):
    """Takes the time of a prompt from the first row, where it has the card for itself."""
    quick = [(row[0], min(row[1], rows[0][1]), *row[2:]) for row in rows]
    return right(quick if ttft_s >= rows[0][1] else rows, answer, ttft_s, itl_s)


@mutant("most-users", feedback="on lines between the rows")
def most_users(rows, answer, ttft_s, itl_s, right=most_users):
    """One straight line, from the first row to the first full one."""
    cut = next(at for at, row in enumerate(rows) if row[3] >= 0.98 * max(row[3] for row in rows))
    ends = [rows[0], (*rows[cut - 1][:3], 0.0), rows[cut]]
    decoding = [row[3] * row[2] for row in (rows[0], rows[cut - 1], rows[cut])]
    middle = rows[0][2] + (rows[cut][2] - rows[0][2]) * (decoding[1] - decoding[0]) / (decoding[2] - decoding[0])
    ends[1] = (rows[cut - 1][0], rows[cut - 1][1], middle, decoding[1] / middle)
    return right([*ends, *rows[cut + 1 :]], answer, ttft_s, itl_s)


@mutant("most-users", feedback="from the first full row")
def most_users(rows, answer, ttft_s, itl_s, right=most_users):
    """Full is what has 90 % of the highest throughput."""
    highest = max(row[3] for row in rows)
    return right([(*row[:3], highest if row[3] > 0.9 * highest else row[3]) for row in rows], answer, ttft_s, itl_s)


@mutant("most-users", feedback="from the first full row")
def most_users(rows, answer, ttft_s, itl_s, right=most_users):
    """Takes the last of the full rows."""
    highest = max(row[3] for row in rows)
    first = next(at for at, row in enumerate(rows) if row[3] >= 0.98 * highest)
    return right([*rows[:first], rows[-1]], answer, ttft_s, itl_s)


@mutant("most-users", feedback="are users too")
def most_users(rows, answer, ttft_s, itl_s, right=most_users):
    """Takes those who decode for all users."""
    users = right(rows, answer, ttft_s, itl_s)
    if itl_s >= max(row[2] for row in rows) or not users:
        return users
    below = [row for row in rows if row[2] <= itl_s][-1]
    above = next(row for row in rows if row[2] > itl_s)
    share = (itl_s - below[2]) / (above[2] - below[2])
    decoding = [row[3] / answer * row[2] * (answer - 1) for row in (below, above)]
    return int(decoding[0] + share * (decoding[1] - decoding[0]))


@mutant("tail-scheduler", feedback="a job that only gets what chat leaves starves")
class TailScheduler(TailScheduler):
    """Strict priority: batch gets the tokens that chat leaves."""

    def __init__(self, blocks, budget):
        super().__init__(blocks, budget)
        self.kept_tokens = 0


@mutant("tail-scheduler", feedback="a job that only gets what chat leaves starves")
class TailScheduler(TailScheduler):
    """Shortest first: whoever has the least to do, so never a long job."""

    def __init__(self, blocks, budget):
        super().__init__(blocks, budget)
        self.kept_tokens = 0

    def plan(self, now, waiting, running, free):
        length = {job.number: job.prompt + job.most for job in (*waiting, *running)}
        order = sorted(length, key=length.get)
        place, name = {number: at for at, number in enumerate(order)}, dict(enumerate(order))
        waiting, running = ([job._replace(number=place[job.number]) for job in jobs] for jobs in (waiting, running))
        chunks, preempted = super().plan(now, waiting, running, free)
        return {name[at]: tokens for at, tokens in chunks.items()}, [name[at] for at in preempted]


@mutant("tail-scheduler", feedback="Who is admitted first, and what is left for chat?")
class TailScheduler(TailScheduler):
    """First come, first served, in chunks: everybody is of one kind."""

    def plan(self, now, waiting, running, free):
        waiting, running = ([job._replace(kind="batch") for job in jobs] for jobs in (waiting, running))
        return super().plan(now, waiting, running, free)


@mutant("tail-scheduler", feedback="decodes count too, and a prompt that is longer goes in chunks")
class TailScheduler(TailScheduler):
    """Whole prompts: no chunk is cut."""

    def plan(self, now, waiting, running, free):
        chunks, preempted = super().plan(now, waiting, running, free)
        todo = {job.number: job.todo for job in (*waiting, *running)}
        return {number: todo[number] for number in chunks}, preempted


@mutant("tail-scheduler", feedback="for the single tokens of jobs whose last block is full")
class TailScheduler:
    """Counts the blocks of prompts, and none for the tokens that are generated."""

    def __init__(self, blocks, budget):
        self.budget = budget

    def plan(self, now, waiting, running, free):
        chunks, left = {}, self.budget
        jobs = sorted((*running, *waiting), key=lambda job: (job.todo > 1, job.kind == "batch", job.number))
        for job in jobs:
            needed = -(-(job.computed + job.todo) // BLOCK_TOKENS) - job.blocks if job.todo > 1 else 0
            if left and needed <= free:
                chunks[job.number] = min(job.todo, left)
                free, left = free - needed, left - chunks[job.number]
        return chunks, []


@mutant("tail-scheduler", feedback="see 0 free blocks; somebody must be computed, or give way")
class TailScheduler(TailScheduler):
    """Never preempts: a job that has no room waits for some."""

    def plan(self, now, waiting, running, free):
        stuck = [job for job in running if job.todo == 1 and job.computed == job.blocks * BLOCK_TOKENS]
        inside = [job for job in running if job not in stuck]
        chunks, preempted = super().plan(now, waiting, inside, max(0, free - len(stuck)))
        chunks |= {job.number: 1 for job in stuck[: min(free, self.budget - sum(chunks.values()))]}
        return chunks, preempted


@mutant("tail-scheduler", feedback="tokens of preempted jobs were lost")
class TailScheduler(TailScheduler):
    """Preempts every batch job whenever somebody waits for chat."""

    def plan(self, now, waiting, running, free):
        if all(job.kind == "batch" for job in waiting):
            return super().plan(now, waiting, running, free)
        jobs = [job for job in running if job.kind == "batch"]
        waiting, running = ([one for one in many if one.kind == "chat"] for many in (waiting, running))
        chunks, preempted = super().plan(now, waiting, running, free + sum(job.blocks for job in jobs))
        return chunks, preempted + [job.number for job in jobs]


@mutant("tail-scheduler", feedback="do jobs run beside chat, several at a time, and stay?")
class TailScheduler(TailScheduler):
    """One batch job at a time."""

    def plan(self, now, waiting, running, free):
        jobs = [job for job in sorted(waiting) if job.kind == "batch"]
        room = [] if any(job.kind == "batch" for job in running) else jobs[:1]
        return super().plan(now, [job for job in waiting if job.kind == "chat"] + room, running, free)


@mutant("tail-scheduler", feedback="is preempted, and does not run")
class TailScheduler(TailScheduler):
    """Lets whoever waits longest give way, although nothing is held by them."""

    def plan(self, now, waiting, running, free):
        chunks, preempted = super().plan(now, waiting, running, free)
        return chunks, preempted + [job.number for job in waiting if job.number not in chunks][:1]


@mutant("tail-scheduler", feedback="an object of Scheduler made")
class TailScheduler:
    """Calls helpers: their scheduler, with priorities and chunks, on requests of its own."""

    def __init__(self, blocks, budget):
        from helpers.techniques.scheduling.policy import Policy

        policy = Policy(order="priority", token_budget=budget, max_running=budget)
        self.inner, self.known = scheduling.Scheduler(policy, blocks, BLOCK_TOKENS), {}

    def plan(self, now, waiting, running, free):
        for job in sorted(waiting):
            if job.number not in self.known:
                prompt, priority = [0] * job.prompt, int(job.kind == "batch")
                self.known[job.number] = self.inner.submit(prompt, job.most, job.arrived_s, job.kind, priority)
        numbers = {sequence: number for number, sequence in self.known.items()}
        ran = {job.number for job in running}
        for number in [one for one in self.known if one not in ran | {job.number for job in waiting}]:
            self.inner.cancel(self.known[number])
        plan = self.inner.schedule(now)
        self.inner.complete(plan, dict.fromkeys(self.inner.generates(plan), 0), now)
        chunks = {numbers[chunk.sequence]: chunk.tokens for chunk in plan.chunks}
        return chunks, [number for number in ran if self.known[number] in self.inner.waiting]


@mutant("tail-scheduler", feedback="a function is called that knows the answer")
class TailScheduler:
    """Calls helpers without making an object of their class: a class of its own that inherits their methods."""

    def __init__(self, blocks, budget):
        from types import SimpleNamespace

        from helpers.techniques.scheduling.policy import Policy

        class Own(scheduling.Scheduler):
            def __init__(self):
                self.policy, self.waiting, self.running, self._moves = Policy(token_budget=budget), [], [], []
                self.manager = SimpleNamespace(block_size=BLOCK_TOKENS, available=blocks)

        self.inner = Own()

    def plan(self, now, waiting, running, free):
        return {chunk.sequence: chunk.tokens for chunk in self.inner._admit(now, 1)}, []


@mutant("router", feedback="Do all turns of a conversation go to one replica")
class Router:
    """Round robin."""

    def __init__(self, replicas, block_size):
        self.replicas, self.last = replicas, 0

    def route(self, prompt, open_counts):
        self.last += 1
        return self.last % self.replicas


@mutant("router", feedback="others where there is too much load")
class Router(Router):
    """Follows prefixes to where a third more is open than allowed."""

    def route(self, prompt, open_counts):
        return super().route(prompt, tuple(0.6 * count for count in open_counts))


@mutant("router", feedback="what will no prompt begin with again?")
class Router(Router):
    """Remembers where every block of every prompt was sent, without a limit."""

    def __init__(self, replicas, block_size):
        self.block_size, self.sent = block_size, {}

    def route(self, prompt, open_counts):
        chain, before = [], 0
        for at in range(0, len(prompt) - self.block_size + 1, self.block_size):
            before = hash((before, *prompt[at : at + self.block_size]))
            chain.append(before)
        most = LOAD * (sum(open_counts) + 1) / len(open_counts) + SLACK
        allowed = [at for at, count in enumerate(open_counts) if count + 1 <= most]
        chosen = next((self.sent[number] for number in reversed(chain) if number in self.sent), None)
        chosen = chosen if chosen in allowed else min(allowed, key=open_counts.__getitem__)
        self.sent.update(dict.fromkeys(chain, chosen))
        return chosen


class Elsewhere(Router):
    """Remembers every prompt without a limit, in what `table` returns."""

    def __init__(self, replicas, block_size):
        super().__init__(replicas, block_size)
        self.most = 10**6

    @property
    def sent(self):
        return self.table()

    @sent.setter
    def sent(self, table):
        pass


class Hoards(Router):
    """Keeps of every prompt what `keep` does with it."""

    def __init__(self, replicas, block_size):
        super().__init__(replicas, block_size)
        self.more = self.nothing()

    def nothing(self):
        return []

    def route(self, prompt, open_counts):
        self.keep(prompt)
        return super().route(prompt, open_counts)


@mutant("router", feedback="Do all turns of a conversation go to one replica")
class Router(Elsewhere):
    """Remembers every prompt, in a global of the notebook."""

    def table(self):
        return globals().setdefault("T", OrderedDict())


@mutant("router", feedback="Do all turns of a conversation go to one replica")
class Router(Elsewhere):
    """Remembers every prompt, in an attribute of its own method."""

    def table(self):
        return vars(Router.route).setdefault("sent", OrderedDict())


@mutant("router", feedback="Do all turns of a conversation go to one replica")
class Router(Elsewhere):
    """Remembers every prompt, in a variable of its context."""

    from contextvars import ContextVar

    held = ContextVar("held")

    def table(self):
        if self.held.get(None) is None:
            self.held.set(OrderedDict())
        return self.held.get()


@mutant("router", feedback="Do all turns of a conversation go to one replica")
class Router(Elsewhere):
    """Remembers every prompt, in a class that says it is PyTorch's."""

    class Table:
        __module__ = "torch"
        sent = OrderedDict()

    def table(self):
        return self.Table.sent


@mutant("router", feedback="Do all turns of a conversation go to one replica")
class Router(Elsewhere):
    """Remembers every prompt, in a name of a library's module."""

    def table(self):
        return vars(random).setdefault("sent", OrderedDict())


@mutant("router", feedback="Do all turns of a conversation go to one replica")
class Router(Elsewhere):
    """Remembers every prompt, in a library's own cache."""

    def table(self):
        import linecache

        return linecache.cache.setdefault("sent", OrderedDict())


@mutant("router", feedback="Do all turns of a conversation go to one replica")
class Router(Elsewhere):
    """Remembers every prompt, in a module that a method imports."""

    def table(self):
        import colorsys

        return vars(colorsys).setdefault("sent", OrderedDict())


@mutant("router", feedback="Do all turns of a conversation go to one replica")
class Router(Elsewhere):
    """Remembers every prompt, in the default of an argument."""

    def table(self, sent=OrderedDict()):  # noqa: B008
        return sent


@mutant("router", feedback="Do all turns of a conversation go to one replica")
class Router(Elsewhere):
    """Remembers every prompt, in a closure."""

    def closed():
        sent = OrderedDict()
        return lambda: sent

    table = staticmethod(closed())


@mutant("router", feedback="Do all turns of a conversation go to one replica")
class Router(Elsewhere):
    """Remembers every prompt, in the frame of a generator."""

    def keep():
        sent = OrderedDict()
        while True:
            yield sent

    frame = keep()

    def table(self):
        return next(self.frame)


@mutant("router", feedback="Do all turns of a conversation go to one replica")
class Router(Elsewhere):
    """Remembers every prompt, in an attribute of a tensor."""

    mark = None

    def table(self):
        self.mark = torch.zeros(1) if self.mark is None else self.mark
        return vars(self.mark).setdefault("sent", OrderedDict())


@mutant("router", feedback="Do all turns of a conversation go to one replica")
class Router(Elsewhere):
    """Remembers every prompt, in an array of objects, of which its attribute is an empty view."""

    mark = numpy.zeros(0)

    def table(self):
        if self.mark.base is None:
            self.mark = numpy.array([OrderedDict()], dtype=object)[:0]
        return self.mark.base[0]


@mutant("router", feedback="what will no prompt begin with again?")
class Router(Hoards):
    """Remembers the end of every prompt, in attributes of a whole number of a class of its own."""

    class Number(int):
        pass

    def nothing(self):
        return self.Number()

    def keep(self, prompt):
        setattr(self.more, str(prompt[-4:]), 1)


@mutant("router", feedback="what will no prompt begin with again?")
class Router(Hoards):
    """Remembers the end of every prompt, in an array of objects."""

    def nothing(self):
        return numpy.array([{}])

    def keep(self, prompt):
        self.more[0][prompt[-4:]] = 1


@mutant("router", feedback="what will no prompt begin with again?")
class Router(Hoards):
    """Remembers the end of every prompt, in attributes of a text of bytes."""

    def nothing(self):
        return type("Text", (bytes,), {})()

    def keep(self, prompt):
        setattr(self.more, str(prompt[-4:]), 1)


@mutant("router", feedback="what will no prompt begin with again?")
class Router(Hoards):
    """Remembers the end of every prompt, in the states of random numbers."""

    def keep(self, prompt):
        self.more.append(random.Random(str(prompt[-4:])))


@mutant("router", feedback="what will no prompt begin with again?")
class Router(Hoards):
    """Remembers the end of every prompt, in what will be counted next."""

    def keep(self, prompt):
        import itertools

        self.more.append(itertools.count(hash(prompt[-4:])))


@mutant("router", feedback="what will no prompt begin with again?")
class Router(Hoards):
    """Remembers the end of every prompt, in ranges."""

    def keep(self, prompt):
        self.more.append(range(*prompt[-2:], 1 + prompt[-3]))


@mutant("router", feedback="what will no prompt begin with again?")
class Router(Hoards):
    """Remembers the end of every prompt, in names of attributes."""

    def keep(self, prompt):
        setattr(self, str(prompt[-4:]), 1)


@mutant("router", feedback="what will no prompt begin with again?")
class Router(Hoards):
    """Remembers prompts, in which of two empty lists stands where."""

    bits = None

    def keep(self, prompt):
        self.bits = self.bits or ([], [])
        self.more += [self.bits[token % 2] for token in prompt[-99:]]


@mutant("router", feedback="what will no prompt begin with again?")
class Router(Hoards):
    """Remembers the end of every prompt, in classes made for it."""

    def keep(self, prompt):
        self.more.append(type(str(prompt[-4:]), (), {}))


@mutant("router", feedback="cannot go on in another process")
class Router(Hoards):
    """Remembers the end of every prompt, in the locals of a generator among its attributes."""

    def nothing(self):
        keeper = self.kept()
        next(keeper)
        return keeper

    def kept(self):
        sent = []
        while True:
            sent.extend((yield))

    def keep(self, prompt):
        self.more.send(prompt[-4:])


@mutant("router", feedback="what will no prompt begin with again?")
class Router(Hoards):
    """Remembers the end of every prompt, in a text of characters that hold three bytes each."""

    def nothing(self):
        return ""

    def keep(self, prompt):
        self.more += "".join(chr(0x10000 + token) for token in prompt[-8:])


@mutant("router", feedback="load and memory count for a router that follows prefixes")
class Router:
    """The replica is a hash of the first block, and nothing is remembered."""

    def __init__(self, replicas, block_size):
        self.replicas, self.block_size = replicas, block_size

    def route(self, prompt, open_counts):
        most = LOAD * (sum(open_counts) + 1) / self.replicas + SLACK
        order = [(hash(prompt[: self.block_size]) + at) % self.replicas for at in range(self.replicas)]
        return next(at for at in order if open_counts[at] + 1 <= most)


@mutant("router", feedback="does a new one join its system prompt?")
class Router(Router):
    """Remembers every block within the limit: so many of one prompt push out all the others."""

    def __init__(self, replicas, block_size):
        self.block_size, self.sent = block_size, OrderedDict()

    def route(self, prompt, open_counts):
        chain, before = [], 0
        for at in range(0, len(prompt) - self.block_size + 1, self.block_size):
            before = hash((before, *prompt[at : at + self.block_size]))
            chain.append(before)
        most = LOAD * (sum(open_counts) + 1) / len(open_counts) + SLACK
        allowed = [at for at, count in enumerate(open_counts) if count + 1 <= most]
        chosen = next((self.sent[number] for number in reversed(chain) if number in self.sent), None)
        chosen = chosen if chosen in allowed else min(allowed, key=open_counts.__getitem__)
        for number in reversed(chain):
            self.sent[number] = chosen
            self.sent.move_to_end(number)
        while len(self.sent) > MOST_BYTES // 16:
            self.sent.popitem(last=False)
        return chosen


@mutant("router", feedback="Do all turns of a conversation go to one replica")
class Router(Router):
    """Looks at the first block alone: who has the same system prompt meets, and the turns of a conversation part."""

    def route(self, prompt, open_counts):
        return super().route(prompt[: self.block_size], open_counts)


@mutant("router", feedback="Do all turns of a conversation go to one replica")
class Router:
    """Calls helpers: the least loaded, which is all that their routers see without caches."""

    def __init__(self, replicas, block_size):
        pass

    def route(self, prompt, open_counts):
        from types import SimpleNamespace

        from helpers.techniques.scheduling.routing import ROUTERS

        servers = [SimpleNamespace(open=range(count)) for count in open_counts]
        return ROUTERS["load"](None, servers, 0)
