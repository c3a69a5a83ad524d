"""What a program pays for before its first result: nothing that it does not need."""

import logging
import subprocess
import sys

import pytest

from tosavk.core import logs

HEAVY = (
    *("cffi", "pycparser", "vulkan", "wgpu", "rich", "importlib.metadata"),
    *("importlib.resources", "logging", "ml_dtypes", "tempfile", "concurrent"),
    *("tosavk.lowering.nvfp4", "tosavk.backends.reference", "tosavk.cli"),
)
IMPORTS = """
import numpy
import sys
before = set(sys.modules)
from tosavk.backends.registry import open_accelerator
from tosavk.backends.session import Session
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph
print(*sorted(set(sys.modules) - before))
"""


def test_no_heavy_module_is_imported_before_it_is_needed() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "tosavk.lowering.lower" in loaded
    found = [name for name in loaded if name.startswith(HEAVY)]
    assert found == []


def test_records_for_debugging_need_a_listener(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "tosavk.test")
    logs.debug("tosavk.test", "%d of %d", 1, 2)
    logs.warning("tosavk.test", "look: %s", "here")
    assert [(r.levelname, r.getMessage(), r.funcName) for r in caplog.records] == [
        ("DEBUG", "1 of 2", "test_records_for_debugging_need_a_listener"),
        ("WARNING", "look: here", "test_records_for_debugging_need_a_listener"),
    ]
    monkeypatch.delitem(sys.modules, "logging")
    logs.debug("tosavk.test", "nobody asked")
    assert "logging" not in sys.modules
