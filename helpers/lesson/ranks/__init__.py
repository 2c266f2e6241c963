"""Real ranks from a notebook: processes with torch.distributed between them. Imports catalog.

    from helpers.lesson.ranks import Ranks, kept
    ranks = Ranks(4)
    ranks.run(step, batch)               # step(batch) on every rank; what it returned, by rank
    ranks.stop()

`ranks` is the door; `engines` starts processes and ends them, `seating` numbers them and `group` joins them, `sending`
packs a call and `follow` waits for it, `errors` tells what went wrong; `worker`, `recorder`, `places` and `keeping` are
in the rank, `reaper` is beside them. Nothing here imports torch or ipyparallel before ranks are started.
"""

from .errors import RankError
from .keeping import kept
from .ranks import Ranks

__all__ = ["RankError", "Ranks", "kept"]
