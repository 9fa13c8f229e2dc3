"""Malicious images and files of other programs: nothing is written outside the folder, and they take no
memory."""

import gzip
import io
import os
import subprocess
import tarfile
import time

import pytest
from PIL import Image

from folder_contents import contents
from image_files import about, jpeg, prepare, write_tar


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


def test_a_bomb_of_zeros_in_a_tar_takes_neither_memory_nor_long(dtopp_binary, tmp_path):
    info = tarfile.TarInfo("x/zeros.jpg")
    info.size = 2**33
    bomb = info.tobuf() + bytes(300 << 20)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(bomb, 1))
    started = time.time()
    command = f"ulimit -v 500000; exec {dtopp_binary} prepare images {tmp_path}/a.tar.gz --output {tmp_path}/out"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 3 and "a.tar.gz" in done.stderr, done.stderr
    assert time.time() - started < 30


def peak_of_preparing(dtopp_binary, source, output):
    """The largest resident memory in bytes."""
    process = subprocess.Popen([dtopp_binary, "prepare", "images", source, "--output", output, "--workers", "2"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return usage.ru_maxrss * 1024


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
        peaks.append(peak_of_preparing(dtopp_binary, source, tmp_path / f"out{count}"))
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
