"""Builds, runs and measures the fuzz targets of tests/fuzz (see its README.md).

usage: fuzz.py build [--quick]                           compile the targets with clang and libFuzzer in build/fuzz;
                                                         quick: in half the time; they fuzz more slowly
       fuzz.py run [--seconds S] [--seed N] [--record] [TARGET...]
                                                         fuzz for S seconds in all (60), with inputs that the seed
                                                         chooses (0: others in each run); exit 1 at a finding
       fuzz.py seed TARGET FILE NAME                     add an input to the seeds, under a name that states its cause
       fuzz.py merge [TARGET...]                         minimize what runs have found into tests/fuzz/corpus.tar.xz
       fuzz.py replay [--build DIR]                      run each target of a build folder on its seeds and corpus
       fuzz.py coverage [FILE...]                        branches that seeds and corpus reach, per file of a parser;
                                                         with FILEs, the lines with branches that they do not reach"""

import argparse
import concurrent.futures
import csv
import datetime
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FUZZ = ROOT / "tests/fuzz"
BUILD = ROOT / "build/fuzz"
WORK = ROOT / "build/fuzz-corpus"  # what runs have found so far; grows until `merge`
FINDINGS = ROOT / "build/fuzz-findings"
LEDGER = FUZZ / "ledger.csv"
LIMITS = ["-rss_limit_mb=1024", "-timeout=5", "-max_len=65536"]
TARGETS = sorted(path.stem for path in FUZZ.glob("*.cpp") if path.stem != "run_files")

# The files of each parser, for `coverage`.
PARSERS = {
    "safetensors": ["base/safetensors.cpp"],
    "manifests": ["base/manifest.cpp", "data/images/image_data.cpp"],
    "JSON readers": ["base/json.cpp", "checkpoint/checkpoint.cpp", "data/images/image_data.cpp", "study/study_file.cpp", "tasks/evaluation_files.cpp", "convert/huggingface_config.cpp"],
    "checkpoints": ["checkpoint/checkpoint.cpp"],
    "token files": ["data/text/token_file.cpp", "data/files/npy.cpp"],
    "tar": ["data/images/image_source.cpp"],
    "image arrays": ["data/images/array_source.cpp", "data/images/image_data.cpp"],
    "configuration": ["config/config.cpp", "config/config_tree.cpp", "config/config.h", "study/definition.cpp"],
    "tokenizer": ["data/text/tokenizer_json.cpp", "data/text/split_pattern.cpp", "data/text/tokenizer_json.cpp", "data/text/byte_pair_encoding.cpp"],
    "text": ["data/text/byte_source.cpp", "data/text/text_reader.cpp", "data/text/unicode.cpp"],
    "pictures": ["data/images/decode_picture.cpp"],
    "tasks": ["tasks/task.cpp"],
    "metrics": ["runs/run_history.cpp"],
    "launchers": ["launch/launch_environment.cpp"],
    "ranks": ["distributed/rank_records.cpp"],
    "requests": ["serve/completion_request.cpp"],
}


def build(folder, *options):
    log = folder.with_suffix(".log")
    folder.parent.mkdir(exist_ok=True)
    with log.open("w") as out:
        configured = subprocess.run(["cmake", "--preset", "fuzz", "-B", folder, *options], cwd=ROOT, stdout=out, stderr=out)
    if configured.returncode != 0:
        sys.exit(log.read_text())
    subprocess.run(["cmake", "--build", folder, "--target", "fuzz_targets", "-j", str(os.cpu_count())], cwd=ROOT, check=True)


def program(folder, target):
    path = folder / "fuzz" / target
    if not path.exists():
        sys.exit(f"{path} is not built: scripts/fuzz.py build")
    return path


def read_archive(kind):
    """Returns the files of seeds.tar.xz or corpus.tar.xz by target and name."""
    files = {target: {} for target in TARGETS}
    with tarfile.open(FUZZ / f"{kind}.tar.xz") as archive:
        for member in archive:
            target, name = member.name.split("/")
            files.setdefault(target, {})[name] = archive.extractfile(member).read()
    return files


