"""Tab completion: what a real bash gets, of commands, flags and names, and what the two other shells are told."""

from __future__ import annotations

import subprocess
import sys

import pytest

from helpers.cli import main

ASK = """
workbook() {{ "{python}" -m helpers.cli "$@"; }}
eval "$2"
COMP_LINE="workbook $1"; COMP_WORDS=($COMP_LINE); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9
_python_argcomplete workbook "${{COMP_WORDS[-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("estimate tr", {"train"}),
        ("estimate train --in-b", {"--in-backward"}),
        ("estimate train --model llama-3.1-7", {"llama-3.1-70b"}),
        ("plan train llama-3.1-7", {"llama-3.1-70b"}),
        ("trace train --schedule 1", {"1F1B"}),
        ("estimate serve --model q --gpu h20", {"h200-141gb", "h20-96gb"}),
    ],
)
def test_bash_completes_commands_flags_and_names(typed, offered, capsys):
    main(["completion", "bash"])
    asked = ["bash", "-c", ASK.format(python=sys.executable), "bash", typed, capsys.readouterr().out]
    got = subprocess.run(asked, capture_output=True, text=True, timeout=120)
    assert offered <= set(got.stdout.split()), got.stderr
    assert all(word.startswith(typed.split()[-1]) for word in got.stdout.split())


def test_each_shell_gets_a_script_that_names_the_command(capsys):
    for shell, marker in (("bash", "complete "), ("zsh", "#compdef workbook"), ("fish", "complete --command workbook")):
        assert main(["completion", shell]) == 0
        assert marker in capsys.readouterr().out
    assert main(["completion", "tcsh"]) == 2
    assert "bash, zsh, fish" in capsys.readouterr().err
