"""How kernels are compiled: each piece of code once, for compiling is what a first run waits for.

Numba treats every function as something that Python may call: it optimises it with all that it
calls, makes machine code of it, and then does the same again for each of its callers, level by
level. Here there are three kinds of functions instead:

    kernel, inline, helper   parts: typed and translated once, optimised only in what uses them
    shared                   units: compiled for themselves, and called by name
    a program                a unit that Python calls (`runtime.compiled`)

A part is compiled once for each combination of types, not for each literal that it is called with.
Only a unit is optimised, in one pass over the whole of it, and only a unit is cached.
"""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import cfunc, njit, types
from numba.core import codegen, compiler
from numba.core import typed_passes as typed
from numba.core import untyped_passes as untyped
from numba.core.compiler_machinery import PassManager
from numba.core.typing import signature
from numba.extending import intrinsic, register_jitable

OPTIONS = {"nogil": True, "error_model": "numpy"}

Need = tuple[str, tuple[Any, ...]]
"""a unit: its name, and the types of its arguments"""


class _Library(codegen.JITCodeLibrary):
    """One function's LLVM code, which waits to be optimised until all that it calls is there."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.needs: dict[Need, None] = {}  # the units that it calls by name

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def parts(self) -> dict[Any, None]:
        """Return all libraries that this one needs, directly or through parts, each once."""
        found: dict[Any, None] = {}
        waiting = list(reversed(self._linking_libraries))
        while waiting:
            library = waiting.pop()
            if library not in found:
                found[library] = None
                if isinstance(library, PartLibrary):
                    waiting += reversed(library._linking_libraries)
        return found


class PartLibrary(_Library):
    """A part's code: neither optimised nor made machine code."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalize_dynamic_globals()
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        """Return the code with all its parts, for a function that is compiled in Numba's way."""
        if self._shared_module is None:
            self._ensure_finalized()
            whole = self._final_module.clone()
            for library in self.parts():
                part = library._final_module if isinstance(library, PartLibrary) else None
                whole.link_in(part or library._get_module_for_linking(), preserve=True)
            for function in whole.functions:
                if not function.is_declaration and function.linkage.name == "external":
                    function.linkage = "linkonce_odr"
            self._shared_module = whole
        return self._shared_module


class UnitLibrary(_Library):
    """A unit's code, with its parts: optimised once, as a whole."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        for library in self.parts():
            part = None
            if isinstance(library, PartLibrary):
                part = library._final_module
                self.needs.update(library.needs)
            self._final_module.link_in(part or library._get_module_for_linking(), preserve=True)
        for function in self._final_module.functions:
            # Only the entry is called from outside; what is put into its callers need not stay. Not
            # "internal": the JIT would take such a function, whose arguments and result may be
            # gone, for any other of its name.
            if not function.is_declaration and not function.name.startswith("cfunc."):
                function.linkage = "private"
        self._optimize_final_module()
        self._final_module.verify()
        self._finalize_final_module()

    def _optimize_final_module(self) -> None:
        # Numba's first, cheap pass serves counting references, of which kernels have none, and
        # its vectorisers would look at what is made of vectors already.
        passes, builder = self._codegen._module_pass_manager(
            loop_vectorize=False, slp_vectorize=False
        )
        passes.run(self._final_module, builder)


class _Compiler(compiler.CompilerBase):
    """Numba's pipeline without what kernels never have: closures, objects, literal dispatch."""

    library: type[_Library]

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *rest: Any) -> None:
        super().__init__(typingctx, targetctx, library, *rest)
        self.state.flags.no_compile = True
        self.state.flags.no_cpython_wrapper = True

    def define_pipelines(self) -> list[Any]:
        passes = PassManager("kernel")
        for each in (
            untyped.TranslateByteCode,
            untyped.FixupArgs,
            untyped.IRProcessing,
            untyped.RewriteSemanticConstants,
            untyped.GenericRewrites,
            untyped.ReconstructSSA,
            typed.NopythonTypeInference,
            typed.PreLowerStripPhis,
            typed.IRLegalization,
            typed.NativeLowering,
            typed.NoPythonBackend,
        ):
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]

    def _compile_core(self) -> Any:
        library = self.library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        library.enable_object_caching()
        self.state.library = library
        return super()._compile_core()


