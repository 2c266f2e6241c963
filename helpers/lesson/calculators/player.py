"""A calculator over something that happens step by step, with a button that plays the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...catalog.errors import WorkbookError
from .shell import Answer, Calculator


class Player(Calculator):
    """A calculator with a control called "step", 1 and up; `last` says where the other controls let it end."""

    def __init__(
        self,
        compute: Callable[..., Answer],
        options: Mapping[str, tuple[str, list]],
        start: Mapping[str, object],
        last: Callable[[Mapping[str, object]], int],
        interval_ms: int = 1200,
    ) -> None:
        super().__init__(compute, options, start)
        self.last, self.interval_ms = last, interval_ms

    def widget(self):
        """The live calculator with its player, which runs to the last step of what is chosen."""
        import ipywidgets as w

        box = super().widget()
        grid, output = box.children
        controls = dict(zip(self.options, grid.children, strict=True))
        step, others = controls["step"], {name: control for name, control in controls.items() if name != "step"}

        def end() -> int:
            try:
                return self.last({name: control.value for name, control in others.items()}) - 1
            except WorkbookError:  # told in place of the picture
                return 0

        play = w.Play(min=0, max=end(), value=step.index, interval=self.interval_ms, description="play the steps")
        w.link((play, "value"), (step, "index"))
        for control in others.values():
            control.observe(lambda change: setattr(play, "max", end()), names="value")
        box.children = (grid, play, output)
        return box
