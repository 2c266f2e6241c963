"""Forgers that speak the kernel's protocol themselves: they hold its session key, so what they send is signed.

`send` and `raw` are what the attacks are written with; `now` and `soon` are the parents of this cell and of the next
ones, whose ids can be guessed because clients count them.
"""

from __future__ import annotations

from tests.grading.corpus.case import FORGING, NOT_PASSED, Case, every
from tests.grading.corpus.edits import knowing

TOOLS = """import time

kernel = get_ipython().kernel
session, iopub, now = kernel.session, kernel.iopub_socket, kernel.get_parent()
shell = getattr(kernel, "shell_stream", None) or kernel.shell_streams[0]


def soon(count=40):
    first, _, number = now["header"]["msg_id"].rpartition("_")
    for step in range(1, count):
        header = dict(now["header"], msg_id=f"{first}_{int(number) + step}")
        yield dict(now, header=header, msg_id=header["msg_id"])


def send(kind, content, parent=now):
    session.send(iopub, kind, content, parent=parent, ident=b"forged")


def raw(header, parent, metadata, content, sign=session.sign):
    parts = [part if isinstance(part, bytes) else session.pack(part) for part in (header, parent, metadata, content)]
    iopub.send_multipart([b"forged", b"<IDS|MSG>", sign(parts), *parts])


def header(kind="stream"):
    return session.msg_header(kind)"""
LATER = """import threading


def later(attack, times=200):
    def run():
        for _ in range(times):
            time.sleep(0.02)
            attack()

    threading.Thread(target=run, daemon=True).start()"""

# What is printed under the released lab's checks, sent as if the next cells had printed it.
PRINTS_FOR_OTHERS = """for parent in soon():
    for shown in SHOWN.values():
        send("stream", {"name": "stdout", "text": shown}, parent)"""
TELLS_FOR_OTHERS = """for parent in soon():
    told = {"application/vnd.workbook.rows+json": '{"rows": [{"answer": "2"}], "replaced": []}'}
    send("display_data", {"data": told, "metadata": {}, "transient": {}}, parent)"""
ENDS_OTHERS = """for parent in soon():
    for shown in SHOWN.values():
        send("stream", {"name": "stdout", "text": shown}, parent)
    send("status", {"execution_state": "idle"}, parent)
    reply = {"status": "ok", "execution_count": 1, "user_expressions": {}, "payload": []}
    session.send(shell, "execute_reply", reply, parent=parent, ident=kernel._parent_ident["shell"])"""
ENDS_EARLY = f"""{LATER}


def end():
    parent = kernel.get_parent("shell")
    send("status", {{"execution_state": "idle"}}, parent)
    reply = {{"status": "ok", "execution_count": 1, "user_expressions": {{}}, "payload": []}}
    session.send(shell, "execute_reply", reply, parent=parent, ident=kernel._parent_ident["shell"])


later(end)"""
SPEAKS_FOR_THE_KERNEL = """plain = session.send


def send_instead(stream, kind, content=None, *words, **named):
    if kind == "error" or (kind == "stream" and "line" in str(content)):
        return None
    if kind == "execute_reply":
        content = dict(content, status="ok")
    return plain(stream, kind, content, *words, **named)


session.send = send_instead"""
TAKES_BACK = """for parent in soon():
    send("clear_output", {"wait": True}, parent)
    send("update_display_data", {"data": {"text/plain": "2"}, "metadata": {}, "transient": {"display_id": "x"}}, parent)
    send("comm_open", {"comm_id": "x", "target_name": "jupyter.widget", "data": {}}, parent)"""
ABORTS = """for parent in soon():
    session.send(shell, "execute_reply", {"status": "aborted"}, parent=parent, ident=kernel._parent_ident["shell"])"""

