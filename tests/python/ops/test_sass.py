"""Tests the compiled wgmma kernels in libdtopp_cuda.so for properties that would cost time on a device."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ops_reference import CUDA_LIBRARY

# Loads and stores of spilled registers allowed per kernel between products: the gradients of activations need
# more registers than exist.
SPILLS = {"ActivateBackward": 40, "Activate": 12}
# The loading warp's instructions per stage. The two multiplying warps of its scheduler take 1,024 cycles for
# the data it copies.
COPYING = 140
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")


def disassembler():
    triton = pytest.importorskip("triton")  # comes with torch
    own = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    return own if own.exists() else shutil.which("cuobjdump")


@pytest.fixture(scope="module")
def kernels():
    """The instructions of each kernel that multiplies by wgmma, by name."""
    if not Path(CUDA_LIBRARY).exists():
        pytest.skip("libdtopp_cuda.so is not built: make build CUDA=1")
    program = disassembler()
    if program is None:
        pytest.skip("neither triton nor the CUDA toolkit brings cuobjdump")
    text = subprocess.run([program, "-sass", "-arch", "sm_90a", CUDA_LIBRARY], text=True, capture_output=True, check=True).stdout
    functions = {part.split("\n", 1)[0]: INSTRUCTION.findall(part) for part in re.split(r"Function : ", text)[1:]}
    found = {name: code for name, code in functions.items() if any(op.startswith("HGMMA") for op, _ in code)}
    assert len(found) == 8, sorted(found)
    return found


def of(code, *names):
    """The instructions in order, each as the first of `names` that matches; others are left out."""
    return [name for op, _ in code for name in names if op == name or op.startswith(name + ".")]


def test_products_are_not_serialized(kernels):
    """Each stage has four products, and the next stage begins before the wait for the previous one."""
    for name, code in kernels.items():
        groups = re.findall(r"a*(h+)", "".join({"HGMMA": "h", "WARPGROUP.ARRIVE": "a", "WARPGROUP.DEPBAR": "w"}[op] for op in
                                              of(code, "HGMMA", "WARPGROUP.ARRIVE", "WARPGROUP.DEPBAR")))
        assert groups and all(len(group) == 4 for group in groups), (name, groups)
        waits = [what for op, what in code if op.startswith("WARPGROUP.DEPBAR")]
        assert sum("0x0" in what for what in waits) == 1 and len(waits) >= 2, (name, waits)


def test_no_copy_waits_for_a_load(kernels):
    for name, code in kernels.items():
        stages = re.findall(r"c+(?:[ls]+c+)*", "".join({"LDGSTS": "c", "LDG": "l", "LDL": "s"}[op] for op in of(code, "LDGSTS", "LDG", "LDL")))
        assert [len(stage) for stage in stages] == [24], (name, stages)


def test_a_stage_is_copied_with_few_instructions(kernels):
    """A stage has 24 copies, each with its address and a validity flag. The limit covers the instructions
    from the wait for free space to the last copy."""
    for name, code in kernels.items():
        operators = [op for op, _ in code]
        first = next(i for i, op in enumerate(operators) if op.startswith("LDGSTS"))
        begun = operators.index("LDGDEPBAR", first)
        waited = max(i for i in range(first) if "TRYWAIT" in operators[i])
        assert begun - waited <= COPYING, (name, begun - waited)


def test_registers_are_hardly_spilled(kernels):
    for name, code in kernels.items():
        allowed = next((most for part, most in SPILLS.items() if part in name), 0)
        assert len(of(code, "LDL", "STL")) <= allowed, name
