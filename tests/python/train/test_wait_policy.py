"""The program's threads spin briefly and then sleep unless the user sets otherwise. The restart that this
needs has no visible effect."""

import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
import tiny_run
from needs import needs_program
from refusal import assert_refused

pytestmark = needs_program

TOKENIZER = tiny_run.ROOT / "assets/tokenizer/gpt-neox-20b.tokenizer.json"


def environment(**settings):
    kept = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    return kept | settings


def what_libgomp_read(**settings):
    done = tiny_run.dtopp("--version", env=environment(OMP_DISPLAY_ENV="verbose", **settings))
    assert done.returncode == 0 and done.stdout.startswith("dtopp ")
    return dict(re.findall(r"(\w+) = '(.*)'", done.stderr))


def test_threads_spin_briefly():
    assert what_libgomp_read()["GOMP_SPINCOUNT"] == "10000"


@pytest.mark.parametrize("settings, policy, spins", [
    ({"OMP_WAIT_POLICY": "active"}, "ACTIVE", None),
    ({"GOMP_SPINCOUNT": "55"}, "PASSIVE", "55"),
])
def test_what_the_user_sets_stands(settings, policy, spins):
    read = what_libgomp_read(**settings)
    assert read["OMP_WAIT_POLICY"] == policy
    assert spins is None or read["GOMP_SPINCOUNT"] == spins


def test_arguments_input_and_status_are_kept():
    text = "two words\tand  more"
    done = tiny_run.dtopp("tokenize", "--tokenizer", TOKENIZER, input=text, env=environment())
    again = tiny_run.dtopp("tokenize", "--tokenizer", TOKENIZER, input=text, env=environment(OMP_WAIT_POLICY="passive"))
    assert done.returncode == 0 and done.stdout == again.stdout != ""
    missing = tiny_run.dtopp("train", "no such file.yaml", "", env=environment())
    assert_refused(missing, 2, "no such file.yaml")


def test_an_empty_environment_and_the_dynamic_linker_as_program_are_served():
    assert subprocess.run([tiny_run.BINARY, "--version"], env={}, timeout=60).returncode == 0
    linker = re.search(r"(/lib\S*/ld-linux\S*)", subprocess.run(["ldd", tiny_run.BINARY], capture_output=True,
                                                                text=True).stdout)
    if linker is None:
        pytest.skip("ldd names no dynamic linker")
    done = subprocess.run([linker.group(1), tiny_run.BINARY, "--version"], env=environment(), capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("dtopp ")


def test_process_number_name_and_ignored_signals_are_kept(tmp_path):
    process = subprocess.Popen(["not-dtopp", "tokenize", "--tokenizer", str(TOKENIZER)], executable=tiny_run.BINARY,
                               env=environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                               preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN), restore_signals=False)
    proc = pathlib.Path(f"/proc/{process.pid}")
    try:
        end = time.monotonic() + 60
        while b"GOMP_SPINCOUNT=10000" not in (proc / "environ").read_bytes().split(b"\0"):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.01)
        assert (proc / "cmdline").read_bytes().split(b"\0")[0] == b"not-dtopp"
        assert (proc / "comm").read_text().strip() == tiny_run.BINARY.name
        assert (proc / "exe").resolve() == tiny_run.BINARY.resolve()
        process.send_signal(signal.SIGHUP)
        process.communicate(b"a", timeout=60)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
