"""Right answers to lab 14, written otherwise than the worked ones: the checks must give each all of its points."""

# ruff: noqa: F821, N801  (they run where the lab's names are defined)

from __future__ import annotations


def pack_rows_best_fit(lengths, room):
    """Best fit instead of first fit; tuples, and a print that was left."""
    import numpy as np

    rows = []
    for index in np.argsort(lengths)[::-1]:
        fits = [row for row in rows if sum(lengths[one] for one in row) + lengths[index] <= room]
        if fits:
            max(fits, key=lambda row: sum(lengths[one] for one in row)).append(index)
        else:
            rows.append([index])
    print(len(rows), "rows")
    return (tuple(row) for row in rows)


def row_inputs_slot_by_slot(row_lengths, room, window=None):
    """Lists for the positions, and a mask that is filled row by row."""
    mask, positions, start = torch.eye(room, dtype=torch.bool), [], 0
    for length in row_lengths:
        for place in range(length):
            first = 0 if window is None else max(0, place + 1 - window)
            mask[start + place, start + first : start + place + 1] = True
            positions.append(place)
        start += length
    return positions + [0] * (room - start), mask


def row_inputs_in_numpy(row_lengths, room, window=None):
    """NumPy's arrays, blocks of lower triangles."""
    import numpy as np

    mask, positions, at = np.eye(room, dtype=bool), np.zeros(room, dtype=np.int32), 0
    for length in row_lengths:
        block = np.tri(length, dtype=bool)
        if window is not None:
            block &= ~np.tri(length, k=-window, dtype=bool)
        mask[at : at + length, at : at + length] = block
        positions[at : at + length] = np.arange(length)
        at += length
    return positions, mask


def peak_blocks_block_by_block(sequences, block_size):
    """Goes through every step, with NumPy."""
    import numpy as np

    steps = max((most - tokens for tokens, most in sequences), default=0) + 1
    held = np.zeros(steps, dtype=np.int64)
    for tokens, most in sequences:
        held[: most - tokens + 1] += np.ceil(np.arange(tokens, most + 1) / block_size).astype(np.int64)
    return held.max()


