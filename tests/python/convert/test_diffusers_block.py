"""Tests the dense diffusion transformer against diffusers'."""

import pytest
import reference_diffusion
import torch
from diffusion_program import DENSE, Program, batch_of, distance, pictures, resolved, wide_parameters

torch.set_num_threads(1)  # tiny tensors: a second thread costs more than it saves


@pytest.fixture(scope="module")
def parity(program):
    return program("dtopp_parity")


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
