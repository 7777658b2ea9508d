"""Kernels in replies, and why there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo_l2.kernel import Kernel
from mutators.replies import elision, read_kernel, without_thoughts

OLD = "//! layout nn\n//! launch f(A: in, C: out)\nvoid f(const float *A, float *C) { C[0] = A[0]; }\n"
NEW = "//! layout nn\n//! launch f(A: in, C: out)\nvoid f(const float *A, float *C) { *C = *A; }\n"
PARENT = Kernel(OLD, "cpu")


def source(reply: str) -> str:
    """The source of the kernel in a reply that has one."""
    extracted = read_kernel(reply, PARENT)
    assert extracted.kernel is not None, extracted.fault
    assert extracted.kernel.target == "cpu"
    return extracted.kernel.source


def fault(reply: str) -> str:
    """Why a reply has no kernel."""
    extracted = read_kernel(reply, PARENT)
    assert extracted.fault is not None
    return extracted.fault


@pytest.mark.parametrize(
    "reply",
    [
        f"```c\n{NEW}```",
        f"Sure, here it is:\n\n```cpp\n{NEW}```\n\nIt is faster because of X.",
        f"~~~\n{NEW}~~~",
        f"````c\n{NEW}````",
        f"```C title=kernel.c\n\n{NEW}\n\n```  ",
        f"```c\r\n{NEW}```".replace("\n", "\r\n").replace("\r\r", "\r"),
        "1. Do this:\n   ```c\n" + "".join(f"   {line}\n" for line in NEW.splitlines()) + "   ```",
        f"<think>First ```c\n{OLD}``` hm.</think>\n```c\n{NEW}```",
        f"hm, hm.</think>\n```c\n{NEW}```",
        f"```sh\ngcc -O3 k.c\n```\n```c\n{NEW}```\n```sh\n./a.out\n```",
        f"The old one:\n```c\n{OLD}```\nThe new one:\n```c\n{NEW}```",
        f"The new one:\n```c\n{NEW}```\ninstead of:\n```c\n{OLD}```",
        f"```c\n{NEW}```\nA variant:\n```c\n//! layout nn\n//! launch f(A: i",
        f"Here:\n{NEW}\nThat is all.",
    ],
)
def test_the_new_kernel_is_found(reply: str) -> None:
    assert source(reply) == NEW


def test_the_last_of_several_new_kernels_counts() -> None:
    assert source(f"```c\n{NEW.replace('*C', 'C[0]')}```\nBetter:\n```c\n{NEW}```") == NEW


def test_a_repeated_parent_is_still_a_kernel() -> None:
    assert source(f"```c\n{OLD}```") == OLD


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("", "no code block"),
        ("I cannot do that.", "no code block"),
        (f"```c\n{NEW}", "cut off"),
        (f"```c\n{OLD}```\nNow the new one:\n```c\n{NEW[:70]}", "cut off"),
        (NEW[: NEW.rindex("}")], "cut off"),
        ("```c\nvoid f(void) {", "cut off"),
        ("<think>I wonder whether", "still thinking"),
        ("```c\nvoid f(const float *A, float *C) { *C = *A; }\n```", "no '//! launch' line"),
        ("```c\n//! launched\nvoid f(void) {}\n```", "no '//! launch' line"),
        (f"```c\n{NEW}{elision(12)}\n```", "lines not shown"),
        (f"```c\n{NEW}\0\n```", "NUL"),
        (f"```c\n{NEW}\ud800\n```", "UTF-8"),
        (f"```c\n{NEW}{'/' * 300_000}\n```", "too long"),
    ],
)
def test_a_reply_without_kernel_says_why(reply: str, why: str) -> None:
    assert why in fault(reply)


@pytest.mark.parametrize(
    ("reply", "rest"),
    [
        ("<think>a</think>b", "b"),
        ("<THINKING>a</THINKING>b<reasoning>c</reasoning>d", "bd"),
        ("a</think>b", "b"),
        ("a<think>b", "a"),
        ("a<think>b</think>c<think>d", "ac"),
        ("a < b > c", "a < b > c"),
    ],
)
def test_thoughts_are_left_out(reply: str, rest: str) -> None:
    assert without_thoughts(reply) == rest


_PIECES = st.sampled_from(
    ["```", "```c", "~~~~", "//! launch f(A: in)", "//! layout nn", "{", "}", "<think>", "</think>", OLD]
)


@given(st.lists(st.one_of(_PIECES, st.text(max_size=8)), max_size=16).map("\n".join))
def test_any_reply_gives_a_kernel_that_launches_or_a_fault(reply: str) -> None:
    extracted = read_kernel(reply, PARENT)
    if extracted.kernel is not None:
        assert any(line.startswith("//! launch") for line in extracted.kernel.source.split("\n"))
        assert reply.count("```") >= 2 or reply.count("~~~~") >= 2 or extracted.kernel.source.rstrip().endswith("}")
