"""Changes of a function's syntax tree: each is one small mistake that its author could have made.

:func:`changes` lists them in the order of the source. What says nothing about a value is left out by rule: annotations,
decorators, defaults, messages of errors, f-strings, assertions, tolerances and settings of display.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
RELAXED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
EXCHANGED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
_PAIRS = ("min max", "minimum maximum", "fmin fmax", "nanmin nanmax", "argmin argmax", "any all", "floor ceil")
OPPOSITE = {a: b for one, other in map(str.split, _PAIRS) for a, b in ((one, other), (other, one))}
SYMMETRIC = {
    *OPPOSITE,
    "isinstance",
    "issubclass",
    "getattr",
    "zip",
    "gcd",
    "lcm",
    "hypot",
    "isclose",
    "allclose",
    "cast",
}
"""Functions whose arguments are not swapped: the result is the same, or nothing but a TypeError."""
TYPES = {"float", "int", "str", "bool", "self", "cls"}
WORDS = {"print", "echo", "secho", "warn", "debug", "info", "warning", "error", "log", "style", "cast", "field"}
"""Calls that print, log or declare: nothing inside them is changed."""
SETTINGS = {"digits", "indent", "decimals", "maxsize", "timeout", "rtol", "atol", "tolerance"}
"""Keyword arguments whose value is no part of an answer."""
TOLERANCE = 1e-5
"""A constant of smaller magnitude is taken for a tolerance."""

_LEFT_OUT = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)
_NOT_A_VALUE = {"annotation", "returns", "decorator_list", "defaults", "kw_defaults", "type_params"}
_TEXT = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Set, ast.Dict)


class Change(NamedTuple):
    """``node`` becomes ``new``; ``statement`` is the statement around it."""

    operator: str
    node: ast.AST
    new: ast.AST
    statement: ast.stmt


def changes(function: ast.stmt) -> list[Change]:
    """Every change of a function's body."""
    return list(_inside(function, function))


def _inside(node: ast.AST, statement: ast.stmt) -> Iterator[Change]:
    if isinstance(node, _LEFT_OUT) or (isinstance(node, ast.Call) and name_of(node.func) in WORDS):
        return
    if isinstance(node, ast.keyword) and node.arg in SETTINGS:
        return
    statement = node if isinstance(node, ast.stmt) else statement
    for operator, target, new in (*_logic(node), *_arithmetic(node), *_calls(node)):
        yield Change(operator, target, ast.fix_missing_locations(ast.copy_location(new, target)), statement)
    for field, value in ast.iter_fields(node):
        if field not in _NOT_A_VALUE:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _inside(child, statement)


_Found = Iterator[tuple[str, ast.AST, ast.AST]]


def _logic(node: ast.AST) -> _Found:
    """Comparisons, boolean operands and conditions."""
    if isinstance(node, ast.Compare):
        for index, old in enumerate(node.ops):
            for name, table in (("flipped", FLIPPED), ("relaxed", RELAXED)):
                if type(old) in table:
                    ops = [*node.ops[:index], table[type(old)](), *node.ops[index + 1 :]]
                    yield name, node, ast.Compare(left=node.left, ops=ops, comparators=node.comparators)
    elif isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            rest = node.values[:index] + node.values[index + 1 :]
            yield "operand", node, rest[0] if len(rest) == 1 else ast.BoolOp(op=node.op, values=rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "operand", node, node.operand
    elif isinstance(node, (ast.If, ast.IfExp)):
        yield "branch", node.test, ast.Constant(value=False)
        if not (isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise)):
            yield "branch", node.test, ast.Constant(value=True)
    elif isinstance(node, ast.comprehension):
        yield from (("branch", test, ast.Constant(value=True)) for test in node.ifs)


def _arithmetic(node: ast.AST) -> _Found:
    """Operators, terms of sums and products, numbers."""
    if isinstance(node, ast.BinOp) and not any(_is_text(one) or _is_tolerance(one) for one in (node.left, node.right)):
        if type(node.op) in EXCHANGED:
            yield "exchanged", node, ast.BinOp(left=node.left, op=EXCHANGED[type(node.op)](), right=node.right)
            yield "term", node, node.left
        if isinstance(node.op, (ast.Add, ast.Mult)):
            yield "term", node, node.right
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield "term", node, node.operand
    elif isinstance(node, ast.AugAssign) and type(node.op) in EXCHANGED and not _is_text(node.value):
        yield "exchanged", node, ast.AugAssign(target=node.target, op=EXCHANGED[type(node.op)](), value=node.value)
        yield "term", node, ast.Pass()
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        if isinstance(node.value, int):
            yield "constant", node, ast.Constant(value=node.value + 1)
        elif not _is_tolerance(node):
            yield "constant", node, ast.Constant(value=2 * node.value or 1.0)  # type: ignore[operator]
    for operand in _operands(node):
        if isinstance(operand, ast.Name) and operand.id.isupper():  # a constant of the module
            yield "constant", operand, ast.BinOp(left=operand, op=ast.Mult(), right=ast.Constant(value=2))


def _operands(node: ast.AST) -> list[ast.expr]:
    """Where the name of a constant stands for its number."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    return [node.value] if isinstance(node, ast.keyword) else []


def _calls(node: ast.AST) -> _Found:
    """Arguments swapped, min for max and its like."""
    if not isinstance(node, ast.Call):
        return
    name = name_of(node.func)
    if name in OPPOSITE:
        yield "opposite", node.func, _renamed(node.func, OPPOSITE[name])
    if name in SYMMETRIC or any(isinstance(argument, ast.Starred) for argument in node.args):
        return
    for index in range(len(node.args) - 1):
        first, second = node.args[index : index + 2]
        if _is_number(first) and _is_number(second) and ast.dump(first) != ast.dump(second):
            swapped = [*node.args[:index], second, first, *node.args[index + 2 :]]
            yield "arguments", node, ast.Call(func=node.func, args=swapped, keywords=node.keywords)


def name_of(function: ast.expr) -> str:
    """The last name of what is called: ``minimum`` of ``np.minimum``."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _renamed(function: ast.expr, name: str) -> ast.expr:
    if isinstance(function, ast.Attribute):
        return ast.Attribute(value=function.value, attr=name, ctx=ast.Load())
    if name in ("floor", "ceil"):  # imported by name: the other one may not be
        return ast.parse(f"__import__('math').{name}", mode="eval").body
    return ast.Name(id=name, ctx=ast.Load())


def _is_number(node: ast.expr) -> bool:
    """Whether an argument could be taken for another: no literal, no type, no function."""
    return (
        isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.BinOp)) and name_of(node) not in TYPES
    )


def _is_tolerance(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < abs(node.value) < TOLERANCE


def _is_text(node: ast.expr) -> bool:
    """Whether an operand of ``+``, ``*`` or ``%`` is a text or a list."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, _TEXT) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))
