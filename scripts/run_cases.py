"""Runs pytest so that a test that crashes, hangs or damages the device's state affects no other test and is
named.

The cases run in one process until one fails, dies or exceeds the limit. A new process runs the remaining
cases. Arguments after -- go to pytest. The exit status is 1 if a case did not pass, or else 75 if the time was over
before the last one."""

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

    def pytest_runtest_logreport(self, report):
        if report.skipped:
            self.write(skipped=report.nodeid)

    def pytest_runtest_logfinish(self, nodeid):
        self.write(ended=nodeid)


def lines_of(log):
    return [json.loads(line) for line in log.read_text().split("\n")[:-1]] if log.exists() else []


LATE = "late"  # the status of a run for which the time was over


def run(cases, log, limit, end):
    """Returns (ended cases, the running case, the number of skipped ones, status); status is None if the case took too long."""
    log.unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, __file__, "--child", "-x", "-q", *cases], start_new_session=True,
                               env=os.environ | {LOG: str(log)})
    try:
        return watch(process, log, limit, end)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def watch(process, log, limit, end):
    ended, current, since = [], None, time.monotonic()
    while True:
        status = process.poll()
        lines = lines_of(log)
        done = [line["ended"] for line in lines if "ended" in line]
        begun = [line["begins"] for line in lines if "begins" in line]
        if (done, begun[-1:]) != (ended, [current] if current else []):
            ended, current, since = done, begun[-1] if begun else None, time.monotonic()
        skipped = len({line["skipped"] for line in lines if "skipped" in line})
        if status is not None:
            return ended, current, skipped, status
        if time.monotonic() > min(since + limit, end):
            return ended, current, skipped, LATE if time.monotonic() > end else None
        time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=300, help="time limit per case in seconds")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit of all cases")
    parser.add_argument("--json", action="store_true", help="print a JSON line at the end")
    parser.add_argument("pytest", nargs="+", help="arguments of pytest")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # run() ends the cases
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "cases.jsonl"
        collected = subprocess.run([sys.executable, __file__, "--child", "--collect-only", "-q", *args.pytest],
                                   env=os.environ | {LOG: str(log)}, capture_output=True, text=True)
        if collected.returncode != 0:
            sys.exit(f"run_cases: cannot collect the cases\n{collected.stdout}{collected.stderr}")
        left = next(line["cases"] for line in reversed(lines_of(log)) if "cases" in line)
        total, skipped, lost = len(left), 0, []
        while left:
            ended, current, passed_over, status = run(left, log, args.limit, end)
            skipped += passed_over
            if status == 0:
                left = []
                break
            if status == LATE:
                left = left[len(ended):]
                break
            if current is None:
                sys.exit(f"run_cases: pytest ended with status {status} before its first case")
            how = (f"took longer than {args.limit:g} s" if status is None else
                   f"killed its process with {signal.Signals(-status).name}" if status < 0 else "failed")
            lost.append(f"{current} {how}")
            left = left[left.index(current) + 1:]
    good = total - len(lost) - len(left)
    print("\n".join([f"{good} of {total} cases passed or were skipped", *([f"{len(left)} cases did not run: the time was over"] if left else []), *lost]))
    if args.json:
        print(json.dumps({"case": "tests", "cases": total, "passed": good - skipped, "skipped": skipped, "lost": lost, "left": len(left)}))
    sys.exit(1 if lost else 75 if left else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        import pytest

        sys.exit(pytest.main(sys.argv[2:], plugins=[Reporter()]))
    main()
