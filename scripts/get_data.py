#!/usr/bin/env python3
"""Fetches evaluation tasks, text and pictures for dtopp from their public sources and checks each file's digest.

  get_data.py list                      names, sizes, licenses, and which files you have
  get_data.py tasks [NAME...]           the 13 evaluation tasks, to data/eval
  get_data.py text NAME [--shards N]    text to train on or to validate with, to data/raw/NAME
  get_data.py images cifar10            CIFAR-10 as tar archives of PNG files, to data/raw/cifar10
  get_data.py verify NAME... | --all    checks the digests of the files that you have

An interrupted download continues when the same command starts again. A machine without a network takes files that
were carried to it: --from FOLDER copies them from there, with the same checks. Sources and digests are in
data_sources.json beside this script. The variables DTOPP_DATA_GIT, DTOPP_DATA_HUB and DTOPP_DATA_FILES name mirrors.

It is one file, because it also works when it is copied to another machine with data_sources.json.

Exit status: 0 done; 2 unknown name or option; 3 a file is missing, damaged or not the recorded one, or the folder
cannot be written; 75 the network failed or the command was interrupted: start the same command again.
"""

import argparse
import contextlib
import csv
import dataclasses
import fcntl
import hashlib
import http.client
import io
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib

SOURCES = pathlib.Path(__file__).with_name("data_sources.json")
USAGE, BAD_DATA, TRY_AGAIN = 2, 3, 75
TRIES = 5
FIRST_WAIT = 1  # seconds before the second try; doubles with each further try
LONGEST_WAIT = 300  # seconds, whatever a server asks for
STALL = 30  # seconds without a byte that count as a lost connection
BLOCK = 1 << 20

# By kind of repository: the variable that names a mirror, the usual server, and the rest of a file's address.
SERVERS = {
    "git": ("DTOPP_DATA_GIT", "https://raw.githubusercontent.com", "{id}/{revision}/{path}"),
    "hub": ("DTOPP_DATA_HUB", "https://huggingface.co", "datasets/{id}/resolve/{revision}/{path}"),
    "file": ("DTOPP_DATA_FILES", "https://www.cs.toronto.edu", "{id}/{path}"),
}


