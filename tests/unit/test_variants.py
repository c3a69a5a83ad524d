"""The specialised SPIR-V modules: a closed set, made from the general modules."""

import hashlib
import json
from pathlib import Path

import pytest

from tosavk.lowering.graph import Op
from tosavk.lowering.rules.table import RULES
from tosavk.shaders.catalogue import KERNELS, kernels
from tosavk.shaders.variants import baked_words, combinations, module_name

SHADERS = Path(__file__).resolve().parents[2] / "shaders"
MODULES = json.loads((SHADERS / "variants.json").read_text(encoding="utf-8"))["modules"]


def names() -> set[str]:
    found: set[str] = set()
    for kernel in KERNELS:
        places = baked_words(kernel)
        for combination in combinations(kernel):
            spec = [0] * len(kernel.spec)
            for place, word in zip(places, combination, strict=True):
                spec[place] = word
            found.add(module_name(kernel, spec))
    return found


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_table_the_manifest_and_the_folder_agree() -> None:
    files = {f"{p.parent.name}/{p.stem}" for p in (SHADERS / "spirv").glob("*/*.spv")}
    assert names() == set(MODULES) == files


def test_no_module_is_older_than_its_general_module() -> None:
    for name, entry in MODULES.items():
        general = SHADERS / "spirv" / f"{name.partition('/')[0]}.spv"
        assert entry["general"] == digest(general), f"{name}: run build_variants.py"
        assert entry["module"] == digest(SHADERS / "spirv" / f"{name}.spv"), name


@pytest.mark.parametrize("op", [Op.CLAMP, Op.EXP, Op.ABS, Op.NEGATE])
def test_what_lowering_emits_for_floats_is_specialised(op: Op) -> None:
    kernel = kernels()["unary"]
    for dtype in RULES[op].types:
        assert module_name(kernel, (op, dtype, 0)) == f"unary/{int(op)}.{int(dtype)}"


def test_other_combinations_take_the_general_module() -> None:
    assert module_name(kernels()["unary"], (Op.EXP, 5, 0)) == "unary"
    assert module_name(kernels()["matmul"], (1,)) == "matmul"
