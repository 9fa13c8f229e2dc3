"""Damaged and unsuitable images are named and counted. Interruptions leave no trace. Of malicious images and files of other programs,
nothing is written outside the folder, and they take no memory."""

import gzip
import io
import os
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zlib

import numpy as np
import pytest
from image_files import about, encoded, jpeg, photograph, pictures, prepare, tensors, write_tar
from manifests import contents, times
from PIL import Image
from safetensors.numpy import save_file


def png_claiming(width, height):
    """A PNG whose header claims this many pixels, followed by a few bytes of data."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b""))


def jpeg_claiming(width, height):
    file = bytearray(jpeg(1))
    at = file.index(b"\xff\xc0")
    file[at + 5:at + 9] = struct.pack(">HH", height, width)
    return bytes(file)


def webp_claiming(width, height):
    exif = Image.Exif()
    exif[0x0112] = 1
    file = bytearray(encoded(photograph(1, 32, 32), "WEBP", lossless=True, exif=exif))
    at = file.index(b"VP8X")
    file[at + 12:at + 18] = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    return bytes(file)


def jpeg_of_scans(scans, side=8):
    """A valid progressive JPEG of a gray square, with a separate scan for each bit of each coefficient."""
    def segment(marker, data):
        return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + bytes(data)
    one_symbol = [1] + 15 * [0] + [0]  # a Huffman table: the code 0 means 0
    file = b"\xff\xd8" + segment(0xDB, [0] + 64 * [1]) + segment(0xC2, [8, *struct.pack(">HH", side, side), 1, 1, 0x11, 0])
    file += segment(0xC4, [0x00] + one_symbol) + segment(0xC4, [0x10] + one_symbol)
    zeros = b"\x7f" if side == 8 else bytes((side // 8) ** 2 // 8)  # a bit per block
    for scan in range(scans):
        coefficient, low = scan // 14, 13 - scan % 14
        high = 0 if low == 13 else low + 1
        file += segment(0xDA, [1, 1, 0, coefficient, coefficient, high << 4 | low]) + zeros
    return file + b"\xff\xd9"


def cut(file):
    return file[:len(file) // 2]


def flipped(file, at):
    file = bytearray(file)
    file[at] ^= 0x40
    return bytes(file)


PNG = encoded(photograph(3, 32, 32), "PNG")
WEBP = encoded(photograph(4, 32, 32), "WEBP", lossless=True)

BAD = {
    "cut.jpg": cut(jpeg(2)),
    "cut.png": cut(PNG),
    "cut.webp": cut(WEBP),
    "no_end.png": PNG[:-12],
    "flipped.png": flipped(PNG, len(PNG) // 2),
    "empty.jpg": b"",
    "text.jpg": b"hello",
    "animation.gif": encoded(photograph(5, 32, 32), "GIF"),
    "bomb.png": png_claiming(60000, 60000),
    "wide.png": png_claiming(2**31 - 1, 1),
    "bomb.jpg": jpeg_claiming(65000, 65000),
    "bomb.webp": webp_claiming(2**24, 2**7),
    "scans.jpg": jpeg_of_scans(64 * 14),
    "short.png": png_claiming(32, 33),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_picture_is_named_and_ends_with_3(dtopp_binary, tmp_path, name):
    source = write_tar(tmp_path / "a.tar", {"x/0.jpg": jpeg(1), f"x/{name}": BAD[name], "x/2.jpg": jpeg(2)})
    started = time.time()
    prepare(dtopp_binary, [source], tmp_path / "out", status=3, names=[f"a.tar: x/{name}: ", "--max-bad"])
    assert time.time() - started < 20


def test_a_large_jpeg_may_have_fewer_scans(dtopp_binary, tmp_path):
    for scans, status, names in [(50, 0, ()), (100, 3, "more than 59 scans")]:  # 10^9 / 4096^2
        source = write_tar(tmp_path / f"{scans}.tar", {"x/0.jpg": jpeg_of_scans(scans, 4096)})
        prepare(dtopp_binary, [source], tmp_path / f"{scans}", "--size", 16, status=status, names=names)


def test_bad_pictures_are_left_out_up_to_max_bad(dtopp_binary, tmp_path):
    good = {f"good/{i}.jpg": jpeg(i) for i in range(3)}
    members = dict(zip([*good][:2], [*good.values()][:2])) | {f"good/{name}": file for name, file in BAD.items()}
    source = write_tar(tmp_path / "a.tar", members | {"good/2.jpg": good["good/2.jpg"]})
    prepare(dtopp_binary, [source], tmp_path / "out", "--max-bad", len(BAD) - 1, status=3, names=f"{len(BAD) - 1} such samples")
    done = prepare(dtopp_binary, [source], tmp_path / "out", "--max-bad", len(BAD))
    assert f"skipped  {len(BAD)}" in done.stdout
    assert [skipped["name"].split("/")[-1] for skipped in about(tmp_path / "out")["skipped"]] == list(BAD)
    prepare(dtopp_binary, [write_tar(tmp_path / "b.tar", good)], tmp_path / "good")
    assert (tmp_path / "out/images-00001.safetensors").read_bytes() == \
        (tmp_path / "good/images-00001.safetensors").read_bytes()


@pytest.mark.parametrize("make", [
    lambda tar: tar[:700],  # within a member
    lambda tar: tar[:1024 + 512 * (len(jpeg(1)) // 512)],  # between two members
    lambda tar: b"",
    lambda tar: b"not a tar at all" * 100,
    lambda tar: tar[:300] + b"\xff" + tar[301:],
], ids=["within", "between", "empty", "text", "flipped"])
def test_a_damaged_tar_is_named(dtopp_binary, tmp_path, make):
    tar = write_tar(tmp_path / "whole.tar", {"x/0.jpg": jpeg(1), "x/1.jpg": jpeg(2)}).read_bytes()
    (tmp_path / "bad.tar").write_bytes(make(tar))
    prepare(dtopp_binary, [tmp_path / "bad.tar"], tmp_path / "out", status=3, names="bad.tar: ")


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_damaged_compressed_tar_is_named(dtopp_binary, tmp_path, kind):
    tar = write_tar(tmp_path / "a.tar", {f"x/{i}.jpg": jpeg(i) for i in range(30)})
    whole = gzip.compress(tar.read_bytes()) if kind == "gz" else \
        subprocess.run(["zstd", "-qc", tar], capture_output=True, check=True).stdout
    for damaged in (whole[:len(whole) // 2], flipped(whole, len(whole) // 2)):
        (tmp_path / f"a.tar.{kind}").write_bytes(damaged)
        prepare(dtopp_binary, [tmp_path / f"a.tar.{kind}"], tmp_path / "out", status=3, names=f"a.tar.{kind}: byte")


@pytest.mark.parametrize("sources, options, status, names", [
    (["missing.tar"], [], 3, "missing.tar"),
    (["empty"], [], 3, "empty"),
    (["a.txt"], [], 2, "a.txt"),
    ([], [], 2, "sources"),
    (["mixed.tar"], [], 3, ["1.jpg", "3 x 40 x 40", "3 x 32 x 32", "--size"]),
    (["mixed.tar"], ["--size", "0"], 2, "--size"),
    (["mixed.tar"], ["--size", "5000"], 2, "--size"),
    (["mixed.tar"], ["--size", "many"], 2, "--size"),
    (["mixed.tar"], ["--channels", "2"], 2, "--channels"),
    (["mixed.tar"], ["--size", "8", "--scale", "2"], 2, "--scale"),
    (["mixed.tar"], ["--max-bad", "-1"], 2, "--max-bad"),
    (["kinds"], [], 3, ["1.npy", "latent"]),
    (["classes.tar"], [], 3, ["1.jpg: ", "folder"]),
    (["numbers.tar"], [], 3, ["1.jpg: ", "class"]),
    (["words.tar"], [], 3, ["words.tar: 0.jpg: ", ".cls"]),
    (["nan.safetensors"], [], 3, "nan.safetensors: sample 1"),
    (["short.safetensors"], [], 3, ["short.safetensors", "labels"]),
    (["latents.npy"], ["--size", "8"], 3, ["latents.npy", "--size"]),
    (["latents.npy"], ["--scale", "1,2,3"], 2, ["--scale", "4 channels"]),
    (["latents.npy"], ["--scale", "nan"], 2, "--scale"),
    (["latents.npy"], ["--scale", "0"], 2, "--scale"),
    (["objects.npy"], [], 3, ["objects.npy", "dtype"]),
    (["texts.tar"], [], 3, ["1.jpg: ", "F32 x 4", "F32 x 3"]),
    (["text_missing.tar"], [], 3, ["1.jpg: ", "text"]),
])
def test_what_does_not_fit_is_one_line_and_the_right_status(dtopp_binary, tmp_path, sources, options, status, names):
    def npy(array):
        file = io.BytesIO()
        np.save(file, array)
        return file.getvalue()
    def latents(n):
        return np.ones((n, 4, 8, 8), np.float32)
    (tmp_path / "empty").mkdir()
    (tmp_path / "kinds/x").mkdir(parents=True)
    (tmp_path / "kinds/x/0.jpg").write_bytes(jpeg(0))
    (tmp_path / "kinds/x/1.npy").write_bytes(npy(latents(1)))
    (tmp_path / "a.txt").write_text("text")
    write_tar(tmp_path / "mixed.tar", {"0.jpg": jpeg(0), "1.jpg": jpeg(1, 40)})
    write_tar(tmp_path / "classes.tar", {"x/0.jpg": jpeg(0), "1.jpg": jpeg(1)})
    write_tar(tmp_path / "numbers.tar", {"0.jpg": jpeg(0), "0.cls": b"3", "1.jpg": jpeg(1)})
    write_tar(tmp_path / "words.tar", {"0.jpg": jpeg(0), "0.cls": b"dog"})
    save_file({"latents": np.stack([latents(1)[0], latents(1)[0] * np.nan])}, tmp_path / "nan.safetensors")
    save_file({"latents": latents(2), "labels": np.zeros(3, np.int64)}, tmp_path / "short.safetensors")
    np.save(tmp_path / "latents.npy", latents(2))
    np.save(tmp_path / "objects.npy", np.zeros((2, 4, 8, 8), complex))
    write_tar(tmp_path / "texts.tar", {"0.jpg": jpeg(0), "0.npy": npy(np.ones((2, 3), np.float32)),
                                       "1.jpg": jpeg(1), "1.npy": npy(np.ones((2, 4), np.float32))})
    write_tar(tmp_path / "text_missing.tar", {"0.jpg": jpeg(0), "0.npy": npy(np.ones((2, 3), np.float32)),
                                              "1.jpg": jpeg(1)})
    prepare(dtopp_binary, [tmp_path / name for name in sources], tmp_path / "out", *options, status=status, names=names)


# A killed process loses its work since the last record; it writes a record every five seconds.
@pytest.mark.parametrize("stop, part, delays", [(signal.SIGTERM, "validation", [0.05, 0.3, 0.5, 0.7]),
                                                (signal.SIGKILL, "train", [0.1, 6.5])])
def test_stopped_and_started_again_gives_the_same_bytes(dtopp_binary, dtopp_data, tmp_path, stop, part, delays):
    source = dtopp_data / f"data/images/cifar10-{part}.tar.zst"
    options = ["--size", "70"]  # too large to be stored as pixels
    command = [dtopp_binary, "prepare", "images", source, "--output", tmp_path / "out", *options, "--workers", "1"]
    prepare(dtopp_binary, [source], tmp_path / "whole", *options)
    for delay in delays:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(delay)
        process.send_signal(stop)
        errors = process.communicate()[1]
        # A signal before the handlers are installed ends the process as usual. A signal after the end has no
        # effect.
        assert process.returncode in (75, -stop, 0), errors
    done = prepare(dtopp_binary, [source], tmp_path / "out", *options)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    written = times(tmp_path / "out")
    assert prepare(dtopp_binary, [source], tmp_path / "out", *options).stdout == done.stdout
    assert times(tmp_path / "out") == written


def test_another_job_in_the_same_folder_is_refused(dtopp_binary, tmp_path):
    source = write_tar(tmp_path / "a.tar", {f"x/{i}.jpg": jpeg(i) for i in range(3)})
    prepare(dtopp_binary, [source], tmp_path / "out")
    before = contents(tmp_path / "out")
    for sources, options, names in (([source], ["--size", 16], ["--size 0", "16"]), ([source], ["--channels", 1], "--channels"),
                                    ([source] * 2, [], ["1 sources", "2"])):
        prepare(dtopp_binary, sources, tmp_path / "out", *options, status=2, names=names)
    write_tar(source, {f"x/{i}.jpg": jpeg(i + 1) for i in range(3)})
    prepare(dtopp_binary, [source], tmp_path / "out", status=2, names=tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_any_number_of_workers_gives_the_same_bytes(dtopp_binary, tmp_path):
    members = {f"{'ab'[i % 2]}/{i}.jpg": encoded(photograph(i, 50 + i, 90 - i), "JPEG") for i in range(60)}
    source = write_tar(tmp_path / "a.tar", members)
    for workers in (1, 2, 7):
        prepare(dtopp_binary, [source], tmp_path / f"out{workers}", "--size", 72, "--workers", workers)
        assert contents(tmp_path / f"out{workers}") == contents(tmp_path / "out1")
    assert len(pictures(tmp_path / "out1")) == 60 and len(tensors(tmp_path / "out1")["labels"]) == 60


def link(kind, target):
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


def device():
    info = tarfile.TarInfo()
    info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, 1, 5
    return info


HOSTILE = {
    "../../escaped.jpg": jpeg(1),
    "a/../../escaped.jpg": jpeg(1),
    "/tmp/dtopp-escaped.jpg": jpeg(1),
    "x/symbolic.jpg": link(tarfile.SYMTYPE, "/etc/passwd"),
    "x/hard.jpg": link(tarfile.LNKTYPE, "/etc/passwd"),
    "x/device.jpg": device(),
    "x/new\nline\x1b[2J.jpg": jpeg(1),
    "x/" + 5000 * "n" + ".jpg": jpeg(1),
}


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: name[:20].encode("unicode_escape").decode())
def test_a_hostile_member_is_refused_and_nothing_is_written_outside(dtopp_binary, tmp_path, name):
    (tmp_path / "inner").mkdir()
    source = write_tar(tmp_path / "a.tar", {"x/0.jpg": jpeg(1), name: HOSTILE[name]})
    done = prepare(dtopp_binary, [source], tmp_path / "inner/out", status=3, names="a.tar: ")
    assert "\x1b" not in done.stderr
    prepare(dtopp_binary, [source], tmp_path / "inner/out", "--max-bad", 1)
    assert about(tmp_path / "inner/out")["images"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "inner"]
    assert sorted(path.name for path in (tmp_path / "inner").iterdir()) == ["out"]
    assert sorted(contents(tmp_path / "inner/out")) == [".lock", "images-00001.safetensors", "manifest.json"]


# Its own peak is small: a child's peak starts at the memory of its parent.
PEAK_OF_CHILD = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
sys.exit(status)
"""


