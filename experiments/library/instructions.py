"""Which instructions compiled code may hold, by the names that Linux and compilers have for them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from evo_l2.errors import ToolchainError

__all__ = ["instructions_of", "supports_in_c"]

_TIMEOUT_S = 30
_BY_MACRO = {
    "__SSE3__": "pni", "__SSSE3__": "ssse3", "__SSE4A__": "sse4a", "__SSE4_1__": "sse4_1", "__SSE4_2__": "sse4_2",
    "__POPCNT__": "popcnt", "__LZCNT__": "abm", "__BMI__": "bmi1", "__BMI2__": "bmi2", "__MOVBE__": "movbe", "__AVX__": "avx",
    "__F16C__": "f16c", "__FMA__": "fma", "__FMA4__": "fma4", "__XOP__": "xop", "__AVX2__": "avx2", "__AVXVNNI__": "avx_vnni",
    "__GFNI__": "gfni", "__VAES__": "vaes", "__VPCLMULQDQ__": "vpclmulqdq", "__AVX512F__": "avx512f",
    "__AVX512CD__": "avx512cd", "__AVX512BW__": "avx512bw", "__AVX512DQ__": "avx512dq", "__AVX512VL__": "avx512vl",
    "__AVX512IFMA__": "avx512ifma", "__AVX512VBMI__": "avx512vbmi", "__AVX512VBMI2__": "avx512_vbmi2",
    "__AVX512VNNI__": "avx512_vnni", "__AVX512BITALG__": "avx512_bitalg", "__AVX512VPOPCNTDQ__": "avx512_vpopcntdq",
    "__AVX512BF16__": "avx512_bf16", "__AVX512FP16__": "avx512_fp16", "__AMX_TILE__": "amx_tile", "__AMX_BF16__": "amx_bf16",
    "__AMX_INT8__": "amx_int8", "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC": "asimdhp", "__ARM_FEATURE_FP16_FML": "asimdfhm",
    "__ARM_FEATURE_DOTPROD": "asimddp", "__ARM_FEATURE_BF16": "bf16", "__ARM_FEATURE_MATMUL_INT8": "i8mm",
    "__ARM_FEATURE_SVE": "sve", "__ARM_FEATURE_SVE2": "sve2",
}  # fmt: skip
"""A compiler's macro for what it may use, and the name of that in `/proc/cpuinfo`."""
_IN_C = {
    "sse4_2": "sse4.2", "avx": "avx", "avx2": "avx2", "fma": "fma", "bmi1": "bmi", "bmi2": "bmi2", "avx512f": "avx512f",
    "avx512bw": "avx512bw", "avx512dq": "avx512dq", "avx512vl": "avx512vl",
}  # fmt: skip
"""What every compiler's `__builtin_cpu_supports` knows."""


def instructions_of(compiler: str, flags: Sequence[str]) -> tuple[str, ...]:
    """Names of `/proc/cpuinfo` for the extensions that a compiler uses with these flags, sorted.

    Raises:
        ToolchainError: The compiler does not say.
    """
    command = [compiler, *flags, "-dM", "-E", "-x", "c", "-"]
    try:
        done = subprocess.run(command, input="", capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        expected = f"{compiler} to say which instructions it uses"
        raise ToolchainError("the library cannot be built", expected=expected, found=str(error)) from error
    defined = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("#define ")}
    return tuple(sorted(name for macro, name in _BY_MACRO.items() if macro in defined))


def supports_in_c(names: Sequence[str]) -> str:
    """The body of a function in C that says whether the processor has what is named; on x86 alone it asks."""
    asked = [f'__builtin_cpu_supports("{_IN_C[name]}")' for name in names if name in _IN_C]
    if not asked:
        return "    return 1;"
    return "#if defined(__x86_64__)\n    return " + "\n        && ".join(asked) + ";\n#else\n    return 1;\n#endif"
