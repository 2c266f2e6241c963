"""What an author runs: build the notebooks, release the labs, keep both honest.

Each name in `__all__` is a module; importing the room imports none of them. This room imports catalog, memory,
techniques, lesson and small_lm; grading and cli import it.

    from helpers.course import build, release
    build.build(["02"], root)      # run notebooks/02_*.ipynb and solutions/02_*.ipynb, store their outputs
    release.release(root)          # write labs/ from solutions/
"""
