"""`workbook doctor` on machines that one rents or shares: what it warns of, what it tells, and what it leaves alone."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from helpers.course.doctor import card, examine, nvidia_smi, place, report
from helpers.course.doctor.card import Card
from helpers.course.doctor.place import Place
from tests.course.doctor_machines import CHAPTERS, LAPTOP
from tests.course.doctor_rented import GIB, HINDERED, MIG_SLICE, OLD_4090, RENTED_H100, UNHINDERED, with_card

MIB = 2**20


def printed(machine) -> str:
    return report.text(machine, *examine(machine, CHAPTERS))


@pytest.mark.parametrize("name", HINDERED)
def test_each_hindrance_is_told_with_its_remedy_and_stops_no_chapter(name):
    machine, what, do = HINDERED[name]
    judged, (first, *more) = examine(machine, CHAPTERS)
    assert what in first.what
    assert do in first.do
    assert more == []
    assert not any(problems for _, problems in judged)
    assert first.do in printed(machine)


@pytest.mark.parametrize("name", UNHINDERED)
def test_what_is_no_fault_is_no_warning(name):
    assert examine(UNHINDERED[name], CHAPTERS)[1] == ()


def test_a_laptop_gets_no_more_lines_than_it_had():
    told = [line.split("  ")[1] for line in printed(LAPTOP).splitlines() if line.startswith("  ") and line[2] != " "]
    names = [name for name in told if name[:1] not in "✓✗–"]
    assert names == ["system", "processor", "memory", "disk", "Python", "GPU", "port 8888"]


def test_a_container_shows_its_share_beside_what_the_machine_has():
    text = printed(RENTED_H100)
    assert "EPYC, 8 of 128 cores; torch" in text
    assert "14 GiB free of this container's 16 GiB (`free` shows 1008 GiB)" in text
    assert "3 GiB free for models, in /root/.cache/huggingface/hub" in text
    assert "a lost connection ends it: run `tmux` first" in text


def test_a_machine_of_ones_own_is_not_told_of_shares_and_tmux():
    text = printed(replace(with_card(), tunnel="ssh -L 8888:localhost:8888 me@machine"))
    assert "EPYC, 8 cores; torch" in text
    assert "JupyterLab" in text
    assert not [word for word in ("`free`", "tmux", "for models") if word in text]
    assert "for models" not in printed(replace(LAPTOP, place=replace(RENTED_H100.place, shm_bytes=None)))


def test_nobody_is_told_to_update_a_driver_that_is_the_hosts():
    assert "update" not in examine(OLD_4090, CHAPTERS)[1][0].do


def test_a_card_is_told_with_its_settings():
    assert "PCIe gen 1 (5 under load), x16; ECC on\n" in printed(with_card())
    busy = with_card(link_gen=5, link_lanes=1, ecc=False, persistence=False)
    assert "PCIe gen 5, x1; ECC off; persistence off" in printed(busy)
    assert "a MIG slice; PCIe gen 1 (5 under load), x16; ECC on" in printed(MIG_SLICE)
    assert "holding its memory" not in printed(MIG_SLICE), "its neighbour's processes are not its own"
    assert "not in the catalogue" in printed(MIG_SLICE), "a slice has not the bandwidth of the card"


@pytest.mark.parametrize("machine", [RENTED_H100, OLD_4090, MIG_SLICE, *UNHINDERED.values()])
def test_what_is_told_of_the_machine_fits_eighty_columns(machine):
    lines = printed(machine).partition("\nPackages")[0].splitlines()
    assert [line for line in lines if len(line) > 80 and not line.startswith("  GPU 0")] == []


LINK = """<pci><pci_gpu_link_info>
<pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen>
<link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths>
</pci_gpu_link_info></pci>"""
PROCESSES = """<processes>
<process_info><pid>11</pid><type>C</type><used_memory>2048 MiB</used_memory></process_info>
<process_info><pid>12</pid><type>G</type><used_memory>100 MiB</used_memory></process_info></processes>"""
USED = "<fb_memory_usage><used>9216 MiB</used></fb_memory_usage>"
CARDS = [
    ("", Card()),
    (LINK, Card(link_gen=1, link_gen_max=5, link_lanes=8, link_lanes_max=16)),
    ("<persistence_mode>Disabled</persistence_mode>", Card(persistence=False)),
    ("<ecc_mode><current_ecc>N/A</current_ecc></ecc_mode>", Card(ecc=None)),
    ("<mig_mode><current_mig>Disabled</current_mig></mig_mode><mig_devices>None</mig_devices>", Card()),
    (
        "<mig_mode><current_mig>Enabled</current_mig></mig_mode>"
        "<mig_devices><mig_device><index>0</index></mig_device><mig_device/></mig_devices>",
        Card(mig=True, slices=2),
    ),
    ("<compute_mode>Exclusive_Process</compute_mode>", Card(compute_mode="Exclusive_Process")),
    (USED, Card(unseen_bytes=9 * GIB)),
    (USED + PROCESSES, Card(unseen_bytes=(9216 - 2148) * MIB)),
    (USED + PROCESSES.replace("100 MiB", "N/A"), Card()),
    ("<remapped_rows><remapped_row_pending>Yes</remapped_row_pending></remapped_rows>", Card(repair="reset")),
    (
        "<remapped_rows><remapped_row_pending>Yes</remapped_row_pending>"
        "<remapped_row_failure>Yes</remapped_row_failure></remapped_rows>",
        Card(repair="replace"),
    ),
    ("<gpu_recovery_action>Reboot</gpu_recovery_action>", Card(repair="reboot")),
    ("<gpu_recovery_action>None</gpu_recovery_action>", Card()),
]


@pytest.mark.parametrize(("xml", "expected"), CARDS, ids=range(len(CARDS)))
def test_a_cards_settings_are_read(xml, expected, monkeypatch):
    monkeypatch.setattr(card, "strangers", lambda pids: ())
    assert card.read(ElementTree.fromstring(f"<gpu>{xml}</gpu>")) == expected
    log = f"<nvidia_smi_log><gpu>{xml}</gpu></nvidia_smi_log>"
    assert nvidia_smi.parse(log).gpus[0].card == expected


def test_only_those_who_compute_are_asked_for_their_owner(monkeypatch):
    asked = []
    monkeypatch.setattr(card, "strangers", lambda pids: asked.extend(pids) or ("alice",))
    assert card.read(ElementTree.fromstring(f"<gpu>{PROCESSES}</gpu>")).strangers == ("alice",)
    assert asked == [11]


def test_strangers_are_other_users_by_name_or_number(tmp_path, monkeypatch):
    for pid in (1, 2, 3):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
    mine = (tmp_path / "proc/1").stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: mine)
    assert card.strangers([1, 2, 999], tmp_path) == (), "one's own, and one that is nowhere"
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    assert card.strangers([1, 2], tmp_path) == (pwd.getpwuid(mine).pw_name,)
    monkeypatch.setattr(pwd, "getpwuid", lambda user: {}[user])
    assert card.strangers([3], tmp_path) == (f"user {mine}",)


@pytest.mark.parametrize(
    ("environ", "files", "inside"),
    [
        ({}, {}, False),
        ({}, {"proc/1/cgroup": "0::/init.scope\n"}, False),
        ({}, {".dockerenv": ""}, True),
        ({}, {"run/.containerenv": ""}, True),
        ({}, {"proc/1/cgroup": "0::/kubepods.slice/pod1\n"}, True),
        ({"container": "podman"}, {}, True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {}, True),
    ],
)
def test_a_container_is_known(environ, files, inside, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert place.in_container(environ, tmp_path) is inside


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HF_HUB_CACHE": "/a/b", "HF_HOME": "/c"}, "/a/b"),
        ({"HF_HOME": "/c", "XDG_CACHE_HOME": "/d"}, "/c/hub"),
        ({"XDG_CACHE_HOME": "/d"}, "/d/huggingface/hub"),
        ({}, str(Path.home() / ".cache/huggingface/hub")),
    ],
)
def test_the_models_folder_is_where_hugging_face_puts_it(environ, folder):
    assert str(place.models_folder(environ)) == folder


def test_the_models_folder_agrees_with_the_library(monkeypatch, tmp_path):
    code = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
    for environ in ({"HF_HOME": str(tmp_path)}, {"XDG_CACHE_HOME": str(tmp_path)}, {"HF_HUB_CACHE": str(tmp_path)}):
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_", "HUGGING"))}
        said = subprocess.check_output([sys.executable, "-c", code], env=bare | environ, text=True)
        assert said.strip() == str(place.models_folder(environ))


def test_a_disk_of_its_own_counts_and_the_workbooks_does_not(tmp_path, monkeypatch):
    assert place.free_elsewhere(tmp_path / "not/there/yet", tmp_path) is None, "the same disk"
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(9, 2, 7))
    root = namedtuple("root", "stat")(lambda: namedtuple("stat", "st_dev")(-1))
    assert place.free_elsewhere(tmp_path / "not/there/yet", root) == 7
    assert place.shm() == 9


def test_without_shm_or_folder_nothing_is_told(tmp_path):
    assert place.shm(tmp_path) is None
    assert place.free_elsewhere(tmp_path, tmp_path / "gone") is None


@pytest.mark.parametrize(
    ("name", "hub"),
    [("Qwen/Qwen3-8B", True), ("", False), ("./here", False), ("~/m", False), ("/a/b", False), ("gpt2", False)],
)
def test_a_model_of_the_hub_has_an_owner(name, hub):
    assert place.wants_model(name) is hub


def test_a_folder_is_no_model_of_the_hub(tmp_path, monkeypatch):
    (tmp_path / "Qwen/Qwen3-8B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert place.wants_model("Qwen/Qwen3-8B") is False


def test_a_session_that_ends_with_its_connection():
    ssh = {"SSH_CONNECTION": "1.2.3.4 5 8.8.8.8 22"}
    assert place.drops(ssh) is True
    assert not any(place.drops(environ) for environ in ({}, {"TMUX": "x"}, ssh | {"TMUX": "x"}, ssh | {"STY": "x"}))


def test_this_machine_has_a_place(tmp_path):
    found = place.around(tmp_path, {"HF_HOME": str(tmp_path), "WORKBOOK_MODEL": "a/b"}, 64 * GIB)
    assert (found.machine_memory_bytes, found.models_folder) == (64 * GIB, str(tmp_path / "hub"))
    assert found.models_could_be == str(tmp_path.parent / "huggingface")
    assert found.wants_model
    assert isinstance(found, Place)
    assert found.machine_cores == os.cpu_count()
