"""Pipelines and layouts of one device, made once and shared by its programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tosavk.backends.vulkan import cachefile
from tosavk.backends.vulkan._ffi import NULL, Cdata, Scratch, const, ffi
from tosavk.backends.vulkan.logical import LogicalDevice
from tosavk.backends.vulkan.records import DeviceRecord, Limits
from tosavk.backends.vulkan.spirv import ShaderLibrary
from tosavk.core import logs
from tosavk.core.errors import InvalidArgument, ModelError, ResourceLimit
from tosavk.core.plan import Dispatch
from tosavk.shaders.catalogue import Kernel, Work
from tosavk.shaders.variants import module_name

_LOGGER = "tosavk.vulkan"
_AT_ONCE = 4
"""Pipelines of one call to the driver."""

ENTRY_POINT = "main"
MAX_INVOCATIONS = 1 << 32
SUBGROUP_SIZE = 32
CUT_CONSTANT = 1000
"""See `specialization`."""


@dataclass(frozen=True, slots=True)
class PipelineKey:
    """What makes a pipeline distinct.

    Attributes:
        kernel: name in the catalogue.
        spec: specialization words in catalogue order.
        width: work-group width.
        cut: whether its dispatches may begin elsewhere than at group 0.
    """

    kernel: str
    spec: tuple[int, ...]
    width: int
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """How a pipeline is bound: the VkDescriptorSetLayout and the VkPipelineLayout."""

    bindings: int
    parameter_bytes: int
    sets: Cdata
    pipeline: Cdata


def group_width(kernel: Kernel, limits: Limits) -> int:
    """The kernel's work-group width, halved until the device allows it."""
    most = min(limits.group_invocations, limits.group_size[0])
    width = kernel.workgroup
    while width > most:
        width //= 2
    return width


def group_counts(
    kernel: Kernel, width: int, dispatch: Dispatch, limits: Limits
) -> tuple[int, int, int]:
    """The work groups of a dispatch along x, y and z.

    Linear work is spread over x, then y. Tiled work has its columns along x and its
    tiles along y, then z. Work in groups says all three. Groups beyond the last one
    are told by their number to do nothing (docs/kernel-interface.md, "Work").

    Raises:
        ResourceLimit: more than the device can number.
    """
    columns = math.ceil(dispatch.columns / width)
    most = limits.group_count
    if kernel.work is Work.LINEAR:
        rows = math.ceil(columns / most[0])
        counts = (math.ceil(columns / rows), rows, 1)
        # An invocation's number must not wrap round and do somebody's work again.
        too_many = counts[0] * rows * width > MAX_INVOCATIONS
    elif kernel.work is Work.GROUPS:
        counts = (columns, dispatch.tiles, dispatch.layers)
        too_many = False
    else:
        layers = math.ceil(dispatch.tiles / most[1])
        counts = (columns, math.ceil(dispatch.tiles / layers), layers)
        too_many = columns * width > MAX_INVOCATIONS
    if too_many or any(n > limit for n, limit in zip(counts, most, strict=True)):
        raise ResourceLimit(
            f"kernel {kernel.name} needs {counts} work groups of {width}; the device "
            f"allows {most}"
        )
    return counts


