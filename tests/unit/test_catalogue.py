"""The kernel catalogue against both shader texts and the checked-in modules."""

import importlib.util
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tosavk.core.dtypes import DType
from tosavk.lowering.graph import Op
from tosavk.shaders.catalogue import KERNELS, Kernel, kernels

ROOT = Path(__file__).resolve().parents[2]
SHADERS = ROOT / "shaders"
CODES = {**{o.name: o.value for o in Op}, **{d.name: d.value for d in DType}}
EACH = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
PORTABLE = tuple(kernel for kernel in KERNELS if kernel.portable)
EACH_WGSL = pytest.mark.parametrize("kernel", PORTABLE, ids=lambda kernel: kernel.name)
STRICT = tuple(kernel for kernel in KERNELS if kernel.strict)
EACH_STRICT = pytest.mark.parametrize("kernel", STRICT, ids=lambda kernel: kernel.name)

# GLSL.std.450 instructions that strict kernels must do without: pow, exp, log, sqrt, the
# trigonometric ones, fma, and those whose result for NaN is open.
INEXACT = {*range(13, 33), 37, 40, 43, 46, 50, 51, 52, 53}
FLOAT_ARITHMETIC = {129: "OpFAdd", 131: "OpFSub", 133: "OpFMul", 142: "times scalar"}
FORBIDDEN = {136: "OpFDiv", 140: "OpFRem", 141: "OpFMod", 148: "OpDot"}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One SPIR-V instruction."""

    code: int
    operands: tuple[int, ...]


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def glsl(kernel: Kernel) -> str:
    """The kernel's own GLSL with its includes put in."""

    def expand(name: str, seen: set[str]) -> str:
        if name in seen:
            return ""
        seen.add(name)
        text = (SHADERS / "glsl" / name).read_text(encoding="utf-8")
        return re.sub(
            r'#\s*include\s+"([^"]+)"', lambda m: expand(m.group(1), seen), text
        )

    return without_comments(expand(f"{kernel.name}.comp", set()))


def wgsl(kernel: Kernel) -> str:
    names = (*kernel.wgsl, kernel.name)
    texts = [
        (SHADERS / "wgsl" / f"{name}.wgsl").read_text(encoding="utf-8")
        for name in names
    ]
    return without_comments("\n".join(texts))


def module(kernel: Kernel) -> Iterator[Instruction]:
    data = (SHADERS / "spirv" / f"{kernel.name}.spv").read_bytes()
    words = struct.unpack(f"<{len(data) // 4}I", data)
    at = 5
    while at < len(words):
        length = words[at] >> 16
        yield Instruction(words[at] & 0xFFFF, words[at + 1 : at + length])
        at += length


