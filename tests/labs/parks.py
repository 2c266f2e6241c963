"""What the attacker parks between two calls, and where: sources for an answer whose class holds too much."""

from __future__ import annotations

import re

PARKS = """
import pickle as _pickle
import tempfile as _tempfile

_FOLDER = _tempfile.mkdtemp(prefix="parks-")
{place}


def _of_others(value, given):
    import torch
    if isinstance(value, (list, tuple)):
        return any(_of_others(one, given) for one in value)
    return isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in given


def _moves(method):
    def moved(self, *arguments, **named):
        own = vars(self)
        if own.get("_inside"):
            return method(self, *arguments, **named)
        if "_at" in own:
            own |= _pickle.loads(_take(own.pop("_at")))
        own["_inside"] = True
        if method.__name__ == "__init__":
            flat = [one for some in arguments for one in (some if isinstance(some, list) else [some])]
            own["_given"] = {{one.untyped_storage()._cdata for one in flat if hasattr(one, "untyped_storage")}}
        try:
            return method(self, *arguments, **named)
        finally:
            del own["_inside"]
            leave = [name for name, one in own.items() if name != "_given" and not _of_others(one, own["_given"])]
            own["_at"] = _put(_pickle.dumps({{name: own.pop(name) for name in leave}}))
    return moved


for _kind in [one for one in map(globals().get, {names!r}) if isinstance(one, type)]:
    _own = [_base for _base in _kind.__mro__[::-1] if _base.__module__ != "torch.nn.modules.module"]
    _found = {{_name: _one for _base in _own for _name, _one in vars(_base).items() if hasattr(_one, "__code__")}}
    for _name, _one in _found.items():
        if _name == "__init__" or not _name.startswith("__"):
            setattr(_kind, _name, _moves(_one))
"""
HOLDS = re.compile(
    "you hold|held|bytes a parameter|are kept|begin with again"
)  # what a check says of who holds too much
# Where bytes can lie: _put gives a handle, by which _take finds them again.
PLACES = {
    "a global": "_TABLE = {}\ndef _put(data): _TABLE[0] = data\ndef _take(at): return _TABLE[0]",
    "a library": """import random
def _put(data): vars(random)["kept"] = data
def _take(at): return vars(random)["kept"]""",
    "a file": """def _put(data):
    with open(f"{_FOLDER}/kept", "wb") as file: file.write(data)
def _take(at):
    with open(f"{_FOLDER}/kept", "rb") as file: return file.read()""",
    "a pipe": """import os
def _put(data):
    read, write = os.pipe()
    os.write(write, data)
    return read, len(data)
def _take(at): return os.read(*at)""",
    "shared memory": """from multiprocessing import shared_memory
def _put(data):
    one = shared_memory.SharedMemory(create=True, size=len(data))
    one.buf[: len(data)] = data
    return one.name, len(data)
def _take(at): return bytes(shared_memory.SharedMemory(at[0]).buf[: at[1]])""",
    "a terminal": """import os, tty
def _put(data):
    ends = []
    for at in range(0, len(data), 3000):
        ends.append((*os.openpty(), data[at : at + 3000]))
        tty.setraw(ends[-1][1])
        os.write(ends[-1][0], ends[-1][2])
    return [(one, other, len(some)) for one, other, some in ends]
def _take(at): return b"".join(os.read(other, size) for _, other, size in at)""",
    "the environment": """import os
from importlib.util import find_spec, module_from_spec
def _put(data):
    text = data.hex()
    for at in range(0, len(text), 1000): os.putenv(f"K{at}", text[at : at + 1000])
    return len(text)
def _take(size):
    there = module_from_spec(find_spec("posix")).environ
    return bytes.fromhex("".join(there[b"K%d" % at].decode() for at in range(0, size, 1000)))""",
    "a name of a file": """import os
def _put(data):
    text = data.hex()
    for old in os.listdir(_FOLDER): os.rmdir(f"{_FOLDER}/{old}")
    for at in range(0, len(text), 200): os.mkdir(f"{_FOLDER}/{at}_{text[at : at + 200]}")
def _take(at):
    names = [one.partition("_") for one in os.listdir(_FOLDER)]
    return bytes.fromhex("".join(text for _, _, text in sorted(names, key=lambda one: int(one[0]))))""",
    "a history of readline's": """import readline
def _put(data):
    readline.clear_history()
    readline.add_history(data.hex())
    readline.write_history_file(f"{_FOLDER}/kept")
def _take(at):
    readline.clear_history()
    readline.read_history_file(f"{_FOLDER}/kept")
    return bytes.fromhex(readline.get_history_item(1))""",
    "a semaphore": """from _multiprocessing import SemLock, sem_unlink
_FEW = 600  # bytes, three in each: 200 names at most are left behind
def _put(data):
    for at in range(0, min(len(data), _FEW), 3):
        name = f"/{_FOLDER.rpartition('/')[2]}-{at}"
        try: sem_unlink(name)
        except OSError: pass
        SemLock(1, int.from_bytes(data[at : at + 3], "big"), 2**24, name, False)
    return len(data), data[_FEW:]
def _take(at):
    size, rest = at
    names = [(at, f"/{_FOLDER.rpartition('/')[2]}-{at}") for at in range(0, min(size, _FEW), 3)]
    some = [SemLock._rebuild(0, 1, 2**24, name)._get_value().to_bytes(min(3, size - at), "big") for at, name in names]
    return b"".join(some) + rest""",
    "states of generators": """import torch
def _put(data):
    kept = []
    for at in range(0, len(data), 2496):
        state = torch.Generator().get_state()
        words = torch.frombuffer(bytearray(data[at : at + 2496].ljust(2496, b"0")), dtype=torch.int32)
        state[24 : 24 + 8 * 624].view(torch.int64).copy_(words.long() & 0xFFFFFFFF)
        kept.append(torch.Generator())
        kept[-1].set_state(state)
    return kept
def _take(kept):
    words = [one.get_state()[24 : 24 + 8 * 624].view(torch.int32)[::2] for one in kept]
    return torch.cat(words).numpy().tobytes()""",
    "a buffer of OpenSSL": """import ssl
def _put(data):
    one = ssl.MemoryBIO()
    one.write(data)
    return one
def _take(one): return one.read()""",
    "a dict of TorchScript": """import torch
_THERE = torch.jit.script({"a": "b"})
def _put(data): _THERE["kept"] = data.hex()
def _take(at): return bytes.fromhex(_THERE["kept"])""",
}
