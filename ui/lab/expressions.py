"""A small language for tensors: numbers, names, + - * / ^, a few functions, one statement a line. Never `eval`.

    x = [[1, 2], [3, 4]]        a statement of numbers alone makes a tensor with a gradient
    y = x^2 + 1                 anything else is an operation; what has no name of its own is called t1, t2 …
    mean(y^2)                   the last statement is where the backward pass begins

    program    statement, then a new line or ";", then statement …
    statement  [name "="] sum
    sum        product (("+" | "-") product)*
    product    minus (("*" | "/") minus)*
    minus      "-" minus | power
    power      primary [("^" | "**") minus]
    primary    number | vector | name | function "(" sum ")" | "(" sum ")"

What comes out is a list of single operations in their order, each with its shape. torch is not needed for that.
"""

from __future__ import annotations

import keyword
import math
import re
from dataclasses import dataclass

from ui import limits
from ui.lab import words

Value = float | tuple["Value", ...]
FUNCTIONS = ("mean", "sum", "relu", "exp", "log", "sqrt", "tanh", "sigmoid")
REDUCING = ("mean", "sum")
TAKEN = {*FUNCTIONS, "torch", "grads", "print", "hook", "handle", "name", "t", "g"}
"""Names that the code beside the graph uses itself."""

TOKEN = re.compile(
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z][A-Za-z0-9_]*)"
    r"|(?P<sign>\*\*|[-+*/^=(),\[\];\n])|(?P<space>[ \t\r]+)",
    re.ASCII,
)
SAME = str.maketrans({"·": "*", "×": "*", "−": "-", "÷": "/"})
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,11}", re.ASCII)


class Refusal(ValueError):
    """One sentence about what cannot be read, with its place."""


@dataclass(frozen=True)
class Step:
    """One tensor: given by its value, or made by one operation from names and numbers."""

    name: str
    shape: tuple[int, ...]
    value: Value | None = None
    op: str = ""
    inputs: tuple[str | Value, ...] = ()
    own: bool = True
    """False where the name was not the visitor's."""


@dataclass(frozen=True)
class Token:
    """A word of the text, and where it stands."""

    kind: str
    text: str
    at: int


@dataclass(frozen=True)
class Operand:
    """What a part of an expression stands for: a tensor by name, or numbers."""

    what: str | Value
    shape: tuple[int, ...]


def parse(text: str) -> list[Step]:
    """Read a program.

    Returns  its tensors and operations in their order; the last is where the backward pass begins
    Errors   Refusal, a sentence with line and position
    """
    return Parser(text).program()


def parse_value(text: str) -> Value:
    """Read a number, a vector or a matrix.

    Errors   Refusal
    """
    parser = Parser(text)
    operand = parser.sum()
    if parser.now.kind != "end" or isinstance(operand.what, str) or parser.steps:
        parser.refuse(words.ONLY_NUMBERS)
    return operand.what


def shape_of(value: Value) -> tuple[int, ...]:
    """The shape of a value whose rows are of one length."""
    return (len(value), *shape_of(value[0])) if isinstance(value, tuple) else ()


def source(step: Step) -> str:
    """An operation as it would be written, for people."""
    shown = [each if isinstance(each, str) else written(each) for each in step.inputs]
    if step.op == "-" and len(shown) == 1:
        return f"-{shown[0]}"
    return f"{step.op}({shown[0]})" if step.op in FUNCTIONS else f"{shown[0]} {step.op} {shown[1]}"


def written(value: Value) -> str:
    """A value in the visitor's own notation."""
    if isinstance(value, tuple):
        return f"[{', '.join(written(each) for each in value)}]"
    return str(int(value)) if value == int(value) and abs(value) < 1e9 else repr(value)


