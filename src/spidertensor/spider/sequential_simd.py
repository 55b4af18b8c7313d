"""The row operations that dominate the sequential kernel, written as LLVM vectors.

numba vectorises such loops only behind overlap checks that cost as much as the 64 multiply-adds of one row,
and keeps the sums in memory. Here the sums stay in registers across all rows. Everything works on the first
`wide` columns (a multiple of `LANES`) of packed matrices and on the rows whose bit is set in `live`, 64 rows
to a word. Letters: mathematics.md section 3; `d` is delta.

The caller guarantees that the arrays are C-contiguous, do not overlap, and hold every live row and lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.extending
from llvmlite import ir
from numba.core import cgutils, types

intrinsic: Callable[..., Any] = numba.extending.intrinsic  # untyped: callers do not pass typingctx
Value = Any  # an ir.Value; llvmlite does not declare its `type`

LANES = 16  # float32 numbers in the widest vector register
BLOCK_LANES = 64  # processed at once: enough independent sums to hide the latency of a multiply-add
_FAST = ("contract", "reassoc", "nsz", "arcp")


class _Rows:
    """Emits loops over blocks of lanes and over live rows, with the addresses their bodies need."""

    def __init__(self, context, builder, signature, args):
        self.builder = builder
        self.arrays = [
            cgutils.create_struct_proxy(kind)(context, builder, value=arg)
            if isinstance(kind, types.Array)
            else arg
            for kind, arg in zip(signature.args, args, strict=True)
        ]
        self.lane = context.get_data_type(signature.args[0].dtype)
        self.align = 4 if isinstance(self.lane, ir.FloatType) else 8

    def each_block(self, wide: Value, body: Callable[[int, Value], None]) -> None:
        """body(lanes, first lane) for blocks of BLOCK_LANES, then of LANES for the rest."""
        b, word = self.builder, wide.type
        whole = b.mul(b.udiv(wide, word(BLOCK_LANES)), word(BLOCK_LANES))
        for lanes, start, stop in ((BLOCK_LANES, word(0), whole), (LANES, whole, wide)):
            with cgutils.for_range_slice(b, start, stop, word(lanes), word) as (first, _):
                body(lanes, first)

    def each_row(self, live: int, body: Callable[[Value], None]) -> None:
        """body(row) for every bit set in the words of array `live`."""
        b = self.builder
        words = b.extract_value(self.arrays[live].shape, 0)
        with cgutils.for_range(b, words) as word:
            left = self.register(self.element(live, word.index))
            start = b.mul(word.index, words.type(64))
            head, loop, end = (b.append_basic_block(name) for name in ("rows", "row", "rows.end"))
            b.branch(head)
            b.position_at_end(head)
            bits = b.load(left)
            b.cbranch(b.icmp_unsigned("!=", bits, bits.type(0)), loop, end)
            b.position_at_end(loop)
            b.store(b.and_(bits, b.sub(bits, bits.type(1))), left)  # clears the lowest bit
            body(b.add(start, b.cttz(bits, ir.IntType(1)(1))))
            b.branch(head)
            b.position_at_end(end)

    def element(self, array: int, i: Value) -> Value:
        return self.builder.load(self.builder.gep(self.arrays[array].data, [i]))

    def at(self, array: int, first: Value, lanes: int, row: Value | None = None) -> Value:
        """Address of `lanes` lanes of an array, or of one row of a matrix."""
        b = self.builder
        where = first
        if row is not None:
            where = b.add(b.mul(row, b.extract_value(self.arrays[array].shape, 1)), first)
        address = b.gep(self.arrays[array].data, [where])
        return b.bitcast(address, ir.VectorType(self.lane, lanes).as_pointer())

    def load(self, address: Value) -> Value:
        return self.builder.load(address, align=self.align)

    def store(self, value: Value, address: Value) -> None:
        self.builder.store(value, address, align=self.align)

    def splat(self, scalar: Value, lanes: int) -> Value:
        b, vector = self.builder, ir.VectorType(self.lane, lanes)
        one = b.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.IntType(32)(0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
        return b.shuffle_vector(one, ir.Constant(vector, ir.Undefined), mask)

    def sum(self, vector: Value) -> Value:
        name = f"llvm.vector.reduce.fadd.v{vector.type.count}f{8 * self.align}"
        kind = ir.FunctionType(self.lane, [self.lane, vector.type])
        reduce = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(reduce, [self.lane(0.0), vector], fastmath=_FAST)

    def zeros(self, lanes: int) -> ir.Constant:
        return ir.Constant(ir.VectorType(self.lane, lanes), [0.0] * lanes)

    def register(self, value: Value) -> Value:
        """A variable that LLVM keeps in registers, initialised to value."""
        variable = cgutils.alloca_once(self.builder, value.type)
        self.builder.store(value, variable)
        return variable

    def mul(self, x: Value, y: Value) -> Value:
        return self.builder.fmul(x, y, flags=_FAST)

    def add(self, x: Value, y: Value) -> Value:
        return self.builder.fadd(x, y, flags=_FAST)

    def sub(self, x: Value, y: Value) -> Value:
        return self.builder.fsub(x, y, flags=_FAST)


@intrinsic
def live_rows(typingctx, h, slope, live):
    """Set bit j of live where h[j] or slope[j] is not 0. All three cover the same multiple of 64 rows."""

    def codegen(context, builder, signature, args):
        k = _Rows(context, builder, signature, args)
        words = builder.extract_value(k.arrays[2].shape, 0)
        with cgutils.for_range(builder, words) as word:
            first = builder.mul(word.index, words.type(64))
            h, slope = (k.load(k.at(array, first, 64)) for array in (0, 1))
            zero = k.zeros(64)
            bits = builder.or_(
                builder.fcmp_unordered("!=", h, zero), builder.fcmp_unordered("!=", slope, zero)
            )
            builder.store(builder.bitcast(bits, ir.IntType(64)), builder.gep(k.arrays[2].data, [word.index]))
        return context.get_dummy_value()

    return types.none(h, slope, live), codegen


def _sum_rows(k: _Rows, lanes: int, first: Value, live: int, sums: list[tuple[int, int, int, int]]) -> None:
    """out = scale * sum over live rows j of matrix[j] weights[j], for each (matrix, weights, out, scale)."""
    b = k.builder
    totals = [k.register(k.zeros(lanes)) for _ in sums]

    def row(j):
        for total, (matrix, weights, _, _) in zip(totals, sums, strict=True):
            term = k.mul(k.load(k.at(matrix, first, lanes, j)), k.splat(k.element(weights, j), lanes))
            b.store(k.add(b.load(total), term), total)

    k.each_row(live, row)
    for total, (_, _, out, scale) in zip(totals, sums, strict=True):
        k.store(k.mul(b.load(total), k.splat(k.arrays[scale], lanes)), k.at(out, first, lanes))


@intrinsic
def weighted_sum(typingctx, W, h, live, wide, s, out):
    """out = s sum_j W[j] h[j]  over the live rows j."""

    def codegen(context, builder, signature, args):
        k = _Rows(context, builder, signature, args)
        k.each_block(args[3], lambda lanes, first: _sum_rows(k, lanes, first, 2, [(0, 1, 5, 4)]))
        return context.get_dummy_value()

    return types.none(W, h, live, wide, s, out), codegen


@intrinsic
def weighted_sums(typingctx, W, h, a, s, V, h2, p, s2, live, wide):
    """a = s sum_j W[j] h[j]  and  p = s2 sum_j V[j] h2[j], in one loop to hide each other's latency."""

    def codegen(context, builder, signature, args):
        k = _Rows(context, builder, signature, args)
        sums = [(0, 1, 2, 3), (4, 5, 6, 7)]
        k.each_block(args[9], lambda lanes, first: _sum_rows(k, lanes, first, 8, sums))
        return context.get_dummy_value()

    return types.none(W, h, a, s, V, h2, p, s2, live, wide), codegen


