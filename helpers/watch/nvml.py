"""NVIDIA's management library as a source: used memory and utilization of every card, whoever uses it.

A card that falls off the bus keeps its place and says why it does not answer; the others are read as before, and the
lost one is looked for again, by its UUID, at each reading. NVML counts the cards once, when it is initialized, so a
card that was missing at the start appears only after a restart.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..catalog.errors import WorkbookError, require_package
from .samples import Reading

WITHOUT = "run it on the machine with the GPU; `workbook watch --simulate leak` shows the view anywhere"


class Nvml:
    """Readings of all cards; `library` is pynvml, or a test's own. WorkbookError where there is no driver or card."""

    def __init__(self, library: ModuleType | Any = None) -> None:
        self._library = library or require_package("pynvml", "`workbook watch`", "python -m pip install nvidia-ml-py")
        try:
            self._library.nvmlInit()
            count = self._library.nvmlDeviceGetCount()
        except self._library.NVMLError as error:
            what = f"this machine has no NVIDIA GPU that can be watched: {error}"
            raise WorkbookError(what, "NVIDIA's driver, whose library NVML tells of the cards", WITHOUT) from None
        if not count:
            raise WorkbookError("NVIDIA's driver lists no GPU", "one card or more", WITHOUT)
        self._cards = [self._card(index) for index in range(count)]

    def read(self, time_s: float) -> tuple[Reading, ...]:
        return tuple(self._reading(gpu, uuid, name) for gpu, (uuid, name) in enumerate(self._cards))

    def _card(self, index: int) -> tuple[str, str]:
        """The UUID and the name; a card that is lost already has neither."""
        try:
            handle = self._library.nvmlDeviceGetHandleByIndex(index)
            return _text(self._library.nvmlDeviceGetUUID(handle)), _text(self._library.nvmlDeviceGetName(handle))
        except self._library.NVMLError:
            return "", f"GPU {index}"

    def _reading(self, gpu: int, uuid: str, name: str) -> Reading:
        library = self._library
        try:
            handle = (
                library.nvmlDeviceGetHandleByUUID(uuid.encode()) if uuid else library.nvmlDeviceGetHandleByIndex(gpu)
            )
            memory = library.nvmlDeviceGetMemoryInfo(handle)
        except library.NVMLError as error:
            return Reading(gpu, uuid, name, lost=str(error))
        return Reading(gpu, uuid, name, int(memory.used), int(memory.total), self._utilization(handle))

    def _utilization(self, handle: Any) -> float | None:
        """None where the driver does not tell: under MIG, and on some cards for laptops."""
        try:
            return float(self._library.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
        except self._library.NVMLError:
            return None


def _text(name: bytes | str) -> str:
    """Bytes in nvidia-ml-py before 11.5, text since."""
    return name.decode() if isinstance(name, bytes) else name