def write_archive(kind, files):
    with tarfile.open(FUZZ / f"{kind}.tar.xz", "w:xz", preset=9, format=tarfile.USTAR_FORMAT) as archive:
        for target in sorted(files):
            for name, content in sorted(files[target].items()):  # without a date, so that equal files are equal archives
                member = tarfile.TarInfo(f"{target}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def unpack(files, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def unpack_seeds():
    return {target: unpack(files, BUILD.with_name("fuzz-seeds") / target) for target, files in read_archive("seeds").items()}


def unpack_corpus():
    return {target: unpack(files, WORK / target) for target, files in read_archive("corpus").items()}


def write_dictionaries():
    """Writes a file per section of dictionaries.txt. Returns the files by target."""
    parts = re.split(r"^\[(\w+)\]\n", (FUZZ / "dictionaries.txt").read_text(), flags=re.M)
    paths = {}
    for target, text in zip(parts[1::2], parts[2::2]):
        paths[target] = WORK / f"{target}.dict"
        paths[target].write_text(text)
    return paths


def add_seed(target, file, name):
    files = read_archive("seeds")
    files[target][name] = pathlib.Path(file).read_bytes()
    write_archive("seeds", files)


def fuzz(target, seconds, seed, corpus, seeds, dictionary):
    """Runs one target. Returns its executions, processor seconds, edges and the paths of its findings."""
    command = [program(BUILD, target), *LIMITS, f"-max_total_time={max(1, round(seconds))}", f"-seed={seed}", "-print_final_stats=1",
               f"-artifact_prefix={FINDINGS}/{target}-", corpus, seeds]
    if dictionary:
        command.append(f"-dict={dictionary}")
    before, log = set(FINDINGS.glob(f"{target}-*")), WORK / f"{target}.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    text = log.read_text(errors="replace")
    executed = re.findall(r"stat::number_of_executed_units: (\d+)", text)
    edges = re.findall(r" cov: (\d+)", text)
    findings = sorted(set(FINDINGS.glob(f"{target}-*")) - before)
    if process.returncode != 0 and not findings:
        findings = [log]
    seconds = usage.ru_utime + usage.ru_stime
    return int(executed[-1]) if executed else 0, seconds, int(edges[-1]) if edges else 0, findings


def run(targets, seconds, seed, record):
    jobs = min(os.cpu_count(), len(targets))
    each = seconds * jobs / len(targets)
    found = []
    FINDINGS.mkdir(parents=True, exist_ok=True)
    corpus, seeds, dictionaries = unpack_corpus(), unpack_seeds(), write_dictionaries()
    print(f"{'target':20} {'executions':>12} {'per second':>11} {'edges':>6}")
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = zip(targets, pool.map(lambda target: fuzz(target, each, seed, corpus[target], seeds[target], dictionaries.get(target)),
                                        targets))
        for target, (executions, took, edges, findings) in results:
            print(f"{target:20} {executions:12,} {executions / took:11,.0f} {edges:6}", flush=True)
            found += findings
            if record:
                with LEDGER.open("a") as file:
                    csv.writer(file, lineterminator="\n").writerow(
                        [datetime.date.today(), target, round(took), executions, len(findings)])
    for path in found:
        print(f"finding: {path}")
    return 1 if found else 0


def merge(targets):
    corpus, found, seeds = read_archive("corpus"), unpack_corpus(), unpack_seeds()
    for target in targets:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([program(BUILD, target), *LIMITS, "-merge=1", folder, seeds[target], found[target]], check=True,
                           capture_output=True)
            corpus[target] = {file.name: file.read_bytes() for file in pathlib.Path(folder).iterdir()}
        print(f"{target:20} {len(corpus[target]):5} files {sum(map(len, corpus[target].values())):8,} bytes", flush=True)
    write_archive("corpus", corpus)


def replay(folder, environment=None):
    begin, inputs = time.monotonic(), 0
    corpus, seeds = read_archive("corpus"), unpack_seeds()
    for target in TARGETS:
        with tempfile.TemporaryDirectory() as scratch:
            unpack(corpus[target], pathlib.Path(scratch))
            files = sorted(pathlib.Path(scratch).iterdir()) + sorted(seeds[target].iterdir())
            done = subprocess.run([program(folder, target), *files], capture_output=True, text=True, errors="replace",
                                  timeout=600, env={**os.environ, **(environment or {})})
        inputs += len(files)
        if done.returncode != 0:
            sys.exit(f"{target}: status {done.returncode}\n{done.stderr[-4000:]}")
    print(f"{len(TARGETS)} targets, {inputs} inputs, {time.monotonic() - begin:.1f} s")
    return 0


def coverage(files):
    folder = ROOT / "build/fuzz-coverage"
    build(folder, "-DCMAKE_BUILD_TYPE=Debug", "-DDTOPP_SANITIZE=", "-DDTOPP_FUZZ=ON", "-DCMAKE_CXX_FLAGS=-fprofile-instr-generate -fcoverage-mapping")
    with tempfile.TemporaryDirectory() as scratch:
        replay(folder, {"LLVM_PROFILE_FILE": f"{scratch}/%p.profraw"})
        profile = folder / "fuzz.profdata"
        subprocess.run(["llvm-profdata", "merge", "-o", profile, *pathlib.Path(scratch).glob("*.profraw")], check=True)
    objects = [word for target in TARGETS for word in ("-object", program(folder, target))][1:]
    if files:
        text = subprocess.run(["llvm-cov", "show", f"-instr-profile={profile}", "-show-branches=count", *objects, *files],
                              check=True, capture_output=True, text=True, errors="replace").stdout
        lines = text.splitlines()
        for i, line in enumerate(lines):
            if "Branch (" in line and re.search(r"(True|False): 0\b", line):
                source = next(before for before in reversed(lines[:i]) if re.match(r" *\d+\|", before))
                print(source, "   ", line.strip(" |-"))
        return 0
    out = subprocess.run(["llvm-cov", "export", "-summary-only", f"-instr-profile={profile}", *objects], check=True,
                         capture_output=True, text=True).stdout
    found = {re.sub(r".*/dtopp/", "", file["filename"]): file["summary"]["branches"]
             for file in json.loads(out)["data"][0]["files"]}
    print("| parser | file | branches | reached |\n|---|---|---:|---:|")
    for parser, names in PARSERS.items():
        for name in names:
            count, covered = found[name]["count"], found[name]["covered"]
            print(f"| {parser} | `{name}` | {count} | {100 * covered / max(count, 1):.1f} % |")
    return 0


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    parser.add_argument("command", choices=["build", "run", "seed", "merge", "replay", "coverage"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--build", type=pathlib.Path, default=BUILD)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_intermixed_args()
    targets = arguments.names or TARGETS
    if arguments.command in ("run", "merge") and not set(targets) <= set(TARGETS):
        parser.error("the targets are " + ", ".join(TARGETS))
    if arguments.command == "seed" and (len(arguments.names) != 3 or arguments.names[0] not in TARGETS):
        parser.error("seed TARGET FILE NAME; the targets are " + ", ".join(TARGETS))
    if arguments.command == "build":
        build(BUILD, f"-DDTOPP_SANITIZE_LEVEL={0 if arguments.quick else 1}")
    elif arguments.command == "seed":
        add_seed(*arguments.names)
    elif arguments.command == "run":
        return run(targets, arguments.seconds, arguments.seed, arguments.record)
    elif arguments.command == "merge":
        merge(targets)
    elif arguments.command == "replay":
        return replay(arguments.build)
    else:
        return coverage(arguments.names)


if __name__ == "__main__":
    sys.exit(main())
