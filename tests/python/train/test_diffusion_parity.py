"""Tests predictions, losses, gradients, draws and optimizer steps of the C++ diffusion transformer against the plain PyTorch one, and
the dense model against diffusers'. dtopp_parity runs the C++ side."""

import pytest
import reference_diffusion
import reference_model
import start
import torch
import yaml
from safetensors.torch import load_file, save_file

BASE = {
    "model": {"type": "diffusion_transformer", "hidden_size": 32, "num_layers": 2, "num_heads": 4, "ffn_hidden_size": 16,
              "num_experts": 8, "image_size": 8, "channels": 3, "patch_size": 2, "num_classes": 5, "text_size": 0,
              "text_length": 0, "position": "rotary", "qk_norm": "whole"},
    "routing": {"method": "dtop_p", "experts": 3, "threshold": 0.4},
    "loss": {"load_balance": 0.1, "dynamic": 0.1, "router_z": 0.01},
    "diffusion": {"objective": "flow", "timesteps": "logit_normal", "flip": True, "condition_dropout": 0.3},
    "optimizer": {"lr": 1.0e-2, "min_lr": 1.0e-2, "warmup_steps": 3, "weight_decay": 0.1},
    "training": {"steps": 13, "global_batch_size": 4, "micro_batch_size": 2, "seed": 3, "precision": "fp32",
                 "device": "cpu", "threads": 1},
}
DENSE = {"model": {"num_experts": 1}, "loss": {"load_balance": 0.0, "dynamic": 0.0, "router_z": 0.0}}
TEXT = {"text_size": 6, "text_length": 3}


def merged(base, case):
    return {section: base.get(section, {}) | case.get(section, {}) for section in base | case}


class Program:
    """Runs dtopp_parity on one configuration."""

    def __init__(self, parity, directory, case):
        self.parity, self.directory = parity, directory
        self.path = directory / "run.yaml"
        self.path.write_text(yaml.safe_dump(merged(BASE, case)))

    def __call__(self, what, tensors, precision="fp32"):
        config = yaml.safe_load(self.path.read_text())
        config["training"]["precision"] = precision
        self.path.write_text(yaml.safe_dump(config))
        save_file({name: t.detach().contiguous() for name, t in tensors.items()}, self.directory / "input.safetensors")
        output = self.directory / f"{what}.safetensors"
        start.run([self.parity, what, self.path, self.directory / "input.safetensors", output], check=True,
                  timeout=120)
        return load_file(output)


def resolved(case):
    """The configuration with the defaults that the reference reads."""
    defaults = {"routing": {"scope": "global", "kp": 0.1, "ki": 0.1, "anti_windup": True,
                            "normalization": "dynamic", "renormalize": True, "max_experts": 0},
                "loss": {"router_z_on": "raw"},
                "optimizer": {"betas": [0.9, 0.95], "eps": 1e-8, "grad_clip": 1.0}}
    return merged(defaults, merged(BASE, case))


def pictures(model, count, seed):
    generator = torch.Generator().manual_seed(seed)
    size = model["image_size"]
    made = {"x0": torch.rand(count, model["channels"], size, size, generator=generator) * 2 - 1}
    if model["num_classes"]:
        made["label"] = torch.randint(model["num_classes"], (count,), generator=generator)
    if model["text_length"]:
        made["text"] = torch.randn(count, model["text_length"], model["text_size"], generator=generator)
    return made


def batch_of(config, count):
    """A hand-made batch with every kind of condition and with t at both ends."""
    made = pictures(config["model"], count, seed=5)
    generator = torch.Generator().manual_seed(6)
    t = torch.linspace(0, 0.999, count) if config["diffusion"]["objective"] == "ddpm" else torch.linspace(0, 1, count)
    batch = {"x0": made["x0"], "noise": torch.randn(made["x0"].shape, generator=generator),
             "t": (t * 1000).round() / 1000}
    if "label" in made:
        batch["class"] = made["label"]
        batch["class"][-1] = config["model"]["num_classes"]
    if "text" in made:
        batch["text"] = made["text"]
        batch["text"][-1] = 0
    return batch


