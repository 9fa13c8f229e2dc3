"""Tests `dtopp prepare images` against Pillow, NumPy and safetensors: pixels, labels, latents, text."""

import gzip
import io
import json
import subprocess
import tarfile

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from image_files import (about, encoded, expected, photograph, pictures, prepare, tensors,
                         write_tar)


def exif(orientation):
    data = Image.Exif()
    data[0x0112] = orientation
    return data


def animation(picture):
    frames = [picture.rotate(90 * i) for i in range(3)]
    return encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)


def sixteen_bit_gray(picture):
    """16-bit values: high bytes from the picture, low bytes all set, so rounding instead of truncation would
    show."""
    return Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 256 + 255)


def with_alpha(picture):
    picture = picture.convert("RGBA")
    alpha = np.linspace(0, 255, picture.width * picture.height).reshape(picture.height, picture.width)
    picture.putalpha(Image.fromarray(alpha.astype(np.uint8)))
    return picture


KINDS = {
    "jpeg": lambda p: encoded(p, "JPEG", quality=90),
    "jpeg_444": lambda p: encoded(p, "JPEG", quality=95, subsampling=0),
    "jpeg_progressive": lambda p: encoded(p, "JPEG", progressive=True),
    "jpeg_gray": lambda p: encoded(p.convert("L"), "JPEG"),
    "jpeg_cmyk": lambda p: encoded(p.convert("CMYK"), "JPEG"),
    "png": lambda p: encoded(p, "PNG"),
    "png_gray": lambda p: encoded(p.convert("L"), "PNG"),
    "png_palette": lambda p: encoded(p.quantize(60), "PNG"),
    "png_palette_transparent": lambda p: encoded(p.quantize(60), "PNG", transparency=3),
    "png_bilevel": lambda p: encoded(p.convert("1"), "PNG"),
    "png_alpha": lambda p: encoded(with_alpha(p), "PNG"),
    "png_gray_alpha": lambda p: encoded(with_alpha(p).convert("LA"), "PNG"),
    "webp": lambda p: encoded(p, "WEBP", quality=80),
    "webp_lossless": lambda p: encoded(p, "WEBP", lossless=True),
    "webp_alpha": lambda p: encoded(with_alpha(p), "WEBP", lossless=True, exact=True),
    "webp_animated": animation,
} | {f"jpeg_orientation_{i}": lambda p, i=i: encoded(p, "JPEG", exif=exif(i)) for i in range(1, 9)} | {
    "png_orientation": lambda p: encoded(p, "PNG", exif=exif(6)),
    "webp_orientation": lambda p: encoded(p, "WEBP", lossless=True, exif=exif(8)),
}


@pytest.mark.parametrize("mode, channels", [("RGB", 3), ("L", 1)])
@pytest.mark.parametrize("size", [48, 96])
def test_every_kind_of_picture_is_pillows_within_one_level(dtopp_binary, tmp_path, mode, channels, size):
    files = {f"{name}.{name.split('_')[0]}": make(photograph(i, 157 + i, 301 - 3 * i))
             for i, (name, make) in enumerate(sorted(KINDS.items()))}
    prepare(dtopp_binary, [write_tar(tmp_path / "a.tar", files)], tmp_path / "out", "--size", size,
            "--channels", channels)
    stored = pictures(tmp_path / "out")
    assert len(stored) == len(files)
    for (name, file), ours in zip(files.items(), stored):
        difference = np.abs(ours.astype(int) - expected(file, size, mode))
        assert ours.shape == (size, size, channels) and difference.max() <= 1, (name, difference.max())


def test_sixteen_bits_keep_their_high_byte(dtopp_binary, tmp_path):
    picture = photograph(1, 40, 40)
    write_tar(tmp_path / "a.tar", {"a.png": encoded(sixteen_bit_gray(picture), "PNG")})
    prepare(dtopp_binary, [tmp_path / "a.tar"], tmp_path / "out", "--channels", "1")
    assert np.array_equal(pictures(tmp_path / "out")[0][..., 0], np.asarray(picture.convert("L")))


@pytest.mark.parametrize("size", [1, 7, 32, 64, 65, 128, 250])
def test_crop_and_resize_are_adms_exactly(dtopp_binary, tmp_path, size):
    shapes = [(1, 1), (3, 200), (200, 3), (31, 32), (63, 64), (64, 64), (65, 129), (128, 128), (257, 511),
              (640, 427), (1023, 300), (300, 1023), (100, 450), (size, size), (size + 1, 2 * size + 1), (4 * size + 3, 4 * size + 1)]
    files = {f"{i:02}.png": encoded(photograph(i, *shape), "PNG") for i, shape in enumerate(shapes)}
    prepare(dtopp_binary, [write_tar(tmp_path / "a.tar", files)], tmp_path / "out", "--size", size)
    for shape, file, ours in zip(shapes, files.values(), pictures(tmp_path / "out")):
        assert np.array_equal(ours, expected(file, size)), shape


