"""The pipeline cache file: what is refused, and how it is written."""

import dataclasses
import logging
import multiprocessing
import os
import stat
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from tosavk.backends.vulkan import cachefile
from tosavk.backends.vulkan.cachefile import (
    CacheIdentity,
    CacheRejected,
    cache_folder,
    load,
    pack,
    store,
    unpack,
)

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")

UUID = bytes(range(16))
IDENTITY = CacheIdentity(0x10DE, 0x2335, 77, UUID, "Example\nexadrv 1")
HEADER_BYTES = len(pack(IDENTITY, b""))


def driver_data(
    *, size: int = 32, version: int = 1, vendor: int = 0x10DE, uuid: bytes = UUID
) -> bytes:
    return struct.pack("<IIII16s", size, version, vendor, 0x2335, uuid) + b"code" * 25


DATA = driver_data()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    store(path, IDENTITY, DATA)
    return path


def file_of(folder: Path) -> Path:
    return folder / IDENTITY.file_name


def test_what_was_stored_is_loaded(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(folder, IDENTITY) == DATA
    assert not caplog.records


def test_less_than_a_header_is_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store(tmp_path, IDENTITY, DATA[:20])  # what lavapipe 26 gives
    assert not list(tmp_path.iterdir())
    assert not caplog.records


def test_no_file_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(tmp_path / "nowhere", IDENTITY) == b""
    assert not caplog.records


@pytest.mark.parametrize("length", [0, 1, 31, HEADER_BYTES, HEADER_BYTES + 31])
def test_cut_off_files_are_refused(
    folder: Path, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = file_of(folder)
    path.write_bytes(path.read_bytes()[:length])
    assert load(folder, IDENTITY) == b""
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING
    assert str(path) in caplog.text
    store(folder, IDENTITY, DATA)
    assert load(folder, IDENTITY) == DATA


def test_every_flipped_bit_is_noticed() -> None:
    content = pack(IDENTITY, DATA)
    for at in range(len(content)):
        for bit in (1, 128):
            damaged = bytearray(content)
            damaged[at] ^= bit
            with pytest.raises(CacheRejected):
                unpack(IDENTITY, bytes(damaged))
    assert unpack(IDENTITY, content) == DATA


def test_longer_files_are_refused() -> None:
    with pytest.raises(CacheRejected, match="the header says"):
        unpack(IDENTITY, pack(IDENTITY, DATA) + b"x")


@pytest.mark.parametrize(
    "other",
    [
        {"vendor_id": 1},
        {"device_id": 1},
        {"driver_version": 78},
        {"uuid": bytes(16)},
        {"names": "Example\nexadrv 2"},
    ],
)
def test_files_of_other_devices_or_drivers_are_refused(
    other: dict[str, Any],
) -> None:
    changed = dataclasses.replace(IDENTITY, **other)
    assert changed.file_name != IDENTITY.file_name
    with pytest.raises(CacheRejected, match="another device or driver"):
        unpack(changed, pack(IDENTITY, DATA))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (driver_data(version=2), "version 2"),
        (driver_data(size=31), "claims 31"),
        (driver_data(size=133), "claims 133"),
        (driver_data(vendor=5), "another device"),
        (driver_data(uuid=bytes(16)), "another device"),
    ],
)
def test_the_drivers_own_header_is_checked(data: bytes, reason: str) -> None:
    with pytest.raises(CacheRejected, match=reason):
        unpack(IDENTITY, pack(IDENTITY, data))


def test_huge_files_are_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cachefile, "MAX_BYTES", 100)
    assert load(folder, IDENTITY) == b""
    assert "more than 100 bytes" in caplog.text


@posix
def test_nobody_else_can_write_to_folder_or_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store(tmp_path / "a", IDENTITY, DATA)
    finally:
        os.umask(before)
    for path in (tmp_path / "a", tmp_path / "a" / IDENTITY.file_name):
        assert not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@posix
def test_a_folder_open_to_everybody_is_not_used(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.chmod(0o777)
    assert load(folder, IDENTITY) == b""
    before = file_of(folder).read_bytes()
    store(folder, IDENTITY, driver_data() + b"more")
    assert file_of(folder).read_bytes() == before
    assert caplog.text.count("writable for everybody") == 2


def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    store(tmp_path / "file" / "cache", IDENTITY, DATA)
    assert len(caplog.records) == 1


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", refuse)
    store(folder, IDENTITY, DATA + b"new")
    monkeypatch.undo()
    assert load(folder, IDENTITY) == DATA
    assert [path.name for path in folder.iterdir()] == [IDENTITY.file_name]
    assert "disk full" in caplog.text


def _write_often(folder: str, byte: int) -> None:
    for _ in range(60):
        store(Path(folder), IDENTITY, driver_data() + bytes([byte]) * 50_000)


def test_two_writers_never_leave_a_mixture(folder: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    writers = [
        spawn.Process(target=_write_often, args=(str(folder), n)) for n in (1, 2)
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        found = load(folder, IDENTITY)
        assert len(set(found[len(DATA) :])) <= 1
        assert found[: len(DATA)] == DATA
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert [path.name for path in folder.iterdir()] == [IDENTITY.file_name]


@pytest.mark.parametrize(
    ("environment", "platform", "folder"),
    [
        ({"TOSAVK_CACHE_DIR": "/c", "HOME": "/h"}, "linux", "/c"),
        ({"TOSAVK_CACHE_DIR": "", "HOME": "/h"}, "linux", None),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "linux", "/x/tosavk"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "linux", "/h/.cache/tosavk"),
        ({"HOME": "/h"}, "linux", "/h/.cache/tosavk"),
        ({"HOME": "/h"}, "darwin", "/h/Library/Caches/tosavk"),
        ({"LOCALAPPDATA": "/l"}, "win32", "/l/tosavk/cache"),
        ({}, "linux", None),
        ({}, "win32", None),
    ],
)
def test_where_the_folder_is(
    environment: dict[str, str], platform: str, folder: str | None
) -> None:
    found = cache_folder(environment, platform)
    assert found == (None if folder is None else Path(folder))
