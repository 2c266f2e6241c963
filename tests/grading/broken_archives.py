"""Zips of a class: as LMSs and desktops make them, and as an attacker would.

A builder gets the path to write and a right notebook's bytes. `rows` says, for each learner that must come of it,
part of the reason, or '' for one that must be readable.
"""

from __future__ import annotations

import stat
import unicodedata
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from helpers.grading.text import one_line

Name = str | zipfile.ZipInfo
NOTEBOOK = None  # stands for the right notebook's bytes
MEGABYTE = 10**6


@dataclass(frozen=True)
class Packed:
    """One archive. `warning` is part of one that somebody must be given."""

    name: str
    item: str
    build: Callable[[Path, bytes], object]
    rows: dict[str, str] = field(default_factory=dict)
    warning: str = ""

    def __str__(self) -> str:
        return self.name


def zipped(*members: tuple[Name, bytes | None], method: int = zipfile.ZIP_DEFLATED) -> Callable[[Path, bytes], None]:
    """A builder of a zip with these members."""

    def build(path: Path, notebook: bytes) -> None:
        with zipfile.ZipFile(path, "w", method) as archive:
            for name, content in members:
                archive.writestr(name, notebook if content is NOTEBOOK else content)

    return build


def of(*names: Name) -> Callable[[Path, bytes], None]:
    """A builder of a zip with the right notebook under each name."""
    return zipped(*((name, NOTEBOOK) for name in names))


def typed(name: str, kind: int) -> zipfile.ZipInfo:
    """A member that says it is a link, a FIFO or the like."""
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, (kind | 0o777) << 16
    return info


def patched(build: Callable, patch: Callable[[bytearray], object]) -> Callable[[Path, bytes], None]:
    """A builder of the same zip with some bytes changed."""

    def changed(path: Path, notebook: bytes) -> None:
        build(path, notebook)
        data = bytearray(path.read_bytes())
        patch(data)
        path.write_bytes(data)

    return changed


