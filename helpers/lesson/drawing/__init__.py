"""Pictures: marks and charts, as SVG for calculators and, through matplotlib, as PNG for notebooks.

    from helpers.lesson.drawing import plots, rooflines
    plots.timeline(step)

`marks` are what a picture is made of, `render` draws them twice, `axes` and `labels` place them; each picture is one
function from data to a `Card`. `plots` and `speeds` are drawn by matplotlib alone. Imports catalog, memory and
techniques; matplotlib when something is drawn as PNG.
"""
