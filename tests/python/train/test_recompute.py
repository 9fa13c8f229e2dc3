"""Tests training.recompute: parameters, moments, router states and metrics have the bits of a run that stores everything."""

import itertools

import pytest
import tiny_diffusion_run
import tiny_run
from needs import for_cpus, needs_program

pytestmark = [needs_program, for_cpus]

RUNS = {
    "top_k": ["routing.method=top_k"],
    "top_p": ["routing.method=top_p"],
    **tiny_run.ROUTERS,
    "dtop_p": [],
    "dtop_p_layerwise": ["routing.scope=layer", "routing.controller=solve"],
    "dense": ["model.num_experts=1"],
    "diffusion": [],
}
# Run, precision, ranks, ranks that share the experts, setting.
CASES = [
    ("dtop_p", "fp32", 1, 1, "moe"), ("dtop_p", "fp32", 2, 1, "layer"), ("dtop_p", "fp32", 2, 2, "moe"),
    ("dtop_p", "fp32", 2, 2, "layer"), ("dtop_p", "bf16", 1, 1, "layer"), ("dtop_p", "bf16", 2, 2, "layer"),
    ("top_k_bias", "fp32", 1, 1, "layer"), ("relu", "fp32", 2, 2, "layer"), ("expert_threshold", "bf16", 1, 1, "moe"),
    ("dtop_p_layerwise", "bf16", 1, 1, "moe"), ("dense", "fp32", 1, 1, "layer"), ("shared_experts", "fp32", 2, 2, "layer"),
    ("expert_normalization", "fp32", 2, 2, "layer"), ("expert_normalization", "bf16", 1, 1, "moe"),
    ("diffusion", "fp32", 1, 1, "layer"), ("diffusion", "fp32", 2, 2, "layer"),
]
EVERY = [case for case in itertools.product(RUNS, ["fp32", "bf16"], [1, 2, 4], [1, 2], ["moe", "layer"])
         if case[3] <= case[2] and not (case[0] == "dense" and (case[3] > 1 or case[4] == "moe"))]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains a case once and returns the folder of the run. With three micro-batches, one of two ranks has none in the
    second round."""
    folder, runs = tmp_path_factory.mktemp("runs"), {}
    configs = {"text": tiny_run.make(folder / "text")}

    def train(name, precision, ranks, experts, recompute):
        case = (name, precision, ranks, experts, recompute)
        if case not in runs:
            if name == "diffusion" and name not in configs:
                (folder / name).mkdir()
                configs[name] = tiny_diffusion_run.make(folder / name)
            run = folder / "-".join(map(str, case))
            done = tiny_run.dtopp("train", configs.get(name, configs["text"]), *RUNS[name], f"output={run}",
                                  f"training.precision={precision}", f"training.recompute={recompute}",
                                  f"training.global_batch_size={max(3, ranks)}", "training.micro_batch_size=1",
                                  "checkpoint.every=0", "validation.every=0", "logging.tensorboard=false",
                                  *(["--processes", ranks] if ranks > 1 else []), f"parallel.expert_parallel={experts}")
            assert done.returncode == 0, done.stderr
            runs[case] = run
        return runs[case]

    return train


@pytest.mark.parametrize("case", [*CASES, *tiny_run.in_full(*(case for case in EVERY if case not in CASES))], ids=str)
def test_recomputation_changes_no_bit(trained, case):
    run, reference = trained(*case), trained(*case[:-1], "none")
    assert tiny_run.state(run, 12) == tiny_run.state(reference, 12)
    assert tiny_run.timeless(tiny_run.metrics(run)) == tiny_run.timeless(tiny_run.metrics(reference))
