"""Tests predictions, losses, gradients, draws and optimizer steps of the C++ diffusion transformer against
the plain PyTorch one."""

import pytest
import reference_diffusion
import reference_model
import torch
from diffusion_program import DENSE, TEXT, Program, batch_of, distance, pictures, resolved, wide_parameters

torch.set_num_threads(1)  # tiny tensors: a second thread costs more than it saves

CASES = {
    "dense": DENSE,
    "dense_sincos_without_qk_norm": DENSE | {"model": {"num_experts": 1, "position": "sincos", "qk_norm": "none"}},
    "dense_ddpm": DENSE | {"diffusion": {"objective": "ddpm", "timesteps": "uniform"}},
    "top_k": {"routing": {"method": "top_k", "experts": 3, "normalization": "fixed"}},
    "top_p": {"routing": {"method": "top_p", "threshold": 0.6, "normalization": "none"}},
    "dtop_p": {},
    "dtop_p_layer": {"routing": {"scope": "layer", "experts": [2, 5]}},
    "dtop_p_ddpm_sincos": {"diffusion": {"objective": "ddpm"}, "model": {"position": "sincos"}},
    "dtop_p_without_qk_norm": {"model": {"qk_norm": "none"}},
    "dtop_p_norm_of_each_head": {"model": {"qk_norm": "head"}},
    "dtop_p_text": {"model": {"num_classes": 0} | TEXT},
    "dtop_p_class_and_text": {"model": TEXT, "diffusion": {"timesteps": "uniform"}},
    "dtop_p_unconditional_patch_4": {"model": {"num_classes": 0, "patch_size": 4, "channels": 1}},
}


@pytest.fixture(scope="module")
def parity(program):
    return program("dtopp_parity")


