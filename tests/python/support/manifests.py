"""Folders of prepared data: their manifests, as the program writes them, and their contents. The last line of a manifest is the checksum
of the lines above."""

import ctypes
import ctypes.util
import json


def xxh3_128(data):
    """Returns the hash as xxhsum -H2 prints it."""
    class Hash(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]

    library = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
    library.XXH3_128bits.restype = Hash
    found = library.XXH3_128bits(data, ctypes.c_size_t(len(data)))
    return f"{found.high:016x}{found.low:016x}"


def sealed(text):
    """The object whose text is complete up to its checksum."""
    return text + f'  "xxh3_128": "{xxh3_128(text.encode())}"\n}}\n'


def write_manifest(folder, form, about=None, files=None):
    """Writes manifest.json for all other files of the folder, or for `files`: their names, sizes and checksums."""
    if files is None:
        files = {path.name: {"size": path.stat().st_size, "xxh3_128": xxh3_128(path.read_bytes())}
                 for path in sorted(folder.iterdir()) if path.name != "manifest.json" and not path.name.startswith(".")}
    text = f'{{\n  "format": "{form}",\n'
    if about is not None:
        text += '  "about": ' + json.dumps(about) + ",\n"
    (folder / "manifest.json").write_text(sealed(text + '  "files": ' + json.dumps(files) + ",\n"))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def times(folder):
    """When each file was written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
