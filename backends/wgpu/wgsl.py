"""Reads the WGSL of our kernels: declarations, and the syntax trees of functions.

Only what the kernels use is known, anything else is a `WgslError`. Every declaration
starts at the beginning of a line; a function's body is read when it is first asked for.

Trees are tuples with a tag in front. Expressions:

    ("text", TEXT)                 a literal of any type but u32 and bool
    ("value", VALUE)               a u32 (int) or bool literal
    ("name", NAME)
    ("call", NAME, TEMPLATE, ARGUMENTS)    also constructors and conversions
    ("index", BASE, INDEX)
    ("member", BASE, NAME)
    ("paren", INNER)
    ("unary", OPERATOR, INNER)
    ("binary", OPERATOR, LEFT, RIGHT)

Statements:

    ("declare", KEYWORD, NAME, TYPE, VALUE or None)      let, var or const
    ("assign", TARGET, OPERATOR, VALUE)
    ("step", TARGET, OPERATOR)     ++ or --
    ("expression", VALUE)
    ("return", VALUE or None)
    ("jump", KEYWORD)              break or continue
    ("block", STATEMENTS)
    ("if", CONDITION, BLOCK, STATEMENTS or None)
    ("switch", VALUE, ((LABELS, BLOCK), ...))     a label None is `default`
    ("for", START or None, CONDITION or None, STEP or None, BLOCK)
"""

from __future__ import annotations

import re
from typing import Any

Node = tuple[Any, ...]
Block = tuple[Node, ...]

