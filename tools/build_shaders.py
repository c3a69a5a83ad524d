#!/usr/bin/env python3
"""Compiles `shaders/glsl/*.comp` into `shaders/spirv/*.spv` and writes the manifest.

    build_shaders.py                  compile what is newer than its module
    build_shaders.py move reduce      the same for these kernels only
    build_shaders.py --force          compile everything again
    build_shaders.py --check          compare hashes; needs no compiler

The modules are checked in, so that users need no compiler. `shaders/manifest.json` holds
for each module the SHA-256 of its source, of every file that the source includes, and
of the module itself, and the compiler's version; a test compares them.

SPIR-V 1.5 (`--target-env vulkan1.2`) is made on purpose: from 1.6 on glslang writes the
work-group width as LocalSizeId, which a device accepts only with `maintenance4` enabled.
Sources with GL_NV_cooperative_matrix2 need 1.6; the backend enables it with that.

Only the standard library is used. Exit codes: 0 good, 1 a module is stale or a source
does not compile, 2 a tool is missing or a kernel is unknown.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SHADERS = Path(__file__).resolve().parents[1] / "shaders"
TARGET_ENV = "vulkan1.2"
VALIDATION_ENV = "vulkan1.3"
NEWER_ENV, NEEDS_NEWER = "vulkan1.3", b"GL_NV_cooperative_matrix2"
MANIFEST_VERSION = 1
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)

Entry = dict[str, object]


class BuildError(Exception):
    """A tool is missing, or a source cannot be read; the message says which."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The compiler, its version line, and the validator."""

    glslang: str
    version: str
    spirv_val: str


def sha256(data: bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def text_hash(path: Path) -> str:
    """The hash of a source, the same for both kinds of line ends."""
    return sha256(path.read_bytes().replace(b"\r\n", b"\n"))


def includes(source: Path) -> list[Path]:
    """Every file that a source includes, directly or not, sorted by name.

    Raises:
        BuildError: an included file does not exist.
    """
    found: dict[str, Path] = {}
    waiting = [source]
    while waiting:
        current = waiting.pop()
        for name in _INCLUDE.findall(current.read_text(encoding="utf-8")):
            path = source.parent / name
            if not path.is_file():
                raise BuildError(f"{current.name} includes {name!r}: no such file")
            if name not in found:
                found[name] = path
                waiting.append(path)
    return [found[name] for name in sorted(found)]


def source_hashes(source: Path) -> Entry:
    """The part of a manifest entry that depends on the sources only."""
    return {
        "source": text_hash(source),
        "includes": {path.name: text_hash(path) for path in includes(source)},
    }


def read_manifest(shaders: Path) -> dict[str, Entry]:
    """The manifest's entries by kernel name; empty when there is no manifest yet."""
    path = shaders / "manifest.json"
    if not path.exists():
        return {}
    modules: dict[str, Entry] = json.loads(path.read_text(encoding="utf-8"))["modules"]
    return modules


def write_manifest(shaders: Path, modules: dict[str, Entry]) -> None:
    """Writes the manifest in one step, sorted, so that equal content is equal bytes."""
    document = {
        "version": MANIFEST_VERSION,
        "target_env": TARGET_ENV,
        "modules": {name: modules[name] for name in sorted(modules)},
    }
    text = json.dumps(document, indent=2) + "\n"
    write_atomically(shaders / "manifest.json", text.encode())


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file so that nobody ever reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
    Path(temporary).chmod(0o644)
    Path(temporary).replace(path)


def find_tools(glslang: str | None, spirv_val: str | None) -> Tools:
    """Finds the compiler and the validator.

    Raises:
        BuildError: one of them is neither given nor on the PATH.
    """
    compiler = glslang or shutil.which("glslangValidator") or shutil.which("glslang")
    if compiler is None or shutil.which(compiler) is None:
        raise BuildError(
            f"glslangValidator not found ({compiler or 'not on the PATH'}): install "
            "glslang-tools, or name the program with --glslang"
        )
    beside = shutil.which("spirv-val", path=str(Path(compiler).resolve().parent))
    validator = spirv_val or beside or shutil.which("spirv-val")
    if validator is None or shutil.which(validator) is None:
        raise BuildError(
            f"spirv-val not found ({validator or 'not on the PATH'}): install "
            "spirv-tools, or name the program with --spirv-val"
        )
    answer = subprocess.run(
        [compiler, "--version"], check=True, capture_output=True, text=True
    )
    version = answer.stdout.splitlines()[0].partition(":")[2].strip()
    return Tools(compiler, f"glslang {version}", validator)


def compile_source(source: Path, tools: Tools) -> bytes:
    """Compiles one source and validates the module.

    Raises:
        BuildError: the compiler or the validator refuses it.
    """
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder) / "module.spv"
        # The source goes by its bare name: nothing of this machine enters the module.
        newer = NEEDS_NEWER in source.read_bytes()
        target = NEWER_ENV if newer else TARGET_ENV
        command = [tools.glslang, "--quiet", "--target-env", target, "-I."]
        command += ["-o", str(module), source.name]
        compiled = subprocess.run(
            command,
            cwd=source.parent,
            check=False,
            capture_output=True,
            text=True,
        )
        if compiled.returncode != 0 or not module.exists():
            raise BuildError((compiled.stdout + compiled.stderr).strip())
        valid = subprocess.run(
            [tools.spirv_val, "--target-env", VALIDATION_ENV, str(module)],
            check=False,
            capture_output=True,
            text=True,
        )
        if valid.returncode != 0:
            raise BuildError(f"spirv-val: {(valid.stdout + valid.stderr).strip()}")
        return module.read_bytes()


