"""The NVFP4 kernels that know the order of matrix elements, for devices without one.

Their GLSL is compiled with matrices that are made of plain values: a lane holds what it
would hold on the hardware, and products go through shared memory. So everything but the
matrix unit itself runs as it is: how activations and weights are brought into the order,
which columns meet which, tiles, edges, launches.

Lanes meet at barriers of the whole work group, so all its subgroups must come by equally
often: those that take turns at the columns need equally many of them.
"""

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tosavk.backends.vulkan.device import open_with
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.backends.vulkan.spirv import ShaderLibrary, catalogue_library
from tosavk.core.accelerator import Accelerator
from tosavk.core.plan import MatrixShape

GLSL = Path(__file__).resolve().parents[2] / "shaders" / "glsl"
EMULATED = ("nvfp4_gemv", "nvfp4_gemm_fragments")

_TYPES = """
#define WEIGHTS f16mat4x2
#define TOKENS f16mat2x2
#define SUMS vec4
#define WIDE_TOKENS f16mat4x2
#define WIDE_WEIGHTS f16mat4x2
#define WIDE_SUMS mat4x2
#define SET_PAIR(matrix, pair, value) matrix[pair] = value;
#define subgroupBarrier() barrier()
#define coopMatStore(value, target, at, stride, layout) store_##target(value, at, stride)
#define coopMatLoad(matrix, source, at, stride, layout) matrix = load_##source(at, stride)
#define GROUP ((gl_LocalInvocationIndex & 31u) >> 2)
#define TURN (gl_LocalInvocationIndex & 3u)
// Not known to the compiler, so that it unrolls nothing.
#define SIXTEEN (16u * gl_NumWorkGroups.z)
#define MINE (gl_LocalInvocationIndex / 32u * 256u)

shared float16_t left[WIDTH / 32u * 256u];
shared float16_t right[WIDTH / 32u * 256u];

vec2 activated(vec2 v, uint kind) {
    return vec2(activated(v.x, kind), activated(v.y, kind));
}

void show_left(f16mat4x2 a) {
    for (uint p = 0u; p < 4u; p++)
        for (uint e = 0u; e < 2u; e++)
            left[MINE + (GROUP + 8u * ROW(p)) * 16u + 2u * TURN + 8u * COLUMN(p) + e] =
                a[p][e];
}

vec4 coopMatMulAdd(f16mat4x2 a, f16mat2x2 b, vec4 c) {
    barrier();
    show_left(a);
    for (uint p = 0u; p < 2u; p++)
        for (uint e = 0u; e < 2u; e++)
            right[MINE + (2u * TURN + 8u * p + e) * 16u + GROUP] = b[p][e];
    barrier();
    uint row = MINE + GROUP * 16u;
    uint column = MINE + 2u * TURN;
    for (uint k = 0u; k < SIXTEEN; k++) {
        vec2 tokens = vec2(right[column + 16u * k], right[column + 16u * k + 1u]);
        c.xy += float(left[row + k]) * tokens;
        c.zw += float(left[row + 128u + k]) * tokens;
    }
    return c;
}

mat4x2 coopMatMulAdd(f16mat4x2 a, f16mat4x2 b, mat4x2 c) {
    barrier();
    show_left(a);
    for (uint p = 0u; p < 4u; p++)
        for (uint e = 0u; e < 2u; e++)
            right[MINE + (2u * TURN + 8u * (p & 1u) + e) * 16u + GROUP + 8u * (p >> 1)] =
                b[p][e];
    barrier();
    uint row = MINE + GROUP * 16u;
    uint column = MINE + 2u * TURN;
    for (uint k = 0u; k < SIXTEEN; k++)
        for (uint p = 0u; p < 4u; p++) {
            uint at = column + 16u * k + 8u * (p >> 1);
            c[p] += float(left[row + 128u * (p & 1u) + k]) * vec2(right[at], right[at + 1u]);
        }
    return c;
}
"""

_ORDERS = {
    "right": "#define ROW(p) ((p) >> 1)\n#define COLUMN(p) ((p) & 1u)\n",
    # The pairs of a left matrix the other way round, as another instruction has them.
    "wrong": "#define ROW(p) ((p) & 1u)\n#define COLUMN(p) ((p) >> 1)\n",
}

