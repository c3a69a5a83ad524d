"""A device as plain data for people and programs: what it has, what is used, its memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from tosavk.backends.vulkan._ffi import Calls, Cdata, Scratch
from tosavk.backends.vulkan.instance import open_instance
from tosavk.backends.vulkan.memory import DEVICE_LOCAL, MemoryHeap
from tosavk.backends.vulkan.probe import read_records
from tosavk.backends.vulkan.records import DeviceRecord
from tosavk.backends.vulkan.suitability import (
    int8_dot_lack,
    matrix_2_lack,
    matrix_lack,
    select,
    subgroup_lack,
)
from tosavk.core.switches import environment_switches

BUDGET = "VK_EXT_memory_budget"


@dataclass(frozen=True, slots=True)
class HeapReport:
    """A memory heap in bytes.

    Attributes:
        size: of the heap.
        device_local: whether it is near the device.
        used: what this process has of it; None: the driver does not tell.
        free: what this process may still have; None: the driver does not tell. Never
            more than `size`.
    """

    size: int
    device_local: bool
    used: int | None
    free: int | None


def heap_report(
    heap: MemoryHeap, *, budget: int | None = None, used: int | None = None
) -> HeapReport:
    """What is known of a heap.

    Free is the budget, but at most the size of the heap, less what is used. Without
    VK_EXT_memory_budget nothing is said of it: the size would be a guess.

    Args:
        heap: the heap.
        budget: the driver's budget for this process; None: it tells none.
        used: what this process has already.
    """
    near = bool(heap.flags & DEVICE_LOCAL)
    if budget is None or used is None:
        return HeapReport(heap.size, near, None, None)
    free = max(0, min(budget, heap.size) - used)
    return HeapReport(heap.size, near, used, free)


def enabled_features(record: DeviceRecord) -> frozenset[str]:
    """Features, by their names in `Features`, that an open device has switched on."""
    features = record.features
    found = {"robust_buffer_access", "synchronization2"}
    found |= {
        name
        for name in (
            "timeline_semaphore",
            "buffer_device_address",
            # An execution mode of modules; nothing switches it on.
            "signed_zero_inf_nan_preserve",
        )
        if getattr(features, name)
    }
    if not int8_dot_lack(record):
        found.add("integer_dot_product")
    if not subgroup_lack(record):
        found |= {
            name
            for name in ("subgroup_size_control", "compute_full_subgroups")
            if getattr(features, name)
        }
    if not matrix_lack(record):
        found |= {
            "cooperative_matrix",
            "shader_float16",
            "shader_int16",
            "storage_16bit",
            "vulkan_memory_model",
            "memory_model_device_scope",
        }
    if not matrix_2_lack(record):
        found |= {"cooperative_matrix_2", "shader_int8", "storage_8bit"}
    return frozenset(found)


def describe(selector: str | None = None) -> dict[str, Any]:
    """A device, ready for JSON; it is not opened.

    Args:
        selector: as for `open_device`.

    Raises:
        InitError: as `open_device`.
    """
    with open_instance(None, validation=False) as instance:
        found = read_records(instance)
        record = select([record for record, _ in found], selector)
        record = replace(record, switches=environment_switches())
        heaps = _heaps(instance.calls, found[record.index][1], record)
    return document(record, heaps)


def document(
    record: DeviceRecord, heaps: tuple[HeapReport, ...] = ()
) -> dict[str, Any]:
    """A record as JSON data; features are shown as available and as enabled."""
    enabled = enabled_features(record)
    data = record.as_dict()
    data["features"] = {
        name: {"available": available, "enabled": name in enabled}
        for name, available in asdict(record.features).items()
    }
    data["memory"] = [asdict(heap) for heap in heaps]
    return {"backend": "vulkan", **data}


def _heaps(
    calls: Calls, physical: Cdata, record: DeviceRecord
) -> tuple[HeapReport, ...]:
    if BUDGET not in record.extensions:
        return tuple(heap_report(heap) for heap in record.memory_heaps)
    scratch = Scratch()
    budget = scratch.struct("VkPhysicalDeviceMemoryBudgetPropertiesEXT")
    wanted = scratch.struct("VkPhysicalDeviceMemoryProperties2", pNext=budget)
    calls.vkGetPhysicalDeviceMemoryProperties2(physical, wanted)
    return tuple(
        heap_report(
            heap, budget=int(budget.heapBudget[i]), used=int(budget.heapUsage[i])
        )
        for i, heap in enumerate(record.memory_heaps)
    )
