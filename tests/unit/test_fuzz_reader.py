"""Mutated files: only typed errors, in bounded time and memory.

TOSAVK_FUZZ_COUNT sets the number of mutations of files (3000 by default), and
TOSAVK_FUZZ_SEED where they start.
"""

import dataclasses
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from harness.shared import conformance_tests
from harness.tosa_programs import PROGRAMS, program
from tosavk.core.dtypes import DType
from tosavk.core.errors import Error
from tosavk.lowering.graph import Attribute, Block, Graph, Op, Operator, Region, Tensor
from tosavk.lowering.tosa.reader import read_graph
from tosavk.lowering.verify import verify

COUNT = int(os.environ.get("TOSAVK_FUZZ_COUNT", "3000"))
SEED = int(os.environ.get("TOSAVK_FUZZ_SEED", "1"))
SECONDS = 1.0
MEMORY = 256 << 20
WORDS = (0, 1, 2, 4, 7, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)

Random = np.random.Generator
Mutation = Callable[[Random, bytearray, bytes], bytearray]


def seeds() -> list[bytes]:
    """Files of our own, and official ones where they are there."""
    own = [program(name).build() for name in PROGRAMS]
    official = [folder / "test.tosa" for folder in conformance_tests()]
    return own + [path.read_bytes() for path in official[::3]]


def truncate(random: Random, data: bytearray, other: bytes) -> bytearray:
    return data[: int(random.integers(len(data)))]


def flip_bits(random: Random, data: bytearray, other: bytes) -> bytearray:
    for place in random.integers(len(data), size=int(random.integers(1, 4))):
        data[place] ^= 1 << int(random.integers(8))
    return data


