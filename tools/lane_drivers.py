"""How a process of a lane is started: which Python, which driver."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from bootstrap import SWIFTSHADER_MANIFEST, find_swiftshader
from driver_env import settings
from lane_table import Home, Lane
from newer_python import MissingError, prepare

ROOT = Path(__file__).resolve().parents[1]
DRIVERS = ROOT / "build" / "drivers"
CHOICES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")


@dataclass(frozen=True)
class Start:
    """How to run Python with a lane's driver and no other.

    Attributes:
        python: the interpreter.
        environment: all variables.
    """

    python: str
    environment: dict[str, str]


def start(lane: Lane) -> Start:
    """Brings a lane's driver and says how to use it.

    Raises:
        MissingError: it cannot be had here.
    """
    environment = {k: v for k, v in os.environ.items() if k not in CHOICES}
    environment |= {"NODEVICE_SELECT": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if lane.home in (Home.DEBIAN_13, Home.UNSTABLE):
        beside = prepare(lane.home.value)
        environment["PYTHONPATH"] = beside.library_path
        # Another Python cannot be started from here: it would look for its modules in
        # this one's.
        environment.pop("TOSAVK_TOSA_TOOLS", None)
        python = str(beside.python)
        if lane.family:
            (library,) = beside.root.rglob("libvulkan_radeon.so")
            manifest = write_manifest("radv", lane.home.value, library=library)
            environment |= {
                "TOSAVK_LANE_DRIVER": str(manifest),
                "RADV_FORCE_FAMILY": lane.family,
                "MESA_SHADER_CACHE_DISABLE": "true",
            }
        return Start(python, environment)
    environment["VK_DRIVER_FILES"] = str(manifest_of(lane.home))
    environment["PYTHONPATH"] = str(ROOT / "typings")
    environment |= settings(environment)  # the newest validation layer there is
    return Start(sys.executable, environment)


def manifest_of(home: Home) -> Path:
    """The driver's manifest on this system.

    Raises:
        MissingError: the driver is not installed.
    """
    if home is Home.SYSTEM:
        for folder in ("/usr/share", "/usr/local/share", "/etc"):
            for path in Path(folder, "vulkan", "icd.d").glob("lvp_icd*.json"):
                return path
        raise MissingError("Mesa's lavapipe is not installed: make setup")
    swiftshader = find_swiftshader()
    if swiftshader is None:
        raise MissingError("chromium with SwiftShader is not installed: make setup")
    if home is Home.SWIFTSHADER:
        if SWIFTSHADER_MANIFEST.exists():
            return SWIFTSHADER_MANIFEST
        return write_manifest("swiftshader", "lane", library=swiftshader)
    mock = swiftshader.with_name("libVkICD_mock_icd.so")
    if not mock.is_file():
        raise MissingError(f"{swiftshader.parent} holds no mock ICD")
    return write_manifest("mock", "icd", library=mock)


def write_manifest(name: str, source: str, *, library: Path) -> Path:
    """Writes the manifest that makes a library a Vulkan driver."""
    DRIVERS.mkdir(parents=True, exist_ok=True)
    path = DRIVERS / f"{name}_{source}.json"
    driver = {"library_path": str(library), "api_version": "1.3.0"}
    document = {"file_format_version": "1.0.0", "ICD": driver}
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path


def package_version(package: str) -> str:
    """The version of an installed Debian package; "" if it cannot be told."""
    import subprocess

    if shutil.which("dpkg-query") is None:
        return ""
    command = ["dpkg-query", "--show", "--showformat=${Version}", package]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
