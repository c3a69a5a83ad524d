"""Mapped views: the memory of a buffer as an array, for the length of a block.

Source: docs/accelerator.md, "Mapped views".
"""

# The classes of the model are friends: they use each other's private attributes.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tosavk.core.errors import InvalidArgument, Released
from tosavk.core.guards import DEAD, WRITER, Guard

if TYPE_CHECKING:
    from tosavk.core.device import Allocation
    from tosavk.core.shared import Shared


class Lease:
    """The memory of a buffer, kept as long as an array shows it.

    It is the base of every array of a view, so it lives exactly as long as they do.
    Memory of a buffer that is released meanwhile is freed when the lease ends.

    Args:
        shared: the accelerator's state.
        mapped: the bytes.
    """

    __slots__ = ("__weakref__", "_free", "_mapped", "_shared")

    def __init__(self, shared: Shared, mapped: memoryview) -> None:
        """A lease of mapped bytes."""
        self._shared = shared
        self._mapped = mapped
        self._free: Callable[[], None] | None = None

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """What NumPy needs to make an array whose base is this object."""
        return dict(np.frombuffer(self._mapped, np.uint8).__array_interface__)

    def inherit(self, allocation: Allocation) -> None:
        """Frees the allocation at the end; the device stays open until then."""
        self._shared.leases += 1
        self._free = allocation.free

    def __del__(self) -> None:
        """Frees what was inherited."""
        free = getattr(self, "_free", None)
        if free is not None:
            shared = self._shared
            shared.finalise(lambda: _end_lease(shared, free))


class View:
    """One block during which a buffer is mapped; the buffer is in use meanwhile.

    Args:
        guard: of a live, idle buffer in mapped memory.
        lease: of its memory.
        name: the buffer, for messages.
    """

    __slots__ = ("_guard", "_lease", "_name", "_open")

    def __init__(self, guard: Guard, lease: Lease, name: str) -> None:
        """Takes the buffer's guard."""
        self._guard = guard
        self._lease = lease
        self._name = name
        self._open = True
        guard.state += WRITER

    @property
    def open(self) -> bool:
        """Whether the block is not over and the buffer lives."""
        return self._open and not self._guard.state & DEAD

    def array(
        self, dtype: np.dtype[Any], nbytes: int, *, writable: bool
    ) -> MappedArray:
        """The first bytes as an array that belongs to this view."""
        plain = np.asarray(self._lease)
        if not writable:  # the flag of a view cannot be set again then
            plain.flags.writeable = False
        array = plain[:nbytes].view(dtype).view(MappedArray)
        array._view = self
        return array

    def close(self) -> None:
        """Ends it: its arrays cannot be used any more, the buffer is free."""
        self._open = False
        self._guard.state -= WRITER

    def refusal(self) -> Released:
        """The error for a use after the end."""
        return Released(
            f"an array of a mapped view of {self._name} was used after its block; "
            "copy what is needed later"
        )


class MappedArray(np.ndarray[Any, np.dtype[Any]]):
    """An array in a buffer's memory, usable until its block ends; `Buffer.map` makes it.

    Views of it end with it; copies and results of arithmetic are ordinary arrays. What
    escapes NumPy's notice (`np.asarray`, `memoryview`) is not stopped: it then shows
    memory that is kept, but may be in use by the device.
    """

    _view: View | None = None

    def __array_finalize__(self, obj: NDArray[Any] | None) -> None:
        """Views share the fate of what they show; copies are free."""
        if isinstance(obj, MappedArray) and not self.flags.owndata:
            self._view = obj._view

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - any attribute
        """Refuses everything but descriptions once the block is over."""
        if name not in _HARMLESS:
            _check(self)
        return super().__getattribute__(name)

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 - as NumPy
        """As NumPy, until the block is over."""
        _check(self)
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:  # noqa: ANN401 - as NumPy
        """As NumPy, until the block is over."""
        _check(self)
        super().__setitem__(key, value)

    def __len__(self) -> int:
        """As NumPy, until the block is over."""
        _check(self)
        return super().__len__()

    def __iter__(self) -> Iterator[Any]:
        """As NumPy, until the block is over."""
        _check(self)
        return super().__iter__()

    def __array_ufunc__(
        self,
        ufunc: np.ufunc,
        method: str,
        *inputs: Any,  # noqa: ANN401 - as NumPy
        out: tuple[Any, ...] = (),
        **kwargs: Any,  # noqa: ANN401 - as NumPy
    ) -> Any:  # noqa: ANN401 - as NumPy
        """Computes on the bytes; the result is an ordinary array."""
        if out:
            kwargs["out"] = tuple(_plain(part) for part in out)
        result = getattr(ufunc, method)(*map(_plain, inputs), **kwargs)
        if out:
            return out[0] if len(out) == 1 else out
        return result

    def __array_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:  # noqa: ANN401 - as NumPy
        """As NumPy, until the block is over."""
        for value in (*args, *kwargs.values()):
            for part in cast(
                Iterable[Any], value if isinstance(value, list | tuple) else (value,)
            ):
                _plain(part)
        return super().__array_function__(func, types, args, kwargs)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickles as an ordinary array."""
        return np.array(_plain(self)).__reduce__()

    def __repr__(self) -> str:
        """As NumPy, or that the block is over."""
        if self._view is not None and not self._view.open:
            return f"<MappedArray {self.dtype} {self.shape}, its block is over>"
        return repr(_plain(self))

    def __str__(self) -> str:
        """As NumPy, or that the block is over."""
        if self._view is not None and not self._view.open:
            return repr(self)
        return str(_plain(self))


# What may be asked of an array whose block is over: nothing that reaches the bytes.
_HARMLESS = frozenset(
    {
        "__class__",
        "__dict__",
        "__repr__",
        "__str__",
        "_view",
        "base",
        "dtype",
        "flags",
        "nbytes",
        "ndim",
        "shape",
        "size",
    }
)


def check_dtype(dtype: DTypeLike, nbytes: int) -> np.dtype[Any]:
    """The type that a buffer of `nbytes` is shown as.

    Raises:
        InvalidArgument: no type, one of Python objects, or one that does not divide it.
    """
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise InvalidArgument(f"no NumPy type: {dtype!r} ({error})") from None
    if kind.hasobject or kind.itemsize == 0 or nbytes % kind.itemsize:
        raise InvalidArgument(
            f"{nbytes} bytes cannot be shown as {kind}: they are no multiple of "
            f"{kind.itemsize} bytes, or the type holds no plain bytes"
        )
    return kind


def _check(array: MappedArray) -> None:
    view = array._view
    if view is not None and not view.open:
        raise view.refusal()


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a ufunc takes
    if isinstance(value, MappedArray):
        _check(value)
        return np.asarray(value)
    return value


def _end_lease(shared: Shared, free: Callable[[], None]) -> None:
    shared.leases -= 1
    with shared:
        free()
    shared.close_if_unused()
