"""Answers that reach for what measures them: no proof of anything, and worth an instructor's look.

No check runs in the learner's kernel, and what is given is put back there before each question. But the questions are
asked there, and a determined answer could reach what asks: here it is seen to have tried.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from nbformat import NotebookNode

from ...course import lab_cells
from . import reading, replacing, spelled
from .made_before import defaults_of_much, made_before
from .reach import Reach, binds_any, leading_to, part_with

_WORDS = {  # what a learner's cell reaches for, and by which names
    "the notebook's own machinery": "get_ipython ipykernel IPKernelApp InteractiveShell do_execute shell_handlers",
    "what asks it": "asking _desk helpers.grading _parts _asking",
    "what no meter sees": "threading _thread concurrent multiprocessing Thread ThreadPool ThreadPoolExecutor"
    " ProcessPoolExecutor to_thread run_in_executor no_dispatch _C _disable_current_modes _DisableTorchDispatch"
    " _get_current_dispatch_mode _get_current_dispatch_mode_stack _pop_mode _pop_mode_temporarily custom_op"
    " torch.library tracemalloc sqlite3 subprocess Popen os.fork TorchFunctionMode _op_dk redispatch DispatchKey"
    " to_dlpack DataLoader _execution_engine run_backward is_in_torch_dispatch_mode"
    " torch.ops.quantized torch.ops.mkldnn torch.ops.prepacked torch.classes",
    "what replaces things while it runs": "mock MonkeyPatch",
    "a way beside the collectives": "TCPStore FileStore HashStore PrefixStore _get_default_store _get_backend socket"
    " mmap shared_memory SharedMemory rendezvous get_group_store _get_process_group_store pg_map _pg_map _world"
    " ProcessGroupGloo share_memory_ _share_filename_cpu_ _share_fd_cpu_"
    " get_future torch.futures init_rpc rpc_sync rpc_async UntypedStorage.from_file helpers.lesson.ranks.worker._rank",
    "its caller's variables": "_getframe currentframe f_back f_locals f_globals tb_frame gi_frame getargvalues"
    " capture_locals StackSummary TracebackException",
    "another function's variables": "__closure__ cell_contents getclosurevars getgeneratorlocals get_referents",
    "all names at once": "__globals__",
    "every object there is": "get_objects get_referrers",
    "every class there is": "__subclasses__",
    "loaded modules": "sys.modules __import__ runpy import_module pkgutil getmodule",
    "Python's own functions": "builtins __builtins__",
    "running code": "settrace setprofile __code__ gc.callbacks",
    "code made of text": "exec eval compile",
    "memory itself": "ctypes ctypeslib from_address __array_interface__ __array_struct__"
    " np.lib.stride_tricks.as_strided numpy.lib.stride_tricks.as_strided",
    "files": "open NamedTemporaryFile TemporaryFile SpooledTemporaryFile mkstemp memmap write_bytes write_text tofile"
    " torch.save torch.load torch.jit.save safetensors read_bytes read_text np.load numpy.load"
    " torch.from_file np.save np.savez BytesIO pickle shelve memfd_create os.open os.write pwrite pread",
}
# These reach the kernel itself, whether or not an answer comes back to the cell that does it.
_LASTING = {"ipykernel", "IPKernelApp", "InteractiveShell", "do_execute", "shell_handlers", "_getframe", "currentframe"}
_LASTING |= {*_WORDS["what asks it"].split(), "f_back"}
_OF_OBJECTS = {"eval", "exec", "open", "compile"}  # as a method they are honest: model.eval()
_WHILE_IMPORTED = {"torch.Tensor.numpy", "torch.Tensor.tolist"}  # kept for later; called in a function they are counted
_KNOWN = {*dir(builtins), "display", "get_ipython", "In", "Out", "_", "__file__"}
_BY_NAME = ("getattr", "attrgetter", "methodcaller", "__getattribute__")  # call these with a text
_ENGINES = {"helpers", "torchao", "bitsandbytes", "transformers", "peft", "accelerate", "deepspeed", "triton", "vllm"}
_ENGINES |= {"galore_torch", "apollo_torch", "flash_attn", "xformers", "diffusers", "auto_gptq", "awq", "llmcompressor"}
_REACHES = {word: what for what, words in _WORDS.items() for word in words.split()}
_REACHES |= dict.fromkeys([*_WHILE_IMPORTED, "lists of TorchScript"], "what no meter sees")


def signs_of_tampering(reference: NotebookNode, assembled: NotebookNode) -> tuple[str, ...]:
    """A sentence for each thing that a learner's cell replaces or reaches for and the worked lab does not.

    A copy of what is given replaces nothing.
    """
    given = {cell.source for cell in reference.cells}
    lab = _Given(reference)
    own = [cell for cell in assembled.cells if cell.cell_type == "code" and cell.source not in given]
    answers = [cell.source for cell in own if lab_cells.is_answer(cell)]
    tried = [cell.source for cell in own if not lab_cells.is_answer(cell)]
    lab.learn([*tried, *answers])
    reach = leading_to(tried, answers, lab.names | _KNOWN, lab.asked)
    lab.late = _after_what_asks(assembled)
    return tuple(dict.fromkeys(f"{_where(cell)} {sign}" for cell in own for sign in lab.signs(cell, reach)))


class _Given:
    """What a lab defines and imports where answers can see it. Its variables come and go, and do not count."""

    def __init__(self, reference: NotebookNode) -> None:
        code = [cell for cell in reference.cells if cell.cell_type == "code"]
        visible = [cell for cell in code if not lab_cells.role(cell)]  # what a learner has reason to copy
        cells = [cell for cell in visible if lab_cells.is_given(cell)]
        self.imported = {name: where for cell in cells for name, where in reading.imported(cell.source).items()}
        self.defined = {name: node for cell in cells for name, node in reading.definitions(cell.source).items()}
        self.variables = {name for cell in cells for name in reading.assigned(cell.source)}
        self.variables -= self.imported.keys() | self.defined.keys()
        others = [cell for cell in code if not lab_cells.is_answer(cell)]
        self.private = {name for cell in others for name in reading.private(cell.source, (ast.Store,))}
        self.reached = {name for cell in visible for name in _reached(cell.source)}
        self.engines = {name for cell in visible for name in _engines(cell.source)}
        self.names = {name for cell in code for name in lab_cells.bound_names(cell)}
        self.asked = set(lab_cells.names_of(cell for cell in code if lab_cells.is_answer(cell)))
        self.everywhere = {name for cell in code for name in reading.imported(cell.source)}
        self.made: set[str] = set()  # by cells of a learner's
        self.attributes: set[str] = set()  # that they read or set
        self.late: set[str] = set()  # the cells after which nothing is asked

    def learn(self, sources: Iterable[str]) -> None:
        """What all cells of a learner's together make and read."""
        for source in sources:
            found = replacing.made_by(source) | replacing.data(source, self.variables | self.made)
            self.made |= {name for name in found - self.defined.keys() if not _is_module(self.imported.get(name, ""))}
            self.attributes |= reading.attributes(source)

    def signs(self, cell: NotebookNode, reach: Reach) -> Iterator[str]:
        """What a learner's cell does, a phrase each. Of a cell that is no answer that is what answers come back to; all
        of it where nobody knows."""
        source, is_answer = cell.source, lab_cells.is_answer(cell)
        names = None if is_answer else reach.names
        given = set() if cell.id in self.late else self.replaced_by(source, names)
        yield from (f"replaces {name}, which is given" for name in sorted(given))
        yield from (f"replaces {name}" for name in sorted(replacing.attributes_set(source, self.everywhere, self.made)))
        lasting = _reached(source) & _LASTING
        if names is not None:
            source = part_with(source, names, reach.steady)
        words = (_reached(source) | lasting) - self.reached
        yield from (f"reaches for {what}" for what in sorted({_REACHES[word] for word in words}))
        variables, of_classes = made_before(source)
        if is_answer and (reach.names is None or not binds_any(source, self.asked)):
            variables &= reading.globals_of_functions(source)
        elif reach.names is not None:
            variables &= reach.names
        kept = sorted(variables | (of_classes & self.attributes)) + ["a default"] * defaults_of_much(source)
        yield from (f"keeps memory that is made before it is asked: {name}" for name in kept)
        yield from (f"imports {name}, which the lab does not" for name in sorted(_engines(source) - self.engines))
        yield from (f"reaches for {name}, private to what is given" for name in self.private_in(source))

    def replaced_by(self, source: str, names: set[str] | None) -> set[str]:
        """The names that a cell gives another meaning, other than by a copy of what they are; of `names`, if any."""
        mine = reading.definitions(source)
        clashes = reading.assigned(source) & (self.defined.keys() | self.imported.keys())
        clashes &= clashes if names is None else names
        data = replacing.data(source, self.variables | self.made)  # which harms nobody, but in a module's place
        data = {name for name in data if not _is_module(self.imported.get(name, ""))}
        data |= replacing.named_again(source, self.imported)
        same = {name for name in clashes & mine.keys() if replacing.is_more_of(mine[name], self._given(name))}
        return clashes - data - same

    def private_in(self, source: str) -> list[str]:
        """The attributes that a cell reads, that only what is given sets, and that begin with an underscore."""
        return sorted(
            self.private & reading.private(source, (ast.Load, ast.Del)) - reading.private(source, (ast.Store,))
        )

    def _given(self, name: str) -> ast.AST | None:
        if name in self.defined:
            return self.defined[name]
        module, _, attribute = self.imported[name].rpartition(".")
        try:
            value = getattr(importlib.import_module(module), attribute)
            return reading.definitions(inspect.getsource(value))[name]
        except (ImportError, AttributeError, TypeError, OSError, ValueError, KeyError):
            return None  # of no function or class in Python


