"""The guard between nbval and a kernel that sends what it likes; the kernel, its sockets and the clock are fakes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import repeat
from queue import Empty
from types import SimpleNamespace

import pytest
from nbformat import v4

from helpers.grading.sandbox import nbval_plugin
from helpers.grading.sandbox.nbval_plugin import MOST_CHARS, MOST_ERROR_CHARS, MOST_MALFORMED, Fatal, MessageFilter
from helpers.lesson import asking
from helpers.lesson.tracebacks import NONE
from tests.course.example_lab import answer, ask, check


class Channel:
    """Hands out what a kernel sent, in order: messages, or errors that reading one raises."""

    def __init__(self) -> None:
        self.socket = self
        self.sent: Iterator = iter(())
        self.next: deque = deque()

    def has_more(self) -> bool:
        if not self.next:
            self.next.extend([one] if (one := next(self.sent, None)) is not None else [])
        return bool(self.next)

    def get_msg(self, timeout: float) -> dict:
        if not self.has_more():
            raise Empty
        message = self.next.popleft()
        if isinstance(message, Exception):
            raise message
        return message


class Kernel:
    """nbval's kernel, as far as the guard knows it; `clock` moves only while somebody waits."""

    def __init__(self) -> None:
        self.kc = SimpleNamespace(shell_channel=Channel(), iopub_channel=Channel())
        self.alive, self.clock, self.channels = True, 1000.0, []

    def is_alive(self) -> bool:
        return self.alive

    def register(self, socket: Channel, _: int) -> None:
        self.channels.append(socket)

    def poll(self, timeout_ms: float) -> list[Channel]:
        assert timeout_ms > 0
        ready = [channel for channel in self.channels if channel.has_more()]
        self.clock += 0.0001 if ready else timeout_ms / 1000
        return ready

    def sends(self, *iopub: object, shell: tuple = ()) -> None:
        self.kc.iopub_channel.sent, self.kc.shell_channel.sent = iter(iopub), iter(shell)

    def floods(self, message: object, stream: str = "iopub") -> None:
        getattr(self.kc, f"{stream}_channel").sent = (dict(message) for _ in repeat(0))


