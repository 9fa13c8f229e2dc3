"""Folders of `dtopp convert to-hf`, and transformers' view of them."""

import sys

import tiny_run
import transformers

LOADED = ("missing_keys", "unexpected_keys", "mismatched_keys")  # none of these


def to_hf(checkpoint, folder, *arguments):
    done = tiny_run.dtopp("convert", "to-hf", checkpoint, folder, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder}\n"
    return folder


def load(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **options)


def keep_modules_in(folder, patch):
    """transformers' copies of the code of models: neither the user's nor those of another test file in this process."""
    patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
    patch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        patch.delitem(sys.modules, name)
