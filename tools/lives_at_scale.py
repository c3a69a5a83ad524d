#!/usr/bin/env python3
"""Makes and gives back very many objects on a driver that computes nothing.

    lives_at_scale.py DEVICE [SCALE]

Each life is a check: it ends with no object left in the driver, counted at the function
table. Writes one JSON document to standard output.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from harness.stress import resident
from harness.vulkan_door import CountingDoor, KeptInstance
from tosavk import Builder, DType
from tosavk.backends.vulkan.device import VulkanDevice
from tosavk.backends.vulkan.layers import version_text
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.core.accelerator import Accelerator
from tosavk.core.buffers import Buffer
from tosavk.core.contexts import Context
from tosavk.core.descriptors import (
    USAGE_ALL,
    AccessMode,
    Binding,
    BufferDesc,
    BufferRange,
    EventState,
    MemoryDomain,
)
from tosavk.core.errors import ResourceLimit, Unsupported
from tosavk.core.plan import SlotRole
from tosavk.core.programs import Program
from tosavk.core.shared import LiveResources
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph

_SLACK = 8 << 20
_DEPTH = 24
_FLYING = 4


class Lives:
    """The device and the kinds of lives.

    Args:
        part: part of the device's name.
        scale: how many times the usual number.
    """

    def __init__(self, part: str, scale: int) -> None:
        self.kept = KeptInstance(CountingDoor())
        self.part = part
        self.scale = scale
        self.numbers: dict[str, Any] = {}
        self.models = [chain(depth) for depth in (1, 4, _DEPTH)]
        with self.open() as accelerator:
            device = accelerator.device
            assert isinstance(device, VulkanDevice)
            self.name = device.record.name
            self.api_version = version_text(device.record.api_version)

    def open(self) -> Accelerator:
        """A new device."""
        options = VulkanOptions(pipeline_cache=False, validation=False)
        return Accelerator(self.kept.open(f"vulkan:{self.part}", options))

    def load(self, context: Context, accelerator: Accelerator, model: bytes) -> Program:
        """Lowers and loads a model."""
        limits = accelerator.device.plan_limits
        return context.load_program(lower_graph(load_graph(model), limits=limits))

    def devices(self) -> None:
        """Devices, one after the other."""
        count = 200 * self.scale
        for _ in range(count):
            self.open().close()
        self.numbers["devices opened"] = count

    def buffers(self) -> None:
        """Many buffers at once, in every domain, to the limit of allocations."""
        made = 0
        with self.open() as accelerator:
            for domain in [*MemoryDomain] * 2:
                contexts: list[Context] = []
                held: list[Buffer] = []
                while len(held) < 20_000 * self.scale:
                    try:
                        contexts.append(accelerator.create_context())
                        self.fill(contexts[-1], domain, held)
                    except ResourceLimit:
                        break
                    except Unsupported:
                        self.numbers[f"{domain.name} memory"] = "not there"
                        break
                made += len(held)
                for buffer in held:
                    buffer.release()
                for context in contexts:
                    context.release()
            assert accelerator.live_resources() == LiveResources()
        assert made
        self.numbers["buffers"] = made

    def fill(self, context: Context, domain: MemoryDomain, held: list[Buffer]) -> None:
        """Makes buffers until the context takes no more.

        Raises:
            ResourceLimit: it takes none at all.
        """
        before = len(held)
        while True:
            try:
                desc = BufferDesc(4096, USAGE_ALL, domain)
                held.append(context.allocate_buffer(desc))
            except ResourceLimit:
                if len(held) == before:
                    raise
                return

    def programs(self) -> None:
        """Programs loaded and given back."""
        count = 0
        with self.open() as accelerator:
            for _ in range(40 * self.scale):
                with accelerator.create_context() as context:
                    programs = [
                        self.load(context, accelerator, model)
                        for model in self.models
                        for _ in range(3)
                    ]
                    count += len(programs)
                    for program in programs:
                        program.release()
            assert accelerator.live_resources() == LiveResources()
        self.numbers["programs"] = count

    def submissions(self) -> None:
        """Submissions, four in flight, with flat memory."""
        count = 30_000 * self.scale
        with self.open() as accelerator, accelerator.create_context() as context:
            program = self.load(context, accelerator, self.models[1])
            queue = context.create_queue()
            buffers = [
                context.allocate_buffer(BufferDesc(slot.nbytes, USAGE_ALL))
                for _ in range(_FLYING)
                for slot in program.slots
            ]
            slots = len(program.slots)
            sets = [
                bindings(program, buffers[i * slots : (i + 1) * slots])
                for i in range(_FLYING)
            ]
            flying: list[Any] = []
            first = 0
            for turn in range(count):
                if len(flying) == _FLYING:
                    event = flying.pop(0)
                    assert event.wait() is EventState.COMPLETE
                    event.release()
                flying.append(queue.submit(program, sets[turn % _FLYING]))
                if turn == count // 10:
                    gc.collect()
                    first = resident()
            for event in flying:
                event.wait()
                event.release()
            gc.collect()
            growth = resident() - first
            self.numbers["submissions"] = count
            self.numbers["growth in KiB"] = growth >> 10
            assert growth < _SLACK, growth
            queue.release()
            program.release()
            for buffer in buffers:
                buffer.release()

    def garbage(self) -> None:
        """Everything dropped without a word, in any order."""
        count = 200 * self.scale
        with self.open() as accelerator:
            for turn in range(count):
                context = accelerator.create_context()
                program = self.load(context, accelerator, self.models[turn % 2])
                queue = context.create_queue()
                buffers = [
                    context.allocate_buffer(BufferDesc(slot.nbytes, USAGE_ALL))
                    for slot in program.slots
                ]
                event = queue.submit(program, bindings(program, buffers))
                things: list[object] = [event, *buffers, queue, program, context]
                del event, buffers, queue, program, context
                things = things[turn % 5 :] + things[: turn % 5]
                while things:
                    things.pop()
                if turn % 50 == 0:
                    gc.collect()
            gc.collect()
            assert accelerator.live_resources() == LiveResources()
        self.numbers["contexts dropped"] = count


def chain(depth: int) -> bytes:
    """A model with `depth` operators in a row that are not fused."""
    builder = Builder()
    x = y = builder.input("x", DType.FP32, (1, 8, 8))
    for _ in range(depth):
        y = builder.matmul(y, x)
    builder.output(y)
    return builder.build()


def bindings(program: Program, buffers: list[Buffer]) -> list[Binding]:
    """Bindings of all slots to the beginnings of buffers."""
    return [
        Binding(
            slot.index,
            buffer,
            BufferRange(0, slot.nbytes),
            AccessMode.READ if slot.role is SlotRole.INPUT else AccessMode.WRITE,
        )
        for slot, buffer in zip(program.slots, buffers, strict=True)
    ]


def main(part: str, scale: int) -> int:
    """Runs every kind of life."""
    lives = Lives(part, scale)
    door = lives.kept.door
    kinds: tuple[Callable[[], None], ...] = (
        lives.devices,
        lives.buffers,
        lives.programs,
        lives.submissions,
        lives.garbage,
    )
    failures: list[str] = []
    seconds: dict[str, float] = {}
    for kind in kinds:
        begin = time.monotonic()
        base = {each for each in door.live if each[0] == "vkCreateInstance"}
        try:
            kind()
            left = door.live - base
            assert not left, f"{len(left)} objects are left: {sorted(left)[:3]}"
            assert not door.wrong, door.wrong[:3]
        except Exception as error:  # noqa: BLE001 - each life is judged by itself
            traceback.print_exc()
            failures.append(f"{kind.__name__}: {type(error).__name__}: {error}")
        seconds[kind.__name__] = round(time.monotonic() - begin, 1)
    calls = sum(door.calls.values())
    lives.kept.destroy()
    document: dict[str, Any] = {
        "device": lives.name,
        "api_version": lives.api_version,
        "counts": {
            "passed": len(kinds) - len(failures),
            "failed": len(failures),
        },
        "failures": failures,
        "details": {**lives.numbers, "vulkan calls": calls, "seconds": seconds},
    }
    json.dump(document, sys.stdout)
    return 0


if __name__ == "__main__":
    arguments = [*sys.argv[1:], "1"]
    sys.exit(main(arguments[0], int(arguments[1])))
