"""What a release is made of agrees: one version, a citation that can be read, an image that the pages describe."""

import json
import re

import yaml

import helpers
from helpers.course.address import Address
from helpers.course.publish import citing
from setup_env.__main__ import START

from .tree import ROOT


def test_the_changelog_begins_with_the_version():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == helpers.__version__


def test_the_citation_names_the_version_and_the_licence():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(cited["version"]) == helpers.__version__
    assert cited["cff-version"]
    assert cited["message"]
    assert cited["title"]
    assert cited["authors"]
    assert cited["license"] in (ROOT / "LICENSE").read_text()


def test_publishing_names_the_repository_once_and_takes_it_away():
    text = (ROOT / "CITATION.cff").read_text()
    there, again = Address("https://github.com/ada/workbook", "v1"), Address("https://github.com/bob/workbook", "v2")
    stamped = citing(citing(text, there), again)
    assert yaml.safe_load(stamped)["repository-code"] == "https://github.com/bob/workbook"
    assert stamped.count("repository-code") == 1
    assert citing(stamped, Address()) == citing(text, Address())


def test_the_dev_container_builds_the_image():
    folder = ROOT / ".devcontainer"
    told = json.loads((folder / "devcontainer.json").read_text())
    assert (folder / told["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    users = re.findall(r"^USER (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert users[-1] == told["remoteUser"] != "root"
    assert told["customizations"]["codespaces"]["openFiles"] == [START.removeprefix("/lab/tree/")]
    assert "workbook workspace" in told["postCreateCommand"], "which makes that page"


def test_the_image_takes_no_answers_and_no_environment_along():
    left_out = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "workspace", "submissions", "grades"} <= set(left_out)


def test_the_page_of_hosts_and_the_image_name_the_same_volume():
    image, page = (ROOT / "Dockerfile").read_text(), (ROOT / "docs" / "hosts.md").read_text()
    volume = json.loads(re.search(r"^VOLUME (.+)$", image, re.MULTILINE)[1])[0]
    assert f"-v answers:{volume}" in page
    assert f"-v answers:{volume}" in image
