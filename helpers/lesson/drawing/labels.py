"""Names beside points: none over another, over a mark or over a line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from math import atan2, cos, degrees, dist, hypot, sin
from typing import TYPE_CHECKING

from .pictures import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

# Where a name is tried, in typographer's points right of and above its mark: beside it first, then farther and
# farther below or above, at the end of a thin line.
_NEAR = ((9, 0), (-9, 0), (8, -11), (-8, 11), (8, 11), (-8, -11))
_FAR = sorted(
    (
        (x * side, y * up)
        for y, x, (side, up) in product(range(17, 120, 5), (12, 26, 50, 80), ((1, -1), (-1, 1), (-1, -1), (1, 1)))
    ),
    key=lambda spot: hypot(*spot),
)


class Labels:
    """Places text on axes whose limits and margins are final: its sizes are taken as they will be drawn."""

    def __init__(self, axes: Axes) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        self.axes = axes
        self._taken: list[Bbox] = []
        self._marks: list[tuple[float, float]] = []
        self._words: list[Bbox] = []  # those of the taken boxes that no thin line may cross
        self._renderer = FigureCanvasAgg(axes.figure).get_renderer()
        self._pixels = axes.figure.dpi / 72  # in a typographer's point
        self._room = axes.get_window_extent(self._renderer).frozen()
        self._room.x1 = axes.figure.bbox.x1

    def avoid_point(self, x: float, y: float) -> None:
        """Keeps text off the mark at (x, y)."""
        self._marks.append(tuple(self.axes.transData.transform((x, y))))
        self._keep_off(*self._marks[-1], reach=6 * self._pixels)

    def avoid_line(self, x: Sequence[float], y: Sequence[float]) -> None:
        """Keeps text off the straight pieces between points: a power law is straight on log axes."""
        corners = self.axes.transData.transform(list(zip(x, y, strict=True)))
        for (x0, y0), (x1, y1) in pairwise(corners):
            self._keep_off_piece(x0, y0, x1, y1, reach=2 * self._pixels)

    def along(self, start: tuple[float, float], end: tuple[float, float], text: str, colour: str) -> None:
        """`text` above a line: turned with a slope, right of its middle; at the far end of a level one."""
        (x0, y0), (x1, y1) = self.axes.transData.transform([start, end])
        angle, level = atan2(y1 - y0, x1 - x0), abs(y1 - y0) < 1
        share = 1 if level else 0.62  # what a machine runs lies mostly at the low end of its slope
        at = (x0 + share * (x1 - x0), y0 + share * (y1 - y0))
        anchor = self.axes.transData.inverted().transform(at)
        written = self.axes.annotate(
            text,
            anchor,
            xytext=(-4 * sin(angle), 4 * cos(angle)),
            textcoords="offset points",
            fontsize=9.5,
            fontweight="bold",
            color=colour,
            va="bottom",
            ha="right" if level else "center",
            rotation_mode="anchor",
        )
        box = self._extent(written)
        written.set_rotation(degrees(angle))
        half, rise = box.width / 2, box.height / 2 + 4 * self._pixels
        middle_x = at[0] - (half if level else 0) - rise * sin(angle)
        middle_y = at[1] + rise * cos(angle)
        dx, dy = half * cos(angle), half * sin(angle)
        before = len(self._taken)
        self._keep_off_piece(middle_x - dx, middle_y - dy, middle_x + dx, middle_y + dy, reach=box.height / 2)
        self._words += self._taken[before:]

    def place(
        self,
        at: tuple[float, float],
        text: str,
        colour: str = INK,
        spots: Sequence[tuple[float, float]] = (*_NEAR, *_FAR),
    ) -> None:
        """`text` at the first of `spots` near `at` where it covers nothing, or where it covers least."""
        covered = {}
        for spot in spots:
            probe = self._write(at, text, colour, spot)
            covered[spot] = self._covers(self._extent(probe)) + self._misleads(at, self._extent(probe), spot)
            probe.remove()
            if not covered[spot]:
                break
        best = min(covered, key=covered.__getitem__)
        box = self._extent(self._write(at, text, colour, best))
        self._taken.append(box)
        self._words.append(box)
        if best in _FAR:
            self._keep_off_piece(*self._leader(at, box, best), reach=2 * self._pixels)

    def _write(self, at: tuple[float, float], text: str, colour: str, spot: tuple[float, float]) -> Annotation:
        near_end = (0 if spot[0] > 0 else 1, 0.5)
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 5, "relpos": near_end}
        return self.axes.annotate(
            text,
            at,
            xytext=spot,
            textcoords="offset points",
            fontsize=9,
            color=colour,
            ha="left" if spot[0] > 0 else "right",
            va="center",
            arrowprops=line if spot in _FAR else None,
        )

    def _covers(self, box: Bbox) -> int:
        room = self._room
        outside = box.x0 < room.x0 or box.x1 > room.x1 or box.y0 < room.y0 or box.y1 > room.y1
        words, all_taken = (sum(map(box.overlaps, boxes)) for boxes in (self._words, self._taken))
        return all_taken + 20 * words + 100 * outside

    def _misleads(self, at: tuple[float, float], box: Bbox, spot: tuple[float, float]) -> int:
        """Words under the thin line from the mark to the near end of a name; without one, marks nearer to that end."""
        x0, y0, x1, y1 = self._leader(at, box, spot)
        if spot not in _FAR:
            return sum(dist(mark, (x1, y1)) < dist((x0, y0), (x1, y1)) - 0.5 for mark in self._marks)
        line = [(x0 + (x1 - x0) * step / 20, y0 + (y1 - y0) * step / 20) for step in range(20)]
        return sum(any(words.contains(x, y) for x, y in line) for words in self._words)

    def _leader(self, at: tuple[float, float], box: Bbox, spot: tuple[float, float]) -> tuple[float, ...]:
        return (*self.axes.transData.transform(at), box.x0 if spot[0] > 0 else box.x1, (box.y0 + box.y1) / 2)

    def _extent(self, text: Annotation) -> Bbox:
        """The box of the words alone, without the line that leads to them."""
        from matplotlib.text import Text

        text.update_positions(self._renderer)
        return Text.get_window_extent(text, self._renderer).padded(1.5)

    def _keep_off_piece(self, x0: float, y0: float, x1: float, y1: float, reach: float) -> None:
        steps = max(1, int(hypot(x1 - x0, y1 - y0) / reach))
        for at in range(steps + 1):
            self._keep_off(x0 + (x1 - x0) * at / steps, y0 + (y1 - y0) * at / steps, reach)

    def _keep_off(self, x: float, y: float, reach: float) -> None:
        self._taken.append(self._room.from_extents(x - reach, y - reach, x + reach, y + reach))
