"""Checks the language of comments, pages and commit subjects ("Language" in CONTRIBUTING.md).

usage: check_language.py [--count] [FILE...]   comments of the given files, text of the given pages (.md), or of all
       check_language.py --commits             subjects of the commits since the commit-msg hook exists

Prints one line per problem and exits 1 if there is one. --count prints totals only."""

import argparse
import io
import pathlib
import re
import subprocess
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUBJECT_LENGTH = 72
SENTENCE_WORDS = 35  # of a page; the aim is 25
# A comment that opens with one of these is a noun clause without a subject.
OPENERS = re.compile(r"^(Of|What|Where|Who|Whose|Whoever|Wherever|Whatever)\b(?!.*\?\s*$)")
# Words for people, used for machines; dialect; and terms that dtopp no longer uses (see the vocabulary in CONTRIBUTING.md).
RETIRED = {
    r"\b(nobody|whoever|speaks?|spoken)\b": "name the actor",
    r"\b(who|whom)\b": "name the actor; 'which' or 'that' for machines",
    r"\bsays?\b|\bsaid\b|\btold\b": "reports, states, logs, returns",
    r"\b(is|are|was|were) not there\b": "is missing, does not exist",
    r"\b(goes|go|went|gone) on\b": "continues, resumes",
    r"\bjourneys?\b": "dispatch plan",
    r"\bown products?\b": "fused kernels",
    r"\broom for (the )?(token-expert )?pairs\b": "capacity",
    r"\bmasses\b|\bmass histograms?\b": "cumulative probabilities",
    r"\breplicas?\b": "EDP rank, DP group",
    r"\bverbs?\b": "command",
    r"\b(rooms?)\b": "folder; capacity; space",
    r"\bbeforehand\b": "first, earlier",
    r"\bin vain\b": "without an answer",
    r"\bso many\b|\bhow many there are\b": "state the number",
    r"\ba (token|step|second|rank|expert|layer|parameter|element|line|run|sample|row|byte) each\b": "per",
}
FOR_PEOPLE = {r"\b(who|whom)\b"}  # pages write about people too
RETIRED = {re.compile(pattern, re.I): advice for pattern, advice in RETIRED.items()}


def c_comment_blocks(text):
    """(line, text) per comment block: adjacent // lines at one indent, or one trailing comment."""
    blocks, previous = [], None
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"^(\s*)//+ ?(.*)$", line)
        trailing = None if match else re.search(r"(?<![:\"'/])//+ (.*)$", line)
        if match:
            if previous == (number - 1, len(match.group(1))):
                blocks[-1][1].append(match.group(2))
            else:
                blocks.append((number, [match.group(2)]))
            previous = (number, len(match.group(1)))
        elif trailing and line[: trailing.start()].count('"') % 2 == 0:
            blocks.append((number, [trailing.group(1)]))
    return blocks


def python_comment_blocks(text):
    blocks, previous = [], None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line, column = token.start
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            comment = token.string.lstrip("#").strip()
            if previous == (line - 1, column):
                blocks[-1][1].append(comment)
            else:
                blocks.append((line, [comment]))
            previous = (line, column)
        elif token.type == tokenize.STRING and token.string.startswith(('"""', 'r"""')):
            blocks.append((line, token.string.lstrip("r").strip('"').splitlines()))
    return blocks


def hash_comment_blocks(text):
    return c_comment_blocks(re.sub(r"^(\s*)#(?!!)", r"\1//", text, flags=re.M))


def page_blocks(text):
    """(line, text) per paragraph, item of a list, heading and cell of a table; without code, fenced or indented."""
    blocks, in_code, in_block = [], False, False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        in_code ^= fence
        is_code = fence or in_code or line.startswith("    ")
        line = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", line.strip())
        if is_code or not line or line.startswith("<!--"):
            in_block = False
        elif line.startswith("|"):
            blocks += [(number, [cell]) for cell in line.strip("|").split("|")]
            in_block = False
        elif in_block and not re.match(r"(#|[-*] |\d+\. )", line):
            blocks[-1][1].append(line)
        else:
            blocks.append((number, [re.sub(r"^(#+|[-*]|\d+\.) ", "", line)]))
            in_block = not line.startswith("#")
    return blocks


def blocks_of(path):
    text = path.read_text()
    if path.suffix == ".md":
        return page_blocks(text)
    if path.suffix == ".py":
        return python_comment_blocks(text)
    if path.suffix in {".h", ".cpp", ".cu", ".js"}:
        return c_comment_blocks(text)
    return hash_comment_blocks(text)


def problems_of(block, is_page):
    text = " ".join(part.strip() for part in block)
    prose = re.sub(r"`[^`]*`|\"[^\"]*\"", "CODE" if is_page else "", text)
    sentences = re.split(r"(?<=[.!?:;])\s+", prose) if is_page else [prose]
    for sentence in sentences:
        match = OPENERS.match(sentence)
        if match:
            yield "opener", f"opens with '{match.group(1)}'"
        if is_page and len(sentence.split()) > SENTENCE_WORDS:
            yield "length", f"a sentence of {len(sentence.split())} words: {sentence[:60]}…"
    for pattern, advice in RETIRED.items():
        if is_page and pattern.pattern in FOR_PEOPLE:
            continue
        match = pattern.search(prose)
        if match:
            yield "term", f"'{match.group(0)}': {advice}"


def sources():
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, text=True,
                           capture_output=True).stdout.split("\n")
    kinds = {".h", ".cpp", ".cu", ".py", ".sh", ".cmake", ".js"}
    pages = [ROOT / name for name in names if re.fullmatch(r"(README|docs/.+)\.md", name)]
    return pages + [ROOT / name for name in names if (ROOT / name).is_file() and (pathlib.Path(name).suffix in kinds or name.endswith("CMakeLists.txt"))]


def check_comments(files, count):
    totals = {"blocks": 0, "opener": 0, "term": 0, "length": 0}
    for path in files:
        for line, block in blocks_of(path):
            totals["blocks"] += 1
            for kind, problem in problems_of(block, path.suffix == ".md"):
                totals[kind] += 1
                if not count:
                    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
                    print(f"{name}:{line}: {problem}")
    print(f"{totals['blocks']} comments and paragraphs, {totals['opener']} noun-clause openers, {totals['term']} retired terms, "
          f"{totals['length']} long sentences", file=sys.stderr)
    return totals["opener"] + totals["term"] + totals["length"]


def check_commits():
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, text=True, capture_output=True).stdout

    first = git("log", "--diff-filter=A", "--format=%h", "-1", "--", ".githooks/commit-msg").strip()
    if not first:  # an archive without history, or a shallow clone
        return 0
    bad = [line for line in git("log", "--format=%h %s", f"{first}..HEAD").splitlines() if len(line.split(" ", 1)[1]) > SUBJECT_LENGTH]
    for line in bad:
        print(f"{line}: subject over {SUBJECT_LENGTH} characters")
    return len(bad)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--commits", action="store_true")
    options = parser.parse_args()
    if options.commits:
        return 1 if check_commits() else 0
    return 1 if check_comments([path.resolve() for path in options.files] or sources(), options.count) else 0


if __name__ == "__main__":
    sys.exit(main())
