"""What stands between nbval and a kernel that may be hostile: every message is weighed before nbval sees it.

nbval waits for a dead kernel until its timeout, keeps whatever a kernel prints, and trusts the shape of messages. The
guard replaces one method of nbval's kernel, `get_message`: it notices death within a second, counts output while the
cell still runs, drops what is malformed, and keeps what is not graded (stderr, pictures, results) apart.
"""

from __future__ import annotations

import time
from collections import deque
from queue import Empty

import zmq

MOST_CHARS = 1_000_000  # of one cell's output
MOST_ERROR_CHARS = 5_000
MOST_MALFORMED = 100  # messages of one cell
CELL_LIMIT_S = 60.0  # for a cell that does not say
_TEXTS = {
    "stream": ("name", "text"),
    "error": ("ename", "evalue"),
    "status": ("execution_state",),
    "display_data": (),
    "execute_result": (),
}
_SHOWN = ("display_data", "execute_result")


class Fatal(Exception):  # noqa: N818 (the outcome of a cell, not an error of ours)
    """The kernel cannot go on after this cell: `kind` is 'hung', 'died' or 'flooded'; the words say why."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind


class Guard:
    """In the place of `kernel.get_message`, for nbval's kernel `kernel`; `begin` before every cell."""

    def __init__(self, kernel) -> None:
        self.kernel = kernel
        self.channels = {"shell": kernel.kc.shell_channel, "iopub": kernel.kc.iopub_channel}
        self.poller = zmq.Poller()
        for channel in self.channels.values():
            self.poller.register(channel.socket, zmq.POLLIN)
        self.begin(CELL_LIMIT_S)

    def begin(self, limit_s: float) -> None:
        """Count from zero for a cell that may take `limit_s` seconds."""
        self.limit_s, self.end = limit_s, time.monotonic() + limit_s
        self.chars = self.malformed = 0
        self.waiting: dict[str, deque] = {"shell": deque(), "iopub": deque()}
        self.apart: list[dict] = []

    def __call__(self, stream: str, timeout: float | None = None) -> dict:
        """The next message on `stream`; queue.Empty never comes: a kernel that says nothing more is Fatal."""
        quiet_until = float("inf") if stream == "shell" or timeout is None else time.monotonic() + timeout
        while not self.waiting[stream]:
            now = time.monotonic()
            if now >= self.end:
                raise Fatal("hung", f"ran longer than {self.limit_s:.0f} seconds and was stopped")
            if now >= quiet_until:
                raise Fatal("flooded", "its output did not come through: it prints more than can be read")
            if self.poller.poll(1000 * min(1.0, self.end - now, quiet_until - now)):
                self._take()
            elif not self.kernel.is_alive():
                raise Fatal("died", "ended the kernel: it was killed, ran out of memory, or left Python")
        return self.waiting[stream].popleft()

    def _take(self) -> None:
        """One message of each stream that has one, into `waiting`; what nbval should not see is kept or dropped."""
        for stream, channel in self.channels.items():
            try:
                message = channel.get_msg(timeout=0)
            except Empty:
                continue
            except Exception:  # forged signatures, no JSON, JSON that is too deep: whatever a hostile kernel sends
                message = None
            if not _well_formed(message, stream):
                self._count_malformed()
            elif stream == "shell":
                self._reply(message)
            else:
                self._output(message)

    def _reply(self, message: dict) -> None:
        payload = message["content"].get("payload")
        for item in payload if isinstance(payload, list) else ():
            if isinstance(item, dict) and item.get("source") == "ask_exit":
                raise Fatal("died", "ended the kernel: it called exit() or quit()")
        message["content"] = {"status": message["content"]["status"]}  # the error's words come by iopub as well
        self._count(message["content"])
        self.waiting["shell"].append(message)

    def _output(self, message: dict) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "error":  # one message, already here: cut, so that a learner gets its words
            cut = {name: content[name][:MOST_ERROR_CHARS] for name in ("ename", "evalue")}
            content.update(cut, traceback=[])
        self._count({} if kind == "execute_input" else content)  # which is the cell's own source
        if kind in _SHOWN or (kind == "stream" and content["name"] != "stdout"):
            self.apart.append({**content, "output_type": kind})
        elif kind in _TEXTS:
            self.waiting["iopub"].append(message)

    def _count(self, content: dict) -> None:
        self.chars += 100 + len(str(content))
        if self.chars > MOST_CHARS:
            raise Fatal("flooded", f"printed more than {MOST_CHARS:,} characters and was stopped")

    def _count_malformed(self) -> None:
        self.malformed += 1
        if self.malformed > MOST_MALFORMED:
            raise Fatal("flooded", "sent messages that no kernel sends, and was stopped")


def _well_formed(message: object, stream: str) -> bool:
    """True when nbval can read the message without an error of its own."""
    if not isinstance(message, dict) or not isinstance(message.get("parent_header"), dict):
        return False
    kind, content = message.get("msg_type"), message.get("content")
    if not isinstance(kind, str) or not isinstance(content, dict):
        return False
    if stream == "shell":
        return isinstance(content.get("status"), str)
    texts = all(isinstance(content.get(name), str) for name in _TEXTS.get(kind, ()))
    if kind == "error":
        lines = content.get("traceback")
        return texts and isinstance(lines, list) and all(isinstance(line, str) for line in lines)
    return texts and (kind not in _SHOWN or isinstance(content.get("data"), dict))
