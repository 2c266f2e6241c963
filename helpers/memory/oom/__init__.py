"""*I have this OOM*: from a log or a snapshot to the reason and the cheapest change. Imports catalog and memory.

    from helpers.memory.oom import explain, explain_file
    print(explain(log_text))
    explain_file("snapshot.pickle", setup=TrainSetup("llama-3.2-1b", micro_batch=4)).fits

messages.toml holds the words of each kind of message, why it is written and what to change: add to it there. `words`
reads that file, `message` a message, `frames` the traceback above it. `reason` decides for PyTorch's allocator,
`refused` where enough was free, `engines` for everybody else. `cures` chooses changes; `file` reads logs and snapshots
of `torch.cuda.memory._dump_snapshot`. No torch; nothing in a file is executed.
"""

from ..allocator import Reason
from .explain import CardRow, Explanation, explain
from .file import explain_file, explain_snapshot, with_setup
from .frames import RequestPlace, StackFrame, frames, place
from .message import Holder, Oom, Why, clean, parse
from .reason import why
from .words import Change, MessageKind
