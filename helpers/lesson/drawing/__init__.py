"""Pictures: marks and charts, as SVG for calculators and pages and, through matplotlib, as PNG for notebooks.

    from helpers.lesson.drawing import plots
    plots.timeline(step)

Imports catalog, memory and techniques; matplotlib when something is drawn as PNG.
"""
