"""Tests `dtopp prepare text` against readers of Megatron's format and Hugging Face `tokenizers`, through the
command line."""

import gzip
import json
import pathlib
import signal
import struct
import subprocess
import time

import numpy as np
import pytest
import start
import tiny_run
from corpus import documents
from manifests import contents, sealed, times
from refusal import assert_refused
from tiny_run import ROOT
from tokenizers import Tokenizer

TOKENIZER = ROOT / "assets/tokenizer/gpt-neox-20b.tokenizer.json"
TEXT = ROOT / "assets/text"
DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float64, 7: np.float32, 8: np.uint16}


def read_megatron(prefix):
    """The documents, read from the layout of megatron/core/datasets/indexed_dataset.py (_IndexReader)."""
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, bounds = struct.unpack("<QBQQ", index[9:34])
    assert version == 1
    offset = 34
    lengths = np.frombuffer(index, np.int32, sequences, offset)
    offset += lengths.nbytes
    pointers = np.frombuffer(index, np.int64, sequences, offset)
    offset += pointers.nbytes
    document_bounds = np.frombuffer(index, np.int64, bounds, offset)
    assert offset + document_bounds.nbytes == len(index)
    assert document_bounds.tolist() == list(range(sequences + 1))
    tokens = pathlib.Path(f"{prefix}.bin").read_bytes()
    read = [np.frombuffer(tokens, DTYPES[code], length, pointer) for length, pointer in zip(lengths, pointers)]
    assert sum(part.nbytes for part in read) == len(tokens)
    return DTYPES[code], read


def command(binary, inputs, output, *options):
    return [binary, "prepare", "text", *inputs, "--tokenizer", TOKENIZER, "--output", output, *options]


def prepare(binary, inputs, output, *options, check=True):
    done = start.run(command(binary, inputs, output, *options), capture_output=True, text=True)
    if check:
        assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def reference():
    return Tokenizer.from_file(str(TOKENIZER))


def assert_holds(folder, texts, reference):
    dtype, read = read_megatron(folder / "tokens")
    assert dtype == np.uint16
    end = reference.token_to_id("<|endoftext|>")
    expected = [e.ids + [end] for e in reference.encode_batch(texts, add_special_tokens=False)]
    assert len(read) == len(expected)
    for i, (ours, theirs) in enumerate(zip(read, expected)):
        assert ours.tolist() == theirs, f"document {i}"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["about"]["documents"] == len(texts)
    assert manifest["about"]["tokens"] == sum(map(len, expected))
    assert manifest["about"]["max_token"] == max(map(max, expected))
    assert manifest["about"]["job"]["vocab_size"] == 1 + max(reference.get_vocab(with_added_tokens=True).values())


def test_shipped_text_gives_the_ids_of_hugging_face(dtopp_binary, tmp_path, reference):
    sources = [TEXT / "novels-validation.jsonl.zst", TEXT / "novels-train.jsonl.zst"]
    prepare(dtopp_binary, sources, tmp_path / "out", "--workers", "3")
    assert_holds(tmp_path / "out", [text for path in sources for text in documents(path)], reference)


def test_full_text_gives_the_ids_of_hugging_face(dtopp_binary, dtopp_data, tmp_path, reference):
    source = dtopp_data / "data/text/validation.jsonl.zst"
    prepare(dtopp_binary, [source], tmp_path / "out")
    assert_holds(tmp_path / "out", [text.removeprefix("\ufeff") for text in documents(source)], reference)


def test_hard_documents_in_every_kind_of_file(dtopp_binary, tmp_path, reference):
    texts = ["a\r\nb", "x<|endoftext|>y", "", " ", "\n" * 50, "\u0000", "e\u0301\u212b", "👩\u200d👩\u200d👧" * 9,
             "\u2028\u0085", "z" * 100000, "", "last"]
    lines = "".join(json.dumps({"id": i, "text": text}, ensure_ascii=i % 2 == 0) + "\r\n" * (i % 3 == 0)
                    + "\n" * (i % 3 != 0) for i, text in enumerate(texts)).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines[:77]) + gzip.compress(lines[77:]))
    (tmp_path / "c.txt").write_bytes("whole\r\nfile".encode())
    prepare(dtopp_binary, [tmp_path / name for name in ("a.jsonl", "c.txt", "b.jsonl.gz")], tmp_path / "out")
    some = [text for text in texts if text]
    assert_holds(tmp_path / "out", some + ["whole\r\nfile"] + some, reference)


