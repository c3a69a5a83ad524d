"""The only door to wgpu-native: its C interface as `wgpu-py` ships and declares it.

Nothing in tosavk imports `wgpu` (`interface` opens what the package ships). The C
functions are called directly and not through `wgpu-py`'s classes: those start a thread
for each device that polls blocking, which holds up submissions, they only log the loss
of a device, and they cost some 70 us a submission.

wgpu-native reports faults in three ways, and each is turned into an exception here:

- an *uncaptured error* (a callback inside the faulty call): `Gpu.check` raises it;
- the *loss* of the device (a callback at any time): `Gpu.check` raises `DeviceLost`;
- faults found by wgpuQueueSubmit, and zero-sized bindings, **abort the process**. They
  cannot be caught, so everything that leads there is checked before.

Numbers of type WGPUBool come back with garbage above the lowest byte.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tosavk.backends.wgpu.interface import open_interface
from tosavk.core.errors import (
    DeviceLost,
    External,
    InvalidArgument,
    ModelError,
    OutOfMemory,
    ResourceLimit,
)

Cdata = Any
"""A handle, pointer or structure of the C interface."""

ffi: Cdata
lib: Cdata
ffi, lib = open_interface()
NULL: Cdata = ffi.NULL
ERROR_DOMAIN = 0x57475055
"""`External.domain` of errors from wgpu-native: "WGPU"."""

USAGE_MAP_READ = 0x1
USAGE_MAP_WRITE = 0x2
USAGE_COPY_SRC = 0x4
USAGE_COPY_DST = 0x8
USAGE_UNIFORM = 0x40
USAGE_STORAGE = 0x80
MAP_READ = 1
MAP_WRITE = 2
STAGE_COMPUTE = 4
FEATURE_MAPPABLE_PRIMARY = 0x0003000E

_ERROR_OUT_OF_MEMORY = 3
_LIMIT_WORDS = ("greater than the maximum", "exceeds", "limit", "must be less or equal")
_numbers = itertools.count(1)
open_devices: dict[int, Gpu] = {}
_waiting: dict[int, Callable[[bool], None]] = {}


def text(view: Cdata) -> str:
    """The Python string of a WGPUStringView."""
    if view.data == NULL or view.length == 0:
        return ""
    return bytes(ffi.buffer(view.data, view.length)).decode("utf-8", "replace")


def _string(value: str, keep: list[object]) -> Cdata:
    data = value.encode()
    owner = ffi.new("char[]", data)
    keep.append(owner)
    return {"data": owner, "length": len(data)}


# Callbacks. wgpu-native may call them as long as it likes, so they live for ever and
# find their objects by number; an object that is gone is simply not found.


def _on_error(
    device: Cdata, kind: int, message: Cdata, number: Cdata, unused: Cdata
) -> None:
    gpu = open_devices.get(int(ffi.cast("uintptr_t", number)))
    if gpu is not None:
        gpu.errors.append((int(kind), text(message)))


def _on_lost(
    device: Cdata, reason: int, message: Cdata, number: Cdata, unused: Cdata
) -> None:
    gpu = open_devices.get(int(ffi.cast("uintptr_t", number)))
    if gpu is not None and gpu.lost is None:
        gpu.lost = text(message) or f"reason {int(reason)}"


def _on_done(status: int, message: Cdata, number: Cdata, unused: Cdata) -> None:
    action = _waiting.pop(int(ffi.cast("uintptr_t", number)), None)
    if action is not None:
        action(int(status) == 1)


@functools.cache
def _callbacks() -> dict[str, Cdata]:
    def make(kind: str, function: Callable[..., None]) -> Cdata:
        return ffi.callback(kind, function)

    return {
        "error": make("WGPUUncapturedErrorCallback", _on_error),
        "lost": make("WGPUDeviceLostCallback", _on_lost),
        "done": make("WGPUQueueWorkDoneCallback", _on_done),
        "map": make("WGPUBufferMapCallback", _on_done),
    }


def _callback_info(kind: str, callback: str, number: int, mode: int | None) -> Cdata:
    info = ffi.new(f"{kind} *")
    info.callback = _callbacks()[callback]
    info.userdata1 = ffi.cast("void *", number)
    if mode is not None:
        info.mode = mode
    return info


# Devices ----------------------------------------------------------------------------


def to_error(kind: int, message: str, doing: str) -> ModelError:
    """The model error for an error that wgpu-native reported.

    Args:
        kind: a WGPUErrorType.
        message: its text, several lines.
        doing: what was done, such as "creating a buffer".
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    detail = "; ".join(
        line
        for line in lines
        if line not in {"Validation Error", "Caused by:"}
        and not line.startswith("In wgpu")
    )
    said = f"wgpu refused {doing}: {detail or message.strip() or 'no reason given'}"
    lowered = message.casefold()
    if "device is lost" in lowered or "device lost" in lowered:
        return DeviceLost(f"{said}; open the device again")
    if kind == _ERROR_OUT_OF_MEMORY or "not enough memory" in lowered:
        return OutOfMemory(said)
    if any(word in lowered for word in _LIMIT_WORDS):
        return ResourceLimit(said)
    return External(said, domain=ERROR_DOMAIN, code=kind)


