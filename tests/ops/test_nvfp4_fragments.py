"""NVFP4 kernels that know the order of matrix elements, with matrices emulated.

Of the kernels everything runs but the matrix unit (harness/fragments.py), on a CPU driver
with cooperative matrices: `make test-coopmat`. On a device that has the right matrices
test_nvfp4_fast.py runs them as they are.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness import devices, fragments
from tosavk.backends.nvfp4 import Nvfp4Session
from tosavk.backends.nvfp4_check import variants_of, verdicts
from tosavk.backends.nvfp4_oracle import evaluate
from tosavk.backends.registry import open_accelerator, parse_spec
from tosavk.core.accelerator import Accelerator
from tosavk.core.nvfp4 import Nvfp4Warning
from tosavk.core.plan import Numerics
from tosavk.lowering.nvfp4.artifact import Extra, Projection
from tosavk.lowering.nvfp4.kernels import SUBGROUP
from tosavk.lowering.nvfp4.lower import lower_nvfp4
from tosavk.lowering.nvfp4.tiles import FRAGMENTS, GEMM, GEMV

pytestmark = pytest.mark.nvfp4


@pytest.fixture(scope="module")
def selector() -> str:
    """A device on which the emulation can run."""
    if fragments.compiler() is None:
        pytest.skip("no GLSL compiler")
    for spec in devices.available():
        if not (spec.startswith("vulkan") and "llvmpipe" in spec):
            continue
        with open_accelerator(spec) as accelerator:
            if not accelerator.device.plan_limits.lack("matrices"):
                return parse_spec(spec)[1] or ""
    pytest.skip("no CPU driver with cooperative matrices; make test-coopmat has one")


@pytest.fixture(scope="module")
def emulating(selector: str) -> Iterator[Accelerator]:
    with fragments.emulating(selector) as accelerator:
        yield accelerator


def filled(program: Projection) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(program.m)
    m, n, k = program.m, program.n, program.k
    rows = n if program.extras & Extra.ROW_SCALES else 1
    given: dict[str, NDArray[Any]] = {
        "x": rng.standard_normal((m, k), np.float32),
        "packed": rng.integers(0, 256, (n, k // 2), np.uint8),
        "scales": rng.integers(0, 127, (n, k // 16), np.uint8),
        "tensor_scale": rng.uniform(1e-3, 2e-3, rows).astype(np.float32),
    }
    if program.extras & Extra.BIAS:
        given["bias"] = rng.standard_normal(n, np.float32)
    if program.extras & Extra.RESIDUAL:
        given["residual"] = rng.standard_normal((m, n), np.float32)
    return given


@pytest.mark.parametrize(
    ("m", "n", "k", "kernel", "turns"),
    [
        (3, 125, 288, GEMV, 1),
        (8, 120, 1056, GEMV, 1),
        (1, 30, 992, GEMV, 8),
        (6, 30, 480, GEMV, 4),
        (20, 25, 96, GEMV, 1),
        (45, 25, 96, GEMV, 1),
        (40, 140, 160, FRAGMENTS, 0),
        (70, 140, 96, FRAGMENTS, 0),
    ],
)
def test_products(
    emulating: Accelerator, m: int, n: int, k: int, kernel: str, turns: int
) -> None:
    for extras in (Extra.NONE, Extra(7)):
        program = Projection(m=m, n=n, k=k, extras=extras)
        given = filled(program)
        if turns > 1:
            # The trial's subgroups do not come by the barriers equally often.
            assert -(-k // 128) % turns == 0
            limits = emulating.device.plan_limits
            lowered = lower_nvfp4(program, limits=limits, numerics=Numerics.FAST)
            verdicts(emulating.device).passed |= variants_of(lowered)
        # The kernel for few tokens takes more of them in several groups, where asked.
        asked = kernel if m == 45 else ""
        with Nvfp4Session(
            emulating, program, numerics=Numerics.FAST, kernel=asked
        ) as session:
            assert session.choice.kernel == kernel, str(session.choice)
            assert getattr(session.choice.tile, "turns", 0) == turns
            y = session.run(given)
        x = given["x"].astype(np.float16).astype(np.float32)
        answer = evaluate(program, {**given, "x": x})
        bound = (k + 64) * 2.0**-22 * answer.size + 2.0**-18 * np.abs(answer.y)
        assert (np.abs(y - answer.y) <= bound).all()


@pytest.mark.parametrize(("m", "kernel"), [(3, GEMV), (40, FRAGMENTS)])
def test_another_order_of_elements_is_found(selector: str, m: int, kernel: str) -> None:
    """It is told in a warning, and strict kernels do the work."""
    program = Projection(m=m, n=125, k=288)
    given = filled(program)
    with fragments.emulating(selector, "wrong") as accelerator:
        # The device's own matrices are not those that it pretends to have.
        verdicts(accelerator.device).broken[GEMM] = "not asked for"
        with pytest.warns(Nvfp4Warning, match=f"{kernel} its known-answer test failed"):
            session = Nvfp4Session(accelerator, program, numerics=Numerics.FAST)
        with session:
            assert session.choice.kernel == SUBGROUP
            failed = {r.kernel: r.reason for r in session.choice.rejected}
            assert "results are wrong" in failed[kernel]
            y = session.run(given)
    answer = evaluate(program, given)
    assert (np.abs(y - answer.y) <= (288 + 64) * 2.0**-23 * answer.size).all()