def stale(shaders: Path, name: str, entry: Entry | None) -> str | None:
    """Why a module does not fit its source, or None."""
    module = shaders / "spirv" / f"{name}.spv"
    if entry is None:
        return "it is not in the manifest"
    if not module.exists():
        return f"spirv/{name}.spv is missing"
    if sha256(module.read_bytes()) != entry.get("module"):
        return f"spirv/{name}.spv is not the module in the manifest"
    now = source_hashes(shaders / "glsl" / f"{name}.comp")
    for key, value in now.items():
        if entry.get(key) != value:
            return f"its {key} changed since the module was built"
    return None


def sources(shaders: Path) -> dict[str, Path]:
    """Every kernel source by name."""
    return {path.stem: path for path in sorted((shaders / "glsl").glob("*.comp"))}


def check(shaders: Path) -> list[str]:
    """Everything that is wrong with the checked-in modules, one line each."""
    manifest = read_manifest(shaders)
    known = sources(shaders)
    problems: list[str] = []
    for name in known:
        try:
            reason = stale(shaders, name, manifest.get(name))
        except BuildError as error:
            reason = str(error)
        if reason is not None:
            problems.append(f"{name}: {reason}; run tools/build_shaders.py")
    modules = {path.stem for path in (shaders / "spirv").glob("*.spv")}
    for name in sorted((modules | set(manifest)) - set(known)):
        problems.append(f"{name}: there is no glsl/{name}.comp for it")
    return problems


@dataclass(frozen=True, slots=True)
class Request:
    """Which kernels to build, and whether those that fit are built again."""

    names: tuple[str, ...]
    force: bool


def build(shaders: Path, tools: Tools, request: Request) -> int:
    """Builds what is asked for; one bad source does not stop the others.

    Returns:
        How many sources failed.
    """
    known = sources(shaders)
    failures = 0
    for name in request.names or tuple(known):
        if name not in known:
            raise BuildError(f"no kernel {name!r}; there are: {', '.join(known)}")
        try:
            if not request.force and (
                stale(shaders, name, read_manifest(shaders).get(name)) is None
            ):
                continue
            hashes = source_hashes(known[name])
            module = compile_source(known[name], tools)
        except BuildError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failures += 1
            continue
        write_atomically(shaders / "spirv" / f"{name}.spv", module)
        # Read again: another build may have written its own kernels meanwhile.
        manifest = read_manifest(shaders)
        manifest[name] = hashes | {
            "module": sha256(module),
            "compiler": tools.version,
        }
        write_manifest(shaders, manifest)
        print(f"{name}: {len(module)} bytes")
    if not request.names:
        remove_orphans(shaders, set(known))
    return failures


def remove_orphans(shaders: Path, known: set[str]) -> None:
    """Removes modules and manifest entries whose source is gone."""
    for path in sorted((shaders / "spirv").glob("*.spv")):
        if path.stem not in known:
            path.unlink()
            print(f"{path.stem}: removed, its source is gone")
    manifest = read_manifest(shaders)
    kept = {name: entry for name, entry in manifest.items() if name in known}
    if kept != manifest:
        write_manifest(shaders, kept)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; see the module's text."""
    parser = argparse.ArgumentParser(description="Builds the checked-in SPIR-V.")
    parser.add_argument("kernels", nargs="*", help="kernel names; all when none")
    parser.add_argument("--check", action="store_true", help="only compare hashes")
    parser.add_argument("--force", action="store_true", help="build all again")
    parser.add_argument("--glslang", help="path of glslangValidator")
    parser.add_argument("--spirv-val", help="path of spirv-val")
    options = parser.parse_args(arguments)
    if options.check:
        problems = check(SHADERS)
        for problem in problems:
            print(problem, file=sys.stderr)
        return 1 if problems else 0
    try:
        tools = find_tools(options.glslang, options.spirv_val)
        request = Request(tuple(options.kernels), options.force)
        return 1 if build(SHADERS, tools, request) else 0
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
