#!/usr/bin/env python3
"""Converts Parquet files to JSONL for `dtopp prepare text`: one document per row, from a text column.

Rows are read and written in chunks, so memory does not grow with the files. Rows without text are left out
and counted. The output appears when it is complete. Its suffix (.jsonl, .jsonl.gz, .jsonl.zst) determines the
compression. Needs pyarrow.

Usage: parquet_to_jsonl.py FILE.parquet... --output FILE.jsonl[.gz|.zst] [--column text]
"""

import argparse
import json
import os
import pathlib
import sys

try:
    import pyarrow
    import pyarrow.parquet
except ImportError:
    sys.exit("parquet_to_jsonl: needs pyarrow: pip install pyarrow")

ROWS = 1024  # per chunk
COMPRESSION = {".jsonl": None, ".jsonl.gz": "gzip", ".jsonl.zst": "zstd"}
USAGE, BAD_DATA = 2, 3


def fail(status, message):
    print(f"parquet_to_jsonl: {message}", file=sys.stderr)
    sys.exit(status)


def open_column(path, column):
    """Opens the file after checking that it has the column and that it holds text."""
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        fail(BAD_DATA, f"{path}: cannot be read: {error}".splitlines()[0])
    schema = file.schema_arrow
    if column not in schema.names:
        fail(USAGE, f"{path}: no column {column!r}; it has {', '.join(schema.names)} (--column)")
    kind = schema.field(column).type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        fail(USAGE, f"{path}: column {column!r} holds {kind}, not text (--column)")
    return file


def documents(path, column):
    """Yields the column's values in row order."""
    try:
        for batch in open_column(path, column).iter_batches(ROWS, columns=[column]):
            yield from batch.column(0).to_pylist()
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        fail(BAD_DATA, f"{path}: damaged: {error}".splitlines()[0])


def convert(paths, column, output, compression):
    """Writes all rows. Returns the number of rows and the number of rows without text."""
    rows = empty = 0
    with pyarrow.output_stream(output, compression=compression) as out:
        for path in paths:
            for text in documents(path, column):
                if not text:
                    empty += 1
                    continue
                rows += 1
                out.write(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")
    return rows, empty


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--column", default="text")
    options = parser.parse_args()
    ending = next((ending for ending in COMPRESSION if options.output.name.endswith(ending)), None)
    if ending is None:
        fail(USAGE, f"{options.output}: its name must end in {', '.join(COMPRESSION)}")
    for path in options.files:
        open_column(path, options.column)
    partial = options.output.with_name(f".{options.output.name}.{os.getpid()}")
    try:
        rows, empty = convert(options.files, options.column, partial, COMPRESSION[ending])
        partial.rename(options.output)
    except OSError as error:
        fail(BAD_DATA, f"{options.output}: cannot be written: {error}")
    finally:
        partial.unlink(missing_ok=True)
    print(f"{options.output}: {rows} documents, {empty} rows without text left out", file=sys.stderr)


if __name__ == "__main__":
    main()
