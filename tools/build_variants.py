#!/usr/bin/env python3
"""Makes the specialised modules `shaders/spirv/KERNEL/*.spv` from the general ones.

    build_variants.py             make what does not fit its general module
    build_variants.py --check     compare hashes; needs no tools

Run it after build_shaders.py, in the project's environment. `shaders/variants.json` holds
for each module the SHA-256 of the general module that it was made from, and its own; a
test compares them. Exit codes: 0 good, 1 a module is stale, 2 a tool is missing.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from specialize_spirv import specialize

from tosavk.shaders.catalogue import KERNELS, Kernel
from tosavk.shaders.variants import baked_words, combinations, module_name

SHADERS = Path(__file__).resolve().parents[1] / "shaders"
MANIFEST = SHADERS / "variants.json"

Manifest = dict[str, dict[str, str]]


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal; "" if it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def module(name: str) -> Path:
    """The file of a module."""
    return SHADERS / "spirv" / f"{name}.spv"


def wanted() -> dict[str, tuple[Kernel, dict[int, int]]]:
    """Every specialised module: its kernel, and the constants to fix by id."""
    result: dict[str, tuple[Kernel, dict[int, int]]] = {}
    for kernel in KERNELS:
        places = baked_words(kernel)
        for combination in combinations(kernel):
            spec = [0] * len(kernel.spec)
            for place, word in zip(places, combination, strict=True):
                spec[place] = word
            # Constant 0 is the work-group width.
            values = {place + 1: spec[place] for place in places}
            result[module_name(kernel, spec)] = (kernel, values)
    return result


def read_manifest() -> Manifest:
    """The manifest; empty if there is none yet."""
    if not MANIFEST.exists():
        return {}
    entries: Manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))["modules"]
    return entries


def stale(manifest: Manifest) -> list[str]:
    """The modules that do not fit, and those that nobody wants."""
    result = [
        name
        for name, (kernel, _) in wanted().items()
        if manifest.get(name)
        != {"general": sha256(module(kernel.name)), "module": sha256(module(name))}
    ]
    found = {
        f"{path.parent.name}/{path.stem}"
        for path in (SHADERS / "spirv").glob("*/*.spv")
    }
    return result + sorted((found | set(manifest)) - set(wanted()))


def build(spirv_opt: str, spirv_val: str) -> None:
    """Makes every module that does not fit.

    Raises:
        subprocess.CalledProcessError: a tool refused a module.
    """
    manifest = read_manifest()
    modules = wanted()
    for name in stale(manifest):
        path = module(name)
        if name not in modules:
            path.unlink(missing_ok=True)
            manifest.pop(name, None)
            print(f"{name}: removed")
            continue
        kernel, values = modules[name]
        general = module(kernel.name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(specialize(general.read_bytes(), values, spirv_opt))
        subprocess.run([spirv_val, "--target-env", "vulkan1.3", str(path)], check=True)
        manifest[name] = {"general": sha256(general), "module": sha256(path)}
    document = {"version": 1, "modules": dict(sorted(manifest.items()))}
    MANIFEST.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; see the module's text."""
    parser = argparse.ArgumentParser(description="Makes the specialised SPIR-V.")
    parser.add_argument("--check", action="store_true", help="only compare hashes")
    options = parser.parse_args(arguments)
    if options.check:
        names = stale(read_manifest())
        for name in names:
            print(f"{name}: stale; run tools/build_variants.py", file=sys.stderr)
        return 1 if names else 0
    tools = [shutil.which(name) for name in ("spirv-opt", "spirv-val")]
    if tools[0] is None or tools[1] is None:
        print("spirv-opt or spirv-val not found: install spirv-tools", file=sys.stderr)
        return 2
    build(tools[0], tools[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
