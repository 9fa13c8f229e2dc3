"""Models a file system that keeps only synced data, to find the possible contents of a disk after a power
loss.

Files and directories are inodes. A file's bytes are durable once the file is synced, and a directory's names
once the directory is. Until then each change may or may not have reached the disk. A single rename or
exchange is atomic, as on every journalling file system.
"""

import os
from dataclasses import dataclass, field


@dataclass
class File:
    data: bytes = b""
    synced: bytes = b""


@dataclass
class Directory:
    names: dict = field(default_factory=dict)
    synced: dict = field(default_factory=dict)
    pending: list = field(default_factory=list)  # changes since the last sync

    def change(self, *operation):
        apply(self.names, operation)
        self.pending.append(operation)


def apply(names, operation):
    """Applies one change to a directory's names. A name that it needs may be missing if an earlier change was
    lost."""
    kind, first, second = operation
    if kind == "add":
        names[first] = second
    elif kind == "remove":
        names.pop(first, None)
    elif kind == "rename" and first in names:
        names[second] = names.pop(first)
    elif kind == "exchange" and first in names and second in names:
        names[first], names[second] = names[second], names[first]


class Disk:
    def __init__(self, root):
        self.root_path = str(root)
        self.root = Directory()
        self.open = {}
        self.marks = []

    def find(self, path):
        inode = self.root
        for part in os.path.relpath(path, self.root_path).split(os.sep):
            inode = inode if part == "." else inode.names[part]
        return inode

    def parent(self, path):
        return self.find(os.path.dirname(path)), os.path.basename(path)

    def replay(self, line):
        kind, *words = line.split("\t")
        getattr(self, f"do_{kind}")(*words)

    def do_open(self, descriptor, creates, truncates, path):
        parent, name = self.parent(path) if path != self.root_path else (None, None)
        if parent and name not in parent.names and creates == "1":
            parent.change("add", name, File())
        inode = self.find(path)
        if truncates == "1":
            inode.data = b""
        self.open[descriptor] = inode

    def do_write(self, descriptor, digits):
        self.open[descriptor].data += bytes.fromhex(digits)

    def do_fsync(self, descriptor):
        inode = self.open[descriptor]
        if isinstance(inode, File):
            inode.synced = inode.data
        else:
            inode.synced, inode.pending = dict(inode.names), []

    def do_close(self, descriptor):
        self.open.pop(descriptor, None)

    def do_mkdir(self, path):
        parent, name = self.parent(path)
        parent.change("add", name, Directory())

    def do_unlink(self, path):
        parent, name = self.parent(path)
        parent.change("remove", name, None)

    def do_rename(self, old, new):
        assert os.path.dirname(old) == os.path.dirname(new)
        self.parent(old)[0].change("rename", os.path.basename(old), os.path.basename(new))

    def do_exchange(self, first, second):
        assert os.path.dirname(first) == os.path.dirname(second)
        self.parent(first)[0].change("exchange", os.path.basename(first), os.path.basename(second))

    def do_mark(self, digits):
        self.marks.append(bytes.fromhex(digits).decode().removeprefix("saved ").rstrip("\n"))


def only_synced(inode):
    if isinstance(inode, File):
        return inode.synced
    return {name: only_synced(child) for name, child in inode.synced.items()}


def everything(inode):
    if isinstance(inode, File):
        return inode.data
    return {name: everything(child) for name, child in inode.names.items()}


def some(inode, generator):
    """The inode with a random part of the changes since the last sync."""
    if isinstance(inode, File):
        if inode.data == inode.synced:
            return inode.data
        cut = generator.randrange(len(inode.data) + 1)
        return generator.choice([inode.synced, inode.data, inode.data[:cut], bytes(len(inode.data))])
    names = dict(inode.synced)
    for operation in inode.pending:
        if generator.random() < 0.5:
            apply(names, operation)
    return {name: some(child, generator) for name, child in names.items()}


def frozen(tree):
    return tree if isinstance(tree, bytes) else tuple(sorted((name, frozen(child)) for name, child in tree.items()))


def crash_states(log, root, generator, samples=8):
    """Yields (tree, items reported as saved, position in the log) for each state that a power loss may leave,
    without repeats."""
    disk, seen = Disk(root), set()
    for number, line in enumerate(log.splitlines(), 1):
        disk.replay(line)
        trees = [only_synced(disk.root), everything(disk.root)]
        trees += [some(disk.root, generator) for _ in range(samples)]
        for tree in trees:
            key = (frozen(tree), len(disk.marks))
            if key not in seen:
                seen.add(key)
                yield tree, list(disk.marks), f"after call {number}: {line[:200]}"


def materialize(tree, path):
    if isinstance(tree, bytes):
        path.write_bytes(tree)
        return
    path.mkdir()
    for name, child in tree.items():
        materialize(child, path / name)
