"""WGSL is read and specialised: what is decided goes, the rest stays as written."""

import os
import re
import subprocess
import sys

import pytest

from tosavk.backends.wgpu.pipelines import wgsl_text
from tosavk.backends.wgpu.specialize import specialize
from tosavk.backends.wgpu.wgsl import Source, WgslError
from tosavk.core.dtypes import DType
from tosavk.shaders.catalogue import KERNELS, Kernel

PORTABLE = tuple(kernel for kernel in KERNELS if not kernel.needs)

HEAD = """
override WORKGROUP: u32 = 64;
override OP: u32;  // what is done
const THREE: u32 = 3u;
const HALF: f32 = 0.5;
struct Params { count: u32, zero: u32 }
@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;
var<workgroup> shared_words: array<u32, THREE>;

fn lanes(dtype: u32) -> u32 {
    switch (dtype) {
        case 1u, 3u: { return 4u; }
        case 2u: { return 2u; }
        default: { return 1u; }
    }
}

fn narrow(dtype: u32, v: f32) -> u32 {
    let n = lanes(dtype);
    if (n == 4u) { return u32(v * HALF); }
    return bitcast<u32>(v) / n;
}

fn is_three() -> bool { return OP == THREE; }

fn never(v: u32) -> u32 { return shared_words[v]; }
"""


def body_of(statements: str, op: int = 3) -> str:
    """What becomes of statements in `main`, on one line."""
    text = f"{HEAD}\n@compute @workgroup_size(WORKGROUP)\nfn main() {{\n {statements}\n}}\n"
    made = specialize(Source(text), {"WORKGROUP": 32, "OP": op})
    assert made.startswith("@compute @workgroup_size(32u)\nfn main() {\n")
    inside = made.partition("{")[2]
    depth = 1
    for at, letter in enumerate(inside):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return " ".join(inside[:at].split())
    raise AssertionError("a brace is missing")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # Branches that the constants decide.
        ("if (OP == 3u) { y[0] = 1u; } else { y[0] = 2u; }", "y[0] = 1u;"),
        ("if (OP != 3u) { y[0] = 1u; } else { y[0] = 2u; }", "y[0] = 2u;"),
        ("if (OP != 3u) { y[0] = 1u; }", ""),
        ("if (is_three() && y[0] == 1u) { y[0] = 2u; }", "if ((y[0] == 1u)) { y[0] = 2u; }"),
        ("if (!is_three() && y[0] == 1u) { y[0] = 2u; }", ""),
        ("if (is_three() || y[0] == 1u) { return; } y[0] = 2u;", "return;"),
        ("if (y[0] == 1u) { return; } else { return; } y[0] = 2u;",
         "if ((y[0] == 1u)) { return; } else { return; }"),
        ("switch (OP) { case 1u: { y[0] = 1u; } case 2u, 3u: { y[0] = 2u; } "
         "default: { y[0] = 3u; } }", "y[0] = 2u;"),
        ("switch (OP + 1u) { case 1u: { y[0] = 1u; } default: { y[0] = 3u; } }",
         "y[0] = 3u;"),
        # What only run time decides.
        ("switch (y[0]) { case 1u, THREE: { y[0] = OP; } default: { y[1] = 3u; } }",
         "switch ((y[0])) { case 1u, 3u: { y[0] = 3u; } case default: { y[1] = 3u; } }"),
        ("switch (OP) { case 3u: { if (y[0] == 0u) { break; } y[0] = 1u; } default: {} }",
         "switch (3u) { case 3u: { if ((y[0] == 0u)) { break; } y[0] = 1u; } "
         "case default: { } }"),
        # Constants behind names, and names that hide them.
        ("let n = lanes(OP); y[n] = n * 2u;", "y[4u] = 8u;"),
        ("var n = lanes(OP); n += 1u; y[0] = n;", "var n = 4u; n += 1u; y[0] = n;"),
        ("{ let n = y[0]; { let n = OP; y[0] = n; } y[1] = n; }",
         "{ let n = y[0]; y[0] = 3u; y[1] = n; }"),
        ("let n = OP; { let n = y[0]; y[0] = n; } y[1] = n;",
         "{ let n = y[0]; y[0] = n; } y[1] = 3u;"),
        ("for (var n = 0u; n < lanes(OP); n++) { y[n] = n; }",
         "for (var n = 0u; n < 4u; n++) { y[n] = n; }"),
        # Functions that take a constant.
        ("y[0] = narrow(OP, 1.5);", "y[0] = narrow_for_3_x(1.5);"),
        ("y[0] = narrow(y[1], 1.5);", "y[0] = narrow(y[1], 1.5);"),
        ("y[0] = narrow(1u, 1.5);", "y[0] = narrow(1u, 1.5);"),
        # Arithmetic of u32 wraps; what has no value is left alone.
        ("y[0] = OP - 4u;", "y[0] = 4294967295u;"),
        ("y[0] = ~OP;", "y[0] = 4294967292u;"),
        ("y[0] = OP * 2u + y[1];", "y[0] = 6u + y[1];"),
        ("y[0] = y[1] * (OP + y[2]);", "y[0] = y[1] * (3u + y[2]);"),
        ("y[0] = y[1] * select(y[2] + y[3], y[4] + 1u, OP == 3u);",
         "y[0] = y[1] * (y[4] + 1u);"),
        ("y[0] = u32(-1.5 * f32(y[1])) << (OP & 1u);",
         "y[0] = u32(-1.5 * f32(y[1])) << 1u;"),
        ("y[0] = u32(0x1.8p-3f + 1e-5 * .5 - 2.f) + 0xffu + u32(0x1fi);",
         "y[0] = u32(0x1.8p-3f + 1e-5 * .5 - 2.f) + 255u + u32(0x1fi);"),
        ("let v = vec4<u32>(OP, 1u, 2u, 3u); y[0] = v.x;",
         "let v = vec4<u32>(3u, 1u, 2u, 3u); y[0] = v.x;"),
    ],
)  # fmt: skip
def test_statements(given: str, expected: str) -> None:
    assert body_of(given) == expected