class Pipelines:
    """The pipelines, layouts and the pipeline cache of a device.

    Args:
        device: the device.
        library: where kernels come from.
        folder: where the pipeline cache is kept, or None.

    Attributes:
        watch: told how many pipelines are made, and of how many; None: nobody.

    Raises:
        ModelError: the driver refused.
    """

    def __init__(
        self, device: LogicalDevice, library: ShaderLibrary, folder: Path | None
    ) -> None:
        self.library = library
        self._device = device
        self._folder = folder
        self._identity = cachefile.CacheIdentity.of(device.record)
        self._made: dict[PipelineKey, Cdata] = {}
        self.watch: Callable[[int, int], None] | None = None
        self._set_layouts: dict[int, Cdata] = {}
        self._layouts: dict[tuple[int, int], Layout] = {}
        stored = cachefile.load(folder, self._identity) if folder else b""
        self._stored = stored
        with ExitStack() as undo:
            self._cache = self._create_cache(stored)
            undo.callback(
                device.calls.vkDestroyPipelineCache, device.handle, self._cache, NULL
            )
            self._undo = undo.pop_all()

    def layout(self, kernel: Kernel) -> Layout:
        """The layouts of a kernel.

        Raises:
            ModelError: the driver refused.
        """
        key = (len(kernel.bindings), 4 * len(kernel.params))
        found = self._layouts.get(key)
        if found is None:
            found = self._create_layout(*key)
            self._layouts[key] = found
        return found

    def prepare(self, keys: Iterable[PipelineKey]) -> dict[PipelineKey, Cdata]:
        """The VkPipeline of each key; missing ones are made a few at a time.

        So that Ctrl-C is heard between two calls, and `watch` told. What was made
        before it is kept.

        Raises:
            Unsupported: a kernel has no module.
            ModelError: the driver refused.
        """
        wanted = dict.fromkeys(keys)
        missing = [key for key in wanted if key not in self._made]
        if missing:
            logs.debug(_LOGGER, "compiling %d pipelines", len(missing))
            for first in range(0, len(missing), _AT_ONCE):
                if self.watch is not None:
                    self.watch(first, len(missing))
                self._make(missing[first : first + _AT_ONCE])
            if self.watch is not None:
                self.watch(len(missing), len(missing))
            self.save()
        return {key: self._made[key] for key in wanted}

    def _make(self, keys: list[PipelineKey]) -> None:
        for key, pipeline in zip(keys, self._compile(keys), strict=True):
            self._made[key] = pipeline
            self._own("vkDestroyPipeline", pipeline)

    def save(self) -> None:
        """Writes the pipeline cache to disk if it has changed; never raises."""
        if self._folder is None or self._device.poisoned:
            return
        try:
            data = self._cache_data()
        except ModelError as error:
            logs.warning(_LOGGER, "pipeline cache is not written: %s", error)
            return
        if data and data != self._stored:
            cachefile.store(self._folder, self._identity, data)
            self._stored = data

    def free(self) -> None:
        """Destroys everything; all programs are gone."""
        self._device.dispose(self._undo.close)

    def _own(self, destroy: str, handle: Cdata) -> None:
        function: Callable[..., object] = getattr(self._device.calls, destroy)
        self._undo.callback(function, self._device.handle, handle, NULL)

    def _create_cache(self, stored: bytes) -> Cdata:
        scratch = Scratch()
        empty = scratch.struct("VkPipelineCacheCreateInfo")
        if stored:
            info = scratch.struct(
                "VkPipelineCacheCreateInfo",
                initialDataSize=len(stored),
                pInitialData=scratch.bytes(stored),
            )
            out = ffi.new("VkPipelineCache *")
            calls, handle = self._device.calls, self._device.handle
            code = calls.vkCreatePipelineCache(handle, info, NULL, out)
            if code >= 0:
                return out[0]
            logs.warning(
                _LOGGER, "the driver refuses its own pipeline cache (%d)", code
            )
        return self._device.create("vkCreatePipelineCache", "VkPipelineCache", empty)

    def _cache_data(self) -> bytes:
        calls, handle = self._device.calls, self._device.handle
        size = ffi.new("size_t *")
        code = calls.vkGetPipelineCacheData(handle, self._cache, size, NULL)
        self._device.check(code, "vkGetPipelineCacheData")
        data = ffi.new("char[]", max(1, size[0]))
        code = calls.vkGetPipelineCacheData(handle, self._cache, size, data)
        self._device.check(code, "vkGetPipelineCacheData")
        return bytes(ffi.buffer(data, size[0])) if code == const.SUCCESS else b""

    def _set_layout(self, bindings: int) -> Cdata:
        found = self._set_layouts.get(bindings)
        if found is not None:
            return found
        scratch = Scratch()
        entries = [
            {
                "binding": index,
                "descriptorType": const.DESCRIPTOR_TYPE_STORAGE_BUFFER,
                "descriptorCount": 1,
                "stageFlags": const.SHADER_STAGE_COMPUTE_BIT,
            }
            for index in range(bindings)
        ]
        info = scratch.struct(
            "VkDescriptorSetLayoutCreateInfo",
            bindingCount=bindings,
            pBindings=scratch.array("VkDescriptorSetLayoutBinding", entries),
        )
        made = self._device.create(
            "vkCreateDescriptorSetLayout", "VkDescriptorSetLayout", info
        )
        self._own("vkDestroyDescriptorSetLayout", made)
        self._set_layouts[bindings] = made
        return made

    def _create_layout(self, bindings: int, parameter_bytes: int) -> Layout:
        scratch = Scratch()
        sets = self._set_layout(bindings)
        ranges = [
            {
                "stageFlags": const.SHADER_STAGE_COMPUTE_BIT,
                "offset": 0,
                "size": parameter_bytes,
            }
        ] * bool(parameter_bytes)
        info = scratch.struct(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=1,
            pSetLayouts=scratch.handle("VkDescriptorSetLayout", sets),
            pushConstantRangeCount=len(ranges),
            pPushConstantRanges=scratch.array("VkPushConstantRange", ranges),
        )
        made = self._device.create("vkCreatePipelineLayout", "VkPipelineLayout", info)
        self._own("vkDestroyPipelineLayout", made)
        return Layout(bindings, parameter_bytes, sets, made)

    def _compile(self, keys: list[PipelineKey]) -> list[Cdata]:
        device, calls, handle = self._device, self._device.calls, self._device.handle
        scratch = Scratch()
        entry = scratch.text(ENTRY_POINT)
        infos = scratch.new("VkComputePipelineCreateInfo[]", len(keys))
        with ExitStack() as modules:
            loaded: dict[str, Cdata] = {}
            for info, key in zip(infos, keys, strict=True):
                kernel = self.library.kernel(key.kernel)
                name = module_name(kernel, key.spec)
                if name not in loaded:
                    module = self._create_module(name)
                    modules.callback(calls.vkDestroyShaderModule, handle, module, NULL)
                    loaded[name] = module
                info.sType = const.STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO
                info.layout = self.layout(kernel).pipeline
                if key.cut:
                    info.flags = const.PIPELINE_CREATE_DISPATCH_BASE_BIT
                info.stage.sType = (
                    const.STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO
                )
                info.stage.stage = const.SHADER_STAGE_COMPUTE_BIT
                info.stage.module = loaded[name]
                info.stage.pName = entry
                info.stage.pSpecializationInfo = specialization(scratch, kernel, key)
                if not kernel.portable:
                    _ask_for_subgroups(
                        scratch,
                        info.stage,
                        device.record,
                        key.width,
                        any_size=kernel.needs == "subgroup",
                    )
            out = ffi.new("VkPipeline[]", len(keys))
            try:
                code = calls.vkCreateComputePipelines(
                    handle, self._cache, len(keys), infos, NULL, out
                )
            except BaseException:
                # Ctrl-C is heard when the driver has compiled: nobody knows them yet.
                self._destroy(out)
                raise
        if code != const.SUCCESS:
            self._destroy(out)
            names = ", ".join(sorted({key.kernel for key in keys}))
            raise device.failure(code, f"vkCreateComputePipelines ({names})")
        return [out[i] for i in range(len(keys))]

    def _destroy(self, made: Cdata) -> None:
        """Destroys those pipelines of an array that there are."""
        for pipeline in made:
            if pipeline != NULL:
                self._device.calls.vkDestroyPipeline(
                    self._device.handle, pipeline, NULL
                )

    def _create_module(self, name: str) -> Cdata:
        preserve = self._device.record.features.signed_zero_inf_nan_preserve
        code = self.library.module(name, preserve=preserve)
        scratch = Scratch()
        info = scratch.struct(
            "VkShaderModuleCreateInfo", codeSize=len(code), pCode=scratch.bytes(code)
        )
        return self._device.create(
            "vkCreateShaderModule", "VkShaderModule", info, what=name
        )