_DECLARATION = re.compile(
    r"^(?:(@compute[^\n]*)\n)?(?:(fn|const|struct|override)\s+|(?:@group[^\n]*?)?"
    r"(var)<[^>]*>\s*)(\w+)",
    re.MULTILINE,
)
_LINE = re.compile(r"^[^\s})].*", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*")
_TOKEN = re.compile(
    r"\s*([A-Za-z_]\w*"
    r"|0[xX][0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?(?:[pP][+-]?\d+[fh]?|[iu])?|\d*\.?\d+\.?(?:[eE][+-]?\d+)?[iufh]?"
    r"|<<=|>>=|&&|\|\||<<|>>|\+\+|--|->|[-+*/%&|^=!<>]=|\S)"
)
_UNSIGNED = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)u")
_TEMPLATES = frozenset({"array", "atomic", "bitcast", "vec2", "vec3", "vec4"})
_ASSIGNMENTS = frozenset(
    {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
)
_PRECEDENCE = {
    "||": 1,
    "&&": 2,
    "|": 3,
    "^": 4,
    "&": 5,
    **dict.fromkeys(("==", "!=", "<", ">", "<=", ">="), 6),
    **dict.fromkeys(("<<", ">>"), 7),
    **dict.fromkeys(("+", "-"), 8),
    **dict.fromkeys(("*", "/", "%"), 9),
}


class WgslError(ValueError):
    """Text that is not understood."""


class Function:
    """A function of a text; it is read when it is first asked for.

    Attributes:
        attributes: the line in front of an entry point, or "".
    """

    __slots__ = ("_read", "_text", "attributes")

    def __init__(self, attributes: str, text: str) -> None:
        """Keeps the text, which begins with `fn`."""
        self.attributes = attributes
        self._text = text
        self._read: tuple[tuple[tuple[str, str], ...], str, Block] | None = None

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """The parameters: name, and text with attributes and type, of each."""
        return self._parts()[0]

    @property
    def result(self) -> str:
        """Text of the result's type, or ""."""
        return self._parts()[1]

    @property
    def body(self) -> Block:
        """The statements."""
        return self._parts()[2]

    def _parts(self) -> tuple[tuple[tuple[str, str], ...], str, Block]:
        if self._read is None:
            reader = _Reader(_TOKEN.findall(self._text))
            reader.expect("fn")
            reader.take()
            parameters = tuple(reader.parameters())
            result = reader.type_text(("{",)) if reader.found("->") else ""
            self._read = (parameters, result, reader.block())
        return self._read


class Source:
    """The declarations of a text.

    Attributes:
        functions: functions by name.
        others: text of every other declaration by name.
        overrides: names of the overridable constants.
        values: values of the u32 constants, which are not among `others`.
    """

    __slots__ = ("functions", "others", "overrides", "values")

    def __init__(self, text: str) -> None:
        """Splits a text at its declarations.

        Raises:
            WgslError: a declaration is not known, or there is none.
        """
        self.functions: dict[str, Function] = {}
        self.others: dict[str, str] = {}
        self.overrides: set[str] = set()
        self.values: dict[str, int] = {}
        plain = _COMMENT.sub("", text)
        found = list(_DECLARATION.finditer(plain))
        if not found:
            raise WgslError("there is no declaration")
        starts = {match.start() for match in found}
        starts |= {match.end(1) + 1 for match in found if match[1]}
        for match in _LINE.finditer(plain):
            if match.start() not in starts:
                raise WgslError(f"a line begins with {match[0]!r}")
        ends = [match.start() for match in found[1:]] + [len(plain)]
        for match, end in zip(found, ends, strict=True):
            attributes, keyword, _, name = match.groups()
            if keyword == "fn":
                start = match.end(1) + 1 if attributes else match.start()
                code = plain[start:end]
                self.functions[name] = Function(attributes or "", code)
                continue
            code = plain[match.start() : end].strip()
            value = _UNSIGNED.fullmatch(code.rpartition("=")[2].strip(" ;"))
            if keyword == "override":
                if not re.match(r"override\s+\w+\s*:\s*u32\b", code):
                    raise WgslError(f"override {name} is no u32")
                self.overrides.add(name)
            elif keyword == "const" and value is not None:
                self.values[name] = int(value[1], 0)
            else:
                self.others[name] = code


class _Reader:
    """Reads trees from tokens, by recursive descent."""

    __slots__ = ("_at", "_tokens")

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def take(self) -> str:
        if self._at >= len(self._tokens):
            raise WgslError("the text ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def found(self, token: str) -> bool:
        if self.peek() == token:
            self._at += 1
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.found(token):
            near = " ".join(self._tokens[max(0, self._at - 4) : self._at + 4])
            raise WgslError(f"{token!r} is missing near {near!r}")

    def separator(self, end: str) -> None:
        """A comma, unless the list ends."""
        if self.peek() != end:
            self.expect(",")

    def parameters(self) -> list[tuple[str, str]]:
        result: list[tuple[str, str]] = []
        self.expect("(")
        while not self.found(")"):
            attributes = ""
            while self.found("@"):
                attributes += f"@{self.take()}("
                self.expect("(")
                attributes += f"{self.take()}) "
                self.expect(")")
            name = self.take()
            self.expect(":")
            result.append((name, f"{attributes}{name}: {self.type_text((',', ')'))}"))
            self.separator(")")
        return result

    def type_text(self, ends: tuple[str, ...]) -> str:
        """The text of a type, up to one of `ends`, which stays."""
        parts: list[str] = []
        depth = 0
        while depth > 0 or self.peek() not in ends:
            token = self.take()
            depth += (token == "<") - (token == ">") - 2 * (token == ">>")
            parts.append(token)
        return "".join(parts)

    # Statements

    def block(self) -> Block:
        self.expect("{")
        result: list[Node] = []
        while not self.found("}"):
            if not self.found(";"):
                result.append(self.statement())
        return tuple(result)

    def statement(self) -> Node:
        token = self.peek()
        if token == "{":
            return ("block", self.block())
        if token in {"if", "switch", "for"}:
            self.take()
            if token == "if":
                return self.branch()
            return self.switch() if token == "switch" else self.loop()
        result = self.simple()
        self.expect(";")
        return result

    def simple(self) -> Node:
        """A statement without its semicolon."""
        token = self.peek()
        if token in {"let", "var", "const"}:
            return self.declaration(self.take())
        if token in {"break", "continue"}:
            return ("jump", self.take())
        if token == "return":
            self.take()
            return ("return", None if self.peek() == ";" else self.expression())
        if token in {"loop", "while", "discard", "continuing"}:
            raise WgslError(f"{token!r} is not known")
        target = self.expression()
        operator = self.peek()
        if operator in _ASSIGNMENTS:
            self.take()
            return ("assign", target, operator, self.expression())
        if operator in {"++", "--"}:
            return ("step", target, self.take())
        return ("expression", target)

    def declaration(self, keyword: str) -> Node:
        name = self.take()
        kind = self.type_text(("=", ";")) if self.found(":") else ""
        value = self.expression() if self.found("=") else None
        return ("declare", keyword, name, kind, value)

    def branch(self) -> Node:
        condition = self.expression()
        block = self.block()
        otherwise: Block | None = None
        if self.found("else"):
            otherwise = (self.branch(),) if self.found("if") else self.block()
        return ("if", condition, block, otherwise)

    def switch(self) -> Node:
        value = self.expression()
        cases: list[tuple[tuple[Node | None, ...], Block]] = []
        self.expect("{")
        while not self.found("}"):
            labels: list[Node | None] = []
            if self.found("default"):
                labels.append(None)
            else:
                self.expect("case")
                while self.peek() not in {":", "{"}:
                    default = self.found("default")
                    labels.append(None if default else self.expression())
                    if self.peek() != ":":
                        self.separator("{")
            self.found(":")
            cases.append((tuple(labels), self.block()))
        return ("switch", value, tuple(cases))

    def loop(self) -> Node:
        self.expect("(")
        start = None if self.peek() == ";" else self.simple()
        self.expect(";")
        condition = None if self.peek() == ";" else self.expression()
        self.expect(";")
        step = None if self.peek() == ")" else self.simple()
        self.expect(")")
        return ("for", start, condition, step, self.block())

    # Expressions

    def expression(self, above: int = 0) -> Node:
        left = self.unary()
        while _PRECEDENCE.get(self.peek(), 0) > above:
            operator = self.take()
            right = self.expression(_PRECEDENCE[operator])
            left = ("binary", operator, left, right)
        return left

    def unary(self) -> Node:
        if self.peek() in {"!", "-", "~", "&", "*"}:
            return ("unary", self.take(), self.unary())
        return self.postfix(self.primary())

    def postfix(self, base: Node) -> Node:
        while True:
            if self.found("["):
                base = ("index", base, self.expression())
                self.expect("]")
            elif self.found("."):
                base = ("member", base, self.take())
            else:
                return base

    def primary(self) -> Node:
        token = self.take()
        if token == "(":
            inner = self.expression()
            self.expect(")")
            return ("paren", inner)
        if token in {"true", "false"}:
            return ("value", token == "true")
        if token[0].isdigit() or token[0] == ".":
            value = _UNSIGNED.fullmatch(token)
            return ("text", token) if value is None else ("value", int(value[1], 0))
        if not (token[0].isalpha() or token[0] == "_"):
            raise WgslError(f"an expression begins with {token!r}")
        template = ""
        if token in _TEMPLATES and self.found("<"):
            template = f"<{self.template()}"
        if not self.found("("):
            return ("name", token)
        arguments: list[Node] = []
        while not self.found(")"):
            arguments.append(self.expression())
            self.separator(")")
        return ("call", token, template, tuple(arguments))

    def template(self) -> str:
        """The rest of a template list, with its last `>`."""
        parts: list[str] = []
        depth = 1
        while depth > 0:
            token = self.take()
            depth += (token == "<") - (token == ">") - 2 * (token == ">>")
            parts.append(token)
        return "".join(parts)
