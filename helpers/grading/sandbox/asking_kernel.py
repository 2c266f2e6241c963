"""The kernel in which a learner's answers run: what is given stays apart from what the learner writes.

Cells come as a notebook's do, and three kinds more, marked by their first line:

    #: apparatus                   what asking cells use, and answers cannot see
    #: answers begin               what ran until now is given: answers get a namespace of their own
    #: put back                    before what asks: whatever was replaced is put back
    #: ask {"names": ["mean"]}     the asking cell below it, with that name of the learner's and no other

So there are three namespaces: the given names, and two that begin as copies of them, one for what asks and one for what
answers. Before an asking cell runs, whatever was replaced in what they share is put back; it runs beside IPython's
machinery, which answers may have changed. What `asked` wrote down goes to the grader in one message.

What an asking cell draws with comes in its first line, from outside, and is taken out of the message before anything
of a learner's runs. So that nobody has put an ear to the door meanwhile, all is put back by a cell of its own first.
"""

from __future__ import annotations

import json
import linecache
import logging
import marshal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp

from ...catalog.sealed import sealed
from ...lesson import asking
from ...lesson.drawn_inputs import given
from ...lesson.genuine import OF_THE_LAB
from ...lesson.guard import Guard
from .apart import Apart
from .message_guard import MessageGuard
from .pristine import Pristine, copies

APPARATUS, BEGIN, PUT_BACK, ASK = "#: apparatus", "#: answers begin", "#: put back", "#: ask"


def ask_line(names: Sequence[str], secrets: Mapping[str, str]) -> str:
    """The first line of an asking cell: what it asks, and what it draws with, by name."""
    return f"{ASK} {json.dumps({'names': list(names), 'secrets': dict(secrets)})}"


class _Parts(NamedTuple):
    """What a kernel asks with, from where answers begin: functions that show nobody what they hold."""

    guard: Guard
    run: Callable[[Callable[[], str]], str]
    restore: Callable[[], list[str]]  # of names that asking cells share, and what was replaced
    put_back: Callable[[], list[str]]  # what was replaced, and no names
    put_all_back: Callable[[], list[str]]  # everything; its names, in words


class AskingKernel(IPythonKernel):
    """An IPython kernel that knows these kinds of cells."""

    _parts: _Parts | None = None  # a property from where answers begin: no value of an object's stands in for it

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._asking: dict[str, Any] | None = None
        self._codes: list[CodeType] = []  # of cells of ours
        self._replaced: list[str] = []  # put back since anything was asked, in words

    async def do_execute(self, code: str, *args: Any, **kwargs: Any) -> dict:
        """Run a cell; a marked one in its own way."""
        first, _, rest = code.partition("\n")
        if first == APPARATUS:
            return self._replied(self._error_of(rest, self._asking_names()))
        if first == BEGIN:
            return self._begin()
        if first == PUT_BACK and self._parts is not None:
            self._replaced += self._parts.put_all_back()
            logging.disable()  # which would write down the message that comes next
            return self._replied()
        if first.startswith(ASK):
            self.get_parent("shell").get("content", {}).pop("code", None)  # where what it draws with would be read
            logging.disable(logging.NOTSET)
            return self._ask(**json.loads(first.removeprefix(ASK)), source=rest)
        return await super().do_execute(code, *args, **kwargs)

    def _asking_names(self) -> dict[str, Any]:
        if self._asking is None:
            self._asking = dict(self._names)
        return self._asking

    def _begin(self) -> dict:
        """From here on cells run in a copy of what is given."""
        apart, shared = Apart(), self._asking_names()
        for code in self._codes:
            apart.guard.ours(code, shared)
        pristine = Pristine(shared)
        now, was = self._names, dict(self._names)  # where given functions look their names up
        messages: list[MessageGuard] = []

        def put_all_back() -> list[str]:
            replaced = [name for name, value in was.items() if now.get(name) is not value]
            now.update({name: was[name] for name in replaced})
            return [*replaced, *apart.put_back(), *pristine.restore(), *messages[0].restore()]

        hidden = [sealed(one) for one in (apart.run, pristine.restore, pristine.put_back, put_all_back)]
        parts = _Parts(apart.guard, *hidden)
        type(self)._parts = property(lambda kernel: parts)  # type: ignore[assignment]
        messages.append(MessageGuard(self))
        answers = ModuleType("__main__")
        vars(answers).update(copies(self._names))
        self.shell.user_module, self.shell.user_ns = answers, vars(answers)  # type: ignore[union-attr]
        sys.modules["__main__"] = answers  # where pickle looks for a learner's classes
        apart.began()
        return self._replied()

    def _ask(self, names: list[str], secrets: dict[str, str], source: str) -> dict:
        parts = self._parts
        if parts is None:
            return self._replied(RuntimeError("the answers have not begun"))
        answers, replaced = self._names, parts.restore()
        lab = partial(marshal.dumps, (self._codes, dict(parts.guard.read)))

        def ask(before_each: Callable[[], object]) -> tuple[list[asking.Row], BaseException | None]:
            self._asking_names().update({name: answers[name] for name in names if name in answers})
            writing = asking.writing(answers, run=parts.run, before_each=before_each, lab=lab)
            with given(secrets), parts.guard.asking(), writing as rows:
                return rows, self._error_of(source, dict(self._asking_names()), parts)

        rows, error = ask(list)
        behind = parts.put_all_back()
        if behind:  # an answer waited until it was called: it is asked again, and what it replaces put back each time
            rows, error = ask(parts.put_back)
            parts.put_all_back()
        replaced, self._replaced = list(dict.fromkeys([*self._replaced, *replaced, *behind])), []
        data = {asking.MIME: json.dumps({"rows": rows, "replaced": replaced, "reached": parts.guard.told()})}
        self._send("display_data", {"data": data, "metadata": {}, "transient": {}})
        return self._replied(error)

    @property
    def _names(self) -> dict[str, Any]:
        """Where cells without a mark run."""
        return self.shell.user_ns  # type: ignore[union-attr]

    def _replied(self, error: BaseException | None = None) -> dict:
        sys.stdout.flush()
        reply: dict[str, Any] = {"execution_count": 0, "payload": [], "user_expressions": {}}
        if error is None:
            return {"status": "ok", **reply}
        words = {"ename": type(error).__name__, "evalue": asking.words_of(error), "traceback": []}
        self._send("error", words)
        return {"status": "error", **reply, **words}

    def _error_of(self, source: str, names: dict[str, Any], parts: _Parts | None = None) -> BaseException | None:
        """Run a cell of ours; what it raised. One that asks has `names` of its own, which nothing else leads to."""
        file = f"{OF_THE_LAB}{hash(source):x}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        try:
            code = compile(source, file, "exec")
            self._codes.append(code)
            if parts is not None:
                parts.guard.ours(code, names)
            exec(code, names)
        except BaseException as error:
            return error.with_traceback(None)  # which would lead to our frames
        finally:
            if parts is not None:
                names.clear()  # what it made is gone with it
        return None

    def _send(self, kind: str, content: dict) -> None:
        parent, topic = self.get_parent("shell"), self._topic(kind)
        self.session.send(self.iopub_socket, kind, content, parent=parent, ident=topic)  # type: ignore[union-attr]


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=AskingKernel)
