"""Mapped views: who may use what meanwhile, and what is left afterwards."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.fake_device import Bench, FakeAllocation
from tosavk.core.buffers import Buffer
from tosavk.core.descriptors import USAGE_ALL, BufferDesc, BufferUsage, EventState
from tosavk.core.errors import (
    Busy,
    DeviceLost,
    InvalidArgument,
    PermissionDenied,
    Released,
    Unsupported,
)
from tosavk.core.views import MappedArray

N = 16


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def buffer(bench: Bench) -> Iterator[Buffer]:
    made = bench.context.allocate_buffer(BufferDesc(N, USAGE_ALL))
    made.write(0, bytes(range(N)))
    yield made
    if not made.is_released:
        made.release()


def test_reads_and_writes_go_to_the_buffer(buffer: Buffer) -> None:
    with buffer.map() as view:
        assert view.dtype == np.uint8
        assert view.shape == (N,)
        assert list(view[:4]) == [0, 1, 2, 3]
        view[4:8] = 99
        view += 1
        np.copyto(view[12:], np.full(4, 7, np.uint8))
    want = bytes([1, 2, 3, 4, 100, 100, 100, 100, 9, 10, 11, 12, 7, 7, 7, 7])
    assert buffer.read(0, N) == want


def test_types_divide_the_buffer(bench: Bench, buffer: Buffer) -> None:
    with buffer.map(np.float32) as view:
        assert view.shape == (4,)
        view[:] = [1, -2, 0.5, 4]
        assert view.sum() == 3.5
    assert buffer.read(4, 4) == np.float32(-2).tobytes()
    odd = bench.context.allocate_buffer(BufferDesc(10, USAGE_ALL))
    for dtype in (np.float32, object, "nonsense", "V0"):
        with pytest.raises(InvalidArgument), odd.map(dtype):
            pass
    with odd.map(np.int16) as view:
        assert view.size == 5


def test_order_of_checks(bench: Bench) -> None:
    plain = bench.context.allocate_buffer(BufferDesc(N, BufferUsage.PROGRAM_INPUT))

    def enter(target: Buffer, dtype: Any = np.uint8) -> None:  # noqa: ANN401
        with target.map(dtype):
            pass

    request = bench.bindings()
    event = bench.queue.submit(bench.program, request)
    used = request[0].buffer
    bench.device.poisoned = True
    with pytest.raises(PermissionDenied, match="TRANSFER_SOURCE or"):
        enter(plain, object)
    with pytest.raises(Busy):
        enter(used, object)
    bench.device.poisoned = False
    assert event.wait() is EventState.COMPLETE
    bench.device.poisoned = True
    with pytest.raises(DeviceLost):
        enter(used, object)
    bench.device.poisoned = False
    bench.device.maps = False
    with pytest.raises(InvalidArgument):
        enter(used, object)
    with pytest.raises(Unsupported, match="read_into"):
        enter(used)
    plain.release()
    with pytest.raises(Released):
        enter(plain, object)


def test_the_buffer_is_in_use_meanwhile(bench: Bench) -> None:
    request = bench.bindings()
    inputs = request[0].buffer
    prepared = bench.context.prepare(bench.program, request)
    with inputs.map():
        uses: list[Callable[[], object]] = [
            lambda: inputs.write(0, b"x"),
            lambda: inputs.read(0, 1),
            lambda: inputs.map().__enter__(),
            inputs.release,
        ]
        for use in uses:
            with pytest.raises(Busy, match="mapped"):
                use()
        submits: list[Callable[[], object]] = [
            lambda: bench.queue.submit(bench.program, request),
            prepared.submit,
        ]
        for submit in submits:
            with pytest.raises(Busy, match="mapped"):
                submit()
    with prepared.submit() as event:
        assert event.wait() is EventState.COMPLETE


def test_usage_says_whether_it_is_writable(bench: Bench) -> None:
    source = bench.context.allocate_buffer(BufferDesc(N, BufferUsage.TRANSFER_SOURCE))
    with source.map() as view:
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True
    target = bench.context.allocate_buffer(
        BufferDesc(N, BufferUsage.TRANSFER_DESTINATION)
    )
    with target.map() as view:
        view[:] = 1


USES: dict[str, Callable[[NDArray[Any]], object]] = {
    "item": lambda v: v[0],
    "slice": lambda v: v[1:],
    "store": lambda v: v.__setitem__(slice(None), 5),
    "iteration": lambda v: list(v),
    "length": len,
    "add": lambda v: v + 1,
    "radd": lambda v: np.ones(N, np.uint8) + v,
    "in place": lambda v: v.__iadd__(1),
    "out": lambda v: np.add(np.uint8(1), np.uint8(1), out=v),
    "compare": lambda v: v == 3,
    "sum": lambda v: v.sum(),
    "np.sum": np.sum,
    "copyto": lambda v: np.copyto(v, 3),
    "concatenate": lambda v: np.concatenate([np.ones(3), v]),
    "at": lambda v: np.add.at(v, 0, 1),
    "copy": lambda v: v.copy(),
    "fill": lambda v: v.fill(3),
    "tobytes": lambda v: v.tobytes(),
    "tolist": lambda v: v.tolist(),
    "reshape": lambda v: v.reshape(-1, 2),
    "transpose": lambda v: v.T,
    "view": lambda v: v.view(np.uint16),
    "data": lambda v: v.data,
    "ctypes": lambda v: v.ctypes.data,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
}


@pytest.mark.parametrize("name", USES)
def test_nothing_works_after_the_block(buffer: Buffer, name: str) -> None:
    with buffer.map() as view:
        part = view[2:14].reshape(3, 4)[1:]
        USES[name](view)
    for dead in (view, part):
        with pytest.raises(Released, match="after its block"):
            USES[name](dead)
        assert "block is over" in repr(dead)
        assert "block is over" in str(dead)
        assert dead.dtype == np.uint8
    # Another block does not revive it.
    with buffer.map(), pytest.raises(Released):
        USES[name](view)


def test_copies_and_results_are_ordinary_arrays(buffer: Buffer) -> None:
    with buffer.map() as view:
        results = [
            view.copy(),
            view + 1,
            view[2:] * 2,
            np.array(view),
            view.astype(int),
        ]
        loaded = pickle.loads(pickle.dumps(view))
        total = view.sum()
        assert "array([" in repr(view)
        assert str(view).startswith("[")
    assert [int(r[0]) for r in results] == [0, 1, 4, 0, 0]
    assert type(results[1]) is np.ndarray
    assert type(loaded) is np.ndarray
    assert loaded[3] == 3
    assert total == sum(range(N))


def test_an_exception_ends_the_view(buffer: Buffer) -> None:
    with pytest.raises(RuntimeError), buffer.map() as view:
        raise RuntimeError
    with pytest.raises(Released):
        view[0]
    assert buffer.read(0, 1) == b"\0"


def test_a_block_that_is_never_left_ends_with_its_manager(buffer: Buffer) -> None:
    manager = buffer.map()
    view = manager.__enter__()
    with pytest.raises(Busy):
        buffer.read(0, 1)
    del manager
    gc.collect()
    assert buffer.read(0, 1) == b"\0"
    with pytest.raises(Released):
        view[0]


def test_closing_ends_views(bench: Bench, buffer: Buffer) -> None:
    with buffer.map() as view:
        bench.accelerator.close()
        with pytest.raises(Released):
            view[0]
        # The memory is kept for what NumPy cannot be told of.
        assert not bench.device.closed
        assert bench.device.live["allocation"] == 1
    del view
    gc.collect()
    assert bench.device.live["allocation"] == 0
    assert bench.device.closed


def test_memory_outlives_arrays_that_escaped(bench: Bench) -> None:
    buffer = bench.context.allocate_buffer(BufferDesc(N, USAGE_ALL))
    with buffer.map() as view:
        escaped = np.asarray(view)[4:]
        flat = view.data
        view[:] = 7
    allocation = buffer._allocation  # pyright: ignore[reportPrivateUsage]
    assert isinstance(allocation, FakeAllocation)
    buffer.release()
    assert bench.accelerator.live_resources().buffers == 0
    assert not allocation.freed
    assert escaped[0] == 7
    assert flat[0] == 7
    del view, escaped
    gc.collect()
    assert not allocation.freed
    flat.release()
    gc.collect()
    assert allocation.freed
    bench.accelerator.close()
    assert bench.device.closed


def test_one_lease_serves_many_blocks(bench: Bench, buffer: Buffer) -> None:
    views: list[object] = []

    def use(number: int) -> None:
        with buffer.map() as view:
            view[0] = number
            views.append(view)

    for number in range(5):
        use(number)
    buffer.release()
    assert bench.device.live["allocation"] == 1
    del views[1:]
    gc.collect()
    assert bench.device.live["allocation"] == 1
    views.clear()
    gc.collect()
    assert bench.device.live["allocation"] == 0


def test_the_class_is_an_array(buffer: Buffer) -> None:
    with buffer.map() as view:
        assert isinstance(view, np.ndarray)
        assert type(view) is MappedArray
        assert bool(view[1])
        assert 3 in view
        assert np.shares_memory(view, view[3:])
