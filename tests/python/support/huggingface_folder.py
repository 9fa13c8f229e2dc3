"""Folders that `dtopp convert to-hf` writes, and loading them with transformers."""

import sys

import tiny_run
import transformers

LOADED = ("missing_keys", "unexpected_keys", "mismatched_keys")  # all of these must be empty


def to_hf(checkpoint, folder, *arguments):
    done = tiny_run.dtopp("convert", "to-hf", checkpoint, folder, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder}\n"
    return folder


def load(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **options)


def keep_modules_in(folder, patch):
    """Separates transformers' copies of model code from the user's copies and from those of other test files
    in this process."""
    patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
    patch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        patch.delitem(sys.modules, name)