def wide_parameters(initial, seed=4):
    """Parameters of the same names and shapes, none of them 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, tensor in initial.items():
        noise = torch.randn(tensor.shape, generator=generator)
        made[name] = 1 + 0.3 * noise if name.endswith(("_norm.weight", "gate.scale")) else 0.2 * noise
    return made


def distance(a, b):
    """Norm of the difference relative to the norm of b."""
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-12)).item()


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


def test_the_dense_block_is_that_of_diffusers(parity, tmp_path):
    """DiTTransformer2DModel with SwiGLU and dtopp's weights. Its modulation is per block, so it gets the
    shared modulation plus the block's table."""
    diffusers = pytest.importorskip("diffusers")
    case = {"model": {"num_experts": 1, "position": "sincos", "qk_norm": "none", "num_classes": 10, "ffn_hidden_size": 128},
            "loss": DENSE["loss"]}
    program = Program(parity, tmp_path, case)
    config = resolved(case)
    model = config["model"]
    names = program("diffusion-training", pictures(model, 4, seed=1))
    parameters = wide_parameters({key.removeprefix("initial/"): t for key, t in names.items() if key.startswith("initial/")})
    batch = batch_of(config, 5)
    got = program("diffusion", parameters | batch)["prediction"]
    x, _ = reference_diffusion.noised(config, batch["x0"], batch["noise"], batch["t"])
    with torch.no_grad():
        stock = diffusers_model(diffusers, model, parameters)
        want = stock(x, timestep=1000 * batch["t"], class_labels=batch["class"]).sample
    assert distance(got, want) < 1e-4


def diffusers_model(diffusers, model, p):
    stock = diffusers.DiTTransformer2DModel(
        num_attention_heads=model["num_heads"], attention_head_dim=model["hidden_size"] // model["num_heads"],
        in_channels=model["channels"], out_channels=model["channels"], num_layers=model["num_layers"],
        attention_bias=False, sample_size=model["image_size"], patch_size=model["patch_size"], activation_fn="swiglu",
        num_embeds_ada_norm=model["num_classes"], norm_eps=1e-6).eval()
    stock.pos_embed.proj.weight.copy_(p["patch_embed.weight"].view_as(stock.pos_embed.proj.weight))
    stock.pos_embed.proj.bias.copy_(p["patch_embed.bias"])
    for n, block in enumerate(stock.transformer_blocks):
        ours = {key.removeprefix(f"blocks.{n}."): t for key, t in p.items() if key.startswith(f"blocks.{n}.")}
        embed = block.norm1.emb
        embed.time_proj.downscale_freq_shift = 0  # the default has frequencies over 127; DiT's own code has 128
        for linear, key in ((embed.timestep_embedder.linear_1, "time_embed.0"),
                            (embed.timestep_embedder.linear_2, "time_embed.2")):
            linear.weight.copy_(p[key + ".weight"])
            linear.bias.copy_(p[key + ".bias"])
        embed.class_embedder.embedding_table.weight.copy_(p["class_embed.weight"])
        block.norm1.linear.weight.copy_(p["modulation.weight"])
        block.norm1.linear.bias.copy_(p["modulation.bias"] + ours["modulation"].flatten())
        for linear, key in ((block.attn1.to_q, "q"), (block.attn1.to_k, "k"), (block.attn1.to_v, "v"),
                            (block.attn1.to_out[0], "o")):
            linear.weight.copy_(ours[f"attention.{key}_proj.weight"])
        gate, up = ours["mlp.gate_up_proj.weight"].chunk(2)
        block.ff.net[0].proj.weight.copy_(torch.cat([up, gate]))
        block.ff.net[2].weight.copy_(ours["mlp.down_proj.weight"])
        for linear in (block.attn1.to_out[0], block.ff.net[0].proj, block.ff.net[2]):
            linear.bias.zero_()
    stock.proj_out_1.weight.copy_(p["final.modulation.weight"])
    stock.proj_out_1.bias.copy_(p["final.modulation.bias"] + p["final.table"].flatten())
    stock.proj_out_2.weight.copy_(p["final.proj.weight"])
    stock.proj_out_2.bias.copy_(p["final.proj.bias"])
    return stock
