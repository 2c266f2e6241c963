"""How a GPU is set up and used, as NVIDIA's driver tells: what a rented or shared card may do unlike one's own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

MIB = 2**20
EXCLUSIVE, PROHIBITED = "Exclusive_Process", "Prohibited"


@dataclass(frozen=True)
class Card:
    """One GPU's settings; False, None, 0 or "" is also what the driver does not tell.

    `mig`: it is divided into `slices`, which may be none yet. `link_gen` is PCIe's generation now (it falls when
    nothing is copied), `link_gen_max` what card and machine can do together; so with `link_lanes`. `unseen_bytes`
    are in use, and no process that the driver lists holds them. `strangers` are other users who compute on it.
    `repair` is what the driver asks for: "reset", "reboot" or "replace".
    """

    mig: bool = False
    slices: int = 0
    compute_mode: str = ""
    ecc: bool | None = None
    persistence: bool | None = None
    link_gen: int | None = None
    link_gen_max: int | None = None
    link_lanes: int | None = None
    link_lanes_max: int | None = None
    unseen_bytes: int = 0
    strangers: tuple[str, ...] = ()
    repair: str = ""


def read(found: ElementTree.Element) -> Card:
    """The card in a <gpu> of `nvidia-smi -q -x`.

    >>> read(ElementTree.fromstring("<gpu><ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode></gpu>")).ecc
    True
    """
    link = "pci/pci_gpu_link_info"
    processes = found.findall("processes/process_info")
    return Card(
        mig=bool(_enabled(found, "mig_mode/current_mig")),
        slices=len(found.findall("mig_devices/mig_device")),
        compute_mode=_text(found, "compute_mode"),
        ecc=_enabled(found, "ecc_mode/current_ecc"),
        persistence=_enabled(found, "persistence_mode"),
        link_gen=_number(_text(found, f"{link}/pcie_gen/current_link_gen")),
        link_gen_max=_number(_text(found, f"{link}/pcie_gen/max_link_gen")),
        link_lanes=_number(_text(found, f"{link}/link_widths/current_link_width")),
        link_lanes_max=_number(_text(found, f"{link}/link_widths/max_link_width")),
        unseen_bytes=_unseen(mib(_text(found, "fb_memory_usage/used")), processes),
        strangers=strangers(_computing(processes)),
        repair=_repair(found),
    )


def mib(text: str) -> int | None:
    """Bytes in `15360 MiB`, None in `N/A`."""
    match = re.match(r"(\d+) MiB", text)
    return int(match.group(1)) * MIB if match else None


def strangers(pids: Iterable[int], system: Path = Path("/")) -> tuple[str, ...]:
    """Who else owns these processes, by name where the system knows one; nobody where it does not tell."""
    mine = getattr(os, "getuid", lambda: None)()
    owners = {owner for pid in pids if (owner := _owner(pid, system)) is not None and owner != mine}
    return tuple(_name(owner) for owner in sorted(owners))


def _owner(pid: int, system: Path) -> int | None:
    try:
        return (system / "proc" / str(pid)).stat().st_uid
    except OSError:  # no /proc, or a process of the host's whose number means nothing here
        return None


def _name(user: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(user).pw_name
    except (ImportError, KeyError):
        return f"user {user}"


def _computing(processes: Iterable[ElementTree.Element]) -> list[int]:
    """The numbers of those that compute; a desktop only draws (type G)."""
    texts = (_text(one, "pid") for one in processes if "C" in _text(one, "type"))
    return [int(text) for text in texts if text.isdigit()]


def _unseen(used_bytes: int | None, processes: Iterable[ElementTree.Element]) -> int:
    sizes = [mib(_text(one, "used_memory")) for one in processes]
    if used_bytes is None or None in sizes:
        return 0
    return max(0, used_bytes - sum(sizes))


REPAIRS: Mapping[str, str] = {"Reset": "reset", "Drain and Reset": "reset", "Reboot": "reboot"}


def _repair(found: ElementTree.Element) -> str:
    if _text(found, "remapped_rows/remapped_row_failure") == "Yes":
        return "replace"
    if _text(found, "remapped_rows/remapped_row_pending") == "Yes":
        return "reset"
    return REPAIRS.get(_text(found, "gpu_recovery_action"), "")


def _enabled(found: ElementTree.Element, path: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(_text(found, path))


def _number(text: str) -> int | None:
    match = re.match(r"\d+", text)  # "16x", "5", "N/A"
    return int(match.group()) if match else None


def _text(found: ElementTree.Element, path: str) -> str:
    return (found.findtext(path) or "").strip()
