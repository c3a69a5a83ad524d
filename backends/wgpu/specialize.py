"""WGSL with its overridable constants put in, and without what they rule out.

wgpu's own way, override values at pipeline creation, leaves it to the driver to read
every function and to drop dead branches: 13 ms for an addition on lavapipe. Here the
constants are put in before; branches that they decide are chosen, functions that take
one as an argument are copied for it, and only what `main` still reaches is kept. No
arithmetic but that of u32 and bool constants is touched.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from tosavk.backends.wgpu.wgsl import Block, Function, Node, Source, WgslError

Constant = int | bool
"""A value that the overrides fix: int for u32, bool for bool."""
Scope = dict[str, "Constant | None"]
"""Names of a function: fixed values, or None for what only run time knows."""

_WORD = 0xFFFFFFFF
_WORD_BITS = 32
_NAME = re.compile(r"[A-Za-z_]\w*")
_NUMBERS: dict[str, Callable[[int, int], int]] = {
    "+": int.__add__,
    "-": int.__sub__,
    "*": int.__mul__,
    "&": int.__and__,
    "|": int.__or__,
    "^": int.__xor__,
    "/": int.__floordiv__,
    "%": int.__mod__,
    "<<": int.__lshift__,
    ">>": int.__rshift__,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
# How a block ends: it goes on, it leaves a loop or a switch, it leaves the function.
_GOES_ON, _JUMPS, _RETURNS = range(3)


def specialize(
    source: Source, constants: Mapping[str, int], entry: str = "main"
) -> str:
    """The text of an entry point with `constants` in place of its overrides.

    Args:
        source: all declarations.
        constants: the value of every override.
        entry: name of the entry point.

    Raises:
        WgslError: the text is not understood, or an override has no value.
    """
    return _Specializer(source, constants).text(entry)


class _Result:
    """What a block, an expression or a function became.

    Attributes:
        text: its text.
        value: what it always gives (of a block: returns), or None.
    """

    __slots__ = ("text", "value")

    def __init__(self, text: str, value: Constant | None = None) -> None:
        self.text = text
        self.value = value


def _literal(value: Constant) -> _Result:
    if isinstance(value, bool):
        return _Result("true" if value else "false", value)
    return _Result(f"{value}u", value)


def _in_brackets(result: _Result) -> _Result:
    return _Result(f"({result.text})")


class _Specializer:
    def __init__(self, source: Source, constants: Mapping[str, int]) -> None:
        missing = source.overrides - set(constants)
        if missing:
            raise WgslError(f"overrides without a value: {', '.join(sorted(missing))}")
        self._source = source
        self._globals: Scope = dict(source.values)
        self._globals.update({name: constants[name] for name in source.overrides})
        self._fixed = re.compile(
            rf"\b(?:{'|'.join(sorted(self._globals)) or '(?!)'})\b"
        )
        self._made: dict[tuple[str, tuple[Constant | None, ...]], _Result] = {}
        self._texts: dict[str, str] = {}

    def text(self, entry: str) -> str:
        function = self._source.functions.get(entry)
        if function is None:
            raise WgslError(f"there is no function {entry!r}")
        self._function(entry, (None,) * len(function.parameters))
        kept: dict[str, str] = {}
        waiting = [entry]
        while waiting:
            name = waiting.pop()
            text = self._texts.get(name) or self._source.others.get(name)
            if text is not None and name not in kept:
                kept[name] = text = self._raw(text)
                # In order: drivers' caches know a text by its bytes.
                waiting.extend(dict.fromkeys(_NAME.findall(text)))
        return "\n".join(kept.values())

    def _raw(self, text: str) -> str:
        """Text of attributes, types and globals with the constants put in."""
        return self._fixed.sub(lambda name: f"{self._globals[name[0]]}u", text)

    def _function(self, name: str, fixed: tuple[Constant | None, ...]) -> _Result:
        """A copy of a function for fixed arguments; the text is its name."""
        found = self._made.get((name, fixed))
        if found is not None:
            return found
        function = self._source.functions[name]
        plain = all(value is None for value in fixed)
        suffix = "_".join("x" if value is None else str(int(value)) for value in fixed)
        made = _Result(name if plain else f"{name}_for_{suffix}")
        names = [parameter for parameter, _ in function.parameters]
        scope = {**self._globals, **dict(zip(names, fixed, strict=True))}
        lines: list[str] = []
        _, value = self._block(function.body, scope, lines)
        made.value = value
        self._made[name, fixed] = made
        self._texts[made.text] = self._declaration(function, fixed, made.text, lines)
        return made

    @staticmethod
    def _declaration(
        function: Function,
        fixed: tuple[Constant | None, ...],
        name: str,
        lines: list[str],
    ) -> str:
        parameters = ", ".join(
            text
            for (_, text), value in zip(function.parameters, fixed, strict=True)
            if value is None
        )
        result = f" -> {function.result}" if function.result else ""
        body = "\n".join(lines)
        return f"{function.attributes}\nfn {name}({parameters}){result} {{\n{body}\n}}"

    # Statements: each adds lines, and says how it ends.

    def _block(
        self, block: Block, scope: Scope, lines: list[str]
    ) -> tuple[int, Constant | None]:
        """Adds the statements, up to the first that ends the block.

        Returns:
            How it ends; and what it always returns, if it does nothing else.
        """
        before = len(lines)
        for statement in block:
            end, value = self._statement(statement, scope, lines)
            if end != _GOES_ON:
                return end, value if len(lines) == before + 1 else None
        return _GOES_ON, None

    def _inner(
        self, block: Block, scope: Scope, lines: list[str]
    ) -> tuple[int, Constant | None]:
        """A block that was chosen; it gets braces where it declares names."""
        inner: list[str] = []
        result = self._block(block, dict(scope), inner)
        if any(line.startswith(("let ", "var ", "const ")) for line in inner):
            inner = ["{", *inner, "}"]
        lines.extend(inner)
        return result

    def _statement(
        self, statement: Node, scope: Scope, lines: list[str]
    ) -> tuple[int, Constant | None]:
        tag = statement[0]
        if tag == "return":
            if statement[1] is None:
                lines.append("return;")
                return _RETURNS, None
            result = self._expression(statement[1], scope)
            lines.append(f"return {result.text};")
            return _RETURNS, result.value
        if tag == "block":
            return self._inner(statement[1], scope, lines)
        if tag == "if":
            return self._branch(statement, scope, lines)
        if tag == "switch":
            return self._switch(statement, scope, lines)
        if tag == "for":
            self._loop(statement, scope, lines)
        elif tag == "jump":
            lines.append(f"{statement[1]};")
            return _JUMPS, None
        else:
            text = self._simple(statement, scope)
            if text:
                lines.append(f"{text};")
        return _GOES_ON, None

    def _simple(self, statement: Node, scope: Scope) -> str:
        """A statement without blocks, without its semicolon; "" if it is not needed."""
        tag = statement[0]
        if tag == "declare":
            _, keyword, name, kind, value = statement
            text = f"{keyword} {name}" + (f": {self._raw(kind)}" if kind else "")
            if value is None:
                scope[name] = None
                return text
            result = self._expression(value, scope)
            known = keyword != "var" and kind in {"", "u32", "bool"}
            scope[name] = result.value if known else None
            return "" if scope[name] is not None else f"{text} = {result.text}"
        if tag == "assign":
            _, target, sign, value = statement
            left = self._expression(target, scope).text
            return f"{left} {sign} {self._expression(value, scope).text}"
        if tag == "step":
            return self._expression(statement[1], scope).text + str(statement[2])
        if tag == "expression":
            return self._expression(statement[1], scope).text
        raise WgslError(f"a {tag} cannot stand here")

    def _branch(
        self, statement: Node, scope: Scope, lines: list[str]
    ) -> tuple[int, Constant | None]:
        _, condition, block, otherwise = statement
        chosen = self._expression(condition, scope)
        if chosen.value is not None:
            if chosen.value:
                return self._inner(block, scope, lines)
            return self._inner(otherwise or (), scope, lines)
        lines.append(f"if ({chosen.text}) {{")
        first, _ = self._block(block, dict(scope), lines)
        second = _GOES_ON
        if otherwise is not None:
            lines.append("} else {")
            second, _ = self._block(otherwise, dict(scope), lines)
        lines.append("}")
        return min(first, second), None

    def _switch(
        self, statement: Node, scope: Scope, lines: list[str]
    ) -> tuple[int, Constant | None]:
        _, selector, cases = statement
        chosen = self._expression(selector, scope)
        if chosen.value is not None and not any(_breaks(block) for _, block in cases):
            block = self._chosen(chosen.value, cases, scope)
            return self._inner(block, scope, lines)
        lines.append(f"switch ({chosen.text}) {{")
        ends: list[int] = []
        for labels, block in cases:
            texts = (
                "default" if label is None else self._expression(label, scope).text
                for label in labels
            )
            lines.append(f"case {', '.join(texts)}: {{")
            ends.append(self._block(block, dict(scope), lines)[0])
            lines.append("}")
        lines.append("}")
        return (_RETURNS if min(ends) == _RETURNS else _GOES_ON), None

    def _chosen(
        self,
        value: Constant,
        cases: tuple[tuple[tuple[Node | None, ...], Block], ...],
        scope: Scope,
    ) -> Block:
        default: Block = ()
        for labels, block in cases:
            for label in labels:
                if label is None:
                    default = block
                elif self._expression(label, scope).value == value:
                    return block
        return default

    def _loop(self, statement: Node, scope: Scope, lines: list[str]) -> None:
        _, start, condition, step, block = statement
        inner = dict(scope)
        first = "" if start is None else self._simple(start, inner)
        test = "" if condition is None else self._expression(condition, inner).text
        last = "" if step is None else self._simple(step, inner)
        lines.append(f"for ({first}; {test}; {last}) {{")
        self._block(block, inner, lines)
        lines.append("}")

    # Expressions

    def _expression(self, node: Node, scope: Scope) -> _Result:
        tag = node[0]
        if tag == "value":
            return _literal(node[1])
        if tag == "text":
            return _Result(node[1])
        if tag == "name":
            value = scope.get(node[1])
            return _Result(node[1]) if value is None else _literal(value)
        if tag == "paren":
            inner = self._expression(node[1], scope)
            return inner if inner.value is not None else _in_brackets(inner)
        if tag == "member":
            return _Result(f"{self._expression(node[1], scope).text}.{node[2]}")
        if tag == "index":
            base = self._expression(node[1], scope).text
            return _Result(f"{base}[{self._expression(node[2], scope).text}]")
        if tag == "call":
            return self._call(node, scope)
        if tag == "unary":
            return self._unary(node[1], self._expression(node[2], scope))
        return self._binary(node, scope)

    @staticmethod
    def _unary(sign: str, inner: _Result) -> _Result:
        if sign == "!" and isinstance(inner.value, bool):
            return _literal(not inner.value)
        if sign == "~" and inner.value is not None:
            return _literal(int(inner.value) ^ _WORD)
        return _Result(sign + inner.text)

    def _binary(self, node: Node, scope: Scope) -> _Result:
        _, sign, first, second = node
        left = self._expression(first, scope)
        if sign in {"&&", "||"} and left.value is not None:
            # What decides stays; otherwise the other side is the result.
            if left.value is (sign == "||"):
                return left
            return self._expression(second, scope)
        right = self._expression(second, scope)
        if left.value is not None and right.value is not None:
            value = _folded(sign, left.value, right.value)
            if value is not None:
                return _literal(value)
        return _Result(f"{left.text} {sign} {right.text}")

    def _call(self, node: Node, scope: Scope) -> _Result:
        _, name, template, arguments = node
        given = [self._expression(argument, scope) for argument in arguments]
        function = self._source.functions.get(name)
        if function is None or scope.get(name, name) is None:
            if name == "select" and isinstance(given[2].value, bool):
                chosen = given[1] if given[2].value else given[0]
                return chosen if chosen.value is not None else _in_brackets(chosen)
            texts = ", ".join(result.text for result in given)
            return _Result(f"{name}{self._raw(template)}({texts})")
        # Literals are not worth a copy of a function; what comes from an override is.
        fixed = tuple(
            None if argument[0] == "value" else result.value
            for argument, result in zip(arguments, given, strict=True)
        )
        made = self._function(name, fixed)
        if made.value is not None:
            return _literal(made.value)
        texts = ", ".join(
            result.text
            for result, value in zip(given, fixed, strict=True)
            if value is None
        )
        return _Result(f"{made.text}({texts})")


def _folded(sign: str, left: Constant, right: Constant) -> Constant | None:
    """The value of an operation of two u32 or two bool, None to leave it alone."""
    if sign in _COMPARISONS:
        return _COMPARISONS[sign](left, right)
    if isinstance(left, bool) or isinstance(right, bool) or sign not in _NUMBERS:
        return None
    if (sign in {"/", "%"} and right == 0) or (
        sign in {"<<", ">>"} and right >= _WORD_BITS
    ):
        return None
    return _NUMBERS[sign](left, right) & _WORD


def _breaks(block: Block) -> bool:
    """Whether a block leaves the switch that it stands in."""
    for statement in block:
        if statement == ("jump", "break"):
            return True
        inner: tuple[Block, ...] = ()
        if statement[0] == "block":
            inner = (statement[1],)
        elif statement[0] == "if":
            inner = (statement[2], statement[3] or ())
        if any(_breaks(part) for part in inner):
            return True
    return False
