"""A live calculator taken apart."""

from helpers.lesson.calculators import Calculator


def live(calculator: Calculator) -> tuple:
    """By name the widgets that hold a value, then what stands below them: a player, what it invites to, the answer."""
    grid, *below = calculator.widget().children
    boxes = zip(calculator.options, grid.children, strict=True)
    return {name: box.children[0] for name, box in boxes}, *below
