"""mkdocs hooks: generated pages, and links to files that are not on the site."""

import pathlib
import re
import subprocess

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/release/bin/dtopp"
ELSEWHERE = {"../benchmarks/README.md": "benchmarks.md", "../README.md": "index.md"}
PYTHON = """\
# The Python package, name by name

::: dtopp.MoE
::: dtopp.DTopPRouter
::: dtopp.Routing
::: dtopp.Experts
::: dtopp.ThresholdController
::: dtopp.functional
"""


def help_of(*verb):
    return subprocess.run([PROGRAM, *verb, "--help"], check=True, capture_output=True, text=True).stdout


def verbs_of(text):
    """The subcommands listed in a help text."""
    listed = re.search(r"^Subcommands:\n((?:  .*\n?)+)", text, re.M)
    return re.findall(r"^  ([a-z-]+)", listed[1], re.M) if listed else []


def commands_page():
    """The page with every command's --help."""
    parts = ["# Commands\n"]

    def add(*verb):
        text = help_of(*verb)
        text = text.replace(str(PROGRAM), "dtopp").rstrip()
        parts.append(f"{'#' * (1 + max(len(verb), 1))} dtopp {' '.join(verb)}\n\n```\n{text}\n```\n")
        for name in verbs_of(text):
            add(*verb, name)

    add()
    return "\n".join(parts)


def on_files(files, config):
    pages = {"commands.md": commands_page(), "python-reference.md": PYTHON,
             "benchmarks.md": (ROOT / "benchmarks/README.md").read_text()}
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    """Redirects links out of docs/ to the page that replaces the file, or to its name alone."""
    for path, name in ELSEWHERE.items():
        markdown = markdown.replace(f"]({path})", f"]({name})")
    return re.sub(r"\[([^\]]*)\]\(\.\./[^)]*\)", r"\1", markdown)
