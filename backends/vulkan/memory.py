"""The memory plan: which memory type serves which domain.

A pure function of the device's tables. A type is usable if buffers of our usage may
lie in it (`mask`, measured with a throw-away buffer, since some drivers list types
that buffers may not use) and if it carries none of `EXCLUDED`, which need features
that are not enabled. Source: docs/accelerator.md, "Memory".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tosavk.backends.vulkan._ffi import const
from tosavk.core.descriptors import Capabilities, MemoryDomain

DEVICE_LOCAL = const.MEMORY_PROPERTY_DEVICE_LOCAL_BIT
HOST_VISIBLE = const.MEMORY_PROPERTY_HOST_VISIBLE_BIT
HOST_COHERENT = const.MEMORY_PROPERTY_HOST_COHERENT_BIT
HOST_CACHED = const.MEMORY_PROPERTY_HOST_CACHED_BIT
MAPPABLE = HOST_VISIBLE | HOST_COHERENT
EXCLUDED = (
    const.MEMORY_PROPERTY_PROTECTED_BIT
    | const.MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT
    | const.MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD
    | const.MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD
    | const.MEMORY_PROPERTY_RDMA_CAPABLE_BIT_NV
)
ALL_TYPES = 2**32 - 1


@dataclass(frozen=True, slots=True)
class MemoryHeap:
    """A heap: its size in bytes and its flags."""

    size: int
    flags: int


@dataclass(frozen=True, slots=True)
class MemoryType:
    """A memory type: its property flags and the number of its heap."""

    flags: int
    heap: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A chosen memory type.

    Attributes:
        index: memory type number.
        heap: heap number.
        flags: its property flags.
        mapped: whether allocations are mapped, whole, for their life.
    """

    index: int
    heap: int
    flags: int
    mapped: bool


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory type of each domain.

    Attributes:
        host: mapped memory near the host.
        device: memory near the device, or None.
        shared: mapped memory near the device, or None.
    """

    host: Placement
    device: Placement | None
    shared: Placement | None

    def placement(self, domain: MemoryDomain) -> Placement | None:
        """The memory type of a domain, if it has one."""
        if domain is MemoryDomain.HOST:
            return self.host
        return self.device if domain is MemoryDomain.DEVICE else self.shared

    @property
    def arena(self) -> Placement:
        """Where program arenas lie."""
        return self.device or self.host

    @property
    def capabilities(self) -> Capabilities:
        """The domains as a device advertises them."""
        found = Capabilities.HOST_VISIBLE_MEMORY
        if self.device is not None:
            found |= Capabilities.DEVICE_LOCAL_MEMORY
        if self.shared is not None:
            found |= Capabilities.SHARED_MEMORY
        return found


def import_placement(types: Sequence[MemoryType], mask: int) -> Placement | None:
    """The memory type for imported host memory; None if there is none.

    Near the device before others, then the first one. `EXCLUDED` holds here too.

    Args:
        types: the device's table.
        mask: bit i is set if type i takes this memory and this buffer.
    """
    found = [
        Placement(index, kind.heap, kind.flags, mapped=True)
        for index, kind in enumerate(types)
        if mask >> index & 1
        and kind.flags & MAPPABLE == MAPPABLE
        and not kind.flags & EXCLUDED
    ]
    near = [place for place in found if place.flags & DEVICE_LOCAL]
    return next(iter(near or found), None)


def plan_memory(
    types: Sequence[MemoryType],
    *,
    heaps: int,
    mask: int = ALL_TYPES,
    map_unified: bool = True,
) -> MemoryPlan | None:
    """Chooses the memory types; None if there is none for the host.

    Args:
        types: the device's table.
        heaps: number of heaps; with one, mappable DEVICE memory is preferred.
        mask: bit i is set if buffers may lie in type i.
        map_unified: whether DEVICE memory may be mapped; without it, it is staged.
    """
    usable = [
        (index, kind)
        for index, kind in enumerate(types)
        if mask >> index & 1 and not kind.flags & EXCLUDED
    ]

    def choose(
        required: int, score: Callable[[int], int], *, may_map: bool = True
    ) -> Placement | None:
        """The highest score, the last of equal ones."""
        fits = [(i, kind) for i, kind in usable if kind.flags & required == required]
        if not fits:
            return None
        index, kind = max(fits, key=lambda item: (score(item[1].flags), item[0]))
        mapped = may_map and kind.flags & MAPPABLE == MAPPABLE
        return Placement(index, kind.heap, kind.flags, mapped)

    def cached(flags: int) -> int:
        return bool(flags & HOST_CACHED)

    def near_host(flags: int) -> int:
        return 2 * (not flags & DEVICE_LOCAL) + cached(flags)

    def hidden(flags: int) -> int:
        return not flags & HOST_VISIBLE

    def unified(flags: int) -> int:
        return 2 * (flags & MAPPABLE == MAPPABLE) + cached(flags)

    host = choose(MAPPABLE, near_host)
    if host is None:
        return None
    device_score = unified if map_unified and heaps == 1 else hidden
    return MemoryPlan(
        host=host,
        device=choose(DEVICE_LOCAL, device_score, may_map=map_unified),
        shared=choose(DEVICE_LOCAL | MAPPABLE, cached),
    )
