"""The C interface: types from the cache, and what is refused."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tosavk.backends.cachefolder import CacheRejected
from tosavk.backends.wgpu import interface
from tosavk.backends.wgpu.interface import (
    FUNCTIONS,
    check_library,
    find_resources,
    library_path,
    load_types,
    pack,
    parse,
    types_key,
    unpack,
)

HEADER = b"""
#define WGPU_WHOLE_SIZE 0xffffffffffffffff
typedef enum Kind { Kind_A = 1, Kind_B = -2 } Kind;
typedef struct View { char const * data; size_t length; } View;
typedef void (*Done)(Kind kind, View view, void * number);
typedef struct Info { Done callback; struct { int32_t x; Kind kinds[3]; } inner; } Info;
uint32_t answer(Info const * info, View view);
"""


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    return parse(HEADER)


def never(header: bytes) -> dict[str, Any]:
    raise AssertionError("the header was parsed")


def check_types(ffi: Any) -> None:  # noqa: ANN401 - a cffi FFI
    info = ffi.new("Info *")
    info.inner.kinds[1] = -2
    assert info.inner.kinds[1] == -2
    heard: list[tuple[int, bytes]] = []

    def hear(kind: int, view: Any, number: Any) -> None:  # noqa: ANN401
        heard.append((kind, ffi.buffer(view.data, view.length)[:]))

    callback = ffi.callback("Done", hear)
    info.callback = callback
    text = ffi.new("char[]", b"abc")
    info.callback(1, {"data": text, "length": 2}, ffi.NULL)
    assert heard == [(1, b"ab")]
    assert ffi.integer_const("WGPU_WHOLE_SIZE") == 2**64 - 1


def test_types_are_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check_types(load_types(HEADER, tmp_path / "cache"))
    monkeypatch.setattr(interface, "parse", never)
    check_types(load_types(HEADER, tmp_path / "cache"))
    assert not caplog.records


def test_without_a_folder_nothing_is_kept(table: dict[str, Any]) -> None:
    check_types(load_types(HEADER, None))
    key = types_key(HEADER)
    assert unpack(key, pack(key, table)) == table


def test_another_header_or_cffi_has_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_types(HEADER, tmp_path)
    load_types(HEADER + b"typedef int32_t More;", tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    before = types_key(HEADER)
    monkeypatch.setattr("_cffi_backend.__version__", "99.0")
    assert types_key(HEADER) != before


def test_every_flipped_bit_is_noticed(table: dict[str, Any]) -> None:
    key = types_key(HEADER)
    content = pack(key, table)
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(CacheRejected):
            unpack(key, bytes(damaged))


@pytest.mark.parametrize("length", [0, 8, 71, 72, 500])
def test_a_damaged_file_is_replaced(
    tmp_path: Path, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    load_types(HEADER, tmp_path)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    path.write_bytes(good[:length])
    check_types(load_types(HEADER, tmp_path))
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]
    assert path.read_bytes() == good


def test_unknown_entries_are_refused(table: dict[str, Any]) -> None:
    key = types_key(HEADER)
    with pytest.raises(CacheRejected, match="_includes"):
        unpack(key, pack(key, {**table, "_includes": ()}))


def test_a_huge_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load_types(HEADER, tmp_path)
    monkeypatch.setattr(interface, "_MAX_BYTES", 100)
    check_types(load_types(HEADER, tmp_path))
    assert "more than 100 bytes" in caplog.text


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_a_folder_open_to_everybody_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_types(HEADER, tmp_path)
    (path,) = tmp_path.iterdir()
    before = path.stat().st_mtime_ns
    tmp_path.chmod(0o777)
    check_types(load_types(HEADER, tmp_path))
    assert caplog.text.count("writable for everybody") == 2
    assert path.stat().st_mtime_ns == before


def test_a_file_is_data_and_no_code(tmp_path: Path) -> None:
    load_types(HEADER, tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    assert isinstance(json.loads(content[72:]), dict)


def test_the_library_of_each_platform(tmp_path: Path) -> None:
    names = {
        "linux": "libwgpu_native-release.so",
        "darwin": "libwgpu_native-release.dylib",
        "win32": "wgpu_native-release.dll",
    }
    for platform, name in names.items():
        with pytest.raises(ImportError, match=platform):
            library_path(tmp_path, {}, platform)
        (tmp_path / name).touch()
        assert library_path(tmp_path, {}, platform) == tmp_path / name
    chosen = {"WGPU_LIB_PATH": " /opt/libwgpu.so "}
    assert library_path(tmp_path, chosen, "linux") == Path("/opt/libwgpu.so")


@pytest.mark.parametrize("header", [b"struct {", b"int a(unknown b);", b"\xff"])
def test_a_header_that_is_not_understood_is_an_import_error(header: bytes) -> None:
    with pytest.raises(ImportError, match="the C header"):
        parse(header)


def test_a_missing_package_is_named() -> None:
    with pytest.raises(ImportError, match="no_such_package"):
        find_resources("no_such_package")


def library(version: int, *, without: str = "") -> Any:  # noqa: ANN401
    calls = {name: None for name in FUNCTIONS if name != without}
    return SimpleNamespace(**{**calls, "wgpuGetVersion": lambda: version})


def test_another_version_of_the_library_is_refused() -> None:
    check_library(library(0x1D000101), Path("lib"))
    with pytest.raises(ImportError, match=r"lib is version 30\.0\.0\.2, 29\.x"):
        check_library(library(0x1E000002), Path("lib"))
    with pytest.raises(ImportError, match="lib has no wgpuQueueSubmit"):
        check_library(library(0x1D000101, without="wgpuQueueSubmit"), Path("lib"))


def test_every_function_that_is_called_is_looked_for() -> None:
    folder = Path(interface.__file__).parent
    text = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    assert set(re.findall(r"\blib\.(wgpu\w+)", text)) == set(FUNCTIONS)


def test_opening_imports_no_module_of_wgpu_and_no_parser(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from tosavk.backends.wgpu import _ffi\n"
        "assert _ffi.lib.wgpuGetVersion() >> 24 == 29\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules} "
        "& {'wgpu', 'cffi', 'pycparser'}))\n"
    )
    environment = {**os.environ, "TOSAVK_CACHE_DIR": str(tmp_path / "cache")}
    loaded = [
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        ).stdout.split()
        for _ in range(2)
    ]
    assert loaded == [["cffi", "pycparser"], []]
