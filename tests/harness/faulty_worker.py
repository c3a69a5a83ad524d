"""The process of a diff's backend, with backends that have a fault.

`python -m harness.faulty_worker`: the device part of a specification names the fault, as
in `vulkan:hangs`; every other backend is the real one. With the argument `fuzz` it is the
process of a reduction.
"""

import ctypes
import errno
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import numpy as np

from harness.planted import Array, Fault, FaultyDevice, corrupts, healthy
from tosavk.backends.registry import open_accelerator, parse_spec
from tosavk.core.accelerator import Accelerator
from tosavk.core.device import Device
from tosavk.core.errors import DeviceLost, DeviceUnavailable, OutOfMemory
from tosavk.differential import worker
from tosavk.differential.fuzz import judge
from tosavk.differential.fuzz import worker as fuzz_worker
from tosavk.lowering.graph import Graph, Op, Operator

ROOM = 512 << 20


def complain(text: str) -> None:
    """Says something as a driver does, past Python's own streams."""
    os.write(2, text.encode() + b"\n")


def at_exp(action: Callable[[], object]) -> Fault:
    """Something happens when an EXP runs."""

    def fault(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        del graph
        if op.op is Op.EXP:
            action()
        return results

    return fault


def alone(action: Callable[[], object]) -> Fault:
    """Something happens when an operator is run again on other inputs."""

    def fault(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        if len(graph.main.operators) == 1:
            action()
        return corrupts("total", by=4.5)(op, graph, results)

    return fault


def abort() -> NoReturn:
    complain("driver: assertion `pipeline != NULL` failed")
    os.abort()


def crash() -> None:
    ctypes.string_at(8)


def hang() -> None:
    complain("driver: waiting for a fence")
    time.sleep(3600)


def lose() -> NoReturn:
    complain("driver: VK_ERROR_DEVICE_LOST")
    raise DeviceLost("the device is lost")


def want_too_much() -> NoReturn:
    """Takes more memory than there is, as a C++ driver does."""
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    try:
        np.ones(ROOM, np.uint8)
    except MemoryError:
        complain("terminate called after throwing an instance of 'std::bad_alloc'")
        os.abort()
    raise AssertionError("there was room")


def want_code() -> NoReturn:
    """Has no memory for machine code, as lavapipe says it, under a long trace."""
    complain("LLVM ERROR: Unable to allocate section memory!")
    for number in range(200):
        complain(f'  File "driver.py", line {number} in compile')
    os.abort()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> NoReturn:
    os._exit(3)


def talk() -> None:
    os.write(1, b'driver: {"names": []}\n')


class _Slow(FaultyDevice):
    """Hangs when it is closed."""

    def close(self) -> None:
        hang()


class _Greedy(FaultyDevice):
    """Has no memory for a context."""

    def create_kit(self) -> NoReturn:
        raise OutOfMemory("VK_ERROR_OUT_OF_DEVICE_MEMORY: 4 GiB were asked for")


class _Unmapped(FaultyDevice):
    """Cannot map memory."""

    def create_kit(self) -> NoReturn:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def _abort_opening() -> Device:
    abort()


def _absent() -> Device:
    raise DeviceUnavailable("no device is called 'absent'")


FAULTS: dict[str, Fault] = {
    "good": healthy,
    "well": healthy,
    "wrong": corrupts("total"),
    "aborts": at_exp(abort),
    "crashes": at_exp(crash),
    "hangs": at_exp(hang),
    "loses": at_exp(lose),
    "wants": at_exp(want_too_much),
    "codes": at_exp(want_code),
    "dies": at_exp(die),
    "leaves": at_exp(leave),
    "talks": at_exp(talk),
    "crawls": at_exp(lambda: time.sleep(1.6)),
    "alone": alone(abort),
}
OPENINGS: dict[str, Callable[[], Device]] = {
    "slow": lambda: _Slow(healthy),
    "greedy": lambda: _Greedy(healthy),
    "maps": lambda: _Unmapped(healthy),
    "unborn": _abort_opening,
    "absent": _absent,
}


def open_planted(spec: str) -> Accelerator:
    """Opens a faulty device, or the real one."""
    selector = parse_spec(spec)[1] or ""
    if selector in FAULTS:
        return Accelerator(FaultyDevice(FAULTS[selector]))
    if selector in OPENINGS:
        return Accelerator(OPENINGS[selector]())
    return open_accelerator(spec)


if __name__ == "__main__":
    sys.setswitchinterval(0.001)
    if sys.argv[1:] == ["fuzz"]:
        judge.__dict__["open_accelerator"] = open_planted
        fuzz_worker.main()
    else:
        worker.__dict__["open_accelerator"] = open_planted
        worker.main()
