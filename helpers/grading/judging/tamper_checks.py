"""Answers that reach for what measures them: no proof of anything, and worth an instructor's look.

No check runs in the learner's kernel, and what is given is put back there before each question. But the questions are
asked there, and a determined answer could reach what asks: here it is seen to have tried.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import symtable
from collections.abc import Iterator

from nbformat import NotebookNode

from ...course import lab_cells

_WORDS = {  # what a learner's cell reaches for, and by which names
    "the notebook's own machinery": "get_ipython",
    "what asks it": "asking _desk",
    "what no meter sees": "threading _thread concurrent multiprocessing Thread ThreadPool ThreadPoolExecutor"
    " ProcessPoolExecutor to_thread run_in_executor no_dispatch _C _disable_current_modes _DisableTorchDispatch"
    " _get_current_dispatch_mode _get_current_dispatch_mode_stack _pop_mode _pop_mode_temporarily custom_op"
    " torch.library tracemalloc sqlite3 subprocess Popen os.fork TorchFunctionMode _op_dk redispatch DispatchKey"
    " torch.Tensor.numpy torch.Tensor.tolist to_dlpack DataLoader _execution_engine run_backward",
    "a way beside the collectives": "TCPStore FileStore HashStore PrefixStore _get_default_store _get_backend socket"
    " mmap shared_memory SharedMemory",
    "its caller's variables": "_getframe currentframe f_back f_locals f_globals tb_frame gi_frame getargvalues",
    "another function's variables": "__closure__ cell_contents getclosurevars getgeneratorlocals get_referents",
    "all names at once": "globals __globals__",
    "every object there is": "get_objects get_referrers",
    "every class there is": "__subclasses__",
    "loaded modules": "sys.modules __import__ runpy import_module pkgutil getmodule",
    "Python's own functions": "builtins __builtins__",
    "running code": "settrace setprofile __code__ gc.callbacks",
    "code made of text": "exec eval",
    "memory itself": "ctypes ctypeslib from_address __array_interface__ __array_struct__"
    " np.lib.stride_tricks.as_strided numpy.lib.stride_tricks.as_strided",
    "files": "open NamedTemporaryFile TemporaryFile SpooledTemporaryFile mkstemp memmap write_bytes write_text tofile"
    " torch.save torch.from_file np.save np.savez BytesIO pickle shelve memfd_create os.open os.write pwrite pread",
}
_OF_OBJECTS = {"eval", "exec", "open"}  # as a method they are honest: model.eval()
_ENGINES = {"helpers", "torchao", "bitsandbytes", "transformers", "peft", "accelerate", "deepspeed", "triton", "vllm"}
_ENGINES |= {"galore_torch", "apollo_torch", "flash_attn", "xformers", "diffusers", "auto_gptq", "awq", "llmcompressor"}
_REACHES = {word: what for what, words in _WORDS.items() for word in words.split()}
_MAGIC = re.compile(r"^\s*[%!].*$", re.MULTILINE)  # IPython's, which is no Python


def signs_of_tampering(reference: NotebookNode, assembled: NotebookNode) -> tuple[str, ...]:
    """A sentence for each thing that a learner's cell replaces or reaches for and the worked lab does not.

    A copy of what is given replaces nothing.
    """
    given = {cell.source for cell in reference.cells}
    lab = _Given(reference)
    visible = [cell for cell in reference.cells if not lab_cells.role(cell)]  # what a learner has reason to copy
    worked = {name for cell in visible for name in _reached(cell.source)}
    known = {name for cell in visible for name in _engines(cell.source)}
    imported = {name for cell in reference.cells if cell.cell_type == "code" for name in _imported(cell.source)}
    found = []
    for cell in assembled.cells:
        if cell.cell_type == "code" and cell.source not in given:
            where = _where(cell)
            found += [f"{where} replaces {name}, which is given" for name in sorted(lab.replaced_by(cell.source))]
            found += [f"{where} replaces {name}" for name in sorted(_attributes_set(cell.source, imported))]
            reached = sorted({_REACHES[name] for name in _reached(cell.source) - worked})
            found += [f"{where} reaches for {what}" for what in reached]
            found += [
                f"{where} imports {name}, which the lab does not" for name in sorted(_engines(cell.source) - known)
            ]
            found += [f"{where} reaches for {name}, private to what is given" for name in lab.private_in(cell.source)]
    return tuple(dict.fromkeys(found))


class _Given:
    """What a lab defines and imports where answers can see it. Its variables come and go, and do not count."""

    def __init__(self, reference: NotebookNode) -> None:
        cells = [cell for cell in reference.cells if lab_cells.is_given(cell) and not lab_cells.role(cell)]
        self.imported = {name: where for cell in cells for name, where in _imported(cell.source).items()}
        self.defined = {name: node for cell in cells for name, node in _definitions(cell.source).items()}
        others = [cell for cell in reference.cells if cell.cell_type == "code" and not lab_cells.is_answer(cell)]
        self.private = {name for cell in others for name in _private(cell.source, (ast.Store,))}

    def replaced_by(self, source: str) -> set[str]:
        """The names that a cell gives another meaning, other than by a copy of what they are."""
        mine = {name: _code(node) for name, node in _definitions(source).items()}
        clashes = _assigned(source) & (self.defined.keys() | self.imported.keys()) - _plain_values(source)
        return {name for name in clashes if name not in mine or mine[name] != self._code_of(name)}

    def private_in(self, source: str) -> list[str]:
        """The attributes that a cell reads, that only what is given sets, and that begin with an underscore."""
        return sorted(self.private & _private(source, (ast.Load, ast.Del)) - _private(source, (ast.Store,)))

    def _code_of(self, name: str) -> str | None:
        if name in self.defined:
            return _code(self.defined[name])
        module, _, attribute = self.imported[name].rpartition(".")
        try:
            value = getattr(importlib.import_module(module), attribute)
            return _code(_definitions(inspect.getsource(value))[name])
        except (ImportError, AttributeError, TypeError, OSError, ValueError, KeyError):
            return None  # of no function or class in Python


def _where(cell: NotebookNode) -> str:
    return f"answer {lab_cells.grade_id(cell)!r}" if lab_cells.is_answer(cell) else "a cell of the learner's own"


def _tree(source: str) -> ast.Module:
    for text in (source, _MAGIC.sub("", source)):
        try:
            return lab_cells.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return ast.Module([], [])


def _definitions(source: str) -> dict[str, ast.stmt]:
    """The functions and classes of the top level: what others rely on."""
    return {node.name: node for node in _tree(source).body if isinstance(node, lab_cells.DEFINITION)}


def _code(node: ast.stmt) -> str:
    """What a definition does, whatever its comments and docstrings say."""
    body = list(getattr(node, "body", []))
    words = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    try:
        return ast.dump(type(node)(**{**dict(ast.iter_fields(node)), "body": body[1:] if words else body}))
    except RecursionError:
        return "nested too deeply to be told from others"


def _assigned(source: str) -> set[str]:
    """The names of the top level that a cell assigns, defines or deletes, also from within its functions."""
    for text in (source, _MAGIC.sub("", source)):
        try:
            top = symtable.symtable(text, "cell", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        inner = [symbol for table in _tables(top) for symbol in table.get_symbols() if symbol.is_declared_global()]
        return {symbol.get_name() for symbol in [*top.get_symbols(), *inner] if symbol.is_assigned()}
    return set()


def _plain_values(source: str) -> set[str]:
    """The names that a cell assigns no more than a number or a text: `device = "cuda" if gpu else "cpu"`."""
    found = set()
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Assign):
            value = node.value
            parts = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            if all(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _tables(child)


def _reached(source: str) -> set[str]:
    words = _globals_read(source)
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Name) and node.id.startswith("__"):
            words.add(node.id)
        elif isinstance(node, ast.BinOp):
            words |= set(_joined(node).split())
        elif isinstance(node, ast.Attribute):
            words |= {_dotted(node)} | ({node.attr} - _OF_OBJECTS)
        elif isinstance(node, ast.Import):
            words |= {part for alias in node.names for part in alias.name.split(".")}
        elif isinstance(node, ast.ImportFrom) and node.module:
            words |= {node.module.partition(".")[0]}
            words |= {word for alias in node.names for word in (alias.name, f"{node.module}.{alias.name}")}
    return words & _REACHES.keys()


def _engines(source: str) -> set[str]:
    """What a cell imports of ours, and of packages that know a lab's answers, in full: "peft.LoraConfig"."""
    names = set()
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    free = ("helpers.lesson", "helpers.memory.meter", "helpers.catalog.errors")  # what shows, measures, complains
    return {name for name in names if name.partition(".")[0] in _ENGINES and not name.startswith(free)}


