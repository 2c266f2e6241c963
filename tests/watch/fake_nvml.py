"""NVML as a test wants it: cards that can be filled, lost and found again, behind the calls that helpers makes."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

GIB = 2**30


class NVMLError(Exception):
    pass


@dataclass
class Card:
    uuid: str
    used_bytes: int = 10 * GIB
    total_bytes: int = 80 * GIB
    utilization: int | None = 50
    lost: bool = False


class FakeNvml:
    """The functions of pynvml; `cards` may be changed between calls. `missing`: there is no driver."""

    NVMLError = NVMLError

    def __init__(self, *cards: Card, missing: bool = False) -> None:
        self.cards, self.missing = list(cards), missing

    def nvmlInit(self) -> None:  # noqa: N802 - their spelling, as below
        if self.missing:
            raise NVMLError("NVML Shared Library Not Found")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802
        return self._answering(self.cards[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> Card:  # noqa: N802
        return self._answering(next(card for card in self.cards if card.uuid.encode() == uuid))

    def nvmlDeviceGetUUID(self, card: Card) -> str:  # noqa: N802
        return card.uuid

    def nvmlDeviceGetName(self, card: Card) -> bytes:  # noqa: N802
        return b"NVIDIA H100"

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=card.used_bytes, total=card.total_bytes)

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> SimpleNamespace:  # noqa: N802
        if card.utilization is None:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=card.utilization, memory=0)

    @staticmethod
    def _answering(card: Card) -> Card:
        if card.lost:
            raise NVMLError("GPU is lost")
        return card