class Parser:
    """Recursive descent over the words of one text, bounded in length, depth and number of operations."""

    def __init__(self, text: str) -> None:
        if len(text) > limits.EXPRESSION_LENGTH:
            raise Refusal(words.too_long(len(text), limits.EXPRESSION_LENGTH))
        self.text = text.translate(SAME).replace("²", "^2").replace("³", "^3")
        self.tokens = self._words()
        self.at = self.depth = 0
        self.steps: list[Step] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        pairs = zip(self.tokens, self.tokens[1:], strict=False)
        self.given = {a.text for a, b in pairs if a.kind == "name" and b.text == "="}

    def _words(self) -> list[Token]:
        found, at = [], 0
        while at < len(self.text):
            match = TOKEN.match(self.text, at)
            if not match:
                raise Refusal(words.at(*self._place(at), words.unknown_sign(self.text[at])))
            if match.lastgroup != "space":
                found.append(Token(str(match.lastgroup), match.group(), at))
            at = match.end()
        return [*found, Token("end", "", at)]

    def _place(self, at: int) -> tuple[int, int]:
        before = self.text[:at]
        return before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1

    def refuse(self, why: str, token: Token | None = None) -> None:
        """Raise the sentence with the place of `token`, or of the next word."""
        raise Refusal(words.at(*self._place((token or self.now).at), why))

    @property
    def now(self) -> Token:
        return self.tokens[self.at]

    def take(self, *texts: str) -> Token | None:
        """The next word if it is one of these signs."""
        if self.now.kind == "sign" and self.now.text in texts:
            self.at += 1
            return self.tokens[self.at - 1]
        return None

    def program(self) -> list[Step]:
        """All statements."""
        while self.take("\n", ";"):
            pass
        if self.now.kind == "end":
            raise Refusal(words.NOTHING_WRITTEN)
        while self.now.kind != "end":
            self.statement()
            if self.now.kind != "end" and not self.take("\n", ";"):
                self.refuse(words.unexpected(self.now.text))
            while self.take("\n", ";"):
                pass
        if not any(step.value is not None for step in self.steps):
            raise Refusal(words.NO_TENSOR)
        return self.steps

    def statement(self) -> None:
        """One line: a tensor, or an operation whose last step gets the line's name."""
        begin, name, count = self.now, "", len(self.steps)
        if self.now.kind == "name" and self.tokens[self.at + 1].text == "=":
            name = self._new_name()
        operand = self.sum()
        if not isinstance(operand.what, str):
            if not name:
                self.refuse(words.NAMELESS, begin)
            if sum(step.value is not None for step in self.steps) >= limits.EXPRESSION_TENSORS:
                self.refuse(words.too_many_tensors(limits.EXPRESSION_TENSORS), begin)
            self.steps.append(Step(name, operand.shape, operand.what))
        elif len(self.steps) == count:
            self.refuse(words.same_tensor(operand.what), begin)
        else:
            last = self.steps[-1]
            del self.shapes[last.name]
            name = name or self._free("out")
            self.steps[-1] = Step(name, last.shape, None, last.op, last.inputs)
        self.shapes[name] = operand.shape

    def _new_name(self) -> str:
        token = self.now
        if not NAME.fullmatch(token.text) or keyword.iskeyword(token.text) or token.text in TAKEN:
            self.refuse(words.bad_name(token.text), token)
        if token.text in self.shapes:
            self.refuse(words.twice(token.text), token)
        self.at += 2
        return token.text

    def _free(self, name: str) -> str:
        """The first of t1, t2 … (or out, out2 …) that nobody has."""
        numbers = ("" if name == "out" and k == 1 else str(k) for k in range(1, 10_000))
        return next(name + k for k in numbers if name + k not in self.given and name + k not in self.shapes)

    def sum(self) -> Operand:
        """Terms that are added and taken away."""
        self._deeper()
        left = self.product()
        while sign := self.take("+", "-"):
            left = self._combine(sign, left, self.product())
        self.depth -= 1
        return left

    def product(self) -> Operand:
        """Factors."""
        left = self.minus()
        while sign := self.take("*", "/"):
            left = self._combine(sign, left, self.minus())
        return left

    def minus(self) -> Operand:
        """A sign before a power: -x^2 is -(x^2)."""
        sign = self.take("-")
        if not sign:
            return self.power()
        self._deeper()
        operand = self.minus()
        self.depth -= 1
        if isinstance(operand.what, str):
            return self._step(sign, "-", (operand.what,), operand.shape)
        return Operand(_negative(operand.what), operand.shape)

    def power(self) -> Operand:
        """A base, and its exponent: 2^3^2 is 2^(3^2)."""
        base = self.primary()
        sign = self.take("^", "**")
        if not sign:
            return base
        self._deeper()
        exponent = self.minus()
        self.depth -= 1
        return self._combine(Token("sign", "^", sign.at), base, exponent)

    def primary(self) -> Operand:
        """A number, a vector, a name, a function's call, something in brackets."""
        token, count = self.now, len(self.steps)
        if token.kind == "number":
            self.at += 1
            self._no_product()
            return Operand(self._number(token), ())
        if token.kind == "name":
            return self._named(token)
        if token.text == "[":
            return self._vector()
        if not self.take("("):
            self.refuse(words.unexpected(token.text))
        before = self.at - 1
        inner = self.sum()
        if self.now.text == ",":  # it was a vector
            for step in self.steps[count:]:
                del self.shapes[step.name]
            self.at, self.steps = before, self.steps[:count]
            return self._vector()
        self._close(")")
        return inner

    def _named(self, token: Token) -> Operand:
        self.at += 1
        if token.text in FUNCTIONS:
            if not self.take("("):
                self.refuse(words.needs_bracket(token.text))
            operand = self.sum()
            self._close(")")
            if not isinstance(operand.what, str):
                self.refuse(words.no_tensor_in(token.text), token)
            return self._step(token, token.text, (operand.what,), () if token.text in REDUCING else operand.shape)
        if token.text not in self.shapes:
            known = [step.name for step in self.steps if step.own]
            self.refuse(words.unknown_name(token.text, known, FUNCTIONS), token)
        self._no_product()
        return Operand(token.text, self.shapes[token.text])

    def _no_product(self) -> None:
        """Two things side by side: a multiplication sign was left out."""
        if self.now.kind in ("name", "number") or self.now.text in ("(", "["):
            self.refuse(words.missing_times(self.tokens[self.at - 1].text, self.now.text))

    def _vector(self) -> Operand:
        """Numbers in brackets, and rows of numbers in brackets."""
        begin = self.now
        value = self._row(0)
        self._no_product()
        shape = shape_of(value)
        if math.prod(shape) > limits.EXPRESSION_NUMBERS:
            self.refuse(words.too_large(math.prod(shape), limits.EXPRESSION_NUMBERS), begin)
        return Operand(value, shape)

    def _row(self, depth: int) -> Value:
        opening = self.take("(", "[")
        if opening is None:
            sign = self.take("-", "+")
            token = self.now
            if token.kind != "number":
                self.refuse(words.ONLY_NUMBERS)
            self.at += 1
            number = self._number(token)
            return -number if sign and sign.text == "-" else number
        if depth == 2:
            self.refuse(words.TOO_NESTED, opening)
        entries = [self._row(depth + 1)]
        while self.take(","):
            entries.append(self._row(depth + 1))
        if len({shape_of(entry) for entry in entries}) > 1:
            self.refuse(words.RAGGED, opening)
        self._close(")" if opening.text == "(" else "]")
        return tuple(entries)

    def _number(self, token: Token) -> float:
        number = float(token.text)
        if number > limits.EXPRESSION_LARGEST:
            self.refuse(words.too_big(limits.EXPRESSION_LARGEST), token)
        return number

    def _close(self, sign: str) -> None:
        if not self.take(sign):
            self.refuse(words.not_closed(sign, self.now.text))

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > limits.EXPRESSION_DEPTH:
            self.refuse(words.TOO_DEEP)

    def _combine(self, sign: Token, left: Operand, right: Operand) -> Operand:
        """One operation of two operands; of two plain numbers it is done at once."""
        if isinstance(left.what, float) and isinstance(right.what, float):
            return Operand(self._folded(sign, left.what, right.what), ())
        if not isinstance(left.what, str) and not isinstance(right.what, str):
            self.refuse(words.TWO_VECTORS, sign)
        return self._step(sign, sign.text, (left.what, right.what), self._broadcast(sign, left.shape, right.shape))

    def _folded(self, sign: Token, a: float, b: float) -> float:
        try:
            value = {"+": a.__add__, "-": a.__sub__, "*": a.__mul__, "/": a.__truediv__, "^": a.__pow__}[sign.text](b)
        except (ZeroDivisionError, OverflowError):
            value = math.inf
        if not isinstance(value, float) or not abs(value) <= limits.EXPRESSION_LARGEST:
            self.refuse(words.no_number(a, sign.text, b), sign)
        return value

    def _broadcast(self, sign: Token, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        size = max(len(a), len(b))
        pairs = list(zip((1,) * (size - len(a)) + a, (1,) * (size - len(b)) + b, strict=True))
        if any(x != y and 1 not in (x, y) for x, y in pairs):
            self.refuse(words.shapes(a, b), sign)
        return tuple(max(pair) for pair in pairs)

    def _step(self, token: Token, op: str, inputs: tuple[str | Value, ...], shape: tuple[int, ...]) -> Operand:
        if len(self.steps) >= limits.EXPRESSION_STEPS:
            self.refuse(words.too_many_steps(limits.EXPRESSION_STEPS), token)
        if math.prod(shape) > limits.EXPRESSION_NUMBERS:
            self.refuse(words.too_large(math.prod(shape), limits.EXPRESSION_NUMBERS), token)
        name = self._free("t")
        self.steps.append(Step(name, shape, None, op, inputs, own=False))
        self.shapes[name] = shape
        return Operand(name, shape)


def _negative(value: Value) -> Value:
    return tuple(_negative(each) for each in value) if isinstance(value, tuple) else -value
