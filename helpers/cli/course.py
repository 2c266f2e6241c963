"""Commands that need the course: what builds, releases and publishes it, and what a learner runs in it.

All but `doctor`, `train-lm` and `accuracy` need the course's files, and look for the clone before they import anything.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import PACKAGE
from ..catalog.errors import WorkbookError
from ..questions.parameter import whole
from .flags import Commands, add_command


def find_root() -> Path | None:
    """The clone: where solutions/ lies, here or above, else where the package was installed from; None without one."""
    folders = (Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[2])
    return next((one for one in folders if (one / "solutions").is_dir() and (one / "notebooks").is_dir()), None)


def workbook_root() -> Path:
    """The clone. WorkbookError where there is none: the package was installed alone, and this is another folder."""
    if PACKAGE != "helpers":
        what = "this `workbook` was installed by itself, and the course's notebooks import the package of their clone"
        raise WorkbookError(what, "the command that `make env` puts into the clone", "run .venv/bin/workbook there")
    root = find_root()
    if root is None:
        expected = "a clone with notebooks/ and solutions/, which holds the checks of labs, here or above"
        do = "run it in the clone; estimate, trace, explain-oom, accuracy and doctor run anywhere"
        raise WorkbookError("no workbook here: this command needs the course's notebooks", expected, do)
    return root


def add(commands: Commands) -> None:
    build = add_command(commands, "build", "execute notebooks and store their outputs", _build)
    build.add_argument("names", nargs="*", help="chapter numbers like 02, A for the appendix; all when none is given")
    _add_release(commands)
    add_command(commands, "topics", "write docs/topics.md, and the options in docs/commands.md", _topics)
    _add_publish(commands)
    _add_learning(commands)
    text = "write a made-up class for a lab: twenty submissions, and the scores that they should get"
    sample_class = add_command(commands, "sample-class", text, _sample_class)
    sample_class.add_argument("lab", help="a number like 02")
    sample_class.add_argument("--out", required=True, metavar="FOLDER", type=Path, help="a new folder for the class")
    text = "what this machine is, what it can run, and what to fix"
    doctor = add_command(commands, "doctor", text, _doctor)
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    _add_record(commands)
    _add_train_lm(commands)
    _add_accuracy(commands)


def _add_learning(commands: Commands) -> None:
    """What a learner runs: their copies, their labs, how far they are."""
    copies = add_command(commands, "workspace", "your own copies of chapters and labs, in workspace/", _workspace)
    kept = "begin this copy again, as 02 or labs/02; yours is renamed, not deleted"
    copies.add_argument("--fresh", metavar="NAME", action="append", default=[], help=kept)
    check = add_command(commands, "check", "run the checks of your lab and show points", _check)
    check.add_argument("lab", help="a number like 02, or the path of a notebook")
    answer = "print the worked answer to a question that you tried, by its number like 3 or its name"
    either = check.add_mutually_exclusive_group()
    either.add_argument("--show", metavar="QUESTION", help=answer)
    either.add_argument("--json", action="store_true", help="print one JSON object, in points")
    check.add_argument("--only", metavar="QUESTION", help="check this question alone, by its number like 3 or its name")
    far = add_command(commands, "progress", "chapters opened, guesses and how far off, points of labs", _progress)
    far.add_argument("chapter", nargs="?", default="", help="a number like 02, for each of its guesses")
    far.add_argument("--json", action="store_true", help="print a JSON list of chapters, each with its guesses")


def _build(arguments: argparse.Namespace) -> int:
    root = workbook_root()
    from ..course.build import build

    return build(arguments.names, root)


def _add_release(commands: Commands) -> None:
    release = add_command(commands, "release", "write labs/ from solutions/", _release)
    either = release.add_mutually_exclusive_group()
    either.add_argument("--check", action="store_true", help="only say what would change")
    either.add_argument("--nbgrader", metavar="FOLDER", type=Path, help="write a course for nbgrader there too")


def _release(arguments: argparse.Namespace) -> int:
    root = workbook_root()
    from ..course.release import release

    if arguments.nbgrader is not None:
        from ..course.nbgrader_course import write_course

        write_course(root, arguments.nbgrader)
    return release(root, check=arguments.check)


def _topics(arguments: argparse.Namespace) -> int:
    root = workbook_root()
    from ..course import commands_page, topics

    for one in (topics, commands_page):
        (root / one.PAGE).write_text(one.page(root), encoding="utf-8")
    print(f"✓ {topics.PAGE}: {len(topics.topics(root))} topics")
    return 0


def _add_publish(commands: Commands) -> None:
    text = "stamp links with where learners clone from: badges and setup cells, with repository and tag"
    publish = add_command(commands, "publish", text, _publish)
    publish.add_argument("--repository", metavar="URL", help="where learners clone from; '' takes all links away")
    publish.add_argument("--ref", metavar="TAG", help="the tag or branch that they get; '' with an empty repository")
    publish.add_argument("--check", action="store_true", help="only say what disagrees with pyproject.toml")


def _publish(arguments: argparse.Namespace) -> int:
    root = workbook_root()
    from ..course import publish
    from ..course.address import Address

    given = (arguments.repository, arguments.ref)
    if arguments.check and given == (None, None):
        return publish.check(root)
    if arguments.check or None in given:
        do = "workbook publish --repository https://github.com/OWNER/NAME --ref v1.0"
        raise WorkbookError("nothing to publish as", "both --repository and --ref, or --check alone", do)
    return publish.publish(root, Address(arguments.repository.rstrip("/"), arguments.ref))


def _check(arguments: argparse.Namespace) -> int:
    root = workbook_root()
    from ..grading.check import check

    return check(arguments.lab, root, show=arguments.show, as_json=arguments.json, only=arguments.only)


def _workspace(arguments: argparse.Namespace) -> int:
    root = workbook_root()
    from ..course.workspace import workspace

    return workspace(root, arguments.fresh)


def _progress(arguments: argparse.Namespace) -> int:
    root = workbook_root()
    from ..course.progress import progress
    from ..course.start_page import renew_start_page

    renew_start_page(root)
    return progress(root, arguments.chapter, arguments.json)


def _sample_class(arguments: argparse.Namespace) -> int:
    root = workbook_root()
    from ..grading.sample_class import sample_class

    return sample_class(arguments.lab, root, arguments.out)


def _doctor(arguments: argparse.Namespace) -> int:
    from ..course.doctor import doctor

    return doctor(find_root(), as_json=arguments.json)


def _add_record(commands: Commands) -> None:
    text = "measure on this GPU what the chapters predict: kept in recordings/"
    command = add_command(commands, "record", text, _record)
    more = "Writes after each experiment; the same command goes on with what is missing. 1 when one failed."
    command.description = f"{text}. {more}"
    command.add_argument("--out", type=Path, metavar="FOLDER", help="where to write (default: recordings/)")
    command.add_argument("--only", nargs="+", action="extend", default=[], metavar="NAME", help="these experiments")
    command.add_argument("--list", action="store_true", help="say what there is and what it needs; no GPU needed")
    command.add_argument("--force", action="store_true", help="record again what is recorded already")
    command.add_argument("--minutes", type=float, default=10, metavar="N", help="begin nothing that would end later")


def _record(arguments: argparse.Namespace) -> int:
    folder = arguments.out or workbook_root() / "recordings"
    from ..course.record import listing, record

    if arguments.list:
        print(listing(folder))
        return 0
    return record(folder, arguments.only, arguments.force, arguments.minutes)


def _add_train_lm(commands: Commands) -> None:
    text = "train the small language model again: a quarter of an hour on two cores"
    train = add_command(commands, "train-lm", text, _train_lm)
    train.add_argument("--out", default="small-lm", help="folder to write the checkpoint to")
    train.add_argument("--seed", type=whole, default=0, help="of the weights and the documents")
    train.add_argument("--steps-scale", type=float, default=1.0, help="1 reproduces the shipped model; 0.1 is a try")


def _train_lm(arguments: argparse.Namespace) -> int:
    from ..small_lm import training

    return training.main(Path(arguments.out), seed=arguments.seed, steps_scale=arguments.steps_scale)


def _add_accuracy(commands: Commands) -> None:
    text = "predictions beside published measurements: each error, also of what this machine recorded"
    accuracy = add_command(commands, "accuracy", text, _accuracy)
    kinds = "op (half a minute), lora (two, with peft), qlora (63 such steps), serving, engine, generation (two), "
    kinds += "torchtitan (ten), megatron, recorded, history (one run, event by event), "
    kinds += "plans (one; what the planner makes of published runs)"
    which = accuracy.add_mutually_exclusive_group()
    which.add_argument("--only", metavar="KIND", help=kinds)
    which.add_argument("--measured", metavar="FILE", help="runs that you measured: docs/your-measurements.md")
    accuracy.add_argument("--json", action="store_true", help="print one JSON object, in bytes")


def _accuracy(arguments: argparse.Namespace) -> int:
    if arguments.only == "plans":
        from ..memory.plan import published

        return published.report(arguments.json)
    from ..memory.accuracy import report

    return report(arguments.only, json_wanted=arguments.json, measured=arguments.measured)
