#!/usr/bin/env python3
"""Runs a command so that the Vulkan loader sees what Chromium brings as well.

    driver_env.py                 prints the settings, for `eval "$(...)"`
    driver_env.py COMMAND ...     runs the command with them

The manifest that `bootstrap.py` wrote is added by VK_ADD_DRIVER_FILES, so the drivers
of the system stay as they are. When VK_DRIVER_FILES (or its old name VK_ICD_FILENAMES)
is set, somebody chose drivers already; the loader then ignores additions, and so
nothing is changed here.

Likewise VK_ADD_LAYER_PATH adds the manifest of Chromium's validation layer where that is
newer than the system's, unless VK_LAYER_PATH is set. `tosavk doctor` says which layer
is found.
"""

import os
import shlex
import sys

import validation_layer
from bootstrap import SWIFTSHADER_MANIFEST, layer_folders

CHOICES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
ADDITION = "VK_ADD_DRIVER_FILES"


def settings(environment: dict[str, str]) -> dict[str, str]:
    """Returns the variables to set, given those that are set."""
    layers = validation_layer.additions(environment, layer_folders())
    return quiet(environment) | drivers(environment) | layers


def quiet(environment: dict[str, str]) -> dict[str, str]:
    """Turns off Mesa's device selection layer where there is no desktop.

    Loaded with every instance, it looks for a Wayland display and complains on standard
    error when there is none. tosavk chooses devices itself.
    """
    if environment.get("XDG_RUNTIME_DIR") or "NODEVICE_SELECT" in environment:
        return {}
    return {"NODEVICE_SELECT": "1"}


def drivers(environment: dict[str, str]) -> dict[str, str]:
    """Adds SwiftShader's manifest to the drivers of the system."""
    if any(environment.get(name) for name in CHOICES):
        return {}
    if not SWIFTSHADER_MANIFEST.exists():
        return {}
    manifests = environment.get(ADDITION, "").split(os.pathsep)
    own = str(SWIFTSHADER_MANIFEST)
    return {ADDITION: os.pathsep.join([m for m in manifests if m and m != own] + [own])}


def is_active() -> bool:
    """Whether this process has the settings already, or needs none."""
    return all(os.environ.get(k) == v for k, v in settings(dict(os.environ)).items())


def main() -> int:
    """Prints the settings, or becomes the command."""
    wanted = settings(dict(os.environ))
    if len(sys.argv) == 1:
        for name, value in wanted.items():
            print(f"export {name}={shlex.quote(value)}")
        return 0
    os.environ.update(wanted)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        print(f"{sys.argv[1]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main())
