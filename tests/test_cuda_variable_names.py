"""Names of variables in refusals: as their author wrote them, with a line, or left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda.cards import card_for
from evo_l2.targets.cuda.prepare import prepare
from evo_l2.targets.cuda.reading.gates import refusals
from evo_l2.targets.cuda.reading.variable_names import plain_name


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZZ6helperiE7counter", "counter of helper"),
        ("_ZZ9constantsE4memo", "memo of constants"),
        ("_ZZ6helperiE7counter_0", "counter of helper"),
        ("_ZZN4deep4EachEPfE5calls", "calls of deep::Each"),
        ("_ZN4deep5tableE", "deep::table"),
        ("_ZL5table", "table"),
        ("TABLE", "TABLE"),
        ("_ZZ6helperi", "_ZZ6helperi"),
        ("_ZZ99helperiE7counter", "_ZZ99helperiE7counter"),
        ("_ZNK", "_ZNK"),
        ("_ZZ", "_ZZ"),
    ],
)
def test_a_mangled_name_becomes_the_authors(symbol, name):
    assert plain_name(symbol) == name


@given(st.text("_ZNELK0123456789abE", max_size=40))
def test_no_name_is_a_crash_or_becomes_nothing(text):
    assert plain_name("_Z" + text)


@given(st.from_regex(r"[a-z]{1,12}", fullmatch=True), st.from_regex(r"[a-z]{1,12}", fullmatch=True))
def test_a_static_variable_is_found_in_any_function(function, variable):
    symbol = f"_ZZ{len(function)}{function}PK6__halfE{len(variable)}{variable}"
    assert plain_name(symbol) == f"{variable} of {function}"


SOURCE = """\
//! layout  nn
//! launch  hgemm(A: in, B: in, C: out, M)
//! grid    1
//! block   32
#include <cuda_fp16.h>
extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M)
{
    static int calls;
    C[0] = __int2half_rn(M);
    C[1] = __int2half_rn(calls++);
}
"""


def test_a_refused_variable_is_named_with_the_line_that_uses_it(nvrtc):
    verdict = prepare(Kernel(SOURCE, "cuda"), Hgemm(((64, 64, 64, 1),)), nvrtc, card_for("sm_80")).verdict
    assert verdict.gate == "symbols"
    assert verdict.message.startswith(
        "calls of hgemm (4 bytes) is a variable that kernels can write, used in line 10; use a work"
    )


def test_without_lines_a_refused_variable_is_named_alone(goldens):
    code, sass = goldens.cubin("constants.sm_80"), goldens.sass("constants.sm_80")
    found = [refusal.message for refusal in refusals(code, sass, "", Hgemm(((64, 64, 64, 1),)))]
    assert "memo of constants (4 bytes) is a variable that kernels can write; use a workspace" in " ".join(found)
