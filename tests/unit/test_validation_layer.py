"""Which validation layer the tests get: the tool that finds and registers Chromium's."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "validation_layer.py"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, which writes into a folder of the test."""
    spec = importlib.util.spec_from_file_location("validation_layer", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LAYERS", tmp_path / "own")
    monkeypatch.setattr(module, "MANIFEST", tmp_path / "own" / module.MANIFEST.name)
    return module


def register(tool: ModuleType, folder: Path, version: str) -> Path:
    """Puts a manifest into a folder, and returns the folder."""
    folder.mkdir(exist_ok=True)
    text = json.dumps({"layer": {"name": tool.NAME, "api_version": version}})
    (folder / tool.MANIFEST.name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("own", "system", "shown"),
    [
        ("1.4.364", "1.3.239", True),
        ("1.4.364", "1.4.1000", False),
        ("1.4.364", "1.4.364", False),
        ("1.10.0", "1.9.9", True),
        ("1.4.364", None, True),
        ("1.4.364", "nonsense", True),
        (None, "1.3.239", False),
        (None, None, False),
    ],
)
def test_the_newest_layer_is_shown(
    tool: ModuleType,
    tmp_path: Path,
    own: str | None,
    system: str | None,
    *,
    shown: bool,
) -> None:
    if own:
        register(tool, tool.LAYERS, own)
    folder = tmp_path / "system"
    if system:
        register(tool, folder, system)
    folders = [tmp_path / "none", folder]
    wanted = {"VK_ADD_LAYER_PATH": str(tool.LAYERS)} if shown else {}
    assert tool.additions({}, folders) == wanted
    assert tool.additions({"VK_LAYER_PATH": "/mine"}, folders) == {}
    assert tool.additions(dict(wanted), folders) == wanted


def test_other_layers_stay_behind_it(tool: ModuleType) -> None:
    register(tool, tool.LAYERS, "1.4.364")
    found = tool.additions(
        {"VK_ADD_LAYER_PATH": os.pathsep.join(("/a", str(tool.LAYERS), "/b"))}, []
    )
    assert found["VK_ADD_LAYER_PATH"].split(os.pathsep) == [
        str(tool.LAYERS),
        "/a",
        "/b",
    ]


def test_a_layer_is_asked_once(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / tool.LIBRARY
    library.write_bytes(b"1")
    layer = tool.Layer((1, 4, 364), 1, (("VK_EXT_layer_settings", 2),))

    def ask(path: Path) -> object:
        assert path == library
        return layer

    monkeypatch.setattr(tool, "ask", ask)
    assert tool.write_manifest(library) == layer
    document = json.loads(tool.MANIFEST.read_text(encoding="utf-8"))["layer"]
    assert document["library_path"] == str(library)
    assert tool.version_in(tool.MANIFEST) == (1, 4, 364)
    assert document["instance_extensions"] == [
        {"name": "VK_EXT_layer_settings", "spec_version": "2"}
    ]
    assert tool.write_manifest(library) is None
    library.write_bytes(b"another")  # as after an update of the package
    assert tool.write_manifest(library) == layer
    assert tool.write_manifest(None) is None
    assert not tool.MANIFEST.exists()


def test_a_library_that_is_no_layer_is_not_registered(
    tool: ModuleType, tmp_path: Path
) -> None:
    library = tmp_path / tool.LIBRARY
    library.write_bytes(b"\x7fELF, but no more than that")
    assert tool.ask(library) is None
    assert tool.write_manifest(library) is None
    assert not tool.MANIFEST.exists()
    assert tool.additions({}, []) == {}


def test_chromiums_layer_tells_its_version(tool: ModuleType) -> None:
    library = Path("/usr/lib/chromium") / tool.LIBRARY
    if not library.exists():
        pytest.skip(f"there is no {library}")
    layer = tool.ask(library)
    assert layer is not None
    assert layer.version >= (1, 4)
    assert {"VK_EXT_debug_utils", "VK_EXT_layer_settings"} <= dict(
        layer.extensions
    ).keys()
