"""Tests --precision bf16 of generate and serve against fp32 and against transformers in bf16."""

import pathlib

import pytest
import tiny_language_run
import tiny_run
import tokenizers
import torch
from huggingface_folder import to_hf
from needs import needs_program
from refusal import assert_refused
from serving import Server
from transformers import OlmoeForCausalLM

pytestmark = needs_program

PROMPT = "The fog came down at noon, and with it the silence."
OLMOE = ["model.norm=rms", "routing.method=top_k", "routing.normalization=none", "routing.renormalize=false", "loss.dynamic=0"]
AMX = "amx_bf16" in pathlib.Path("/proc/cpuinfo").read_text() or tiny_run.DEVICE != "cpu"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny_language_run.train(tmp_path_factory.mktemp("olmoe"), "dtop_p", 128, *OLMOE, "training.steps=60",
                                   tokenizer=tiny_language_run.SMALL_TOKENIZER)


def generate(run, precision, *arguments):
    done = tiny_run.dtopp("generate", run, "--device", tiny_run.DEVICE, "--precision", precision, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_greedy_text_is_that_of_fp32(run):
    options = ["--prompt", PROMPT, "--max-tokens", "40", "--temperature", "0"]
    text = generate(run, "fp32", *options)
    assert len(text) > 60 and generate(run, "bf16", *options) == text


def served_log_probs(run, precision):
    """Log-probabilities of the prompt's tokens from the second on."""
    with Server(run, "--precision", precision) as server:
        answer = server.complete(PROMPT, max_tokens=0, echo=True, logprobs=0)
    return torch.tensor(answer["choices"][0]["logprobs"]["token_logprobs"][1:])


def transformers_log_probs(folder, dtype):
    ids = torch.tensor([tokenizers.Tokenizer.from_file(str(tiny_language_run.SMALL_TOKENIZER)).encode(PROMPT).ids])
    model = OlmoeForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.no_grad():
        log_probs = model(input_ids=ids).logits.float().log_softmax(-1)[0, :-1]
    return log_probs.gather(1, ids[0, 1:, None])[:, 0]


def test_log_probabilities_are_those_of_fp32_but_for_the_rounding_of_transformers(run, tmp_path):
    """Both programs round the weights and each layer's results to 8 bits, at somewhat different places. So both have
    errors of one size. transformers also rounds the logits, which are below 16: by up to 2^-5."""
    folder = to_hf(run, tmp_path / "hf", "--as", "olmoe")
    exact, rounded = served_log_probs(run, "fp32"), served_log_probs(run, "bf16")
    peer = transformers_log_probs(folder, torch.bfloat16)
    assert torch.allclose(exact, transformers_log_probs(folder, torch.float32), atol=1e-4)
    assert 0 < (rounded - exact).abs().mean() <= 1.5 * (peer - exact).abs().mean()
    assert (rounded - peer).abs().max() <= 3 * (peer - exact).abs().max() + 2**-5


@pytest.mark.skipif(AMX, reason="the last bits of bf16 depend on the batch")
def test_prompts_side_by_side_are_as_each_by_itself(run, tmp_path):
    prompts = [PROMPT, "Nobody", "A longer line that says nothing of the kind, at some length"]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n")
    options = ["--max-tokens", "12", "--temperature", "1.3"]
    together = generate(run, "bf16", "--prompts", tmp_path / "prompts.txt", *options)
    first = generate(run, "bf16", "--prompt", prompts[0], *options)
    assert together.startswith(first) and together != first


@pytest.mark.parametrize("verb", ["generate", "serve"])
def test_another_precision_is_refused(run, verb):
    prompt = ["--prompt", PROMPT] if verb == "generate" else []
    assert_refused(tiny_run.dtopp(verb, run, "--precision", "fp16", *prompt), 2, ["--precision", "fp16", "auto|bf16|fp32"])
