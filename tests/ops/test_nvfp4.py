"""NVFP4 products on every device: bounds, strict bits, modes, epilogues, fallbacks."""

import functools
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness import devices
from harness.running import Devices
from tosavk.backends import nvfp4_check
from tosavk.backends.nvfp4 import Nvfp4Session
from tosavk.backends.nvfp4_oracle import Answer, evaluate
from tosavk.backends.registry import open_accelerator
from tosavk.core import nvfp4
from tosavk.core.descriptors import FORMAT_NVFP4, Artifact
from tosavk.core.device import Device
from tosavk.core.errors import InvalidArgument, Released, ResourceLimit
from tosavk.core.nvfp4 import Nvfp4Warning
from tosavk.lowering.errors import AdmissionError
from tosavk.lowering.nvfp4.artifact import (
    TARGET,
    Activation,
    Experts,
    Extra,
    Mode,
    Program,
    Projection,
)
from tosavk.lowering.nvfp4.kernels import SCALAR, STRICT_KERNELS
from tosavk.lowering.nvfp4.lower import LoweredNvfp4, slots_of

pytestmark = pytest.mark.nvfp4

Array = NDArray[Any]
Inputs = Mapping[str, Array]
Given = dict[str, Array]


def filled(program: Program, *, seed: int = 0) -> dict[str, Array]:
    """Random values for the input slots: all codes, all finite scales of both signs."""
    rng = np.random.default_rng(seed)
    given: dict[str, Array] = {}
    for slot in slots_of(program)[:-1]:
        if slot.name.startswith("expert") and isinstance(program, Experts):
            given[slot.name] = expert_bytes(program, rng)
        elif slot.name.startswith("scales"):
            codes = rng.integers(0, 255, slot.shape)
            given[slot.name] = np.where(codes & 127 == 127, 1, codes).astype(np.uint8)
        elif slot.name.startswith("packed"):
            given[slot.name] = rng.integers(0, 256, slot.shape).astype(np.uint8)
        elif "tensor_scale" in slot.name:
            given[slot.name] = rng.uniform(1e-4, 1e-3, slot.shape).astype(np.float32)
        else:
            given[slot.name] = rng.standard_normal(slot.shape).astype(np.float32)
    return given


def expert_bytes(program: Experts, rng: np.random.Generator) -> Array:
    return rng.integers(0, 0x7F, program.expert_bytes).astype(np.uint8)


@functools.cache
def problem(program: Program, seed: int = 0) -> tuple[dict[str, Array], Answer]:
    """Inputs and the exact answer, once for all devices."""
    given = filled(program, seed=seed)
    return given, evaluate(program, given)


def run(opened: Devices, spec: str, program: Program, given: Inputs) -> Array:
    with Nvfp4Session(opened.accelerator(spec), program) as session:
        return session.run(given)


SHAPES = [
    (1, 1, 16),
    (1, 7, 528),
    (2, 33, 48),
    (3, 17, 1040),
    (5, 9, 512),
    (8, 6, 32),
    (13, 5, 64),
    (70, 11, 80),
]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_sums_are_within_the_bound(
    opened: Devices, device: str, m: int, n: int, k: int
) -> None:
    program = Projection(m=m, n=n, k=k)
    given, answer = problem(program)
    y = run(opened, device, program, given)
    bound = (k + 64) * 2.0**-23 * answer.size
    assert y.shape == (m, n)
    assert (np.abs(y - answer.y) <= bound).all()


def test_every_count_of_tokens(opened: Devices, gpu_device: str) -> None:
    for m in range(1, 71):
        program = Projection(m=m, n=3, k=32)
        given, answer = problem(program)
        y = run(opened, gpu_device, program, given)
        assert (np.abs(y - answer.y) <= 96 * 2.0**-23 * answer.size).all(), m


@pytest.mark.parametrize("m", [16, 3])
def test_every_code_times_every_scale(opened: Devices, device: str, m: int) -> None:
    """Row r has scale r and all codes; token t picks element t: every product alone."""
    program = Projection(m=m, n=256, k=16)
    picked = np.arange(m) if m == 16 else np.array([1, 8, 15])
    given: Given = {
        "x": np.eye(16, dtype=np.float32)[picked],
        "packed": nvfp4.pack_codes(np.tile(np.arange(16, dtype=np.uint8), (256, 1))),
        "scales": np.arange(256, dtype=np.uint8)[:, None],
        "tensor_scale": np.ones(1, np.float32),
    }
    y = run(opened, device, program, given)
    expected = nvfp4.CODE_VALUES[picked][:, None] * nvfp4.SCALE_VALUES
    np.testing.assert_array_equal(y, expected)


