"""The pipeline cache on disk: nothing reaches the driver that was not checked here.

A file is our header (magic, who wrote it, length and SHA-256 of the payload) and the
driver's own data. A file that is damaged or belongs to another driver is ignored, with
one line in the log, and replaced later. `backends.cachefolder` says where it lies.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

from tosavk.backends.cachefolder import (
    CacheRejected,
    cache_folder,
    read_file,
    write_file,
)
from tosavk.backends.vulkan.records import DeviceRecord
from tosavk.core import logs

__all__ = [
    "CacheIdentity",
    "CacheRejected",
    "cache_folder",
    "load",
    "pack",
    "store",
    "unpack",
]

_LOGGER = "tosavk.vulkan"

MAGIC = b"TOSAVKPC"
VERSION = 1
MAX_BYTES = 256 << 20
_HEADER = struct.Struct("<8sIIII16s32sQ32s")
_DRIVER_HEADER = struct.Struct("<IIII16s")
_DRIVER_HEADER_VERSION = 1


@dataclass(frozen=True, slots=True)
class CacheIdentity:
    """Whose pipelines a cache holds.

    Attributes:
        vendor_id: vendor number.
        device_id: the vendor's device number.
        driver_version: the driver's version number.
        uuid: pipelineCacheUUID, 16 bytes.
        names: device and driver text. Some software drivers leave version and UUID
            constant over releases, the text they do change.
    """

    vendor_id: int
    device_id: int
    driver_version: int
    uuid: bytes
    names: str

    @classmethod
    def of(cls, record: DeviceRecord) -> CacheIdentity:
        """The identity of a device."""
        return cls(
            record.vendor_id,
            record.device_id,
            record.driver_version,
            record.cache_uuid,
            f"{record.name}\n{record.driver}",
        )

    @property
    def digest(self) -> bytes:
        """A hash of everything, 32 bytes."""
        text = (
            f"{self.vendor_id:08x}{self.device_id:08x}{self.driver_version:08x}"
            f"{self.uuid.hex()}{self.names}"
        )
        return hashlib.sha256(text.encode()).digest()

    @property
    def file_name(self) -> str:
        """Name of the cache file of this device and driver."""
        return f"vulkan-{self.digest.hex()[:32]}.cache"


def pack(identity: CacheIdentity, payload: bytes) -> bytes:
    """The content of a cache file."""
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        identity.vendor_id,
        identity.device_id,
        identity.driver_version,
        identity.uuid,
        identity.digest,
        len(payload),
        hashlib.sha256(payload).digest(),
    )
    return header + payload


def unpack(identity: CacheIdentity, content: bytes) -> bytes:
    """The driver's data in a cache file.

    Raises:
        CacheRejected: damaged, or of another device, driver or version.
    """
    if len(content) > MAX_BYTES:
        raise CacheRejected(f"more than {MAX_BYTES} bytes")
    if len(content) < _HEADER.size + _DRIVER_HEADER.size:
        raise CacheRejected(f"only {len(content)} bytes")
    magic, version, vendor, device, driver, uuid, digest, length, checksum = (
        _HEADER.unpack_from(content)
    )
    if magic != MAGIC or version != VERSION:
        raise CacheRejected("not a cache file of this version")
    found = (vendor, device, driver, uuid, digest)
    wanted = (
        identity.vendor_id,
        identity.device_id,
        identity.driver_version,
        identity.uuid,
        identity.digest,
    )
    if found != wanted:
        raise CacheRejected("written for another device or driver")
    payload = content[_HEADER.size :]
    if length != len(payload):
        raise CacheRejected(f"{len(payload)} bytes of data, the header says {length}")
    if hashlib.sha256(payload).digest() != checksum:
        raise CacheRejected("the checksum is wrong")
    _check_driver_header(identity, payload)
    return payload


def _check_driver_header(identity: CacheIdentity, payload: bytes) -> None:
    size, version, vendor, device, uuid = _DRIVER_HEADER.unpack_from(payload)
    if version != _DRIVER_HEADER_VERSION:
        raise CacheRejected(f"the driver's header has version {version}")
    if not _DRIVER_HEADER.size <= size <= len(payload):
        raise CacheRejected(f"the driver's header claims {size} bytes")
    if (vendor, device, uuid) != (
        identity.vendor_id,
        identity.device_id,
        identity.uuid,
    ):
        raise CacheRejected("the driver's header names another device")


def load(folder: Path, identity: CacheIdentity) -> bytes:
    """The driver's data for a device; empty if there is none that can be used."""
    path = folder / identity.file_name
    try:
        return unpack(identity, read_file(path, MAX_BYTES + 1))
    except FileNotFoundError:
        return b""
    except (OSError, CacheRejected) as error:
        logs.warning(_LOGGER, "pipeline cache %s is ignored: %s", path, error)
        return b""


def store(folder: Path, identity: CacheIdentity, payload: bytes) -> None:
    """Writes the driver's data in one step; failures go to the log only.

    Less than the driver's own header is not kept: a driver that gives no more (lavapipe
    26) would not take it back.
    """
    if len(payload) < _DRIVER_HEADER.size:
        return
    path = folder / identity.file_name
    try:
        write_file(path, pack(identity, payload))
    except (OSError, CacheRejected) as error:
        logs.warning(_LOGGER, "pipeline cache %s is not written: %s", path, error)
