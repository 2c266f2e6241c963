"""What the doctor prints: the machine, its packages, the chapters, and what to fix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from helpers.catalog.errors import WorkbookError
from helpers.catalog.live import describe
from helpers.course.doctor.card import Card
from helpers.course.doctor.machine import JUPYTER_PORT, Machine
from helpers.course.doctor.needs import Chapter, Needs
from helpers.course.doctor.nvidia_smi import Gpu
from helpers.course.doctor.packages import Package
from helpers.course.doctor.problem import Problem, gib
from helpers.course.doctor.verdicts import has_code_for, usable_gpu

MOST_GPUS = 4
Judged = tuple[tuple[Chapter, tuple[Problem, ...]], ...]


def text(machine: Machine, judged: Judged, fixes: tuple[Problem, ...]) -> str:
    """Everything, in at most some forty lines of plain text."""
    return "\n".join(
        [
            "This machine",
            *(f"  {name:<13} {value}".rstrip() for name, value in _machine(machine)),
            "\nPackages",
            *_packages(machine),
            "\nChapters",
            *_chapters(machine, judged),
            "\nTo fix" if fixes else "\nNothing to fix.",
            *_fixes(fixes),
        ]
    )


def printable(text: str, encoding: str | None) -> str:
    """`text` for a terminal that may lack its marks: ✓ becomes +, ✗ becomes x, what else is missing ?."""
    try:
        text.encode(encoding or "utf-8")
        return text
    except (UnicodeEncodeError, LookupError):
        plain = text.translate({ord("✓"): "+", ord("✗"): "x", ord("–"): "-", ord("·"): "-"})
        return plain.encode("ascii", "replace").decode("ascii")


def as_json(machine: Machine, judged: Judged, fixes: tuple[Problem, ...]) -> dict[str, object]:
    """The same as plain values: sizes in bytes, null for what nobody could tell."""
    chapters = [
        asdict(chapter) | {"runs": not problems, "in_the_way": [asdict(one) for one in problems]}
        for chapter, problems in judged
    ]
    return {"machine": asdict(machine), "chapters": chapters, "fix": [asdict(one) for one in fixes]}


def _machine(machine: Machine) -> Iterator[tuple[str, str]]:
    threads = f"; torch uses {_count(machine.torch.threads, 'thread')}" if machine.torch else ""
    yield "system", machine.system
    place = machine.place
    fewer = place.machine_cores is not None and machine.cores < place.machine_cores
    cores = f"{machine.cores} of {place.machine_cores} cores" if fewer else _count(machine.cores, "core")
    yield "processor", f"{machine.cpu}, {cores}{threads}"
    yield "memory", _memory(machine)
    yield "disk", "unknown" if machine.disk_free_bytes is None else f"{gib(machine.disk_free_bytes)} free"
    if place.models_free_bytes is not None and (place.wants_model or machine.gpus):
        yield "", f"{gib(place.models_free_bytes)} free for models, in {place.models_folder}"
    yield "Python", f"{machine.python.version}, {machine.environment}"
    yield from _gpus(machine)
    taken = f"taken by {machine.port_holder}; JupyterLab will name another port" if machine.port_holder else ""
    yield f"port {JUPYTER_PORT}", taken or "free for JupyterLab"
    if machine.tunnel:
        other = " (with the port that it names)" if taken else ""
        yield "JupyterLab", f"from your own computer: {machine.tunnel}{other}"
        if place.drops:
            yield "", "a lost connection ends it: run `tmux` first, `make lab` in it"


def _memory(machine: Machine) -> str:
    free_bytes, all_bytes = machine.memory_free_bytes, machine.place.machine_memory_bytes
    if not machine.memory_limited:
        return _free_of(free_bytes, machine.memory_bytes)
    shown = f" (`free` shows {gib(all_bytes)})" if all_bytes is not None else ""
    return _free_of(free_bytes, machine.memory_bytes, "this container's ") + shown


def _gpus(machine: Machine) -> Iterator[tuple[str, str]]:
    driver = machine.driver
    if driver and driver.version:
        yield "driver", f"NVIDIA {driver.version}" + (f", for CUDA up to {driver.cuda}" if driver.cuda else "")
    unused = () if machine.gpus or not driver else driver.gpus
    for number, gpu in enumerate((machine.gpus or unused)[:MOST_GPUS]):
        yield f"GPU {number}", _gpu(gpu, machine, idle=bool(unused))
        if not number and (known := _known(gpu)):
            yield "", known
        if not number and (settings := _settings(gpu.card)):
            yield "", settings
        if gpu.processes:
            yield "", f"holding its memory: {', '.join(gpu.processes[:3])}"
    if (more := len(machine.gpus or unused) - MOST_GPUS) > 0:
        yield "", f"and {more} more"
    if not machine.gpus and not unused:
        apple = machine.torch is not None and machine.torch.mps
        yield "GPU", f"{'Apple (torch can use it as mps)' if apple else 'none found'}; chapters run on the CPU"


def _gpu(gpu: Gpu, machine: Machine, idle: bool) -> str:
    capability = f"; compute capability {gpu.capability}" if gpu.capability else ""
    idle = idle or (machine.torch is not None and not has_code_for(gpu, machine.torch))
    note = "; torch cannot use it" if idle and machine.torch else ""
    return f"{gpu.name}, {_free_of(gpu.free_bytes, gpu.total_bytes)}{capability}{note}"


def _known(gpu: Gpu) -> str:
    """What the catalogue has about it; "" when its size is unknown."""
    if not gpu.total_bytes:
        return ""
    entry = describe(gpu.name, gpu.total_bytes)
    try:
        return f"in the catalogue as {entry.name}: {entry.memory_bytes_per_s / 1e9:,.0f} GB/s memory bandwidth"
    except WorkbookError:
        return "not in the catalogue: the calculators know its capacity only"


def _settings(card: Card) -> str:
    """`PCIe gen 1 (5 under load), x16; ECC on`, which explains a slow link or a capacity; "" when unknown."""
    told = ["a MIG slice"] if card.mig else []
    if card.link_gen and card.link_lanes:
        rises = f" ({card.link_gen_max} under load)" if card.link_gen < (card.link_gen_max or 0) else ""
        told.append(f"PCIe gen {card.link_gen}{rises}, x{card.link_lanes}")
    if card.ecc is not None:
        told.append(f"ECC {'on' if card.ecc else 'off'}")
    if card.persistence is False:
        told.append("persistence off")
    return "; ".join(told)


def _packages(machine: Machine) -> Iterator[str]:
    width = max((len(one.name) for one in machine.packages), default=0)
    for one in machine.packages:
        bad = one.error or not one.in_range
        mark = "✗" if bad else "✓" if one.version else "–"
        yield f"  {mark} {one.name:<{width}}  {one.version or 'not installed'}{_package_note(one, machine)}"


def _package_note(one: Package, machine: Machine) -> str:
    if one.error:
        return f"  does not import: {one.error}"
    if not one.in_range:
        return f"  outside {one.wants}"
    if one.name != "torch" or machine.torch is None:
        return ""
    built = machine.torch.cuda_build and f"CUDA {machine.torch.cuda_build}"
    built = built or (machine.torch.hip_build and f"ROCm {machine.torch.hip_build}")
    return f"  built for {built}" if built else "  CPU build"


def _chapters(machine: Machine, judged: Judged) -> Iterator[str]:
    titles = [f"{one.number} {one.title}{', with lab' if one.has_lab else ''}" for one, _ in judged]
    width = max(map(len, titles), default=0)
    for title, (chapter, problems) in zip(titles, judged, strict=True):
        note = "; ".join(one.what for one in problems) if problems else _takes(chapter.needs, usable_gpu(machine))
        yield f"  {'✗' if problems else '✓'} {title:<{width}}  {note}"


def _takes(needs: Needs, has_gpu: bool) -> str:
    gpu = "" if needs.gpu == "unused" else "; on the GPU" if has_gpu else "; runs, richer on a GPU"
    return f"up to {gib(needs.memory_bytes)} of memory{gpu}"


def _fixes(fixes: tuple[Problem, ...]) -> Iterator[str]:
    for number, one in enumerate(fixes, 1):
        yield f"  {number}. {one.what}"
        yield f"     do: {one.do}"


def _free_of(free_bytes: int | None, total_bytes: int | None, whose: str = "") -> str:
    if total_bytes is None:
        return "size unknown"
    total = f"{whose}{gib(total_bytes)}"
    return total if free_bytes is None else f"{gib(free_bytes)} free of {total}"


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"
