"""What the pages say can be followed: links lead somewhere, commands and their options are there, code is code."""

import ast
import re
import subprocess
import sys

import pytest
import tiny_run
import yaml
from tiny_run import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md"), *ROOT.glob("assets/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
MADE = {"commands.md", "python-reference.md", "benchmarks.md"}  # by scripts/docs_hooks.py


def fences(text, *languages):
    """Code blocks of these languages; "" of none that is named."""
    return [block for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S) if language in languages]


def anchors(text):
    """Of its headings, as pages on the web have them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)).strip().lower().replace(" ", "-")
            for title in titles}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name):
    page = ROOT / name
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or path in MADE:
            continue
        file = page.parent / path if path else page
        assert file.exists(), f"{target} is not there"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file.read_text()), f"{target}: no such heading"


@pytest.mark.parametrize("name", NAMES)
def test_code_blocks_are_code(name):
    text = (ROOT / name).read_text()
    for block in fences(text, "python"):
        ast.parse(block)
    for block in fences(text, "yaml"):
        yaml.safe_load(block)


def commands(text):
    """(verb, options) of every `dtopp …` in its code blocks and between backquotes."""
    blocks = "\n".join(fences(text, "", "bash", "sh")).replace("\\\n", " ")
    lines = [*blocks.splitlines(), *re.findall(r"`((?:build/release/bin/)?dtopp [^`]+)`", text)]
    for line in lines:
        for command in re.findall(r"(?:^|[ /])dtopp ([a-z].*)", line.split(" #")[0]):
            words = command.split()
            verb = [word for word in words[:2] if re.fullmatch(r"[a-z]+(-[a-z]+)?", word)]
            yield verb, [word.split("=")[0] for word in re.findall(r"(?<![\w-])--[a-z][\w-]*", command)]


@pytest.fixture(scope="module")
def help_of(dtopp_binary):
    """The help of a verb, and of its own verb where the second word is one."""
    known = {}

    def ask(verb):
        for words in (verb[:2], verb[:1]):
            key = tuple(words)
            if key not in known:
                known[key] = tiny_run.dtopp(*words, "--help")
            if known[key].returncode == 0 and " ".join(["dtopp", *words]) in known[key].stdout.replace("Usage: ", ""):
                return known[key].stdout
        return None

    return ask


@pytest.mark.parametrize("name", NAMES)
def test_commands_and_their_options_are_there(name, help_of):
    for verb, options in commands((ROOT / name).read_text()):
        text = help_of(verb) if verb else None
        assert text is not None, f"dtopp {' '.join(verb)} is no command"
        for option in options:
            assert re.search(rf"(?<![\w-]){option}(?![\w-])", text), f"dtopp {verb[0]} has no {option}"


def test_the_site_is_made_of_them(dtopp_binary, tmp_path):
    done = subprocess.run([sys.executable, "-m", "mkdocs", "--quiet", "build", "--site-dir", tmp_path / "site"], cwd=ROOT,
                          text=True, capture_output=True, timeout=300, env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site/commands.html").read_text()
    assert "dtopp convert to-hf" in page and "--target-experts" in page
    assert "ThresholdController" in (tmp_path / "site/python-reference.html").read_text()
