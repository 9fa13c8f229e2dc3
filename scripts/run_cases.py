"""Runs pytest so that a test that crashes, hangs or damages the device's state affects no other test and is
named.

The cases run in one process until one fails, dies or exceeds the limit. A new process runs the remaining
cases. Arguments after -- go to pytest. The exit status is 1 if a case did not pass."""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

LOG = "DTOPP_CASE_LOG"


class Reporter:
    """A plugin of the pytest that runs the cases: it writes a line when a case begins and when it ends."""

    def write(self, **line):
        with open(os.environ[LOG], "a") as log:
            log.write(json.dumps(line) + "\n")

    def pytest_collection_modifyitems(self, items):
        self.write(cases=[item.nodeid for item in items])

    def pytest_runtest_logstart(self, nodeid):
        self.write(begins=nodeid)

    def pytest_runtest_logfinish(self, nodeid):
        self.write(ended=nodeid)


def lines_of(log):
    return [json.loads(line) for line in log.read_text().split("\n")[:-1]] if log.exists() else []


def run(cases, log, limit):
    """Returns (ended cases, the running case, status); status is None if the case took too long."""
    log.unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, __file__, "--child", "-x", "-q", *cases], start_new_session=True,
                               env=os.environ | {LOG: str(log)})
    ended, current, since = [], None, time.monotonic()
    while True:
        status = process.poll()
        lines = lines_of(log)
        done = [line["ended"] for line in lines if "ended" in line]
        begun = [line["begins"] for line in lines if "begins" in line]
        if (done, begun[-1:]) != (ended, [current] if current else []):
            ended, current, since = done, begun[-1] if begun else None, time.monotonic()
        if status is not None:
            return ended, current, status
        if time.monotonic() - since > limit:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return ended, current, None
        time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=300, help="time limit per case in seconds")
    parser.add_argument("pytest", nargs="+", help="arguments of pytest")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "cases.jsonl"
        collected = subprocess.run([sys.executable, __file__, "--child", "--collect-only", "-q", *args.pytest],
                                   env=os.environ | {LOG: str(log)}, capture_output=True, text=True)
        if collected.returncode != 0:
            sys.exit(f"run_cases: cannot collect the cases\n{collected.stdout}{collected.stderr}")
        left = next(line["cases"] for line in reversed(lines_of(log)) if "cases" in line)
        total, lost = len(left), []
        while left:
            ended, current, status = run(left, log, args.limit)
            if status == 0:
                break
            if current is None:
                sys.exit(f"run_cases: pytest ended with status {status} before its first case")
            how = (f"took longer than {args.limit:g} s" if status is None else
                   f"killed its process with {signal.Signals(-status).name}" if status < 0 else "failed")
            lost.append(f"{current} {how}")
            left = left[left.index(current) + 1:]
    print("\n".join([f"{total - len(lost)} of {total} cases passed or were skipped", *lost]))
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        import pytest

        sys.exit(pytest.main(sys.argv[2:], plugins=[Reporter()]))
    main()