def admits_by_playing(running, candidate, blocks, block_size):
    """Plays the service until somebody finds no block."""
    going = [*running, candidate]
    while going:
        if sum((tokens + block_size - 1) // block_size for tokens, _ in going) > blocks:
            return False
        going = [(tokens + 1, most) for tokens, most in going if tokens + 1 <= most]
    return True


def read_log_in_one_pass(log, blocks, block_size):
    """Sums of steps, and a dict of the earliest entries."""
    length = lived = held = again = 0
    earliest = {}
    for name, step, first, last in log:
        length = max(length, step + last - first)
        lived += last + 1 - first
        held += sum((tokens - 1) // block_size + 1 for tokens in range(first, last + 1))
        earliest[name] = min(step, earliest.get(name, step))
    for name, step, first, _last in log:
        if step != earliest[name]:
            again += first
    return [lived / (length + 1), (blocks * (length + 1) - held) / blocks / (length + 1), float(again)]


def who_is_where_as_shares(row, answer):
    """Stages as shares of a request's time."""
    import numpy as np

    requests_per_s = np.float64(row[3]) / answer
    gaps = np.full(answer - 1, row[2])
    return np.array([gaps.sum(), row[1]]) * requests_per_s


def ttft_beyond_from_the_row(row, answer, clients):
    """What a client more waits, on top of the row's own time."""
    known, ttft_s, _, tokens_per_s = row
    return ttft_s + (clients - known) * answer / tokens_per_s


def most_users_one_by_one(rows, answer, ttft_s, itl_s):
    """Raises the clients one by one, and finds how many of them decode by going on until it stands still."""
    import numpy as np

    gaps, highest = answer - 1, max(row[3] for row in rows)
    full = next(at for at, row in enumerate(rows) if row[3] >= 0.98 * highest)
    lines = [row[3] * row[2] * gaps / answer for row in rows[: full + 1]], [row[2] for row in rows[: full + 1]]
    prompt_s, (_, _, full_s, rate) = rows[full - 1][1], rows[full]
    if rows[0][2] > itl_s:
        return 0
    users = 0
    while users < 5000:
        clients, now = users + 1, 0.0
        for _ in range(300):
            itl = np.interp(now, *lines)
            now = (now + clients * itl * gaps / (prompt_s + itl * gaps)) / 2
        first_s = prompt_s
        if itl >= full_s * (1 - 1e-9) or itl_s >= full_s:
            first_s = max(prompt_s, clients * answer / rate - full_s * gaps)
        if first_s > ttft_s or itl > itl_s:
            break
        users = clients
    return float(users)


class TailScheduler_reserves_to_the_end:
    """Admits only who has room for the longest answer, so nobody is preempted; a part of the pool for each kind."""

    def __init__(self, blocks, budget):
        self.blocks, self.budget = blocks, budget

    def longest(self, job):
        return -(-(job.prompt + job.most) // BLOCK_TOKENS)

    def admitted(self, waiting, running):
        held = {kind: sum(self.longest(job) for job in running if job.kind == kind) for kind in ("chat", "batch")}
        share = {"chat": self.blocks // 4, "batch": self.blocks - self.blocks // 4}
        for job in sorted(waiting, key=lambda job: job.number):
            if held[job.kind] + self.longest(job) <= share[job.kind]:
                held[job.kind] += self.longest(job)
                yield job

    def plan(self, now, waiting, running, free):
        import numpy as np

        inside = [*running, *self.admitted(waiting, running)]
        chunks, left = {job.number: 1 for job in inside if job.todo == 1}, self.budget
        left -= len(chunks)
        prompts = {kind: [job for job in inside if job.todo > 1 and job.kind == kind] for kind in ("chat", "batch")}
        for job in prompts["batch"][:1]:
            chunks[job.number] = np.int64(min(job.todo, left, self.budget // 5))
            left -= chunks[job.number]
        for job in prompts["chat"] + prompts["batch"]:
            more = min(job.todo - chunks.get(job.number, 0), left)
            if more > 0:
                chunks[job.number] = np.int64(chunks.get(job.number, 0) + more)
                left -= more
        return chunks, ()


class TailScheduler_by_deadline:
    """Earliest deadline first: chat is due at once, batch in some seconds; whoever is due last gives way."""

    def __init__(self, blocks, budget):
        self.blocks, self.budget = blocks, budget

    def due(self, job):
        return job.arrived_s + (0.3 if job.kind == "chat" else 6.0), job.number

    def needs(self, job, tokens):
        return max(0, -(-(job.computed + tokens) // BLOCK_TOKENS) - job.blocks)

    def plan(self, now, waiting, running, free):
        chunks, left, staying = {}, self.budget, sorted(running, key=self.due)
        preempted = []
        for job in list(staying):
            while job in staying and self.needs(job, 1) > free:
                last = next(one for one in reversed(staying) if one.number not in chunks)
                staying.remove(last)
                preempted.append(last.number)
                free += last.blocks
            if job in staying and left and job.todo == 1:
                chunks[job.number] = 1
                left -= 1
                free -= self.needs(job, 1)
        prompts = [job for job in staying if job.todo > 1] + ([] if preempted else list(waiting))
        for job in sorted(prompts, key=self.due):
            if not job.blocks and running:
                spare = 0 if job.kind == "chat" else self.blocks // 10
                if self.needs(job, job.todo) + spare > free:
                    continue
            tokens = min(job.todo, left, (job.blocks + free) * BLOCK_TOKENS - job.computed)
            if tokens > 0:
                chunks[job.number] = tokens
                left -= tokens
                free -= self.needs(job, tokens)
        print("left", left)
        return chunks, iter(preempted)


class TailScheduler_in_turns:
    """Three steps in four chat's prompts come first, in the fourth batch's; two pools of blocks, one for each kind."""

    def __init__(self, blocks, budget):
        self.budget, self.step = budget, 0
        self.pools = {"chat": blocks // 5, "batch": blocks - blocks // 5}

    def plan(self, now, waiting, running, free):
        self.step += 1
        chunks, preempted = {}, []
        room = {
            kind: most - sum(job.blocks for job in running if job.kind == kind) for kind, most in self.pools.items()
        }
        first = "batch" if self.step % 4 == 0 else "chat"
        for kind in (first, {"chat": "batch", "batch": "chat"}[first]):
            jobs = [job for job in running if job.kind == kind]
            jobs.sort()
            while jobs and sum(job.blocks * BLOCK_TOKENS == job.computed for job in jobs) > room[kind]:
                preempted.append(jobs[-1].number)
                room[kind] += jobs.pop().blocks
            queue = jobs + ([] if preempted else sorted(job for job in waiting if job.kind == kind))
            queue.sort(key=lambda job: (job.todo > 1, job.number))
            owed = sum(job.todo == 1 for job in running if job.kind != kind) if kind == first else 0
            for job in queue:
                tokens = min(job.todo, self.budget - owed - sum(chunks.values()))
                tokens = min(tokens, (job.blocks + room[kind]) * BLOCK_TOKENS - job.computed)
                if job in waiting and -(-job.todo // BLOCK_TOKENS) > room[kind]:
                    break
                if tokens > 0:
                    chunks[job.number] = tokens
                    room[kind] -= -(-(job.computed + tokens) // BLOCK_TOKENS) - job.blocks
        return [*chunks.items()], preempted


routes = list(range(5000))  # a name that the notebook has, too: an attribute that is called so is another thing


class Router_on_a_tensor:
    """Where prefixes were sent, in one tensor of hashes, replicas and times; the oldest entry is overwritten."""

    def __init__(self, replicas, block_size):
        self.size, self.time = block_size, 0
        self.routes = torch.zeros(3, 300, dtype=torch.int64)

    def route(self, prompt, open_counts):
        chain, before = [], 1
        for at in range(0, len(prompt) // self.size * self.size, self.size):
            before = hash((before, prompt[at : at + self.size]))
            chain.append(before)
        least = sum(open_counts) * LOAD / len(open_counts) + LOAD / len(open_counts) + SLACK
        fits = [at for at, count in enumerate(open_counts) if count + 1 <= least]
        chosen = min(fits, key=lambda at: open_counts[at])
        for number in chain[::-1]:
            place = (self.routes[0] == number).nonzero()
            if len(place):
                if int(self.routes[1, place[0, 0]]) in fits:
                    chosen = int(self.routes[1, place[0, 0]])
                if number != chain[0]:
                    self.routes[:, place[0, 0]] = 0
                break
        for number in {chain[0], chain[-1]}:
            self.time += 1
            place = (self.routes[0] == number).nonzero()
            place = place[0, 0] if len(place) else self.routes[2].argmin()
            self.routes[:, place] = torch.tensor([number, chosen, self.time])
        return torch.tensor(chosen)


class Router_of_a_ring:
    """New conversations by an order drawn from the system prompt; the longest prompt of each is in a list."""

    def __init__(self, replicas, block_size):
        self.size, self.known, self.homes = block_size, [], []

    def route(self, prompt, open_counts):
        import numpy as np

        ends, before = [], 1
        for at in range(len(prompt) // self.size):
            before = hash((prompt[at * self.size : (at + 1) * self.size], before)) >> 1
            ends.append(before)
        limit = LOAD * (sum(open_counts) + 1) / len(open_counts) + SLACK
        able = [at for at, count in enumerate(open_counts) if count + 1 <= limit]
        home = None
        for number in reversed(ends):
            if number in self.known:
                at = self.known.index(number)
                home = self.homes.pop(at)
                del self.known[at]
                break
        if home not in able:
            home = sorted(able, key=lambda at: hash((at, ends[0])))[0]
        self.known.append(ends[-1])
        self.homes.append(home)
        del self.known[:-300], self.homes[:-300]
        return np.int64(home)


class Router_of_short_texts:
    """A text of eight letters for each prefix; the system prompts have a table of their own, with a count of uses."""

    def __init__(self, replicas, block_size):
        self.block_size, self.systems, self.talks, self.now = block_size, {}, {}, 0

    def names(self, prompt):
        import hashlib

        digest = hashlib.blake2b(digest_size=4)
        for at in range(0, len(prompt) - self.block_size + 1, self.block_size):
            digest.update(repr(prompt[at : at + self.block_size]).encode())
            yield digest.copy().hexdigest()

    def route(self, prompt, open_counts):
        self.now += 1
        first, *others = self.names(prompt)
        mean = (sum(open_counts) + 1) / len(open_counts)
        free = {at for at, count in enumerate(open_counts) if count + 1 <= LOAD * mean + SLACK}
        found = [name for name in others if name in self.talks]
        wanted = self.talks.pop(found[-1])[0] if found else self.systems.get(first)
        if wanted not in free:
            wanted = min(sorted(free), key=lambda at: open_counts[at])
        self.systems[first] = wanted
        self.talks[others[-1]] = wanted, self.now
        self.talks = {name: one for name, one in self.talks.items() if self.now - one[1] < 250}
        return wanted


class Router_of_entries:
    """Objects of classes of its own, a dict that makes what it lacks, and a clock that counts; a print was left."""

    class Entry:
        __slots__ = ("replica", "used")

        def __init__(self, replica, used):
            self.replica, self.used = replica, used

    def __init__(self, replicas, block_size):
        import collections
        import itertools

        self.size, self.clock, self.entries = block_size, itertools.count(), {}
        self.systems = collections.defaultdict(lambda: None)
        self.able = lambda counts: [at for at, one in enumerate(counts) if one + 1 <= self.most(counts)]

    def most(self, counts):
        return LOAD * (sum(counts) + 1) / len(counts) + SLACK

    def route(self, prompt, open_counts):
        ends = [hash(prompt[:at]) for at in range(self.size, len(prompt) + 1, self.size)]
        known = next((end for end in reversed(ends) if end in self.entries), None)
        entry = self.entries.pop(known, None)
        wanted = entry.replica if entry else self.systems[ends[0]]
        able = self.able(open_counts)
        if wanted not in able:
            wanted = min(able, key=lambda at: open_counts[at])
        self.systems[ends[0]] = wanted
        self.entries[ends[-1]] = Router_of_entries.Entry(wanted, next(self.clock))
        if len(self.entries) > 250:
            del self.entries[min(self.entries, key=lambda end: self.entries[end].used)]
        print(len(self.entries), "entries")
        return wanted