def encrypt(data: bytearray) -> None:
    """Set the flag that says so, in both headers of the first member."""
    data[data.index(b"PK\x03\x04") + 6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1


def shrink(data: bytearray) -> None:
    """Say that the first member unpacks to ten bytes."""
    at = data.index(b"PK\x01\x02") + 24
    data[at : at + 4] = (10).to_bytes(4, "little")


def hurt(data: bytearray) -> None:
    """Change packed bytes of the first member."""
    at = data.index(b"PK\x03\x04") + 80
    data[at : at + 8] = b"\xff" * 8


def forget_utf_8(data: bytearray) -> None:
    """Clear the flag that names are UTF-8, as macOS does."""
    data[data.index(b"PK\x03\x04") + 7] &= ~0x08
    data[data.index(b"PK\x01\x02") + 9] &= ~0x08


def unseparated(old: str, new: str) -> Callable[[bytearray], None]:
    """Put a name into the headers that zipfile would not write."""

    def patch(data: bytearray) -> None:
        data[:] = bytes(data).replace(old.encode(), new.encode())

    return patch


def packed(build: Callable[[Path, bytes], object], levels: int = 1) -> Callable[[Path, bytes], None]:
    """A builder of a class in which ada handed in what `build` builds, in so many zips; bob handed in the notebook."""

    def nested(path: Path, notebook: bytes) -> None:
        build(path, notebook)
        for _ in range(levels - 1):
            zipped(("lab.zip", path.read_bytes()))(path, notebook)
        zipped(("ada/lab.zip", path.read_bytes()), ("bob/lab.ipynb", notebook))(path, notebook)

    return nested


def same_name_twice(path: Path, notebook: bytes) -> None:
    """Two members of one name: the second is what unpacking would leave."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zipped(("ada/lab.ipynb", notebook + b" "), ("ada/lab.ipynb", notebook), ("bob/lab.ipynb", notebook))(
            path, notebook
        )


def moodle(name: str, kind: str = "file") -> str:
    """A learner's folder as Moodle calls it."""
    return f"{name}_assignsubmission_{kind}"


NFD = unicodedata.normalize("NFD", "José")
HUGE = zipped(("lab.ipynb", bytes(25 * MEGABYTE)))
TIGHT = zipped(("lab.ipynb", b" " * 5 * MEGABYTE))
BOMB = zipped(("ada/lab.ipynb", bytes(25 * MEGABYTE)), ("bob/lab.ipynb", NOTEBOOK))
DENSE = zipped(("ada/lab.ipynb", b" " * 5 * MEGABYTE), ("bob/lab.ipynb", NOTEBOOK))
ADA_BOB = {"ada": "", "bob": ""}
GRADESCOPE = b"""---
submission_11:
  :submitters:
  - :name: Ada
    :sid: '007'
    :email: ada@x.org
  - :name: Bob
    :sid: 8
    :email:
  :created_at: 2026-10-01 12:00:00.5 Z
  :results: !ruby/object:Results
    x: 1
submission_12:
  :submitters:
  - :email: cleo@x.org
    :name:
    - &a [x, x]
    - *a
"""

LMS: Sequence[Packed] = (
    Packed("stems", "zip", of("ada.ipynb", "bob.ipynb", "README.md"), ADA_BOB),
    Packed("folders", "zip", of("ada/lab.ipynb", "bob/x/lab.ipynb", "bob/conftest.py"), ADA_BOB),
    Packed("wrapped", "zip", of("class 7/ada/lab.ipynb", "class 7/bob/lab.ipynb", "class 7/grades.csv"), ADA_BOB),
    Packed("wrapped-stems", "zip", of("class/ada.ipynb", "class/bob.ipynb"), ADA_BOB),
    Packed(
        "nbgrader",
        "zip",
        of(
            *(f"c/{a}/ada/05_numbers/l.ipynb" for a in ("submitted", "autograded", "source")),
            "c/submitted/bob/05_numbers/l.ipynb",
        ),
        ADA_BOB,
    ),
    Packed("one-learner", "zip", of("ada/05_numbers.ipynb", "ada/05_numbers (1).ipynb"), {"ada": ""}),
    Packed("macos", "zip", of("c/ada.ipynb", "c/bob.ipynb", "__MACOSX/c/._ada.ipynb", "c/.DS_Store"), ADA_BOB),
    Packed("macos-name", "zip", patched(of(f"{NFD}.ipynb"), forget_utf_8), {"José": ""}),
    Packed(
        "windows",
        "zip",
        patched(
            of("ada-lab.ipynb", "bob-lab.ipynb"),
            lambda data: [unseparated(f"{one}-lab", f"{one}\\lab")(data) for one in ("ada", "bob")],
        ),
        ADA_BOB,
    ),
    Packed(
        "moodle",
        "zip",
        zipped(
            (f"{moodle('Ada Lovelace_12')}/lab.ipynb", NOTEBOOK),
            (f"{moodle('Bob van Dyke_7')}/05_numbers.ipynb", NOTEBOOK),
            (f"{moodle('Bob van Dyke_7', 'onlinetext')}/onlinetext.html", b"here it is"),
            (f"{moodle('Cleo_9', 'onlinetext')}/onlinetext.html", b"forgot the file"),
        ),
        {"Ada Lovelace": "", "Bob van Dyke": "", "Cleo": "no notebook"},
    ),
    Packed(
        "moodle-flat",
        "zip",
        of(
            f"{moodle('Ada Lovelace_12')}_lab.ipynb",
            f"{moodle('Bob_9')}_x_1_assignsubmission_file_a.ipynb",
            f"{moodle('Cleo_3')}_essay.pdf",
        ),
        {"Ada Lovelace": "", "Bob": "", "Cleo": "no notebook (.ipynb)"},
    ),
    Packed(
        "moodle-old",
        "zip",
        of(f"{moodle('Ada_12')}_/lab.ipynb", f"{moodle('Bob_7')}_/lab.ipynb"),
        {"Ada": "", "Bob": ""},
    ),
    Packed(
        "moodle-blind",
        "zip",
        of(f"{moodle('Participant_12')}/l.ipynb", f"{moodle('Participant_9')}/l.ipynb"),
        {"Participant 12": "", "Participant 9": ""},
    ),
    Packed(
        "moodle-namesakes",
        "zip",
        of(f"{moodle('Ada_12')}/l.ipynb", f"{moodle('Ada_9')}/l.ipynb"),
        {"Ada (12)": "", "Ada (9)": ""},
        warning="2 submissions came under the name 'Ada'",
    ),
    Packed(
        "canvas",
        "zip",
        of(
            "lovelaceada_123_456_05_numbers.ipynb",
            "lovelaceada_123_457_05_numbers-1.ipynb",
            "vandykebob_LATE_7_458_05_numbers.ipynb",
            "cleo_8_459_essay.pdf",
        ),
        {"lovelaceada": "", "vandykebob": "", "cleo": "no notebook"},
    ),
    Packed(
        "canvas-blind",
        "zip",
        of("anon_aB3xY_456_05_numbers.ipynb", "LATE_anon_Qq12z_457_05_numbers.ipynb"),
        {"anon_aB3xY": "", "anon_Qq12z": ""},
    ),
    Packed(
        "blackboard",
        "zip",
        zipped(
            *((f"Lab 02_{name}_attempt_2026-10-01-12-00-00_05_numbers.ipynb", NOTEBOOK) for name in ("ada", "j_doe")),
            *((f"Lab 02_{name}_attempt_2026-10-01-12-00-00.txt", b"Name: x") for name in ("ada", "j_doe", "m_doe")),
        ),
        {"ada": "", "j_doe": "", "m_doe": "no notebook"},
    ),
    Packed(
        "blackboard-impostor",
        "zip",
        of(
            "Lab_eve_attempt_2026-10-01-12-00-00_x_ada_attempt_2027-10-01-12-00-00_lab.ipynb",
            "Lab_ada_attempt_2026-10-01-12-00-00_lab.ipynb",
        ),
        {"ada": "", "eve": ""},
    ),
    Packed(
        "brightspace",
        "zip",
        zipped(
            ("12-99 - Ada Lovelace - Oct 1, 2026 1200 PM/lab.ipynb", NOTEBOOK),
            ("13-99 - Bob van Dyke - 05 March 2026 612 PM/lab.ipynb", NOTEBOOK),
            ("14-99 - Cleo - X - 1 octobre 2026 1412/essay.pdf", b""),
            ("index.html", b""),
        ),
        {"Ada Lovelace": "", "Bob van Dyke": "", "Cleo - X": "no notebook"},
    ),
    Packed(
        "brightspace-flat",
        "zip",
        of("12-99 - Ada - Oct 1, 2026 1200 PM - lab.ipynb", "13-99 - Ada - Oct 1, 2026 100 AM - my - lab.ipynb"),
        {"Ada (12)": "", "Ada (13)": ""},
        warning="2 submissions came under the name 'Ada'",
    ),
    Packed(
        "gradescope",
        "zip",
        zipped(
            ("assignment_1_export/submission_metadata.yml", GRADESCOPE),
            ("assignment_1_export/submission_11/lab.ipynb", NOTEBOOK),
            ("assignment_1_export/submission_12/lab.ipynb", NOTEBOOK),
            ("assignment_1_export/submission_13/lab.ipynb", NOTEBOOK),
        ),
        {"Ada": "", "Bob": "", "cleo@x.org": "", "submission_13": ""},
        warning="a group of 2",
    ),
    Packed(
        "gradescope-lost",
        "zip",
        zipped(
            ("submission_metadata.yml", b"{"), ("submission_1/a.ipynb", NOTEBOOK), ("submission_2/b.ipynb", NOTEBOOK)
        ),
        {"submission_1": "", "submission_2": ""},
        warning="submission_metadata.yml cannot be read",
    ),
    Packed(
        "classroom",
        "zip",
        of("Ada Lovelace - 05_numbers.ipynb", "Copy of Bob - 05_numbers.ipynb", "x - y.ipynb"),
        {"Ada Lovelace": "", "Bob": "", "x - y": ""},
    ),
    Packed(
        "classroom-nameless",
        "zip",
        of("Copy of 05_numbers.ipynb", "05_numbers (1).ipynb"),
        {"Copy of 05_numbers": "", "05_numbers (1)": ""},
        warning="says whose it is",
    ),
    Packed(
        "spelt-two-ways",
        "zip",
        of(f"{NFD}/05_numbers.ipynb", "José/05_numbers.ipynb", "bob/l.ipynb"),
        {"José": "", "bob": ""},
    ),
    Packed("nor-are-sections", "zip", of("ada_5_1_a.ipynb", "bob_5_2_a.ipynb"), {"ada_5_1_a": "", "bob_5_2_a": ""}),
    Packed(
        "dates-are-not-canvas",
        "zip",
        of("lab_2024_10_a.ipynb", "lab_2024_10_b.ipynb"),
        {"lab_2024_10_a": "", "lab_2024_10_b": ""},
    ),
)

HOSTILE: Sequence[Packed] = (
    Packed("upwards", "zip-slip", of("../../ada.ipynb", "bob.ipynb"), {"ada": "leads out", "bob": ""}),
    Packed("up-and-down", "zip-slip", of("ada/../../x/lab.ipynb", "bob/l.ipynb"), {"ada": "leads out", "bob": ""}),
    Packed("absolute", "zip-slip", of("/ada/lab.ipynb", "bob/lab.ipynb"), {"ada": "leads out", "bob": ""}),
    Packed("drive", "zip-slip", of("C:/ada/lab.ipynb", "bob/lab.ipynb"), {"ada": "leads out", "bob": ""}),
    Packed("backslashes", "zip-slip", of("..\\ada\\lab.ipynb", "bob/lab.ipynb"), {"ada": "leads out", "bob": ""}),
    Packed(
        "link", "zip-slip", of(typed("ada/lab.ipynb", stat.S_IFLNK), "bob/lab.ipynb"), {"ada": "is a link", "bob": ""}
    ),
    Packed("linked-folder", "zip-slip", of(typed("ada", stat.S_IFLNK), "ada/lab.ipynb", "bob/lab.ipynb"), ADA_BOB),
    Packed(
        "fifo",
        "zip-slip",
        of(typed("ada/lab.ipynb", stat.S_IFIFO), "bob/l.ipynb"),
        {"ada": "not a regular file", "bob": ""},
    ),
    Packed("large", "zip bomb", BOMB, {"ada": "over 250 times", "bob": ""}),
    Packed("dense", "zip bomb", DENSE, {"ada": "times its size", "bob": ""}),
    Packed("lying", "zip bomb", patched(of("ada/lab.ipynb", "bob/lab.ipynb"), shrink), {"ada": "damaged", "bob": ""}),
    Packed("damaged", "zip bomb", patched(of("ada/lab.ipynb", "bob/lab.ipynb"), hurt), {"ada": "damaged", "bob": ""}),
    Packed(
        "encrypted", "zip bomb", patched(of("ada/lab.ipynb", "bob/lab.ipynb"), encrypt), {"ada": "encrypted", "bob": ""}
    ),
    Packed("lzma", "zip bomb", zipped(("ada.ipynb", NOTEBOOK), method=zipfile.ZIP_LZMA), {"ada": "unusual way"}),
    Packed("nested", "zip bomb", packed(of("work/lab.ipynb")), ADA_BOB),
    Packed("nested-twice", "zip bomb", packed(of("l.ipynb"), 2), {"ada": "lab.zip/lab.zip is an archive", "bob": ""}),
    Packed(
        "nested-no-zip",
        "zip bomb",
        zipped(("ada/lab.zip", b"PK\3\4"), ("bob/lab.ipynb", NOTEBOOK)),
        {"ada": "lab.zip cannot be read as a zip", "bob": ""},
    ),
    Packed("nested-empty", "zip bomb", packed(zipped()), {"ada": "lab.zip is an archive", "bob": ""}),
    Packed("nested-large", "zip bomb", packed(HUGE), {"ada": "over 250 times", "bob": ""}),
    Packed("nested-dense", "zip bomb", packed(TIGHT), {"ada": "times its size", "bob": ""}),
    Packed("nested-link", "zip-slip", packed(of(typed("lab.ipynb", stat.S_IFLNK))), {"ada": "is a link", "bob": ""}),
    Packed("nested-upwards", "zip-slip", packed(of("../../lab.ipynb")), {"ada": "leads out", "bob": ""}),
    Packed("nested-lying", "zip bomb", packed(patched(of("lab.ipynb"), shrink)), {"ada": "damaged", "bob": ""}),
    Packed(
        "nested-many",
        "zip bomb",
        packed(zipped(*((f"{number}.txt", b"") for number in range(1001)))),
        {"ada": "more than 1,000 files", "bob": ""},
    ),
    Packed(
        "nested-huge-directory",
        "zip bomb",
        packed(zipped(*(("".join(map(str, range(number, number + 8_000))), b"") for number in range(40)))),
        {"ada": "cannot be read as a zip", "bob": ""},
    ),
    Packed("deep", "zip bomb", of("ada/" + "a/" * 99 + "lab.ipynb", "bob/lab.ipynb"), {"ada": "deep", "bob": ""}),
    Packed("twice", "zip bomb", same_name_twice, ADA_BOB, warning="could be the lab too"),
    Packed("long-name", "zip bomb", of("a" * 60_000 + ".ipynb", "b.ipynb"), {one_line("a" * 249, 120): "", "b": ""}),
)
