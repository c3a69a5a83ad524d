"""Suitability, ranking and choice of devices, on made-up records."""

import dataclasses
import json
import random
from typing import Any

import pytest

from tosavk.backends.vulkan.device import device_info, plan_limits
from tosavk.backends.vulkan.memory import MemoryHeap, MemoryType, plan_memory
from tosavk.backends.vulkan.portability import optional_extensions
from tosavk.backends.vulkan.records import DeviceRecord, DeviceType, Features, Limits
from tosavk.backends.vulkan.suitability import DeviceListing, best, select, unsuitable
from tosavk.core.checks import validate_device_info
from tosavk.core.descriptors import DeviceClass
from tosavk.core.errors import DeviceUnavailable

GRAPHICS, COMPUTE, TRANSFER = 1, 2, 4
GOOD = DeviceRecord(
    index=0,
    name="Example 9000",
    driver="exadrv, 1.2.3",
    device_type=DeviceType.DISCRETE,
    uuid=bytes(range(16)),
    vendor_id=0x1234,
    device_id=0x5678,
    features=Features(robust_buffer_access=True, synchronization2=True),
    queue_families=(GRAPHICS | COMPUTE | TRANSFER, COMPUTE),
    memory_types=(MemoryType(1, 0), MemoryType(14, 1)),
    memory_heaps=(MemoryHeap(8 << 30, 1), MemoryHeap(24 << 30, 0)),
)


def device(index: int, **changes: object) -> DeviceRecord:
    values: dict[str, Any] = {"uuid": bytes([index] * 16), **changes}
    return dataclasses.replace(GOOD, index=index, **values)


def test_a_good_device_is_suitable() -> None:
    assert unsuitable(GOOD) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"api_version": (1 << 22) | (2 << 12) | 200}, "Vulkan 1.2.200, 1.3"),
        ({"features": Features(robust_buffer_access=True)}, "synchronization2"),
        ({"features": Features(synchronization2=True)}, "robustBufferAccess"),
        ({"queue_families": (GRAPHICS, TRANSFER)}, "no queue family computes"),
        ({"queue_families": ()}, "no queue family computes"),
        ({"limits": Limits(stage_storage_buffers=3)}, "3 storage buffers"),
        ({"limits": Limits(set_storage_buffers=2)}, "2 storage buffers"),
        ({"limits": Limits(push_constant_bytes=64)}, "64 bytes of push constants"),
        ({"memory_types": ()}, "no memory type"),
        ({"memory_types": (MemoryType(1, 0),)}, "no memory type"),
    ],
)
def test_an_unsuitable_device_says_why(changes: dict[str, Any], reason: str) -> None:
    record = device(0, **changes)
    listing = DeviceListing.of(record)
    assert reason in listing.reason
    assert not listing.usable
    assert reason in str(listing)
    with pytest.raises(DeviceUnavailable, match="no usable Vulkan device") as caught:
        best([record])
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("families", "chosen"),
    [
        ((GRAPHICS | COMPUTE, COMPUTE | TRANSFER, COMPUTE), 1),
        ((TRANSFER, GRAPHICS | COMPUTE, GRAPHICS | COMPUTE), 1),
        ((TRANSFER,), None),
    ],
)
def test_queue_family_prefers_compute_without_graphics(
    families: tuple[int, ...], chosen: int | None
) -> None:
    assert device(0, queue_families=families).queue_family == chosen


def test_the_best_device_is_discrete_and_first() -> None:
    order = [
        DeviceType.CPU,
        DeviceType.OTHER,
        DeviceType.INTEGRATED,
        DeviceType.VIRTUAL,
        DeviceType.DISCRETE,
        DeviceType.DISCRETE,
    ]
    records = [device(i, device_type=kind) for i, kind in enumerate(order)]
    found: list[DeviceType] = []
    while records:
        chosen = best(records)
        found.append(chosen.device_type)
        records.remove(chosen)
    assert found == [
        DeviceType.DISCRETE,
        DeviceType.DISCRETE,
        DeviceType.INTEGRATED,
        DeviceType.VIRTUAL,
        DeviceType.CPU,
        DeviceType.OTHER,
    ]
    assert best([device(i, device_type=DeviceType.CPU) for i in range(3)]).index == 0


