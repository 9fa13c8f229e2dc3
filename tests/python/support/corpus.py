"""Reads the text data without a zstd package."""

import ctypes
import ctypes.util
import json


def decompress(path):
    """Returns the bytes in a .zst file whose frame states its size."""
    zstd = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
    zstd.ZSTD_getFrameContentSize.restype = zstd.ZSTD_decompress.restype = ctypes.c_size_t
    compressed = path.read_bytes()
    size = zstd.ZSTD_getFrameContentSize(compressed, ctypes.c_size_t(len(compressed)))
    assert size < 1 << 32, f"{path} is not one zstd frame of stated size"
    text = ctypes.create_string_buffer(size)
    got = zstd.ZSTD_decompress(text, ctypes.c_size_t(size), compressed, ctypes.c_size_t(len(compressed)))
    assert got == size
    return text.raw


def documents(path):
    """Returns the texts of a .jsonl.zst file."""
    return [json.loads(line)["text"] for line in decompress(path).decode().split("\n") if line]
