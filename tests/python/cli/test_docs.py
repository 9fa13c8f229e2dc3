"""Tests the pages: links resolve, commands and options exist, and code blocks parse."""

import ast
import re
import subprocess
import sys

import pytest
import tiny_run
import yaml
from tiny_run import ROOT

sys.path.insert(0, str(ROOT / "docs/reference"))
import commands_page

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md"), *ROOT.glob("assets/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FILES = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, text=True,
                       capture_output=True).stdout.splitlines()  # without built and generated ones
PLACES = {path for name in FILES for path in ((ROOT / name), *(ROOT / name).parents)}
CONFIGURATION = ROOT / "docs/reference/configuration.md"


def fences(text, *languages):
    """Code blocks of these languages; "" stands for blocks without a language."""
    return [block for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S) if language in languages]


def anchors(text):
    """The anchors of a page's headings, as web pages form them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)).strip().lower().replace(" ", "-")
            for title in titles}


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".md") and (ROOT / name).exists()])
def test_links_lead_somewhere_in_the_repository(name):
    page = ROOT / name
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if re.match(r"[a-z]+:", target):
            continue
        assert file in PLACES and file.exists(), f"{target} is not in the repository"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file.read_text()), f"{target}: no such heading"


def test_tested_versions_are_those_that_the_tests_install():
    page = (ROOT / "docs/how-to/install.md").read_text()
    rows = {name: (oldest, newest) for name, oldest, newest in re.findall(r"^\| ([^|]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.M)}
    newest = dict(re.findall(r"^(\w+)==(\S+)$", (ROOT / "tests/python/requirements.txt").read_text(), re.M))
    oldest = dict(re.findall(r'"(\w+)>=([\d.]+)', (ROOT / "pyproject.toml").read_text()))
    assert rows["transformers"] == (oldest["transformers"], newest["transformers"])
    assert rows["tokenizers"][1] == newest["tokenizers"]
    assert rows["torch of the PyTorch layer"][0] == oldest["torch"]


@pytest.mark.parametrize("name", NAMES)
def test_code_blocks_are_code(name):
    text = (ROOT / name).read_text()
    for block in fences(text, "python"):
        ast.parse(block)
    for block in fences(text, "yaml"):
        yaml.safe_load(block)


def command_lines(text):
    """The text after `dtopp` of each command in code blocks and between backquotes."""
    blocks = "\n".join(fences(text, "", "bash", "sh")).replace("\\\n", " ")
    lines = [*blocks.splitlines(), *re.findall(r"`((?:build/release/bin/)?dtopp [^`]+)`", text)]
    return [command for line in lines for command in re.findall(r"(?:^|[ /])dtopp ([a-z].*)", line.split(" #")[0])]


def commands(text):
    """Yields (command words, options) of every command line."""
    for command in command_lines(text):
        verb = [word for word in command.split()[:2] if re.fullmatch(r"[a-z]+(-[a-z]+)?", word)]
        yield verb, re.findall(r"(?<![\w-])--[a-z][\w-]*", command)


@pytest.fixture(scope="module")
def help_of(dtopp_binary):
    """Returns the help of a command, and of its subcommand if the second word is one."""
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


@pytest.fixture(scope="module")
def keys():
    """The keys that a configuration or a study may have. A C++ test compares the table with the code."""
    return {*re.findall(r"^\| `([\w.]+)` \|", CONFIGURATION.read_text(), re.M), "base", "method", "seeds", "variants", "measure", "compare", "ledger"}


def settings(tree, *parents):
    """Yields the dotted keys of a block of YAML, without the names of methods, variants and commands of a study."""
    for key, value in tree.items():
        path = (*parents, key)
        if isinstance(value, dict):
            yield from settings(value, *path)
        elif path[0] in ("methods", "variants"):
            yield from [".".join(path[2:])] if len(path) > 2 else []  # a variant without settings
        elif path[0] not in ("after", "only"):
            yield ".".join(path[1:] if path[0] in ("grid", "zip") else path)


@pytest.mark.parametrize("name", NAMES)
def test_settings_exist(name, keys):
    text = (ROOT / name).read_text()
    used = [key for block in fences(text, "yaml") for key in settings(yaml.safe_load(block))]
    for line in [*command_lines(text), *re.findall(r"`([a-z_]+\.[a-z_.]+=[^`]*)`", text)]:
        used += re.findall(r"(?<![\w./-])([a-z_]+(?:\.[a-z_]+)*)=", line)
    assert not set(used) - keys


@pytest.mark.parametrize("name", NAMES)
def test_settings_of_runs_have_values_that_can_be(name, dtopp_binary):
    for line in command_lines((ROOT / name).read_text()):
        run = re.match(r"(?:train|plan) (configs/[\w./-]+)(.*)", line)
        if run and "…" not in line:
            overrides = re.findall(r"(?<= )[a-z_.]+=(?:\[[^]]*\]|[^ ])+", run[2])
            done = tiny_run.dtopp("plan", run[1], *overrides, cwd=ROOT)
            assert done.returncode == 0, f"{line}\n{done.stderr}"


def test_messages_of_troubleshooting_exist():
    """Every part of a message between numbers and names is in a source file."""
    sources = [*ROOT.glob("dtopp/**/*.cpp"), *ROOT.glob("cli/*.cpp"), *ROOT.glob("scripts/*.sh")]
    text = "\n".join(re.sub(r'"\s*"', "", source.read_text()) for source in sources)
    messages = re.findall(r"^\*\*`([^`]+)`", (ROOT / "docs/how-to/troubleshooting.md").read_text(), re.M)
    parts = [part.strip() for message in messages for part in re.split("…|;|KEY", message) if len(part) > 3]
    assert len(messages) > 10
    assert [part for part in parts if part not in text] == ["dtopp: command not found"]  # the shell's


def test_help_lists_the_exit_statuses(dtopp_binary):
    page = (ROOT / "docs/reference/exit-status.md").read_text()
    text = tiny_run.dtopp("--help").stdout
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", page, re.M)
    assert rows
    for status, meaning in rows:
        assert f"\n  {status:<4}{meaning}" in text


def test_the_page_of_commands_is_the_programs_help(dtopp_binary):
    assert commands_page.PAGE.read_text() == commands_page.page(dtopp_binary), "run docs/reference/commands_page.py"


def test_the_page_of_commands_reads_the_help_of_other_versions_of_cli11():
    version_2_3 = """\