def test_manifest_checksums_are_those_of_xxhash(dtopp_binary, tmp_path):
    prepare(dtopp_binary, [TEXT / "novels-validation.jsonl.zst"], tmp_path / "out")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert sorted(manifest["files"]) == ["tokenizer.json", "tokens.bin", "tokens.idx"]
    for name, entry in manifest["files"].items():
        assert entry["size"] == (tmp_path / "out" / name).stat().st_size
    assert manifest["files"]["tokenizer.json"]["xxh3_128"] == manifest["about"]["job"]["tokenizer_hash"]
    assert (tmp_path / "out/tokenizer.json").read_bytes() == TOKENIZER.read_bytes()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_stopped_and_started_again_gives_the_same_bytes(dtopp_binary, tmp_path, stop):
    sources = [TEXT / "novels-train.jsonl.zst"] * 3
    prepare(dtopp_binary, sources, tmp_path / "whole")
    for delay in [0.02, 0.3, 0.5, 0.6, 0.7, 0.8]:
        process = subprocess.Popen(command(dtopp_binary, sources, tmp_path / "out", "--workers", "1"),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(delay)
        process.send_signal(stop)
        errors = process.communicate()[1]
        # A signal before the handlers are installed ends the process as usual. A signal after the end has no
        # effect.
        assert process.returncode in (75, -stop, 0), errors
    done = prepare(dtopp_binary, sources, tmp_path / "out", "--workers", "2")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    written = times(tmp_path / "out")
    assert prepare(dtopp_binary, sources, tmp_path / "out").stdout == done.stdout
    assert times(tmp_path / "out") == written


@pytest.mark.parametrize(
    "make, status, named",
    [
        (lambda p: [p / "missing.jsonl"], 3, "missing.jsonl"),
        (lambda p: [p / "bad.jsonl"], 3, "bad.jsonl: line 2"),
        (lambda p: [p / "cut.jsonl.zst"], 3, "cut.jsonl.zst: byte"),
        (lambda p: [p / "a.csv"], 3, "a.csv"),
        (lambda p: [p / "empty.txt"], 3, "empty.txt: no document has text"),
        (lambda p: [p], 3, "regular file"),
        (lambda p: [], 2, "files"),
        (lambda p: [p / "good.jsonl", "--workers", "0"], 2, "workers"),
        (lambda p: [p / "good.jsonl", "--tokenizr", "x"], 2, "tokenizr"),
    ],
)
def test_bad_input_is_one_line_and_the_right_status(dtopp_binary, tmp_path, make, status, named):
    (tmp_path / "good.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": }\n')
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "a.csv").write_bytes(b"text of another encoding: \xe9")
    (tmp_path / "cut.jsonl.zst").write_bytes((TEXT / "novels-validation.jsonl.zst").read_bytes()[:5000])
    done = prepare(dtopp_binary, make(tmp_path), tmp_path / "out", check=False)
    assert_refused(done, status, named)
    assert done.stdout == ""


def test_an_output_that_cannot_be_written(dtopp_binary, tmp_path):
    (tmp_path / "good.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "file").write_text("not a folder")
    done = prepare(dtopp_binary, [tmp_path / "good.jsonl"], tmp_path / "file/out", check=False)
    assert_refused(done, 3, tmp_path / "file")


def test_a_missing_tokenizer_is_named(dtopp_binary, tmp_path):
    (tmp_path / "good.jsonl").write_text('{"text": "a"}\n')
    done = start.run([dtopp_binary, "prepare", "text", tmp_path / "good.jsonl", "--tokenizer", tmp_path / "no.json",
                      "--output", tmp_path / "out"], capture_output=True, text=True)
    assert_refused(done, 3, "no.json")


@pytest.mark.parametrize("foreign", ["progress.json", "manifest.json", "thesis.tex"])
def test_a_folder_of_another_program_is_left_as_it_is(dtopp_binary, tmp_path, foreign):
    (tmp_path / "good.jsonl").write_text('{"text": "a"}\n')
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / foreign).write_text('{"made by": "another program"}')
    (folder / ".tmp-draft").write_text("unsaved")
    before = contents(folder)
    done = prepare(dtopp_binary, [tmp_path / "good.jsonl"], folder, check=False)
    assert_refused(done, 2, folder)
    assert foreign in done.stderr or ".tmp-draft" in done.stderr  # whichever the folder lists first
    assert "delete" not in done.stderr
    assert contents(folder) == before


