"""Words of memory that several threads share: LLVM's atomics, the pause, calls through a pointer.

A word is 8 bytes. `word(base, index)` is the address of the index-th word after `base`; the atomic
operations take such an address. A load acquires and a store releases: what a thread wrote before it
stored a word is seen by the thread that loads the word's new value. `exchange` is also ordered
against every other exchange and load of the program, which a thread that is about to sleep needs.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

WORD_BYTES = 8
_WORD = ir.IntType(64)
_INT = ir.IntType(32)
_PAUSES = {"x86_64": ("llvm.x86.sse2.pause", []), "aarch64": ("llvm.aarch64.hint", [1])}
"""architecture -> the instruction that tells a core it waits in a loop, and its operands"""


def _address(builder: Any, value: Any) -> Any:
    return builder.inttoptr(value, _WORD.as_pointer())


def _call(builder: Any, function: Any, returns: Any, arguments: Any) -> Any:
    kind = ir.FunctionType(returns, [argument.type for argument in arguments])
    return builder.call(builder.inttoptr(function, kind.as_pointer()), arguments)


@intrinsic
def word(typing, base, index):
    """Return the address of the index-th word after `base`."""

    def generate(context, builder, signature, arguments):
        base, index = arguments
        return builder.add(base, builder.mul(index, ir.Constant(_WORD, WORD_BYTES)))

    return types.intp(types.intp, types.intp), generate


@intrinsic
def read(typing, address):
    """Return the word at `address`, which no thread is writing."""

    def generate(context, builder, signature, arguments):
        return builder.load(_address(builder, arguments[0]), align=WORD_BYTES)

    return types.intp(types.intp), generate


@intrinsic
def write(typing, address, value):
    """Set the word at `address`, which no other thread reads meanwhile."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[1], _address(builder, arguments[0]), align=WORD_BYTES)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def load(typing, address):
    """Return the word at `address`, with all that was written before it was stored."""

    def generate(context, builder, signature, arguments):
        # seq_cst: on x86 a plain load, on ARM LDAR; `exchange` says why acquire would not do
        return builder.load_atomic(_address(builder, arguments[0]), "seq_cst", WORD_BYTES)

    return types.intp(types.intp), generate


@intrinsic
def store(typing, address, value):
    """Set the word at `address`, and let all that was written before be seen with it."""

    def generate(context, builder, signature, arguments):
        builder.store_atomic(arguments[1], _address(builder, arguments[0]), "release", WORD_BYTES)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


def _read_modify_write(name: str, operation: str, ordering: str, doc: str) -> Any:
    def typed(typing, address, value):
        def generate(context, builder, signature, arguments):
            address, value = arguments
            return builder.atomic_rmw(operation, _address(builder, address), value, ordering)

        return types.intp(types.intp, types.intp), generate

    typed.__name__ = typed.__qualname__ = name
    typed.__doc__ = doc
    return intrinsic(typed)


add = _read_modify_write(
    "add", "add", "acq_rel", "Add to the word at `address`, return what it was: a load and a store."
)
exchange = _read_modify_write(
    "exchange",
    "xchg",
    # Two threads that each set one word and then look at the other's must not both see the old
    # value (a worker goes to sleep just as a launch begins): only seq_cst rules that out.
    "seq_cst",
    "Set the word at `address` and return what it was.",
)


@intrinsic
def pause(typing):
    """Tell the core that it waits in a loop, where there is an instruction for it."""

    def generate(context, builder, signature, arguments):
        architecture = llvmlite.binding.get_process_triple().partition("-")[0]
        architecture = {"arm64": "aarch64"}.get(architecture, architecture)
        if architecture in _PAUSES:
            name, operands = _PAUSES[architecture]
            kind = ir.FunctionType(ir.VoidType(), [_INT] * len(operands))
            function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
            builder.call(function, [ir.Constant(_INT, operand) for operand in operands])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def call_kernel(typing, function, thread, threads, args):
    """Call the C function void(intp thread, intp threads, intp args) at an address."""

    def generate(context, builder, signature, arguments):
        _call(builder, arguments[0], ir.VoidType(), arguments[1:])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp), generate


@intrinsic
def call_yield(typing, function):
    """Call the C function int() at an address: sched_yield, SwitchToThread."""

    def generate(context, builder, signature, arguments):
        _call(builder, arguments[0], _INT, [])
        return context.get_dummy_value()

    return types.void(types.intp), generate


@intrinsic
def call_acquire(typing, function, lock):
    """Call PyThread_acquire_lock, int(lock, int wait), at an address: sleep till it is ours."""

    def generate(context, builder, signature, arguments):
        function, lock = arguments
        _call(builder, function, _INT, [lock, ir.Constant(_INT, 1)])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def call_release(typing, function, lock):
    """Call PyThread_release_lock, void(lock), at an address."""

    def generate(context, builder, signature, arguments):
        function, lock = arguments
        _call(builder, function, ir.VoidType(), [lock])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate
