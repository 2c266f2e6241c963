"""Whatever a kernel speaks with may be replaced by an answer, and is put back before the kernel tells what it gave."""

from __future__ import annotations

import pytest
from nbformat import v4

from helpers.grading.sandbox.asking_kernel import BEGIN, ask_line
from helpers.grading.sandbox.nbval_run import run
from tests.course.example_lab import code

PLAIN = """import types
kernel = get_ipython().kernel
session, thread, socket = kernel.session, kernel.iopub_thread, kernel.iopub_socket
lie = lambda *words, **named: None"""
# What replaces it, and what the kernel says of it.
REPLACED = {
    "session.send = lie": "kernel.session.send",
    "type(session).send = lie": "kernel.session.send",
    "type(session).serialize.__code__ = (lambda *words, **named: None).__code__": "kernel.session.serialize",
    "session.pack = lambda value: b'{}'": "kernel.session.pack",
    "kernel.session = type(session)()": "kernel.session",
    "kernel._send = lie": "kernel._send",
    "type(kernel)._replied = lie": "kernel._replied",
    "type(kernel)._topic = lie": "kernel._topic",
    "type(thread).send_multipart = lie": "kernel.iopub_thread.send_multipart",
    "thread._really_send = lie": "kernel.iopub_thread._really_send",
    "type(socket).send_multipart = lie": "kernel.iopub_socket.send_multipart",
    "kernel.iopub_socket = types.SimpleNamespace(send_multipart=lie)": "kernel.iopub_socket",
}


@pytest.fixture(scope="module")
def told() -> dict[str, list]:
    """What one kernel tells after each of them was replaced, while it was asked."""
    cells = [code("from helpers.lesson import asked", "given"), code(BEGIN, "begin"), code(PLAIN, "plain")]
    for number, attack in enumerate(["pass", *REPLACED]):
        body = f"exec({attack!r}, globals())"
        cells.append(code(f"def answer(x):\n    {body}\n    return x", f"answer-{number}"))
        cells.append(code(f"{ask_line(['answer'], {})}\nasked(answer, {number})", f"ask-{number}"))
    found = run(v4.new_notebook(cells=cells))
    return {attack: found[f"ask-{number}"].told for number, attack in enumerate(["pass", *REPLACED])}


def test_who_replaces_nothing_is_not_named(told):
    assert told["pass"] == [{"rows": [{"answer": "0"}], "replaced": [], "reached": []}]


@pytest.mark.parametrize("attack", REPLACED)
def test_what_is_replaced_is_put_back_and_named(told, attack):
    number = str([*REPLACED].index(attack) + 1)
    assert told[attack] == [{"rows": [{"answer": number}], "replaced": [REPLACED[attack]], "reached": []}]
