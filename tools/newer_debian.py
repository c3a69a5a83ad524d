#!/usr/bin/env python3
"""Unpacks newer drivers or shader tools than the system has, beside the system.

    newer_debian.py lavapipe            into build/newer/lavapipe/
    newer_debian.py lavapipe-13         into build/newer/lavapipe-13/
    newer_debian.py shader-tools        into build/newer/shader-tools/

The packages are those of Debian unstable, or of Debian 13 where the name says so. They
are downloaded by apt with a configuration of its own and unpacked into one folder:
nothing is installed, and no root is needed. `bin/` of that folder gets wrappers that
start each program with the C library it was built for, so they run on Debian 12 and 13.

lavapipe: a current Mesa, whose CPU driver has VK_KHR_cooperative_matrix (8x8x8) and
VK_NV_cooperative_matrix2; the stable releases' has neither. A library for another C
library cannot be loaded into our Python, so `bin/python3` is one that came with it,
with NumPy, cffi, flatbuffers, rich, Jinja2 and pytest. Other pure Python packages are
found by PYTHONPATH.

shader-tools: glslang 15 or newer (glslangValidator), spirv-val, spirv-opt, spirv-dis,
spirv-as and spirv-cross, to build the checked-in SPIR-V where the system's glslang is
older. Elsewhere than on Debian and Ubuntu, the Vulkan SDK has them.

Only the standard library is used, besides apt-get and dpkg.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True)
class Bundle:
    """What is unpacked together."""

    packages: tuple[str, ...]
    programs: tuple[str, ...] = ()
    suite: str = "unstable"


_LAVAPIPE = (
    "libvulkan1",
    "mesa-vulkan-drivers",
    "vulkan-validationlayers",
    "python3",
    "python3-cffi",
    "python3-flatbuffers",
    "python3-jinja2",
    "python3-numpy",
    "python3-pytest",
    "python3-rich",
)

BUNDLES = {
    "lavapipe": Bundle(packages=_LAVAPIPE),
    "lavapipe-13": Bundle(packages=_LAVAPIPE, suite="trixie"),
    "shader-tools": Bundle(
        packages=("glslang-tools", "spirv-cross", "spirv-tools"),
        programs=(
            "glslang",
            "glslangValidator",
            "spirv-as",
            "spirv-cross",
            "spirv-dis",
            "spirv-opt",
            "spirv-val",
        ),
    ),
}


class UnpackError(Exception):
    """The packages could not be had."""


def say(text: str) -> None:
    """Prints one line of progress."""
    print(f"[newer] {text}", flush=True)


def output_of(*command: str) -> str:
    """Runs a command and returns what it prints."""
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UnpackError(f"{command[0]} is not there: this needs Debian") from error
    except subprocess.CalledProcessError as error:
        raise UnpackError(
            f"'{shlex.join(command)}' failed:\n{error.stderr.strip()}"
        ) from error
    return done.stdout


def archive_site() -> str:
    """Returns the Debian archive that this system takes its own packages from."""
    listing = output_of("apt-get", "indextargets", "--format", "$(SITE)")
    for site in listing.split():
        if site.rstrip("/").endswith("/debian"):
            return site
    raise UnpackError("apt knows no Debian archive: is this a Debian system?")


def unpack(packages: tuple[str, ...], folder: Path, *, suite: str) -> Path:
    """Downloads packages of a suite with all they depend on, and unpacks them.

    Returns:
        The folder that is their root.
    """
    apt, root = folder / "apt", folder / "root"
    for part in (apt / "lists" / "partial", apt / "archives" / "partial", root):
        part.mkdir(parents=True, exist_ok=True)
    sources, status = apt / "sources.list", apt / "status"
    site = archive_site()
    sources.write_text(f"deb [signed-by={KEYRING}] {site} {suite} main\n")
    status.write_text("")  # nothing counts as installed, so all is downloaded
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::Lists": apt / "lists",
        "Dir::State::status": status,
        "Dir::Cache::archives": apt / "archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "Debug::NoLocking": "true",
    }
    if os.geteuid() == 0:
        # apt's own user may not write into a folder of ours.
        settings["APT::Sandbox::User"] = "root"
    command = ["apt-get", "--quiet=2", "--yes", "--no-install-recommends"]
    for name, value in settings.items():
        command += ["-o", f"{name}={value}"]
    say(f"reading the package lists of Debian {suite}")
    output_of(*command, "update")
    say(f"downloading {', '.join(packages)} and what they need")
    output_of(*command, "--download-only", "install", *packages)
    archives = sorted((apt / "archives").glob("*.deb"))
    say(f"unpacking {len(archives)} packages")
    for archive in archives:
        output_of("dpkg-deb", "--extract", str(archive), str(root))
    shutil.rmtree(apt)
    return root


def loader_and_libraries(root: Path) -> tuple[Path, str]:
    """Returns the dynamic loader of an unpacked root, and its library path."""
    loaders = sorted(p for p in root.rglob("ld-linux*.so.*") if p.is_file())
    if not loaders:
        raise UnpackError(f"{root} holds no dynamic loader")
    folders: list[Path] = []
    for base in sorted((root / "usr" / "lib").glob("*-linux-gnu*")):
        folders += [base, base / "blas", base / "lapack"]
    folders += sorted((root / "usr" / "lib").glob("llvm-*/lib"))
    return loaders[0], ":".join(str(f) for f in folders if f.is_dir())


def write_wrapper(path: Path, lines: list[str]) -> None:
    """Writes an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    path.chmod(0o755)


