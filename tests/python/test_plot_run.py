"""scripts/plot_run.py on the metrics of real runs, one of each kind of routing. A stand-in for matplotlib, which tests do not
need, writes down what is drawn."""

import json
import os
import subprocess
import sys

import pytest
import tiny_run

pytestmark = pytest.mark.skipif(not tiny_run.BINARY.exists(), reason=f"{tiny_run.BINARY} is not built")

PYPLOT = """
import json

class Axis:
    def __init__(self):
        self.drawn = {"lines": []}
    def __getattr__(self, name):
        return lambda *arguments, **options: None
    def plot(self, x, y, *style, **options):
        assert len(x) == len(y) > 0
        self.drawn["lines"].append(options.get("label"))
    def axhline(self, y, **options):
        self.drawn["target"] = y
    def set(self, **options):
        self.drawn |= options
    @property
    def spines(self):
        return Spines()

class Spines:
    def __getitem__(self, names):
        return Axis()

class Figure:
    def __init__(self, axes):
        self.axes = axes
    def savefig(self, path, **options):
        path.write_text(json.dumps([axis.drawn for axis in self.axes]))

def subplots(rows, columns, squeeze=True, **options):
    axes = [Axis() for _ in range(columns)]
    return Figure(axes), axes if squeeze else [axes]
"""


@pytest.fixture
def drawn(tmp_path):
    """drawn(overrides): trains a tiny run with them and gives what each panel of its plot shows."""
    stand_in = tmp_path / "modules/matplotlib"
    stand_in.mkdir(parents=True)
    (stand_in / "__init__.py").write_text("def use(backend): pass\n")
    (stand_in / "pyplot.py").write_text(PYPLOT)

    def draw(*overrides):
        done = tiny_run.dtopp("train", tiny_run.make(tmp_path), *overrides, "training.steps=4")
        assert done.returncode == 0, done.stderr
        done = subprocess.run([sys.executable, tiny_run.ROOT / "scripts/plot_run.py", tmp_path / "run", tmp_path / "plot"],
                              env=os.environ | {"PYTHONPATH": str(stand_in.parent)}, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "plot").read_text())

    return draw


TITLES = ["Cross entropy (nats a token)", "Active experts a token", "Threshold p"]


@pytest.mark.parametrize("overrides,panels,target", [
    (["model.num_experts=1"], 1, None),
    (["routing.method=top_k", "routing.top_k=3"], 2, None),
    (["routing.method=top_p"], 3, None),
    ([], 3, 3.0),
    (["routing.scope=layer", "routing.target_experts=[2, 4]"], 3, 3.0),
], ids=["dense", "top_k", "top_p", "dtop_p", "dtop_p-layer"])
def test_each_routing_gets_the_panels_it_has_figures_for(drawn, overrides, panels, target):
    plot = drawn(*overrides)
    assert [panel["title"] for panel in plot] == TITLES[:panels]
    assert plot[0]["lines"] == ["training", "held-out"]
    if panels > 1:
        assert plot[1].get("target") == target


def test_a_run_without_validation_has_its_training_loss_drawn(drawn):
    assert drawn("validation.every=0")[0]["lines"] == ["training"]