class Failure(Exception):
    """Ends the command with an exit status and one line."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Lost(Exception):
    """A download failed in a way that another try may cure. `wait`: seconds that the server asks for, or None."""

    def __init__(self, reason, wait=None):
        super().__init__(reason)
        self.wait = wait


@dataclasses.dataclass(frozen=True)
class File:
    repository: dict  # kind, id, revision
    path: str
    size: int | None = None
    sha256: str | None = None
    blob: str | None = None  # git's SHA-1 of the file; a file with both digests matches either
    convert: str | None = None  # key of CONVERSIONS

    @property
    def name(self):
        return pathlib.PurePosixPath(self.path).name

    @property
    def address(self):
        variable, server, rest = SERVERS[self.repository["kind"]]
        return f"{os.environ.get(variable) or server}/{rest.format(path=urllib.parse.quote(self.path), **self.repository)}"

    @property
    def origin(self):
        return f"{self.path} of {self.repository['id']} at {self.repository['revision']}"


@dataclasses.dataclass(frozen=True)
class Entry:
    name: str
    group: str  # tasks, text or images
    purpose: str
    license: str
    citation: str
    files: list  # of File
    fetched: str | None  # when this script last fetched it from its real server
    next: str | None = None  # the command that uses the files
    shards: bool = False  # one of the files is enough
    authors: File | None = None  # the same task as its authors publish it

    @property
    def folder(self):
        return pathlib.Path("data/eval" if self.group == "tasks" else f"data/raw/{self.name}")

    def present(self, folder):
        return [file for file in self.files if (folder / file.name).exists()]


def load_entries():
    sources = json.loads(SOURCES.read_text())

    def file_of(fields):
        return File(**fields | {"repository": sources["repositories"][fields["repository"]]})

    entries = {}
    for name, fields in sources["data"].items():
        fields["files"] = [file_of(file) for file in fields["files"]]
        if "authors" in fields:
            fields["authors"] = file_of(fields["authors"])
        entries[name] = Entry(name, **fields)
    return entries


# ---- Checks of files


def digest(path, kind="sha256"):
    hashing = hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            hashing.update(block)
    return hashing.hexdigest()


def mismatch(path, file):
    """How the file at `path` differs from the recorded one; None if it is the recorded one."""
    size = path.stat().st_size
    if file.size not in (None, size):
        return f"has {size} bytes, not the recorded {file.size}"
    found = [(kind, digest(path, kind), getattr(file, kind)) for kind in ("sha256", "blob") if getattr(file, kind)]
    if any(actual == recorded for _, actual, recorded in found):
        return None
    return ", ".join(f"has {kind} {actual}, not the recorded {recorded}" for kind, actual, recorded in found)


def beside(target, ending):
    return target.with_name(target.name + ending)


def sync(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def finish(target, file=None):
    """Gives a complete .part file its name, or the ending .bad if it is not the recorded `file`."""
    part = beside(target, ".part")
    difference = file and mismatch(part, file)
    beside(target, ".part.json").unlink(missing_ok=True)
    if difference:
        part.replace(beside(target, ".bad"))
        raise Failure(BAD_DATA, f"{target}.bad: {difference}; look for a newer version of {SOURCES.name}")
    sync(part)
    part.replace(target)
    sync(target.parent)


@contextlib.contextmanager
def locked(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".get_data.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(TRY_AGAIN, f"{folder}: another get_data.py writes there; wait until it has ended") from None
        yield


def need_room(folder, size):
    free = shutil.disk_usage(folder).free
    if size > free:
        raise Failure(BAD_DATA, f"{folder}: {megabytes(size)} MB are needed, {megabytes(free)} MB are free")


def megabytes(size):
    return f"{size / 1e6:,.1f}"


# ---- Downloads


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but none that leaves https, and none to anything but a web server."""

    def redirect_request(self, request, response, code, message, headers, address):
        allowed = ("https:",) if request.full_url.startswith("https:") else ("https:", "http:")
        if not address.startswith(allowed):
            raise Failure(BAD_DATA, f"{request.full_url}: redirects to {address}, which is not safe; use another mirror")
        return super().redirect_request(request, response, code, message, headers, address)


def resume_point(target, file):
    """The number of bytes that are here, and the headers that ask for the rest; 0 if it cannot be asked for."""
    try:
        state = json.loads(beside(target, ".part.json").read_text())
        done = beside(target, ".part").stat().st_size
    except (OSError, ValueError):
        return 0, {}
    if not done or state["address"] != file.address or not state["validator"]:
        return 0, {}
    return done, {"Range": f"bytes={done}-", "If-Range": state["validator"]}


def request(target, file, headers):
    headers |= {"User-Agent": "dtopp-get-data", "Accept-Encoding": "identity"}
    try:
        return urllib.request.build_opener(Redirects).open(
            urllib.request.Request(file.address, headers=headers), timeout=STALL)
    except urllib.error.HTTPError as error:
        answer = f"the server answers {error.code} {error.reason}"
        wait = error.headers.get("Retry-After", "")
        if error.code == 416:  # the partial file is no beginning of the server's file
            beside(target, ".part.json").unlink()
        elif error.code not in (408, 425, 429) and error.code < 500:
            raise Failure(BAD_DATA, f"{file.name}: {answer} to {file.address}; look for a newer {SOURCES.name}") from None
        raise Lost(answer, min(int(wait), LONGEST_WAIT) if wait.isdigit() else None) from None
    except (OSError, http.client.HTTPException) as error:
        raise Lost(f"no connection ({getattr(error, 'reason', error)})") from None


def blocks_of(response):
    while True:
        try:
            block = response.read1(BLOCK)
        except TimeoutError:
            raise Lost(f"no data for {STALL} seconds") from None
        except (OSError, http.client.HTTPException) as error:
            raise Lost(f"connection lost ({error})") from None
        if not block:
            return
        yield block


