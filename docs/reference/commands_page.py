#!/usr/bin/env python3
"""Writes docs/reference/commands.md from the --help of every command of dtopp.

usage: commands_page.py [PROGRAM]    PROGRAM: build/release/bin/dtopp by default"""

import html
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/commands.md"
INDENT = 30  # of descriptions in the help text
HEAD = """\
# Commands

<!-- Written by docs/reference/commands_page.py: change the help in cli/, not this page. -->
`dtopp COMMAND --help` prints the same. [Exit status](exit-status.md) lists the numbers that commands return.
"""


def entries(text, section):
    """(name, value, description) per option, argument or subcommand of a section of a help text."""
    text = re.sub(r"\n {6}(?=\S)", " ", text)  # a name on several lines
    listed = re.search(rf"^{section}:\n((?: .*\n?)+)", text, re.M)
    lines = listed[1].splitlines() if listed else []
    found = []
    for line, following in zip(lines, [*lines[1:], ""]):
        if line.startswith(" " * INDENT):
            found[-1][1] += " " + line.strip()
            continue
        if line[INDENT - 2 : INDENT] == "] " and not re.match("Excludes|Needs", line[INDENT:]):  # a default fills its column
            line = line[:INDENT] + "  " + line[INDENT:]
        entry = re.sub(r"(?<! in) \[([^]]*)\](?: (?= \S)|(?=\s|$))", r"=\1", line).strip()  # CLI11 2.4 prints a default as [8]
        if "  " in entry:
            found.append(re.split(r" {2,}", entry, maxsplit=1))
        elif following.startswith(" " * INDENT):  # a name that is too long for its column
            found.append([entry, ""])
        else:
            found.append([line[:INDENT].strip(), line[INDENT:]])
    return [(*name.partition(" ")[::2], description.strip()) for name, description in found if not name.startswith("-h,")]


def cell(text):
    text = re.sub(r"^ENUM:|^U?INT:(?=U?INT in)|^FLOAT:(?=FLOAT in)", "", text)
    text = html.escape(text, quote=False).replace("|", "&#124;")
    return re.sub(r"docs/([\w-]+/[\w-]+\.md)", r"[docs/\1](../\1)", text)


def table(title, rows):
    if rows:
        yield f"| {title} | value | meaning |\n|---|---|---|\n" + "".join(
            f"| {name} | {cell(value)} | {cell(description)} |\n" for name, value, description in rows)


def sections(program, *command):
    text = subprocess.run([program, *command, "--help"], check=True, capture_output=True, text=True).stdout
    title, usage = re.match(r"((?:.|\n)*?)\nUsage: (?:\S*/)?(dtopp.*)", text).groups()
    yield f"{'#' * max(2, len(command) + 1)} {' '.join(['dtopp', *command])}\n\n{cell(' '.join(title.split())).rstrip('.')}.\n\n```text\n{usage}\n```\n"
    if example := re.search(r"^Example:\n  (.*)", text, re.M):
        yield f"Example: `{example[1]}`\n"
    for kind in ("Positionals", "Options"):
        yield from table("argument" if kind == "Positionals" else "option",
                         [(f"`{name}`", value, description) for name, value, description in entries(text, kind)])
    commands = entries(text, "Subcommands")
    if commands:
        yield "| command | does |\n|---|---|\n" + "".join(
            f"| [{name}](#{'-'.join(['dtopp', *command, name])}) | {cell(description)} |\n" for name, _, description in commands)
    for name, _, _ in commands:
        yield from sections(program, *command, name)


def page(program):
    return "\n".join([HEAD, *sections(program)])


if __name__ == "__main__":
    PAGE.write_text(page(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/bin/dtopp").resolve()))
