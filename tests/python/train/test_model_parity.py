"""Tests logits, losses and every gradient of the C++ model against the plain PyTorch one."""

import pytest
import torch
from language_program import CASES, Both, distance

# Cases in which no rounding can change a token's experts.
WITHOUT_DECISIONS = ("dense", "dense_untied", "top_k_of_all", "dtop_p_of_all")


@pytest.fixture(scope="module", params=CASES)
def both(request, dtopp_binary, program, tmp_path_factory):
    return Both(request.param, program("dtopp_parity"), tmp_path_factory.mktemp(request.param))


def test_fp32_logits_losses_and_gradients_agree(both):
    got = both.dtopp("fp32")
    want, margin = both.reference(torch.float64)
    assert margin > 5e-7, "a token lies on the threshold: rounding decides its experts; take another seed"
    assert sorted(got) == sorted(want), "names"
    for name, tensor in want.items():
        assert got[name].shape == tensor.shape, name
        if name.startswith("active_histogram/"):
            assert torch.equal(got[name], tensor), name
            continue
        assert distance(got[name], tensor) < 1e-4, name
        # Elements are compared at the tensor's own scale, because a sum of large terms may happen to be near
        # zero.
        scale = tensor.abs().max().item()
        torch.testing.assert_close(got[name].double(), tensor, rtol=1e-4, atol=1e-5 * scale, msg=lambda m: f"{name}: {m}")


def test_the_case_is_not_trivial(both):
    """Every parameter has a gradient, and sets differ in size if the method allows it."""
    want, _ = both.reference()
    for name, tensor in want.items():
        if name.startswith("grad/"):
            assert tensor.abs().max() > 1e-7, name


def test_bf16_is_as_near_the_truth_as_bf16_can_be(both):
    """Compares with fp64; the limit is twice the error of a straightforward bf16 model, or for a loss a
    hundredth.

    If rounding moves single tokens to other experts, the two bf16 models differ by chance. Then losses may differ
    by a fiftieth, and only the sum total of the gradients is bounded."""
    got = both.dtopp("bf16")
    truth, _ = both.reference(torch.float64)
    plain, _ = both.reference(torch.float32, compute=torch.bfloat16)
    gradients = [name for name in truth if name.startswith("grad/")]
    largest = 0.01 if both.case in WITHOUT_DECISIONS else 0.02
    for name in truth:
        if name.startswith("loss/"):
            assert distance(got[name], truth[name]) < max(largest, 2 * distance(plain[name], truth[name])), name
    if both.case in WITHOUT_DECISIONS:
        for name in ["logits", *gradients]:
            assert distance(got[name], truth[name]) < 2 * distance(plain[name], truth[name]) + 0.001, name
    else:
        assert distance(got["logits"], truth["logits"]) < 0.1
        whole = [torch.cat([values[name].double().flatten() for name in gradients]) for values in (got, truth)]
        assert distance(*whole) < 0.3
