"""A tiny language model trained on prepared text, so that its checkpoints hold a tokenizer, and the plain
PyTorch model with the same checkpoint."""

import pathlib

import reference_model
import tiny_run
import torch

TOKENIZER = tiny_run.ROOT / "assets/tokenizer/gpt-neox-20b.tokenizer.json"
SMALL_TOKENIZER = tiny_run.ROOT / "assets/tokenizer/english-4k.tokenizer.json"
TEXT = "The fog came down at noon, and with it the silence.\n\nNobody spoke. " * 9
METHODS = {
    "dtop_p": ["routing.method=dtop_p"],
    "dtop_p_layer": ["routing.method=dtop_p", "routing.scope=layer"],
    "dense": ["model.num_experts=1"],
}


def train(directory, method, sequence_length, *overrides, tokenizer=TOKENIZER):
    """Trains a few steps. Returns the run directory."""
    directory = pathlib.Path(directory)
    (directory / "source.txt").write_text(TEXT * 60)
    done = tiny_run.dtopp("prepare", "text", directory / "source.txt", "--tokenizer", tokenizer, "--output",
                          directory / "tokens")
    assert done.returncode == 0, done.stderr
    done = tiny_run.dtopp("train", tiny_run.make(directory), *METHODS[method], f"model.vocab_size={50304 if tokenizer == TOKENIZER else 4096}",
                          f"model.sequence_length={sequence_length}", f"data.train=[{directory / 'tokens'}]",
                          "data.validation=[]", "training.steps=4", "training.global_batch_size=2", *overrides)
    assert done.returncode == 0, done.stderr
    return directory / "run"


class Reference:
    """The logits of the plain PyTorch model, without a cache."""

    def __init__(self, run):
        checkpoint = sorted((pathlib.Path(run) / "checkpoints").iterdir())[-1]
        self.config, self.parameters, _, state = reference_model.load_checkpoint(checkpoint)
        self.thresholds = reference_model.Controller(self.config, state).thresholds()

    def log_probs(self, ids):
        """[len(ids), V]: log-probabilities of the token after each id."""
        with torch.no_grad():
            logits, _ = reference_model.forward(self.config, self.parameters, torch.tensor([ids]), self.thresholds)
        return logits[0].log_softmax(-1)
