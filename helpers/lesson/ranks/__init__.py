"""Real ranks from a notebook: processes with torch.distributed between them. Imports catalog.

    from helpers.lesson.ranks import Ranks, kept
    ranks = Ranks(4)
    ranks.run(step, batch)               # step(batch) on every rank; what it returned, by rank
    ranks.stop()

In the driver: `ranks` is the public object, `group` joins engines into ranks and waits for their calls, `engines`
starts and ends the processes, `placement` numbers them, `errors` says what went wrong. In a rank: `worker` runs the
calls, `recorder` writes down where they are. `reaper` ends the processes of a driver that died. Nothing here imports
torch or ipyparallel before ranks are started.
"""

from .errors import RankError
from .ranks import Ranks
from .worker import kept
