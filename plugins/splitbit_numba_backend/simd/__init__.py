"""A small SIMD layer for Numba: sixteen float32 lanes, pointers to float32 and bfloat16, tiles.

Everything is plain LLVM vector code, which any target lowers to what it has (one AVX-512 register,
two AVX, four NEON); only `tiles` has code for particular processors, and a portable one beside it.
Where a processor wants more (NEON's bfloat16, say), `tiles` is the one place to add it.
"""