def wrap_programs(root: Path, folder: Path, programs: tuple[str, ...]) -> None:
    """Makes unpacked programs callable."""
    loader, libraries = loader_and_libraries(root)
    start = shlex.join([str(loader), "--library-path", libraries])
    for name in programs:
        program = root / "usr" / "bin" / name
        if program.exists():
            line = f'exec {start} {shlex.quote(str(program))} "$@"'
            write_wrapper(folder / "bin" / name, [line])


def wrap_python(root: Path, folder: Path) -> None:
    """Makes the unpacked Python callable, with the unpacked lavapipe as its driver."""
    loader, libraries = loader_and_libraries(root)
    (driver,) = root.rglob("libvulkan_lvp.so")
    manifest = folder / "lvp_icd.json"
    entry = {"library_path": str(driver), "api_version": "1.4.0"}
    document = {"file_format_version": "1.0.1", "ICD": entry}
    manifest.write_text(json.dumps(document, indent=2), encoding="utf-8")
    # The layer's manifest names its library without a folder; the loader's library path
    # finds it, which programs of the system that are started from here do not inherit.
    layers = root / "usr" / "share" / "vulkan" / "explicit_layer.d"
    programs = (root / "usr" / "bin").glob("python3.*")
    python = next(p for p in sorted(programs) if p.is_file() and p.name[8:].isdigit())
    modules = root / "usr" / "lib" / "python3" / "dist-packages"
    variables = {
        "VK_DRIVER_FILES": str(manifest),
        "VK_LAYER_PATH": str(layers),
        "PYTHONHOME": str(root / "usr"),
    }
    lines = [f"export {name}={shlex.quote(v)}" for name, v in variables.items()]
    lines.append(f'export PYTHONPATH="{modules}:${{PYTHONPATH-}}"')
    wrapper = folder / "bin" / "python3"
    # Python takes its own name for what starts a further one: that is the wrapper.
    start = shlex.join(
        [
            *(str(loader), "--library-path", libraries),
            *("--argv0", str(wrapper), str(python)),
        ]
    )
    write_wrapper(wrapper, [*lines, f'exec {start} "$@"'])


def main() -> int:
    """Unpacks the bundle that the command line names."""
    parser = argparse.ArgumentParser(
        description="Unpacks newer drivers or shader tools, beside the system."
    )
    parser.add_argument("bundle", choices=sorted(BUNDLES))
    parser.add_argument("--dir", type=Path, help="where to; it is replaced")
    options = parser.parse_args()
    bundle = BUNDLES[options.bundle]
    folder: Path = options.dir or ROOT / "build" / "newer" / options.bundle
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()) and not (folder / "root").is_dir():
        print(f"[newer] error: {folder} is something else", file=sys.stderr)
        return 1
    try:
        shutil.rmtree(folder, ignore_errors=True)
        root = unpack(bundle.packages, folder, suite=bundle.suite)
        wrap_programs(root, folder, bundle.programs)
        if bundle.packages is _LAVAPIPE:
            wrap_python(root, folder)
        for program in sorted((folder / "bin").iterdir()):
            say(f"ready: {program}")
    except UnpackError as error:
        print(f"[newer] error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
