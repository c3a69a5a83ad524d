"""The memory plan on tables of real devices, and on made-up ones."""

from collections.abc import Sequence

import pytest

from tosavk.backends.vulkan.memory import (
    EXCLUDED,
    MemoryPlan,
    MemoryType,
    Placement,
    import_placement,
    plan_memory,
)
from tosavk.core.descriptors import Capabilities, MemoryDomain

DL, HV, HC, CA, LAZY, PROTECTED = 1, 2, 4, 8, 16, 32
AMD = 64 | 128
RDMA = 256

# Radeon 860M with RADV, Mesa 26.1.8: two heaps; the AMD copies come last.
RADV = (
    (DL, 1),
    (DL, 1),
    (HV | HC, 0),
    (DL | HV | HC, 1),
    (DL | HV | HC, 1),
    (HV | HC | CA, 0),
    (HV | HC | CA, 0),
    (DL | AMD, 1),
    (HV | HC | AMD, 0),
    (DL | HV | HC | AMD, 1),
    (HV | HC | CA | AMD, 0),
)
# NVIDIA H200, driver 580: the last type is the resizable BAR.
NVIDIA = ((0, 1), (DL, 0), (HV | HC, 1), (HV | HC | CA, 1), (DL | HV | HC, 0))
# lavapipe and SwiftShader: one heap, one type.
SOFTWARE = ((DL | HV | HC | CA, 0),)
# A card with a window of 246 MiB: the window has a heap of its own.
SMALL_BAR = ((DL, 0), (HV | HC, 1), (HV | HC | CA, 1), (DL | HV | HC, 2))
# Apple with MoltenVK: one heap, a private type first.
UNIFIED = ((DL, 0), (DL | HV | HC | CA, 0), (DL | LAZY, 0))

# An integrated Intel GPU with ANV: one heap; the last types serve protected content and
# compressed images, which buffers may not use.
ANV = (
    (DL | HV | HC, 0),
    (DL | HV | HC | CA, 0),
    (DL | PROTECTED, 0),
    (DL, 0),
)
ANV_BUFFERS = 0b0011
# A card whose window into device memory is not coherent with the host.
NOT_COHERENT = ((DL, 0), (DL | HV, 0), (HV | HC, 1), (HV | CA, 1), (HV | HC | CA, 1))


def plan(
    table: Sequence[tuple[int, int]],
    *,
    heaps: int,
    mask: int = 2**32 - 1,
    map_unified: bool = True,
) -> MemoryPlan:
    types = [MemoryType(flags, heap) for flags, heap in table]
    made = plan_memory(types, heaps=heaps, mask=mask, map_unified=map_unified)
    assert made is not None
    return made


def index(placement: Placement | None) -> int | None:
    return None if placement is None else placement.index


def chosen(made: MemoryPlan) -> tuple[int | None, int | None, int | None]:
    return index(made.host), index(made.device), index(made.shared)


def test_radv_takes_the_last_type_that_is_not_amds_own() -> None:
    made = plan(RADV, heaps=2)
    assert chosen(made) == (6, 1, 4)
    for placement in (made.host, made.device, made.shared):
        assert placement is not None
        assert not placement.flags & EXCLUDED
    assert made.device is not None
    assert not made.device.mapped


def test_nvidia_hides_device_memory_and_shares_the_bar() -> None:
    made = plan(NVIDIA, heaps=2)
    assert chosen(made) == (3, 1, 4)
    assert [p.mapped for p in (made.host, made.device, made.shared) if p] == [
        True,
        False,
        True,
    ]


def test_software_drivers_map_everything() -> None:
    made = plan(SOFTWARE, heaps=1)
    assert chosen(made) == (0, 0, 0)
    assert made.device is not None
    assert made.device.mapped


def test_software_drivers_stage_when_asked_to() -> None:
    made = plan(SOFTWARE, heaps=1, map_unified=False)
    assert chosen(made) == (0, 0, 0)
    assert made.device is not None
    assert not made.device.mapped
    assert made.host.mapped


def test_the_small_window_serves_only_shared_memory() -> None:
    made = plan(SMALL_BAR, heaps=3)
    assert chosen(made) == (2, 0, 3)
    assert made.arena.index == 0


