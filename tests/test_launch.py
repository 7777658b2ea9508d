"""The launch grammar: what parses, what does not, and where the error points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo_l2.errors import KernelError
from evo_l2.expression import Expression
from evo_l2.kernel import LONGEST_SOURCE_BYTES, Kernel
from evo_l2.launch import Role, constants, parse_launch, tunables

SOURCE = """\
// A kernel.
//! layout    nn
//! launch    hgemm(A: in, B: in, C: out, W: workspace, M, K)
//! workspace W  2 * (BM * 4 + K)
//! flags     -O3 -ffast-math

#define BM 64 //? 32 64 128
constexpr int STAGES = 4;  //? 2 3 4
#define HALF_BM (BM / 2)
#define LOOP(i) for (int i = 0; i < BM; i++)
void hgemm(void);
"""


def test_a_header_is_read_in_full():
    launch = parse_launch(SOURCE)
    assert launch.layout == "nn"
    assert [a.role for a in launch.calls[0].arguments] == [Role.IN, Role.IN, Role.OUT, Role.WORKSPACE, Role.SIZE, Role.SIZE]
    assert launch.flags == ("-O3", "-ffast-math")
    assert launch.deterministic
    assert launch.workspace_bytes({"BM": 64, "K": 5}) == {"W": 522}


def test_constants_are_evaluated_over_the_ones_before():
    assert constants(SOURCE) == {"BM": 64, "STAGES": 4, "HALF_BM": 32}


def test_tunables_carry_their_domain_and_line():
    assert [(t.name, t.value, t.domain, t.line) for t in tunables(SOURCE)] == [
        ("BM", 64, (32, 64, 128), 7),
        ("STAGES", 4, (2, 3, 4), 8),
    ]


def test_setting_a_tunable_changes_its_value_and_nothing_else():
    kernel = Kernel(SOURCE, "cpu")
    changed = kernel.with_tunables({"BM": 128, "STAGES": 2})
    assert changed.constants["BM"] == 128
    assert changed.source == SOURCE.replace("BM 64", "BM 128").replace("STAGES = 4", "STAGES = 2")
    assert changed.digest != kernel.digest
    assert changed.with_tunables({"BM": 64, "STAGES": 4}).digest == kernel.digest


def test_a_value_out_of_the_domain_is_refused():
    with pytest.raises(KernelError, match=r"expected BM in \(32, 64, 128\), found 48"):
        Kernel(SOURCE, "cpu").with_tunables({"BM": 48})


@pytest.mark.parametrize(
    ("header", "line", "says"),
    [
        ("int x;", 1, "no kernel"),
        ("//! launch f(A: in)", 1, "no layout"),
        ("//! layout nn\n//! layout nn\n//! launch f(A: in)", 2, "layout does not parse"),
        ("//! layuot nn", 1, "unknown directive"),
        ("//! layout nn\n//! launch f(A: on)", 2, "argument does not parse"),
        ("//! layout nn\n//! launch f(A: in, A: in)", 2, "named twice"),
        ("//! layout nn\n//! launch f A", 2, "launch does not parse"),
        ("//! layout nn\n//! launch f(A: in)\n//! workspace W 4", 3, "workspaces do not match"),
        ("//! layout nn\n//! launch f(W: workspace)\n//! workspace W 4 $ 3", 3, "does not parse"),
        ("//! layout nn\n//! launch f(A: in)\nint x;\n//! flags -O3", 4, "too late"),
    ],
)
def test_a_bad_header_says_what_and_where(header, line, says):
    with pytest.raises(KernelError, match=says) as caught:
        parse_launch(header)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("text", "value"),
    [("1 + 2 * 3", 7), ("(1+2)*3", 9), ("-7 / 2", -4), ("7 % 4", 3), ("0x10", 16), ("ceil_div(M, 64)", 2), ("-(-3)", 3),
     ("round_up(65, 64) + min(1, 2) * max(3, 4)", 132), ("010", 10)],
)  # fmt: skip
def test_expressions_have_the_values_one_expects(text, value):
    assert Expression(text).evaluate({"M": 100}) == value


@pytest.mark.parametrize(
    "text",
    ["", "1 +", "1 2", "(1", "x", "1 / 0", "1 % 0", "ceil_div(1, 0)", "ceil_div(1)", "2**62", "4611686018427387904 * 4",
     "(" * 40 + "1" + ")" * 40, "1" * 500, "__import__('os')", "1.5", "-" * 200 + "1"],
)  # fmt: skip
def test_what_is_no_expression_is_an_error_with_a_place(text):
    with pytest.raises(KernelError) as caught:
        Expression(text, line=3, column=5).evaluate({})
    assert caught.value.line == 3
    assert caught.value.column >= 5


@given(st.text(max_size=200))
def test_no_text_makes_the_parsers_raise_anything_else(text):
    for parse in (parse_launch, tunables, lambda t: Expression(t).evaluate({}), lambda t: parse_launch(SOURCE + t)):
        try:
            parse(text)
        except KernelError as error:
            lines = str(error).splitlines()
            if len(lines) != 1:
                raise AssertionError(lines) from error
    constants(text)


@given(st.recursive(st.integers(0, 99).map(str), lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
    lambda t: f"({t[0]} {t[1]} {t[2]})"), max_leaves=12))  # fmt: skip
def test_arithmetic_agrees_with_python(text):
    expected = eval(text)
    if abs(expected) < 2**60:
        assert Expression(text).evaluate({}) == expected


def test_files_that_are_no_text_are_refused():
    for data, says in ((b"\xff\xfe", "UTF-8"), (b"a\0b", "NUL"), (b" " * (LONGEST_SOURCE_BYTES + 1), "too long")):
        with pytest.raises(KernelError, match=says):
            Kernel.from_bytes(data, "cpu")


def test_digest_covers_target_and_source():
    kernels = [Kernel(s, t) for s in ("a", "b") for t in ("cpu", "cuda")]
    assert len({k.digest for k in kernels}) == 4
