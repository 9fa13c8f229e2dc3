"""Tests what a repository on GitHub needs beside the code: workflows, templates, the citation and the tag of a version."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from refusal import assert_refused
from tiny_run import ROOT

WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
SCHEMAS = {"vendor.github-workflows": WORKFLOWS, "vendor.github-issue-config": [ROOT / ".github/ISSUE_TEMPLATE/config.yml"],
           "vendor.citation-file-format": [ROOT / "CITATION.cff"]}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_follow_their_public_schema(schema):
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is missing: make test")
    assert SCHEMAS[schema]
    done = subprocess.run([sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *SCHEMAS[schema]], text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_and_files_that_exist(workflow):
    text = workflow.read_text()
    targets = re.findall(r"^ +(?:- run: |run: |)make ([a-z-]+)", text, re.M)
    assert targets and set(targets) <= set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
    for name in re.findall(r"--file (\S+)", text):
        assert (ROOT / name).is_file()


READY = {
    "CMakeLists.txt": "project(dtopp VERSION 1.2.3 LANGUAGES CXX)\n",
    "CITATION.cff": "version: 1.2.3\n",
    "CHANGELOG.md": "# Changes\n\n## 1.2.3\n\n- A change.\n\n## 1.2.2\n\n- An old one.\n",
    "README.md": "git clone https://github.com/someone/dtopp\n",
    ".gitignore": "/build\n",
}


class Checkout:
    def __init__(self, folder, files):
        self.folder = folder
        for name, text in files.items():
            (folder / name).write_text(text)
        (folder / "scripts").mkdir()
        shutil.copy2(ROOT / "scripts/release.sh", folder / "scripts")
        self.git("init", "--quiet", "--initial-branch", "main")
        self.git("config", "user.name", "x")
        self.git("config", "user.email", "x@x")
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "x")
        (folder / "build").mkdir()
        for tier in ("test", "nightly"):
            (folder / f"build/tested-{tier}").write_text(self.git("rev-parse", "HEAD"))

    def git(self, *words):
        return subprocess.run(["git", *words], cwd=self.folder, check=True, text=True, capture_output=True).stdout

    def tag(self, version):
        return subprocess.run([pathlib.Path("scripts/release.sh"), "tag", version], cwd=self.folder, text=True, capture_output=True)


def test_a_ready_commit_is_tagged_once(tmp_path):
    checkout = Checkout(tmp_path, READY)
    done = checkout.tag("1.2.3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert checkout.git("rev-parse", "v1.2.3^{commit}") == checkout.git("rev-parse", "HEAD")
    assert "git push origin v1.2.3" in done.stdout
    assert_refused(checkout.tag("1.2.3"), 2, "v1.2.3", begins="make tag: ")


UNREADY = {
    "CMakeLists.txt has version": {"CMakeLists.txt": "project(dtopp VERSION 1.2.30 LANGUAGES CXX)\n"},
    "CITATION.cff has version": {"CITATION.cff": "version: 1.2.2\n"},
    "CHANGELOG.md has changes": {"CHANGELOG.md": "## 1.2.3\n\n## 1.2.2\n\n- An old one.\n"},
    "CHANGELOG.md has no section": {"CHANGELOG.md": "## Unreleased\n\n- New.\n" + READY["CHANGELOG.md"]},
    "README.md names": {"README.md": "git clone https://github.com/OWNER/dtopp\n"},
}


def assert_only_this_is_missing(checkout, what):
    done = checkout.tag("1.2.3")
    assert_refused(done, 2, "v1.2.3", begins="make tag: ")
    open_items = [line for line in done.stdout.splitlines() if line.startswith("[ ]")]
    assert len(open_items) == 1 and open_items[0].startswith(f"[ ] {what}"), done.stdout
    assert checkout.git("tag") == ""


@pytest.mark.parametrize("what", UNREADY)
def test_a_version_that_files_contradict_is_not_tagged(tmp_path, what):
    assert_only_this_is_missing(Checkout(tmp_path, READY | UNREADY[what]), what)


def test_a_changed_checkout_is_not_tagged(tmp_path):
    checkout = Checkout(tmp_path, READY)
    (tmp_path / "new").touch()
    assert_only_this_is_missing(checkout, "no uncommitted changes")


@pytest.mark.parametrize("tier", ["test", "nightly"])
def test_a_commit_whose_tests_did_not_pass_is_not_tagged(tmp_path, tier):
    checkout = Checkout(tmp_path, READY)
    (tmp_path / f"build/tested-{tier}").write_text("0" * 40)
    assert_only_this_is_missing(checkout, f"make {tier} passed")


def test_a_tag_needs_a_version(tmp_path):
    assert_refused(Checkout(tmp_path, READY).tag("next"), 2, "next", begins="make tag: ")
