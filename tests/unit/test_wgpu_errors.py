"""What wgpu reports becomes an error of the model; waiting is bounded."""

import time
from typing import cast

import pytest

from tosavk.backends.wgpu import _ffi
from tosavk.backends.wgpu.pipelines import Pipeline, work_groups
from tosavk.backends.wgpu.polling import Flag, finish_transfer, wait_until
from tosavk.core.errors import (
    DeviceLost,
    External,
    ModelError,
    OutOfMemory,
    ResourceLimit,
)
from tosavk.core.plan import Dispatch
from tosavk.shaders.catalogue import Kernel, Work


class FakeGpu:
    """A device of which only polling is asked."""

    def __init__(self, *, answers_after: int, flag: Flag) -> None:
        self.polls = 0
        self.lost: str | None = None
        self._after = answers_after
        self._flag = flag

    def poll(self) -> None:
        self.polls += 1
        if self.polls == self._after:
            self._flag.set(True)

    def check(self, doing: str) -> None:
        if self.lost is not None:
            raise DeviceLost(f"{doing}: {self.lost}")


def as_gpu(fake: FakeGpu) -> _ffi.Gpu:
    return cast("_ffi.Gpu", fake)


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        (3, "Not enough memory left.", OutOfMemory),
        (2, "Buffer size 9 is greater than the maximum buffer size (8)", ResourceLimit),
        (2, "range 9 exceeds `max_*_buffer_binding_size` limit 8", ResourceLimit),
        (
            2,
            "Caused by:\n  In wgpuDeviceCreateBuffer\n  Parent device is lost",
            DeviceLost,
        ),
        (2, "Shader parsing error: expected identifier", External),
        (4, "something internal", External),
    ],
)
def test_kinds_of_errors(kind: int, message: str, expected: type[ModelError]) -> None:
    error = _ffi.to_error(kind, f"Validation Error\n\n{message}", "a thing")
    assert type(error) is expected
    assert "a thing" in str(error)
    assert message.splitlines()[-1].strip() in str(error)
    assert "Validation Error" not in str(error)
    if isinstance(error, External):
        assert (error.domain, error.code) == (0x57475055, kind)


def test_waiting_ends_with_the_answer() -> None:
    flag = Flag()
    gpu = FakeGpu(answers_after=4, flag=flag)
    assert wait_until(as_gpu(gpu), lambda: flag.given, 10**10)
    assert gpu.polls == 4


def test_waiting_ends_with_the_time() -> None:
    gpu = FakeGpu(answers_after=0, flag=Flag())
    start = time.monotonic()
    assert not wait_until(as_gpu(gpu), lambda: False, 30_000_000)
    assert 0.03 <= time.monotonic() - start < 1
    # Pauses grow up to 1 ms, so there are some 50 polls and not thousands.
    assert 2 <= gpu.polls < 100
    polls = gpu.polls
    assert not wait_until(as_gpu(gpu), lambda: False, 0)
    assert gpu.polls == polls + 1


def test_waiting_ends_with_the_device() -> None:
    gpu = FakeGpu(answers_after=0, flag=Flag())
    gpu.lost = "gone"
    assert not wait_until(as_gpu(gpu), lambda: False, None)


def test_a_transfer_that_does_not_end_loses_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tosavk.backends.wgpu.polling.TRANSFER_TIMEOUT_NS", 1000)
    gpu = FakeGpu(answers_after=0, flag=Flag())
    with pytest.raises(DeviceLost, match="took longer"):
        finish_transfer(as_gpu(gpu), Flag(), "mapping 4 bytes")
    assert gpu.lost is not None


def test_a_transfer_that_fails_loses_the_device() -> None:
    flag = Flag()
    flag.set(False)
    gpu = FakeGpu(answers_after=0, flag=flag)
    with pytest.raises(DeviceLost, match="mapping 4 bytes failed"):
        finish_transfer(as_gpu(gpu), flag, "mapping 4 bytes")
    assert gpu.lost is not None


def launch(work: Work, columns: int, tiles: int = 1) -> tuple[Dispatch, Pipeline]:
    kernel = Kernel("k", ("x", "y"), (), (), work=work)
    dispatch = Dispatch("k", (), (), (), columns, tiles, False, 0)
    return dispatch, Pipeline(kernel, None, None, 64)


@pytest.mark.parametrize("columns", [1, 64, 65, 6400, 6401, 12800, 19777, 640_000])
def test_linear_work_covers_every_invocation(columns: int) -> None:
    x, y, z = work_groups(*launch(Work.LINEAR, columns), most=100)
    assert z == 1
    assert max(x, y) <= 100
    assert x * y * 64 >= columns
    assert (x * y - y) * 64 < columns


@pytest.mark.parametrize("tiles", [1, 99, 100, 101, 1999, 10_000])
def test_tiled_work_covers_every_tile(tiles: int) -> None:
    x, y, z = work_groups(*launch(Work.TILED, 130, tiles), most=100)
    assert x == 3
    assert max(y, z) <= 100
    assert tiles <= y * z < tiles + z


@pytest.mark.parametrize(
    ("work", "columns", "tiles"),
    [
        (Work.LINEAR, 64 * 100 * 100 + 1, 1),
        (Work.TILED, 6401, 1),
        (Work.TILED, 1, 10_001),
    ],
)
def test_too_much_work_is_refused(work: Work, columns: int, tiles: int) -> None:
    with pytest.raises(ResourceLimit, match="work groups"):
        work_groups(*launch(work, columns, tiles), most=100)