def test_a_division_by_zero_is_left_alone() -> None:
    assert body_of("y[0] = 1u / OP;", 0) == "y[0] = 1u / 0u;"
    assert body_of("y[0] = 1u << OP;", 32) == "y[0] = 1u << 32u;"


def test_only_what_is_reached_is_kept() -> None:
    text = f"{HEAD}\n@compute @workgroup_size(WORKGROUP)\nfn main() {{ y[0] = narrow(OP, 2.0); }}"
    made = specialize(Source(text), {"WORKGROUP": 64, "OP": 2})
    assert re.findall(r"fn (\w+)", made) == ["main", "narrow_for_2_x"]
    assert "HALF" not in made
    assert "shared_words" not in made
    assert "override" not in made
    assert "bitcast<u32>(v) / 2u" in made
    again = specialize(Source(text), {"WORKGROUP": 64, "OP": 3})
    assert "const HALF: f32 = 0.5;" in again


def test_constants_stand_in_types_too() -> None:
    assert "y[0]" in body_of("y[0] = never(1u);")
    text = f"{HEAD}\n@compute @workgroup_size(WORKGROUP)\nfn main() {{ y[0] = never(1u); }}"
    made = specialize(Source(text), {"WORKGROUP": 64, "OP": 2})
    assert "var<workgroup> shared_words: array<u32, 3u>;" in made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no declaration"),
        ("override N: f32;\nfn main() {}", "override N is no u32"),
        ("alias Word = u32;\nfn main() {}", "a line begins with 'alias"),
        ("fn main() { loop { } }", "'loop' is not known"),
        ("fn main() { let a = 1u }", "';' is missing near"),
        ("fn main() { let a = ); }", "begins with"),
        ("fn main() { let a = (1u; }", "is missing"),
        ("fn main() {", "ends too early"),
        ("fn main() { let a = min(1u 2u); }", "',' is missing near"),
        ("fn other() {}", "no function 'main'"),
        ("override N: u32;\nfn main() {}", "without a value: N"),
    ],
)
def test_what_is_not_understood_is_an_error(text: str, message: str) -> None:
    with pytest.raises(WgslError, match=re.escape(message)):
        specialize(Source(text), {})


def test_every_process_makes_the_same_text() -> None:
    """Otherwise nothing would be found in the driver's cache."""
    program = (
        "from tosavk.backends.wgpu.pipelines import wgsl_text\n"
        "from tosavk.backends.wgpu.specialize import specialize\n"
        "from tosavk.backends.wgpu.wgsl import Source\n"
        "from tosavk.shaders.catalogue import kernels\n"
        "source = Source(wgsl_text(kernels()['unary']))\n"
        "words = {'WORKGROUP': 64, 'OP': 12, 'TYPE': 8, 'MODE': 0}\n"
        "print(specialize(source, words))\n"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1


@pytest.mark.parametrize("kernel", PORTABLE, ids=lambda kernel: kernel.name)
def test_every_kernel_is_understood(kernel: Kernel) -> None:
    source = Source(wgsl_text(kernel))
    assert source.overrides == {"WORKGROUP", *kernel.spec}
    whole = sum(len(function.body) for function in source.functions.values())
    assert whole > 0
    for dtype in DType:
        spec = {name: int(dtype) if "TYPE" in name else 1 for name in kernel.spec}
        made = specialize(source, {"WORKGROUP": 64, **spec})
        assert "override" not in made
        assert not set(re.findall(r"\w+", made)) & source.overrides
