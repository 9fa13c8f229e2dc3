"""Checks the folders of dtopp/ against dtopp/CMakeLists.txt, the one statement of what each may include.

A file includes its own folder, what the folder DEPENDS on, and what those depend on. Also checked: every entry of
DEPENDS is used and not implied by another, no circle, and one definition per type name.

usage: check_includes.py           prints each problem and exits 1 if there is one
       check_includes.py --table   prints the table of CONTRIBUTING.md, which the check compares"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- folders: scripts/check_includes.py --table -->\n", "<!-- end of folders -->"


def read_folders():
    """{folder: direct dependencies} and {folder: content}, in the order of the CMake file."""
    text = (ROOT / "dtopp/CMakeLists.txt").read_text()
    folders, contents = {}, {}
    for content, call in re.findall(r"(?:^# ([^\n]*)\n)?^dtopp_folder\(([^)]*)\)", text, re.M):
        folder, *words = call.split()
        depends = words[words.index("DEPENDS") + 1 :] if "DEPENDS" in words else []
        end = next((i for i, word in enumerate(depends) if word.isupper()), len(depends))
        folders[folder], contents[folder] = depends[:end], content
    return folders, contents


def reach_of(folders):
    """{folder: every folder it may include}, and the folders that come before what they depend on."""
    reach, unordered = {}, []
    for folder, depends in folders.items():
        unordered += [(folder, d) for d in depends if d not in reach]
        reach[folder] = set(depends).union(*(reach.get(d, set()) for d in depends))
    return reach, unordered


def sources(folder):
    return sorted(p for kind in ("h", "cpp", "cu") for p in (ROOT / folder).glob(f"*.{kind}"))


def includes_of(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'#include "((?:dtopp|cli)/.*)/[^/"]+"', line)
        if match:
            yield number, match.group(1).removeprefix("dtopp/")


def check_folders(folders):
    reach, unordered = reach_of(folders)
    for folder, dependency in unordered:
        yield f"dtopp/CMakeLists.txt: {folder} depends on {dependency}, which is not above it"
    on_disk = {str(p.parent.relative_to(ROOT / "dtopp")) for kind in ("h", "cpp", "cu") for p in ROOT.glob(f"dtopp/**/*.{kind}")}
    for folder in sorted(on_disk ^ folders.keys()):
        yield f"dtopp/{folder}: is either not in dtopp/CMakeLists.txt or holds no sources"
    for folder in sorted(on_disk & folders.keys()):
        used = set()
        for path in sources(f"dtopp/{folder}"):
            for number, included in includes_of(path):
                used.add(included)
                if included != folder and included not in reach[folder]:
                    yield f"{path.relative_to(ROOT)}:{number}: {folder} must not include {included}"
        used_reach = used.union(*(reach.get(d, set()) for d in used))
        for dependency in folders[folder]:
            others = [d for d in folders[folder] if d != dependency]
            if any(dependency in reach[other] for other in others):
                yield f"dtopp/CMakeLists.txt: {folder}: DEPENDS {dependency} is implied by another entry"
            elif dependency not in used_reach and not any(".cu" in p.suffix or "_cuda" in p.name for p in sources(f"dtopp/{folder}")):
                yield f"dtopp/CMakeLists.txt: {folder}: DEPENDS {dependency} is not used"


def types_of(text):
    """Types defined in a namespace that has a name: clang-format begins them, and ends unnamed namespaces, without indent."""
    named = re.sub(r"^namespace \{\n.*?^\}  // namespace$", "", text, flags=re.M | re.S)
    return re.findall(r"^(?:struct|class|union|enum class|enum) (\w+)(?: final)?(?: :[^;{]*)? \{", named, re.M)


def check_files():
    types = {}
    for path in sorted([*(p for kind in ("h", "cpp", "cu") for p in ROOT.glob(f"dtopp/**/*.{kind}")), *ROOT.glob("cli/*")]):
        name, text = path.relative_to(ROOT), path.read_text()
        for scope in re.findall(r"^namespace ([\w:]+) \{", text, re.M)[:1]:
            for type_name in types_of(text):
                first = types.setdefault((scope, type_name), name)
                if first != name:
                    yield f"{name}: {scope}::{type_name} is defined in {first} too"


def table(folders, contents):
    rows = ["| folder | content | may include, with what these include |", "|---|---|---|"]
    for folder, depends in folders.items():
        rows.append(f"| `{folder}` | {contents[folder]} | {', '.join(f'`{d}`' for d in depends) or '–'} |")
    return "\n".join(rows) + "\n"


def main():
    folders, contents = read_folders()
    if sys.argv[1:] == ["--table"]:
        print(table(folders, contents), end="")
        return 0
    problems = [*check_folders(folders), *check_files()]
    text = (ROOT / "CONTRIBUTING.md").read_text()
    if BEGIN + table(folders, contents) + END not in text:
        problems.append("CONTRIBUTING.md: the table of folders is not what `scripts/check_includes.py --table` prints")
    print("\n".join(problems) or f"folders: {len(folders)}, {sum(map(len, folders.values()))} dependencies, all in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
