"""`dtopp completion` completes commands, options and keys in bash, zsh and fish."""

import os
import shutil
import subprocess

import pytest
import tiny_run
from needs import needs_program

pytestmark = needs_program


def shell(name, script):
    """The lines that the script prints after the shell has read the script of `dtopp completion`."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    environment = {**os.environ, "PATH": f"{tiny_run.BINARY.parent}:{os.environ['PATH']}"}
    done = subprocess.run([name, "-c", script], env=environment, text=True, capture_output=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


CASES = [
    (["pre"], ["prepare"]),
    (["prepare", ""], ["text", "images"]),
    (["evaluate", "text", "run", "--sweep"], ["--sweep-target"]),
    (["train", "configs/small.yaml", "optimizer.mom"], ["optimizer.momentum="]),
    (["train", "configs/small.yaml", "routing."], None),  # many
    (["generate", "run", "--prompt", "opt"], []),  # the value of an option
    (["generate", "run", "optimizer.mom"], []),  # a command without keys
]


@pytest.mark.parametrize("words,expected", CASES)
def test_bash(words, expected):
    quoted = " ".join(f"'{word}'" for word in ["dtopp", *words])
    lines = shell("bash", f'eval "$(dtopp completion bash)"; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _dtopp; printf "%s\\n" "${{COMPREPLY[@]}}"')
    lines = [line for line in lines if line]
    if expected is None:
        assert {"routing.experts=", "routing.controller=", "routing.hash_layers="} < set(lines) and "routing=" not in lines
    else:
        assert lines == expected


@pytest.mark.parametrize("words,expected", [case for case in CASES if case[1]])
def test_fish(words, expected):
    lines = shell("fish", f"dtopp completion fish | source; complete -C 'dtopp {' '.join(words)}'")
    assert set(expected) <= set(lines)  # fish adds the files


def test_zsh_reads_the_script():
    assert shell("zsh", "eval \"$(dtopp completion zsh)\"; whence -w _dtopp; print ${_comps[dtopp]}") == ["_dtopp: function", "_bash_complete -o default -F _dtopp"]


def test_every_shell_is_named():
    done = tiny_run.dtopp("completion", "tcsh")
    assert done.returncode == 2 and "bash" in done.stderr and "Traceback" not in done.stderr
