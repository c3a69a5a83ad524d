"""MoltenVK without a Mac: what is asked for, chosen and admitted on an M1 and an M3.

The devices are those of harness/moltenvk.py, from MoltenVK's sources. Whole programs run
on a CPU driver that is made to look like them. What no test here can see is Metal itself
(docs/moltenvk.md).
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import sys
from pathlib import Path

import pytest

from harness import devices, families, moltenvk
from harness.devices import lane
from harness.moltenvk import M1, M3, OLD, PORTABILITY_SUBSET, Disguise, Mac, Molten
from harness.running import Devices
from harness.vulkan_door import Door, open_device
from tosavk.backends.session import Session
from tosavk.backends.vulkan import _ffi
from tosavk.backends.vulkan.device import VulkanDevice, device_info, plan_limits
from tosavk.backends.vulkan.instance import Instance
from tosavk.backends.vulkan.memory import plan_memory
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.backends.vulkan.pipelines import group_counts, group_width
from tosavk.backends.vulkan.portability import (
    FAST_MATH,
    LAYER_SETTINGS,
    fast_math_on_demand,
    tells_fast_math,
)
from tosavk.backends.vulkan.probe import read_records
from tosavk.backends.vulkan.spirv import catalogue_library
from tosavk.backends.vulkan.suitability import unsuitable
from tosavk.core.accelerator import Accelerator
from tosavk.core.descriptors import Capabilities, MemoryDomain
from tosavk.core.dtypes import DType
from tosavk.core.errors import ModelError, RuntimeUnavailable
from tosavk.core.plan import Dispatch, Numerics
from tosavk.differential.compare import compare_bits
from tosavk.lowering.graph import Graph
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.nvfp4 import pipelines as nvfp4
from tosavk.lowering.nvfp4.artifact import Projection
from tosavk.lowering.nvfp4.lower import lower_nvfp4
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder
from tosavk.shaders.catalogue import KERNELS, Kernel, kernels
from tosavk.shaders.variants import baked_words, combinations, module_name

TOOLS = Path(__file__).resolve().parents[2] / "tools"
MACS = pytest.mark.parametrize("mac", [M1, M3], ids=["M1", "M3"])
QUIET = VulkanOptions(pipeline_cache=False, validation=False)

# SPIR-V capabilities by number, and the Vulkan feature that each stands for.
CAPABILITIES = {
    1: "Shader",
    61: "GroupNonUniform",
    65: "GroupNonUniformShuffle",
    4466: "SignedZeroInfNanPreserve",
    5345: "VulkanMemoryModel",
    6018: "DotProductInput4x8BitPacked",
    6019: "DotProduct",
}
_OP_CAPABILITY = 17


# What is asked for --------------------------------------------------------------------


def portable_manifest(folder: Path, spec: str) -> Path:
    """A manifest that calls a driver not quite conformant, as MoltenVK's does."""
    if spec != devices.first("vulkan"):
        pytest.skip("one driver is enough")
    chosen = os.environ.get("VK_DRIVER_FILES", "").split(os.pathsep)
    if len(chosen) > 1 or not chosen[0]:
        chosen = [path for path in chosen if "lvp_icd" in path]
    found = [Path(path) for path in chosen]
    if "llvmpipe" in spec:
        found += sorted(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json"))
    for path in found:
        document = json.loads(path.read_text(encoding="utf-8"))
        document["ICD"]["is_portability_driver"] = True
        copy = folder / "portable_icd.json"
        copy.write_text(json.dumps(document), encoding="utf-8")
        return copy
    pytest.skip("the driver's manifest is elsewhere")


def test_devices_that_are_not_conformant_are_listed(
    vulkan_device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = portable_manifest(tmp_path, vulkan_device)
    monkeypatch.setenv("VK_DRIVER_FILES", str(manifest))
    door = Disguise(M1)
    with Instance(_ffi.open_loader(wrap=door), validation=False) as instance:
        names, flags = door.instance
        if "VK_KHR_portability_enumeration" not in names:
            pytest.skip("the loader is too old to hide such devices")
        assert flags == 1
        assert len(instance.physical_devices()) == 1
    # Without the flag the loader hides it: so the flag is what counts.
    loader = _ffi.open_loader(wrap=Forgetful(M1))
    with pytest.raises(RuntimeUnavailable, match="finds no usable driver"):
        Instance(loader, validation=False)


class Forgetful(Disguise):
    """Drops the flag on its way to the loader."""

    def _on_vkCreateInstance(  # noqa: N802
        self, call: _ffi.Function, info: _ffi.Cdata, *rest: _ffi.Cdata
    ) -> int:
        info.flags = 0
        return super()._on_vkCreateInstance(call, info, *rest)


def disguised(
    spec: str, door: Disguise, options: VulkanOptions = QUIET
) -> VulkanDevice:
    """Opens a lane's device in disguise; skips drivers that are stricter than a Mac."""
    with Instance(_ffi.open_loader(), validation=False) as instance:
        part = spec.partition(":")[2].casefold()
        for record, _ in read_records(instance):
            if part in f"{record.name} {record.driver} {record.index}".casefold():
                if record.limits.storage_offset_alignment > 16:
                    pytest.skip("offsets of 16 bytes are not allowed there")
                index = record.index
                break
        else:
            pytest.skip(f"{spec} is not listed")
    return open_device(
        f"vulkan:{index}",
        wrap=door,
        options=options,
        library=catalogue_library(),
    )


@MACS
def test_the_portability_subset_is_enabled(vulkan_device: str, mac: Mac) -> None:
    door = Disguise(mac)
    device = disguised(vulkan_device, door)
    assert PORTABILITY_SUBSET in door.device
    assert device.record.name == mac.name
    device.close()
    assert not door.live
    assert not door.wrong


def test_the_subset_is_not_asked_for_where_it_is_not_offered(
    vulkan_device: str,
) -> None:
    seen: list[str] = []

    class Watch(Door):
        def __call__(self, name: str, function: _ffi.Function) -> _ffi.Function:
            inner = super().__call__(name, function)
            if name != "vkCreateDevice":
                return inner

            def call(physical: _ffi.Cdata, info: _ffi.Cdata, *rest: _ffi.Cdata) -> int:
                seen.extend(
                    _ffi.text_of(info.ppEnabledExtensionNames[i])
                    for i in range(info.enabledExtensionCount)
                )
                return int(inner(physical, info, *rest))

            return call

    open_device(vulkan_device, wrap=Watch(), options=QUIET).close()
    assert PORTABILITY_SUBSET not in seen


def test_fast_math_is_for_shaders_that_allow_it() -> None:
    offered = frozenset({LAYER_SETTINGS})
    assert tells_fast_math(offered, {}, "darwin")
    assert not tells_fast_math(offered, {FAST_MATH: "1"}, "darwin")  # own choice
    assert not tells_fast_math(frozenset(), {}, "darwin")
    assert not tells_fast_math(offered, {}, "linux")
    scratch = _ffi.Scratch()
    behind = scratch.struct("VkApplicationInfo")
    made = fast_math_on_demand(scratch, behind)
    assert made.settingCount == 1
    setting = made.pSettings[0]
    assert _ffi.text_of(setting.pLayerName) == "MoltenVK"
    assert _ffi.text_of(setting.pSettingName) == FAST_MATH
    assert _ffi.ffi.cast("int32_t *", setting.pValues)[0] == 2
    assert _ffi.address_of(made.pNext) == _ffi.address_of(behind)


# Suitability, memory, limits ----------------------------------------------------------


@MACS
def test_the_device_is_suitable(mac: Mac) -> None:
    record = Molten(mac).record()
    assert unsuitable(record) is None
    assert record.queue_family == 0
    assert record.features.signed_zero_inf_nan_preserve


def test_moltenvk_before_1_3_is_refused_with_the_reason() -> None:
    reason = unsuitable(Molten(OLD).record())
    assert reason is not None
    assert "Vulkan 1.2.290, 1.3 is needed" in reason


@MACS
def test_memory(mac: Mac) -> None:
    record = Molten(mac).record()
    heaps = len(record.memory_heaps)
    made = plan_memory(record.memory_types, heaps=heaps, mask=moltenvk.BUFFER_TYPES)
    assert made is not None
    shared = moltenvk.SHARED
    assert made.host.index == shared
    assert made.device is not None
    assert made.shared is not None
    assert (made.device.index, made.shared.index) == (shared, shared)
    assert made.arena.mapped
    assert made.capabilities == (
        Capabilities.HOST_VISIBLE_MEMORY
        | Capabilities.DEVICE_LOCAL_MEMORY
        | Capabilities.SHARED_MEMORY
    )
    staged = plan_memory(
        record.memory_types,
        heaps=heaps,
        mask=moltenvk.BUFFER_TYPES,
        map_unified=False,
    )
    assert staged is not None
    assert staged.device is not None
    assert staged.device.index == moltenvk.PRIVATE
    assert not staged.device.mapped
    # Memoryless memory is for images: not even a driver that lists it for buffers.
    for mask in (moltenvk.BUFFER_TYPES, 0b111):
        plan = plan_memory(record.memory_types, heaps=heaps, mask=mask)
        assert plan is not None
        for domain in MemoryDomain:
            place = plan.placement(domain)
            assert place is not None
            assert place.index != moltenvk.MEMORYLESS


@MACS
def test_limits(mac: Mac) -> None:
    record = Molten(mac).record()
    limits = plan_limits(record)
    assert limits.max_storage_buffer_range == min(mac.buffer, 2**32 - 1)
    assert limits.segment_bytes == 256 << 20
    assert limits.max_storage_buffers == 31
    assert limits.max_parameter_bytes == 128
    assert limits.max_workgroup_invocations == 1024
    assert limits.shared_bytes == 32768
    assert limits.subgroup_size == 32
    assert limits.matrix_shapes == ()
    memory = plan_memory(record.memory_types, heaps=1, mask=moltenvk.BUFFER_TYPES)
    assert memory is not None
    info = device_info(record, memory)
    assert info.limits.max_buffer_bytes == (2**32 - 1) // 4 * 4
    assert record.limits.host_import_alignment == 16384


@MACS
def test_work_groups_stay_within_metals_numbers(mac: Mac) -> None:
    """Counts are 2^30 there, but an invocation's number has 32 bits."""
    record = Molten(mac).record()
    for kernel in KERNELS:
        assert group_width(kernel, record.limits) == kernel.workgroup
    unary = kernels()["unary"]
    work = Dispatch("unary", (), (), (), 1 << 31, 1, False, 0)
    x, y, z = group_counts(unary, 64, work, record.limits)
    assert (y, z) == (1, 1)
    assert 64 * x == 1 << 31


# Admission ----------------------------------------------------------------------------


def adding(count: int) -> Graph:
    builder = Builder()
    x = builder.input("x", DType.FP32, (count,))
    builder.output(builder.add(x, x))
    return load_graph(builder.build())


LARGEST = (2**31 - 1) // 4
"""Elements of the largest FP32 tensor of TOSA's level 8K."""


@MACS
def test_every_tensor_of_the_level_is_admitted(mac: Mac) -> None:
    limits = plan_limits(Molten(mac).record())
    plan = lower_graph(adding(LARGEST), limits=limits).plan
    assert [slot.nbytes for slot in plan.slots] == [4 * LARGEST] * 2
    assert all(dispatch.kernel == "binary" for dispatch in plan.dispatches)


def test_tensors_beyond_the_range_are_refused_with_both_numbers() -> None:
    """A Mac that allows only what Vulkan demands of all."""
    small = dataclasses.replace(M1, buffer=1 << 27)
    limits = plan_limits(Molten(small).record())
    graph = adding((1 << 25) + 1)
    with pytest.raises(ModelError, match=str((1 << 27) + 4)) as caught:
        lower_graph(graph, limits=limits)
    assert str(1 << 27) in str(caught.value)


# Selection of pipelines ---------------------------------------------------------------


@MACS
def test_products_take_no_kernel_that_metal_lacks(mac: Mac) -> None:
    limits = plan_limits(Molten(mac).record())
    for m, numerics in (
        (1, Numerics.STRICT),
        (64, Numerics.STRICT),
        (1, Numerics.FAST),
        (256, Numerics.FAST),
    ):
        program = Projection(m=m, n=1024, k=1024)
        lowered = lower_nvfp4(program, limits=limits, numerics=numerics)
        assert lowered.choice.kernel == "nvfp4_subgroup"
        for rejected in lowered.choice.rejected:
            strict = "numerics='fast'" in rejected.reason
            assert strict or "the driver has no VK_" in rejected.reason


def test_no_product_takes_a_kernel_with_matrices() -> None:
    table = kernels()
    limits = plan_limits(Molten(M1).record())
    taken = {table[each.kernel].needs for each in nvfp4.pipelines(limits)}
    assert taken == {"", "subgroup"}


def test_devices_without_simd_groups_take_the_scalar_kernel() -> None:
    record = Molten(M1).record()
    alone = dataclasses.replace(
        record,
        limits=dataclasses.replace(
            record.limits, subgroup_size=1, subgroup_sizes=(1, 1), subgroup_operations=1
        ),
    )
    limits = plan_limits(alone)
    assert limits.subgroup_size == 0
    assert {each.kernel for each in nvfp4.pipelines(limits)} == {"nvfp4_scalar"}


def modules_of(kernel: Kernel) -> list[str]:
    """The names of a kernel's modules."""
    found = [kernel.name]
    places = baked_words(kernel)
    for combination in combinations(kernel):
        spec = [0] * len(kernel.spec)
        for place, word in zip(places, combination, strict=True):
            spec[place] = word
        found.append(module_name(kernel, spec))
    return found


def capabilities(code: bytes) -> set[int]:
    """The capabilities that a module declares."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    found: set[int] = set()
    at = 5
    while at < len(words):
        if words[at] & 0xFFFF == _OP_CAPABILITY:
            found.add(words[at + 1])
        at += words[at] >> 16
    return found


def test_modules_that_are_taken_need_nothing_that_moltenvk_lacks() -> None:
    """No 8-bit or 16-bit storage, no 64-bit integers or floats, no matrices."""
    lacks = dict(plan_limits(Molten(M1).record()).lacks)
    library = catalogue_library()
    taken = [kernel for kernel in KERNELS if kernel.needs not in lacks]
    assert {"unary", "nvfp4_subgroup", "conv_dot"} <= {k.name for k in taken}
    for kernel in taken:
        for name in modules_of(kernel):
            beyond = capabilities(library.module(name, preserve=True)) - set(
                CAPABILITIES
            )
            assert not beyond, (name, beyond)
    left = {kernel.name for kernel in KERNELS} - {kernel.name for kernel in taken}
    assert left
    for name in left:
        assert kernels()[name].needs in ("matrices", "matrices2")


def test_a_subgroup_size_is_not_asked_for(vulkan_device: str) -> None:
    """MoltenVK allows no choice (requiredSubgroupSizeStages = 0); groups are full."""
    door = Disguise(M1)
    device = disguised(vulkan_device, door)
    limits = device.plan_limits
    lowered = lower_nvfp4(Projection(m=1, n=32, k=64), limits=limits)
    with (
        Accelerator(device) as accelerator,
        accelerator.create_context() as context,
        context.load_program(lowered),
    ):
        pass
    assert lowered.choice.kernel == "nvfp4_subgroup"
    full_subgroups = 2
    assert (full_subgroups, False) in door.stages
    assert not any(chained for _, chained in door.stages)


# Whole programs -----------------------------------------------------------------------

PROGRAMS = (
    "arithmetic FP32",
    "convolutions FP32",
    "products FP32",
    "small integers INT8",
    "totals FP32",
)


@pytest.mark.parametrize("map_unified", [True, False], ids=["mapped", "staged"])
def test_programs_run_on_a_disguised_driver(
    opened: Devices, vulkan_device: str, *, map_unified: bool
) -> None:
    door = Disguise(M1)
    options = dataclasses.replace(QUIET, map_unified_device_memory=map_unified)
    device = disguised(vulkan_device, door, options)
    with Accelerator(device) as accelerator:
        for name in PROGRAMS:
            program = families.make(name)
            graph = load_graph(program.build.build())
            expected = opened.run(vulkan_device, graph, program.inputs)
            lowered = lower_graph(graph, limits=accelerator.device.plan_limits)
            with Session(accelerator, lowered) as session:
                found = session.run(program.inputs)
            for tensor, array in expected.items():
                bits = compare_bits(array, found[tensor])
                assert bits.equal, (name, tensor, str(bits))
    kinds = set(door.allocated.values())
    assert kinds == ({moltenvk.SHARED} if map_unified else {0, 1})
    assert door.mapped == {moltenvk.SHARED}
    assert not door.live
    assert not door.wrong


# Metal's language ---------------------------------------------------------------------

SAMPLE = ("unary", "binary", "conv2d", "conv_dot", "matmul", "nvfp4_subgroup", "reduce")


def test_a_sample_of_modules_translates(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them in all configurations: `make moltenvk`."""
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    import moltenvk as tool

    program = tool.find_program()
    if program is None:
        pytest.skip("no SPIRV-Cross: make moltenvk fetches it")
    chosen = [c for c in tool.configurations() if "2.3" in c.name or "3.2" in c.name]
    failures: list[str] = []
    for name in SAMPLE:
        kernel = kernels()[name]
        modules = [name, modules_of(kernel)[-1]]
        for module in dict.fromkeys(modules):
            code = (tool.MODULES / f"{module}.spv").read_bytes()
            for configuration in chosen[:: max(1, len(chosen) // 4)]:
                if not tool.left_out(kernel, configuration):
                    wrong = tool.translate(
                        program, module, configuration, tool.facts(code)
                    )
                    failures += [f"{module}, {configuration.name}: {wrong}"] * bool(
                        wrong
                    )
    assert not failures


def test_the_checks_of_translations_find_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    import moltenvk as tool

    wanted = tool.Facts(3, frozenset({0, 1}))
    good = (
        "[[clang::optnone]] T spvFAdd(T l, T r)\n"
        "constant uint A_tmp [[function_constant(1)]];\n"
        "kernel void main0(device X& x [[buffer(30)]])"
    )
    assert not list(tool.complaints(good, wanted))
    for change, words in (
        (("[[clang::optnone]]", ""), "precise"),
        (("function_constant(1)", ""), "constant 1"),
        (("buffer(30)", "buffer(31)"), "buffer 31"),
        (("main0", "other"), "main0"),
        (("T l", "double l"), "double"),
    ):
        found = list(tool.complaints(good.replace(*change), wanted))
        assert len(found) == 1, found
        assert words in found[0]


def test_the_lane_of_this_platform_is_known() -> None:
    """On a Mac the tests of every device run on MoltenVK as well."""
    if sys.platform != "darwin":
        pytest.skip("no Mac")
    assert "MoltenVK" in lane("vulkan:MoltenVK").driver