def _ask_for_subgroups(
    scratch: Scratch,
    stage: Cdata,
    record: DeviceRecord,
    width: int,
    *,
    any_size: bool,
) -> None:
    """Asks for full subgroups of the size that the kernel was planned for.

    Args:
        scratch: owner of what is made.
        stage: the VkPipelineShaderStageCreateInfo.
        record: what the device is.
        width: the work-group width.
        any_size: the kernel works with any size, 32 is best; others work with the
            device's usual one only.
    """
    limits, features = record.limits, record.features
    least, most = limits.subgroup_sizes
    wanted = SUBGROUP_SIZE if any_size else limits.subgroup_size
    if (
        features.subgroup_size_control
        and limits.subgroup_choice_stages & const.SHADER_STAGE_COMPUTE_BIT
        and least <= wanted <= most
        and least != most
    ):
        stage.pNext = scratch.struct(
            "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo",
            requiredSubgroupSize=wanted,
        )
        most = wanted
    elif not any_size:
        most = wanted
    if features.compute_full_subgroups and width % most == 0:
        stage.flags = const.PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT


def specialization(scratch: Scratch, kernel: Kernel, key: PipelineKey) -> Cdata:
    """Constant 0 is the work-group width, constant i + 1 the catalogue's word i.

    A pipeline whose dispatches are cut gets one constant more, that no kernel has:
    NVIDIA 580 keeps compiled pipelines on disk by code and constants, not by flags, and
    would give one that was compiled without the flag for bases.
    """
    if len(key.spec) != len(kernel.spec):
        raise InvalidArgument(
            f"kernel {kernel.name} takes the specialization words {kernel.spec}, "
            f"got {key.spec}"
        )
    constants = dict(enumerate([key.width, *key.spec]))
    if key.cut:
        constants[CUT_CONSTANT] = 1
    words = list(constants.values())
    entries = [
        {"constantID": constant, "offset": 4 * index, "size": 4}
        for index, constant in enumerate(constants)
    ]
    return scratch.new(
        "VkSpecializationInfo *",
        {
            "mapEntryCount": len(words),
            "pMapEntries": scratch.array("VkSpecializationMapEntry", entries),
            "dataSize": 4 * len(words),
            "pData": scratch.array("uint32_t", words),
        },
    )
