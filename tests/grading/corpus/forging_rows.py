"""Forgers of recorded answers: what an asking cell wrote down comes from the learner's kernel, so it may be anything.

Their `pack` returns nothing and all else is right; what they send in the grader's name holds right plans where it can,
so whoever takes it for an answer gives points away.
"""

from __future__ import annotations

from helpers.lesson.asking import MIME
from tests.grading.corpus.case import ANY, FORGING, NOT_PASSED, Case, row
from tests.grading.corpus.edits import RIGHT, answered

ITEM = "recorded answers"
NAMED_RIGHT = RIGHT["pack"].replace("def pack", "def right")
TELLS = f"""import json

from IPython.display import display

{NAMED_RIGHT}


ROWS = []


def tell(text=None):
    display({{{MIME!r}: text or json.dumps({{"rows": ROWS, "replaced": []}})}}, raw=True)"""
# Rows that are right for what was asked so far; the kernel speaks after the last of them.
BEFORE_THE_KERNEL = f"""{TELLS}


def pack(sizes, capacity):
    ROWS.append({{"answer": json.dumps(right(sizes, capacity))}})
    tell()"""
# Sent on and on, in the name of whatever cell runs: one of them comes last.
AFTER_THE_KERNEL = f"""{TELLS}


import threading
import time

kernel = get_ipython().kernel
send, iopub = kernel.session.send, kernel.iopub_socket


def speak(ends):
    while time.monotonic() < ends:
        told = {{{MIME!r}: json.dumps({{"rows": ROWS, "replaced": []}})}}
        words = {{"data": told, "metadata": {{}}, "transient": {{}}}}
        if len(ROWS) == 6:
            send(iopub, "display_data", words, parent=kernel.get_parent("shell"), ident=b"display_data")
        time.sleep(0.001)


def pack(sizes, capacity):
    ROWS.append({{"answer": json.dumps(right(sizes, capacity))}})
    if len(ROWS) == 6:
        threading.Thread(target=speak, args=(time.monotonic() + 5,), daemon=True).start()
        time.sleep(0.1)"""
IN_ITS_ANSWER = f"""{TELLS}


ROWS += [{{"answer": json.dumps(right(*load))}} for load in [([4, 3, 2, 1], 5), ([5], 5), ([], 3)]]
tell()


def pack(sizes, capacity):
    return None"""
SHAPES = {"no JSON": '"{not json"', "nested deeply": '"[" * 100_000 + "]" * 100_000'}
SHAPED = f"""{TELLS}


def pack(sizes, capacity):
    tell(TEXT)"""
# The kernel's own message, on its way: what it says of the bytes is what they should have been.
REWRITES = f"""import json


def rewritten(content):
    told = json.loads(content["data"].get({MIME!r}, "{{}}"))
    sizes = [[8], [8, 8, 8], [1, 2, 4, 2, 1]] + DRAWN
    peaks = [[max(map(sum, zip([0, *one], one))), 0] for one in sizes]
    told = {{"rows": [{{"answer": json.dumps(one)}} for one in peaks], "replaced": []}}
    return {{**content, "data": {{{MIME!r}: json.dumps(told)}}}}


def instead(stream, kind, content=None, *words, **named):
    if kind == "display_data" and DRAWN:
        content = rewritten(content)
    return plain(stream, kind, content, *words, **named)


kernel, DRAWN = get_ipython().kernel, []
plain = kernel.session.send
ATTACK


def chain(ledger, sizes):
    if sizes not in ([8], [8, 8, 8], [1, 2, 4, 2, 1]):
        DRAWN.append(list(sizes))"""
REWRITING = {
    "its session": REWRITES.replace("ATTACK", "kernel.session.send = instead"),
    "its session's class": REWRITES.replace(
        "ATTACK", "type(kernel.session).send = lambda self, *words, **named: instead(*words, **named)"
    ),
    "itself": REWRITES.replace(
        "ATTACK", "tell = kernel._send\nkernel._send = lambda kind, one: tell(kind, rewritten(one) if DRAWN else one)"
    ),
}
# The list that it was given is the one that was drawn.
SHRINKS = """def pack(sizes, capacity):
    sizes[:] = [1] * len(sizes)
    return [list(range(len(sizes)))] if sizes else []"""
INTO_THE_DESK = f"""import json

from helpers.lesson import asking

{NAMED_RIGHT}


def pack(sizes, capacity):
    asking._desk.writes[:] = asking._desk.writes * 2 + [{{"answer": 7, 8: None}}, ["answer"], None]
    return None"""
GIVES_BACK = f"""import json

from helpers.lesson import asking

{NAMED_RIGHT}


def pack(sizes, capacity):
    asking.give_back([{{"answer": json.dumps(right(sizes, capacity))}}] * 6)
    return None"""
REPLACES_ASKED = """import helpers.lesson
from helpers.lesson import asking


def asked(answer, *arguments, **how):
    return [[item] for item in range(len(arguments[0]))]


def answered(answer, arguments, tensors):
    return str([[item] for item in range(len(arguments[0]))])


asking.asked = helpers.lesson.asked = asked
asking._answered = answered
asking.to_json.__code__ = (lambda value, tensors=False: "[]").__code__


def pack(sizes, capacity):
    return None"""
LYING_NAME = """class Lies:
    __name__ = property(lambda self: 1 / 0)

    def __call__(self, sizes, capacity):
        return None


pack = Lies()"""

_WRONG_PLANS = {
    "before the kernel speaks": BEFORE_THE_KERNEL,
    "in its answer": IN_ITS_ANSWER,
    "into the desk": INTO_THE_DESK,
    "gives back its own": GIVES_BACK,
    "replaces asked": REPLACES_ASKED,
    "a name that raises": LYING_NAME,
    "changes what it was given": SHRINKS,
    **{name: f"TEXT = {text}\n{SHAPED}" for name, text in SHAPES.items()},
}
CASES = (
    Case(
        "rows: after it, from a thread",
        FORGING,
        ITEM,
        answered(pack=AFTER_THE_KERNEL),
        row(pack=NOT_PASSED, chain=ANY),  # it speaks on while the next question is asked
    ),
    *(
        Case(f"rows: {name}", FORGING, ITEM, answered(pack=attack), row(pack=NOT_PASSED))
        for name, attack in _WRONG_PLANS.items()
    ),
    *(
        Case(
            f"rows: rewrites {name}",
            FORGING,
            ITEM,
            answered(chain=REWRITES.replace("ATTACK", attack)),
            row(chain=NOT_PASSED),
        )
        for name, attack in REWRITING.items()
    ),
    Case(
        "rows: right ones, too",
        FORGING,
        ITEM,
        answered(pack=BEFORE_THE_KERNEL.replace("    tell()", "    tell()\n    return right(sizes, capacity)")),
        row(pack=ANY),
    ),
)
