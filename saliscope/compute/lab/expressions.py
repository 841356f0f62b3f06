"""A parser for tensor expressions that does not use `eval`: numbers, names, + - * / ^ and a few functions.

    x = [[1, 2], [3, 4]]        a statement with only numbers is a leaf tensor
    y = x^2 + 1                 any other statement is an operation; unnamed intermediate results are t1, t2 …
    mean(y^2)                   the backward pass starts at the last statement

    program    statement, then a new line or ";", then statement …
    statement  [name "="] sum
    sum        product (("+" | "-") product)*
    product    minus (("*" | "/") minus)*
    minus      "-" minus | power
    power      primary [("^" | "**") minus]
    primary    number | vector | name | function "(" sum ")" | "(" sum ")"

The result is the list of elementary operations in execution order with their shapes. It does not need torch.
"""

from __future__ import annotations

import keyword
import math
import operator
import re
from dataclasses import dataclass
from typing import NoReturn

from saliscope import limits
from saliscope.compute.lab.messages import plain_number, short, too_long
from saliscope.errors import Refused

Value = float | tuple["Value", ...]
Operand = str | Value
"""A subexpression: the name of a tensor, or a constant."""
FUNCTIONS = ("mean", "sum", "relu", "exp", "log", "sqrt", "tanh", "sigmoid")
REDUCING = ("mean", "sum")
RESERVED = {*FUNCTIONS, "torch", "grads", "print", "hook", "handle", "name", "t", "g"}
"""Names that are used by the generated PyTorch code."""

TOKEN = re.compile(
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z][A-Za-z0-9_]*)"
    r"|(?P<sign>\*\*|[-+*/^=(),\[\];\n])|(?P<space>[ \t\r]+)",
    re.ASCII,
)
ASCII = str.maketrans({"·": "*", "×": "*", "−": "-", "÷": "/"})
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,11}", re.ASCII)
NOT_FINITE = {"nan", "inf", "infinity"}
ONLY_NUMBERS = "only numbers are allowed here, as in (1, 2, 3) or [[1, 2], [3, 4]]."
NAN_OR_INFINITY = "NaN and ∞ are not supported. Write a number up to 1e12."
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "^": operator.pow}


class Refusal(Refused):
    """A syntax or shape error with its position; `field` is the form field that caused it."""

    def __init__(self, message: str, field: str = "program") -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Step:
    """One tensor: a leaf with its value, or the result of an operation on names and numbers."""

    name: str
    shape: tuple[int, ...]
    value: Value | None = None
    op: str = ""
    inputs: tuple[Operand, ...] = ()
    own: bool = True
    """False for a generated name."""


@dataclass(frozen=True)
class Token:
    """A lexical token and its position."""

    kind: str
    text: str
    at: int


def parse(text: str) -> list[Step]:
    """Parse a program.

    Returns  leaves and operations in execution order; the backward pass starts at the last one
    Errors   Refusal, with line and position
    """
    return Parser(text).program()


def parse_value(text: str) -> Value:
    """Parse a number, a vector or a matrix.

    Errors   Refusal
    """
    parser = Parser(text)
    operand = parser.sum()
    if parser.now.kind != "end" or isinstance(operand, str) or parser.steps:
        parser.refuse(ONLY_NUMBERS)
    return operand


def shape_of(value: Value) -> tuple[int, ...]:
    """Return the shape of a rectangular value."""
    return (len(value), *shape_of(value[0])) if isinstance(value, tuple) else ()


def format_shape(shape: tuple[int, ...]) -> str:
    """Return a shape, such as "2 × 3"."""
    return " × ".join(map(str, shape)) or "()"


def source(step: Step) -> str:
    """Return an operation in the notation of the expression."""
    operands = [operand if isinstance(operand, str) else format_value(operand) for operand in step.inputs]
    if step.op == "-" and len(operands) == 1:
        return f"-{operands[0]}"
    return f"{step.op}({operands[0]})" if step.op in FUNCTIONS else f"{operands[0]} {step.op} {operands[1]}"