class PartCompiler(_Compiler):
    """Compiles a part."""

    library = PartLibrary

    def _compile_core(self) -> Any:
        self.state.flags.no_cfunc_wrapper = True
        result = super()._compile_core()
        # no machine code yet, so nothing to call; callers know it by an object of this kind
        result = result._replace(entry_point=object().__sizeof__)
        self.state.targetctx.insert_user_function(
            result.entry_point, result.fndesc, [result.library]
        )
        return result


class UnitCompiler(_Compiler):
    """Compiles a unit."""

    library = UnitLibrary

    def _compile_core(self) -> Any:
        before_compiling()
        return super()._compile_core()


def before_compiling() -> None:
    """Be called when a unit was in no cache; `first_run` puts a function of its own here."""


def kernel(function: Callable[..., Any], **options: Any) -> Any:
    """Return a part, which compiled code may call. To be used as a decorator."""
    made = njit(**OPTIONS, **options, pipeline_class=PartCompiler)(function)
    find = made.get_call_template

    def find_by_types(args: Any, kws: Any) -> Any:
        kws = {name: types.unliteral(kind) for name, kind in kws.items()}
        return find(tuple(map(types.unliteral, args)), kws)

    made.get_call_template = find_by_types
    return made


def inline(function: Callable[..., Any]) -> Any:
    """Return a part that is put into each of its callers. To be used as a decorator."""
    return kernel(function, forceinline=True)


def shared(function: Callable[..., None]) -> Any:
    """Return a unit, which compiled code calls by name. To be used as a decorator.

    For what several programs call, and long enough to be called.
    """
    name = f"{function.__module__}.{function.__qualname__}"
    _functions[name] = function

    def implementation(typingctx: Any, *given: Any) -> Any:
        args = tuple(map(types.unliteral, given))

        def emit(ctx: Any, b: Any, sig: Any, values: Any) -> Any:
            symbol = unit(name, args)
            if isinstance(ctx.active_code_library, _Library):
                ctx.active_code_library.needs[name, args] = None
            kinds = [value.type for value in values]
            known = b.module.globals.get(symbol)
            known = known or ir.Function(b.module, ir.FunctionType(ir.VoidType(), kinds), symbol)
            b.call(known, values)
            return ctx.get_dummy_value()

        return signature(types.void, *args), emit

    # Numba reads the names of the arguments off the signature
    first = next(iter(inspect.signature(implementation).parameters.values()))
    given = inspect.signature(function).parameters.values()
    functools.update_wrapper(implementation, function)
    vars(implementation)["__signature__"] = inspect.Signature([first, *given])
    made = intrinsic(implementation)
    made.py_func = function
    return made


_functions: dict[str, Callable[..., None]] = {}
"""the units there are: what their decorator was given"""


@functools.cache
def unit(name: str, args: tuple[Any, ...]) -> str:
    """Return the symbol of a unit for these types, compiled or from the cache by now."""
    made = program(types.void(*args), _functions[name])
    symbol = f"splitbit.{name}({', '.join(map(str, args))})"
    llvm.add_symbol(symbol, made.address)
    return symbol


def program(kind: Any, function: Callable[..., None]) -> Any:
    """Return a C function of that signature as Numba's CFunc, from the cache if it is there."""
    collecting = gc.isenabled()
    gc.disable()  # a compiler makes many objects and little garbage: a sixth of its time
    try:
        made = cfunc(kind, cache=True, pipeline_class=UnitCompiler, **OPTIONS)(function)
    finally:
        if collecting:
            gc.enable()
    _kept.append(made)  # its memory is freed with it
    return made


_kept: list[Any] = []

helper = register_jitable(**OPTIONS, pipeline_class=PartCompiler)
"""Let compiled code call a function of numbers as a part; Python calls it as it stands."""
