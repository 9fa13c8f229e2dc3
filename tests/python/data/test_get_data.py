"""scripts/get_data.py on a web server of this test: no real source is contacted.

The sources are made-up rows in the form of the real ones. Where DTOPP_DATA holds the real task files, they are
brought back into their authors' forms and converted again. All tests share its server."""

import contextlib
import csv
import fcntl
import hashlib
import http.server
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
import zlib

import pytest
import tiny_run
from corpus import decompress

SCRIPTS = tiny_run.ROOT / "scripts"
TEXT = b"".join(b"line %d of the made-up text\n" % i for i in range(40_000))  # about 1 MB
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def load_script(path):
    spec = importlib.util.spec_from_file_location("get_data", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sha256(content):
    return hashlib.sha256(content).hexdigest()


class Site:
    """A web server with `files`. `plan` changes the answers to the next requests, one word or tuple per request."""

    def __init__(self):
        self.files = {}
        self.plan = []
        self.requests = []  # path and Range header
        self.ranges = True
        self.release = threading.Event()
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                site.answer(self)

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, handler):
        wanted = handler.headers.get("Range")
        self.requests.append((handler.path, wanted))
        kind, *detail = self.plan.pop(0) if self.plan else ("whole",)
        content = self.files.get(handler.path)
        if kind == "status" or content is None:
            status, headers = detail if kind == "status" else (404, {})
            return self.send(handler, status, headers, b"")
        etag = f'"{sha256(content)[:8]}"'
        start = 0
        if wanted and self.ranges and handler.headers["If-Range"] == etag:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
        headers = {"ETag": etag} | ({"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {})
        body = content[start:]
        end = detail[0] if kind in ("cut", "stall") else len(body)
        self.send(handler, 206 if start else 200, headers, body[:end], len(body))
        if kind == "stall":
            self.release.wait(10)
        handler.close_connection = True

    @staticmethod
    def send(handler, status, headers, body, length=None):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        with contextlib.suppress(OSError):
            handler.wfile.write(body)


@pytest.fixture
def site(monkeypatch):
    site = Site()
    for variable in ("DTOPP_DATA_GIT", "DTOPP_DATA_HUB", "DTOPP_DATA_FILES"):
        monkeypatch.setenv(variable, site.address)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield site
    site.release.set()
    site.server.shutdown()
    site.server.server_close()


class Command:
    """get_data.py with made-up sources, in this process or in another one."""

    def __init__(self, folder, site, monkeypatch):
        self.folder, self.site = folder, site
        shutil.copy(SCRIPTS / "get_data.py", folder)
        self.script = load_script(folder / "get_data.py")
        monkeypatch.setattr(self.script, "FIRST_WAIT", 0.01)
        monkeypatch.setattr(self.script, "STALL", 0.3)
        monkeypatch.chdir(folder)
        self.sources = {"repositories": {"r": {"kind": "hub", "id": "someone/some", "revision": COMMIT}}, "data": {}}

    def offer(self, name, content, group="text", served=None, **fields):
        """Adds an entry of one file, whose server sends `served`."""
        file = {"repository": "r", "path": f"deep/{name}.jsonl", "size": len(content), "sha256": sha256(content)}
        self.sources["data"][name] = {"group": group, "purpose": "tests", "license": "CC0", "citation": "Someone: Some. 2024",
                                      "fetched": None, "files": [file]} | fields
        (self.folder / "data_sources.json").write_text(json.dumps(self.sources))
        path = f"/datasets/someone/some/resolve/{COMMIT}/deep/{name}.jsonl"
        self.site.files[path] = content if served is None else served
        return path

    def run(self, *arguments):
        """Exit status, what it prints, and its error message."""
        handler = signal.getsignal(signal.SIGTERM)
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            status = self.script.main([str(argument) for argument in arguments])
        signal.signal(signal.SIGTERM, handler)
        error = re.sub("^get_data: .*; next try in .*\n", "", err.getvalue(), flags=re.M)
        assert (status == 0) == (error == "") and error.count("\n") <= 1 and re.match("get_data: error: |$", error)
        return status, out.getvalue(), error


@pytest.fixture
def command(tmp_path, site, monkeypatch):
    return Command(tmp_path, site, monkeypatch)


def fetched(name="corpus"):
    return pathlib.Path(f"data/raw/{name}/{name}.jsonl")


def test_fetches_once_and_credits_the_source(command, site):
    path = command.offer("corpus", TEXT, next="dtopp prepare text FOLDER/*.jsonl")
    status, out, _ = command.run("text", "corpus")
    assert status == 0 and fetched().read_bytes() == TEXT
    assert "next: dtopp prepare text data/raw/corpus/*.jsonl" in out
    credits = (fetched().parent / "SOURCES.md").read_text()
    for fact in ("corpus.jsonl", "someone/some", COMMIT, "CC0", "Someone: Some. 2024", sha256(TEXT)):
        assert fact in credits
    status, out, _ = command.run("text", "corpus")
    assert status == 0 and "already here" in out and site.requests == [(path, None)]
    assert sorted(os.listdir(fetched().parent)) == [".get_data.lock", "SOURCES.md", "corpus.jsonl"]


def test_a_cut_download_continues_where_it_ended(command, site):
    path = command.offer("corpus", TEXT)
    site.plan = [("cut", 300_000), ("cut", 200_000)]
    assert command.run("text", "corpus")[0] == 0
    assert fetched().read_bytes() == TEXT
    assert site.requests == [(path, None), (path, "bytes=300000-"), (path, "bytes=500000-")]


def test_a_server_without_ranges_starts_over(command, site):
    command.offer("corpus", TEXT)
    site.ranges = False
    site.plan = [("cut", 300_000)]
    assert command.run("text", "corpus")[0] == 0
    assert fetched().read_bytes() == TEXT and len(site.requests) == 2


def test_parts_of_two_versions_are_never_joined(command, site):
    path = command.offer("corpus", TEXT, served=TEXT.replace(b"line", b"LINE"))
    site.plan = [("cut", 300_000)] + [("status", 500, {})] * 4
    assert command.run("text", "corpus")[0] == 75
    site.files[path] = TEXT
    assert command.run("text", "corpus")[0] == 0
    assert site.requests[-1] == (path, "bytes=300000-") and fetched().read_bytes() == TEXT


def test_a_file_that_grew_too_long_starts_over(command, site):
    path = command.offer("corpus", TEXT)
    site.plan = [("cut", 300_000)] + [("status", 500, {})] * 4
    assert command.run("text", "corpus")[0] == 75
    with open(fetched().with_name("corpus.jsonl.part"), "ab") as part:
        part.write(TEXT)
    site.plan = [("status", 416, {})]
    assert command.run("text", "corpus")[0] == 0
    assert site.requests[-1] == (path, None) and fetched().read_bytes() == TEXT


def test_a_silent_server_counts_as_a_lost_connection(command, site):
    path = command.offer("corpus", TEXT)
    site.plan = [("stall", 300_000)]
    began = time.monotonic()
    assert command.run("text", "corpus")[0] == 0
    assert time.monotonic() - began < 5
    assert site.requests == [(path, None), (path, "bytes=300000-")] and fetched().read_bytes() == TEXT


def test_retry_after_is_waited_for_and_other_waits_grow(command, site, monkeypatch):
    command.offer("corpus", TEXT)
    waits = []
    monkeypatch.setattr(command.script.time, "sleep", waits.append)
    site.plan = [("status", 500, {}), ("status", 429, {"Retry-After": "7"}), ("status", 503, {"Retry-After": "9999"}),
                 ("status", 503, {"Retry-After": "soon"})]
    assert command.run("text", "corpus")[0] == 0
    assert waits == pytest.approx([0.01, 7, 300, 0.08])


def test_five_tries_then_75_and_the_partial_file_stays(command, site):
    command.offer("corpus", TEXT)
    site.plan = [("cut", 100)] * 5
    status, _, error = command.run("text", "corpus")
    assert status == 75 and len(site.requests) == 5
    for words in ("corpus.jsonl", "of 1.", "after 5 tries; start the same command again", "deep/corpus.jsonl of someone/some",
                  COMMIT, "--from"):
        assert words in error
    assert fetched().with_name("corpus.jsonl.part").stat().st_size == 500
    site.server.shutdown()
    site.server.server_close()
    assert command.run("text", "corpus")[0] == 75


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_a_refusal_is_final(command, site, code):
    command.offer("corpus", TEXT)
    site.plan = [("status", code, {})]
    status, _, error = command.run("text", "corpus")
    assert status == 3 and len(site.requests) == 1 and str(code) in error and site.address in error


def test_a_wrong_byte_leaves_a_bad_file_and_names_both_digests(command):
    wrong = TEXT.replace(b"line 7 ", b"lime 7 ")
    path = command.offer("corpus", TEXT, served=wrong)
    status, _, error = command.run("text", "corpus")
    assert status == 3 and sha256(TEXT) in error and sha256(wrong) in error
    assert not fetched().exists() and fetched().with_name("corpus.jsonl.bad").read_bytes() == wrong
    command.site.files[path] = TEXT
    assert command.run("text", "corpus")[0] == 0 and fetched().read_bytes() == TEXT


def test_a_wrong_size_is_noticed_before_the_download(command):
    command.offer("corpus", TEXT, served=TEXT + b"more\n")
    status, _, error = command.run("text", "corpus")
    assert status == 3 and str(len(TEXT)) in error and str(len(TEXT) + 5) in error
    assert not fetched().with_name("corpus.jsonl.part").exists()


def test_a_file_of_the_same_name_is_not_overwritten(command, site):
    command.offer("corpus", TEXT)
    fetched().parent.mkdir(parents=True)
    fetched().write_text("my own\n")
    status, _, error = command.run("text", "corpus")
    assert status == 3 and "move it away" in error and fetched().read_text() == "my own\n" and not site.requests


def test_redirects_lead_to_web_servers_only_and_never_out_of_https(command, site):
    path = command.offer("corpus", TEXT)
    site.files["/elsewhere"] = TEXT
    site.plan = [("status", 302, {"Location": f"{site.address}/elsewhere"}), ("cut", 1000),
                 ("status", 302, {"Location": f"{site.address}/elsewhere"})]
    assert command.run("text", "corpus")[0] == 0
    assert site.requests == [(path, None), ("/elsewhere", None), (path, "bytes=1000-"), ("/elsewhere", "bytes=1000-")]
    fetched().unlink()
    site.plan = [("status", 302, {"Location": "file:///etc/hostname"})]
    status, _, error = command.run("text", "corpus")
    assert status == 3 and "file:///etc/hostname" in error
    handler = command.script.Redirects()
    secure = urllib.request.Request("https://one.test/file")
    with pytest.raises(command.script.Failure, match="http://two.test/file"):
        handler.redirect_request(secure, None, 302, "Found", {}, "http://two.test/file")
    assert handler.redirect_request(secure, None, 302, "Found", {}, "https://two.test/file").full_url == "https://two.test/file"


@pytest.mark.parametrize("number, status", [(signal.SIGKILL, -9), (signal.SIGTERM, 75)])
def test_an_interrupted_process_continues_to_the_same_bytes(command, site, number, status):
    path = command.offer("corpus", TEXT)
    site.plan = [("stall", 300_000)]
    process = subprocess.Popen([sys.executable, "get_data.py", "text", "corpus"], stderr=subprocess.PIPE, text=True)
    part = fetched().with_name("corpus.jsonl.part")
    deadline = time.monotonic() + 20
    while not part.exists() or part.stat().st_size < 300_000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    error = process.communicate()[1]
    assert process.returncode == status
    if number == signal.SIGTERM:
        assert error == "get_data: error: interrupted; the partial file stays: start the same command again\n"
    assert command.run("text", "corpus")[0] == 0
    assert site.requests == [(path, None), (path, "bytes=300000-")] and fetched().read_bytes() == TEXT


def test_a_complete_part_needs_no_request(command, site):
    command.offer("corpus", TEXT)
    site.plan = [("cut", 100)] * 5
    assert command.run("text", "corpus")[0] == 75
    fetched().with_name("corpus.jsonl.part").write_bytes(TEXT)
    assert command.run("text", "corpus")[0] == 0 and len(site.requests) == 5


def test_one_command_at_a_time_and_enough_disk(command, monkeypatch):
    command.offer("corpus", TEXT)
    fetched().parent.mkdir(parents=True)
    with open(fetched().parent / ".get_data.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status, _, error = command.run("text", "corpus")
    assert status == 75 and "another get_data.py" in error
    monkeypatch.setattr(command.script.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 10, 1000))
    status, _, error = command.run("text", "corpus")
    assert status == 3 and "MB are needed" in error


def test_carried_files_pass_the_same_checks_without_a_network(command, site):
    command.offer("corpus", TEXT)
    carried = command.folder / "carried"
    carried.mkdir()
    status, _, error = command.run("text", "corpus", "--from", carried)
    assert status == 3 and "no such file" in error and "deep/corpus.jsonl of someone/some" in error
    (carried / "corpus.jsonl").write_bytes(TEXT.replace(b"line 7 ", b"lime 7 "))
    assert command.run("text", "corpus", "--from", carried)[0] == 3 and not fetched().exists()
    (carried / "corpus.jsonl").write_bytes(TEXT)
    assert command.run("text", "corpus", "--from", carried, "--output", "here")[0] == 0
    assert pathlib.Path("here/corpus.jsonl").read_bytes() == TEXT and not site.requests


def test_shards_come_one_by_one(command, site):
    parts = [TEXT[:1000], TEXT[1000:3000], TEXT[3000:6000]]
    files = [{"repository": "r", "path": f"{i}.jsonl", "sha256": sha256(part)} for i, part in enumerate(parts)]
    command.offer("corpus", b"", files=files, shards=True)
    site.files |= {f"/datasets/someone/some/resolve/{COMMIT}/{i}.jsonl": part for i, part in enumerate(parts)}
    assert command.run("text", "corpus")[0] == 0
    assert command.run("text", "corpus", "--shards", "2")[0] == 0
    assert [path[-7:] for path, _ in site.requests] == ["0.jsonl", "1.jsonl"]
    assert command.run("verify", "corpus")[0] == 0
    assert command.run("text", "corpus", "--shards", "4")[0] == 2


def test_verify_and_list_describe_what_is_here(command):
    for name in ("one", "two"):
        command.offer(name, TEXT, group="tasks")
    assert command.run("tasks", "one")[0] == 0
    status, out, _ = command.run("verify", "--all")
    assert status == 0 and out == "data/eval/one.jsonl: as recorded\n"
    assert [line.split()[2] for line in command.run("list")[1].splitlines()[1:3]] == ["1", "0"]
    status, out, _ = command.run("verify", "one", "two")
    assert status == 3 and "data/eval: holds 0 of 1 files of two" in out
    assert command.run("tasks")[0] == 0
    assert command.run("verify", "one", "two")[0] == 0
    pathlib.Path("data/eval/two.jsonl").write_bytes(TEXT[:-1] + b" ")
    status, out, _ = command.run("verify", "--all")
    assert status == 3 and f"not the recorded {sha256(TEXT)}" in out


@pytest.mark.parametrize("arguments", ["", "fetch", "text", "text corpus other", "text other", "tasks corpus", "images corpus",
                                       "list corpus", "verify", "verify corpus --all", "text corpus --shards x",
                                       "text corpus --shards 2", "text corpus --authors", "verify corpus --from .",
                                       "text corpus --fast"])
def test_wrong_calls_exit_2(command, site, arguments):
    command.offer("corpus", TEXT)
    assert command.run(*arguments.split())[0] == 2 and not site.requests


def test_a_folder_that_cannot_be_written_exits_3(command):
    command.offer("corpus", TEXT)
    pathlib.Path("occupied").write_text("")
    status, _, error = command.run("text", "corpus", "--output", "occupied")
    assert status == 3 and "occupied" in error


# Conversions.

MMLU_ROWS = {
    "zoology": [["Which word has\na line break?", "none", "this, one", 'the "quoted"', " spaced ", "B"]],
    "algebra": [["1 + 1?", "1", "2", "3", "4", "B"], ["Ünï?", "a", "b", "c", "d", "D"]],
}
MMLU_ITEMS = [
    {"query": "Question: 1 + 1?\nChoices\nA. 1\nB. 2\nC. 3\nD. 4", "gold": 1, "choices": list("ABCD"), "category": "algebra"},
    {"query": "Question: Ünï?\nChoices\nA. a\nB. b\nC. c\nD. d", "gold": 3, "choices": list("ABCD"), "category": "algebra"},
    {"query": 'Question: Which word has\na line break?\nChoices\nA. none\nB. this, one\nC. the "quoted"\nD.  spaced ',
     "gold": 1, "choices": list("ABCD"), "category": "zoology"},
]
HELLASWAG_ROWS = [
    {"ind": 1, "activity_label": "Baking", "ctx_a": "A cook opens an oven.", "ctx_b": "she", "ctx": "A cook opens an oven. she",
     "split": "val", "split_type": "indomain", "source_id": "activitynet~1", "label": 2,
     "endings": ["sings.", "sleeps.", "takes out a cake.", "flies [away]."]},
    {"ind": 2, "activity_label": "Home", "ctx_a": "[header] How to tidy [title] Start early. [step] Open a window.", "ctx_b": "",
     "ctx": "", "split": "val", "split_type": "zeroshot", "source_id": "wikihow~2", "label": "0",
     "endings": ["[substeps] Fold the sheets. Air them.", "Go out. [title] Come back.", "[step] Rest.", "A 1  2 [ b."]},
]
HELLASWAG_ITEMS = [
    {"query": "Baking: A cook opens an oven. She", "choices": ["sings.", "sleeps.", "takes out a cake.", "flies ."], "gold": 2},
    {"query": "Home: How to tidy. Start early. Open a window.",
     "choices": ["Fold the sheets. Air them.", "Go out.. Come back.", "Rest.", "A 1 2 [ b."], "gold": 0},
]


def lines_of(items):
    return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items).encode()


def mmlu_archive(path, rows):
    """The authors' archive, with files that are not test questions."""
    with tarfile.open(path, "w") as archive:
        for name, table in [("data/dev/algebra_dev.csv", [["0?", "0", "1", "2", "3", "A"]]), ("data/README.txt", [["x"]])] + \
                [(f"data/test/{subject}_test.csv", table) for subject, table in rows.items()]:
            text = io.StringIO(newline="")
            csv.writer(text, lineterminator="\n").writerows(table)
            info = tarfile.TarInfo(name)
            info.size = len(text.getvalue().encode())
            archive.addfile(info, io.BytesIO(text.getvalue().encode()))


def offer_task(command, name, source, items, original):
    """A task of which only git's digest of the original and the digest of its conversion are known."""
    blob = hashlib.sha1(b"blob %d\0" % len(original) + original).hexdigest()
    file = {"repository": "r", "path": f"deep/{name}.jsonl", "sha256": sha256(lines_of(items)), "blob": blob}
    command.offer(name, original, group="tasks", files=[file],
                  authors={"repository": "r", "path": source.name, "sha256": sha256(source.read_bytes()), "convert": name})
    command.site.files[f"/datasets/someone/some/resolve/{COMMIT}/{source.name}"] = source.read_bytes()


def authors_file(folder, name, rows=None):
    path = folder / f"authors-of-{name}"
    if name == "mmlu":
        mmlu_archive(path, rows or MMLU_ROWS)
    else:
        path.write_bytes(lines_of(rows or HELLASWAG_ROWS))
    return path


@pytest.mark.parametrize("name, items", [("mmlu", MMLU_ITEMS), ("hellaswag", HELLASWAG_ITEMS)])
def test_tasks_come_as_the_harness_has_them_or_from_their_authors(command, name, items):
    original = lines_of(reversed(items))
    offer_task(command, name, authors_file(command.folder, name), items, original)
    target = pathlib.Path(f"data/eval/{name}.jsonl")
    assert command.run("tasks")[0] == 0 and target.read_bytes() == original
    assert command.run("tasks", "--authors")[0] == 0 and target.read_bytes() == original
    target.unlink()
    assert command.run("tasks", "--authors")[0] == 0 and target.read_bytes() == lines_of(items)
    assert f"authors-of-{name} of someone/some" in (target.parent / "SOURCES.md").read_text()
    assert command.run("verify", name)[0] == 0


@pytest.mark.parametrize("name, items", [("mmlu", MMLU_ITEMS), ("hellaswag", HELLASWAG_ITEMS)])
def test_a_conversion_with_another_result_or_of_another_form_exits_3(command, name, items):
    offer_task(command, name, authors_file(command.folder, name), items[1:], b"")
    status, _, error = command.run("tasks", "--authors")
    assert status == 3 and f"data/eval/{name}.jsonl.bad" in error and not pathlib.Path(f"data/eval/{name}.jsonl").exists()
    shutil.rmtree("data")
    broken = {"zoology": [["two", "fields"]]} if name == "mmlu" else [{"ctx": "only"}]
    offer_task(command, name, authors_file(command.folder, name, broken), items, b"")
    status, _, error = command.run("tasks", "--authors")
    assert status == 3 and "not in the expected form" in error


def official_mmlu(items):
    """The CSV rows of items: the inverse of the conversion."""
    rows = {}
    for item in items:
        question, options = item["query"].removeprefix("Question: ").rsplit("\nChoices\nA. ", 1)
        a, rest = options.split("\nB. ", 1)
        b, rest = rest.split("\nC. ", 1)
        c, d = rest.split("\nD. ", 1)
        rows.setdefault(item["category"], []).append([question, a, b, c, d, "ABCD"[item["gold"]]])
    return dict(reversed(rows.items()))


def official_hellaswag(items):
    """Rows in the authors' fields. Their context ends with its last words in lower case."""
    rows = []
    for item in items:
        label, context = item["query"].replace("  ", "   ").split(": ", 1)
        starts = [match.end() for match in re.finditer(" ", context) if context[match.end():].capitalize() == context[match.end():]]
        start = starts[-1] if starts else len(context) + 1
        rows.append({"activity_label": label, "ctx_a": context[:max(0, start - 1)], "ctx_b": context[start:].lower(),
                     "endings": [choice.replace("  ", "   ") for choice in item["choices"]], "label": str(item["gold"])})
    return rows


@pytest.mark.parametrize("name, official", [("mmlu", official_mmlu), ("hellaswag", official_hellaswag)])
def test_the_real_items_come_back_from_their_authors_form(dtopp_data, tmp_path, name, official):
    real = decompress(dtopp_data / f"eval/data/{name}.jsonl.zst")
    items = [json.loads(line) for line in real.decode().split("\n") if line]
    script = load_script(SCRIPTS / "get_data.py")
    script.convert(authors_file(tmp_path, name, official(items)), tmp_path, name, script.load_entries()[name].files[0])
    assert (tmp_path / f"{name}.jsonl").read_bytes() == real


def cifar10_archive(path, records=20):
    """Batches in the form of CIFAR-10. Returns label and planes by name of the batch."""
    batches = {}
    with tarfile.open(path, "w:gz") as archive:
        for batch in ["data_batch_1", "data_batch_3", "test_batch"]:
            content = b"".join(bytes([i % 10]) + bytes((i * 7 + j * (len(batches) + 3)) % 256 for j in range(3072))
                               for i in range(records))
            batches[batch] = [content[start:start + 3073] for start in range(0, len(content), 3073)]
            for name, data in [(f"{batch}.bin", content), ("readme.html", b"<html>")]:
                info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return batches


def planes_of(picture):
    """Red, green and blue of a 32 x 32 PNG without filters, read as the format is specified."""
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and picture[16:29] == bytes([0, 0, 0, 32, 0, 0, 0, 32, 8, 2, 0, 0, 0])
    length = int.from_bytes(picture[33:37])
    assert picture[37:41] == b"IDAT" and picture[41 + length:45 + length] == zlib.crc32(picture[37:41 + length]).to_bytes(4)
    rows = zlib.decompress(picture[41:41 + length])
    pixels = b"".join(rows[row * 97 + 1:row * 97 + 97] for row in range(32) if rows[row * 97] == 0)
    return pixels[0::3] + pixels[1::3] + pixels[2::3]


def test_cifar10_becomes_tars_of_pictures_by_class(command, dtopp_binary):
    source = command.folder / "source.tar.gz"
    batches = cifar10_archive(source)
    content = source.read_bytes()
    file = {"repository": "r", "path": "deep/cifar10.jsonl", "sha256": sha256(content), "convert": "cifar10"}
    command.offer("cifar10", content, group="images", files=[file])
    assert command.run("images", "cifar10")[0] == 0
    folder = pathlib.Path("data/raw/cifar10")
    expected = {"train": [(0, batches["data_batch_1"]), (20000, batches["data_batch_3"])],
                "validation": [(0, batches["test_batch"])]}
    classes = command.script.CIFAR10_CLASSES
    for part, contents in expected.items():
        with tarfile.open(folder / f"{part}.tar") as archive:
            found = [(member.name, archive.extractfile(member).read()) for member in archive]
        records = [(first + i, record) for first, batch in contents for i, record in enumerate(batch)]
        assert [name for name, _ in found] == [f"{classes[record[0]]}/{number:05}.png" for number, record in records]
        assert [planes_of(picture) for _, picture in found] == [record[1:] for _, record in records]
        assert f"{part}.tar" in (folder / "SOURCES.md").read_text()
        done = tiny_run.dtopp("prepare", "images", folder / f"{part}.tar", "--output", folder / part)
        assert done.returncode == 0, done.stderr
        assert str(len(records)) in done.stdout + done.stderr
    first = (folder / "train.tar").read_bytes()
    (folder / "train.tar").unlink()
    assert command.run("images", "cifar10")[0] == 0 and (folder / "train.tar").read_bytes() == first


# The list of sources.


def test_every_source_is_pinned_and_credited():
    script = load_script(SCRIPTS / "get_data.py")
    entries = script.load_entries()
    assert [entry.group for entry in entries.values()].count("tasks") == 13
    for entry in entries.values():
        assert entry.group in ("tasks", "text", "images") and entry.license and entry.citation and entry.purpose
        assert entry.group == "tasks" or entry.next
        names = [file.name for file in entry.files]
        assert len(set(names)) == len(names)
        for file in [*entry.files, *([entry.authors] if entry.authors else [])]:
            assert file.sha256 is None or re.fullmatch("[0-9a-f]{64}", file.sha256)
            assert file.blob is None or re.fullmatch("[0-9a-f]{40}", file.blob)
            assert file.sha256 or file.blob
            assert file.convert is None or file.convert in script.CONVERSIONS
            assert file.size is None or file.size > 0
            repository = file.repository
            assert repository["kind"] in script.SERVERS and file.address.startswith("https://")
            assert repository["kind"] == "file" or re.fullmatch("[0-9a-f]{40}", repository["revision"])
            assert (repository["kind"] == "git") == ("githubusercontent" in file.address)


@pytest.mark.parametrize("name", ["svamp", "boolq", "copa"])
def test_digests_of_the_tasks_are_those_of_the_real_files(dtopp_data, tmp_path, name):
    script = load_script(SCRIPTS / "get_data.py")
    (tmp_path / "file").write_bytes(decompress(dtopp_data / f"eval/data/{name}.jsonl.zst"))
    assert script.mismatch(tmp_path / "file", script.load_entries()[name].files[0]) is None
