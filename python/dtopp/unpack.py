"""Writes the files that lie beside the program in a checkout: presets, tokenizers, the sample text, the
examples.

Usage: python -m dtopp.unpack FOLDER. In FOLDER the commands of the documentation work as written.
"""

import pathlib
import shutil
import sys

FILES = pathlib.Path(__file__).resolve().parent / "files"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m dtopp.unpack FOLDER", file=sys.stderr)
        return 2
    if not FILES.is_dir():
        print("dtopp.unpack: this package has no such files: use a checkout, or the wheel for Linux and x86-64", file=sys.stderr)
        return 2
    folder = pathlib.Path(arguments[0])
    sources = sorted(FILES.iterdir())
    for source in sources:
        if (folder / source.name).exists():
            print(f"dtopp.unpack: {folder / source.name} already exists; name another folder", file=sys.stderr)
            return 2
    for source in sources:
        shutil.copytree(source, folder / source.name)
    print(f"{folder}: {', '.join(source.name for source in sources)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
