"""What lab 13 says in words is what its code does; right answers written otherwise pass."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from helpers.course import lab_cells
from helpers.course import notebook as nb
from helpers.course.kernel import RunCell, error_in, kernel
from tests.labs.common import lab_path, printed, source

LAB = lab_path("13")
OTHER_ANSWERS = {
    "slot-steps": """
def slot_steps(requests, block_size, lookahead=0):
    filled = sum(answer * prompt + answer * (answer + 1) // 2 for prompt, answer in requests)
    blocks = 0
    for prompt, answer in requests:
        last = prompt + answer + lookahead
        for end in range((prompt + lookahead) // block_size, -(-last // block_size)):
            begin = max(end * block_size, prompt + lookahead)
            blocks += (min((end + 1) * block_size, last) - begin) * (end + 1)
    return [blocks * block_size, filled]
""",
    "largest-block-size": """
def largest_block_size(requests, most, percent, lookahead=0):
    best = None
    for size in range(1, most + 1):
        reserved, filled = slot_steps(requests, size, lookahead)
        if 1 - filled / reserved <= percent / 100:
            best = size
    return best
""",
    "window-manager": """
class WindowManager:
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
""",
    "next-beams": """
def next_beams(pool, tables, length, parents, tokens):
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
    for table, token in zip(new, tokens):
        if pool.references[table[-1]] > 1:
            table[-1:] = [pool.take(), pool.drop(table[-1])][:1]
        pool.write(table[-1], place, token)
    return tuple(new)
""",
    "radix-cache": """
class RadixCache:
    def __init__(self, pool):
        self.pool, self.known, self.time = pool, {(): None}, 0  # by the whole text up to a block's end: [block, time]

    def match(self, tokens):
        size, tokens, self.time = self.pool.block_size, tuple(tokens), self.time + 1
        count = 0
        while len(tokens) >= (count + 1) * size and tokens[: (count + 1) * size] in self.known:
            count += 1
        path = [tokens[: (at + 1) * size] for at in range(count)]
        start, part, most = tokens[: count * size], None, (0, 0)
        for text, entry in self.known.items():
            if entry and len(text) == len(start) + size and text[: len(start)] == start:
                score = common(text, tokens) - len(start), entry[1]
                most, part = max((most, part), (score, text), key=lambda pair: pair[0])
        for text in path + [part] * (most[0] > 0):
            self.known[text][1] = self.time
        return tuple(self.known[text][0] for text in path), (self.known[part][0], most[0]) if most[0] else None

    def insert(self, tokens, table):
        self.time += 1
        for at, block in enumerate(table):
            end = (at + 1) * self.pool.block_size
            if end <= len(tokens):
                if tuple(tokens[:end]) not in self.known:
                    self.pool.hold(block)
                    self.known[tuple(tokens[:end])] = [block, 0]
                self.known[tuple(tokens[:end])][1] = self.time


def evict(cache):
    size = cache.pool.block_size
    inner = {text[:-size] for text in cache.known if text}
    for _, text in sorted((entry[1], text) for text, entry in cache.known.items() if entry and text not in inner):
        if cache.pool.references[cache.known[text][0]] == 1:
            cache.pool.drop(cache.known.pop(text)[0])
            return True
    return False
""",
    "evict": """
def evict(cache):
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
""",
    "cascade": """
def cascade(queries, store, tables, lengths, scale):
    count, heads, dim = queries.shape
    groups = heads // store.keys.shape[2]
    out, lse = torch.zeros_like(queries), torch.full((count, heads, 1), float("-inf"))
    for block in sorted(set(sum(tables, []))):
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
""",
    "users-that-fit": """
def users_that_fit(log, percent, block_bytes, shared, own, block_size=16):
    left = int(log.total_bytes * percent / 100) - log.weight_bytes - log.non_torch_bytes - log.peak_activation_bytes
    blocks, users = left // block_bytes, 0
    free = blocks - int(0.01 * blocks) - shared // block_size
    each = (shared % block_size + own + block_size - 1) // block_size
    while free >= each:
        free, users = free - each, users + 1
    return users
""",
    "preemption-s": """
def preemption_s(model, card, tokens, shared, block_size=16):
    first = shared - shared % block_size
    own_bytes = (-(-tokens // block_size) - first // block_size) * paging.block_bytes(model, block_size)
    seen = (tokens * (tokens + 1) - first * (first + 1)) // 2
    width = model.layers[0].attention.heads * model.layers[0].attention.head_dim
    flops = 2 * model.parameters * (tokens - first) + 4 * len(model.layers) * width * seen
    return 2 * own_bytes / card.link_bytes_per_s("pcie"), flops / card.flops_per_s("bf16")
""",
}


@pytest.fixture(scope="module")
def solved(lab) -> Iterator[RunCell]:
    """A kernel in which the worked lab has run."""
    with kernel(LAB.parent, cell_timeout_s=120) as run:
        for _, cell in nb.code_cells(lab):
            assert error_in(run(cell.source)) is None, cell.id
        yield run


def text(outputs: list) -> str:
    """What a cell printed, or its error."""
    error = error_in(outputs)
    return f"{error.ename}: {error.evalue}" if error else "".join(one.get("text", "") for one in outputs)


@pytest.mark.parametrize(
    ("question", "check", "figures"),
    [
        ("q1", "slot-steps-check", ["77.7", "2,048", "1.6", "7.5", "3.3", "39"]),
        ("q2", "window-manager-check", ["1,000", "64", "4", "6", "63"]),
        ("q3", "next-beams-check", ["40", "14", "57"]),
        ("q4", "radix-cache-check", ["4,656", "9,860", "150", "23,046", "26,845"]),
        ("q5", "cascade-check", ["20", "44", "184"]),
        ("q6", "preemption-s-check", ["842", "65.5", "58.7", "16.4", "69.2"]),
    ],
)
def test_the_figures_of_a_target_are_printed_by_its_check(lab, question, check, figures):
    target, shown = re.search(r"\*\*Target:\*\*.*", source(lab, question))[0], printed(lab, check)
    said = {
        f"{float(number):.{len(figure.partition('.')[2])}f}"
        for figure in figures
        for number in re.findall(r"\d+(?:\.\d+)?", shown.replace(",", ""))
    }
    assert [figure for figure in figures if figure not in target or figure.replace(",", "") not in said] == []


def test_the_figures_that_no_check_prints(lab, solved):
    computed = text(
        solved("""
class Whole(RadixCache):
    def match(self, tokens):
        return super().match(tokens)[0], None


for trace, blocks in [(CHAT, 150), (CODE, 300)]:
    pool = Pool(blocks, 16)
    print(f"{sum(serve(Whole(pool), pool, trace)):,}")
print(users_that_fit(LLAMA_3_8B, 90, paging.block_bytes(model("llama-3-8b")), 0, 1500))
print(paging.block_bytes(model("llama-3-8b")) == 2**21)
""")
    )
    assert computed.split() == ["4,080", "22,592", "287", "True"]
    assert [one for one in computed.split()[:2] if one not in source(lab, "q4")] == []
    assert "287" in source(lab, "q6")


def said(lab, solved, seed: str, keys: set[str]) -> dict[str, str]:
    """What those checks print, with inputs drawn from a seed."""
    solved(f"import os; os.environ['WORKBOOK_SEED'] = '{seed}'")
    found = {cell.id: text(solved(cell.source)) for cell in lab.cells if cell.id in keys}
    solved("os.environ['WORKBOOK_SEED'] = '0'")
    return found


@pytest.fixture(scope="module")
def right(lab, solved):
    """What every check prints about the worked answers. Seed 4 once drew scores too large for question 5."""
    checks = {cell.id for cell in lab.cells if lab_cells.is_check(cell)}
    return {"0": {key: printed(lab, key) for key in checks}, "4": said(lab, solved, "4", checks)}


@pytest.mark.parametrize("answer", OTHER_ANSWERS)
def test_a_right_answer_written_otherwise_passes(lab, solved, answer, right):
    exercise = next(one for one in lab_cells.exercises(lab) if answer in map(lab_cells.grade_id, one.answers))
    checks = {check.id for check in exercise.checks}
    defined = solved(OTHER_ANSWERS[answer])
    found = {seed: said(lab, solved, seed, checks) for seed in right}
    for cell in exercise.answers:
        solved(cell.source)
    assert error_in(defined) is None
    assert found == {seed: {key: outputs[key] for key in checks} for seed, outputs in right.items()}


def test_every_answer_was_written_otherwise(lab):
    assert {lab_cells.grade_id(cell) for cell in lab.cells if lab_cells.is_answer(cell)} == set(OTHER_ANSWERS)


def test_no_check_takes_a_name_that_another_cell_defines(lab):
    """A check may be run again after any other cell: what it assigns must not hide a function."""
    defined, assigned = set(), set()
    for cell in [one for _, one in nb.code_cells(lab)]:
        for node in ast.parse(cell.source).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
            else:
                names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
                assigned |= {one.id for one in names if isinstance(one.ctx, ast.Store)}
    assert defined & assigned == set()