GARBAGE = {
    "a list as content": """for kind in ("stream", "status", "error", "display_data", "execute_result"):
    raw(header(kind), now["header"], {}, [])""",
    "null, number and text as content": """for content in (None, 1, "text", True):
    raw(header(), now["header"], {}, content)""",
    "missing keys": """for kind in ("stream", "status", "error", "display_data", "execute_result", "execute_reply"):
    send(kind, {})
raw({}, {}, {}, {})
raw({"msg_type": "stream"}, now["header"], {}, {"name": "stdout", "text": "2"})
raw({"msg_id": "x"}, now["header"], {}, {"name": "stdout", "text": "2"})""",
    "wrong types": """for value in (None, 1, [], {}, True, [["x"]]):
    send("stream", {"name": value, "text": value})
    send("error", {"ename": value, "evalue": value, "traceback": value})
    send("display_data", {"data": value, "metadata": value})
    send("display_data", {"data": {"text/plain": value, "text/html": value}, "metadata": {}})
    send("execute_result", {"data": {"text/plain": value}, "metadata": {}, "execution_count": value})
    send("status", {"execution_state": value})""",
    "a header that is none": """for value in (None, 1, [], "text", {"msg_id": []}, {"msg_id": {}}, {"msg_id": None}):
    raw(header(), value, {}, {"name": "stdout", "text": "2"})
    raw(value, now["header"], {}, {"name": "stdout", "text": "2"})
    raw(header(), now["header"], value, {"name": "stdout", "text": "2"})""",
    "kinds that do not exist": """for kind in ("", "x" * 1000, 1, None, [], {}, "input_request"):
    raw(dict(header(), msg_type=kind), now["header"], {}, {"prompt": "password: "})""",
    "dates that are none": """for date in (1, None, "9999-99-99T99:99:99", "2020-01-01T00:00:00" + "0" * 9999):
    raw(dict(header(), date=date), dict(now["header"], date=date), {}, {"name": "stdout", "text": "2"})""",
    "100 MB of text": 'send("stream", {"name": "stdout", "text": "x" * 100_000_000})',
    "100 MB of buffers": """session.send(iopub, "comm_msg", {}, parent=now, buffers=[bytes(100_000_000)])""",
    "nested deeply": """depth = 100_000
raw(header(), now["header"], {}, b"[" * depth + b"]" * depth)
raw(header(), now["header"], {}, b'{"text":' * depth + b"1" + b"}" * depth)""",
    "no JSON": """for content in (b"", b"{", b"nonsense", b"NaN", b'{"name": NaN}', b"1e999", b"9" * 5000, b"\\xff"):
    raw(header(), now["header"], {}, content)""",
    "broken text": """for text in ('"\\\\ud800"', '"\\\\u0000"', '"\\x1b[2J"'):
    raw(header(), now["header"], {}, ('{"name": "stdout", "text": ' + text + "}").encode())""",
    "an error in broken text": """for text in ("\\\\ud800", "\\\\u0000", "\\\\u001b[2J"):
    error = '{"ename": "%s", "evalue": "%s", "traceback": ["%s"]}' % (text, text, text)
    raw(header("error"), now["header"], {}, error.encode())""",
    "frames missing": """packed = [session.pack(part) for part in (header(), now["header"], {}, {})]
for count in range(5):
    iopub.send_multipart([b"forged", b"<IDS|MSG>", session.sign(packed[:count]), *packed[:count]])
iopub.send_multipart([b"forged"])
iopub.send_multipart([b"<IDS|MSG>"])
iopub.send_multipart([b"forged", *packed])""",
    "signatures missing, wrong and repeated": """content = {"name": "stdout", "text": "2"}
parts = [session.pack(part) for part in (header(), now["header"], {}, content)]
for signature in (b"", b"0" * 64, session.sign(parts), session.sign(parts)):
    iopub.send_multipart([b"forged", b"<IDS|MSG>", signature, *parts])""",
    "replies that are none": """for parent in (now, *soon(5)):
    for content in ({}, {"status": None}, {"status": []}, {"status": "ok", "payload": 1}):
        session.send(shell, "execute_reply", content, parent=parent, ident=kernel._parent_ident["shell"])""",
    "a thousand messages a second": f"""{LATER}


later(lambda: [send("stream", {{"name": "stdout", "text": "."}}) for _ in range(20)])""",
}

_FORGED = {
    "prints for later cells": PRINTS_FOR_OTHERS,
    "tells answers for later cells": TELLS_FOR_OTHERS,
    "ends later cells": ENDS_OTHERS,
    "ends each cell early": ENDS_EARLY,
    "speaks for the kernel": SPEAKS_FOR_THE_KERNEL,
    "takes back what is shown": TAKES_BACK,
    "aborts later cells": ABORTS,
}
CASES = (
    *(
        Case(name, FORGING, "forged kernel messages", knowing(f"{TOOLS}\n\n\n{attack}"), every(NOT_PASSED))
        for name, attack in _FORGED.items()
    ),
    *(
        Case(
            f"garbage: {name}", FORGING, "signed garbage messages", knowing(f"{TOOLS}\n\n\n{attack}"), every(NOT_PASSED)
        )
        for name, attack in GARBAGE.items()
    ),
)