def test_cifar_is_stored_as_pillow_decodes_it(dtopp_binary, dtopp_data, tmp_path):
    source = dtopp_data / "data/images/cifar10-validation.tar.zst"
    done = prepare(dtopp_binary, [source], tmp_path / "out")
    assert "2000 of 3 x 32 x 32" in done.stdout
    tar = tarfile.open(fileobj=io.BytesIO(subprocess.run(["zstd", "-dc", source], capture_output=True).stdout))
    members = [(member.name, tar.extractfile(member).read()) for member in tar if member.isfile()]
    classes = sorted({name.split("/")[-2] for name, _ in members})
    facts, stored = about(tmp_path / "out"), tensors(tmp_path / "out")
    assert facts["classes"] == classes and len(classes) == 10
    assert stored["labels"].tolist() == [classes.index(name.split("/")[-2]) for name, _ in members]
    for (name, file), ours in zip(members, stored["images"]):
        assert np.abs(ours.transpose(1, 2, 0).astype(int) - expected(file)).max() <= 1, name


def test_folders_archives_and_their_compressions_give_the_same(dtopp_binary, tmp_path):
    files = {f"{label}/{i}.jpg": encoded(photograph(i, 40 + i, 50), "JPEG")
             for label in ("ant", "bee", "émeu") for i in range(3)}
    for name, file in files.items():
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(file)
    (tmp_path / "photos/README.md").write_text("not a picture")
    (tmp_path / "photos/ant/.DS_Store").write_bytes(b"\0")
    (tmp_path / "photos/ant/._0.jpg").write_bytes(b"\0")
    tar = write_tar(tmp_path / "a.tar", {f"./{name}": file for name, file in files.items()})
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(tar.read_bytes()))
    subprocess.run(["zstd", "-q", tar, "-o", tmp_path / "c.tar.zst"], check=True)
    outputs = []
    for i, source in enumerate(["photos", "a.tar", "b.tar.gz", "c.tar.zst"]):
        prepare(dtopp_binary, [tmp_path / source], tmp_path / f"out{i}", "--size", "32", "--workers", i + 1)
        assert about(tmp_path / f"out{i}")["classes"] == ["ant", "bee", "émeu"]
        outputs.append((tmp_path / f"out{i}/images-00001.safetensors").read_bytes())
    assert all(output == outputs[0] for output in outputs)
    assert tensors(tmp_path / "out0")["labels"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_several_tars_in_one_file_are_read_as_one(dtopp_binary, tmp_path):
    tars = [write_tar(tmp_path / f"{i}.tar", {f"x/{i}.png": encoded(photograph(i, 16, 16), "PNG")}).read_bytes()
            for i in range(2)]
    (tmp_path / "both.tar").write_bytes(tars[0] + tars[1])
    (tmp_path / "both.tar.gz").write_bytes(gzip.compress(tars[0]) + gzip.compress(tars[1]))
    for source in ("both.tar", "both.tar.gz"):
        prepare(dtopp_binary, [tmp_path / source], tmp_path / f"out_{source}")
        for i, ours in enumerate(pictures(tmp_path / f"out_{source}")):
            assert np.array_equal(ours, np.asarray(photograph(i, 16, 16)))
        assert about(tmp_path / f"out_{source}")["images"] == 2


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_webdataset_members_give_classes_and_text(dtopp_binary, tmp_path):
    rng = np.random.default_rng(1)
    texts = [rng.normal(size=(length, 5)).astype(np.float16) for length in (3, 0, 7)]
    members = {}
    for i, text in enumerate(texts):
        members |= {f"{i:05}.cls": f"{7 - i}\n".encode(), f"{i:05}.json": b'{"label": 99}',
                    f"{i:05}.npy": npy(text), f"{i:05}.png": encoded(photograph(i, 16, 16), "PNG"),
                    f"{i:05}.txt": b"a caption"}
    prepare(dtopp_binary, [write_tar(tmp_path / "a.tar", members)], tmp_path / "out")
    stored, facts = tensors(tmp_path / "out"), about(tmp_path / "out")
    assert stored["labels"].tolist() == [7, 6, 5] and facts["classes"] == [str(i) for i in range(8)]
    assert facts["text"] == {"dtype": "F16", "size": 5, "longest": 7}
    assert stored["text_offsets"].tolist() == [0, 3, 3, 10]
    assert np.array_equal(stored["text"], np.concatenate(texts))


def test_labels_in_json_and_sources_one_after_another(dtopp_binary, tmp_path):
    def member(i):
        return {f"x/{i}.json": json.dumps({"label": i, "other": []}).encode(),
                f"x/{i}.jpg": encoded(photograph(i, 16, 16), "JPEG")}
    write_tar(tmp_path / "a.tar", member(2) | member(0))
    write_tar(tmp_path / "b.tar", member(1))
    prepare(dtopp_binary, [tmp_path / "b.tar", tmp_path / "a.tar"], tmp_path / "out")
    assert tensors(tmp_path / "out")["labels"].tolist() == [1, 2, 0]


def test_pictures_without_classes(dtopp_binary, tmp_path):
    write_tar(tmp_path / "a.tar", {f"{i}.jpg": encoded(photograph(i, 16, 16), "JPEG") for i in range(3)})
    prepare(dtopp_binary, [tmp_path / "a.tar"], tmp_path / "out")
    assert "labels" not in tensors(tmp_path / "out") and about(tmp_path / "out")["classes"] == []


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_latents_keep_their_bits(dtopp_binary, tmp_path, dtype):
    rng = np.random.default_rng(2)
    arrays = {"latents": rng.normal(size=(5, 4, 8, 8)).astype(dtype),
              "latents_flip": rng.normal(size=(5, 4, 8, 8)).astype(dtype),
              "labels": np.array([3, 1, 0, 2, 2]), "text": rng.normal(size=(5, 6, 9)).astype(np.float32)}
    save_file(arrays, tmp_path / "a.safetensors")
    prepare(dtopp_binary, ["--scale", "0.3611", "--shift", "0.1159,0,0,1", tmp_path / "a.safetensors"],
            tmp_path / "out")
    stored, facts = tensors(tmp_path / "out"), about(tmp_path / "out")
    for name in ("latents", "latents_flip", "labels"):
        assert np.array_equal(stored[name], arrays[name]) and stored[name].dtype == arrays[name].dtype
    assert np.array_equal(stored["text"].reshape(5, 6, 9), arrays["text"])
    assert facts["job"]["scale"] == [0.3611] and facts["job"]["shift"] == [0.1159, 0, 0, 1]


def test_latents_in_npy_files(dtopp_binary, tmp_path):
    latents = np.random.default_rng(3).normal(size=(4, 4, 8, 8)).astype(np.float32)
    np.save(tmp_path / "all.npy", latents)
    for i, latent in enumerate(latents):
        (tmp_path / f"by_class/{'dc'[i // 2]}").mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / f"by_class/{'dc'[i // 2]}/{i}.npy", latent[None] if i % 2 else latent)
    prepare(dtopp_binary, [tmp_path / "all.npy"], tmp_path / "out0")
    prepare(dtopp_binary, [tmp_path / "by_class"], tmp_path / "out1")
    assert np.array_equal(tensors(tmp_path / "out0")["latents"], latents)
    assert np.array_equal(tensors(tmp_path / "out1")["latents"], latents[[2, 3, 0, 1]])
    assert tensors(tmp_path / "out1")["labels"].tolist() == [0, 0, 1, 1]