def format_value(value: Value) -> str:
    """Return a value in the notation of the expression."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(format_value, value))}]"
    return str(int(value)) if value == int(value) and abs(value) < 1e9 else repr(value)


class Parser:
    """A recursive-descent parser with limits on length, depth and number of operations."""

    def __init__(self, text: str) -> None:
        if len(text) > limits.EXPRESSION_LENGTH:
            raise Refusal(too_long(len(text)))
        self.text = text.translate(ASCII).replace("²", "^2").replace("³", "^3")
        self.tokens = self._tokenize()
        self.at = self.depth = 0
        self.steps: list[Step] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        pairs = zip(self.tokens, self.tokens[1:], strict=False)
        self.assigned = {a.text for a, b in pairs if a.kind == "name" and b.text == "="}

    def _tokenize(self) -> list[Token]:
        tokens, at = [], 0
        while at < len(self.text):
            match = TOKEN.match(self.text, at)
            if not match:
                sign = self.text[at]
                why = (
                    f"unexpected character “{sign}”."
                    if sign.isprintable()
                    else "an unprintable character is not allowed."
                )
                self.refuse(NAN_OR_INFINITY if sign == "∞" else why, Token("sign", sign, at))
            if match.lastgroup != "space":
                tokens.append(Token(str(match.lastgroup), match.group(), at))
            at = match.end()
        return [*tokens, Token("end", "", at)]

    def refuse(self, why: str, token: Token | None = None) -> NoReturn:
        """Raise an error at the position of `token`, by default the next token."""
        before = self.text[: (token or self.now).at]
        line, position = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise Refusal(f"Line {line}, position {position}: {why}")

    @property
    def now(self) -> Token:
        """The next token."""
        return self.tokens[self.at]

    def take(self, *texts: str) -> Token | None:
        """Consume the next token if it is one of these signs."""
        if self.now.kind == "sign" and self.now.text in texts:
            self.at += 1
            return self.tokens[self.at - 1]
        return None

    def program(self) -> list[Step]:
        """Parse all statements."""
        while self.take("\n", ";"):
            pass
        if self.now.kind == "end":
            raise Refusal("The expression is empty. Try x = (1, 2, 3), followed by mean(x^2) on the next line.")
        while self.now.kind != "end":
            self.statement()
            if self.now.kind != "end" and not self.take("\n", ";"):
                self._refuse_unexpected(self.now)
            while self.take("\n", ";"):
                pass
        if not any(step.value is not None for step in self.steps):
            raise Refusal("There is no leaf tensor. Start with a line such as x = (1, 2, 3).")
        return self.steps

    def statement(self) -> None:
        """Parse a statement: a leaf, or an operation whose last step gets the name of the statement."""
        start, name, count = self.now, "", len(self.steps)
        if self.now.kind == "name" and self.tokens[self.at + 1].text == "=":
            name = self._new_name()
        operand = self.sum()
        if not isinstance(operand, str):
            if not name:
                self.refuse("a constant needs a name, as in x = (1, 2, 3).", start)
            if sum(step.value is not None for step in self.steps) >= limits.EXPRESSION_TENSORS:
                self.refuse(f"too many leaf tensors: at most {limits.EXPRESSION_TENSORS} are allowed.", start)
            self.steps.append(Step(name, shape_of(operand), operand))
        elif len(self.steps) == count:
            self.refuse(f"this is only another name for {short(operand)}. Write an operation.", start)
        else:
            last = self.steps[-1]
            del self.shapes[last.name]
            name = name or self._free("out")
            self.steps[-1] = Step(name, last.shape, None, last.op, last.inputs)
        self.shapes[name] = self.steps[-1].shape

    def _new_name(self) -> str:
        token = self.now
        self._no_infinity(token)
        if not NAME.fullmatch(token.text) or keyword.iskeyword(token.text) or token.text in RESERVED:
            hint = "Use up to twelve letters and digits, such as x or m1."
            self.refuse(f"“{short(token.text)}” is not a valid name. {hint}", token)
        if token.text in self.shapes:
            self.refuse(f"{short(token.text)} is already defined. Use another name.", token)
        self.at += 2
        return token.text

    def _free(self, name: str) -> str:
        """Return the first unused name of t1, t2 … (or out, out2 …)."""
        numbers = ("" if name == "out" and k == 1 else str(k) for k in range(1, 10_000))
        return next(name + k for k in numbers if name + k not in self.assigned and name + k not in self.shapes)

    def sum(self) -> Operand:
        """Parse a sum of terms."""
        self._enter()
        left = self.product()
        while sign := self.take("+", "-"):
            left = self._combine(sign, left, self.product())
        self.depth -= 1
        return left

    def product(self) -> Operand:
        """Parse a product of factors."""
        left = self.minus()
        while sign := self.take("*", "/"):
            left = self._combine(sign, left, self.minus())
        return left

    def minus(self) -> Operand:
        """Parse a unary minus: -x^2 is -(x^2)."""
        sign = self.take("-")
        if not sign:
            return self.power()
        self._enter()
        operand = self.minus()
        self.depth -= 1
        if isinstance(operand, str):
            return self._step(sign, "-", (operand,), self.shapes[operand])
        return _negative(operand)

    def power(self) -> Operand:
        """Parse base and exponent, right-associative: 2^3^2 is 2^(3^2)."""
        base = self.primary()
        sign = self.take("^", "**")
        if not sign:
            return base
        self._enter()
        exponent = self.minus()
        self.depth -= 1
        return self._combine(Token("sign", "^", sign.at), base, exponent)

    def primary(self) -> Operand:
        """Parse a number, a vector, a name, a function call or an expression in brackets."""
        token, count = self.now, len(self.steps)
        if token.kind == "number":
            self.at += 1
            self._no_juxtaposition()
            return self._number(token)
        if token.kind == "name":
            return self._name(token)
        if token.text == "[":
            return self._vector()
        if not self.take("("):
            self._refuse_unexpected(token)
        before = self.at - 1
        inner = self.sum()
        if self.now.text == ",":  # this is a vector
            for step in self.steps[count:]:
                del self.shapes[step.name]
            self.at, self.steps = before, self.steps[:count]
            return self._vector()
        self._close(")")
        return inner

    def _name(self, token: Token) -> Operand:
        self.at += 1
        if token.text in FUNCTIONS:
            if not self.take("("):
                self.refuse(f"{token.text} needs brackets: {token.text}(x).")
            operand = self.sum()
            self._close(")")
            if not isinstance(operand, str):
                self.refuse(f"{token.text} needs a named tensor as its argument.", token)
            shape = () if token.text in REDUCING else self.shapes[operand]
            return self._step(token, token.text, (operand,), shape)
        if token.text not in self.shapes:
            self._no_infinity(token)
            known = [step.name for step in self.steps if step.own]
            defined = f"Defined so far: {', '.join(known)}." if known else "Define it on a line above."
            self.refuse(f"unknown name “{short(token.text)}”. {defined} Functions: {', '.join(FUNCTIONS)}.", token)
        self._no_juxtaposition()
        return token.text

    def _no_juxtaposition(self) -> None:
        """Refuse a missing operator, as in 2 x."""
        if self.now.kind in ("name", "number") or self.now.text in ("(", "["):
            left, right = short(self.tokens[self.at - 1].text), short(self.now.text)
            self.refuse(f"missing operator between {left} and {right}. Try {left} * {right}.")

    def _refuse_unexpected(self, token: Token) -> NoReturn:
        if token.text == "=":
            self.refuse("“=” must follow a single name at the start of a line.")
        self.refuse(f"expected a number, a name or a bracket, got {_quoted(token)}.")

    def _vector(self) -> Operand:
        """Parse a vector or a matrix."""
        start = self.now
        value = self._row(0)
        self._no_juxtaposition()
        self._check_size(shape_of(value), start)
        return value

    def _check_size(self, shape: tuple[int, ...], token: Token) -> None:
        count, most = math.prod(shape), limits.EXPRESSION_NUMBERS
        if count > most:
            self.refuse(f"this tensor would have {count} elements, but at most {most} are allowed.", token)

    def _row(self, depth: int) -> Value:
        opening = self.take("(", "[")
        if opening is None:
            sign = self.take("-", "+")
            token = self.now
            if token.kind != "number":
                self._no_infinity(token)
                self.refuse(ONLY_NUMBERS)
            self.at += 1
            number = self._number(token)
            return -number if sign and sign.text == "-" else number
        if depth == 2:
            self.refuse("tensors can have at most two dimensions here.", opening)
        entries = [self._row(depth + 1)]
        while self.take(","):
            entries.append(self._row(depth + 1))
        if len({shape_of(entry) for entry in entries}) > 1:
            self.refuse("all rows of a tensor must have the same length.", opening)
        self._close(")" if opening.text == "(" else "]")
        return tuple(entries)

    def _number(self, token: Token) -> float:
        number = float(token.text)
        if number > limits.EXPRESSION_LARGEST:
            most = plain_number(limits.EXPRESSION_LARGEST)
            self.refuse(f"{short(token.text)} is too large. The maximum is {most}.", token)
        return number

    def _no_infinity(self, token: Token) -> None:
        """Refuse names for NaN and infinity."""
        if token.kind == "name" and token.text.lower() in NOT_FINITE:
            self.refuse(NAN_OR_INFINITY, token)

    def _close(self, sign: str) -> None:
        if not self.take(sign):
            self.refuse(f"missing closing “{sign}” before {_quoted(self.now)}.")

    def _enter(self) -> None:
        self.depth += 1
        if self.depth > limits.EXPRESSION_DEPTH:
            self.refuse("the expression is nested too deeply. Assign inner expressions to names on separate lines.")

    def _combine(self, sign: Token, left: Operand, right: Operand) -> Operand:
        """Return a binary operation, or its value if both operands are numbers (constant folding)."""
        if isinstance(left, float) and isinstance(right, float):
            return self._fold(sign, left, right)
        if not isinstance(left, str) and not isinstance(right, str):
            self.refuse("an operation needs at least one named tensor. Name one of these constants.", sign)
        a, b = (self.shapes[each] if isinstance(each, str) else shape_of(each) for each in (left, right))
        return self._step(sign, sign.text, (left, right), self._broadcast(sign, a, b))

    def _fold(self, sign: Token, a: float, b: float) -> float:
        value: object
        try:
            value = OPERATORS[sign.text](a, b)
        except (ZeroDivisionError, OverflowError):
            value = math.inf
        if not isinstance(value, float) or not abs(value) <= limits.EXPRESSION_LARGEST:
            most = plain_number(limits.EXPRESSION_LARGEST)
            self.refuse(f"{a:g} {sign.text} {b:g} is not a real number up to {most}.", sign)
        return value

    def _broadcast(self, sign: Token, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        size = max(len(a), len(b))
        pairs = list(zip((1,) * (size - len(a)) + a, (1,) * (size - len(b)) + b, strict=True))
        if any(x != y and 1 not in (x, y) for x, y in pairs):
            self.refuse(f"shapes {format_shape(a)} and {format_shape(b)} cannot be broadcast.", sign)
        return tuple(max(pair) for pair in pairs)

    def _step(self, token: Token, op: str, inputs: tuple[Operand, ...], shape: tuple[int, ...]) -> str:
        if len(self.steps) >= limits.EXPRESSION_STEPS:
            self.refuse(f"too many operations: at most {limits.EXPRESSION_STEPS} are allowed.", token)
        self._check_size(shape, token)
        name = self._free("t")
        self.steps.append(Step(name, shape, None, op, inputs, own=False))
        self.shapes[name] = shape
        return name


def _quoted(token: Token) -> str:
    return {"": "the end", "\n": "the end of the line"}.get(token.text, f"“{short(token.text)}”")


def _negative(value: Value) -> Value:
    return tuple(map(_negative, value)) if isinstance(value, tuple) else -value
