"""Two processes, with DistributedDataParallel or FSDP2, train like one: the parameters are the same, and the
controller counts the tokens of both."""

import pytest
import torch
from package_ranks import KINDS, MICRO_BATCHES, RANKS, STEPS, Model, batch, rank, train

import dtopp


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(rank, (str(folder),), nprocs=RANKS)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_as_one_does(kind, folder):
    model = Model()
    controller = dtopp.ThresholdController(model, kp=1.0, controller="solve" if kind.startswith("fsdp2") else "pi")
    thresholds = train(model, controller, lambda step: [batch(step, n) for n in range(RANKS * MICRO_BATCHES)])
    assert len(set(thresholds)) == STEPS
    numbers = controller.metrics()
    of_ranks = [torch.load(folder / f"{kind}-{number}.pt") for number in range(RANKS)]
    # The first process gathers FSDP2's state.
    for name, parameter in model.state_dict().items():
        torch.testing.assert_close(of_ranks[0]["state"][name], parameter, rtol=1e-5, atol=1e-7)
    for one in of_ranks:
        assert one["thresholds"] == pytest.approx(thresholds, rel=1e-6 if kind.startswith("fsdp2") else 1e-12)
        assert one["metrics"] == pytest.approx(numbers, rel=1e-5)
        assert one["normalization"] == pytest.approx(controller.state_dict()["layer_00.logit_square_C"], rel=1e-5)
    assert of_ranks[0]["thresholds"] == of_ranks[1]["thresholds"]