def test_pixels_as_arrays(dtopp_binary, tmp_path):
    images = np.random.default_rng(4).integers(0, 256, (6, 3, 16, 24), np.uint8)
    save_file({"images": images, "labels": np.arange(6, dtype=np.int32)}, tmp_path / "a.safetensors")
    prepare(dtopp_binary, [tmp_path / "a.safetensors"], tmp_path / "out")
    assert np.array_equal(tensors(tmp_path / "out")["images"], images)
    prepare(dtopp_binary, [tmp_path / "a.safetensors"], tmp_path / "small", "--size", "8")
    for ours, image in zip(pictures(tmp_path / "small"), images):
        assert np.array_equal(ours, expected(encoded(Image.fromarray(image.transpose(1, 2, 0)), "PNG"), 8))


def test_pictures_of_the_right_size_keep_their_bytes(dtopp_binary, tmp_path):
    files = [encoded(photograph(1, 80, 80), "JPEG"), encoded(photograph(2, 80, 80), "PNG")]
    write_tar(tmp_path / "a.tar", {"0.jpg": files[0], "1.png": files[1]})
    prepare(dtopp_binary, [tmp_path / "a.tar"], tmp_path / "out", "--size", "80")
    assert tensors(tmp_path / "out")["bytes"].tobytes() == b"".join(files)
