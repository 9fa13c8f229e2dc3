"""Tests evaluate text against the plain PyTorch model and Hugging Face `tokenizers`."""

import errno
import gzip
import json
import math
import os
import shutil

import numpy as np
import pytest
import reference_model
import tiny_run
import tokenizers
import torch
from manifests import write_manifest
from needs import needs_program
from refusal import assert_refused
from safetensors.numpy import load_file, save_file

pytestmark = needs_program

TOKENIZER = tiny_run.ROOT / "assets/tokenizer/gpt-neox-20b.tokenizer.json"
TEXT = "The fog came down at noon, and with it the silence.\n\nNobody spoke. " * 9
DOCUMENTS = [TEXT, "", "  A second document, with  runs   of spaces.", TEXT[100:400]]


@pytest.fixture(scope="module", params=["dtop_p", *tiny_run.in_full("top_k", "dense")])
def trained(request, tmp_path_factory):
    """A run on prepared text, whose checkpoints hold a tokenizer."""
    directory = tmp_path_factory.mktemp(request.param)
    (directory / "source.txt").write_text(TEXT * 8)
    done = tiny_run.dtopp("prepare", "text", directory / "source.txt", "--tokenizer", TOKENIZER, "--output",
                          directory / "tokens")
    assert done.returncode == 0, done.stderr
    routing = ["model.num_experts=1"] if request.param == "dense" else [f"routing.method={request.param}"]
    done = tiny_run.dtopp("train", tiny_run.make(directory), *routing, "routing.experts=3", "model.vocab_size=50304",
                          f"data.train=[{directory / 'tokens'}]", "validation.every=0", "training.steps=6")
    assert done.returncode == 0, done.stderr
    return directory


def ids_of(documents):
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    ids = []
    for document in documents:
        if document:
            ids += tokenizer.encode(document, add_special_tokens=False).ids + [0]
    return ids


def reference_nll(run, ids):
    """The mean over all predicted tokens in windows of 33 with stride 32, including the shorter last window."""
    checkpoint = sorted((run / "checkpoints").iterdir())[-1]
    config, parameters, _, state = reference_model.load_checkpoint(checkpoint, torch.float64)
    thresholds = reference_model.Controller(config, state).thresholds()
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(ids) - 1, 32):
            window = torch.tensor([ids[start:start + 33]])
            logits, _ = reference_model.forward(config, parameters, window[:, :-1], thresholds)
            total += torch.nn.functional.cross_entropy(logits[0], window[0, 1:], reduction="sum").item()
    return total / (len(ids) - 1)


def evaluate(run, text, *arguments):
    done = tiny_run.dtopp("evaluate", "text", run, "--text", text, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(result, run, ids):
    assert result["tokens"] == len(ids) - 1
    assert result["nll"] == pytest.approx(reference_nll(run, ids), rel=1e-5)
    assert result["perplexity"] == pytest.approx(math.exp(result["nll"]), rel=1e-12)


def test_perplexity_of_text_files(trained, tmp_path):
    lines = "".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS)
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.jsonl").write_text(lines)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    check(evaluate(trained / "run", tmp_path / "a.txt"), trained / "run", ids_of([TEXT]))
    check(evaluate(trained / "run", tmp_path / "b.jsonl"), trained / "run", ids_of(DOCUMENTS))
    check(evaluate(trained / "run", tmp_path / "c.jsonl.gz"), trained / "run", ids_of(DOCUMENTS))


