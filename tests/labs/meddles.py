"""What the attacker does, while its answer is asked, to whatever counts: sources that follow a wrong answer.

No word of Python's that leads to somebody else's variables is spelled here, as none is in an attacker's notebook.
"""

from __future__ import annotations

import re

COUNTED = re.compile("byte|MiB|held|hold|keep|kept|peak|memory|sent|travel|read")  # in what a check says
MEDDLES = """
import functools as _functools
import gc as _gc
import re as _re
import sys as _sys

_COUNTS = _re.compile("byte|peak|live|total|count|held|most|sent|read|moved|made|copies|flops|events|rows|seen|at_once")

_CALLS = [0]  # that it was asked for; what takes a while it does at few of them


def _wiped(one):
    \"\"\"Every number of an object of ours, or of the lab's, is nothing from here on, and every list empty.\"\"\"
    if str(type(one).__module__).partition(".")[0] in ("helpers", "__main__") and type(one).__name__ not in {names!r}:
        for name in [*getattr(one, "__dict__", ()), *getattr(type(one), "__slots__", ())]:
            value = getattr(one, name, None) if _COUNTS.search(name) else None
            try:
                if type(value) in (int, float):
                    object.__setattr__(one, name, 0)
                elif isinstance(value, list):
                    value.clear()
            except Exception:
                pass


def _meddle():
{meddle}


def _tried():
    _CALLS[0] += 1
    try:
        if _CALLS[0] % {every} == 0:
            _meddle()
    except BaseException:
        pass


def _meddles(function):
    @_functools.wraps(function)
    def meddling(*arguments, **named):
        _tried()
        try:
            return function(*arguments, **named)
        finally:
            _tried()
    return meddling


for _name in {names!r}:
    _one = globals().get(_name)
    if isinstance(_one, type):
        for _key, _method in list(vars(_one).items()):
            if isinstance(_method, (staticmethod, classmethod)):
                setattr(_one, _key, type(_method)(_meddles(_method.__func__)))
            elif hasattr(_method, "__code__"):
                setattr(_one, _key, _meddles(_method))
    elif hasattr(_one, "__code__"):
        globals()[_name] = _meddles(_one)
"""
FEW = {"all objects": 37, "data of ours": 37}  # at every which call, where not at all of them
WAYS = {
    "variables of who asks": """    frames = [getattr(_sys, "_get" + "frame")()]
    frames += getattr(_sys, "_current_" + "frames")().values()
    for frame in frames:
        while frame is not None:
            there = (getattr(frame, "f_" + "locals"), getattr(frame, "f_" + "globals"))
            for one in [one for names in there for one in names.values()]:
                _wiped(one)
                for inner in one if isinstance(one, (list, tuple)) else ():
                    _wiped(inner)
            frame = getattr(frame, "f_" + "back")""",
    "a traceback's variables": """    try:
        raise KeyError
    except KeyError as error:
        frame = getattr(getattr(error, "__trace" + "back__"), "tb_" + "frame")
    while frame is not None:
        for one in [*getattr(frame, "f_" + "locals").values(), *getattr(frame, "f_" + "globals").values()]:
            _wiped(one)
        frame = getattr(frame, "f_" + "back")""",
    "all objects": """    for one in getattr(_gc, "get_" + "objects")():
        _wiped(one)""",
    "data of ours": """    for name, module in list(_sys.modules.items()):
        for key, one in list(vars(module).items()) if name.partition(".")[0] == "helpers" else ():
            if not key.strip("_").isupper():
                continue
            if isinstance(one, (list, dict, set)):
                one.clear()
            elif isinstance(one, (tuple, frozenset)):
                setattr(module, key, type(one)())
            elif type(one) in (int, float):
                setattr(module, key, type(one)(10**12))""",
    "what watches operators": """    import torch
    from torch.utils import _python_dispatch as modes
    for one in getattr(modes, "_get_current_dispatch_mode_" + "stack")():
        _wiped(one)""",
}
