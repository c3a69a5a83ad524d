"""Pipelines: WGSL text, layouts and compute pipelines, each made once for a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tosavk.backends.wgpu import _ffi
from tosavk.backends.wgpu._ffi import Cdata, Gpu
from tosavk.backends.wgpu.probe import Limits
from tosavk.backends.wgpu.specialize import specialize
from tosavk.backends.wgpu.wgsl import Source, WgslError
from tosavk.core.errors import InvalidArgument, ResourceLimit
from tosavk.core.plan import Dispatch
from tosavk.shaders.catalogue import Kernel, Work, kernels
from tosavk.shaders.files import read_wgsl


def wgsl_text(kernel: Kernel) -> str:
    """The kernel's whole WGSL text: its shared files, then its own."""
    return "\n".join(map(read_wgsl, (*kernel.wgsl, kernel.name)))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A kernel, specialized.

    Attributes:
        kernel: its catalogue entry.
        handle: the WGPUComputePipeline.
        group_layout: layout of its bind groups.
        width: work-group width.
    """

    kernel: Kernel
    handle: Cdata
    group_layout: Cdata
    width: int


def work_groups(dispatch: Dispatch, pipeline: Pipeline, most: int) -> tuple[int, ...]:
    """Work groups along x, y and z of a dispatch (docs/kernel-interface.md, "Work").

    Args:
        dispatch: the kernel launch.
        pipeline: its pipeline.
        most: how many the device allows along one dimension.

    Raises:
        ResourceLimit: more than the device allows.
    """
    wide = -(-dispatch.columns // pipeline.width)
    if pipeline.kernel.work is Work.LINEAR:
        y = -(-wide // most)
        counts = (-(-wide // y), y, 1)
    else:
        z = -(-dispatch.tiles // most)
        counts = (wide, -(-dispatch.tiles // z), z)
    if max(counts) > most:
        raise ResourceLimit(
            f"kernel {dispatch.kernel!r} needs {counts} work groups; the device allows "
            f"{most} along a dimension (maxComputeWorkgroupsPerDimension)"
        )
    return counts


class Pipelines:
    """The pipelines of a device, made when they are first asked for."""

    def __init__(self, gpu: Gpu, limits: Limits) -> None:
        """Starts with none."""
        self._gpu = gpu
        self._limits = limits
        self._kernels = kernels()
        self._layouts: dict[int, tuple[Cdata, Cdata]] = {}
        self._sources: dict[str, Source] = {}
        self._handles: dict[tuple[int, str], Cdata] = {}
        self._pipelines: dict[tuple[str, tuple[int, ...]], Pipeline] = {}
        self.watch: Callable[[int, int], None] | None = None

    def prepare(self, keys: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        """Makes those that are missing, and tells `watch` how far it is.

        Raises:
            InvalidArgument: as `get`.
            ModelError: as `get`.
        """
        missing = [key for key in dict.fromkeys(keys) if key not in self._pipelines]
        for number, (name, spec) in enumerate(missing):
            if self.watch is not None:
                self.watch(number, len(missing))
            self.get(name, spec)
        if missing and self.watch is not None:
            self.watch(len(missing), len(missing))

    def get(self, name: str, spec: tuple[int, ...]) -> Pipeline:
        """The pipeline of a kernel with these specialization words.

        Raises:
            InvalidArgument: no such kernel, another number of words, or text that
                `wgsl` does not understand.
            ModelError: wgpu refused it.
        """
        found = self._pipelines.get((name, spec))
        if found is not None:
            return found
        kernel = self._kernels.get(name)
        if kernel is None or len(kernel.spec) != len(spec):
            raise InvalidArgument(
                f"there is no kernel {name!r} with {len(spec)} specialization words"
            )
        group_layout, layout = self._layout(len(kernel.bindings))
        limits = self._limits
        width = min(
            kernel.workgroup, limits.workgroup_width, limits.workgroup_invocations
        )
        constants = {"WORKGROUP": width, **dict(zip(kernel.spec, spec, strict=True))}
        code = self._code(kernel, constants)
        # Words that a kernel does not look at make no other pipeline.
        key = (len(kernel.bindings), code)
        handle = self._handles.get(key)
        if handle is None:
            handle = self._gpu.create_pipeline(f"{name!r} {spec}", layout, code)
            self._handles[key] = handle
        made = Pipeline(kernel, handle, group_layout, width)
        self._pipelines[name, spec] = made
        return made

    def free(self) -> None:
        """Gives everything back; it can be used again."""
        for handle in self._handles.values():
            _ffi.release_pipeline(handle)
        for layout in self._layouts.values():
            _ffi.release_layout(*layout)
        self._pipelines.clear()
        self._handles.clear()
        self._layouts.clear()
        self._sources.clear()

    def _layout(self, storage_buffers: int) -> tuple[Cdata, Cdata]:
        if storage_buffers not in self._layouts:
            self._layouts[storage_buffers] = self._gpu.create_layout(storage_buffers)
        return self._layouts[storage_buffers]

    def _code(self, kernel: Kernel, constants: dict[str, int]) -> str:
        try:
            if kernel.name not in self._sources:
                self._sources[kernel.name] = Source(wgsl_text(kernel))
            return specialize(self._sources[kernel.name], constants)
        except WgslError as error:
            raise InvalidArgument(
                f"the WGSL of kernel {kernel.name!r} is not understood: {error}"
            ) from error