def test_documents_are_predicted_on_their_own(trained, tmp_path):
    """Each document follows an end of text and is read in windows of its own, so its first token counts."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS))
    result = evaluate(trained / "run", tmp_path / "a.jsonl", "--by-document")
    documents = [[0, *ids_of([document])] for document in DOCUMENTS if document]
    nats = sum(reference_nll(trained / "run", ids) * (len(ids) - 1) for ids in documents)
    assert result["tokens"] == sum(len(ids) - 1 for ids in documents)
    assert result["nll"] * result["tokens"] == pytest.approx(nats, rel=1e-5)
    assert result["bytes"] == sum(len(document.encode()) for document in DOCUMENTS)
    assert result["bits_per_byte"] == pytest.approx(nats / math.log(2) / result["bytes"], rel=1e-5)


def test_bits_per_byte_count_what_the_predicted_tokens_spell(trained, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT + "Ünïcödé.")
    result = evaluate(trained / "run", tmp_path / "a.txt")
    ids = ids_of([TEXT + "Ünïcödé."])
    first = len(tokenizers.Tokenizer.from_file(str(TOKENIZER)).decode(ids[:1]).encode())
    assert result["bytes"] == len((TEXT + "Ünïcödé.").encode()) - first
    assert result["bits_per_byte"] == pytest.approx(result["nll"] / math.log(2) * result["tokens"] / result["bytes"], rel=1e-12)


def test_a_sweep_that_the_model_cannot_make_prints_one_line(tmp_path):
    run = tiny_run.trained(tmp_path, "routing.method=top_k") / "run"
    done = tiny_run.dtopp("evaluate", "text", run, "--text", tmp_path / "validation.npy", "--sweep-target", "1,2")
    assert_refused(done, 2, ["--sweep-target", "routing.method"])
    assert done.stdout == ""


def test_perplexity_of_any_file_that_is_text(trained):
    """README.md as text: one document, whatever its name."""
    readme = tiny_run.ROOT / "README.md"
    check(evaluate(trained / "run", readme), trained / "run", ids_of([readme.read_text()]))


def test_a_checkpoint_alone_is_enough(trained, tmp_path):
    """Evaluation needs neither the run, nor its data, nor the optimizer's file. Resuming needs them."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    whole = evaluate(trained / "run", text)
    checkpoint = sorted((trained / "run/checkpoints").iterdir())[-1]
    alone = tmp_path / "alone" / checkpoint.name
    shutil.copytree(checkpoint, alone, ignore=lambda _, names: {"optimizer.safetensors"} & set(names))
    assert evaluate(alone, text) == whole
    assert evaluate(alone.parent, text) == whole
    done = tiny_run.dtopp("generate", alone, "--prompt", "Nobody", "--max-tokens", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    run = tmp_path / "run"
    alone.parent.rename(tmp_path / "checkpoints")
    run.mkdir()
    (tmp_path / "checkpoints").rename(run / "checkpoints")
    assert_refused(tiny_run.dtopp("train", tiny_run.make(tmp_path), "training.steps=6"), 4, "optimizer.safetensors", alone=False)


def test_a_path_that_cannot_be_looked_at_exits_3(trained, tmp_path):
    """A loop of links stands in for a forbidden folder, which root may enter: the error is the system's
    reason, not status 5."""
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for arguments in ([trained / "run", "--text", loop], [loop, "--text", trained / "source.txt"],
                      [loop / "run", "--text", trained / "source.txt"]):
        assert_refused(tiny_run.dtopp("evaluate", "text", *arguments), 3, [loop, os.strerror(errno.ELOOP)])


def test_perplexity_of_a_token_folder_equals_that_of_its_text(trained, tmp_path):
    result = evaluate(trained / "run", trained / "tokens", "--output", tmp_path / "results.json")
    check(result, trained / "run", ids_of([TEXT * 8]))
    assert json.loads((tmp_path / "results.json").read_text()) == result


def test_texts_and_options_have_files_of_their_own_in_a_folder(trained, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.v2.txt").write_text(TEXT)
    folder = tmp_path / "results"
    folder.mkdir()
    texts = ["--text", tmp_path / "b.v2.txt"]
    results = [evaluate(trained / "run", tmp_path / "a.v2.txt", "--output", folder, *options)
               for options in ([], ["--by-document"], texts, [*texts, "--counts", "uniform"])]
    names = ["text-a.v2", "text-by-document-a.v2", "text-a.v2+b.v2", "text-uniform-a.v2+b.v2"]
    assert {path.name: json.loads(path.read_text()) for path in folder.iterdir()} == {
        f"{name}-step-00000006.json": result for name, result in zip(names, results)}
    (tmp_path / "x").mkdir()
    (tmp_path / "x/a.v2.txt").write_text(TEXT)
    done = tiny_run.dtopp("evaluate", "text", trained / "run", "--text", tmp_path / "x/a.v2.txt", "--output", folder)
    assert_refused(done, 2, folder / "text-a.v2-step-00000006.json")


def test_a_configuration_is_not_replaced_by_results(trained):
    config = trained / "run/config.yaml"
    before = config.read_text()
    done = tiny_run.dtopp("evaluate", "text", trained / "run", "--text", trained / "source.txt", "--output", config)
    assert_refused(done, 2, config)
    assert done.stdout == "" and config.read_text() == before


@pytest.mark.parametrize("option", ["--output", "--dump-routing"])
def test_a_file_in_a_missing_folder_is_refused_before_the_evaluation(trained, tmp_path, option):
    done = tiny_run.dtopp("evaluate", "text", trained / "run", "--text", trained / "source.txt", option, tmp_path / "none/a.json")
    assert_refused(done, 2, [option, tmp_path / "none"])
    assert done.stdout == ""


def test_a_loss_that_is_not_finite_has_a_warning(trained, tmp_path):
    run = shutil.copytree(trained / "run", tmp_path / "run")
    checkpoint = sorted((run / "checkpoints").iterdir())[-1]
    parameters = load_file(checkpoint / "model.safetensors")
    name = next(name for name in parameters if name.endswith("norm.weight") and "layers" not in name)
    parameters[name] = np.full_like(parameters[name], -math.nan)
    save_file(parameters, checkpoint / "model.safetensors")
    write_manifest(checkpoint, "dtopp checkpoint 1")
    done = tiny_run.dtopp("evaluate", "text", run, "--text", trained / "source.txt")
    assert done.returncode == 0 and "nll          nan nats" in done.stdout, done.stdout + done.stderr
    assert [str(run) in line for line in done.stderr.splitlines() if "warning" in line] == [True]


def test_perplexity_does_not_depend_on_the_batch_size(trained):
    one = evaluate(trained / "run", trained / "tokens", "--batch-size", "1")
    many = evaluate(trained / "run", trained / "tokens", "--batch-size", "7")
    assert one["nll"] == pytest.approx(many["nll"], rel=1e-6)


def test_a_text_of_one_token_is_refused(trained, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    assert_refused(tiny_run.dtopp("evaluate", "text", trained / "run", "--text", tmp_path / "empty.txt"), 3, "text")