def transfer(target, file):
    """Makes one request and appends its answer to the .part file."""
    done, headers = resume_point(target, file)
    if done and done == file.size:
        return
    with request(target, file, headers) as response:
        length = response.headers.get("Content-Length")
        if response.status != 206:  # the whole file
            done = 0
        total = done + int(length) if length else file.size
        if file.size not in (None, total):
            raise Failure(BAD_DATA, f"{file.name}: the server's file has {total} bytes, not the recorded {file.size}; "
                                    f"look for a newer {SOURCES.name}")
        need_room(target.parent, (total or 0) - done)
        etag = response.headers.get("ETag", "")
        validator = etag if etag.startswith('"') else response.headers.get("Last-Modified")
        beside(target, ".part.json").write_text(json.dumps({"address": file.address, "validator": validator}))
        with open(beside(target, ".part"), "ab" if done else "wb", buffering=0) as part:
            for block in blocks_of(response):
                part.write(block)
                done += len(block)
                if sys.stderr.isatty():
                    print(f"\r{file.name}: {megabytes(done)} MB", end="" if done != total else "\n", file=sys.stderr)
    if total not in (None, done):
        raise Lost(f"connection lost at {megabytes(done)} of {megabytes(total)} MB")


def download(target, file):
    wait = FIRST_WAIT
    for attempt in range(1, TRIES + 1):
        try:
            return transfer(target, file)
        except Lost as lost:
            if attempt == TRIES:
                raise Failure(TRY_AGAIN, f"{file.name}: {lost} after {TRIES} tries; start the same command again, or fetch "
                                         f"{file.origin} yourself and use --from") from None
            seconds = wait if lost.wait is None else lost.wait
            print(f"get_data: {file.name}: {lost}; next try in {seconds:g} s", file=sys.stderr)
            time.sleep(seconds)
            wait *= 2


def fetch(file, folder, carried):
    """Puts the file into `folder`, from its server or from the folder `carried`."""
    target = folder / file.name
    if target.exists():
        if difference := mismatch(target, file):
            raise Failure(BAD_DATA, f"{target}: {difference}; move it away and start the same command again")
        print(f"{target}: already here")
        return
    if carried is None:
        download(target, file)
    else:
        if not (carried / file.name).is_file():
            raise Failure(BAD_DATA, f"{carried / file.name}: no such file; copy {file.origin} to it")
        need_room(folder, (carried / file.name).stat().st_size)
        shutil.copyfile(carried / file.name, beside(target, ".part"))
    finish(target, file)
    print(f"{target}: {target.stat().st_size:,} bytes, as recorded")


# ---- Conversions: each reads its source once, in order, without extracting it


def write_items(path, items):
    """The form of the task files: one object per line."""
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), "utf-8", newline="\n")


def convert_mmlu(source, outputs):
    """From the test questions of the authors' archive: one CSV file per subject; subjects in byte order."""
    subjects = {}
    with tarfile.open(source, "r|*") as archive:
        for member in archive:
            if match := re.fullmatch(r"data/test/(\w+)_test\.csv", member.name):
                text = archive.extractfile(member).read().decode()
                subjects[match[1]] = list(csv.reader(io.StringIO(text, newline="")))
    items = []
    for subject in sorted(subjects):
        for question, *options, answer in subjects[subject]:
            listed = "".join(f"\n{letter}. {option}" for letter, option in zip("ABCD", options, strict=True))
            items.append({"query": f"Question: {question}\nChoices{listed}", "gold": "ABCD".index(answer),
                          "choices": list("ABCD"), "category": subject})
    write_items(outputs[0], items)


def convert_hellaswag(source, outputs):
    """From the authors' rows, without the marks of WikiHow's pages, as evaluation harnesses clean them."""
    def clean(text):
        text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
        return text.replace("  ", " ").strip()

    items = []
    for line in source.read_text("utf-8").split("\n"):
        if line:
            row = json.loads(line)
            query = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
            items.append({"query": clean(query), "choices": [clean(ending) for ending in row["endings"]],
                          "gold": int(row["label"])})
    write_items(outputs[0], items)


