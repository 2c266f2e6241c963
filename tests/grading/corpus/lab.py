"""The lab that the corpus attacks: five exercises, ten points, no torch, so that its kernel starts in a second.

It has one of each kind: values that only the seed decides (pages, transfer), a class (window), many right answers
(pack), and bytes that given code counts in the learner's own kernel (chain). What an assert weighs is printed, too.
"""

from __future__ import annotations

from nbformat import NotebookNode, v4

from tests.course.example_lab import answer, ask, check, code, markdown

LAB = "07_pages"
# Written in the worked answers and in a hidden test, and nowhere else: who shows them has read what nobody may.
SOLUTION_MARK = "worked-answer-of-lab-07"
HIDDEN_MARK = "hidden-test-of-lab-07"

PAGES = f'''def pages(tokens, page_tokens):
    """How many pages of `page_tokens` tokens hold `tokens`."""
    ### BEGIN SOLUTION
    return -(-tokens // page_tokens)  # {SOLUTION_MARK}
    ### END SOLUTION'''
ASK_PAGES = """rng = draw("lab-07/pages")
cases = [(0, 16), (1, 16), (16, 16), (17, 16), (4096, 256), (33, 32)]
for _ in range(8):
    size = rng.randint(3, 40)
    cases.append((size * rng.randint(1, 50) + rng.choice([0, 1, size - 1]), size))
counted = [(*case, asked(pages, *case)) for case in cases]"""
CHECK_PAGES = f"""for tokens, size, found in counted:
    right = -(-tokens // size)
    assert found == right, f"{{tokens}} tokens, pages of {{size}}: {{right}}, you have {{found}}; a started page counts"
    assert type(found) is int, f"pages are whole numbers, and {{found}} is none"
    print(f"{{tokens}} tokens, pages of {{size}}: {{found:,}}")
### BEGIN HIDDEN TESTS
assert counted[5] == (33, 32, 2), "33 tokens need a second page of 32"  # {HIDDEN_MARK}
### END HIDDEN TESTS"""
WINDOW = f'''class Window:
    """The last `size` keys that were added."""

    def __init__(self, size):
        self.size, self.keys = size, []

    def add(self, key):
        ### BEGIN SOLUTION
        self.keys = [*self.keys, key][-self.size :]  # {SOLUTION_MARK}
        ### END SOLUTION

    def total(self):
        ### BEGIN SOLUTION
        return sum(self.keys)
        ### END SOLUTION'''
ASK_WINDOW = """def total_of(size, keys):
    window = Window(size)
    for key in keys:
        window.add(key)
    return window.total()


rng = draw("lab-07/window")
runs = [(1, [5, 7]), (3, [1, 2]), (3, [1, 2, 4, 8])]
runs += [(rng.randint(2, 6), [rng.randint(1, 99) for _ in range(rng.randint(5, 12))]) for _ in range(4)]
totals = [(*one, asked(total_of, *one, case=f"the last {one[0]} of {one[1]}")) for one in runs]"""
CHECK_WINDOW = """for size, keys, found in totals:
    right = sum(keys[-size:])
    assert found == right, f"after {keys} a window of {size} holds {right} in all, and yours {found}"
    print(f"the last {size} of {keys}: {found:,}")"""
TRANSFER = f'''def transfer_ms(size_bytes, link_bytes_per_s):
    """Milliseconds that `size_bytes` take over the link."""
    ### BEGIN SOLUTION
    return 1000 * size_bytes / link_bytes_per_s  # {SOLUTION_MARK}
    ### END SOLUTION'''
ASK_TRANSFER = """rng = draw("lab-07/transfer")
pairs = [(0, 10), (64 * 10**9, 64 * 10**9), (1, 10**6)]
pairs += [(rng.randint(1, 10**10), rng.randint(10**8, 10**12)) for _ in range(6)]
times = [(*pair, asked(transfer_ms, *pair)) for pair in pairs]"""
CHECK_TRANSFER = """for size, speed, found in times:
    right = 1000 * size / speed
    assert math.isclose(found, right, rel_tol=1e-6), (
        f"{size} bytes at {speed} bytes/s take {right:.6g} ms, you have {found:.6g}")
    print(f"{size} bytes at {speed} bytes/s: {found:.6g} ms")"""
PACK = f'''def pack(sizes, capacity):
    """Bins, each a list of positions in `sizes`; no bin's sizes add up to more than `capacity`."""
    ### BEGIN SOLUTION
    bins, free = [], []  # {SOLUTION_MARK}
    for item in sorted(range(len(sizes)), key=lambda item: -sizes[item]):
        place = next((place for place, room in enumerate(free) if room >= sizes[item]), None)
        if place is None:
            place = len(bins)
            bins.append([])
            free.append(capacity)
        bins[place].append(item)
        free[place] -= sizes[item]
    return bins
    ### END SOLUTION'''