@dataclass(frozen=True, slots=True)
class BufferSlice:
    """A part of a buffer for a bind group: handle, byte offset and nonzero bytes."""

    buffer: Cdata
    offset: int
    nbytes: int


class Gpu:
    """An open WebGPU device with its queue.

    Attributes:
        lost: why the device was lost, or None while it was not.
        errors: reported and not yet raised errors, as (WGPUErrorType, text).
    """

    def __init__(self, adapter: Cdata, features: tuple[int, ...]) -> None:
        """Opens a device with all limits of its adapter.

        Raises:
            ModelError: it could not be opened.
        """
        self.lost: str | None = None
        self.errors: list[tuple[int, str]] = []
        self.number = next(_numbers)
        self._closed = False
        limits = ffi.new("WGPULimits *")
        lib.wgpuAdapterGetLimits(adapter, limits)
        limits.nextInChain = NULL
        keep: list[object] = []
        descriptor = ffi.new("WGPUDeviceDescriptor *")
        descriptor.label = _string("tosavk", keep)
        descriptor.requiredFeatureCount = len(features)
        names = ffi.new("WGPUFeatureName[]", features)
        descriptor.requiredFeatures = names
        descriptor.requiredLimits = limits
        descriptor.deviceLostCallbackInfo = _callback_info(
            "WGPUDeviceLostCallbackInfo",
            "lost",
            self.number,
            lib.WGPUCallbackMode_AllowSpontaneous,
        )[0]
        descriptor.uncapturedErrorCallbackInfo = _callback_info(
            "WGPUUncapturedErrorCallbackInfo", "error", self.number, None
        )[0]
        answer: list[tuple[int, Cdata, str]] = []

        def on_device(
            status: int, device: Cdata, message: Cdata, *unused: Cdata
        ) -> None:
            answer.append((int(status), device, text(message)))

        function = ffi.callback("WGPURequestDeviceCallback", on_device)
        request = ffi.new("WGPURequestDeviceCallbackInfo *")
        request.mode = lib.WGPUCallbackMode_AllowSpontaneous
        request.callback = function
        open_devices[self.number] = self
        # wgpu-native answers inside the call.
        lib.wgpuAdapterRequestDevice(adapter, descriptor, request[0])
        if not answer or answer[0][0] != lib.WGPURequestDeviceStatus_Success:
            del open_devices[self.number]
            said = answer[0][2] if answer else "no answer"
            raise External(
                f"the device could not be opened: {said}",
                domain=ERROR_DOMAIN,
                code=answer[0][0] if answer else 0,
            )
        _close_at_exit()
        self.device = answer[0][1]
        self.queue = lib.wgpuDeviceGetQueue(self.device)

    def close(self) -> None:
        """Destroys the device; pending work ends with it."""
        if self._closed:
            return
        self._closed = True
        lib.wgpuDeviceDestroy(self.device)
        lib.wgpuDevicePoll(self.device, 0, NULL)
        lib.wgpuQueueRelease(self.queue)
        lib.wgpuDeviceRelease(self.device)
        del open_devices[self.number]

    def check(self, doing: str) -> None:
        """Raises what was reported since the last check; quick when there is nothing.

        Args:
            doing: what was done, for the message.

        Raises:
            DeviceLost: the device is gone.
            ModelError: any other reported error; of several the first.
        """
        if self.errors:
            (kind, message), *_ = self.errors
            self.errors.clear()
            error = to_error(kind, message, doing)
            if isinstance(error, DeviceLost) and self.lost is None:
                self.lost = f"wgpu refused {doing}"
            raise error
        if self.lost is not None:
            raise DeviceLost(
                f"the device was lost before {doing}: {self.lost}; open it again"
            )

    def poll(self) -> None:
        """Lets wgpu run the callbacks that are due; never blocks."""
        lib.wgpuDevicePoll(self.device, 0, NULL)

    # Objects: each function returns a handle that `release_*` gives back.

    def _made(
        self, handle: Cdata, release: Callable[[Cdata], object], doing: str
    ) -> Cdata:
        """The handle, if nothing was reported; otherwise it is given back."""
        try:
            self.check(doing)
        except ModelError:
            release(handle)
            raise
        return handle

    def create_buffer(self, nbytes: int, usage: int) -> Cdata:
        """Creates a zeroed buffer of `nbytes`, a multiple of 4."""
        descriptor = ffi.new("WGPUBufferDescriptor *")
        descriptor.usage = usage
        descriptor.size = nbytes
        handle = lib.wgpuDeviceCreateBuffer(self.device, descriptor)
        return self._made(handle, lib.wgpuBufferRelease, f"a buffer of {nbytes} bytes")

    @staticmethod
    def destroy_buffer(handle: Cdata) -> None:
        """Frees a buffer's memory and gives the handle back."""
        lib.wgpuBufferDestroy(handle)
        lib.wgpuBufferRelease(handle)

    def create_layout(self, storage_buffers: int) -> tuple[Cdata, Cdata]:
        """Creates the bind group layout and pipeline layout of a kernel.

        Args:
            storage_buffers: read_write storage buffers at bindings 0, 1, ...; the
                parameters are a uniform buffer at the next binding.
        """
        entries = ffi.new("WGPUBindGroupLayoutEntry[]", storage_buffers + 1)
        for binding in range(storage_buffers + 1):
            entry = entries[binding]
            entry.binding = binding
            entry.visibility = STAGE_COMPUTE
            entry.buffer.type = (
                lib.WGPUBufferBindingType_Storage
                if binding < storage_buffers
                else lib.WGPUBufferBindingType_Uniform
            )
        descriptor = ffi.new("WGPUBindGroupLayoutDescriptor *")
        descriptor.entryCount = storage_buffers + 1
        descriptor.entries = entries
        group = lib.wgpuDeviceCreateBindGroupLayout(self.device, descriptor)
        doing = f"a layout of {storage_buffers} storage buffers"
        self._made(group, lib.wgpuBindGroupLayoutRelease, doing)
        groups = ffi.new("WGPUBindGroupLayout[]", [group])
        layout = ffi.new("WGPUPipelineLayoutDescriptor *")
        layout.bindGroupLayoutCount = 1
        layout.bindGroupLayouts = groups
        pipeline = lib.wgpuDeviceCreatePipelineLayout(self.device, layout)
        self._made(pipeline, partial(release_layout, group), "a pipeline layout")
        return group, pipeline

    def create_pipeline(self, name: str, layout: Cdata, code: str) -> Cdata:
        """Compiles WGSL text without overrides; its entry point is `main`.

        Args:
            name: which kernel it is, for messages.
            layout: a pipeline layout.
            code: the text.
        """
        keep: list[object] = []
        module = self._create_module(name, code, keep)
        try:
            descriptor = ffi.new("WGPUComputePipelineDescriptor *")
            descriptor.label = _string(name, keep)
            descriptor.layout = layout
            descriptor.compute.module = module
            descriptor.compute.entryPoint = _string("main", keep)
            handle = lib.wgpuDeviceCreateComputePipeline(self.device, descriptor)
            return self._made(handle, release_pipeline, f"a pipeline of kernel {name}")
        finally:
            lib.wgpuShaderModuleRelease(module)

    def _create_module(self, name: str, code: str, keep: list[object]) -> Cdata:
        source = ffi.new("WGPUShaderSourceWGSL *")
        source.chain.sType = lib.WGPUSType_ShaderSourceWGSL
        source.code = _string(code, keep)
        descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", source)
        descriptor.label = _string(name, keep)
        handle = lib.wgpuDeviceCreateShaderModule(self.device, descriptor)
        release = lib.wgpuShaderModuleRelease
        return self._made(handle, release, f"the WGSL of kernel {name}")

    def create_group(self, layout: Cdata, slices: list[BufferSlice]) -> Cdata:
        """Creates a bind group with `slices` at bindings 0, 1, ...

        Raises:
            InvalidArgument: a slice without bytes, which would end the process.
            ModelError: wgpu refuses it, for example for its alignment.
        """
        entries = ffi.new("WGPUBindGroupEntry[]", len(slices))
        for binding, (entry, part) in enumerate(zip(entries, slices, strict=True)):
            if part.nbytes <= 0:
                raise InvalidArgument(f"binding {binding} covers {part.nbytes} bytes")
            entry.binding = binding
            entry.buffer = part.buffer
            entry.offset = part.offset
            entry.size = part.nbytes
        descriptor = ffi.new("WGPUBindGroupDescriptor *")
        descriptor.layout = layout
        descriptor.entryCount = len(slices)
        descriptor.entries = entries
        handle = lib.wgpuDeviceCreateBindGroup(self.device, descriptor)
        return self._made(handle, release_group, "a bind group")

    # Work. Submitting needs care: whatever wgpu finds wrong there ends the process.

    def write(self, buffer: Cdata, offset: int, data: memoryview) -> None:
        """Hands bytes to the queue; offset and length are multiples of 4."""
        if data.nbytes == 0:
            return
        with ffi.from_buffer(data) as pointer:
            lib.wgpuQueueWriteBuffer(self.queue, buffer, offset, pointer, data.nbytes)
        self.check(f"writing {data.nbytes} bytes at {offset}")

    def flush(self) -> None:
        """Sends written bytes on their way."""
        self.check("a submission")
        lib.wgpuQueueSubmit(self.queue, 0, NULL)

    def copy(self, source: BufferSlice, target: Cdata) -> None:
        """Copies a slice to the start of another buffer; multiples of 4."""
        self.check("a copy")
        encoder = lib.wgpuDeviceCreateCommandEncoder(self.device, NULL)
        lib.wgpuCommandEncoderCopyBufferToBuffer(
            encoder, source.buffer, source.offset, target, 0, source.nbytes
        )
        self.submit(encoder, f"a copy of {source.nbytes} bytes")

    def submit(self, encoder: Cdata, doing: str) -> None:
        """Finishes and submits an encoder, which is given back.

        Raises:
            ModelError: it was refused; nothing was submitted.
        """
        commands = lib.wgpuCommandEncoderFinish(encoder, NULL)
        lib.wgpuCommandEncoderRelease(encoder)
        try:
            self.check(doing)
            lib.wgpuQueueSubmit(self.queue, 1, ffi.new("WGPUCommandBuffer *", commands))
        finally:
            lib.wgpuCommandBufferRelease(commands)

    def when_done(self, action: Callable[[bool], None]) -> int:
        """Calls `action(good)` in a later `poll`, once all submitted work is done.

        Returns:
            The number with which `forget` cancels the call.
        """
        number = next(_numbers)
        _waiting[number] = action
        info = _callback_info(
            "WGPUQueueWorkDoneCallbackInfo",
            "done",
            number,
            lib.WGPUCallbackMode_AllowProcessEvents,
        )
        lib.wgpuQueueOnSubmittedWorkDone(self.queue, info[0])
        return number

    def map(
        self, buffer: Cdata, mode: int, nbytes: int, action: Callable[[bool], None]
    ) -> int:
        """Asks for the mapping of a buffer's first bytes; `action` as in `when_done`.

        `unmap` must follow before the buffer is submitted again.
        """
        number = next(_numbers)
        _waiting[number] = action
        info = _callback_info(
            "WGPUBufferMapCallbackInfo",
            "map",
            number,
            lib.WGPUCallbackMode_AllowProcessEvents,
        )
        lib.wgpuBufferMapAsync(buffer, mode, 0, nbytes, info[0])
        try:
            self.check(f"mapping {nbytes} bytes")
        except ModelError:
            forget(number)
            raise
        return number

    @staticmethod
    def mapped(buffer: Cdata, mode: int, nbytes: int) -> memoryview:
        """The mapped bytes; dead after `unmap`."""
        get = (
            lib.wgpuBufferGetMappedRange
            if mode == MAP_WRITE
            else lib.wgpuBufferGetConstMappedRange
        )
        return memoryview(
            ffi.buffer(ffi.cast("char *", get(buffer, 0, nbytes)), nbytes)
        )

    @staticmethod
    def unmap(buffer: Cdata) -> None:
        """Ends a mapping, also one that was asked for and has not come yet."""
        lib.wgpuBufferUnmap(buffer)


