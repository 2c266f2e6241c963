"""Imports packages in a process of its own, for the doctor: `python -m helpers.course.doctor.probe torch bitsandbytes`.

One line of JSON per package, written as soon as it is known: an import that kills Python or hangs then costs only
its own line. What the packages print goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings


def main(names: list[str]) -> None:
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        warnings.simplefilter("ignore")
        for name in names:
            answers.write(json.dumps(attempt(name)) + "\n")
            answers.flush()


def attempt(name: str) -> dict[str, object]:
    """`{"name", "error"}`, error "" when it imports; for torch also what torch says of this machine."""
    try:
        module = importlib.import_module(name)
        return {"name": name, "error": ""} | ({"torch": torch_facts(module)} if name == "torch" else {})
    except BaseException as error:  # a package may also call sys.exit while it is imported
        return {"name": name, "error": in_a_line(error)}


def torch_facts(torch) -> dict[str, object]:
    """Plain values for `machine.Torch`."""
    facts = {"cuda_build": torch.version.cuda or "", "hip_build": getattr(torch.version, "hip", None) or ""}
    facts |= {"threads": torch.get_num_threads(), "mps": torch.backends.mps.is_available()}
    if not torch.cuda.is_available():
        return facts | {"gpus": [], "architectures": [], "why_not": reason(torch)}
    gpus = [gpu_facts(torch, index) for index in range(torch.cuda.device_count())]
    return facts | {"gpus": gpus, "architectures": torch.cuda.get_arch_list(), "why_not": ""}


def gpu_facts(torch, index: int) -> dict[str, object]:
    found = torch.cuda.get_device_properties(index)
    try:
        free_bytes = torch.cuda.mem_get_info(index)[0]
    except Exception:  # asking takes a little memory of the GPU, which may have none left
        free_bytes = None
    capability = f"{found.major}.{found.minor}"
    uuid = str(getattr(found, "uuid", ""))
    return {"name": found.name, "total_bytes": found.total_memory, "free_bytes": free_bytes} | {
        "capability": capability,
        "uuid": uuid,
    }


def reason(torch) -> str:
    """Why torch finds no GPU, in its own words: what it raises when it is told to start CUDA."""
    try:
        torch.cuda.init()
        return ""
    except Exception as error:
        return in_a_line(error)


def in_a_line(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [""])[0][:160]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1:])