@intrinsic
def row_products(typingctx, W, d, live, wide, s, out):
    """out[j] += s W[j] · d  for the live rows j."""

    def codegen(context, builder, signature, args):
        k = _Rows(context, builder, signature, args)

        def block(lanes, first):
            d = k.mul(k.load(k.at(1, first, lanes)), k.splat(args[4], lanes))

            def row(j):
                product = k.sum(k.mul(k.load(k.at(0, first, lanes, j)), d))
                builder.store(k.add(k.element(5, j), product), builder.gep(k.arrays[5].data, [j]))

            k.each_row(2, row)

        k.each_block(args[3], block)
        return context.get_dummy_value()

    return types.none(W, d, live, wide, s, out), codegen


@intrinsic
def narrow_rows(typingctx, W, V, h, d, live, wide, da, c):
    """With vg = V[j] h[j] d:  W[j] += da vg,  V[j] -= c vg²  for the live rows j."""

    def codegen(context, builder, signature, args):
        k = _Rows(context, builder, signature, args)

        def block(lanes, first):
            d = k.load(k.at(3, first, lanes))
            da, c = k.splat(args[6], lanes), k.splat(args[7], lanes)

            def row(j):
                at_w, at_v = k.at(0, first, lanes, j), k.at(1, first, lanes, j)
                w, v = k.load(at_w), k.load(at_v)
                vg = k.mul(v, k.mul(d, k.splat(k.element(2, j), lanes)))
                k.store(k.add(w, k.mul(da, vg)), at_w)
                k.store(k.sub(v, k.mul(c, k.mul(vg, vg))), at_v)

            k.each_row(4, row)

        k.each_block(args[5], block)
        return context.get_dummy_value()

    return types.none(W, V, h, d, live, wide, da, c), codegen


