"""What an error shows in a real kernel: a check its message, an answer its own lines, anything else what it always did.

Whatever no learner may read in a traceback is called SECRET here.
"""

from __future__ import annotations

import re

import pytest

from helpers.course.kernel import error_in, kernel
from helpers.lesson.tracebacks import NONE, OURS, is_hidden

LAB = "from helpers.lesson import asked, draw"
REFERENCE = "# reference: what is right\ndef right(x):\n    SECRET = 3 * x\n    return SECRET // (9 - x)"
APPARATUS = "# apparatus: drives an answer\ndef drive(f, x):\n    SECRET = f(x) + 1\n    return SECRET"
ANSWER = "def triple(x):\n    return x + 2"
ASK = 'SECRET = draw("lab-99/triple")\nfound = asked(triple, 3)'
ASK_DRIVEN = 'SECRET = draw("lab-99/triple")\nfound = asked(drive, triple, 3)'
CHECK = "SECRET = 3 * 3\nfor x in (3,):\n    assert found == SECRET, f'three times {x} is 9, you have {found:,}'"
FAILS = "def triple(x):\n    return x.nothing"
BREAKS = "def triple(x):\n    import json\n    return json.loads('{')"
HANDLES = "def triple(x):\n    try:\n        return right(9)\n    except ZeroDivisionError:\n        return x.nothing"
NO_RETURN = "def triple(x):\n    3 * x"
GROUPS = "def triple(x):\n    raise ExceptionGroup('several', [ValueError(x)])"

ALONE = {
    "a check that fails": ([ANSWER, ASK, CHECK], "three times 3 is 9, you have 5"),
    "a check without the cell that asks": (["found = 5", "SECRET = lost\nassert found == 9, 'nine'"],
                                           f"NameError: name 'lost' is not defined\n{OURS}"),
    "a reference that a check calls": (["SECRET = right(9)\nassert SECRET, 'nine'"],
                                       f"ZeroDivisionError: integer division or modulo by zero\n{OURS}"),
    "an assertion without a word": (["assert found, 'a word'\nassert found == 'SECRET'"],
                                    "an assertion of the check failed"),
    "no return, in a check": ([NO_RETURN, ASK, CHECK], NONE),
    "no return, in an apparatus": ([NO_RETURN, ASK_DRIVEN], NONE),
}  # fmt: skip
LINES = {  # what is shown, and what is not
    "an answer's own line": ([FAILS, ASK], ["triple(x)", "---> 2     return x.nothing"]),
    "through an apparatus": ([FAILS, ASK_DRIVEN], ["---> 2     return x.nothing"]),
    "a library below it": ([BREAKS, ASK], ["---> 3     return json.loads('{')", "JSONDecodeError: Expecting"]),
    "a reference on its way": ([HANDLES, ASK], ["ZeroDivisionError", "---> 5         return x.nothing"]),
    "several errors at once": ([GROUPS, ASK], ["raise ExceptionGroup", "ValueError: 3"]),
    "a cell of theirs that calls a reference": (["y = 9\nright(y)"], ["---> 2 right(y)"]),
}
ORDINARY = {
    "an assertion of theirs": (["z = 3\nassert z == 4"], ["---> 2 assert z == 4"]),
    "a library": (["import json\njson.loads('{')"], ["---> 2 json.loads", "decoder.py"]),
    "an answer that they call": ([BREAKS, "triple(3)"], ["---> 1 triple(3)", "---> 3     return json", "decoder.py"]),
    "what does not parse": (["def triple(x"], ["SyntaxError"]),
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """`shown(*cells)` runs them in a lab's kernel, and gives what the last one shows, without colours."""
    with kernel(tmp_path_factory.mktemp("lab")) as run:

        def show(*cells: str) -> str:
            outputs = [run(cell) for cell in cells][-1]
            error = error_in(outputs)
            lines = [output.text for output in outputs if output.get("name") == "stderr"]
            text = "\n".join([*lines, *(error.traceback if error else ())])
            return re.sub(r"\x1b\[[0-9;]*m", "", text)

        assert show(LAB, REFERENCE, APPARATUS) == ""
        yield show


@pytest.mark.parametrize(("cells", "words"), ALONE.values(), ids=ALONE)
def test_of_a_check_there_is_its_message_alone(cells, words, shown):
    assert shown(*cells) == words


@pytest.mark.parametrize(("cells", "lines"), LINES.values(), ids=LINES)
def test_of_an_answers_error_there_are_the_learners_own_lines(cells, lines, shown):
    text = shown(*cells)
    assert [line for line in lines if line not in text] == []
    assert not re.search(r"SECRET|asked\(|helpers|decoder\.py|drive", text.replace("asked: drive", ""))


@pytest.mark.parametrize(("cells", "lines"), ORDINARY.values(), ids=ORDINARY)
def test_any_other_error_is_as_ever(cells, lines, shown):
    text = shown(*cells)
    assert [line for line in lines if line not in text] == []


def test_nor_is_a_check_shown_later(shown):
    shown(ANSWER, ASK, CHECK)
    assert "SECRET" not in shown("%tb")


def test_who_runs_the_notebook_reads_the_same_error(tmp_path):
    with kernel(tmp_path) as run:
        run(LAB)
        error = error_in(run("found = 5\nassert found == 9, f'nine, not {found}'"))
    assert (error.ename, error.evalue) == ("AssertionError", "nine, not 5")


def test_where_there_is_no_lab_nothing_is_hidden(tmp_path):
    with kernel(tmp_path) as run:
        run("from helpers import lesson\nfound = 5")
        error = error_in(run("assert found == 9, 'nine'"))
    assert "found ==" in re.sub(r"\x1b\[[0-9;]*m", "", "".join(error.traceback))


@pytest.mark.parametrize(
    ("source", "hidden"),
    [
        (REFERENCE, True),
        (APPARATUS, True),
        (ASK, True),
        (CHECK, True),
        (ANSWER, False),
        ("assert found == 9", False),
        ("def triple(x):\n    assert x, 'a number'\n    return 3 * x", False),
        ("found = 'assert found == 9, nine'", False),
        ("not python: assert x, 'y'", False),
        ("\0", False),
    ],
)
def test_a_cell_is_known_by_its_source(source, hidden):
    assert is_hidden(source) is hidden
