"""What can be asked, declared once: from here come flags and their help, controls, pages, and the command to copy.

A `Parameter` is one thing that can be said; `parameters` has those that several questions share. A `Question` is its
parameters and the function that answers; each stands in the file of its answer, in `helpers.lesson.calculators`.
"""
