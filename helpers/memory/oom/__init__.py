"""*I have this OOM*: from a log or a snapshot to the reason and the cheapest change. Imports catalog and memory.

    from helpers.memory.oom import explain, explain_file
    print(explain(log_text))
    explain_file("snapshot.pickle", setup=TrainSetup("llama-3.2-1b", micro_batch=4)).fits

`message` reads what a message says, `frames` the traceback above it, `reason` decides, `cures` names changes; `file`
reads logs and snapshots of `torch.cuda.memory._dump_snapshot`. No torch; nothing in a file is executed.
"""

from ..allocator import Reason
from .cures import Change
from .explain import Explanation, Row, explain
from .file import explain_file, explain_snapshot, with_setup
from .frames import Place, StackFrame, frames, place
from .message import Holder, Kind, Oom, clean, parse
from .reason import Why, why
