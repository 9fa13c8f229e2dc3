"""mkdocs hooks: the page of the Python package, pages from outside docs/, and links to files that are not on the site."""

import os
import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = """\
# The Python package, name by name

::: dtopp.load
::: dtopp.MoE
::: dtopp.Gate
::: dtopp.Router
::: dtopp.RouterInput
::: dtopp.Routing
::: dtopp.StepCounts
::: dtopp.Experts
::: dtopp.TopK
::: dtopp.TopP
::: dtopp.DTopP
::: dtopp.RouterUpdater
::: dtopp.ThresholdController
::: dtopp.set_loss_scale
::: dtopp.functional
"""


def on_files(files, config):
    files.append(File.generated(config, "python-reference.md", content=PYTHON))
    for page in ROOT.glob("benchmarks/**/*.md"):
        files.append(File.generated(config, str(page.relative_to(ROOT)), content=page.read_text()))
    return files


def place_on_site(path):
    """The page of a file of the repository, relative to the site's root, or None if the site does not have it."""
    if path == ROOT / "README.md":
        return "index.md"
    if path == ROOT / "python/dtopp/__init__.py":
        return "python-reference.md"
    for folder in (ROOT / "docs", ROOT / "benchmarks"):
        if path.is_relative_to(folder):
            return str(path.relative_to(folder if folder.name == "docs" else ROOT))
    return None


def on_page_markdown(markdown, page, config, files):
    """Leads links from one folder to another to the page on the site. Without one, only the link's text stays."""
    name = page.file.src_uri
    folder = (ROOT / name if name.startswith("benchmarks/") else ROOT / "docs" / name).parent

    def link(match):
        text, target, anchor = match.groups(default="")
        place = place_on_site((folder / target).resolve())
        return f"[{text}]({os.path.relpath(place, os.path.dirname(name) or '.')}{anchor})" if place else text

    return re.sub(r"\[([^\]]*)\]\((\.\./[^)#]*)(#[^)]*)?\)", link, markdown)
