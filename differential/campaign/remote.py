"""What a worker of a campaign does: it says what it has, and does tasks.

Everything that touches a driver runs in a process of its own, so that no driver ends the
worker.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.session import parse_numerics
from tosavk.core.errors import DeviceUnavailable, Error
from tosavk.differential.campaign.packet import Blob, Packet
from tosavk.differential.campaign.task import DiffTask, FuzzTask, task_of
from tosavk.differential.compare import bits_of, is_float
from tosavk.differential.diff import diff
from tosavk.differential.fuzz.campaign import Request, fuzz
from tosavk.differential.job import request_of
from tosavk.differential.sides import REFERENCE, Party

Array = NDArray[np.generic]

_LISTING_S = 120.0


def describe() -> str:
    """What this worker is and which devices it has, as JSON."""
    command = (sys.executable, "-P", "-m", "tosavk", "devices", "--json")
    devices: object = []
    failure = ""
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_LISTING_S,
        )
        devices = json.loads(done.stdout)["devices"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        failure = f"its devices could not be listed: {error}"
    return json.dumps(
        {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "tosavk": version(),
            "devices": devices,
            "failure": failure,
        }
    )


def version() -> str:
    """Version of this package."""
    try:
        return metadata.version("tosavk")
    except metadata.PackageNotFoundError:
        return ""


def perform(text: str, model: bytes | None) -> bytes:
    """Does a task.

    Args:
        text: the task (`task.text_of`).
        model: the model's file, or None: it may be here already.

    Returns:
        A packet. Its document has `result`; or `wanted`, true where the model's file is
        needed; or `lacks`, why the device is not here; or `error`.
    """
    task = task_of(text)
    try:
        if isinstance(task, FuzzTask):
            return _fuzz(task).packed()
        path = _model(task, model)
        if path is None:
            return Packet({"wanted": True}).packed()
        return _diff(task, path).packed()
    except DeviceUnavailable as error:
        return Packet({"lacks": str(error)}).packed()
    except Error as error:
        return Packet({"error": f"{type(error).__name__}: {error}"}).packed()


class _Keeper:
    """Keeps outputs, digests of all tensors, and the tensors that are wanted."""

    def __init__(self, keep: Sequence[str]) -> None:
        self._keep = frozenset(keep)
        self.blobs: dict[str, Blob] = {}
        self.digests: dict[str, str] = {}
        self.traits: list[str] = []

    def outputs(self, number: int, found: Mapping[str, Mapping[str, Array]]) -> None:
        for label, arrays in found.items():
            side = "reference" if label == REFERENCE else "device"
            for name, array in arrays.items():
                self.blobs[output_key(side, number, name)] = _bytes(array)

    def tensors(self, number: int, sides: Sequence[Party]) -> None:
        for side in sides:
            if side.is_reference:
                continue
            for name, array in side.tensors.items():
                self.digests[f"{number} {name}"] = digest(array)
                if name in self._keep:
                    self.blobs[tensor_key(number, name)] = _bytes(array)

    def done(self, sides: Sequence[Party]) -> None:
        for side in sides:
            if not side.is_reference and side.ran:
                self.traits = sorted(side.traits())


def output_key(side: str, number: int, name: str) -> str:
    """Name of the blob of a final output; the side is `device` or `reference`."""
    return f"output {side} {number} {name}"


def tensor_key(number: int, name: str) -> str:
    """Name of the blob of a tensor of the device."""
    return f"tensor {number} {name}"


def digest(array: Array) -> str:
    """SHA-256 of an array's bits; all NaNs are one."""
    bits = bits_of(array)
    if is_float(array.dtype):
        with np.errstate(invalid="ignore"):
            nan = np.isnan(array)
        if nan.any():
            bits = np.where(nan, np.iinfo(bits.dtype).max, bits)
    return hashlib.sha256(np.ascontiguousarray(bits).data).hexdigest()


def _bytes(array: Array) -> bytes:
    return np.asarray(array, order="C").tobytes()


def _diff(task: DiffTask, path: Path) -> Packet:
    request = request_of(
        {
            "model": str(path),
            "backends": [task.spec, REFERENCE],
            "shapes": {name: list(shape) for name, shape in task.shapes.items()},
            "seed": task.seed,
            "samples": task.samples,
            "generator": task.generator,
            "numerics": task.numerics,
            "node_by_node": True,
            "limit_s": task.limit_s,
        }
    )
    keeper = _Keeper(task.keep)
    result = diff(dataclasses.replace(request, model=task.model), watch=keeper)
    document = {
        "result": result.document(),
        "digests": keeper.digests,
        "traits": keeper.traits,
    }
    return Packet(document, keeper.blobs)


def _fuzz(task: FuzzTask) -> Packet:
    with tempfile.TemporaryDirectory(prefix="tosavk-campaign-") as name:
        folder = Path(name)
        result = fuzz(
            Request(
                seed=task.seed,
                start=task.start,
                count=task.count,
                backends=(task.spec, REFERENCE),
                numerics=parse_numerics(task.numerics),
                folder=folder,
                reducing=task.reducing,
                apart=True,
                limit_s=task.limit_s,
            )
        )
        blobs: dict[str, Blob] = {}
        for filed in result.findings.values():
            place = Path(filed.folder)
            for path in sorted(place.glob("*")):
                if path.is_file():
                    blobs[f"{place.name}/{path.name}"] = path.read_bytes()
            filed.folder = place.name
        return Packet({"result": result.document()}, blobs)


def _model(task: DiffTask, data: bytes | None) -> Path | None:
    """The model's file here, or None where it is not."""
    user = getattr(os, "getuid", lambda: 0)()
    folder = Path(tempfile.gettempdir()) / f"tosavk-campaign-models-{user}"
    kept = folder / f"{task.sha256}.tosa"
    for path in (kept, Path(task.path)):
        # A file that somebody else put there has another digest.
        if _has_digest(path, task.sha256):
            return path
    if data is None or hashlib.sha256(data).hexdigest() != task.sha256:
        return None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = folder / f"{task.sha256}.{os.getpid()}.new"
    fresh.write_bytes(data)
    fresh.replace(kept)
    return kept


def _has_digest(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False