def note_as_verified(folder):
    """Writes a record that lists the folder's files, in their present state, as verified."""
    files = json.loads((folder / "manifest.json").read_text())["files"]
    status = {name: (folder / name).stat() for name in files}
    about = {name: f"{s.st_dev} {s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}" for name, s in status.items()}
    text = '{\n  "format": "dtopp verified files 2",\n  "about": ' + json.dumps(about) + ',\n  "files": ' \
        + json.dumps(files) + ",\n"
    (folder / ".verified.json").write_text(sealed(text))


def test_training_reads_known_files_again_only_to_verify_them(dtopp_binary, tmp_path):
    (tmp_path / "source.txt").write_text("The fog came down at noon, and with it the silence. " * 200)
    prepare(dtopp_binary, [tmp_path / "source.txt"], tmp_path / "tokens")
    config = tiny_run.make(tmp_path)
    arguments = ["train", config, "model.vocab_size=50304", f"data.train=[{tmp_path / 'tokens'}]", "data.validation=[]",
                 "training.steps=2", "optimizer.warmup_steps=1"]
    tokens = bytearray((tmp_path / "tokens/tokens.bin").read_bytes())
    tokens[100] ^= 1
    (tmp_path / "tokens/tokens.bin").write_bytes(tokens)
    assert_refused(tiny_run.dtopp(*arguments), 3, "tokens.bin")
    note_as_verified(tmp_path / "tokens")  # as if the device had flipped the bit: no write
    assert_refused(tiny_run.dtopp(*arguments, "--verify"), 3, "tokens.bin")
    done = tiny_run.dtopp(*arguments)
    assert done.returncode == 0, done.stderr


def test_more_files_of_data_than_may_be_open_by_default(tmp_path):
    config = tiny_run.make(tmp_path)
    (tmp_path / "files").mkdir()
    for i in range(100):
        tiny_run.write_tokens(tmp_path / f"files/{i}.npy", 100, seed=i)
    command = f"ulimit -S -n 64; exec {tiny_run.BINARY} train {config} training.steps=4 data.train=[{tmp_path}/files]"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_key_divides_text_into_a_folder_per_value(dtopp_binary, tmp_path, reference):
    texts = {"books": [f"The book number {i}." for i in range(40)], "web": [f"Page {i} of a web site" for i in range(30)]}
    lines = [json.dumps({"source": name, "text": text}) for pair in zip(texts["books"], texts["web"])
             for name, text in zip(texts, pair)]
    lines += [json.dumps({"text": text, "source": "books"}) for text in texts["books"][30:]]
    (tmp_path / "all.jsonl").write_text("\n".join([*lines[:7], "", *lines[7:]]) + "\n")
    prepare(dtopp_binary, [tmp_path / "all.jsonl"], tmp_path / "out", "--by", "source", "--workers", "2")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["books", "web"]
    for name, own in texts.items():
        assert_holds(tmp_path / "out" / name, own, reference)
    again = prepare(dtopp_binary, [tmp_path / "all.jsonl"], tmp_path / "out", "--by", "source")
    assert again.stderr.count("already complete") == 2
    other = prepare(dtopp_binary, [tmp_path / "all.jsonl"], tmp_path / "out/web", check=False)
    assert_refused(other, 2, "out/web")


@pytest.mark.parametrize("line, status, names", [
    ('{"text": "a"}', 3, ["line 2", "source"]), ('{"text": "a", "source": 3}', 3, ["line 2", "source"]),
    ('{"text": "a", "source": "../x"}', 3, ["line 2", "../x"]), ('{"text": "a", "source": ""}', 3, ["line 2", "source"])])
def test_a_value_that_cannot_name_a_folder_is_refused(dtopp_binary, tmp_path, line, status, names):
    (tmp_path / "all.jsonl").write_text('{"text": "a", "source": "web"}\n' + line + "\n")
    done = prepare(dtopp_binary, [tmp_path / "all.jsonl"], tmp_path / "out", "--by", "source", check=False)
    assert_refused(done, status, names)
    assert not (tmp_path / "out").exists()


def test_plain_text_has_no_keys_to_divide_it_by(dtopp_binary, tmp_path):
    (tmp_path / "all.txt").write_text("text")
    done = prepare(dtopp_binary, [tmp_path / "all.txt"], tmp_path / "out", "--by", "source", check=False)
    assert_refused(done, 2, ["--by", "all.txt"])
