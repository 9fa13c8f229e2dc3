"""Tests the parts of a wheel: the command that finds torch, unpacking its files, one version everywhere,
the Dockerfile."""

import email
import hashlib
import os
import pathlib
import re
import shutil
import sys
import tarfile
import zipfile

import pytest
from refusal import assert_refused
from tiny_run import ROOT
from wheel_versions import MINOR, PROGRAM_VERSION, TORCH, VERSION, command


def pieces(folder, torch_version):
    """site-packages of a wheel whose program prints its arguments, beside a torch that cannot be imported."""
    shutil.copytree(ROOT / "python/dtopp", folder / "dtopp", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "dtopp/bin").mkdir()
    program = folder / "dtopp/bin/dtopp"
    program.write_text('#!/bin/sh\necho "$0" "$@" "$LD_LIBRARY_PATH"\nexit 6\n')
    program.chmod(0o755)
    (folder / "dtopp/lib").mkdir()
    (folder / "dtopp/lib/libdtopp_ops.torch").write_text(f"{MINOR}\n")
    fake_torch(folder, torch_version)
    return folder


def fake_torch(folder, version):
    (folder / "torch").mkdir(parents=True)
    (folder / "torch/__init__.py").write_text("raise ImportError('the command imports torch')")
    (folder / f"torch-{version}.dist-info").mkdir()
    (folder / f"torch-{version}.dist-info/METADATA").write_text(f"Name: torch\nVersion: {version}\n")


def start(*folders, **variables):
    """Runs the command of the package in `folders` with a Python that has no other packages."""
    code = f"import sys; sys.path[:0] = {list(map(str, folders))}; from dtopp.program import main; main()"
    return command(sys.executable, "-I", "-S", "-B", "-c", code, "train", "a b.yaml", env=variables)


def test_command_starts_the_program_without_importing_torch(tmp_path):
    site = pieces(tmp_path, f"{TORCH}+cu130")
    done = start(site)
    assert (done.returncode, done.stdout, done.stderr) == (6, f"{site}/dtopp/bin/dtopp train a b.yaml \n", "")


def test_command_names_a_torch_that_lies_elsewhere(tmp_path):
    site = pieces(tmp_path / "own", TORCH)
    for found in site.glob("torch*"):
        shutil.rmtree(found)
    fake_torch(tmp_path / "system", f"{MINOR}.3")
    assert start(site, tmp_path / "system").stdout.endswith(f" {tmp_path}/system/torch/lib\n")
    assert start(site, tmp_path / "system", LD_LIBRARY_PATH="/x").stdout.endswith(f" {tmp_path}/system/torch/lib:/x\n")


@pytest.mark.parametrize("version, missing, found", [
    ("2.10.1", None, "2.10.1"), ("3.11.0", None, "3.11.0"), (TORCH, "torch", "none"),
    (TORCH, f"torch-{TORCH}.dist-info", "one of unknown version")])
def test_command_refuses_another_torch(version, missing, found, tmp_path):
    site = pieces(tmp_path, version)
    if missing:
        shutil.rmtree(site / missing)
    done = start(site)
    assert_refused(done, 2, [sys.executable, found, f"pip install 'torch=={MINOR}.*'"], begins="dtopp: ")
    assert done.stdout == ""


def test_command_of_the_layer_alone_names_the_other_wheel(tmp_path):
    site = pieces(tmp_path, TORCH)
    (site / "dtopp/bin/dtopp").unlink()
    done = start(site)
    assert_refused(done, 2, ["install the wheel"], begins="dtopp: ")
    assert done.stdout == ""


def test_unpack_copies_once(tmp_path):
    site = pieces(tmp_path / "site", TORCH)

    def unpack(*arguments):
        return command(sys.executable, "-m", "dtopp.unpack", *arguments, env={"PYTHONPATH": str(site)})

    assert unpack(tmp_path / "here").returncode == 2  # a checkout has no files/
    (site / "dtopp/files/configs").mkdir(parents=True)
    (site / "dtopp/files/configs/a.yaml").write_text("name: a\n")
    assert unpack().returncode == 2
    assert unpack(tmp_path / "here").returncode == 0
    assert (tmp_path / "here/configs/a.yaml").read_text() == "name: a\n"
    assert_refused(unpack(tmp_path / "here"), 2, tmp_path / "here/configs", begins="dtopp")


