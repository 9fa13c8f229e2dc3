"""Writes assets/text/novels-{train,validation}.jsonl.zst, the text shipped with the repository, from the
novels of $DTOPP_DATA/data/text: all parts of each book listed here, in order and unchanged.

Usage: make_sample_text.py      (DTOPP_DATA defaults to ../shared; the bytes depend on the version of libzstd)
"""

import ctypes
import ctypes.util
import json
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = pathlib.Path(os.environ.get("DTOPP_DATA", ROOT.parent / "shared")) / "data/text"
TRAIN = ["Braddon_Audley_1862", "Burnett_Garden_1911", "Cbronte_Jane_1847", "Chesterton_Thursday_1908",
         "Conrad_Nostromo_1904", "Dickens_Expectations_1861", "Doyle_Lost_1912", "Eliot_Adam_1859",
         "Gaskell_Wives_1865", "Haggard_She_1887", "Hardy_Madding_1874", "James_Ambassadors_1903", "Kipling_Kim_1901",
         "Stevenson_Treasure_1883", "Trollope_Warden_1855", "Wcollins_Legacy_1889"]
VALIDATION = ["Chesterton_Innocence_1911", "Lee_Penelope_1903"]
LEVEL = 19

zstd = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
for function in ("ZSTD_getFrameContentSize", "ZSTD_decompress", "ZSTD_compress", "ZSTD_compressBound"):
    getattr(zstd, function).restype = ctypes.c_size_t


def read(path):
    """The objects of a .jsonl.zst file with one frame that states its size."""
    compressed = path.read_bytes()
    text = ctypes.create_string_buffer(zstd.ZSTD_getFrameContentSize(compressed, ctypes.c_size_t(len(compressed))))
    got = zstd.ZSTD_decompress(text, ctypes.c_size_t(len(text)), compressed, ctypes.c_size_t(len(compressed)))
    assert got == len(text), path
    return [json.loads(line) for line in text.raw.decode().split("\n") if line]


def write(path, objects):
    text = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in objects).encode()
    room = ctypes.create_string_buffer(zstd.ZSTD_compressBound(ctypes.c_size_t(len(text))))
    size = zstd.ZSTD_compress(room, ctypes.c_size_t(len(room)), text, ctypes.c_size_t(len(text)), LEVEL)
    assert size < len(room), path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(room.raw[:size])
    print(f"{path.relative_to(ROOT)}: {len(objects)} documents, {len(text):,} bytes, {size:,} compressed")


def choose(paths, books):
    parts = {}
    for path in paths:
        for item in read(path):
            book, _, part = item["id"].partition("#")
            if item["source"] == "novels" and book in books:
                parts[books.index(book), int(part)] = {key: item[key] for key in ("text", "id", "source")}
    assert {book for book, _ in parts} == set(range(len(books)))
    return [parts[place] for place in sorted(parts)]


write(ROOT / "assets/text/novels-train.jsonl.zst", choose(sorted(DATA.glob("train-*.jsonl.zst")), TRAIN))
write(ROOT / "assets/text/novels-validation.jsonl.zst", choose([DATA / "validation.jsonl.zst"], VALIDATION))
