"""Which two lines say where a rank is, and the file that still says it when the rank is gone."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from helpers.lesson.ranks import recorder, worker
from helpers.lesson.ranks.recorder import (
    format_location,
    last_location,
    location_in,
    location_of_crash,
    location_of_function,
)

WORKER = worker.__file__
JSON = json.__file__


def seen(*frames):
    return location_in([("launcher.py", 1, "main"), (WORKER, 9, "run_call"), (WORKER, 8, "_outcome"), *frames])


def test_the_function_that_was_sent_and_the_innermost_that_is_no_library():
    assert seen(("a.py", 3, "step")) == (("a.py", 3, "step"),)
    inside = (("a.py", 3, "step"), ("b.py", 4, "f"), ("c.py", 5, "g"), (JSON, 6, "dumps"), ("<frozen x>", 7, "h"))
    assert seen(*inside) == (("a.py", 3, "step"), ("c.py", 5, "g"))
    assert seen(("a.py", 3, "step"), (WORKER, 5, "__missing__")) == (("a.py", 3, "step"),)


def test_a_library_function_that_was_sent_is_named():
    assert seen((JSON, 6, "dumps")) == ((JSON, 6, "dumps"),)


def test_the_wrapper_of_os_exit_is_not_the_location():
    assert seen(("a.py", 3, "step"), (recorder.__file__, 5, "recorded")) == (("a.py", 3, "step"),)


def test_outside_of_a_call_there_is_no_location():
    assert location_in([("launcher.py", 1, "main")]) == ()
    assert location_of_function(print) == ()


def test_formatted_with_its_source_and_a_cell_without_its_file():
    here = location_of_function(test_formatted_with_its_source_and_a_cell_without_its_file)
    line = here[0][1]
    name = "test_formatted_with_its_source_and_a_cell_without_its_file"
    assert format_location(here) == f"test_recorder.py line {line}, in {name}: def {name}():"
    assert format_location((("/tmp/ipykernel_12/34.py", 5, "step"),)) == "cell line 5, in step"


CRASH = f"""Fatal Python error: Segmentation fault

Thread 0x00007f0001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1 in wait

Current thread 0x00007f0002 (most recent call first):
  File "/x/train.py", line 6 in step
  File "{WORKER}", line 8 in _outcome
  File "{WORKER}", line 9 in run_call
  File "/x/launcher.py", line 1 in main
"""


def test_a_crash_is_read():
    assert location_of_crash(CRASH) == (("/x/train.py", 6, "step"),)
    assert location_of_crash("") == ()


def test_the_form_of_a_crash_is_faulthandlers_own(tmp_path):
    """The stack of a real crash, outside of a call: lines are found, and none is a location."""
    code = (
        f"import faulthandler, ctypes\nfaulthandler.enable(open({str(tmp_path / 'crash')!r}, 'w'))\nctypes.string_at(0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -11
    assert ("<string>", "3", "<module>") in recorder._DUMPED_LINE.findall((tmp_path / "crash").read_text())


def test_a_file_outlives_its_writer(tmp_path):
    recording = tmp_path / "recording"
    recording.write_text(json.dumps({"at": time.time() - 2, "location": [["a.py", 3, "step"]]}).ljust(4096))
    location, age_s = last_location(str(recording))
    assert location == (("a.py", 3, "step"),)
    assert 2 <= age_s < 3
    (tmp_path / "recording.crash").write_text(CRASH)
    assert last_location(str(recording)) == ((("/x/train.py", 6, "step"),), 0.0)


def test_without_a_readable_file_the_location_is_unknown(tmp_path):
    (tmp_path / "torn").write_text('{"at": 1')
    assert last_location(str(tmp_path / "torn")) == last_location(str(tmp_path / "none")) == ((), 0.0)