def overwrite_word(random: Random, data: bytearray, other: bytes) -> bytearray:
    place = 4 * int(random.integers(len(data) // 4))
    word = int(random.choice(WORDS))
    if random.integers(2):
        word = int(random.integers(len(data)))
    data[place : place + 4] = word.to_bytes(4, "little")
    return data


def change_word(random: Random, data: bytearray, other: bytes) -> bytearray:
    """Adds or subtracts a little, as an offset or a length that is off by some."""
    place = 4 * int(random.integers(len(data) // 4))
    word = int.from_bytes(data[place : place + 4], "little")
    word += int(random.choice((-8, -4, -1, 1, 4, 8, 256)))
    data[place : place + 4] = (word % (1 << 32)).to_bytes(4, "little")
    return data


def splice(random: Random, data: bytearray, other: bytes) -> bytearray:
    length = 4 * int(random.integers(1, 8))
    start = 4 * int(random.integers(len(data) // 4))
    place = 4 * int(random.integers(max(1, (len(other) - length) // 4)))
    length = min(length, len(data) - start, len(other) - place)
    data[start : start + length] = other[place : place + length]
    return data


def move(random: Random, data: bytearray, other: bytes) -> bytearray:
    start, end, place = sorted(int(n) for n in random.integers(len(data), size=3))
    chunk = data[start:end]
    del data[start:end]
    data[place:place] = chunk
    return data


def repeat_offset(random: Random, data: bytearray, other: bytes) -> bytearray:
    """Makes two offsets point to the same place."""
    first, second = (4 * int(n) for n in random.integers(len(data) // 4, size=2))
    target = first + int.from_bytes(data[first : first + 4], "little")
    data[second : second + 4] = ((target - second) % (1 << 32)).to_bytes(4, "little")
    return data


# How often each is made; small changes reach farther into the reader.
MUTATIONS: dict[Mutation, float] = {
    truncate: 0.05,
    flip_bits: 0.2,
    overwrite_word: 0.2,
    change_word: 0.25,
    splice: 0.1,
    move: 0.05,
    repeat_offset: 0.15,
}


def mutated(random: Random, files: list[bytes]) -> bytes:
    data = bytearray(files[int(random.integers(len(files)))])
    other = files[int(random.integers(len(files)))]
    mutations = list(MUTATIONS)
    for _ in range(int(random.choice((1, 1, 1, 1, 2, 3)))):
        if len(data) < 8:
            break
        choice = int(random.choice(len(mutations), p=list(MUTATIONS.values())))
        data = mutations[choice](random, data, other)
    return bytes(data)


def peak() -> int:
    """Bytes of memory that this process has had at most."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def is_accepted(read: Callable[[], Graph], what: str) -> bool:
    """Whether a graph is accepted; an error that is not typed fails the test."""
    try:
        verify(read())
    except Error:
        return False
    except Exception as error:
        raise AssertionError(f"{what}: {error!r}") from error
    return True


def attempt(read: Callable[[], Graph], what: str) -> bool:
    """The same, and it must be quick and take little memory."""
    before = peak()
    elapsed = SECONDS
    accepted = False
    # Another process may have had the processor once; real slowness stays.
    for _ in range(2):
        start = time.perf_counter()
        accepted = is_accepted(read, what)
        elapsed = time.perf_counter() - start
        if elapsed < SECONDS:
            break
    assert elapsed < SECONDS, f"{what}: {elapsed:.2f} s"
    assert peak() - before < MEMORY, what
    return accepted


def test_mutated_files() -> None:
    files = seeds()
    accepted = 0
    for number in range(SEED, SEED + COUNT):
        data = mutated(np.random.default_rng(number), files)
        accepted += attempt(partial(read_graph, data), f"mutation {number}")
    # Neither all nor none: mutations reach behind the first check.
    assert COUNT / 100 < accepted < COUNT * 0.9


def strange_attribute(random: Random, value: Attribute) -> Attribute:
    choices: list[Attribute] = [
        0,
        -1,
        1 << 31,
        7,
        True,
        "",
        "main",
        b"",
        b"\xff" * 8,
        (),
        (0, 0),
        (1, 1, 1, 1),
        (-1, 1 << 30, 3, 1),
        DType.INT8,
        DType.SHAPE,
        value,
    ]
    return choices[int(random.integers(len(choices)))]


def strange_shape(random: Random) -> tuple[int, ...] | None:
    if random.integers(20) == 0:
        return None
    sizes = (-1, 0, 1, 2, 3, 5, 8, 1 << 16, 1 << 31)
    return tuple(int(n) for n in random.choice(sizes, size=int(random.integers(0, 9))))


def mutate_operator(random: Random, operator: Operator, names: list[str]) -> Operator:
    match int(random.integers(5)):
        case 0:
            op = Op(int(random.integers(1, 76)))
            return dataclasses.replace(operator, op=op)
        case 1 if operator.attributes:
            changed = dict(operator.attributes)
            key = list(changed)[int(random.integers(len(changed)))]
            changed[key] = strange_attribute(random, changed[key])
            if random.integers(4) == 0:
                del changed[key]
            return dataclasses.replace(operator, attributes=changed)
        case 2:
            inputs = list(operator.inputs)
            inputs.insert(
                int(random.integers(len(inputs) + 1)),
                names[int(random.integers(len(names)))],
            )
            return dataclasses.replace(operator, inputs=tuple(inputs))
        case 3:
            return dataclasses.replace(operator, inputs=operator.inputs[1:])
        case _:
            return dataclasses.replace(operator, outputs=operator.outputs[1:])


def mutate_tensor(random: Random, tensor: Tensor) -> Tensor:
    match int(random.integers(4)):
        case 0:
            dtype = DType(int(random.integers(1, 13)))
            return dataclasses.replace(tensor, dtype=dtype)
        case 1:
            return dataclasses.replace(tensor, shape=strange_shape(random))
        case 2 if tensor.data is not None:
            data = random.bytes(len(tensor.data))
            return dataclasses.replace(tensor, data=memoryview(data))
        case _:
            return dataclasses.replace(tensor, data=None)


def mutate(random: Random, graph: Graph) -> Graph:
    region = graph.regions[int(random.integers(len(graph.regions)))]
    block = region.blocks[0]
    names = list(block.tensors)
    operators = list(block.operators)
    tensors: Mapping[str, Tensor] = block.tensors
    match int(random.integers(3)):
        case 0 if operators:
            place = int(random.integers(len(operators)))
            operators[place] = mutate_operator(random, operators[place], names)
        case 1:
            operators = [operators[int(n)] for n in random.permutation(len(operators))]
        case _:
            name = names[int(random.integers(len(names)))]
            tensors = {**tensors, name: mutate_tensor(random, tensors[name])}
    changed = Block(block.name, tuple(operators), tensors, block.inputs, block.outputs)
    return dataclasses.replace(
        graph,
        regions=tuple(
            Region(region.name, (changed,)) if one is region else one
            for one in graph.regions
        ),
    )


def same(graph: Graph) -> Graph:
    return graph


def test_mutated_graphs() -> None:
    graphs = [program(name).graph() for name in PROGRAMS]
    accepted = 0
    count = COUNT // 3 + 1
    for number in range(SEED, SEED + count):
        random = np.random.default_rng(number)
        graph = graphs[int(random.integers(len(graphs)))]
        for _ in range(int(random.integers(1, 4))):
            graph = mutate(random, graph)
        accepted += attempt(partial(same, graph), f"graph {number}")
    assert count / 100 < accepted < count * 0.9
