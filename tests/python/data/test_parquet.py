"""scripts/parquet_to_jsonl.py converts Parquet files, and `dtopp prepare text` refers to it if it is given
one."""

import gzip
import json
import subprocess
import sys

import pytest
import tiny_run
from needs import needs_program
from refusal import assert_refused

SCRIPT = tiny_run.ROOT / "scripts/parquet_to_jsonl.py"
TEXTS = ["plain", "lines\nand \"quotes\"\t\\", "ünïcödé 漢字 \u2028 \U0001f600", None, "", "x" * 100_000]


def convert(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=120)


@pytest.fixture
def parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")

    def write(name, texts, column="text"):
        table = arrow.table({column: arrow.array(texts, arrow.string()), "id": list(range(len(texts)))})
        pq.write_table(table, tmp_path / name, row_group_size=2)
        return tmp_path / name
    return write


def read(path):
    """The texts of a JSONL file, whose last line must be complete."""
    if path.suffix == ".zst":
        file = pytest.importorskip("pyarrow").input_stream(path, compression="zstd")
    else:
        file = gzip.open(path) if path.suffix == ".gz" else open(path, "rb")
    with file:
        lines = file.read().split(b"\n")
    assert lines.pop() == b""
    return [json.loads(line)["text"] for line in lines]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_rows_of_all_files_come_in_order(parquet, tmp_path, ending):
    first, second = parquet("a.parquet", TEXTS), parquet("b.parquet", [f"row {i}" for i in range(3000)])
    output = tmp_path / f"out{ending}"
    done = convert(first, second, "--output", output)
    assert done.returncode == 0, done.stderr
    assert read(output) == [text for text in TEXTS if text] + [f"row {i}" for i in range(3000)]
    assert "3004 documents, 2 rows" in done.stderr


def test_what_does_not_fit_is_one_line_and_leaves_nothing(parquet, tmp_path):
    file = parquet("a.parquet", ["x"], column="content")
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(file.read_bytes()[:-9])
    output = tmp_path / "out.jsonl"
    for arguments, status, names in [((file,), 2, ["a.parquet", "'text'", "content, id"]),
                                     ((file, "--column", "id"), 2, ["a.parquet", "int64"]),
                                     ((broken,), 3, "broken.parquet"), ((tmp_path / "none.parquet",), 3, "none.parquet")]:
        assert_refused(convert(*arguments, "--output", output), status, names, begins="parquet_to_jsonl: ")
    assert convert(file, "--column", "content", "--output", tmp_path / "out.txt").returncode == 2
    assert not output.exists() and sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "broken.parquet"]
    assert convert(file, "--column", "content", "--output", output).returncode == 0
    assert read(output) == ["x"]


@needs_program
def test_prepare_names_the_converter(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    tokenizer = tiny_run.ROOT / "assets/tokenizer/gpt-neox-20b.tokenizer.json"
    done = tiny_run.dtopp("prepare", "text", tmp_path / "a.parquet", "--tokenizer", tokenizer, "--output", tmp_path / "tokens")
    assert_refused(done, 2, ["a.parquet", "scripts/parquet_to_jsonl.py"])
    assert not (tmp_path / "tokens").exists()
