"""`workbook build, release, publish, check, doctor, train-lm, accuracy`: what keeps notebooks and predictions true."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..catalog.errors import WorkbookError
from .flags import whole


def add(commands: argparse._SubParsersAction) -> None:
    for name, help_text, flags, run in _COMMANDS:
        command = commands.add_parser(name, help=help_text, description=help_text, allow_abbrev=False)
        flags(command)
        command.set_defaults(run=run)


def workbook_root() -> Path:
    """The workbook's folder: where solutions/ lies, here or above, else where the package was installed from."""
    for folder in (Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[2]):
        if (folder / "solutions").is_dir() and (folder / "notebooks").is_dir():
            return folder
    raise WorkbookError("no workbook here", "a folder with notebooks/ and solutions/", "run this in the clone")


def _build(arguments: argparse.Namespace) -> int:
    from ..course.build import build

    return build(arguments.names, workbook_root())


def _release(arguments: argparse.Namespace) -> int:
    from ..course.release import release

    if arguments.nbgrader is not None:
        from ..course.nbgrader_course import write_course

        write_course(workbook_root(), arguments.nbgrader)
    return release(workbook_root(), check=arguments.check)


def _release_flags(parser: argparse.ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--check", action="store_true", help="only say what would change")
    either.add_argument("--nbgrader", metavar="FOLDER", type=Path, help="write a course for nbgrader there too")


def _publish(arguments: argparse.Namespace) -> int:
    from ..course import publish
    from ..course.address import Address

    given = (arguments.repository, arguments.ref)
    if arguments.check and given == (None, None):
        return publish.check(workbook_root())
    if arguments.check or None in given:
        raise WorkbookError(
            "nothing to publish as",
            "both --repository and --ref, or --check alone",
            "workbook publish --repository https://github.com/OWNER/NAME --ref v1.0",
        )
    return publish.publish(workbook_root(), Address(arguments.repository.rstrip("/"), arguments.ref))


def _publish_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repository", metavar="URL", help="where learners clone from; '' takes all links away")
    parser.add_argument("--ref", metavar="TAG", help="the tag or branch that they get; '' with an empty repository")
    parser.add_argument("--check", action="store_true", help="only say what disagrees with pyproject.toml")


def _sample_class(arguments: argparse.Namespace) -> int:
    from ..course.sample_class import sample_class

    return sample_class(arguments.lab, workbook_root(), arguments.out)


def _sample_class_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lab", help="a number like 02")
    parser.add_argument("--out", required=True, metavar="FOLDER", type=Path, help="a new folder for the class")


def _check(arguments: argparse.Namespace) -> int:
    from ..course.check import check

    return check(arguments.lab, workbook_root())


def _doctor(arguments: argparse.Namespace) -> int:
    from ..course.doctor import doctor

    return doctor(workbook_root(), as_json=arguments.json)


def _accuracy(arguments: argparse.Namespace) -> int:
    from ..memory.accuracy import report
    from ..techniques.checkpointing import apply

    return report(arguments.only, json_wanted=arguments.json, apply=apply, measured=arguments.measured)


def _accuracy_flags(parser: argparse.ArgumentParser) -> None:
    kinds = "op (half a minute), lora (two, with peft), serving, recorded; else all"
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", metavar="KIND", help=kinds)
    which.add_argument("--measured", metavar="FILE", help="LoRA steps that you measured: docs/your-measurements.md")
    parser.add_argument("--json", action="store_true", help="print one JSON object, in bytes")


def _train_lm(arguments: argparse.Namespace) -> int:
    from ..small_lm import training

    return training.main(Path(arguments.out), seed=arguments.seed, steps_scale=arguments.steps_scale)


def _train_lm_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="small-lm", help="folder to write the checkpoint to (default small-lm)")
    parser.add_argument("--seed", type=whole, default=0, help="of the weights and the documents")
    parser.add_argument("--steps-scale", type=float, default=1.0, help="1 reproduces the shipped model; 0.1 is a try")


_COMMANDS = (
    (
        "build",
        "execute notebooks and store their outputs",
        lambda p: p.add_argument("names", nargs="*", help="chapter numbers like 02; all when none is given"),
        _build,
    ),
    ("release", "write labs/ from solutions/", _release_flags, _release),
    (
        "publish",
        "stamp badges and setup cells with the repository and the tag that learners clone",
        _publish_flags,
        _publish,
    ),
    (
        "check",
        "run the checks of your lab and show points",
        lambda p: p.add_argument("lab", help="a number like 02, or the path of a notebook"),
        _check,
    ),
    (
        "sample-class",
        "write twenty made-up submissions for a lab, and the scores they should get",
        _sample_class_flags,
        _sample_class,
    ),
    (
        "doctor",
        "what this machine is, which chapters it can run, and what to fix",
        lambda p: p.add_argument("--json", action="store_true", help="print one JSON object"),
        _doctor,
    ),
    ("train-lm", "train the small language model again: a quarter of an hour on two cores", _train_lm_flags, _train_lm),
    ("accuracy", "predictions beside published and recorded GPU measurements, with errors", _accuracy_flags, _accuracy),
)