@pytest.mark.parametrize(("map_unified", "kind"), [(True, 1), (False, 0)])
def test_unified_memory_is_mapped_unless_refused(
    *, map_unified: bool, kind: int
) -> None:
    made = plan(UNIFIED, heaps=1, map_unified=map_unified)
    assert chosen(made) == (1, kind, 1)
    assert made.device is not None
    assert made.device.mapped is map_unified


def test_anv_takes_only_types_that_buffers_may_use() -> None:
    assert chosen(plan(ANV, heaps=1, mask=ANV_BUFFERS)) == (1, 1, 1)
    # From the list alone, the type for compressed images would be the best one.
    assert chosen(plan(ANV, heaps=1, map_unified=False)) == (1, 3, 1)
    made = plan(ANV, heaps=1, mask=ANV_BUFFERS, map_unified=False)
    assert chosen(made) == (1, 1, 1)


def test_a_window_that_is_not_coherent_shares_nothing() -> None:
    made = plan(NOT_COHERENT, heaps=2)
    assert chosen(made) == (4, 0, None)
    assert made.capabilities == (
        Capabilities.HOST_VISIBLE_MEMORY | Capabilities.DEVICE_LOCAL_MEMORY
    )
    assert made.device is not None
    assert not made.device.mapped


def test_mask_removes_types_that_buffers_may_not_use() -> None:
    # Some drivers list types for images only; here the best host type is one.
    assert chosen(plan(NVIDIA, heaps=2, mask=0b10111)) == (2, 1, 4)
    assert chosen(plan(NVIDIA, heaps=2, mask=0b01111)) == (3, 1, None)


@pytest.mark.parametrize("bad", [PROTECTED, LAZY, 64, 128, RDMA])
def test_types_with_unwanted_properties_are_never_used(bad: int) -> None:
    table = ((HV | HC, 0), (DL, 1), (HV | HC | CA | bad, 0), (DL | bad, 1))
    assert chosen(plan(table, heaps=2)) == (0, 1, None)


def test_domains_without_a_type_are_not_advertised() -> None:
    made = plan(((HV | HC, 0),), heaps=1)
    assert chosen(made) == (0, None, None)
    assert made.capabilities == Capabilities.HOST_VISIBLE_MEMORY
    assert made.arena == made.host
    assert made.placement(MemoryDomain.HOST) == made.host
    assert made.placement(MemoryDomain.DEVICE) is None
    assert made.placement(MemoryDomain.SHARED) is None


def test_every_domain_found_is_advertised() -> None:
    assert plan(NVIDIA, heaps=2).capabilities == (
        Capabilities.HOST_VISIBLE_MEMORY
        | Capabilities.DEVICE_LOCAL_MEMORY
        | Capabilities.SHARED_MEMORY
    )


@pytest.mark.parametrize("table", [(), ((DL, 0),), ((HV, 0), (HC, 0))])
def test_no_plan_without_coherent_host_memory(
    table: tuple[tuple[int, int], ...],
) -> None:
    types = [MemoryType(flags, heap) for flags, heap in table]
    assert plan_memory(types, heaps=1) is None


def test_host_memory_near_the_device_is_the_last_resort() -> None:
    table = ((HV | HC, 0), (DL | HV | HC | CA, 1))
    assert plan(table, heaps=2).host.index == 0


# ---- import --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "mask", "index"),
    [
        (RADV, -1, 3),  # near the device first, then the first one
        (RADV, 0b111_0110_0110, 2),
        (RADV, 0b111_0110_0000, 5),
        (RADV, 0b111_1000_0000, None),  # only the AMD copies are left
        (NVIDIA, -1, 4),
        (NVIDIA, 0b01100, 2),
        (SOFTWARE, 1, 0),
        (SOFTWARE, 0, None),
        ([(DL | HV | HC | RDMA, 0), (HV | HC, 0)], -1, 1),
        ([(DL | HV, 0), (HV | CA, 0)], -1, None),  # not coherent
    ],
)
def test_the_type_of_imported_memory(
    table: Sequence[tuple[int, int]], mask: int, index: int | None
) -> None:
    types = [MemoryType(flags, heap) for flags, heap in table]
    found = import_placement(types, mask & (2**32 - 1))
    assert (found and found.index) == index
    if found is not None:
        assert found.mapped
        assert not found.flags & EXCLUDED
        assert (found.flags, found.heap) == table[found.index]
