"""Every pipeline worth compiling: all modules, with all values of their other words.

The words of a kernel that no module bakes in (broadcasting, NaN mode, vector width ...)
are tried in full where that is few, else one at a time. Kernels of NVFP4 take their
words from the lowering, since most combinations mean nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tosavk.backends.vulkan.pipelines import PipelineKey
from tosavk.core.dtypes import DType
from tosavk.core.plan import PlanLimits
from tosavk.lowering.nvfp4 import pipelines as nvfp4
from tosavk.shaders.catalogue import KERNELS, Kernel
from tosavk.shaders.variants import baked_words, combinations, module_name

Words = tuple[int, ...]

FULL = 64
"""Up to so many combinations of the other words are all tried."""

_FLAG = (0, 1)
_DOMAINS: dict[str, Words] = {
    "BROADCAST": tuple(range(7)),
    "MODE": (0, 1, 2),
    "FOURS": _FLAG,
    "SKIP": _FLAG,
    "PART": _FLAG,
    "REAL": _FLAG,
    "STAGE": (0, 1, 2),
    "KW": (0, 1, 3, 5),
    "SX": (0, 1, 2),
    "X_UNSIGNED": _FLAG,
    "Y_UNSIGNED": _FLAG,
    "TWICE": _FLAG,
    "SUMS": (0, 1, 2, 3),
    "OP": (3, 4, 10),
    "TYPE": (int(DType.FP32),),
}
_ARGMAX, _MUL = 1, 28
_COMPARISONS = (46, 47, 48)
_BILINEAR = 2
_NVFP4 = "nvfp4_"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline to compile.

    Attributes:
        key: what the backend makes it from.
        module: the SPIR-V module.
        needs: what the device must have beyond Vulkan 1.3.
        subgroup_size: the size to ask for, which is not the device's usual one; 0: the
            backend asks as it always does.
    """

    key: PipelineKey
    module: str
    needs: str
    subgroup_size: int = 0


def _result_type(kernel: Kernel, words: dict[str, int]) -> int:
    """The type of the result where it follows from the operator and its type."""
    op, dtype = words.get("OP", 0), words["TYPE"]
    if kernel.name == "binary" and op in _COMPARISONS:
        return int(DType.BOOL)
    integer = dtype in (DType.INT8, DType.INT16)
    wide = (kernel.name == "reduce" and op == _ARGMAX) or (
        integer
        and (
            (kernel.name == "binary" and op == _MUL)
            or (kernel.name == "resize" and words["MODE"] == _BILINEAR)
        )
    )
    return int(DType.INT32) if wide else dtype


def _others(domains: Sequence[Words]) -> Iterator[Words]:
    """All combinations where they are few, else one word at a time."""
    count = 1
    for domain in domains:
        count *= len(domain)
    if count <= FULL:
        yield from itertools.product(*domains)
        return
    first = tuple(domain[0] for domain in domains)
    yield first
    for place, domain in enumerate(domains):
        for word in domain[1:]:
            yield (*first[:place], word, *first[place + 1 :])


def _general(kernel: Kernel) -> Iterator[Words]:
    """Baked words that no module is made for, so that the general one is taken."""
    places = baked_words(kernel)
    have = combinations(kernel)
    first = sorted({words[:-1] for words in have})
    last = {words[-1] for words in have}
    if not kernel.spec[places[-1]].endswith("TYPE"):
        return  # every value of this word has a module
    strange = next(int(d) for d in DType if int(d) not in last)
    for words in first:
        yield (*words, strange)


def specs(kernel: Kernel) -> Iterator[Words]:
    """The specialization words to try for a kernel that is not one of NVFP4.

    Raises:
        KeyError: the kernel has a word that is not known here.
    """
    places = baked_words(kernel)
    baked: list[Words] = [*combinations(kernel), *_general(kernel)] if places else [()]
    free = [
        place
        for place, name in enumerate(kernel.spec)
        if place not in places and name != "Y_TYPE"
    ]
    for chosen in baked:
        for values in _others([_DOMAINS[kernel.spec[place]] for place in free]):
            words = {kernel.spec[p]: w for p, w in zip(places, chosen, strict=True)}
            words |= {kernel.spec[p]: w for p, w in zip(free, values, strict=True)}
            if "Y_TYPE" in kernel.spec and "Y_TYPE" not in words:
                words["Y_TYPE"] = _result_type(kernel, words)
            yield tuple(words[name] for name in kernel.spec)


def products(limits: PlanLimits) -> Iterator[PipelineKey]:
    """The NVFP4 pipelines that a device with these limits would use."""
    for each in nvfp4.pipelines(limits):
        yield PipelineKey(each.kernel, each.words[1:], each.words[0])


def pipelines(limits: PlanLimits, *, sizes: Sequence[int] = ()) -> list[Pipeline]:
    """Every pipeline, each once.

    Args:
        limits: what the device offers; decides about the words of NVFP4 kernels only.
        sizes: further subgroup sizes that the device lets kernels choose.
    """
    table = {kernel.name: kernel for kernel in KERNELS}
    keys = [
        PipelineKey(kernel.name, spec, kernel.workgroup)
        for kernel in KERNELS
        if not kernel.name.startswith(_NVFP4)
        for spec in specs(kernel)
    ]
    keys += products(limits)
    found = [
        Pipeline(key, module_name(table[key.kernel], key.spec), table[key.kernel].needs)
        for key in dict.fromkeys(keys)
    ]
    for size in sizes:
        chosen = dataclasses.replace(limits, subgroup_size=size)
        found += [
            Pipeline(key, key.kernel, table[key.kernel].needs, size)
            for key in dict.fromkeys(products(chosen))
            if table[key.kernel].needs in ("matrices", "matrices2")
        ]
    return found
