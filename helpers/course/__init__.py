"""What an instructor runs: build the notebooks, release the labs, check one learner's lab, keep both honest.

Each name in `__all__` is a module; importing the room imports none of them. This room may import every other;
no other room imports it (`helpers.cli` does).

    from helpers.course import build, check, release
    build.build(["02"], root)      # run notebooks/02_*.ipynb and solutions/02_*.ipynb, store their outputs
    check.check("02", root)        # grade labs/02_*.ipynb; 0 when every check passed
"""

__all__ = [
    "assemble",
    "build",
    "check",
    "doctor",
    "grading",
    "kernel",
    "lint",
    "mutants",
    "notebook",
    "publish",
    "record",
    "release",
    "report",
]
