"""A Numba type that holds one number for each of several keys, so that a kernel scores these keys with one instruction.

Frozen: what it computes, to the last bit, since the kernels rest on it; it may become faster.

LLVM does not find by itself that the loops of the forward pass can run over several keys at a time, since it cannot rule out
that their arrays overlap. With this type, the same source is compiled for one key (an array of numbers) and for `LANES` keys
(an array whose last axis has that length, one lane a key). Every lane is computed as a single number would be, with the same
operations in the same order, so the results are the same to the last bit.

Numba's cache does not notice changes in this file: delete the cache (`alimark.core._util.compiling`) after changing it.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

LANES = 4  # the number of keys that are scored together: the double-precision numbers of one AVX2 register

_VECTOR = ir.VectorType(ir.DoubleType(), LANES)


class LanesType(types.Type):  # type: ignore[misc]
    """The Numba type of `LANES` numbers in one register."""

    def __init__(self) -> None:
        super().__init__(name=f"Lanes({LANES})")


_lanes = LanesType()


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, lanes: Any) -> None:
        super().__init__(manager, lanes, _VECTOR)


def _place(lane: int) -> Any:
    return ir.Constant(ir.IntType(32), lane)


def _in_all_lanes(context: Any, builder: Any, value: Any, value_type: Any) -> Any:
    """The value itself if it has lanes, else the same number in every lane."""
    if isinstance(value_type, LanesType):
        return value
    number = context.cast(builder, value, value_type, types.float64)
    empty = ir.Constant(_VECTOR, ir.Undefined)
    first_of_all = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(builder.insert_element(empty, number, _place(0)), empty, first_of_all)


def _define(function: Callable[[Any, Any], Any], instruction: str) -> None:
    """Defines an operator for lanes with lanes and for lanes with a number, by one instruction of LLVM."""

    @type_callable(function)  # type: ignore[untyped-decorator]
    def typed(_: Any) -> Any:
        return lambda left, right: _lanes if isinstance(left, LanesType) or isinstance(right, LanesType) else None

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pairs = zip(values, signature.args, strict=True)
        return getattr(builder, instruction)(*(_in_all_lanes(context, builder, *pair) for pair in pairs))

    for operands in ((LanesType, LanesType), (LanesType, types.Number), (types.Number, LanesType)):
        lower_builtin(function, *operands)(generate)


_define(operator.add, "fadd")
_define(operator.sub, "fsub")
_define(operator.mul, "fmul")
_define(operator.truediv, "fdiv")


def _has_lanes(array: Any) -> bool:
    assert array.layout == "C", "only contiguous arrays are read and written"
    return bool(array.ndim == 2)


def _pointer(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    """Where the row of an array begins; the array and the number of the row are the first two values."""
    array_type, row_type = signature.args[:2]
    data = context.make_array(array_type)(context, builder, values[0]).data
    row = context.cast(builder, values[1], row_type, types.intp)
    if not _has_lanes(array_type):
        return builder.gep(data, [row])
    first = builder.mul(row, context.get_constant(types.intp, LANES))
    return builder.bitcast(builder.gep(data, [first]), _VECTOR.as_pointer())


@intrinsic  # type: ignore[untyped-decorator]
def _read(_: Any, array: Any, row: Any) -> Any:
    """The number `array[row]` of a one-dimensional array, or the lanes `array[row]` of an array of shape (rows, LANES).

    `row` must not be negative or beyond the end: it is not checked.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        loaded = builder.load(_pointer(context, builder, signature, values))
        loaded.align = 8  # NumPy aligns numbers, not rows
        return loaded

    return (_lanes if _has_lanes(array) else types.float64)(array, row), generate


@intrinsic  # type: ignore[untyped-decorator]
def _write(_: Any, array: Any, row: Any, value: Any) -> Any:
    """Sets `array[row]` to a number or to lanes, as `_read` reads them. A number is written to all lanes."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = _pointer(context, builder, signature, values)
        if _has_lanes(array):
            stored = _in_all_lanes(context, builder, values[2], value)
        else:
            stored = context.cast(builder, values[2], value, types.float64)
        builder.store(stored, pointer).align = 8
        return context.get_dummy_value()

    return types.none(array, row, value), generate
