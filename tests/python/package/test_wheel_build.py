"""Tests the wheel with the program: its contents, its requirements, and its use in an environment without any
other part of dtopp. test_wheel.py tests the wheel of the layer alone."""

import email
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys
import sysconfig
import tempfile
import zipfile

import pytest
from refusal import assert_refused
from tiny_run import ROOT, metrics
from wheel_versions import MINOR, PROGRAM_VERSION, VERSION, command

SITE = pathlib.Path(sysconfig.get_path("purelib"))
PROGRAM, OPERATORS = "dtopp/bin/dtopp", "dtopp/lib/libdtopp_ops.so"
WITHOUT = {"PYTHONPATH", "LD_LIBRARY_PATH", "DTOPP_OPS", "DTOPP_BINARY"}
CLEAN = {name: value for name, value in os.environ.items() if name not in WITHOUT}
# The last commit's time, which scripts/wheel.sh uses.
TIME = command("git", "log", "-1", "--format=%ct", cwd=ROOT).stdout.strip()


def succeed(*arguments, **options):
    done = command(*arguments, **{"env": CLEAN} | options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(checkout, folder):
    variables = {**CLEAN, "PYTHON": sys.executable, "SOURCE_DATE_EPOCH": TIME, "CUDA": ""}
    printed = succeed(checkout / "scripts/wheel.sh", folder, env=variables, timeout=3000).split()
    layer, program = sorted(map(pathlib.Path, printed), key=lambda path: "-any.whl" not in path.name)
    assert layer == folder / f"dtopp-{VERSION}-py3-none-any.whl"
    return program


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def files(wheel, tmp_path_factory):
    """The wheel, unzipped as pip does, with executable permissions kept."""
    folder = tmp_path_factory.mktemp("files")
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            pathlib.Path(archive.extract(member, folder)).chmod(member.external_attr >> 16)
    return folder


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """bin/ of an environment with links to the packages of this one, and the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    succeed(sys.executable, "-m", "venv", "--without-pip", folder)
    site = folder / SITE.relative_to(sys.prefix)
    for package in SITE.iterdir():
        (site / package.name).symlink_to(package)
    succeed(sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--no-index", wheel)
    return folder / "bin"


@pytest.fixture(scope="module")
def unpacked(environment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    succeed(environment / "python", "-m", "dtopp.unpack", ".", cwd=folder)
    return folder


def dynamic(path, tag):
    return re.findall(rf"\({tag}\).*\[(.*)\]", succeed("readelf", "-d", path))


def test_holds_program_operators_package_and_what_they_read(wheel, files):
    names = {str(path.relative_to(files)) for path in files.rglob("*")}
    assert {PROGRAM, OPERATORS, "dtopp/py.typed"} < names
    for folder in ("assets", "configs", "examples"):
        tracked = succeed("git", "ls-files", folder, cwd=ROOT).split()
        assert {f"dtopp/files/{name}" for name in tracked if "/lab-" not in name} <= names  # 9 MB of text
    assert {f"dtopp/{path.name}" for path in (ROOT / "python/dtopp").glob("*.py")} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(("dtopp/dtopp", "tests"))]
    text = (files / f"dtopp-{PROGRAM_VERSION}.dist-info/METADATA").read_text()
    assert f"torch=={MINOR}.*" in email.message_from_string(text).get_all("Requires-Dist")
    minor = re.fullmatch(rf"dtopp-{re.escape(PROGRAM_VERSION)}-py3-none-manylinux_2_(\d+)_x86_64\.whl", wheel.name)
    assert int(minor[1]) <= 35
    assert wheel.stat().st_size < 20e6


def test_needs_torch_and_what_every_linux_has(files):
    own = {path.name for path in files.rglob("*.so*")}
    everywhere = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2"}
    torch = {"libtorch_cpu.so", "libc10.so", "libgomp.so.1"}
    for path in (files / PROGRAM, *files.rglob("*.so*")):
        assert set(dynamic(path, "NEEDED")) <= everywhere | torch | own, path
        places = [place for places in dynamic(path, "R(?:UN)?PATH") for place in places.split(":")]
        assert all(place.startswith("$ORIGIN") for place in places), path
    assert "$ORIGIN/../../torch/lib" in dynamic(files / PROGRAM, "R(?:UN)?PATH")[0].split(":")


def test_nothing_says_where_it_was_built(files):
    for path in files.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert str(ROOT).encode() not in content and str(SITE).encode() not in content, path


def test_program_lends_other_libraries_its_allocator_alone(files):
    table = succeed("nm", "-D", "--defined-only", files / PROGRAM).splitlines()
    c_names = {line.split()[-1].split("@")[0] for line in table if " _Z" not in line}
    assert {"malloc", "free", "posix_memalign"} <= c_names
    assert c_names <= {"malloc", "calloc", "realloc", "free", "memalign", "aligned_alloc", "posix_memalign", "valloc",
                       "malloc_usable_size", "stderr"}  # stderr is a copy of the C library's own


def test_python_takes_the_operators_of_the_wheel(environment, tmp_path):
    code = "from dtopp import MoE, form, library; print(form.current.__name__, library.find()); import dtopp.huggingface"
    name, path = succeed(environment / "python", "-c", code, cwd=tmp_path).split()
    assert name == "dtopp.compiled" and path.endswith(f"site-packages/{OPERATORS}")
    assert str(environment.parent) in path


def test_pip_prefers_the_wheel_with_the_program(wheel, environment):
    """Pip takes the wheel whose version states a torch: it is the greater one."""
    report = succeed(sys.executable, "-m", "pip", "--python", environment / "python", "install", "--quiet", "--dry-run",
                     "--no-index", "--no-deps", "--force-reinstall", "--find-links", wheel.parent, "--report", "-", "dtopp")
    assert json.loads(report)["install"][0]["download_info"]["url"] == wheel.as_uri()


def test_trains_on_the_sample_text(environment, unpacked):
    dtopp = environment / "dtopp"
    assert succeed(dtopp, "--version") == f"dtopp {VERSION}\n"
    for part in ("train", "validation"):
        succeed(dtopp, "prepare", "text", f"assets/text/novels-{part}.jsonl.zst", "--tokenizer",
                "assets/tokenizer/english-4k.tokenizer.json", "--output", f"data/quickstart/{part}", cwd=unpacked)
    succeed(dtopp, "train", "configs/quickstart.yaml", "training.steps=60", "validation.every=30", cwd=unpacked)
    losses = [line["val/loss"] for line in metrics(unpacked / "runs/quickstart") if "val/loss" in line]
    assert losses[-1] < losses[0] - 1
    assert command(dtopp, "train", "nowhere.yaml", cwd=unpacked, env=CLEAN).returncode == 2


def test_examples_learn(environment, unpacked, tmp_path):
    pictures = tmp_path / "digits.tar"
    succeed(sys.executable, ROOT / "scripts/glyphs.py", "draw", pictures, "--count", "200")
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    examples = {"train_gpt.py": ([], [60]), "two_processes.py": (ranks, ["--steps", 40]),
                "huggingface_trainer.py": ([], [tmp_path / "trainer", "--steps", 40]),
                "classify_images.py": ([], [pictures, "--steps", 100])}
    need_a_run = {"use_checkpoint.py", "ask_server.py"}
    assert examples.keys() | need_a_run == {path.name for path in (unpacked / "examples").glob("*.py")}
    for name, (launcher, arguments) in examples.items():
        printed = succeed(environment / "python", *launcher, unpacked / "examples" / name, *arguments, cwd=tmp_path)
        losses = [float(loss) for loss in re.findall(r"(?<![\w/])loss\W+([\d.]+)", printed)]
        assert len(losses) > 1 and losses[-1] < losses[0] - 0.05, name + printed


def test_release_in_another_folder_has_the_same_bytes(wheel, tmp_path):
    checkout = tmp_path / "elsewhere"
    for name in succeed("git", "ls-files", cwd=ROOT).split("\n")[:-1]:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, checkout / name)
    (checkout / ".venv").symlink_to(sys.prefix)
    variables = {**CLEAN, "GIT_COMMITTER_DATE": TIME, "CUDA": ""}
    for words in (["init", "--quiet"], ["add", "."], ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"]):
        succeed("git", *words, cwd=checkout, env=variables)
    (checkout / "new").touch()
    assert_refused(command(checkout / "scripts/release.sh", "build", env=variables), 2, "git status", begins="make release: ")
    (checkout / "new").unlink()
    succeed(checkout / "scripts/release.sh", "build", env=variables, timeout=3000)
    made = {path.name for path in (checkout / "dist").iterdir()}
    layer = f"dtopp-{VERSION}-py3-none-any.whl"
    assert made == {wheel.name, layer, f"dtopp-{VERSION}.tar.gz", "SHA256SUMS", "NOTES.md"}
    succeed("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=checkout / "dist")
    for path in (wheel, wheel.with_name(layer)):
        assert f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" in (checkout / "dist/SHA256SUMS").read_text()
    assert (checkout / "dist/NOTES.md").read_text().startswith(f"# dtopp {VERSION}\n\n- ")


@pytest.mark.skipif(not all(map(shutil.which, ("buildah", "mmdebstrap"))), reason="buildah or mmdebstrap is missing")
def test_image_trains(wheel):
    """Builds the Dockerfile on a base image of Debian's packages, which needs no registry of images."""
    certificates = "/etc/ssl/certs"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = pathlib.Path(name)

        def buildah(*arguments):
            return succeed("buildah", "--root", folder / "store", "--runroot", folder / "run", "--storage-driver", "vfs", *arguments)

        def image(tag, *options):
            buildah("bud", "--isolation", "chroot", "--pull-never", "--tag", tag, *options, folder)

        succeed("mmdebstrap", "--variant=minbase", "--include=python3-venv", "bookworm", folder / "base.tar")
        (folder / "Base").write_text("FROM scratch\nADD base.tar /\n")
        image("localhost/base", "--file", folder / "Base")
        shutil.copytree(ROOT / "packaging", folder / "packaging")
        (folder / "dist").mkdir()
        shutil.copy(wheel, folder / "dist")
        image("localhost/dtopp", "--file", ROOT / "packaging/Dockerfile", "--build-arg", "BASE=localhost/base",
              "--volume", f"{certificates}:{certificates}:ro", "--env", f"PIP_CERT={certificates}/ca-certificates.crt")
        container = buildah("from", "--pull-never", "localhost/dtopp").strip()
        prepare = ("dtopp prepare text assets/text/novels-$part.jsonl.zst --output data/quickstart/$part "
                   "--tokenizer assets/tokenizer/english-4k.tokenizer.json")
        printed = buildah("run", "--isolation", "chroot", container, "--", "sh", "-ec",
                          f"id -u; for part in train validation; do {prepare}; done; "
                          "dtopp train configs/quickstart.yaml training.steps=20")
        assert printed.startswith("1000\n") and "step-00000020" in printed
