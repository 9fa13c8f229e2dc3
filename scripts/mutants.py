"""Checks that the tests catch mistakes. Applies each mutant to a copy of the sources, builds the test program
that should detect it, and expects that program to fail. Exits with 1 if a mutant survives or no longer
applies.

Usage: mutants.py [NAME…]      (the copy is built in build/mutants; ccache keeps this short)
"""

import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutants"
PYTHON = str(ROOT / ".venv/bin/python")

# name: (file, text, replacement, targets to build, command that must fail)
MUTANTS = {
    "swapped comparison in selection": (
        "dtopp/ops/route/route_cpu.cpp", "before < threshold", "before > threshold",
        ["test_ops"], ["build/release/bin/test_ops"]),
    "missing renormalisation": (
        "dtopp/ops/route/route_cpu.cpp", "rule.renormalize ? chosen_sum : 1",
        "rule.renormalize ? chosen_sum / chosen_sum : 1",
        ["test_ops"], ["build/release/bin/test_ops"]),
    "windup": (
        "dtopp/moe/routers/dtop_p.cpp", "if (config_.anti_windup)", "if (false)",
        ["test_moe"], ["build/release/bin/test_moe"]),
    "missing fsync": (
        "dtopp/base/files.cpp", "retry([&] { return ::fsync(descriptor_); }) != 0", "false",
        ["fault_shim", "checkpoint_driver"], [PYTHON, "-m", "pytest", "-q", "-x", "tests/python/train/test_faults.py"]),
    "snapshot taken too late": (
        "dtopp/train/run.cpp", "snapshot_->get()", "trainer_.parameters().saved_shards()",
        ["test_train"], ["build/release/bin/test_train", "--gtest_filter=RunSaver.*"]),
    "manifest before data": (
        "dtopp/base/durable.cpp",
        "  sync_tree(temporary_);\n  if (exists_)\n    exchange_durably(temporary_, path_);\n  else\n"
        "    rename_durably(temporary_, path_);\n",
        "  if (exists_)\n    exchange_durably(temporary_, path_);\n  else\n    rename_durably(temporary_, path_);\n"
        "  sync_tree(path_);\n",
        ["fault_shim", "checkpoint_driver"], [PYTHON, "-m", "pytest", "-q", "-x", "tests/python/train/test_faults.py"]),
    "off-by-one window": (
        "dtopp/data/text/mixture.cpp", "* stride, tokens", "* stride + 1, tokens",
        ["test_data"], ["build/release/bin/test_data"]),
    "sum instead of mean of a choice's losses": (
        "dtopp/tasks/task.cpp", "loss /= static_cast<double>(log_probs[choice].size())", "loss /= 1",
        ["test_tasks"], ["build/release/bin/test_tasks", "--gtest_filter=Answers.*"]),
    "the last of equal choices": (
        "dtopp/tasks/task.cpp", "loss >= best_loss", "loss > best_loss",
        ["test_tasks"], ["build/release/bin/test_tasks", "--gtest_filter=Answers.*"]),
    "an example drawn in the place of the item itself": (
        "dtopp/tasks/prompts.cpp", "if (value != item)", "if (value >= 0)",
        ["test_tasks"], ["build/release/bin/test_tasks", "--gtest_filter=Exemplars.*"]),
    "error divided by the target instead of the number of experts": (
        "dtopp/moe/routers/dtop_p.cpp", "/ num_experts_;", "/ target_C_;",
        ["test_moe"], ["build/release/bin/test_moe"]),
    "what was missing made up for in the wrong direction": (
        "dtopp/moe/routers/dtop_p.cpp", "threshold(target_C_ + now_C * num_experts_)",
        "threshold(target_C_ - now_C * num_experts_)",
        ["test_moe"], ["build/release/bin/test_moe", "--gtest_filter=SolvingController*"]),
    "a stage not fenced off for wgmma": (
        "dtopp/ops/moe_ffn/cuda/fused/gemm_wgmma_cuda.cu", "    fence_for_wgmma();\n", "",
        ["test_ops_cuda"], ["build/release/bin/test_ops_cuda", "--gtest_filter=FusedGemm*"]),
    "a stage given back while it is read": (
        "dtopp/ops/moe_ffn/cuda/fused/gemm_wgmma_cuda.cu", "        wgmma_wait<1>();\n        give_back();",
        "        give_back();\n        wgmma_wait<1>();",
        ["test_ops_cuda"], ["build/release/bin/test_ops_cuda", "--gtest_filter=FusedGemm*"]),
    "a stage multiplied before it is there": (
        "dtopp/ops/moe_ffn/cuda/fused/gemm_mma_cuda.cu", "wait_for_all_copies_but(stages - 2)",
        "wait_for_all_copies_but(stages - 1)",
        ["test_ops_cuda"], ["build/release/bin/test_ops_cuda", "--gtest_filter=FusedGemm*"]),
}


def run(command, **options):
    return subprocess.run(command, cwd=COPY, text=True, capture_output=True, **options)


def prepare():
    COPY.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True,
                            capture_output=True, check=True).stdout.split("\n")
    for name in filter(None, listed):
        source, target = ROOT / name, COPY / name
        if not source.is_file():
            continue
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    site = next((ROOT / ".venv").glob("lib/python3*/site-packages"))
    run(["cmake", "--preset", "release", f"-DDTOPP_SITE_PACKAGES={site}"], check=True)


def survives(file, text, replacement, targets, command):
    """Returns None if the tests pass without the mutant and fail with it, otherwise the problem."""
    path = COPY / file
    original = path.read_text()
    if original.count(text) < 1:
        return f"{file} no longer holds {text!r}"
    for mutated in (False, True):
        path.write_text(original.replace(text, replacement, 1) if mutated else original)
        try:
            built = run(["cmake", "--build", "build/release", "--target", *targets])
            if built.returncode:
                return "does not compile:\n" + built.stdout[-2000:]
            failed = run(command).returncode != 0
        finally:
            path.write_text(original)
        if failed and not mutated:
            return "the tests fail without it"
    return None if failed else "no test failed"


def main():
    prepare()
    names = sys.argv[1:] or list(MUTANTS)
    failures = 0
    for name in names:
        problem = survives(*MUTANTS[name])
        failures += problem is not None
        print(f"{'SURVIVED' if problem else 'caught  '}  {name}{': ' + problem if problem else ''}", flush=True)
    print(f"{len(names) - failures} passed, {failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