CIFAR10_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def png(width, height, rgb):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    rows = [b"\0" + rgb[start:start + 3 * width] for start in range(0, len(rgb), 3 * width)]  # 0: no filter
    pixels = zlib.compress(b"".join(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def cifar10_pictures(batch):
    """Class and PNG file of each record: a label, then 32 x 32 bytes of red, of green and of blue."""
    while record := batch.read(3073):
        rgb = bytearray(3072)
        for color in range(3):
            rgb[color::3] = record[1 + 1024 * color:1025 + 1024 * color]
        yield CIFAR10_CLASSES[record[0]], png(32, 32, rgb)


def convert_cifar10(source, outputs):
    """Writes CLASS/NNNNN.png, numbered in the order of the batches."""
    with contextlib.ExitStack() as stack:
        archive = stack.enter_context(tarfile.open(source, "r|gz"))
        train, validation = [stack.enter_context(tarfile.open(path, "w")) for path in outputs]
        for member in archive:
            if match := re.fullmatch(r".*/(data_batch_(\d)|test_batch)\.bin", member.name):
                first = 10000 * int(match[2]) - 10000 if match[2] else 0
                for number, (label, picture) in enumerate(cifar10_pictures(archive.extractfile(member)), first):
                    info = tarfile.TarInfo(f"{label}/{number:05}.png")
                    info.size = len(picture)
                    (train if match[2] else validation).addfile(info, io.BytesIO(picture))


# By File.convert: the function and the files that it writes.
CONVERSIONS = {
    "mmlu": (convert_mmlu, ["mmlu.jsonl"]),
    "hellaswag": (convert_hellaswag, ["hellaswag.jsonl"]),
    "cifar10": (convert_cifar10, ["train.tar", "validation.tar"]),
}


def convert(source, folder, kind, recorded=None):
    """Writes the results of a conversion; its only result must be the file `recorded`, if that is given."""
    function, names = CONVERSIONS[kind]
    targets = [folder / name for name in names]
    if all(target.exists() for target in targets):
        if recorded and (difference := mismatch(targets[0], recorded)):
            raise Failure(BAD_DATA, f"{targets[0]}: {difference}; move it away and start the same command again")
        return print(f"{', '.join(map(str, targets))}: already here")
    try:
        function(source, [beside(target, ".part") for target in targets])
    except (KeyError, ValueError, IndexError, EOFError, tarfile.TarError, zlib.error) as error:
        raise Failure(BAD_DATA, f"{source}: not in the expected form ({error}); fetch it again") from None
    for target in targets:
        finish(target, recorded)
        print(f"{target}: {target.stat().st_size:,} bytes, from {source}")


# ---- Commands


def fetch_entry(entry, folder, options):
    if options.authors and entry.authors:
        place = folder / "authors"
        place.mkdir(exist_ok=True)
        fetch(entry.authors, place, options.carried)
        return convert(place / entry.authors.name, folder, entry.authors.convert, entry.files[0])
    for file in entry.files[:options.shards] if entry.shards else entry.files:
        fetch(file, folder, options.carried)
        if file.convert:
            convert(folder / file.name, folder, file.convert)


def write_credits(folder, entries):
    """SOURCES.md: source, license, citation and digest of each file in the folder."""
    lines = ["# Sources", "", "| file | source | license | cite | SHA-256 |", "|---|---|---|---|---|"]
    for entry in entries:
        for file in entry.files:
            for name in [file.name, *(CONVERSIONS[file.convert][1] if file.convert else [])]:
                if (folder / name).exists():
                    known = file.sha256 if name == file.name and not file.blob else digest(folder / name)
                    origin = entry.authors.origin if entry.authors and known == file.sha256 else file.origin
                    lines.append(f"| `{name}` | {origin} | {entry.license} | {entry.citation} | `{known}` |")
    (folder / "SOURCES.md").write_text("\n".join(lines) + "\n")


def run_fetch(entries, options):
    chosen = [entries[name] for name in options.names]
    folder = options.output or chosen[0].folder
    with locked(folder):
        for entry in chosen:
            fetch_entry(entry, folder, options)
        write_credits(folder, [entry for entry in entries.values() if entry.group == options.command])
    following = dict.fromkeys(entry.next or "dtopp evaluate tasks RUN --data FOLDER" for entry in chosen)
    print(*(f"next: {command.replace('FOLDER', str(folder))}" for command in following), sep="\n")


def run_verify(entries, options):
    bad = 0
    for entry in entries.values() if options.all else [entries[name] for name in options.names]:
        folder = options.output or entry.folder
        files = entry.present(folder)
        for file in files:
            difference = mismatch(folder / file.name, file)
            bad += difference is not None
            print(f"{folder / file.name}: {difference or 'as recorded'}")
        if len(files) < (1 if entry.shards else len(entry.files)) and not (options.all and not files):
            bad += 1
            print(f"{folder}: holds {len(files)} of {len(entry.files)} files of {entry.name}")
    if bad:
        raise Failure(BAD_DATA, "files are missing or differ from the recorded ones; see the lines above")


def run_list(entries, options):
    print(f"{'name':17} {'MB':>8}  {'here':8} {'license':30} for")
    for entry in entries.values():
        sizes = [file.size for file in entry.files]
        size = "?" if None in sizes else megabytes(sum(sizes))
        here = f"{len(entry.present(entry.folder))} of {len(sizes)}"
        print(f"{entry.name:17} {size:>8}  {here:8} {entry.license:30} {entry.purpose}")
    never = [entry.name for entry in entries.values() if not entry.fetched]
    if never:
        print("Not tried against the real servers yet:", "all" if len(never) == len(entries) else ", ".join(never))


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Failure(USAGE, f"{message} (see --help)")


def parse(arguments, entries):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="list|tasks|text|images|verify")
    commands.add_parser("list").set_defaults(run=run_list)
    for group in ("tasks", "text", "images", "verify"):
        known = [name for name, entry in entries.items() if group in (entry.group, "verify")]
        command = commands.add_parser(group)
        command.set_defaults(run=run_fetch, authors=False, shards=1, known=known)
        command.add_argument("names", nargs=1 if group in ("text", "images") else "*", metavar="NAME", help=", ".join(known))
        command.add_argument("--output", type=pathlib.Path, metavar="FOLDER", help="folder for the files, instead of the usual one")
        if group == "verify":
            command.add_argument("--all", action="store_true", help="verify all files that you have")
            command.set_defaults(run=run_verify)
            continue
        command.add_argument("--from", dest="carried", type=pathlib.Path, metavar="FOLDER", help="copy the files from this folder instead of fetching them")
        if group == "tasks":
            command.add_argument("--authors", action="store_true", help="build mmlu and hellaswag from their authors' files")
        if group == "text":
            command.add_argument("--shards", type=int, default=1, metavar="N", help="number of shards to fetch (default: 1)")
    options = parser.parse_args(arguments)
    check(options, entries)
    return options


def check(options, entries):
    if options.command == "list":
        return
    for name in options.names:
        if name not in options.known:
            raise Failure(USAGE, f"{options.command}: unknown name {name}; known: {', '.join(options.known)}")
    if options.command == "tasks" and not options.names:
        options.names = options.known
    if options.command == "verify" and bool(options.names) == options.all:
        raise Failure(USAGE, "verify: give names, or --all")
    shards = len(entries[options.names[0]].files) if options.command == "text" and entries[options.names[0]].shards else 1
    if not 1 <= options.shards <= shards:
        raise Failure(USAGE, f"--shards {options.shards}: {options.names[0]} has {shards} {'shard' if shards == 1 else 'shards'}")


def main(arguments=None):
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        entries = load_entries()
        options = parse(arguments, entries)
        options.run(entries, options)
        return 0
    except Failure as failure:
        status, message = failure.status, str(failure)
    except KeyboardInterrupt:
        status, message = TRY_AGAIN, "interrupted; the partial file stays: start the same command again"
    except OSError as error:
        status, message = BAD_DATA, f"{error.filename or 'output'}: {error.strerror or error}"
    print(f"get_data: error: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
