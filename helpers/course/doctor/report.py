"""What the doctor prints: the machine, its packages, the chapters, and what to fix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from ...catalog.devices import describe
from ...catalog.errors import WorkbookError
from .machine import Machine
from .needs import ChapterNeeds, Needs
from .packages import Package, Torch
from .verdicts import Problem, gib, has_code_for, usable_gpu

MOST_GPUS = 4
NO_CHAPTERS = "  none here: chapters and labs come with a clone of the workbook"
Judged = tuple[tuple[ChapterNeeds, tuple[Problem, ...]], ...]
Rows = Iterator[tuple[str, str]]  # a name, which may be "", and what is told of it


def text(machine: Machine, judged: Judged, fixes: tuple[Problem, ...]) -> str:
    """Everything, in at most some forty lines of plain text."""
    rows = (f"  {name:<13} {value}".rstrip() for name, value in _machine(machine))
    chapters = _chapters(machine, judged) if machine.in_clone else [NO_CHAPTERS]
    lines = ["This machine", *rows, "\nPackages", *_packages(machine), "\nChapters", *chapters]
    lines.append("\nTo fix" if fixes else "\nNothing to fix.")
    for number, fix in enumerate(fixes, 1):
        lines += [f"  {number}. {fix.what}", f"     do: {fix.do}"]
    return "\n".join(lines)


def printable(text: str, encoding: str | None) -> str:
    """`text` for a terminal that may lack its marks: ✓ becomes +, ✗ becomes x, what else is missing ?."""
    try:
        text.encode(encoding or "utf-8")
        return text
    except (UnicodeEncodeError, LookupError):
        plain = text.translate({ord("✓"): "+", ord("✗"): "x", ord("–"): "-", ord("·"): "-"})
        return plain.encode("ascii", "replace").decode("ascii")


def as_json(machine: Machine, judged: Judged, fixes: tuple[Problem, ...]) -> dict[str, object]:
    """The same as plain values: sizes in bytes, null where it is unknown."""
    chapters = [
        asdict(chapter) | {"runs": not problems, "in_the_way": list(map(asdict, problems))}
        for chapter, problems in judged
    ]
    return {"machine": asdict(machine), "chapters": chapters, "fix": list(map(asdict, fixes))}


def _machine(machine: Machine) -> Rows:
    threads = f"; torch uses {_count(machine.torch.threads, 'thread')}" if machine.torch else ""
    yield "system", machine.system
    yield "processor", f"{machine.cpu}, {_count(machine.cores, 'core')}{threads}"
    share = "this container's " if machine.memory_limited else ""
    yield "memory", _free_of(machine.memory_free_bytes, machine.memory_bytes, share)
    yield "disk", "unknown" if machine.disk_free_bytes is None else f"{gib(machine.disk_free_bytes)} free"
    yield "Python", f"{machine.python.version}, {machine.environment}"
    if machine.driver and machine.driver.version:
        cuda = f", for CUDA up to {machine.driver.cuda}" if machine.driver.cuda else ""
        yield "driver", f"NVIDIA {machine.driver.version}{cuda}"
    yield from _gpus(machine)


def _gpus(machine: Machine) -> Rows:
    """torch's GPUs; where it has none, the driver's, which then lie idle."""
    idle = machine.driver.gpus if machine.driver and not machine.gpus else ()
    listed = machine.gpus or idle
    for number, gpu in enumerate(listed[:MOST_GPUS]):
        unused = bool(idle) or (machine.torch is not None and not has_code_for(gpu, machine.torch))
        told = [f"{gpu.name}, {_free_of(gpu.free_bytes, gpu.total_bytes)}"]
        told += [f"compute capability {gpu.capability}"] if gpu.capability else []
        told += ["in MIG mode"] if gpu.mig else []
        told += ["torch cannot use it"] if unused and machine.torch else []
        yield f"GPU {number}", "; ".join(told)
        if number == 0 and gpu.total_bytes:
            yield "", _in_the_catalogue(gpu.name, gpu.total_bytes)
        if gpu.processes:
            yield "", f"holding its memory: {', '.join(gpu.processes[:3])}"
    if len(listed) > MOST_GPUS:
        yield "", f"and {len(listed) - MOST_GPUS} more"
    if not listed:
        apple = machine.torch is not None and machine.torch.mps
        yield "GPU", f"{'Apple (torch can use it as mps)' if apple else 'none found'}; chapters run on the CPU"


def _in_the_catalogue(name: str, total_bytes: int) -> str:
    entry = describe(name, total_bytes)
    try:
        return f"in the catalogue as {entry.name}: {entry.memory_bytes_per_s / 1e9:,.0f} GB/s memory bandwidth"
    except WorkbookError:
        return "not in the catalogue: the calculators know its capacity only"


def _packages(machine: Machine) -> Iterator[str]:
    width = max((len(one.name) for one in machine.packages), default=0)
    for one in machine.packages:
        bad = one.error or not one.in_range
        mark = "✗" if bad else "✓" if one.version else "–"
        yield f"  {mark} {one.name:<{width}}  {one.version or 'not installed'}{_package_note(one, machine.torch)}"


def _package_note(one: Package, torch: Torch | None) -> str:
    if one.error:
        return f"  does not import: {one.error}"
    if not one.in_range:
        return f"  outside {one.wants}"
    if one.name != "torch" or torch is None:
        return ""
    if torch.cuda_build:
        return f"  built for CUDA {torch.cuda_build}"
    return f"  built for ROCm {torch.hip_build}" if torch.hip_build else "  CPU build"


def _chapters(machine: Machine, judged: Judged) -> Iterator[str]:
    titles = [f"{one.number} {one.title}{', with lab' if one.has_lab else ''}" for one, _ in judged]
    width = max(map(len, titles), default=0)
    for title, (chapter, problems) in zip(titles, judged, strict=True):
        note = "; ".join(one.what for one in problems) if problems else _takes(chapter.needs, usable_gpu(machine))
        yield f"  {'✗' if problems else '✓'} {title:<{width}}  {note}"


def _takes(needs: Needs, has_gpu: bool) -> str:
    gpu = "" if needs.gpu == "unused" else "; on the GPU" if has_gpu else "; runs, richer on a GPU"
    return f"up to {gib(needs.memory_bytes)} of memory{gpu}"


def _free_of(free_bytes: int | None, total_bytes: int | None, whose: str = "") -> str:
    if total_bytes is None:
        return "size unknown"
    total = f"{whose}{gib(total_bytes)}"
    return total if free_bytes is None else f"{gib(free_bytes)} free of {total}"


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"
