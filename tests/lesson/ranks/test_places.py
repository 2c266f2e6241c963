"""Which two frames tell where a rank is, and the file that tells it after the rank's death."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from helpers.lesson.ranks import places, worker
from helpers.lesson.ranks.places import of_crash, of_function, recorded, tell

WORKER = worker.__file__
KEEPING = str(Path(WORKER).with_name("keeping.py"))
JSON = json.__file__


def seen(*frames):
    return places._place([("launcher.py", 1, "main"), (WORKER, 9, "perform"), (WORKER, 8, "_outcome"), *frames])


def test_the_function_that_was_sent_and_the_innermost_that_is_no_library():
    assert seen(("a.py", 3, "step")) == (("a.py", 3, "step"),)
    inside = (("a.py", 3, "step"), ("b.py", 4, "f"), ("c.py", 5, "g"), (JSON, 6, "dumps"), ("<frozen x>", 7, "h"))
    assert seen(*inside) == (("a.py", 3, "step"), ("c.py", 5, "g"))
    assert seen(("a.py", 3, "step"), (KEEPING, 5, "__missing__")) == (("a.py", 3, "step"),)


def test_a_library_function_that_was_sent_is_named():
    assert seen((JSON, 6, "dumps")) == ((JSON, 6, "dumps"),)


def test_the_wrapper_of_os_exit_is_not_the_place():
    recorder = str(Path(WORKER).with_name("recorder.py"))
    assert seen(("a.py", 3, "step"), (recorder, 5, "noted")) == (("a.py", 3, "step"),)


def test_outside_of_a_call_there_is_no_place():
    assert places._place([("launcher.py", 1, "main")]) == ()
    assert of_function(print) == ()


def test_told_with_its_source_and_a_cell_without_its_file():
    here = of_function(test_told_with_its_source_and_a_cell_without_its_file)
    line = here[0][1]
    name = "test_told_with_its_source_and_a_cell_without_its_file"
    assert tell(here) == f"test_places.py line {line}, in {name}: def {name}():"
    assert tell((("/tmp/ipykernel_12/34.py", 5, "step"),)) == "cell line 5, in step"


CRASH = f"""Fatal Python error: Segmentation fault

Thread 0x00007f0001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1 in wait

Current thread 0x00007f0002 (most recent call first):
  File "/x/train.py", line 6 in step
  File "{WORKER}", line 8 in _outcome
  File "{WORKER}", line 9 in perform
  File "/x/launcher.py", line 1 in main
"""


def test_a_crash_is_read():
    assert of_crash(CRASH) == (("/x/train.py", 6, "step"),)
    assert of_crash("") == ()


def test_the_form_of_a_crash_is_faulthandlers_own(tmp_path):
    """The stack of a real crash, outside of a call: frames are found, and none is a place."""
    code = (
        f"import faulthandler, ctypes\nfaulthandler.enable(open({str(tmp_path / 'crash')!r}, 'w'))\nctypes.string_at(0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -11
    assert ("<string>", "3", "<module>") in places._DUMPED.findall((tmp_path / "crash").read_text())


def test_a_file_outlives_its_writer(tmp_path):
    box = tmp_path / "box"
    box.write_text(json.dumps({"at": time.time() - 2, "place": [["a.py", 3, "step"]]}).ljust(4096))
    place, age_s = recorded(str(box))
    assert place == (("a.py", 3, "step"),)
    assert 2 <= age_s < 3
    (tmp_path / "box.crash").write_text(CRASH)
    assert recorded(str(box)) == ((("/x/train.py", 6, "step"),), 0.0)


def test_without_a_readable_file_the_place_is_unknown(tmp_path):
    (tmp_path / "torn").write_text('{"at": 1')
    assert recorded(str(tmp_path / "torn")) == recorded(str(tmp_path / "none")) == ((), 0.0)