def _globals_read(source: str) -> set[str]:
    """The names that a cell reads and does not keep in a function of its own: there `open` may be a list of blocks."""
    for text in (source, _MAGIC.sub("", source)):
        try:
            top = symtable.symtable(text, "cell", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        inner = [symbol for table in _tables(top) for symbol in table.get_symbols() if symbol.is_global()]
        return {symbol.get_name() for symbol in [*top.get_symbols(), *inner] if symbol.is_referenced()}
    return set()


def _joined(node: ast.expr) -> str:
    """The text of two constants that are added: nobody who means well writes "f_" + "locals"."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined(node.left) + _joined(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _private(source: str, contexts: tuple[type[ast.expr_context], ...]) -> set[str]:
    """`_x` of each `a._x` in one of these contexts, and of each `getattr(a, "_x")`. What an object reads of its own
    `self` is its own affair."""
    words = set()
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, contexts):
            words |= set() if ast.Load in contexts and _dotted(node.value) == "self" else {node.attr}
        elif isinstance(node, ast.Call) and _dotted(node.func) == "getattr" and ast.Load in contexts:
            words |= {one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    return {word for word in words if word.startswith("_") and not word.startswith("__")}


def _attributes_set(source: str, imported: set[str]) -> Iterator[str]:
    """What a cell sets or deletes within a module or class that the lab or the cell imports.

    `module.name = ...`, `del module.name`, `setattr(module, "name", ...)`, `vars(module)["name"] = ...`.
    """
    imported = imported | _imported(source).keys()
    imported |= set(_aliases(source, imported))
    for node in ast.walk(_tree(source)):
        name = ""
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            name = _dotted(node)
        elif isinstance(node, ast.Call) and _dotted(node.func) in ("setattr", "delattr") and len(node.args) > 1:
            name = _within(node.args[0], node.args[1])
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            name = _within(_holder(node.value), node.slice)
        if name.partition(".")[0] in imported:
            yield name[:80]


def _aliases(source: str, imported: set[str]) -> Iterator[str]:
    """Other names that a cell gives to a module or class, or to what is in one: `M = Meter`."""
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Assign) and _dotted(node.value).partition(".")[0] in imported:
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _holder(node: ast.expr) -> ast.expr | None:
    """The `a` of `vars(a)` and `a.__dict__`."""
    if isinstance(node, ast.Call) and _dotted(node.func) == "vars" and node.args:
        return node.args[0]
    return node.value if isinstance(node, ast.Attribute) and node.attr == "__dict__" else None


def _within(holder: ast.expr | None, attribute: ast.expr) -> str:
    name = _dotted(holder) if holder else ""
    what = attribute.value if isinstance(attribute, ast.Constant) else None
    return f"{name}.{what}" if name and isinstance(what, str) else name


def _dotted(node: ast.expr) -> str:
    """`a.b.c` for a name and its attributes, '' for attributes of anything else. ast.unparse would recurse."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _imported(source: str) -> dict[str, str]:
    """The names that a cell imports, each with what it is in full: "torch.nn" for nn."""
    found: dict[str, str] = {}
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Import):
            found |= {(one.asname or one.name).partition(".")[0]: one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found
