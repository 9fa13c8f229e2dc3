"""Prints the slowest tests, and the skipped ones by reason, from the JUnit files of a run of tests.

usage: test_times.py FOLDER [LIMIT]    exits 1 if a test took longer than LIMIT seconds"""

import collections
import pathlib
import sys
import xml.etree.ElementTree

SLOWEST = 10


def cases(folder):
    """Yields (seconds, name, reason of a skip or None) of every test."""
    for path in sorted(folder.rglob("test_*.xml")):
        for case in xml.etree.ElementTree.parse(path).iter("testcase"):
            skipped = case.find("skipped")
            reason = None if skipped is None else skipped.get("message", "").strip().split("\n")[-1]
            yield float(case.get("time", 0)), f"{case.get('classname')}.{case.get('name')}", reason


def main():
    folder, limit = pathlib.Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else float("inf")
    tests = sorted(cases(folder), reverse=True)
    print(f"{len(tests)} tests, {sum(seconds for seconds, _, _ in tests):.0f} s in all; the slowest:")
    for seconds, name, _ in tests[:SLOWEST]:
        print(f"{seconds:8.1f} s  {name}")
    skipped = collections.Counter(reason for _, _, reason in tests if reason is not None)
    for reason, count in skipped.most_common():
        print(f"{count:6} skipped: {reason}")
    too_slow = [name for seconds, name, _ in tests if seconds > limit]
    if too_slow:
        sys.exit(f"longer than {limit:g} s: " + ", ".join(too_slow))


main()
