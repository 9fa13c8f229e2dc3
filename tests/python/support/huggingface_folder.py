"""Folders that `dtopp convert to-hf` writes, and loading them with transformers."""

import contextlib
import os
import subprocess
import sys

import pytest
import tiny_run
import torch
import transformers
from language_program import Both

LOADED = ("missing_keys", "unexpected_keys", "mismatched_keys")  # all of these must be empty


def to_hf(checkpoint, folder, *arguments):
    done = tiny_run.dtopp("convert", "to-hf", checkpoint, folder, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder}\n"
    return folder


class Case(Both):
    """A checkpoint and the folder that it was converted to."""

    def __init__(self, name, parity, directory):
        super().__init__(name, parity, directory)
        self.folder = to_hf(self.checkpoint, directory / "hf")
        self.inputs = self.tokens[:, :-1]


def logits_of(model, inputs, **options):
    with torch.no_grad():
        return model(input_ids=inputs, **options).logits


def routed(model, inputs):
    """Per layer: the input of the router, and the weights and experts of each token."""
    layers = []
    hooks = [layer.mlp.gate.register_forward_hook(lambda _, arguments, output: layers.append((arguments[0], *output[1:3])))
             for layer in model.model.layers]
    logits_of(model, inputs)
    for hook in hooks:
        hook.remove()
    return layers


def run_as_user(code, folder):
    """Runs Python code in a folder, without an answer to questions and without progress bars."""
    return subprocess.run([sys.executable, "-c", code], cwd=folder, stdin=subprocess.DEVNULL, text=True, capture_output=True,
                          timeout=300, env={**os.environ, "HF_HOME": str(folder), "HF_HUB_DISABLE_PROGRESS_BARS": "1"})


@pytest.fixture(scope="module")
def remote_code(tmp_path_factory):
    """Sends copies of model code to this folder instead of the user's cache."""
    with keep_modules_in(tmp_path_factory.mktemp("modules")):
        yield


def load(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **options)


@contextlib.contextmanager
def keep_modules_in(folder):
    """Separates transformers' copies of model code from the user's copies and from those of other test files
    in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
        patch.syspath_prepend(folder)
        _forget_modules()
        yield
    _forget_modules()


def _forget_modules():
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        del sys.modules[name]
