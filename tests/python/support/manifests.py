"""Writes manifests as the program does: the last line is the checksum of the lines above."""

import json

from xxh3 import xxh3_128


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