class Both:
    """Runs one batch with one set of parameters through both implementations."""

    def __init__(self, name, parity, directory):
        self.name, self.config = name, resolved(CASES[name])
        self.program = Program(parity, directory, CASES[name])
        made = pictures(self.config["model"], 8, seed=5)
        names = self.program("diffusion-training", made)
        self.parameters = wide_parameters({name.removeprefix("initial/"): tensor for name, tensor in names.items()
                                           if name.startswith("initial/")})
        self.batch = batch_of(self.config, 6)
        self.thresholds = [0.35, 0.6] if self.config["routing"]["scope"] == "layer" else [0.5, 0.5]

    def dtopp(self, precision="fp32"):
        threshold = {"threshold": torch.tensor(self.thresholds, dtype=torch.float64)}
        return self.program("diffusion", self.parameters | self.batch | threshold, precision)

    def reference(self, dtype=torch.float64, compute=None):
        parameters = {name: p.to(dtype).requires_grad_() for name, p in self.parameters.items()}
        batch = {name: t.to(dtype) if t.is_floating_point() and name != "t" else t for name, t in self.batch.items()}
        values, prediction, sample_loss, layers = reference_diffusion.losses(self.config, parameters, batch,
                                                                             self.thresholds, compute)
        values["total"].backward()
        result = {"prediction": prediction.detach(), "sample_loss": sample_loss.detach()}
        result |= {"loss/" + name: value.detach() for name, value in values.items()}
        result |= {"grad/" + name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
        result |= {f"active_histogram/{n}": layer["histogram"] for n, layer in enumerate(layers)}
        chosen = [(layer["gates"] > 0).view(len(batch["t"]), -1).sum(1) for layer in layers]
        result["sample_selected"] = torch.stack(chosen, 1) if chosen else torch.zeros(len(batch["t"]), 0).long()
        return result, min((layer["margin"] for layer in layers), default=1.0)


@pytest.fixture(scope="module", params=CASES)
def both(request, parity, tmp_path_factory):
    return Both(request.param, parity, tmp_path_factory.mktemp(request.param))


def test_fp32_predictions_losses_and_gradients_agree(both):
    got = both.dtopp()
    want, margin = both.reference()
    assert margin > 1e-6, "a token lies on the threshold: rounding decides its experts; take another seed"
    assert sorted(got) == sorted(want), "names"
    for name, tensor in want.items():
        assert got[name].shape == tensor.shape, name
        if not tensor.is_floating_point():
            assert torch.equal(got[name], tensor), name
            continue
        if name.startswith("grad/"):
            assert tensor.abs().max() > 1e-7, f"{name}: no gradient to compare"
        assert distance(got[name], tensor) < 1e-4, name
        scale = tensor.abs().max().item()
        torch.testing.assert_close(got[name].double(), tensor.double(), rtol=1e-4, atol=1e-5 * scale,
                                   msg=lambda m: f"{name}: {m}")


def test_bf16_is_as_near_the_truth_as_bf16_can_be(both):
    """Compares with fp64; the limit is twice the error of a straightforward bf16 model if no rounding can
    change a token's experts. Otherwise only the prediction and all gradients together are compared."""
    got = both.dtopp("bf16")
    truth, _ = both.reference()
    plain, _ = both.reference(torch.float32, compute=torch.bfloat16)
    gradients = [name for name in truth if name.startswith("grad/")]
    assert distance(got["loss/diffusion"], truth["loss/diffusion"]) < 0.02
    if both.config["model"]["num_experts"] == 1:
        for name in ["prediction", *gradients]:
            assert distance(got[name], truth[name]) < 2 * distance(plain[name], truth[name]) + 0.002, name
    else:
        whole = [torch.cat([values[name].double().flatten() for name in gradients]) for values in (got, plain, truth)]
        assert distance(got["prediction"], truth["prediction"]) < 2 * distance(plain["prediction"], truth["prediction"]) + 0.01
        assert distance(whole[0], whole[2]) < 2 * distance(whole[1], whole[2]) + 0.02


@pytest.mark.parametrize("name", CASES)
def test_training_from_the_first_step_agrees(name, parity, tmp_path):
    """Compares draws, three steps that leave the zeros, and ten more: losses, thresholds, norms and the final
    parameters."""
    config = resolved(CASES[name])
    made = pictures(config["model"], 24, seed=8)
    got = Program(parity, tmp_path, CASES[name])("diffusion-training", made)
    steps, size = config["training"]["steps"], config["training"]["global_batch_size"]
    draws = [reference_diffusion.draw_training(config, i, 24) for i in range(steps * size)]
    whole = reference_diffusion.make_batch(config, made, draws, 0)
    compare_batch(whole, got, "training_batch/")

    initial = {key.removeprefix("initial/"): t for key, t in got.items() if key.startswith("initial/")}
    trainer = reference_diffusion.Trainer(config, initial, torch.float64)
    for step in range(1, steps + 1):
        part = {key: t[(step - 1) * size:step * size] for key, t in whole.items()}
        part = {key: t.double() if key in ("x0", "noise", "text") else t for key, t in part.items()}
        report = trainer.step(part)
        assert report.pop("margin") > 1e-7, f"step {step}: a token lies on the threshold; take another seed"
        reported = {key.removeprefix(f"step/{step}/"): t.item() for key, t in got.items()
                    if key.startswith(f"step/{step}/")}
        assert reported == pytest.approx(report, rel=1e-4, abs=1e-6), f"step {step}"
    for key, tensor in trainer.parameters.items():
        assert distance(got["final/" + key], tensor.detach()) < 1e-3, key
        if "time_embed" not in key:  # it acts through the modulation alone, which starts at zero
            assert not torch.equal(got["final/" + key], got["initial/" + key]), key


def compare_batch(want, got, prefix):
    assert sorted(prefix + key for key in want) == sorted(key for key in got if key.startswith(prefix))
    for key, tensor in want.items():
        if key in ("x0", "class", "text", "group"):
            assert torch.equal(got[prefix + key], tensor), key
        else:
            torch.testing.assert_close(got[prefix + key], tensor, rtol=1e-6, atol=1e-6, msg=lambda m: f"{key}: {m}")


@pytest.mark.parametrize("name", ["dtop_p", "dense_ddpm"])
def test_validation_reports_each_tenth_of_the_timesteps(name, parity, tmp_path):
    """23 pictures: the last group of ten has three pictures, which keep the buckets they have in a full
    group."""
    config = resolved(CASES[name])
    made = pictures(config["model"], 23, seed=9)
    got = Program(parity, tmp_path, CASES[name])("diffusion-training", made)
    draws = [reference_diffusion.draw_validation(config, i) for i in range(23)]
    batch = reference_diffusion.make_batch(config, made, draws, 0)
    groups = torch.tensor([d["group"] for d in draws])
    compare_batch(batch | {"group": groups}, got, "validation_batch/")
    for start in (0, 10):
        assert sorted(groups[start:start + 10].tolist()) == list(range(10))
    order = batch["t"][:10][groups[:10].argsort()]
    assert torch.equal(order, order.sort().values), "later buckets lie further from the picture"

    final = {key.removeprefix("final/"): t.double() for key, t in got.items() if key.startswith("final/")}
    controller = reference_model.Controller(config)
    controller.p = [got["step/13/threshold/0"].item()] if "step/13/threshold/0" in got else controller.p
    if config["model"]["num_experts"] == 1:
        batch = {key: t.double() if key in ("x0", "noise") else t for key, t in batch.items()}
        _, _, sample_loss, _ = reference_diffusion.losses(config, final, batch, [])
        assert got["validation/loss"].item() == pytest.approx(sample_loss.mean().item(), rel=1e-4)
        for bucket in range(10):
            want = sample_loss[groups == bucket].mean().item()
            assert got[f"validation/loss_t{bucket}"].item() == pytest.approx(want, rel=1e-4)
    else:
        counts = torch.bincount(groups).double()
        parts = torch.tensor([got[f"validation/loss_t{bucket}"].item() for bucket in range(10)]).double()
        assert got["validation/loss"].item() == pytest.approx((parts * counts).sum().item() / 23, rel=1e-5)
        for bucket in range(10):
            assert ((1 <= got[f"validation/active_experts_t{bucket}"]) & (got[f"validation/active_experts_t{bucket}"] <= 8)).all()