@functools.cache
def _close_at_exit() -> None:
    """Has devices that are still open at the end of the process closed by then.

    Drivers with threads of their own (SwiftShader) crash when the process ends under
    pending work.
    """

    def close_all() -> None:
        for gpu in list(open_devices.values()):
            gpu.close()

    atexit.register(close_all)
    if hasattr(os, "register_at_fork"):
        # A forked process has copies of the devices, but not their threads.
        os.register_at_fork(after_in_child=open_devices.clear)


def forget(number: int) -> None:
    """Cancels a call that `when_done` or `map` promised."""
    _waiting.pop(number, None)


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel launch, ready to encode.

    Attributes:
        pipeline: its pipeline.
        group: its bind group.
        x: work groups.
        y: work groups.
        z: work groups.
    """

    pipeline: Cdata
    group: Cdata
    x: int
    y: int
    z: int


def encode(gpu: Gpu, steps: list[Step]) -> Cdata:
    """An encoder with the steps in one compute pass; wgpu puts the barriers in."""
    encoder = lib.wgpuDeviceCreateCommandEncoder(gpu.device, NULL)
    cpass = lib.wgpuCommandEncoderBeginComputePass(encoder, NULL)
    set_pipeline = lib.wgpuComputePassEncoderSetPipeline
    set_group = lib.wgpuComputePassEncoderSetBindGroup
    dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
    last = None
    for step in steps:
        if step.pipeline is not last:
            set_pipeline(cpass, step.pipeline)
            last = step.pipeline
        set_group(cpass, 0, step.group, 0, NULL)
        dispatch(cpass, step.x, step.y, step.z)
    lib.wgpuComputePassEncoderEnd(cpass)
    lib.wgpuComputePassEncoderRelease(cpass)
    return encoder


def release_group(handle: Cdata) -> None:
    """Gives a bind group back."""
    lib.wgpuBindGroupRelease(handle)


def release_pipeline(handle: Cdata) -> None:
    """Gives a pipeline back."""
    lib.wgpuComputePipelineRelease(handle)


def release_layout(group: Cdata, pipeline: Cdata) -> None:
    """Gives what `Gpu.create_layout` made back."""
    lib.wgpuPipelineLayoutRelease(pipeline)
    lib.wgpuBindGroupLayoutRelease(group)
