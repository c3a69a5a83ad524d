#!/usr/bin/env python3
"""Compiles every pipeline on a device that need not run any, and says what they take.

    compile_pipelines.py DEVICE        part of the device's or driver's name

Writes one JSON document to standard output: registers, spills, scratch and shared
memory of every pipeline, as the driver tells by VK_KHR_pipeline_executable_properties.
RADV without a GPU (RADV_FORCE_FAMILY=navi31, Mesa 24 and 25) has no memory and no
fences; pipelines are all that is made here. TOSAVK_LANE_DRIVER names a manifest to be
used instead of the drivers of the system.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from pipeline_keys import Pipeline, pipelines

from tosavk.backends.vulkan._ffi import (
    NULL,
    Cdata,
    Scratch,
    ffi,
    open_loader,
    text_of,
)
from tosavk.backends.vulkan.device import plan_limits
from tosavk.backends.vulkan.instance import Instance
from tosavk.backends.vulkan.logical import LogicalDevice
from tosavk.backends.vulkan.pipelines import Pipelines
from tosavk.backends.vulkan.probe import read_records
from tosavk.backends.vulkan.spirv import catalogue_library
from tosavk.core.errors import Error
from tosavk.shaders.catalogue import KERNELS

STATISTICS = "VK_KHR_pipeline_executable_properties"
_CAPTURE = 0x40
"""VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR."""

_FEATURES_TYPE = 1000269000
_BOOL, _INT64, _UINT64 = 0, 1, 2
_ROOM = 1 << 30

NAMES = {
    "SGPRs": "sgprs",
    "VGPRs": "vgprs",
    "Spilled SGPRs": "spilled_sgprs",
    "Spilled VGPRs": "spilled_vgprs",
    "Scratch size": "scratch_bytes",
    "LDS size": "shared_bytes",
    "Code size": "code_bytes",
}


class Door:
    """Asks every new pipeline for its statistics.

    Attributes:
        last: the statistics of the pipeline made last.
        extended: whether the driver tells statistics.
        subgroup_size: asked for in the next pipeline; 0 to leave it alone.
    """

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        self.extended = False
        self.subgroup_size = 0
        self._scratch = Scratch()
        self._resolve: Callable[[str], Any] = lambda name: None

    def __call__(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps one function of the table."""
        if name == "vkCreateDevice":
            return self._device(function)
        if name == "vkGetDeviceProcAddr":
            return self._procedures(function)
        if name == "vkCreateComputePipelines":
            return self._pipelines(function)
        return function

    def _device(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def create(physical: Cdata, info: Cdata, allocator: Cdata, out: Cdata) -> Any:  # noqa: ANN401 - as the function has it
            if self.extended:
                scratch = self._scratch
                count = info.enabledExtensionCount
                names = [info.ppEnabledExtensionNames[i] for i in range(count)]
                names.append(scratch.text(STATISTICS))
                info.ppEnabledExtensionNames = scratch.array("char *", names)
                info.enabledExtensionCount = len(names)
                feature = scratch.new(
                    "VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR *"
                )
                feature.sType = _FEATURES_TYPE
                feature.pipelineExecutableInfo = 1
                feature.pNext = ffi.cast("void *", info.pNext)
                info.pNext = feature
            return function(physical, info, allocator, out)

        return create

    def _procedures(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def get(device: Cdata, name: bytes) -> Cdata:
            self._resolve = lambda wanted: ffi.cast(
                f"PFN_{wanted}", function(device, wanted.encode())
            )
            return function(device, name)

        return get

    def _pipelines(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def create(
            device: Cdata,
            cache: Cdata,
            count: int,
            infos: Cdata,
            allocator: Cdata,
            out: Cdata,
        ) -> int:
            for i in range(count if self.extended else 0):
                infos[i].flags |= _CAPTURE
            if self.subgroup_size:
                infos[0].stage.pNext = self._scratch.struct(
                    "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo",
                    requiredSubgroupSize=self.subgroup_size,
                )
            code = int(function(device, cache, count, infos, allocator, out))
            if code == 0 and self.extended:
                self.last = self._statistics(device, out[0])
            return code

        return create

    def _statistics(self, device: Cdata, pipeline: Cdata) -> dict[str, int]:
        scratch = Scratch()
        info = scratch.struct("VkPipelineExecutableInfoKHR", pipeline=pipeline)
        get = self._resolve("vkGetPipelineExecutableStatisticsKHR")
        count = ffi.new("uint32_t *")
        if get(device, info, count, NULL) < 0:
            return {}
        found = ffi.new("VkPipelineExecutableStatisticKHR[]", count[0])
        for each in found:
            each.sType = 1000269004
        get(device, info, count, found)
        numbers: dict[str, int] = {}
        for each in found[0 : count[0]]:
            if each.format in (_BOOL, _INT64, _UINT64):
                numbers[text_of(each.name)] = int(each.value.u64)
        return numbers


class CompileOnly(LogicalDevice):
    """A device whose queue is never used: the null device has no fences."""

    def create_fence(self) -> Cdata:
        """None is made."""
        return ffi.cast("VkFence", 0)

    def wait_idle(self) -> None:
        """Nothing runs."""


def compile_one(made: Pipelines, each: Pipeline, door: Door) -> dict[str, Any]:
    """Compiles one pipeline; its numbers, or the error."""
    door.last = {}
    door.subgroup_size = each.subgroup_size
    record: dict[str, Any] = {
        "kernel": each.key.kernel,
        "module": each.module,
        "spec": list(each.key.spec),
        "width": each.key.width,
    }
    if each.subgroup_size:
        record["subgroup_size"] = each.subgroup_size
    try:
        made.prepare([each.key])
    except Error as error:
        return record | {"error": str(error)}
    return record | {NAMES[k]: v for k, v in door.last.items() if k in NAMES}


def main(part: str) -> int:
    """Compiles everything on the device that `part` names."""
    driver = os.environ.get("TOSAVK_LANE_DRIVER")
    if driver:
        os.environ["VK_DRIVER_FILES"] = driver
    door = Door()
    instance = Instance(open_loader(wrap=door), validation=False)
    chosen = next(
        (
            each
            for each in read_records(instance)
            if part.casefold() in f"{each[0].name} {each[0].driver}".casefold()
        ),
        None,
    )
    if chosen is None:
        print(f"no device {part!r}", file=sys.stderr)
        return 1
    record, handle = chosen
    door.extended = STATISTICS in record.extensions
    device = CompileOnly(instance, record, handle)
    least, most = record.limits.subgroup_sizes
    usual = record.limits.subgroup_size
    sizes = [s for s in (32, 64) if least <= s <= most and s != usual]
    # The same words with another subgroup size are another pipeline.
    made = {size: Pipelines(device, catalogue_library(), None) for size in (0, *sizes)}
    # The null device tells no sizes of memory.
    limits = dataclasses.replace(
        plan_limits(record), max_storage_buffer_range=_ROOM, segment_bytes=_ROOM
    )
    lacks = dict(limits.lacks)
    results: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    begin = time.monotonic()
    for each in pipelines(limits, sizes=sizes):
        if each.needs and each.needs in lacks:
            left_out[each.key.kernel] = lacks[each.needs]
            continue
        results.append(compile_one(made[each.subgroup_size], each, door))
    seconds = time.monotonic() - begin
    for kernel in KERNELS:
        if kernel.name not in {each["kernel"] for each in results}:
            lack = lacks.get(kernel.needs, "") or "no plan for this device takes it"
            left_out.setdefault(kernel.name, lack)
    for pipes in made.values():
        pipes.free()
    device.close()
    instance.close()
    document = {
        "device": record.name,
        "driver": record.driver,
        "subgroup_sizes": list(record.limits.subgroup_sizes),
        "matrix_shapes": [[s.m, s.n, s.k] for s in limits.matrix_shapes],
        "statistics": door.extended,
        "left_out": left_out,
        "seconds": round(seconds, 1),
        "pipelines": results,
    }
    json.dump(document, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
