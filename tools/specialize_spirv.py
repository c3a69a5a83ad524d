"""Bakes specialization words into a SPIR-V module and drops what they rule out.

`freeze` turns chosen specialization constants into constants; `spirv-opt` then folds
branches and removes dead code. The optimiser refuses modules with extensions that it
does not know to be harmless, SPV_KHR_float_controls among them, so that extension and
its execution mode are set aside meanwhile. Float arithmetic stays as written: every
operation carries NoContraction, which the optimiser respects.
"""

import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

_HEADER_WORDS = 5
_OP_EXTENSION = 10
_OP_ENTRY_POINT = 15
_OP_EXECUTION_MODE = 16
_OP_CAPABILITY = 17
_OP_CONSTANT = 43
_OP_SPEC_CONSTANT = 50
_OP_DECORATE = 71
_DECORATION_SPEC_ID = 1
_CAPABILITY_PRESERVE = 4466
_MODE_PRESERVE = 4461
_FLOAT_CONTROLS = b"SPV_KHR_float_controls\0"
_PASSES = (
    "--strip-debug",
    "--fold-spec-const-op-composite",
    "-O",
    "--eliminate-dead-const",
    "--compact-ids",
)

Instruction = list[int]


def specialize(code: bytes, values: Mapping[int, int], spirv_opt: str) -> bytes:
    """A module with some specialization constants fixed.

    Args:
        code: the general module.
        values: specialization constant id to 32-bit value.
        spirv_opt: the optimiser program.

    Raises:
        subprocess.CalledProcessError: the optimiser failed.
    """
    header, instructions = _parse(code)
    frozen = list(_freeze(instructions, values))
    kept = [i for i in frozen if not _is_float_controls(i)]
    aside = [i for i in frozen if _is_float_controls(i)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.spv"
        path.write_bytes(_assemble(header, kept))
        subprocess.run(
            [spirv_opt, *_PASSES, str(path), "-o", str(path)],
            check=True,
            capture_output=True,
            text=True,
        )
        header, small = _parse(path.read_bytes())
    return _assemble(header, _put_back(small, aside))


def _freeze(
    instructions: list[Instruction], values: Mapping[int, int]
) -> Iterator[Instruction]:
    ids = {
        words[1]: values[words[3]]
        for words in instructions
        if _opcode(words) == _OP_DECORATE
        and words[2] == _DECORATION_SPEC_ID
        and words[3] in values
    }
    for words in instructions:
        opcode = _opcode(words)
        if opcode == _OP_DECORATE and words[1] in ids:
            continue
        if opcode == _OP_SPEC_CONSTANT and words[2] in ids:
            yield [(4 << 16) | _OP_CONSTANT, words[1], words[2], ids[words[2]]]
            continue
        yield words


def _put_back(
    instructions: list[Instruction], aside: list[Instruction]
) -> list[Instruction]:
    """Capabilities, then extensions, stand first; modes follow the entry point."""
    result = list(instructions)
    capabilities = [i for i in aside if _opcode(i) == _OP_CAPABILITY]
    extensions = [i for i in aside if _opcode(i) == _OP_EXTENSION]
    modes = [i for i in aside if _opcode(i) == _OP_EXECUTION_MODE]
    after_capabilities = _after(result, _OP_CAPABILITY)
    result[after_capabilities:after_capabilities] = [*capabilities, *extensions]
    entry = _after(result, _OP_ENTRY_POINT)
    function = next(i[2] for i in result if _opcode(i) == _OP_ENTRY_POINT)
    result[entry:entry] = [[m[0], function, *m[2:]] for m in modes]
    return result


def _after(instructions: list[Instruction], opcode: int) -> int:
    return 1 + max(n for n, i in enumerate(instructions) if _opcode(i) == opcode)


def _is_float_controls(words: Instruction) -> bool:
    opcode = _opcode(words)
    if opcode == _OP_CAPABILITY:
        return words[1] == _CAPABILITY_PRESERVE
    if opcode == _OP_EXECUTION_MODE:
        return words[2] == _MODE_PRESERVE
    return opcode == _OP_EXTENSION and _FLOAT_CONTROLS in struct.pack(
        f"<{len(words) - 1}I", *words[1:]
    )


def _opcode(words: Instruction) -> int:
    return words[0] & 0xFFFF


def _parse(code: bytes) -> tuple[list[int], list[Instruction]]:
    words = list(struct.unpack(f"<{len(code) // 4}I", code))
    instructions: list[Instruction] = []
    at = _HEADER_WORDS
    while at < len(words):
        count = words[at] >> 16
        instructions.append(words[at : at + count])
        at += count
    return words[:_HEADER_WORDS], instructions


def _assemble(header: list[int], instructions: list[Instruction]) -> bytes:
    words = [*header, *(word for i in instructions for word in i)]
    return struct.pack(f"<{len(words)}I", *words)
