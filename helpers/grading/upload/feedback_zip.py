"""feedback.zip: every page under the name that the LMS gave its learner's work, so that an upload hands it out.

Moodle, *Upload multiple feedback files in a zip* (moodle/mod/assign/feedback/file/importziplib.php): a learner is found
by a part of the path, Full Name_123_assignsubmission_file; what follows is the file's name, and one that begins with a
dot is ignored. Canvas, *Re-upload submissions* (canvas-lms, `infer_comment_context_from_filename`): by the two numbers
in lovelaceada_123_456_lab.ipynb, the user's and the upload's, and a page becomes a comment's attachment; some versions
show it under the notebook's own name. So a folder gets feedback.html, and a file's name is kept whole, with .html
behind it. Brightspace finds its folders again in the same way.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from ..reports.gradebook import store_bytes

PAGE = "feedback.html"
_A_FILE = re.compile(r"\.(ipynb|zip|7z|rar|tar|tgz|gz|bz2|xz|pdf|txt|py|html)$", re.IGNORECASE)
_UNSAFE = re.compile(r"[\x00-\x1f/\\]|^\.{0,2}$|^[A-Za-z]:")
EARLIEST = (1980, 1, 1, 0, 0, 0)  # a zip knows no earlier time; the same pages give the same bytes


def write(folders: Mapping[str, str], out: Path) -> list[str]:
    """Write feedback.zip into the folder `out`, from feedback/; the slugs whose page is not in it.

    `folders` has, by slug, what the LMS called the learner's folder or file; '' for who handed nothing in.
    """
    placed: dict[str, str] = {}
    for slug, folder in folders.items():
        if folder and not _UNSAFE.search(folder) and (out / "feedback" / f"{slug}.html").is_file():
            placed.setdefault(inside(folder), slug)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(placed):
            info = zipfile.ZipInfo(name, EARLIEST)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, (out / "feedback" / f"{placed[name]}.html").read_bytes())
    store_bytes(out / "feedback.zip", data.getvalue())
    return sorted(set(folders) - set(placed.values()))


def inside(folder: str) -> str:
    """Where in the zip the page of this learner lies.

    >>> inside("Ada Lovelace_123_assignsubmission_file"), inside("lovelaceada_123_456_lab.ipynb")
    ('Ada Lovelace_123_assignsubmission_file/feedback.html', 'lovelaceada_123_456_lab.ipynb.html')
    """
    return f"{folder}.html" if _A_FILE.search(folder) else f"{folder}/{PAGE}"