def bits_of_all(opened: Devices, program: Program, given: Inputs) -> dict[str, bytes]:
    """The result's bytes of every device with kernels, and of every strict kernel."""
    found: dict[str, bytes] = {}
    for spec in devices.available():
        if spec == "reference":
            continue
        device = opened.accelerator(spec).device
        known = nvfp4_check.verdicts(device)
        for kernel in STRICT_KERNELS:
            others = {k: "not asked for" for k in STRICT_KERNELS if k != kernel}
            if kernel != SCALAR and device.plan_limits.lack("subgroup"):
                continue
            saved, known.broken = known.broken, others
            try:
                found[f"{spec} {kernel}"] = run(opened, spec, program, given).tobytes()
            finally:
                known.broken = saved
    return found


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 6, 592), (3, 5, 48), (9, 4, 1024)])
def test_strict_bits_are_equal(
    opened: Devices, activation: Activation, m: int, n: int, k: int
) -> None:
    program = Projection(m=m, n=n, k=k, activation=activation, extras=Extra(7))
    given, _ = problem(program)
    found = bits_of_all(opened, program, given)
    if len(found) < 2:
        pytest.skip("fewer than two kernels or devices")
    assert len(set(found.values())) == 1, found.keys()


def documented(program: Projection, given: Inputs) -> Array:
    """The strict sum of docs/nvfp4.md, step by step in FP32."""
    n, k = program.n, program.k
    single = np.float32
    codes = nvfp4.CODE_VALUES[nvfp4.unpack_codes(given["packed"])]
    codes = codes.reshape(n, k // 16, 16)
    scales = nvfp4.decode_scales(given["scales"])
    y = np.zeros((program.m, n), single)
    for t, token in enumerate(given["x"].reshape(program.m, k // 16, 16)):
        lanes = np.zeros((32, n), single)
        for block, values in enumerate(token):
            inner = np.zeros(n, single)
            for j, value in enumerate(values):
                inner = inner + codes[:, block, j] * value
            lanes[block % 32] = lanes[block % 32] + inner * scales[:, block]
        for step in (16, 8, 4, 2, 1):
            lanes = lanes[:step] + lanes[step : 2 * step]
        v = lanes[0] * given["tensor_scale"][0] + given["bias"][0]
        v = np.maximum(v, single(0))
        y[t] = v * v + given["residual"][t]
    return y


@pytest.mark.parametrize(("m", "n", "k"), [(1, 6, 592), (3, 5, 48), (9, 4, 1056)])
def test_strict_bits_are_the_documented_ones(
    opened: Devices, gpu_device: str, m: int, n: int, k: int
) -> None:
    program = Projection(
        m=m, n=n, k=k, activation=Activation.SQUARED_RELU, extras=Extra(7)
    )
    given, _ = problem(program)
    y = run(opened, gpu_device, program, given)
    assert y.tobytes() == documented(program, given).tobytes()


def test_strict_bits_of_special_values(opened: Devices) -> None:
    program = Projection(m=4, n=5, k=64, activation=Activation.SILU)
    given = filled(program)
    given["x"][0, :4] = [np.inf, -np.inf, np.nan, -0.0]
    given["x"][1, 3] = -np.inf
    given["x"][2] = 3e38
    given["x"][3] = 0
    given["scales"][1, 2] = 0xFF
    found = bits_of_all(opened, program, given)
    if len(found) < 2:
        pytest.skip("fewer than two kernels or devices")
    assert len(set(found.values())) == 1, found.keys()


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("extras", [Extra.NONE, Extra.BIAS, Extra(7)])
def test_epilogues(
    opened: Devices, device: str, activation: Activation, extras: Extra
) -> None:
    program = Projection(m=3, n=9, k=64, activation=activation, extras=extras)
    given, answer = problem(program)
    y = run(opened, device, program, given)
    sums = 128 * 2.0**-23 * answer.size
    slope: Any = 1.1
    if activation is Activation.SQUARED_RELU:
        slope = 2 * np.abs(answer.before) + sums
    assert (np.abs(y - answer.y) <= slope * sums + 2.0**-21 * np.abs(answer.y)).all()


@pytest.mark.parametrize("mode", [Mode.BATCHED, Mode.EXPERTS])
@pytest.mark.parametrize("m", [1, 2, 5, 6])
@pytest.mark.parametrize("extras", [Extra.NONE, Extra(7)])
def test_matrices_of_their_own(
    opened: Devices, device: str, mode: Mode, m: int, extras: Extra
) -> None:
    program = Projection(m=m, n=7, k=48, mode=mode, extras=extras)
    given, answer = problem(program)
    y = run(opened, device, program, given)
    bound = 112 * 2.0**-23 * answer.size + 2.0**-22 * np.abs(answer.y)
    assert (np.abs(y - answer.y) <= bound).all()


@pytest.mark.parametrize(("width", "inner"), [(48, 80), (64, 128)])
@pytest.mark.parametrize("batch", range(1, 7))
def test_fused_experts(
    opened: Devices, device: str, batch: int, width: int, inner: int
) -> None:
    program = Experts.packed(batch=batch, width=width, inner=inner)
    given, answer = problem(program)
    y = run(opened, device, program, given)
    error = np.linalg.norm(y - answer.y) / np.linalg.norm(answer.y)
    assert error <= 1e-5


def test_experts_at_odd_words(opened: Devices, device: str) -> None:
    one = Experts.packed(batch=2, width=32, inner=48)
    shifted = tuple(
        type(o)(
            up_packed=o.up_packed + 4 + 8 * e,
            up_scales=o.up_scales + 4 + 8 * e,
            down_packed=o.down_packed + 4 + 8 * e,
            down_scales=o.down_scales + 4 + 8 * e,
        )
        for e, o in enumerate(one.offsets)
    )
    program = Experts(
        batch=2,
        width=32,
        inner=48,
        expert_bytes=one.expert_bytes + 12,
        offsets=shifted,
    )
    given, answer = problem(program)
    y = run(opened, device, program, given)
    assert np.linalg.norm(y - answer.y) <= 1e-5 * np.linalg.norm(answer.y)


def test_an_artifact_through_the_model(opened: Devices, device: str) -> None:
    accelerator = opened.accelerator(device)
    with accelerator.create_context() as context:
        artifact = Projection(m=1, n=2, k=16).artifact()
        with context.load_program(artifact) as program:
            assert [slot.name for slot in program.slots][-1] == "y"
        for payload, error in [
            (b"VKNVFP4\0", AdmissionError),
            (Projection(m=1, n=2, k=16).payload()[:-1], AdmissionError),
        ]:
            with pytest.raises(error):
                context.load_program(Artifact(FORMAT_NVFP4, TARGET, payload))


def test_weights_stay_on_the_device(opened: Devices, device: str) -> None:
    program = Projection(m=1, n=3, k=16)
    given = filled(program)
    with Nvfp4Session(opened.accelerator(device), program) as session:
        first = session.run(given)
        assert (session.run({"x": 2 * given["x"]}) == 2 * first).all()
        with pytest.raises(InvalidArgument, match="'w' is no input"):
            session.write("w", given["x"])
        with pytest.raises(InvalidArgument, match="'x' is FP32"):
            session.write("x", given["x"][:, :8])
        with pytest.raises(InvalidArgument, match="bytes"):
            session.write("packed", given["x"])
    with pytest.raises(Released):
        session.run(given)


# Known answers -----------------------------------------------------------------------


def wrong_answer(device: Device, lowered: LoweredNvfp4, given: Given) -> Array:
    return RUN_ONCE(device, lowered, given) + np.float32(1e3)


RUN_ONCE = nvfp4_check.run_once


def test_a_kernel_with_a_wrong_answer_is_not_used(
    opened: Devices, vulkan_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = opened.accelerator(vulkan_device)
    if accelerator.device.plan_limits.lack("subgroup"):
        pytest.skip("one kernel only")

    def broken(device: Device, lowered: LoweredNvfp4, given: Given) -> Array:
        good = RUN_ONCE(device, lowered, given)
        return good if lowered.choice.kernel == SCALAR else good + np.float32(1e3)

    monkeypatch.setattr(nvfp4_check, "run_once", broken)
    fresh = nvfp4_check.Verdicts()
    monkeypatch.setitem(nvfp4_check.VERDICTS, accelerator.device, fresh)
    program = Projection(m=2, n=3, k=32)
    given, answer = problem(program)
    with pytest.warns(
        Nvfp4Warning, match="nvfp4_subgroup its known-answer test failed"
    ):
        session = Nvfp4Session(accelerator, program)
    with session:
        assert session.choice.kernel == SCALAR
        rejected = session.choice.rejected[-1]
        assert "results are wrong" in rejected.reason
        y = session.run(given)
    assert (np.abs(y - answer.y) <= 96 * 2.0**-23 * answer.size).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Nvfp4Session(accelerator, program).close()


def test_no_kernel_is_left(
    opened: Devices, gpu_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = opened.accelerator(gpu_device)
    monkeypatch.setattr(nvfp4_check, "run_once", wrong_answer)
    fresh = nvfp4_check.Verdicts()
    monkeypatch.setitem(nvfp4_check.VERDICTS, accelerator.device, fresh)
    with (
        pytest.warns(Nvfp4Warning, match="known-answer test failed"),
        pytest.raises(ResourceLimit, match="no NVFP4 kernel fits"),
    ):
        Nvfp4Session(accelerator, Projection(m=1, n=1, k=16))


def test_kernels_are_switched_off(vulkan_device: str) -> None:
    program = Projection(m=2, n=3, k=32)
    given, answer = problem(program)
    with (
        open_accelerator(vulkan_device, disable=["no-subgroup"]) as accelerator,
        Nvfp4Session(accelerator, program) as session,
    ):
        assert session.choice.kernel == SCALAR
        assert "nvfp4_subgroup: switched off (no-subgroup)" in str(session.choice)
        y = session.run(given)
    assert (np.abs(y - answer.y) <= 96 * 2.0**-23 * answer.size).all()


def test_zero_activations_and_saturated_codes(opened: Devices, device: str) -> None:
    weights = nvfp4.quantize(np.full((3, 32), -6.0), tensor_scale=1.0)
    program = Projection(m=2, n=3, k=32)
    given: Given = {
        "x": np.stack([np.zeros(32), np.ones(32)]).astype(np.float32),
        "packed": weights.packed,
        "scales": weights.block_scales,
        "tensor_scale": weights.tensor_scale,
    }
    y = run(opened, device, program, given)
    assert y.tolist() == [[0.0] * 3, [-192.0] * 3]
