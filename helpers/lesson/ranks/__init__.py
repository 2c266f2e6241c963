"""Real ranks from a notebook: processes with torch.distributed between them. Imports catalog.

    from helpers.lesson.ranks import Ranks, kept
    ranks = Ranks(4)
    ranks.run(step, batch)               # step(batch) on every rank; what it returned, by rank
    ranks.stop()

`ranks` is the door; `engines` starts processes and ends them, `group` joins them, `follow` waits for a call, `errors`
tells what went wrong; `worker`, `recorder`, `places` and `keeping` live in the rank, `reaper` beside them. Nothing here
imports torch or ipyparallel before ranks are started.
"""

from .errors import RankError
from .keeping import kept
from .ranks import Ranks

__all__ = ["RankError", "Ranks", "kept"]