def _is_module(where: str) -> bool:
    """Whether an import like "torch.nn" is of a module. Nothing is imported for it."""
    root, *rest = where.split(".")
    spec = find_spec(root) if root else None
    if spec is None or not rest:
        return spec is not None
    paths = [Path(folder, *rest) for folder in spec.submodule_search_locations or ()]
    return any(path.is_dir() or path.with_suffix(".py").is_file() for path in paths)


def _after_what_asks(lab: NotebookNode) -> set[str]:
    """The cells below the last that asks an answer: what a name means from there on no answer finds."""
    asks = [at for at, cell in enumerate(lab.cells) if lab_cells.is_ask(cell)]
    return {cell.id for cell in lab.cells[asks[-1] :]} if asks else set()


def _where(cell: NotebookNode) -> str:
    return f"answer {lab_cells.grade_id(cell)!r}" if lab_cells.is_answer(cell) else "a cell of the learner's own"


def _reached(source: str) -> set[str]:
    words = reading.globals_read(source)
    mine = reading.of_self(source)
    for node in ast.walk(reading.tree(source)):
        if isinstance(node, ast.Name) and node.id.startswith("__"):
            words.add(node.id)
        elif isinstance(node, ast.BinOp):
            words |= set(spelled.joined(node).split())
        elif isinstance(node, ast.MatchClass):  # `case object(f_back=frame)` reads an attribute
            words |= {*node.kwd_attrs, *spelled.endings(spelled.dotted(node.cls))}
        elif isinstance(node, ast.MatchMapping):
            words |= {one.value for one in node.keys if isinstance(one, ast.Constant) and isinstance(one.value, str)}
        elif isinstance(node, ast.Subscript | ast.Call):
            words.add(spelled.by_text(node))
            if isinstance(node, ast.Call) and spelled.dotted(node.func).rpartition(".")[2] in _BY_NAME:
                words |= {part for text in spelled.texts(node) for part in text.split(".")}
        elif isinstance(node, ast.Attribute):
            name = spelled.dotted(node)
            words |= {*spelled.endings(name)} | ({node.attr} - _OF_OBJECTS if name not in mine else set())
        elif isinstance(node, ast.Import):
            words |= {part for alias in node.names for part in alias.name.split(".")}
        elif isinstance(node, ast.ImportFrom) and node.module:
            words |= {*node.module.split("."), *spelled.endings(node.module)}
            words |= {word for alias in node.names for word in (alias.name, f"{node.module}.{alias.name}")}
        if isinstance(node, ast.Call | ast.Subscript) or spelled.is_filled_in(node):
            text = spelled.folded(node) or ""
            words |= set(text.split(".")) if re.fullmatch(r"[\w.]*", text) else set()
    words -= _WHILE_IMPORTED
    words |= _WHILE_IMPORTED & {spelled.dotted(node) for node in reading.at_import(source)}
    if words >= {"torch.jit.script", "tolist"}:
        words.add("lists of TorchScript")
    return words & _REACHES.keys()


def _engines(source: str) -> set[str]:
    """What a cell imports of ours, and of packages that know a lab's answers, in full: "peft.LoraConfig".

    `helpers.memory.budget` is as good as an import of it: a module is an attribute of its package.
    """
    names = set()
    for node in ast.walk(reading.tree(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and (name := spelled.dotted(node)).startswith("helpers."):
            names.add(name)
    names = {name for name in names if not any(other.startswith(f"{name}.") for other in names)}
    free = ("helpers.lesson", "helpers.memory.meter", "helpers.catalog.errors")  # what shows, measures, complains
    return {name for name in names if name.partition(".")[0] in _ENGINES and not name.startswith(free)}