_MEMORY = {
    "nvfp4_gemv": """
void store_memory(vec4 c, uint at, uint stride) {
    for (uint i = 0u; i < 4u; i++) {
        uint row = GROUP + 8u * (i >> 1);
        uint place = at + (2u * TURN + (i & 1u)) * stride + row / 4u;
        memory[place][row & 3u] = floatBitsToUint(c[i]);
    }
}
""",
    "nvfp4_gemm_fragments": """
f16mat4x2 load_tiles(uint at, uint stride) {
    f16mat4x2 a;
    for (uint p = 0u; p < 4u; p++) {
        uint k = 2u * TURN + 8u * (p & 1u);
        uint place = at + (GROUP + 8u * (p >> 1)) * stride + k / 8u;
        a[p] = unpackFloat2x16(tiles[place][(k & 7u) / 2u]);
    }
    return a;
}

void store_y(mat4x2 c, uint at, uint stride) {
    for (uint p = 0u; p < 4u; p++)
        for (uint e = 0u; e < 2u; e++)
            y[at + (GROUP + 8u * (p & 1u)) * stride + 2u * TURN + 8u * (p >> 1) + e] =
                c[p][e];
}

void store_tiles(mat4x2 c, uint at, uint stride) {
    for (uint p = 0u; p < 4u; p++)
        for (uint e = 0u; e < 2u; e++) {
            uint column = 2u * TURN + 8u * (p >> 1) + e;
            uint place = at + (GROUP + 8u * (p & 1u)) * stride + column / 4u;
            tiles[place][column & 3u] = floatBitsToUint(c[p][e]);
        }
}
""",
}


def compiler() -> str | None:
    """The GLSL compiler, if there is one."""
    return shutil.which("glslangValidator") or shutil.which("glslang")


@functools.cache
def emulated(name: str, order: str) -> bytes:
    """The SPIR-V of a kernel with matrices of plain values, in an order of elements."""
    text = (GLSL / f"{name}.comp").read_text()
    lines = text.splitlines(keepends=True)
    text = "".join(
        line
        for line in lines
        if "GL_KHR_cooperative_matrix" not in line and "vulkan_memory_model" not in line
    )
    include = '#include "nvfp4_fragments.glsl"\n'
    assert text.count(include) == text.count("void main()") == 1
    text = text.replace(include, _ORDERS[order] + _TYPES)
    text = text.replace("void main()", _MEMORY[name] + "\nvoid main()")
    found = compiler()
    assert found is not None
    with tempfile.TemporaryDirectory() as folder:
        source, module = Path(folder) / f"{name}.comp", Path(folder) / "module.spv"
        source.write_text(text)
        answer = subprocess.run(
            [
                found,
                "-V",
                "--target-env",
                "vulkan1.2",
                f"-I{GLSL}",
                source,
                "-o",
                module,
            ],
            check=False,
            capture_output=True,
            text=True,
        )
        assert answer.returncode == 0, answer.stdout
        return module.read_bytes()


@contextmanager
def emulating(
    selector: str, order: str = "right"
) -> Generator[Accelerator, None, None]:
    """Opens a device that has cooperative matrices, with kernels that emulate others.

    It then says to have subgroups of 32 and the matrices of the emulated kernels.
    """
    own = catalogue_library()

    def read(name: str) -> bytes:
        return emulated(name, order) if name in EMULATED else own.read(name)

    options = VulkanOptions(pipeline_cache=False)
    library = ShaderLibrary(own.kernels, read)
    device = open_with(None, selector, options, library=library)
    # What the emulation takes; everything else is the device's own.
    device._limits = replace(  # pyright: ignore[reportPrivateUsage]
        device.plan_limits,
        subgroup_size=32,
        # The emulation needs 1 KiB for each subgroup.
        max_workgroup_invocations=256,
        shared_bytes=18 * 1024,
        compute_units=1,
        matrix_shapes=(MatrixShape(16, 16, 16), MatrixShape(16, 8, 16)),
    )
    with Accelerator(device) as accelerator:
        yield accelerator