Options:
  -h,--help                   Print this help message and exit
  --processes INT:INT in [1 - 4096]=3 Excludes: --sweep
                              number of ranks
  --batch-size INT:POSITIVE=8 sequences
  --seed UINT=0               seed of the sampling
  --restarts INT Needs: --processes
                              at most
                              this many
  --json                      print
"""
    version_2_4 = version_2_3.replace("4096]=3", "4096] [3] ").replace("=8 s", " [8] \n" + " " * 30 + "s").replace("=0  ", " [0]")
    expected = [("--processes", "INT:INT in [1 - 4096]=3 Excludes: --sweep", "number of ranks"),
                ("--batch-size", "INT:POSITIVE=8", "sequences"), ("--seed", "UINT=0", "seed of the sampling"),
                ("--restarts", "INT Needs: --processes", "at most this many"), ("--json", "", "print")]
    assert commands_page.entries(version_2_3, "Options") == commands_page.entries(version_2_4, "Options") == expected


def test_the_page_of_commands_has_every_option_once(dtopp_binary):
    parts = re.split(r"^##+ dtopp ?(.*)\n", commands_page.PAGE.read_text(), flags=re.M)[1:]
    assert len(parts) > 2 * 15
    for command, part in zip(parts[::2], parts[1::2]):
        listed = re.findall(r"^  (?:-\w,)?(--[\w-]+)", tiny_run.dtopp(*command.split(), "--help").stdout, re.M)
        assert ["--help", *re.findall(r"^\| `(--[\w-]+)` \|", part, re.M)] == listed, command



@pytest.fixture(scope="module")
def help_texts(dtopp_binary):
    """The help of every command, by the command's words."""
    def ask(words):
        text = tiny_run.dtopp(*words, "--help").stdout
        for name in re.findall(r"^  ([a-z-]+) ", re.split("Exit status:|Example:", text.partition("Subcommands:")[2])[0], re.M):
            yield from ask([*words, name])
        yield words, text

    return dict((" ".join(words), text) for words, text in ask([]))


def test_every_command_shows_an_example(help_texts):
    for command, text in help_texts.items():
        assert not command or re.search(rf"^Example:\n  dtopp {command} ", text, re.M), command


def test_help_fits_into_lines_of_100_characters(help_texts):
    texts = help_texts
    assert {"", "train", "prepare images", "evaluate tasks", "convert to-hf"} <= texts.keys()
    assert [(words, line) for words, text in texts.items() for line in text.splitlines() if len(line) > 100] == []


@pytest.mark.slow
def test_the_site_is_made_of_them(tmp_path):
    done = subprocess.run([sys.executable, "-m", "mkdocs", "--quiet", "build", "--site-dir", tmp_path / "site"], cwd=ROOT,
                          text=True, capture_output=True, timeout=300, env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site/reference/commands.html").read_text()
    assert "dtopp convert to-hf" in page and "--target-experts" in page
    assert "ThresholdController" in (tmp_path / "site/python-reference.html").read_text()
    assert 'href="../python-reference.html">Docstrings' in (tmp_path / "site/how-to/pytorch.html").read_text()
