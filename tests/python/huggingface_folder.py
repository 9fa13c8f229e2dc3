"""Folders of `dtopp convert to-hf`, and transformers' view of them."""

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
