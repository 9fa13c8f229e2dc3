"""The files of a folder, to compare two folders or the same one before and after."""


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def times(folder):
    """When each file was written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