@intrinsic
def bend_rows(typingctx, W, V, h, R_h, d, R_d, live, wide, da, db2, c):
    """With g = h[j] d and bend = db2 (h[j] R_d + R_h[j] d), for the live rows j:

        W[j] += V[j] (da g + bend),   V[j] -= V[j]² (c g² + bend (2 da g + bend))

    An element whose variance would not stay positive keeps both; returns how many did. The comparison fails
    for NaN, and no flag here lets LLVM assume there is none.
    """

    def codegen(context, builder, signature, args):
        k = _Rows(context, builder, signature, args)
        da, db2, c = args[8:]
        good = k.register(ir.IntType(64)(0))
        all_lanes = k.register(ir.IntType(64)(0))

        def block(lanes, first):
            d, R_d = k.load(k.at(4, first, lanes)), k.load(k.at(5, first, lanes))
            d2, bend_d = k.mul(d, d), k.mul(R_d, k.splat(db2, lanes))

            def row(j):
                h, R_h = k.element(2, j), k.element(3, j)
                at_w, at_v = k.at(0, first, lanes, j), k.at(1, first, lanes, j)
                w, v = k.load(at_w), k.load(at_v)
                da_g = k.mul(k.splat(k.mul(da, h), lanes), d)
                bend = k.add(k.mul(k.splat(k.mul(db2, R_h), lanes), d), k.mul(k.splat(h, lanes), bend_d))
                dmu = k.add(da_g, bend)
                c_g2 = k.mul(k.splat(k.mul(c, k.mul(h, h)), lanes), d2)
                shrink = k.add(c_g2, k.mul(bend, k.add(dmu, da_g)))
                new_v = k.sub(v, k.mul(k.mul(v, v), shrink))
                positive = builder.fcmp_ordered(">", new_v, k.zeros(lanes))
                k.store(builder.select(positive, k.add(w, k.mul(v, dmu)), w), at_w)
                k.store(builder.select(positive, new_v, v), at_v)
                bits = builder.zext(builder.bitcast(positive, ir.IntType(lanes)), ir.IntType(64))
                builder.store(builder.add(builder.load(good), builder.ctpop(bits)), good)
                builder.store(builder.add(builder.load(all_lanes), ir.IntType(64)(lanes)), all_lanes)

            k.each_row(6, row)

        k.each_block(args[7], block)
        return builder.sub(builder.load(all_lanes), builder.load(good))

    return types.int64(W, V, h, R_h, d, R_d, live, wide, da, db2, c), codegen
