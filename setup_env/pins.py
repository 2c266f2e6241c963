"""requirements.txt, the one place of the pins, and its conda twin."""

import os
import re
from typing import Dict

from .machine import ROOT

ENVIRONMENT_HEAD = """\
# Generated from requirements.txt by `python3 -m setup_env environment.yml`; do not edit.
# DeepSpeed, for chapter 09, comes after: pip install -r requirements-deepspeed.txt
# Without a GPU, `make lab` is lighter: on Linux this file fetches the CUDA build of torch.
name: gpu-memory-workbook
channels:
  - conda-forge
dependencies:
  - python=3.11
  - pip
  - pip:
"""


def read(name: str) -> str:
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def pins(text: str) -> Dict[str, str]:
    """`{"torch": "2.13.0", ...}` from the text of requirements.txt, in its order."""
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)$", text, flags=re.M))


def environment_yml(requirements: str) -> str:
    """The conda twin of requirements.txt: same pins, installed by pip."""
    pinned = [f"      - {name}=={version}\n" for name, version in pins(requirements).items()]
    return "".join([ENVIRONMENT_HEAD, *pinned, "      - -e .\n"])