# An answer gets the very list that was drawn, and may change it: what it is weighed against is drawn again.
ASK_PACK = """rng = draw("lab-07/pack")
loads = [([4, 3, 2, 1], 5), ([5], 5), ([], 3)]
loads += [([rng.randint(1, 25) for _ in range(rng.randint(12, 20))], 50) for _ in range(3)]
plans = [(*load, asked(pack, *load)) for load in loads]"""
CHECK_PACK = """for sizes, capacity, plan in plans:
    assert isinstance(plan, list) and all(isinstance(one, list) for one in plan), "return a list of lists"
    placed = sorted(item for one in plan for item in one)
    assert placed == list(range(len(sizes))), f"each of {len(sizes)} items once: you placed {placed}"
    fullest = max((sum(sizes[item] for item in one) for one in plan), default=0)
    assert fullest <= capacity, f"{sizes}: a bin of {capacity} holds {fullest}"
    most = 2 * math.ceil(sum(sizes) / capacity)
    assert len(plan) <= most, f"{sizes} fit into {most} bins of {capacity}, you use {len(plan)}"
    print(f"{len(sizes)} items of {sum(sizes)} in all: each once, in at most {most} bins of {capacity}")"""
LEDGER = '''class Ledger:
    """Counts the bytes that are held, and the most that were."""

    def __init__(self):
        self.live_bytes = self.peak_bytes = 0

    def take(self, size):
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def drop(self, size):
        self.live_bytes -= size'''
CHAIN = f'''def chain(ledger, sizes):
    """Run layers whose outputs have these sizes; hold a layer's input until its output is there, no longer."""
    ### BEGIN SOLUTION
    before = 0  # {SOLUTION_MARK}
    for size in sizes:
        ledger.take(size)
        ledger.drop(before)
        before = size
    ledger.drop(before)
    ### END SOLUTION'''
ASK_CHAIN = """def bytes_of(sizes):
    ledger = Ledger()
    chain(ledger, sizes)
    return ledger.peak_bytes, ledger.live_bytes


rng = draw("lab-07/chain")
runs = [[8], [8, 8, 8], [1, 2, 4, 2, 1]]
runs += [[rng.randint(1, 999) for _ in range(rng.randint(4, 9))] for _ in range(5)]
held = [(sizes, asked(bytes_of, sizes, case=f"layers of {sizes}")) for sizes in runs]"""
CHECK_CHAIN = """for sizes, (peak, live) in held:
    assert live == 0, f"after {sizes}, {live} bytes are still held"
    right = max(map(sum, zip([0, *sizes], sizes)))
    assert peak == right, f"layers of {sizes}: {right} bytes at the peak will do, you hold {peak}"
    print(f"layers of {sizes}: {peak:,} bytes at the peak, {live} left")"""
TEXTS = {
    "pages": "## 1 · Pages\n\nWrite `pages(tokens, page_tokens)`, an int.\n\n"
    "<details><summary>Hint</summary>\n\n17 tokens need 2 pages of 16.\n</details>",
    "window": "## 2 · A window of keys\n\nWrite `Window`.\n\n"
    "<details><summary>Hint</summary>\n\n`keys[-size:]` are the last ones.\n</details>",
    "transfer": "## 3 · Transfer time\n\nWrite `transfer_ms(size_bytes, link_bytes_per_s)`.\n\n"
    "<details><summary>Hint</summary>\n\nA second has 1,000 milliseconds.\n</details>",
    "pack": "## 4 · Packing\n\nWrite `pack(sizes, capacity)`: at most twice the bins that the sum needs.\n\n"
    "<details><summary>Hint</summary>\n\nPut each item into the first bin with room.\n</details>",
    "chain": "## 5 · A chain of layers\n\nWrite `chain(ledger, sizes)` with as few bytes at the peak as can be.\n\n"
    "<details><summary>Hint</summary>\n\nTake the output, then drop the input.\n</details>",
}
WORKED = {"pages": PAGES, "window": WINDOW, "transfer": TRANSFER, "pack": PACK, "chain": CHAIN}
CHECKS = {
    "pages": CHECK_PAGES,
    "window": CHECK_WINDOW,
    "transfer": CHECK_TRANSFER,
    "pack": CHECK_PACK,
    "chain": CHECK_CHAIN,
}
ASKS = {"pages": ASK_PAGES, "window": ASK_WINDOW, "transfer": ASK_TRANSFER, "pack": ASK_PACK, "chain": ASK_CHAIN}
RUBRIC = {
    "pages": ["2 points: a started page counts, and the count is an int"],
    "window": ["2 points: old keys leave, the newest stay"],
    "transfer": ["1 point: milliseconds"],
    "pack": ["3 points: each item once, no bin too full, few bins"],
    "chain": ["2 points: an input is dropped as soon as its output is there"],
}
POINTS = {"pages": 2, "window": 2, "transfer": 1, "pack": 3, "chain": 2}


def lab() -> NotebookNode:
    """The worked lab, not yet executed: save it as solutions/07_pages.ipynb, build, release."""
    cells = [
        markdown("# Lab 07: pages", "title"),
        code("import math\n\nfrom helpers.lesson import asked, draw", "setup", "nbval-ignore-output"),
    ]
    for key, text in TEXTS.items():
        cells.append(markdown(text, f"{key}-text"))
        if key == "chain":
            cells.append(code(LEDGER, "ledger", "nbval-ignore-output"))
        cells += [answer(key, WORKED[key]), ask(f"{key}-ask", ASKS[key]), _check(key)]
    return v4.new_notebook(cells=cells)


def _check(key: str) -> NotebookNode:
    cell = check(f"{key}-check", CHECKS[key], POINTS[key])
    cell.metadata["workbook"] = {"rubric": RUBRIC[key]}
    return cell