def build_shaders() -> ModuleType:
    """The build tool, which is no part of the package."""
    path = ROOT / "tools" / "build_shaders.py"
    spec = importlib.util.spec_from_file_location("build_shaders", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def test_names_are_unique_and_few() -> None:
    assert len(kernels()) == len(KERNELS)
    for kernel in KERNELS:
        names = (*kernel.bindings, *kernel.params)
        assert len(set(names)) == len(names), kernel.name
        assert len(kernel.params) <= 31, kernel.name
        assert 0 < kernel.outputs < len(kernel.bindings), kernel.name
        assert "zero" not in kernel.params, kernel.name


def test_every_source_belongs_to_a_kernel() -> None:
    assert {p.stem for p in (SHADERS / "glsl").glob("*.comp")} == set(kernels())
    shared = {name for kernel in PORTABLE for name in kernel.wgsl}
    portable = {kernel.name for kernel in PORTABLE}
    assert {p.stem for p in (SHADERS / "wgsl").glob("*.wgsl")} == portable | shared


@EACH
def test_glsl_bindings(kernel: Kernel) -> None:
    found = re.findall(
        r"layout\s*\(\s*set\s*=\s*0\s*,\s*binding\s*=\s*(\d+)[^)]*\)\s*"
        r"((?:\w+\s+)*)buffer\s+\w+\s*\{\s*\w+\s+(\w+)\s*[\[;]",
        glsl(kernel),
    )
    assert {int(binding) for binding, _, _ in found} == set(range(len(kernel.bindings)))
    outputs = len(kernel.bindings) - kernel.outputs
    for binding, qualifiers, member in found:
        name = kernel.bindings[int(binding)]
        # Aliases of one binding carry a suffix: x, x_words, x_fours.
        assert member == name or member.startswith(f"{name}_"), (name, member)
        assert ("readonly" in qualifiers.split()) == (int(binding) < outputs), member


@EACH
def test_glsl_specialization_words(kernel: Kernel) -> None:
    text = glsl(kernel)
    assert re.search(r"layout\s*\(\s*local_size_x_id\s*=\s*0\s*\)\s*in", text)
    found = re.findall(
        r"layout\s*\(\s*constant_id\s*=\s*(\d+)\s*\)\s*const\s+uint\s+(\w+)", text
    )
    # Where its value is needed, the work-group width has a name too.
    words = [entry for entry in found if entry != ("0", "WIDTH")]
    assert words == [(str(i), name) for i, name in enumerate(kernel.spec, 1)]


@EACH
def test_glsl_parameters(kernel: Kernel) -> None:
    block = re.search(
        r"layout\s*\(\s*push_constant\s*\)\s*uniform\s+Params\s*\{([^}]*)\}",
        glsl(kernel),
    )
    if not kernel.params:
        assert block is None
        return
    assert block is not None
    found = re.findall(r"(\w+)\s+(\w+)\s*;", block.group(1))
    assert found == [("uint", name) for name in kernel.params]


@EACH_WGSL
def test_wgsl_bindings(kernel: Kernel) -> None:
    found = re.findall(
        r"@group\(0\)\s*@binding\((\d+)\)\s*var<([^>]+)>\s*(\w+)\s*:\s*(\w+)",
        wgsl(kernel),
    )
    kinds = [(binding, space, kind) for binding, space, _, kind in found]
    assert kinds == [
        *(
            (str(i), "storage, read_write", "array")
            for i in range(len(kernel.bindings))
        ),
        (str(len(kernel.bindings)), "uniform", "Params"),
    ]
    names = [name for _, _, name, _ in found]
    for name, member in zip((*kernel.bindings, "params"), names, strict=True):
        assert member == name or member.startswith(f"{name}_"), (name, member)


@EACH_WGSL
def test_wgsl_specialization_words(kernel: Kernel) -> None:
    found = re.findall(r"override\s+(\w+)\s*:\s*u32", wgsl(kernel))
    assert sorted(found) == sorted(("WORKGROUP", *kernel.spec))


@EACH_WGSL
def test_wgsl_parameters(kernel: Kernel) -> None:
    block = re.search(r"struct\s+Params\s*\{([^}]*)\}", wgsl(kernel))
    assert block is not None
    found = re.findall(r"(\w+)\s*:\s*(\w+)", block.group(1))
    assert found == [(name, "u32") for name in (*kernel.params, "zero")]


@EACH
def test_codes_have_the_values_of_the_schema(kernel: Kernel) -> None:
    texts = [glsl(kernel), wgsl(kernel)] if kernel.portable else [glsl(kernel)]
    for text in texts:
        named = re.findall(r"const\s+uint\s+(\w+)\s*=\s*(\d+)u\s*;", text)
        named += re.findall(r"const\s+(\w+)\s*:\s*u32\s*=\s*(\d+)u\s*;", text)
        # Names that stand for an operator or a data type: a tile width may be TILE, too.
        coded = set(re.findall(r"\b(?:OP|\w*TYPE|dtype)\s*[!=]=\s*([A-Z]\w*)", text))
        for labels in re.findall(r"\bcase\s+([^:{]+)", text):
            coded.update(re.findall(r"[A-Z]\w*", labels))
        coded &= set(CODES)
        wrong = {n: int(v) for n, v in named if n in coded and CODES[n] != int(v)}
        assert not wrong


def test_the_modules_fit_their_sources() -> None:
    build = build_shaders()
    assert build.check(SHADERS) == []


def test_a_stale_module_is_seen(tmp_path: Path) -> None:
    build = build_shaders()
    copy = tmp_path / "shaders"
    shutil.copytree(SHADERS, copy)
    assert build.check(copy) == []
    with (copy / "glsl" / "storage.glsl").open("a", encoding="utf-8") as stream:
        stream.write("// changed\n")
    (copy / "spirv" / "gather.spv").write_bytes(b"\x03\x02\x23\x07")
    (copy / "spirv" / "orphan.spv").write_bytes(b"")
    problems = "\n".join(build.check(copy))
    assert "move: its includes changed" in problems
    assert "gather: spirv/gather.spv is not the module" in problems
    assert "orphan: there is no glsl/orphan.comp" in problems


@EACH
def test_spirv_interface(kernel: Kernel) -> None:
    data = (SHADERS / "spirv" / f"{kernel.name}.spv").read_bytes()
    magic, version = struct.unpack("<2I", data[:8])
    assert magic == 0x07230203
    assert version <= 0x00010600
    decorations = [i.operands for i in module(kernel) if i.code == 71]
    spec_ids = sorted({operands[2] for operands in decorations if operands[1] == 1})
    bindings = {operands[2] for operands in decorations if operands[1] == 33}
    sets = {operands[2] for operands in decorations if operands[1] == 34}
    assert spec_ids == list(range(len(kernel.spec) + 1))
    assert bindings == set(range(len(kernel.bindings)))
    assert sets == {0}


@EACH_STRICT
def test_strict_arithmetic(kernel: Kernel) -> None:
    """Every rounding is written down: no contraction, no built-in function."""
    instructions = list(module(kernel))
    exact = {
        i.operands[0] for i in instructions if i.code == 71 and i.operands[1] == 42
    }
    arithmetic = [i for i in instructions if i.code in FLOAT_ARITHMETIC]
    loose = [FLOAT_ARITHMETIC[i.code] for i in arithmetic if i.operands[1] not in exact]
    assert not loose, f"{len(loose)} of {len(arithmetic)} may be contracted: {loose}"
    assert not [FORBIDDEN[i.code] for i in instructions if i.code in FORBIDDEN]
    builtin = {i.operands[3] for i in instructions if i.code == 12}
    assert not builtin & INEXACT
    modes = [i.operands[1:] for i in instructions if i.code == 16]
    if arithmetic:
        # SignedZeroInfNanPreserve for 32 bits.
        assert (4461, 32) in modes


@EACH
def test_modules_are_valid(kernel: Kernel) -> None:
    validator = shutil.which("spirv-val")
    if validator is None:
        pytest.skip("spirv-val is not installed")
    path = SHADERS / "spirv" / f"{kernel.name}.spv"
    answer = subprocess.run(
        [validator, "--target-env", "vulkan1.3", str(path)],
        check=False,
        capture_output=True,
        text=True,
    )
    if kernel.needs.startswith("matrices") and "capability operand" in answer.stderr:
        pytest.skip("spirv-val is older than cooperative matrices")
    assert answer.returncode == 0, answer.stdout + answer.stderr