@pytest.fixture
def kernel(monkeypatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(nbval_plugin, "time", SimpleNamespace(monotonic=lambda: kernel.clock))
    monkeypatch.setattr(nbval_plugin, "zmq", SimpleNamespace(Poller=lambda: kernel, POLLIN=1))
    return kernel


@pytest.fixture
def guard(kernel) -> MessageFilter:
    guard = MessageFilter(kernel)
    guard.begin(10)
    return guard


def message(kind: object, **content: object) -> dict:
    return {"msg_type": kind, "parent_header": {"msg_id": "1"}, "content": content}


def stream(text: str, name: str = "stdout") -> dict:
    return message("stream", name=name, text=text)


BUSY, IDLE = (message("status", execution_state=state) for state in ("busy", "idle"))
REPLY = message("execute_reply", status="ok")
PICTURE = message("display_data", data={"text/plain": "x"}, metadata={})


def received(guard: MessageFilter) -> list[dict]:
    """Everything on iopub, until the kernel has nothing more to say."""
    found = []
    while True:
        try:
            found.append(guard("iopub", timeout=3))
        except Fatal as stopped:
            if "did not come through" in str(stopped):
                return found
            raise


def test_messages_keep_their_order_while_the_reply_is_waited_for(kernel, guard):
    kernel.sends(BUSY, stream("1"), stream("2"), IDLE, shell=(REPLY,))
    assert guard("shell", timeout=None) == REPLY
    assert received(guard) == [BUSY, stream("1"), stream("2"), IDLE]


def test_output_that_comes_before_a_late_reply_waits(kernel, guard):
    kernel.sends(BUSY, stream("1"), IDLE)
    assert guard("iopub", timeout=3) == BUSY
    kernel.kc.shell_channel.sent = iter([REPLY])
    assert guard("shell") == REPLY
    assert guard("iopub", timeout=3) == stream("1")


@pytest.mark.parametrize(
    "bad",
    [
        *(ValueError("Invalid Signature"), UnicodeDecodeError("utf-8", b"", 0, 1, "no")),
        *(RecursionError("too deep"), MemoryError(), "text", {}),
        message("status", execution_state="idle") | {"parent_header": None},
        message("status", execution_state="idle") | {"content": []},
        *(message(None), message(["status"], execution_state="idle")),
        *(message("status"), message("status", execution_state=["idle"])),
        *(message("stream", name="stdout"), message("stream", name="stdout", text=["a"])),
        message("stream", name=1, text="a"),
        message("error", ename="E", evalue=1, traceback=[]),
        message("error", ename="E", evalue="x"),
        message("error", ename="E", evalue="x", traceback=[1]),
        *(message("display_data", data="x"), message("execute_result")),
    ],
    ids=lambda bad: str(bad)[-60:],
)
def test_what_no_kernel_sends_is_dropped_and_counted(kernel, guard, bad):
    kernel.sends(bad, IDLE)
    assert received(guard) == [IDLE]
    assert (guard.malformed, guard.apart) == (1, [])


@pytest.mark.parametrize(
    "bad", [ValueError(), message("execute_reply"), message("execute_reply", status=0), None], ids=str
)
def test_a_malformed_reply_is_dropped_too(kernel, guard, bad):
    kernel.sends(shell=(bad or {}, REPLY))
    assert guard("shell") == REPLY
    assert guard.malformed == 1


def test_too_many_malformed_messages_are_a_flood(kernel, guard):
    kernel.sends(*[ValueError()] * MOST_MALFORMED, IDLE)
    assert guard("iopub", timeout=3) == IDLE
    kernel.sends(ValueError())
    with pytest.raises(Fatal, match="messages that no kernel sends") as stopped:
        guard("iopub", timeout=3)
    assert stopped.value.kind == "flooded"


@pytest.mark.parametrize("waiting_for", ["shell", "iopub"])
@pytest.mark.parametrize(
    "one",
    [
        *(stream("x" * 1000), stream(""), stream("x", "stderr"), PICTURE, BUSY),
        message("error", ename="E", evalue="x", traceback=[]),
        message("execute_input", code="x"),
        message("comm_msg", data={}),
        message("anything", data="x" * 2 * MOST_CHARS),
    ],
    ids=lambda one: f"{one['msg_type']}-{len(str(one))}",
)
def test_a_flood_of_anything_ends_before_it_fills_the_memory(kernel, guard, one, waiting_for):
    kernel.floods(one)
    with pytest.raises(Fatal, match=r"printed more than 1,000,000 characters") as stopped:
        all(guard(waiting_for, timeout=3) for _ in range(MOST_CHARS // 100))
    assert stopped.value.kind == "flooded"
    assert len(guard.waiting["iopub"]) + len(guard.apart) <= MOST_CHARS // 100


def test_a_flood_of_replies_ends_too(kernel, guard):
    kernel.floods(message("execute_reply", status="ok", more="x"), "shell")
    with pytest.raises(Fatal, match="printed more than"):
        guard("iopub", timeout=3)


def test_output_below_the_limit_comes_through_and_each_cell_counts_from_zero(kernel, guard):
    text = "x" * (MOST_CHARS - 2000)
    for _ in range(3):
        kernel.sends(BUSY, stream(text), IDLE)
        assert received(guard)[1]["content"]["text"] == text
        guard.begin(10)
        assert (guard.chars, guard.malformed, guard.apart) == (0, 0, [])


@pytest.mark.parametrize("waiting_for", ["shell", "iopub"])
def test_death_is_noticed_within_a_second_and_after_the_last_words(kernel, guard, waiting_for):
    kernel.alive = False
    kernel.sends(stream("last words"))
    started = kernel.clock
    if waiting_for == "iopub":
        assert guard("iopub", timeout=3) == stream("last words")
    with pytest.raises(Fatal, match="ended the kernel: it was killed, ran out of memory, or left Python") as stopped:
        guard(waiting_for, timeout=3)
    assert stopped.value.kind == "died"
    assert kernel.clock - started <= 1.01


@pytest.mark.parametrize("limit_s", [10, 0.5, 61.2])
def test_a_cell_has_its_time_and_no_more_and_is_told_the_same_on_any_machine(kernel, guard, limit_s):
    guard.begin(limit_s)
    started = kernel.clock
    with pytest.raises(Fatal, match=nbval_plugin.HUNG) as stopped:
        guard("shell", timeout=10**6)
    assert stopped.value.kind == "hung"
    assert kernel.clock - started == pytest.approx(limit_s)


def test_a_kernel_that_only_keeps_talking_runs_out_of_time_as_well(kernel, guard, monkeypatch):
    monkeypatch.setattr(nbval_plugin, "MOST_CHARS", 10**9)
    kernel.floods(BUSY)
    guard.begin(0.5)
    with pytest.raises(Fatal, match="ran far longer"):
        guard("shell")


def test_output_that_does_not_follow_the_reply_is_waited_for_as_long_as_nbval_says(kernel, guard):
    guard.begin(100)
    started = kernel.clock
    with pytest.raises(Fatal, match="did not come through") as stopped:
        guard("iopub", timeout=3)
    assert stopped.value.kind == "flooded"
    assert kernel.clock - started == pytest.approx(3)


@pytest.mark.parametrize(
    ("shown", "kept"),
    [
        (stream("a warning", "stderr"), {"output_type": "stream", "name": "stderr", "text": "a warning"}),
        (stream("odd", "other"), {"output_type": "stream", "name": "other", "text": "odd"}),
        (PICTURE, {"output_type": "display_data", "data": {"text/plain": "x"}, "metadata": {}}),
        (message("execute_result", data={}), {"output_type": "execute_result", "data": {}}),
        # The kind of a message is what the message is, whatever is in it.
        (message("display_data", data={}, output_type="error"), {"output_type": "display_data", "data": {}}),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_what_is_not_graded_is_kept_apart(kernel, guard, shown, kept):
    kernel.sends(stream("graded"), shown, IDLE)
    assert received(guard) == [stream("graded"), IDLE]
    assert guard.apart == [kept]


@pytest.mark.parametrize("kind", ["clear_output", "update_display_data", "comm_open", "execute_input", "debug_event"])
def test_other_messages_are_not_for_nbval(kernel, guard, kind):
    kernel.sends(message(kind), IDLE)
    assert received(guard) == [IDLE]
    assert guard.apart == []


def test_a_long_source_is_no_output(kernel, guard):
    kernel.sends(message("execute_input", code="x" * 2 * MOST_CHARS), IDLE)
    assert received(guard) == [IDLE]


def test_a_long_error_is_cut_and_not_a_flood(kernel, guard):
    long = "x" * 2 * MOST_CHARS
    words = {"ename": long, "evalue": long, "traceback": [long, "\x1b[0;31m"]}
    kernel.sends(message("error", **words), shell=(message("execute_reply", status="error", **words),))
    assert guard("shell")["content"] == {"status": "error"}
    assert guard("iopub", timeout=3)["content"] == {
        "ename": "x" * MOST_ERROR_CHARS,
        "evalue": "x" * MOST_ERROR_CHARS,
        "traceback": [],
    }


@pytest.mark.parametrize(
    ("payload", "dies"),
    [
        ([{"source": "ask_exit", "keepkernel": False}], True),
        ([1, {"source": "page"}, {"source": "ask_exit"}], True),
        ([{"source": "page", "data": {}}], False),
        ("ask_exit", False),
        ({"source": "ask_exit"}, False),
        (None, False),
        ([], False),
    ],
    ids=str,
)
def test_exit_is_seen_in_the_reply(kernel, guard, payload, dies):
    kernel.sends(shell=(message("execute_reply", status="ok", payload=payload),))
    if not dies:
        assert guard("shell") == REPLY
        return
    with pytest.raises(Fatal, match=r"it called exit\(\) or quit\(\)") as stopped:
        guard("shell")
    assert stopped.value.kind == "died"


# What is reported of a cell


def reported(*outputs: dict) -> list[dict]:
    """The outputs that are written down of a cell that showed these; pictures and the like are kept apart."""
    guard = MessageFilter.__new__(MessageFilter)
    guard.apart = [one for one in outputs if one["output_type"] != "stream"]
    item = SimpleNamespace(parent=SimpleNamespace(kernel=SimpleNamespace(get_message=guard)))
    item.test_outputs = [one for one in outputs if one["output_type"] == "stream"]
    return nbval_plugin._outputs(item)


def shown(**data: object) -> dict:
    return {"output_type": "display_data", "data": {name.replace("_", "/"): one for name, one in data.items()}}


def printed(text: str) -> dict:
    return {"output_type": "stream", "name": "stdout", "text": text}


def answers(text: str) -> dict:
    return {"output_type": "display_data", "data": {asking.MIME: text}, "metadata": {}}


def test_text_pictures_and_answers_are_written_down_and_no_other_kind():
    found = reported(printed("a"), shown(text_plain="b", text_html="<b>"), answers("[]"), shown(text_plain=["c"]))
    assert [one.get("data", one.get("text")) for one in found] == ["a", {"text/plain": "b"}, {asking.MIME: "[]"}, {}]


@pytest.mark.parametrize("text", ["x" * 999_000, "\N{FULL BLOCK}" * 200_000], ids=["letters", "a progress bar"])
def test_whoever_prints_too_much_is_still_answered_for(text):
    """A character that is not ASCII takes six where it is written down."""
    rows = '{"rows": ' + "[]" * 1000 + "}"
    found = reported(printed(text), shown(text_plain="y" * 2000), answers(rows), shown(text_plain="z"))
    assert answers(rows) in found
    assert shown(text_plain="y" * 2000) | {"metadata": {}} not in found
    long = '"' * 450_000
    assert reported(answers(long)) == [answers(long)], "up to what a cell may show"


FORGOT = "unsupported format string passed to NoneType.__format__"


@pytest.mark.parametrize(
    ("cell", "error", "words"),
    [
        (check("a-check", ""), ("AssertionError", "9, not 5"), "9, not 5"),
        (check("a-check", ""), ("TypeError", FORGOT), NONE),
        (ask("an-ask", ""), ("TypeError", FORGOT), NONE),
        (check("a-check", ""), ("NameError", "name 'x' is not defined"), "NameError: name 'x' is not defined"),
        (answer("theirs", ""), ("TypeError", FORGOT), f"TypeError: {FORGOT}"),
    ],
)
def test_none_that_a_cell_of_ours_stumbles_over_is_told_as_such(cell, error, words):
    raised = v4.new_output("error", ename=error[0], evalue=error[1], traceback=[])
    item, call = SimpleNamespace(cell=cell, test_outputs=[raised]), SimpleNamespace(excinfo=None)
    assert nbval_plugin._message(item, call) == words
