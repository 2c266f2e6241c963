"""A live calculator taken apart."""

from typing import Any

from helpers.lesson.calculators import Calculator

GRIDS = ("GridBox", "Accordion")  # the controls in front, and the others


def live(calculator: Calculator) -> tuple:
    """By name the widgets that hold a value, then what stands below them: a player, what it invites to, the answer."""
    widget = calculator.widget()
    grids = [place for place, child in enumerate(widget.children) if type(child).__name__ in GRIDS]
    held = {name: box.children[0] for name, box in _boxes(calculator, widget).items()}
    return held, *widget.children[grids[-1] + 1 :]


def boxes_of(calculator: Calculator) -> dict[str, Any]:
    """By name the boxes that hold a control, and a slider."""
    return _boxes(calculator, calculator.widget())


def presets(calculator: Calculator) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """The buttons by their words, the widgets that they move by name, and the answer."""
    widget = calculator.widget()
    held = {name: box.children[0] for name, box in _boxes(calculator, widget).items()}
    return {button.description: button for button in widget.children[0].children}, held, widget.children[-1]


def _boxes(calculator: Calculator, widget: Any) -> dict[str, Any]:
    grids = [child for child in widget.children if type(child).__name__ in GRIDS]
    inside = [grid.children[0] if type(grid).__name__ == "Accordion" else grid for grid in grids]
    boxes = (box for grid in inside for box in grid.children)
    ordered = sorted(calculator.options, key=lambda name: name not in calculator.front)
    by_name = dict(zip(ordered, boxes, strict=True))
    return {name: by_name[name] for name in calculator.options}
