"""The block map as data: after each step of a replay, which request owns which block, how full, how often shared."""

from __future__ import annotations

from dataclasses import dataclass

from .blocks import BlockManager
from .replay import Replay
from .traces import Trace


@dataclass(frozen=True)
class Cell:
    """One block of the pool. No owners and not `cached`: free. No owners and `cached`: kept for a later prompt.

    Contiguous memory is cut into cells of the same size; a region's last cell may be its only in part (`reserved`).
    """

    block: int
    owners: tuple[int, ...] = ()  # requests, by their place in the trace
    filled: int = 0  # tokens
    reserved: int = 0  # slots that are taken, filled or not
    cached: bool = False

    @property
    def shared(self) -> bool:
        return len(self.owners) > 1


@dataclass(frozen=True)
class Frame:
    """The memory after one step. `tables` are the block tables of the running requests; contiguous memory has none."""

    step: int
    events: tuple[str, ...]
    cells: tuple[Cell, ...]
    tables: dict[int, tuple[int, ...]]
    lengths: dict[int, int]
    waiting: tuple[int, ...]
    block_size: int

    @property
    def reserved(self) -> int:
        """Slots that a request has taken; what only the prefix cache keeps is not counted."""
        return sum(cell.reserved for cell in self.cells)

    @property
    def filled(self) -> int:
        return sum(cell.filled for cell in self.cells if cell.owners)

    @property
    def waste(self) -> float:
        return 1 - self.filled / self.reserved if self.reserved else 0.0

    @property
    def shared(self) -> int:
        """Blocks that more than one request uses."""
        return sum(cell.shared for cell in self.cells)


def frames(
    trace: Trace, policy: str, blocks: int, block_size: int = 16, users: int = 16, steps: int = 200
) -> tuple[Frame, ...]:
    """The first `steps` frames of `trace` through a pool of `blocks` blocks; fewer if it ends before."""
    replay = Replay(trace, policy, blocks, block_size, users)
    made = []
    while not replay.done and len(made) < steps:
        replay.step()
        made.append(frame_of(replay))
    return tuple(made)


def frame_of(replay: Replay) -> Frame:
    """What `replay` holds now."""
    manager = replay.manager
    paged = isinstance(manager, BlockManager)
    cells = _paged_cells(manager) if paged else _contiguous_cells(replay)
    tables = {name: tuple(table) for name, table in manager.tables.items()} if paged else {}
    return Frame(
        replay.steps,
        tuple(replay.events),
        cells,
        tables,
        dict(manager.lengths),
        tuple(replay.waiting),
        replay.block_size,
    )


def _paged_cells(manager: BlockManager) -> tuple[Cell, ...]:
    owners: dict[int, list[int]] = {}
    for name, table in manager.tables.items():
        for block in table:
            owners.setdefault(block, []).append(name)
    fills = manager.fills()
    size = manager.block_size
    return tuple(
        Cell(
            block,
            tuple(owners.get(block, ())),
            fills.get(block, size if references else 0),
            size if block in owners else 0,
            references > len(owners.get(block, ())),
        )
        for block, references in enumerate(manager.references)
    )


def _contiguous_cells(replay: Replay) -> tuple[Cell, ...]:
    manager, size = replay.manager, replay.block_size
    cells = []
    for block in range(replay.blocks):
        here = range(block * size, (block + 1) * size)
        owners = {name: start for name, start in manager.starts.items() if _overlap(here, start, manager.max_tokens)}
        filled = sum(_overlap(here, start, manager.lengths[name]) for name, start in owners.items())
        reserved = sum(_overlap(here, start, manager.max_tokens) for start in owners.values())
        cells.append(Cell(block, tuple(owners), filled, reserved))
    return tuple(cells)


def _overlap(here: range, start: int, length: int) -> int:
    return max(0, min(here.stop, start + length) - max(here.start, start))
