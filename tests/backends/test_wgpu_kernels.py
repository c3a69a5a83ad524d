"""Every WGSL kernel of the catalogue compiles, whatever its specialization words."""

from collections.abc import Iterator

import pytest

from tosavk.backends.wgpu import open_device
from tosavk.backends.wgpu.device import WgpuDevice
from tosavk.core.dtypes import DType
from tosavk.core.errors import ModelError
from tosavk.shaders.catalogue import KERNELS, Kernel

# Words that stand for something else than a small number.
TYPES = (DType.FP32, DType.INT8, DType.FP16)


@pytest.fixture(scope="module")
def opened(wgpu_device: str) -> Iterator[WgpuDevice]:
    device = open_device(wgpu_device.partition(":")[2] or None)
    yield device
    device.close()


# Kernels with needs are written in GLSL only.
PORTABLE = [kernel for kernel in KERNELS if kernel.portable]


def test_words_that_do_not_matter_make_no_other_pipeline(opened: WgpuDevice) -> None:
    first, second, third = (
        opened.pipelines.get("conv2d", (3, fours, skip, 0))
        for fours, skip in ((0, 0), (1, 0), (0, 1))
    )
    assert first.handle == second.handle
    assert first.handle != third.handle


@pytest.mark.parametrize("kernel", PORTABLE, ids=lambda kernel: kernel.name)
def test_kernel_compiles(opened: WgpuDevice, kernel: Kernel) -> None:
    for dtype in TYPES:
        spec = tuple(int(dtype) if "TYPE" in name else 1 for name in kernel.spec)
        pipeline = opened.pipelines.get(kernel.name, spec)
        assert pipeline.kernel is kernel
        assert opened.pipelines.get(kernel.name, spec) is pipeline


@pytest.mark.parametrize("text", ["fn main( {", "fn main() { let x: u32 = 1.5; }"])
def test_a_kernel_error_names_the_kernel(
    opened: WgpuDevice, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def broken(kernel: Kernel) -> str:
        return f"{text} // {kernel.name}"

    monkeypatch.setattr("tosavk.backends.wgpu.pipelines.wgsl_text", broken)
    opened.pipelines.free()
    with pytest.raises(ModelError, match="the WGSL of kernel 'move'"):
        opened.pipelines.get("move", (5,))
    monkeypatch.undo()
    opened.pipelines.free()
    opened.pipelines.get("move", (5,))