RIG = [
    device(0, name="Alpha 10", driver="red, 1"),
    device(1, name="Alpha 10", driver="red, 1"),
    device(2, name="llvmpipe", driver="llvmpipe, Mesa", device_type=DeviceType.CPU),
    device(3, name="Old 5", driver="blue", api_version=1 << 22),
]


@pytest.mark.parametrize(
    ("selector", "index"),
    [
        (None, 0),
        ("", 0),
        ("1", 1),
        ("2", 2),
        ("LLVM", 2),
        ("mesa", 2),
        (RIG[1].uuid_text, 1),
        (RIG[1].uuid_text.upper(), 1),
        (RIG[2].uuid.hex(), 2),
    ],
)
def test_devices_are_chosen_by_index_uuid_or_name(
    selector: str | None, index: int
) -> None:
    assert select(RIG, selector).index == index


def test_two_matches_are_an_error_that_lists_both() -> None:
    with pytest.raises(DeviceUnavailable, match="2 Vulkan devices match") as caught:
        select(RIG, "alpha")
    for record in RIG[:2]:
        assert record.uuid_text in str(caught.value)
    assert "llvmpipe" not in str(caught.value)


def test_no_match_is_an_error_that_lists_all() -> None:
    with pytest.raises(DeviceUnavailable, match="no Vulkan device matches") as caught:
        select(RIG, "gamma")
    assert all(record.name in str(caught.value) for record in RIG)


@pytest.mark.parametrize("selector", ["3", "blue", "old"])
def test_an_unusable_device_is_never_replaced_by_another(selector: str) -> None:
    with pytest.raises(DeviceUnavailable, match=r"cannot be used") as caught:
        select(RIG, selector)
    assert "Vulkan 1.0.0" in str(caught.value)


def test_an_index_beyond_the_list_is_an_error() -> None:
    with pytest.raises(DeviceUnavailable):
        select(RIG, "4")
    with pytest.raises(DeviceUnavailable, match="lists no device"):
        select([], None)


def test_records_go_into_json() -> None:
    text = json.dumps(GOOD.as_dict())
    assert "00010203-0405-0607-0809-0a0b0c0d0e0f" in text
    assert json.loads(text)["limits"]["group_count"] == [65535, 65535, 65535]


def test_portability_is_asked_for_only_where_offered() -> None:
    name = "VK_KHR_portability_enumeration"
    assert optional_extensions(frozenset({"VK_KHR_surface"})) == ((), 0)
    assert optional_extensions(frozenset({"VK_KHR_surface", name})) == ((name,), 1)


def info_of(record: DeviceRecord) -> tuple[int, DeviceClass]:
    memory = plan_memory(record.memory_types, heaps=len(record.memory_heaps))
    assert memory is not None
    info = device_info(record, memory)
    validate_device_info(info)
    assert info.identity.uuid == record.uuid
    return info.limits.max_buffer_bytes, info.identity.device_class


def test_device_info_takes_the_smallest_limit() -> None:
    rng = random.Random(5)
    for _ in range(50):
        sizes = [rng.randrange(1 << 20, 1 << 34) for _ in range(4)]
        record = device(
            0,
            limits=Limits(
                storage_buffer_range=sizes[0],
                allocation_bytes=sizes[1],
                buffer_bytes=sizes[2],
            ),
            memory_heaps=(MemoryHeap(sizes[3], 0), MemoryHeap(1 << 19, 0)),
        )
        assert info_of(record) == (min(sizes) // 4 * 4, DeviceClass.GPU)
    assert info_of(device(0, device_type=DeviceType.CPU))[1] is DeviceClass.OTHER


def test_plan_limits_stay_within_the_device() -> None:
    limits = Limits(
        storage_buffer_range=(1 << 27) - 4,
        stage_storage_buffers=30,
        set_storage_buffers=24,
        push_constant_bytes=256,
        group_count=(65535, 70000, 1000),
    )
    found = plan_limits(device(0, limits=limits))
    assert found.max_storage_buffer_range == (1 << 27) - 4
    assert found.segment_bytes % 256 == 0
    assert found.segment_bytes <= found.max_storage_buffer_range
    assert found.max_storage_buffers == 24
    assert found.max_parameter_bytes == 128
    assert found.max_workgroup_count == 1000
