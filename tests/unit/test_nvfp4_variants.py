"""Every NVFP4 pipeline that a device may get, with its words put in, is valid SPIR-V."""

import dataclasses
import functools
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from harness.plan_limits import H200, LAVAPIPE, NAVI31
from tosavk.lowering.nvfp4.pipelines import Pipeline, pipelines
from tosavk.shaders.catalogue import kernels

pytestmark = pytest.mark.nvfp4

ROOT = Path(__file__).resolve().parents[2]
NEWER = ROOT / "build/newer/shader-tools/bin/spirv-val"
"""Of `tools/newer_debian.py shader-tools`."""

DEVICES = (H200, NAVI31, dataclasses.replace(NAVI31, subgroup_size=32), LAVAPIPE)
KERNELS = [name for name in kernels() if name.startswith("nvfp4_")]
_DECORATE, _SPEC_ID, _SPEC_CONSTANT = 71, 1, 50


def with_words(code: bytes, words: tuple[int, ...]) -> bytes:
    """A module whose specialization constants have these values by default."""
    stream = list(struct.unpack(f"<{len(code) // 4}I", code))
    ids: dict[int, int] = {}
    at = 5
    while at < len(stream):
        length, opcode = stream[at] >> 16, stream[at] & 0xFFFF
        if opcode == _DECORATE and stream[at + 2] == _SPEC_ID:
            ids[stream[at + 1]] = stream[at + 3]
        elif opcode == _SPEC_CONSTANT and stream[at + 2] in ids:
            stream[at + 3] = words[ids[stream[at + 2]]]
        at += length
    assert set(ids.values()) <= set(range(len(words)))
    return struct.pack(f"<{len(stream)}I", *stream)


@functools.cache
def variants() -> frozenset[Pipeline]:
    """The pipelines that some device gets."""
    return frozenset(p for limits in DEVICES for p in pipelines(limits))


@pytest.mark.parametrize("name", KERNELS)
def test_every_variant_is_valid(name: str) -> None:
    validator = str(NEWER) if NEWER.exists() else shutil.which("spirv-val")
    if validator is None:
        pytest.skip("spirv-val is not installed")
    code = (ROOT / "shaders" / "spirv" / f"{name}.spv").read_bytes()
    found = {p.words: p for p in variants() if p.kernel == name}
    assert found
    for pipeline in found.values():
        answer = subprocess.run(
            [validator, "--target-env", "vulkan1.3", "-"],
            input=with_words(code, pipeline.words),
            check=False,
            capture_output=True,
        )
        problem = (answer.stdout + answer.stderr).decode()
        if kernels()[name].needs.startswith("matrices") and "capability op" in problem:
            pytest.skip("spirv-val is older than cooperative matrices")
        assert answer.returncode == 0, f"{pipeline}: {problem}"
