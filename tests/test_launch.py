"""The launch grammar: what parses, what does not, and where the error points."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo_l2.errors import KernelError
from evo_l2.expression import Expression
from evo_l2.kernel import LONGEST_SOURCE_BYTES, Kernel
from evo_l2.launch import Argument, Role, constants, parse_launch, tunables

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

CUDA_SOURCE = """\
//! layout    nt
//! registers 128
//! launch    partial(TA: map, B: in, P: workspace, M, N, K)
//! grid      ceil_div(N, BN), ceil_div(M, BM), max(1, SPLITS)
//! block     32 * WARPS
//! shared    STAGES * (BM * BK + BK * BN) * 2
//! cluster   2, 1
//! tensormap TA: A, box BM, min(BK, 64), swizzle 128, promotion 256
//! workspace P  SPLITS * M * N * 4 zeroed
// The sums of all splits.
//! launch    reduce(P: workspace, C: out, M, N)
//! grid      SMS
//! block     32, 8, 1
extern "C" __global__ void partial();
"""


def texts(expressions):
    return [expression.text for expression in expressions]


def test_a_header_is_read_in_full():
    launch = parse_launch(SOURCE)
    assert launch.layout == "nn"
    assert [a.role for a in launch.calls[0].arguments] == [Role.IN, Role.IN, Role.OUT, Role.WORKSPACE, Role.SIZE, Role.SIZE]
    assert launch.flags == ("-O3", "-ffast-math")
    assert launch.deterministic
    assert launch.workspace_bytes({"BM": 64, "K": 5}) == {"W": 522}


def test_a_header_for_cards_is_read_in_full():
    launch = parse_launch(CUDA_SOURCE)
    partial, reduce = launch.calls
    assert [(c.entry, c.line) for c in launch.calls] == [("partial", 3), ("reduce", 11)]
    assert partial.arguments[:3] == (Argument("TA", Role.MAP), Argument("B", Role.IN), Argument("P", Role.WORKSPACE))
    assert texts(partial.grid) == ["ceil_div(N, BN)", "ceil_div(M, BM)", "max(1, SPLITS)"]
    assert texts(partial.block) == ["32 * WARPS"]
    assert partial.shared is not None
    assert partial.shared.text == "STAGES * (BM * BK + BK * BN) * 2"
    assert texts(partial.cluster) == ["2", "1"]
    assert (texts(reduce.grid), texts(reduce.block), reduce.shared, reduce.cluster) == (["SMS"], ["32", "8", "1"], None, ())
    assert launch.max_registers is not None
    assert launch.max_registers.text == "128"
    (tensor,) = launch.tensor_maps
    assert (tensor.name, tensor.operand, texts(tensor.box)) == ("TA", "A", ["BM", "min(BK, 64)"])
    assert (tensor.swizzle.text, tensor.promotion.text) == ("128", "256")
    (space,) = launch.workspaces
    assert (space.name, space.size_bytes.text, space.zeroed) == ("P", "SPLITS * M * N * 4", True)


def test_expressions_know_where_they_stand():
    launch = parse_launch(CUDA_SOURCE)
    lines = CUDA_SOURCE.split("\n")
    (tensor,), (space,) = launch.tensor_maps, launch.workspaces
    calls = [(*call.grid, *call.block, *call.cluster) for call in launch.calls]
    for expression in (*calls[0], *calls[1], *tensor.box, tensor.swizzle, tensor.promotion, space.size_bytes):
        assert lines[expression.line - 1][expression.column - 1 :].startswith(expression.text)


def test_what_is_left_out_has_its_plain_value():
    launch = parse_launch(
        "//! layout nn\n//! launch f(T: map, W: workspace)\n//! tensormap T: A, box 1, 8, 64\n//! workspace W 4*(2)zeroed"
    )
    assert (launch.calls[0].grid, launch.calls[0].block, launch.max_registers) == ((), (), None)
    assert [launch.tensor_maps[0].swizzle.evaluate({}), launch.tensor_maps[0].promotion.evaluate({})] == [0, 0]
    assert (launch.workspaces[0].size_bytes.text, launch.workspaces[0].zeroed) == ("4*(2)", True)


HEAD = "//! layout nn\n//! launch f(A: in)\n"


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("//! grid 1", (1, 10), "grid belongs to no launch: expected a '//! launch' line above the '//! grid' line"),
        (f"{HEAD}//! grid 1, 2, 3, 4", (3, 19), "grid does not parse: expected one to three expressions: x, y, z, found 4"),
        (f"{HEAD}//! grid 1\n//! grid 2", (4, 10), "grid is given twice"),
        (f"{HEAD}//! grid 1,, 2", (3, 12), "expected a number or name, found the end"),
        (f"{HEAD}//! block 32 * (WARPS", (3, 22), r"expected '\)', found the end"),
        (f"{HEAD}//! block 32) * WARPS", (3, 13), r"expected the end of the expression, found '\)'"),
        (f"{HEAD}//! block", (3, 10), "expected a number or name, found the end"),
        (f"{HEAD}//! shared 1, 2", (3, 13), "expected the end of the expression, found ','"),
        (f"{HEAD}//! shared 1\n//! shared 1", (4, 12), "shared is given twice"),
        (f"{HEAD}//! registers 64\n//! registers 64", (4, 15), "registers are given twice"),
        (f"{HEAD}//! tensormap TA A", (3, 15), "expected name: operand, box rows, columns, found 'TA A'"),
        (f"{HEAD}//! tensormap TA: A, 64, 64", (3, 22), "expected 'box'"),
        (f"{HEAD}//! tensormap TA: A, box 64", (3, 22), "expected a box of two elements"),
        (f"{HEAD}//! tensormap TA: A, box 1, 2, 3, 4", (3, 22), "found 4"),
        (f"{HEAD}//! tensormap TA: A, box 8, 8, swizzle 64, 8", (3, 44), "'swizzle' and 'promotion', once each, at the end"),
        (f"{HEAD}//! tensormap TA: A, box 8, 8, swizzle 64, swizzle 64", (3, 44), "once each"),
        (f"{HEAD}//! tensormap TA: A, box 8, 8, swizzle", (3, 39), "expected a number or name"),
        (f"{HEAD}//! tensormap TA: A, box 8, 8", (3, 15), "TA is not used: expected a launch with the argument 'TA: map'"),
        ("//! layout nn\n//! launch f(A: in, TA: map)", (2, 21), "TA is not declared: expected a line '//! tensormap TA"),
        ("//! layout nn\n//! launch f(A: in, W: workspace)", (2, 21), "expected a line '//! workspace W"),
        ("//! layout nn\n//! launch f(W: map)\n//! workspace W 4", (2, 14), "W is not declared"),
        (f"{HEAD}//! workspace W 4\n//! tensormap W: A, box 8, 8", (4, 15), "declared twice"),
        (f"{HEAD}//! workspace W zeroed", (3, 17), "expected a number or name, found the end"),
        (f"{HEAD}//! workspace W 4 zeroed zeroed", (3, 19), "expected the end of the expression, found 'zeroed'"),
        (
            "//! layout nn\n//! launch f(A: in, B: input)",
            (2, 21),
            "one of the roles in, out, workspace, map, found 'B: input'",
        ),
        ("//! layout nn\n//! launch f(A: in,)", (2, 20), "argument does not parse: .* found nothing"),
        ("int x;", (1, 1), "expected a line like '//! launch"),
        ("  //!  gird 1", (1, 8), "unknown directive: expected one of layout, launch, grid, .* found 'gird 1'"),
        ("x\n  //! grid 1", (2, 3), "expected every //! line before the first line of code"),
    ],
)
def test_an_error_points_at_what_is_wrong(text, place, says):
    with pytest.raises(KernelError, match=says) as caught:
        parse_launch(text)
    assert (caught.value.line, caught.value.column) == place


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
        ("//! layout nn\n//! launch f(A: in)\n//! workspace W 4", 3, "W is not used"),
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


@pytest.mark.parametrize(
    ("text", "column", "near"),
    [
        ("ceildiv(M, 64)", 5, "ceil_div"),
        ("1 + CEIL_DIV(1, 2)", 9, "ceil_div"),
        ("roundup(1, 2)", 5, "round_up"),
        ("abs(1)", 5, None),
    ],
)
def test_an_unknown_function_is_told_with_the_one_that_is_meant(text, column, near):
    for read in (Expression(text, 3, 5).check, lambda: Expression(text, 3, 5).evaluate({"M": 1})):
        with pytest.raises(KernelError) as caught:
            read()
        name = text.partition("(")[0].split()[-1]
        expected = "the expression calls an unknown function: expected one of ceil_div, max, min, round_up"
        hint = f"; try: {near}(a, b)" if near is not None else ""
        assert str(caught.value) == f"line 3, column {column}: {expected}, found '{name}'{hint}"


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


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in {"ceil_div", "round_up", "min", "max", "zeroed", "box", "swizzle", "promotion"}
)
EXPRESSIONS = st.recursive(
    st.one_of(st.integers(0, 9999).map(str), NAMES),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", " - ", "*", " / ", "%"]), inner).map("".join),
        st.tuples(st.sampled_from(["ceil_div", "round_up", "min", "max"]), inner, inner).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        ),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"-{text}"),
    ),
    max_leaves=6,
).filter(lambda text: len(text) < 400)
SHAPES = st.lists(EXPRESSIONS, min_size=1, max_size=3)
WORDS = [
    "layout", "launch", "grid", "block", "shared", "cluster", "registers", "tensormap", "workspace", "flags", "box", "zeroed",
    "swizzle", "promotion", "nn", "f", "W", "TA", "in", "out", "map", "(", ")", ",", ":", "+", "*", "-", "/", "%", "1", "64",
    "//!", "\n//! ", "\n", " ", "\t", "\r", "é", "\u2003", "\u0663",
]  # fmt: skip


def check_place(error, lines):
    """The error points into the text, and says in one bounded line what it wanted."""
    message = str(error)
    assert 1 <= error.line <= len(lines)
    assert 1 <= error.column <= len(lines[error.line - 1]) + 1
    assert message.startswith(f"line {error.line}, column {error.column}: ")
    assert "expected" in message
    assert "found" in message
    assert len(message) < 1000
    assert len(message.splitlines()) == 1


def _declared(launch):
    return {*(space.name for space in launch.workspaces), *(tensor.name for tensor in launch.tensor_maps)}


@given(st.one_of(st.text(max_size=300), st.lists(st.sampled_from(WORDS), max_size=60).map("".join)), st.booleans())
def test_any_text_is_a_launch_or_an_error_with_a_place_in_it(text, after_a_header):
    text = f"{HEAD}//! {text}" if after_a_header else f"//! {text}"
    lines = text.split("\n")
    try:
        launch = parse_launch(text)
    except KernelError as error:
        check_place(error, lines)
    else:
        passed = {a.name for call in launch.calls for a in call.arguments if a.role in (Role.WORKSPACE, Role.MAP)}
        assert passed == _declared(launch)
        assert all(len(shape) <= 3 for call in launch.calls for shape in (call.grid, call.block, call.cluster))


@given(
    st.lists(st.tuples(NAMES, SHAPES, SHAPES, st.none() | EXPRESSIONS, st.just([]) | SHAPES), min_size=1, max_size=4),
    st.none() | EXPRESSIONS,
    st.none() | st.tuples(st.lists(EXPRESSIONS, min_size=2, max_size=3), st.none() | EXPRESSIONS, st.none() | EXPRESSIONS),
    st.none() | st.tuples(EXPRESSIONS, st.booleans()),
)
def test_what_is_written_is_what_is_read(calls, registers, tensor, space):
    text = "//! layout nt\n" + (f"//! registers {registers}\n" if registers else "")
    extra = (", TX: map" if tensor else "") + (", WX: workspace" if space else "")
    for entry, grid, block, shared, cluster in calls:
        text += f"//! launch {entry}(A: in, M{extra})\n//! grid {', '.join(grid)}\n//!block {' , '.join(block)}\n"
        text += f"//! shared {shared}\n" if shared else ""
        text += f"//! cluster {','.join(cluster)}\n" if cluster else ""
    if tensor:
        box, swizzle, promotion = tensor
        options = [f", {word} {value}" for word, value in (("promotion", promotion), ("swizzle", swizzle)) if value]
        text += f"//! tensormap TX: A, box {', '.join(box)}{''.join(options)}\n"
    text += f"//! workspace WX {space[0]}{' zeroed' if space[1] else ''}\n" if space else ""
    launch = parse_launch(text)
    read = [
        (c.entry, texts(c.grid), texts(c.block), c.shared.text if c.shared else None, texts(c.cluster)) for c in launch.calls
    ]
    assert read == calls
    assert (launch.max_registers.text if launch.max_registers else None) == registers
    if tensor:
        (found,) = launch.tensor_maps
        assert (texts(found.box), found.swizzle.text, found.promotion.text) == (box, swizzle or "0", promotion or "0")
    if space:
        assert [(w.size_bytes.text, w.zeroed) for w in launch.workspaces] == [space]


def test_of_many_known_names_a_few_are_shown():
    names = {f"N{number:03}": number for number in range(300)}
    with pytest.raises(KernelError, match=r"expected one of N000, N001, .*, N023 and 276 more, found 'X'"):
        Expression("1 + X").evaluate(names)
    with pytest.raises(KernelError, match="expected no name, since none is known here, found 'X'"):
        Expression("1 + X").evaluate({})


@given(EXPRESSIONS)
def test_what_parses_evaluates_or_says_why(text):
    expression = Expression(text, line=2, column=7)
    expression.check()
    names = dict.fromkeys(expression.names(), 3)
    try:
        assert isinstance(expression.evaluate(names), int)
    except KernelError as error:
        says = str(error)
        assert any(reason in says for reason in ("divides by zero", "out of bounds"))


@given(st.recursive(st.integers(0, 99).map(str), lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
    lambda t: f"({t[0]} {t[1]} {t[2]})"), max_leaves=12))  # fmt: skip
def test_arithmetic_agrees_with_python(text):
    expected = eval(text)
    if abs(expected) < 2**60:
        assert Expression(text).evaluate({}) == expected


def test_files_that_are_no_text_are_refused():
    for data, says in (
        (b"\xff\xfe", "UTF-8"),
        (b"\xef\xbb\xbfa", "byte order mark"),
        (b"a\0b", "NUL"),
        (b" " * (LONGEST_SOURCE_BYTES + 1), "too long"),
    ):
        with pytest.raises(KernelError, match=says):
            Kernel.from_bytes(data, "cpu")


def test_digest_covers_target_and_source():
    kernels = [Kernel(s, t) for s in ("a", "b") for t in ("cpu", "cuda")]
    assert len({k.digest for k in kernels}) == 4


def test_a_line_of_blanks_takes_no_time():
    source = "#define A 1" + " " * 200_000 + "x\n#define B 2 //? 2 3\n"
    begin = time.process_time()
    assert constants(source) == {"B": 2}
    assert [tunable.name for tunable in tunables(source)] == ["B"]
    assert time.process_time() - begin < 1.0