def peak_of_preparing(dtopp_binary, source, output, status=0):
    """The largest resident memory in bytes, and the error output."""
    command = [dtopp_binary, "prepare", "images", source, "--output", output, "--workers", "2"]
    done = subprocess.run([sys.executable, "-c", PEAK_OF_CHILD, *command], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return int(done.stdout), done.stderr


def test_a_bomb_of_zeros_in_a_tar_takes_neither_memory_nor_long(dtopp_binary, tmp_path):
    info = tarfile.TarInfo("x/zeros.jpg")
    info.size = 2**33
    with gzip.open(tmp_path / "a.tar.gz", "wb", compresslevel=1) as bomb:
        bomb.write(info.tobuf())
        for _ in range(300):
            bomb.write(bytes(1 << 20))
    started = time.time()
    peak, printed = peak_of_preparing(dtopp_binary, tmp_path / "a.tar.gz", tmp_path / "out", status=3)
    assert "a.tar.gz" in printed
    assert peak < 300e6, peak  # the program itself takes 130 MB
    assert time.time() - started < 30


@pytest.mark.parametrize("kind", ["tar", "folder"])
def test_memory_does_not_grow_with_the_number_of_large_pictures(dtopp_binary, tmp_path, kind):
    file = io.BytesIO()
    Image.new("RGB", (1550, 1550), (9, 8, 7)).save(file, "WEBP", lossless=True)
    assert len(file.getvalue()) < 200, "7 MB of pixels in a small file"
    peaks = []
    for count in (8, 64):
        members = {f"x/{i}.webp": file.getvalue() for i in range(count)}
        source = tmp_path / f"{count}.tar"
        write_tar(source, members)
        if kind == "folder":
            source = tmp_path / f"{count}"
            (source / "x").mkdir(parents=True)
            for name, content in members.items():
                (source / name).write_bytes(content)
        peaks.append(peak_of_preparing(dtopp_binary, source, tmp_path / f"out{count}")[0])
    assert peaks[1] - peaks[0] < 100e6, peaks


def test_links_in_a_folder_are_followed_but_not_in_circles(dtopp_binary, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store/a.jpg").write_bytes(jpeg(1))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat").symlink_to(tmp_path / "store")
    prepare(dtopp_binary, [tmp_path / "photos"], tmp_path / "out")
    assert about(tmp_path / "out")["classes"] == ["cat"]
    (tmp_path / "store/back").symlink_to(tmp_path / "photos")
    prepare(dtopp_binary, [tmp_path / "photos"], tmp_path / "out2", status=3, names="back")


def test_unreadable_files_of_a_folder_are_named(dtopp_binary, tmp_path):
    (tmp_path / "photos/x").mkdir(parents=True)
    (tmp_path / "photos/x/a.jpg").write_bytes(jpeg(1))
    (tmp_path / "photos/x/b.jpg").symlink_to("nowhere")
    subprocess.run(["mkfifo", tmp_path / "photos/x/c.jpg"], check=True)
    prepare(dtopp_binary, [tmp_path / "photos"], tmp_path / "out", status=3, names="x/b.jpg: ")
    prepare(dtopp_binary, [tmp_path / "photos"], tmp_path / "out", "--max-bad", 1, status=3, names="x/c.jpg: ")
    prepare(dtopp_binary, [tmp_path / "photos"], tmp_path / "out", "--max-bad", 2)


def test_a_folder_of_another_program_is_left_as_it_is(dtopp_binary, tmp_path):
    source = write_tar(tmp_path / "a.tar", {"x/0.jpg": jpeg(1)})
    (tmp_path / "out").mkdir()
    (tmp_path / "out/manifest.json").write_text('{"made by": "another program"}')
    prepare(dtopp_binary, [source], tmp_path / "out", status=2, names="manifest.json")
    assert sorted(contents(tmp_path / "out")) == ["manifest.json"]