def test_versions_agree():
    assert re.search(rf"^version: {re.escape(VERSION)}$", (ROOT / "CITATION.cff").read_text(), re.M)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]
    assert newest == VERSION
    default = re.search(r"torch_version=.*echo (\S+)\)", (ROOT / "scripts/setup.sh").read_text())[1]
    assert re.findall(r"TORCH=(\S+)", (ROOT / "packaging/Dockerfile").read_text()) == [default]
    assert (ROOT / f"packaging/requirements-torch-{default}.txt").exists()


def configure(folder, python):
    return command("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DDTOPP_WHEEL=ON", f"-DPython_EXECUTABLE={python}")


def test_program_is_linked_with_archives_and_finds_torch_beside_it(tmp_path):
    done = configure(tmp_path, sys.executable)
    assert done.returncode == 0, done.stderr
    rules = (tmp_path / "build.ninja").read_text()
    linked = re.search(r"^build bin/dtopp:.*\n(?:  .*\n)+", rules, re.M)[0]
    shared = {pathlib.Path(name).name for name in re.findall(r"/\S+\.so\S*", linked)}
    assert {re.sub(r"\.so.*", "", name) for name in shared} <= {"libdtopp_ops", "libsimdjson", "libgomp"}
    assert {"libyaml-cpp.a", "libjemalloc_pic.a", "libarchive.a"} <= set(re.findall(r"[^/\s]+\.a\b", linked))
    rpath = re.search(r"-Wl,-rpath,(\S+)", linked)[1].replace("\\$$", "$").strip('"')
    assert rpath.split(":") == ["$ORIGIN/../lib", "$ORIGIN/../../torch/lib", "$ORIGIN/../../nvidia/cu13/lib"]


def test_no_wheel_is_built_without_torch(tmp_path):
    refused = configure(tmp_path, pathlib.Path(sys.base_prefix, "bin/python3"))
    assert refused.returncode != 0
    assert "no torch" in refused.stderr and "--no-build-isolation" in refused.stderr


def test_metadata_of_the_program_state_its_torch(tmp_path):
    code = ("import sys; from scikit_build_core.build import prepare_metadata_for_build_wheel as prepare; "
            "print(prepare(sys.argv[1]))")
    done = command(sys.executable, "-c", code, tmp_path, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    metadata = email.message_from_string((tmp_path / f"dtopp-{PROGRAM_VERSION}.dist-info/METADATA").read_text())
    assert metadata["Version"] == PROGRAM_VERSION
    assert [name for name in metadata.get_all("Requires-Dist") if name.startswith("torch")] == [f"torch=={MINOR}.*"]


def test_wheel_of_the_layer_holds_python_alone(tmp_path):
    code = "import sys; from scikit_build_core.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = command(sys.executable, "-c", code, tmp_path, cwd=ROOT, env={**os.environ, "DTOPP_PURE_WHEEL": "1"})
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / f"dtopp-{VERSION}-py3-none-any.whl") as archive:
        names = set(archive.namelist())
        read = {name: archive.read(f"dtopp-{VERSION}.dist-info/{name}").decode() for name in ("METADATA", "WHEEL")}
    own = {f"dtopp/{path.name}" for path in (ROOT / "python/dtopp").glob("*.py")} | {"dtopp/py.typed"}
    assert {name for name in names if ".dist-info/" not in name} == own
    required = email.message_from_string(read["METADATA"]).get_all("Requires-Dist")
    assert "torch>=2.6" in required and not any("torch==" in name for name in required)
    assert "Root-Is-Purelib: true\n" in read["WHEEL"]


def test_sdist_holds_the_sources_and_nothing_built(tmp_path):
    code = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
    hashes = []
    for folder in ("one", "two"):
        done = command(sys.executable, "-c", code, tmp_path / folder, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        sdist = tmp_path / folder / f"dtopp-{VERSION}.tar.gz"
        hashes.append(hashlib.sha256(sdist.read_bytes()).digest())
    assert hashes[0] == hashes[1]
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    tracked = command("git", "ls-files", cwd=ROOT).stdout.split("\n")[:-1]
    assert {name for name in tracked if not name.startswith((".ci/", ".github/"))} <= names
    assert not {name.split("/")[0] for name in names} & {"build", "dist", "runs", "studies", "data", ".venv", ".git", ".ci"}


def test_dockerfile_is_clean():
    done = command(pathlib.Path(sys.executable).with_name("hadolint"), ROOT / "packaging/Dockerfile")
    assert done.returncode == 0, done.stdout + done.stderr
