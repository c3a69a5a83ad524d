#!/usr/bin/env python3
"""Translates every SPIR-V module to Metal's language as MoltenVK would, without a Mac.

    moltenvk.py                     every module, every configuration (minutes)
    moltenvk.py binary conv2d       modules of some kernels
    moltenvk.py --quick             one configuration for each version of the language

MoltenVK hands SPIR-V to SPIRV-Cross and the result to Metal. The first half is done here
with the same options (`configurations`; docs/moltenvk.md lists where each comes from).
A module that is refused is a failure, unless the backend would not take its kernel on a
device with MoltenVK's abilities: then the reason is said. What comes out is checked:
every `precise` operation must have become one that Metal's compiler leaves alone, every
specialization constant must be there, and no buffer may be beyond Metal's 31.

Exit codes: 0 good, 1 something failed, 77 SPIRV-Cross cannot be had here.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tosavk.shaders.catalogue import KERNELS, Kernel
from tosavk.shaders.variants import baked_words, combinations, module_name

ROOT = Path(__file__).resolve().parents[1]
MODULES = ROOT / "shaders" / "spirv"
BUNDLE = ROOT / "build" / "newer" / "shader-tools"
SKIPPED = 77
MAX_BUFFERS = 31

MACOS_VERSIONS = ((2, 1), (2, 2), (2, 3), (2, 4), (3, 0), (3, 1), (3, 2))
"""MSL of macOS 10.14, 10.15, 11, 12, 13, 14 and 15."""

IOS_VERSIONS = MACOS_VERSIONS
"""MSL of iOS 12, 13, 14, 15, 16, 17 and 18."""

MATRICES = "no Metal device offers VK_KHR_cooperative_matrix through MoltenVK"
NO_SHUFFLE = "subgroups of one invocation: the scalar kernel is taken"

_OP_DECORATE = 71
_OP_FADD, _OP_FSUB, _OP_FMUL = 129, 131, 133
_NO_CONTRACTION = 42
_SPEC_ID = 1
_HEADER_WORDS = 5


@dataclass(frozen=True)
class Configuration:
    """How MoltenVK calls SPIRV-Cross on some device.

    Attributes:
        name: for messages.
        options: of the command line.
        shuffles: whether subgroups of the device shuffle.
    """

    name: str
    options: tuple[str, ...]
    shuffles: bool = True


def configurations(*, quick: bool = False) -> list[Configuration]:
    """The configurations of MVKComputePipeline::getMTLFunction (MoltenVK 1.3 and 1.4)."""
    found: list[Configuration] = []
    for version in MACOS_VERSIONS:
        # Every Mac that Metal runs on has SIMD groups of up to 32.
        base = (*_language(version), *_fixed(32))
        name = f"macOS MSL {version[0]}.{version[1]}"
        found.append(Configuration(name, base))
        if version >= (2, 3) and not quick:
            found += _with_argument_buffers(name, base, version)
    for version in IOS_VERSIONS:
        name = f"iOS MSL {version[0]}.{version[1]}"
        base = (*_language(version), "--msl-ios")
        simd = (*base, "--msl-ios-use-simdgroup-functions", *_fixed(32))
        if version >= (2, 2):  # Apple 6 (A13) and newer
            found.append(Configuration(name, simd))
            if version >= (3, 0) and not quick:
                found += _with_argument_buffers(name, simd, version)
        if not quick and version >= (2, 2):  # Apple 4 and 5: groups of four
            quad = (*base, *_fixed(4))
            found.append(Configuration(f"{name}, quads", quad))
        if not quick or version < (2, 2):  # older ones: none
            none = (*base, "--msl-emulate-subgroups", *_fixed(1))
            found.append(Configuration(f"{name}, no subgroups", none, shuffles=False))
    return found


def _fixed(size: int) -> tuple[str, str]:
    """What gl_SubgroupSize is."""
    return "--msl-fixed-subgroup-size", str(size)


def _language(version: tuple[int, int]) -> tuple[str, ...]:
    number = f"{version[0]}{version[1]:02}00"
    options = ["--msl", "--msl-version", number]
    options += ["--msl-texture-buffer-native", "--msl-texture-1d-as-2d"]
    if version >= (3, 1):
        options.append("--msl-replace-recursive-inputs")
    return tuple(options)


def _with_argument_buffers(
    name: str, base: tuple[str, ...], version: tuple[int, int]
) -> Iterator[Configuration]:
    tiers = (0, 1) if version >= (3, 0) else (0,)
    for tier in tiers:
        options = ("--msl-argument-buffers", "--msl-argument-buffer-tier", str(tier))
        yield Configuration(
            f"{name}, argument buffers of tier {tier + 1}", (*base, *options)
        )


def modules(names: Sequence[str]) -> Iterator[tuple[str, Kernel]]:
    """Every module with its kernel, or those of the kernels named."""
    for kernel in KERNELS:
        if names and kernel.name not in names:
            continue
        yield kernel.name, kernel
        places = baked_words(kernel)
        for combination in combinations(kernel):
            spec = [0] * len(kernel.spec)
            for place, word in zip(places, combination, strict=True):
                spec[place] = word
            yield module_name(kernel, spec), kernel


def left_out(kernel: Kernel, configuration: Configuration) -> str:
    """Why the backend does not take a kernel on such a device; "" if it does."""
    if kernel.needs in ("matrices", "matrices2"):
        return MATRICES
    if kernel.needs == "subgroup" and not configuration.shuffles:
        return NO_SHUFFLE
    return ""


@dataclass(frozen=True)
class Facts:
    """What a SPIR-V module holds that must be found in the translation.

    Attributes:
        precise: operations that must not be contracted or reordered.
        constants: ids of the specialization constants.
    """

    precise: int
    constants: frozenset[int]


def facts(code: bytes) -> Facts:
    """Reads the facts of a module."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    arithmetic: set[int] = set()
    marked: set[int] = set()
    constants: set[int] = set()
    at = _HEADER_WORDS
    while at < len(words):
        count, opcode = words[at] >> 16, words[at] & 0xFFFF
        if opcode == _OP_DECORATE and words[at + 2] == _NO_CONTRACTION:
            marked.add(words[at + 1])
        elif opcode == _OP_DECORATE and words[at + 2] == _SPEC_ID:
            constants.add(words[at + 3])
        elif opcode in (_OP_FADD, _OP_FSUB, _OP_FMUL):
            arithmetic.add(words[at + 2])
        at += count
    return Facts(len(arithmetic & marked), frozenset(constants))


def complaints(source: str, wanted: Facts) -> Iterator[str]:
    """What is wrong with a translation."""
    helpers = re.findall(r"\[\[clang::optnone\]\]\s+T\s+(spvF\w+)", source)
    if wanted.precise and not helpers:
        yield f"{wanted.precise} precise operations, and no helper that keeps them"
    for number in wanted.constants - {0}:
        function = f"function_constant({number})"
        if function not in source and f"SPIRV_CROSS_CONSTANT_ID_{number}" not in source:
            yield f"specialization constant {number} is gone"
    used = [int(n) for n in re.findall(r"\[\[buffer\((\d+)\)\]\]", source)]
    if any(n >= MAX_BUFFERS for n in used):
        yield f"buffer {max(used)} is beyond Metal's {MAX_BUFFERS}"
    if "kernel void main0(" not in source:
        yield "no kernel of the name main0"
    if re.search(r"\bdouble\b", source):
        yield "double, which Metal does not have"


def translate(
    program: str, name: str, configuration: Configuration, wanted: Facts
) -> str:
    """Translates a module; what is wrong, or ""."""
    command = [program, *configuration.options, str(MODULES / f"{name}.spv")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[0]
    return "; ".join(complaints(done.stdout, wanted))


def find_program() -> str | None:
    """SPIRV-Cross: named by the environment, unpacked, or the system's if it is new."""
    named = os.environ.get("TOSAVK_SPIRV_CROSS")
    for candidate in (named, str(BUNDLE / "bin" / "spirv-cross"), "spirv-cross"):
        program = shutil.which(candidate) if candidate else None
        if program and _is_new(program):
            return program
    return None


def _is_new(program: str) -> bool:
    """Whether a SPIRV-Cross knows the options that MoltenVK 1.3 sets."""
    done = subprocess.run(
        [program, "--help-msl"], check=False, capture_output=True, text=True
    )
    return "--msl-replace-recursive-inputs" in done.stdout + done.stderr


def fetch() -> str | None:
    """SPIRV-Cross, unpacked beside the system where there is none yet."""
    found = find_program()
    if found is None:
        script = str(ROOT / "tools" / "newer_debian.py")
        subprocess.run([sys.executable, script, "shader-tools"], check=False)
        found = find_program()
    return found


@dataclass
class Tally:
    """What came of a run."""

    translated: int = 0
    failures: int = 0
    left_out: int = 0


def run(program: str, names: Sequence[str], chosen: Sequence[Configuration]) -> Tally:
    """Translates modules in every chosen configuration and prints the failures."""
    tally = Tally()
    reasons: dict[str, set[str]] = {}
    work: list[tuple[str, Configuration, Facts]] = []
    for name, kernel in modules(names):
        wanted = facts((MODULES / f"{name}.spv").read_bytes())
        for configuration in chosen:
            reason = left_out(kernel, configuration)
            if reason:
                reasons.setdefault(reason, set()).add(kernel.name)
                tally.left_out += 1
            else:
                work.append((name, configuration, wanted))

    def answer_of(job: tuple[str, Configuration, Facts]) -> str:
        return translate(program, *job)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = pool.map(answer_of, work)
        for (name, configuration, _), answer in zip(work, answers, strict=True):
            tally.translated += not answer
            if answer:
                tally.failures += 1
                print(f"[moltenvk] {name}, {configuration.name}: {answer}")
    for reason, kernels in sorted(reasons.items()):
        print(f"[moltenvk] not taken there: {', '.join(sorted(kernels))}: {reason}")
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; see the module's text."""
    parser = argparse.ArgumentParser(description="Translates SPIR-V as MoltenVK does.")
    parser.add_argument("kernels", nargs="*", help="kernels; all if none is named")
    parser.add_argument("--quick", action="store_true", help="fewer configurations")
    options = parser.parse_args(arguments)
    unknown = set(options.kernels) - {kernel.name for kernel in KERNELS}
    if unknown:
        print(f"[moltenvk] no such kernel: {', '.join(sorted(unknown))}")
        return 1
    program = fetch()
    if program is None:
        print("[moltenvk] skipped: no SPIRV-Cross with MoltenVK's options to be had")
        return SKIPPED
    chosen = configurations(quick=options.quick)
    tally = run(program, options.kernels, chosen)
    print(
        f"[moltenvk] {len(chosen)} configurations: {tally.translated} translations, "
        f"{tally.failures} failures, {tally.left_out} left out"
    )
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
