"""Rules on PTX and machine code: what no kernel may use is found with its line, and nothing else."""

import re
import time

import pytest

from evo_l2.targets.cuda.reading.rules import RULES, lint_ptx, lint_sass


def rules(findings):
    return {(f.rule, f.line_text.split("[")[0].split(",")[0].strip()) for f in findings}


def test_ptx_that_breaks_rules_is_found_with_its_line(goldens):
    findings = lint_ptx(goldens.text("banned.ptx"))
    source = goldens.text("banned.cu").split("\n")
    assert {f.rule for f in findings} == set(RULES) - {
        "device-launch", "indirect-call", "call-number", "code-address", "local-memory", "texture",
    }  # fmt: skip
    for finding in findings:
        word = re.split(r"[\s,]+", finding.line_text.replace("call.uni", ""))[0].split(".")[0]
        plain_words = {"mov": ("clock", "globaltimer", "%pm0"), "free": ("free",)}
        line = source[finding.line - 1]
        assert any(w in line for w in plain_words.get(word, (word, "printf", "malloc", "free"))), (finding, line)
    assert sum(f.rule == "clock" for f in findings) == 4
    assert sum(f.rule == "outside-call" for f in findings) == 3


def test_machine_code_that_breaks_rules_is_found_with_its_line(goldens):
    both = {"clock", "prefetch", "system-memory", "outside-call", "trap"}
    assert {f.rule for f in lint_sass(goldens.sass("banned.sm_80"))} == both
    findings = lint_sass(goldens.sass("banned.sm_90a"))
    assert {f.rule for f in findings} == both | {"dependent-launch"}
    assert {("dependent-launch", "PREEXIT"), ("dependent-launch", "ACQBULK"), ("prefetch", "UBLKPF.L2")} <= rules(findings)
    assert {"SR_CLOCKLO", "SR_GLOBALTIMERLO", "SR_PM0"} == {f.message.split()[-1] for f in findings if f.rule == "clock"}
    source = goldens.text("banned.cu").split("\n")
    assert all("globaltimer" in source[f.line - 1] for f in findings if "GLOBALTIMER" in f.message)


def test_machine_code_that_breaks_no_rule_is_left_alone_and_no_other(goldens, golden_listing):
    assert bool(lint_sass(goldens.sass(golden_listing))) == golden_listing.startswith("banned")


@pytest.mark.parametrize("name", ["banned", "constants", "policies"])
def test_a_glance_at_the_whole_file_passes_over_no_finding(name, goldens, monkeypatch):
    quick = lint_ptx(goldens.text(f"{name}.ptx"))
    monkeypatch.setattr("evo_l2.targets.cuda.reading.rules._WORDS", ("",))  # is in every statement
    assert lint_ptx(goldens.text(f"{name}.ptx")) == quick


def test_policies_are_followed_to_what_they_are(goldens):
    found = lint_ptx(goldens.text("policies.ptx"))
    source = goldens.text("policies.cu").split("\n")
    assert {f.rule for f in found} == {"cache-policy"}
    said = [(source[f.line - 1].rsplit('"', 1)[-1], "cannot be followed" in f.message) for f in found]
    assert said == [("(b));", False), ("(b));", False), ("(0x14F0000000000000ull));", False), ("(given));", True)]


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("mov.u32 %r1, %clock;", "clock"),
        ("mov.u32 %r1, %clock_hi;", "clock"),
        ("mov.u32 %r1, %globaltimer_lo;", "clock"),
        ("pmevent 3;", "clock"),
        ("prefetch.global.L1 [%rd1];", "prefetch"),
        ("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd1, {%r1, %r2}];", "prefetch"),
        ("cp.async.cg.shared.global.L2::256B [%r1], [%rd1], 16;", "prefetch"),
        ("@%p1 trap;", "trap"),
        ("@%p1 griddepcontrol.wait;", "dependent-launch"),
        ("multimem.red.global.add.f32 [%rd1], %f1;", "system-memory"),
        ("call (retval0), %rd5, (param0), prototype_0;", "indirect-call"),
        (
            ".extern .func (.param .b32 r) cudaLaunchDeviceV2 (.param .b64 a);\ncall.uni (r), cudaLaunchDeviceV2, (a);",
            "device-launch",
        ),
        (".extern .func __assertfail (.param .b64 a);\n@%p1 call.uni __assertfail, (a);", "outside-call"),
        ("ld.global.L2::evict_last.v8.f32 {%f1, %f2}, [%rd1];", "cache-policy"),
        ("st.global.L2::cache_hint.f32 [%rd1], %f1, %rd9;", "cache-policy"),
        (
            "mov.b64 %rd2, 0x14F0000000000000;\nmov.b64 %rd3, %rd2;\nst.global.L2::cache_hint.f32 [%rd1], %f1, %rd3;",
            "cache-policy",
        ),
        ("{ .reg .b64 p; createpolicy.cvt.L2.b64 p, %rd1; ld.global.L2::cache_hint.f32 %f1, [%rd2], p; }", "cache-policy"),
    ],
)
def test_each_rule_catches_its_statement(statement, rule):
    findings = lint_ptx(f".visible .entry k()\n{{\n{statement}\nret;\n}}\n")
    assert [f.rule for f in findings] == [rule]


@pytest.mark.parametrize(
    "statement",
    [
        "// mov.u64 %rd1, %clock64;\n/* trap; */ ret;",
        "prefetch.tensormap [%rd1];",
        "prefetch.param.tensormap [%rd1];",
        "cp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16;",
        "ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];",
        "ld.global.L1::evict_last.f32 %f1, [%rd1];",
        "mov.u32 %r1, %smid;",
        "mov.u32 %r1, %clusterid.x;",
        "nanosleep.u32 20;",
        ".func f ()\n{\nret;\n}\ncall.uni f, ();",
        ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);",
        "createpolicy.fractional.L2::evict_first.b64 %rd2, 1.0;\nld.global.L2::cache_hint.f32 %f1, [%rd1], %rd2;",
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%r1], [%rd1, {%r2, %r3}], [%r4], 0x1000000000000000;",
    ],
)  # fmt: skip
def test_what_kernels_may_use_is_left_alone(statement):
    assert lint_ptx(f".visible .entry k()\n{{\n{statement}\nret;\n}}\n") == ()


POLICIES = """
.visible .entry f()
{
%s
ld.global.L2::cache_hint.f32 %%f1, [%%rd1], pol;
}
"""


@pytest.mark.parametrize(
    ("statements", "is_known"),
    [
        ("mov.b64 pol, 0x12F0000000000000;", True),
        ("mov.b64 pol, 0x12F0000000000000; mov.b64 pol, %rd9;", False),
        ("mov.b64 other, 0x12F0000000000000; mov.b64 pol, other;", True),
        ("mov.b64 pol, 0x12F0000000000000; call.uni (pol), g, ();", False),
        ("mov.b64 pol, 0x12F0000000000000; call.uni(pol),g,();", False),
        ("mov.b64 %pol, 0x12F0000000000000; mov.b64%pol, %rd9; mov.b64 pol, %pol;", False),
        ("mov.b64 pol, 0x12F0000000000000; call (%r1, pol), g, (%r2);", False),
        ("mov.b64 pol, 0x12F0000000000000; .func (.reg .b64 pol) g()", False),
        ("mov.b64 pol, 0x12F0000000000000; .func g(.reg .f32 a, .reg .b64 pol)", False),
        (f"mov.b64 pol, {'9' * 5000};", False),
    ],
)
def test_a_policy_is_known_only_where_nothing_else_can_set_its_register(statements, is_known):
    found = {f.rule for f in lint_ptx(POLICIES % statements)}
    assert found == (set() if is_known else {"cache-policy"})


@pytest.mark.parametrize("blank", [" ", "\t", "\n"])
def test_many_blanks_take_no_time(blank):
    begin = time.process_time()
    many = blank * 300_000
    statements = f"mov.b64 pol, 0x12F0000000000000;{many}"
    assert lint_ptx(POLICIES % statements) == ()
    hinted = f".visible .entry f(){many}{{ ld.global.L2::cache_hint.f32 %f1, [%rd1], (0x12F0000000000000{many}+ 0); }}"
    assert {f.rule for f in lint_ptx(hinted)} == {"cache-policy"}
    assert time.process_time() - begin < 5


ADDRESS = """
.visible .entry f(.param .align 64 .b8 f_param_0[128])
{
mov.b64 %%rd1, f_param_0;
cvta.param.u64 %%rd2, %%rd1;
%s
}
.visible .entry g()
{
ld.global.u32 %%r1, [%%rd2];
}
"""


@pytest.mark.parametrize(
    ("statements", "is_refused"),
    [
        ("prefetch.tensormap [%rd2];", False),
        ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd2, {%r2, %r3}], [%r4];", False),
        ("selp.b64 %rd3, %rd2, %rd4, %p1; prefetch.param.tensormap [%rd3];", False),
        ("ld.u64 %rd3, [%rd2+-480];", True),
        ("add.s64 %rd3, %rd2, -480; @%p1 ld .u64 %rd4, [%rd3];", True),
        ("mov.b64 {%r1, %r2}, %rd2; st.global.u32 [%rd9], %r1;", True),
        ("st.param.b64 [param0], %rd2; call.uni g, (param0);", True),
        ("cvta .param .u64 a, %rd1; ld.u64 %rd3, [a];", True),
        ("cvta.param.u64%rd5, %rd1; ld.u64%rd3, [%rd5];", True),
    ],
)  # fmt: skip
def test_the_address_of_an_argument_is_for_the_copy_engine_alone(statements, is_refused):
    found = {f.rule for f in lint_ptx(ADDRESS % statements)}
    assert found == ({"call-number"} if is_refused else set())


def test_a_kernel_may_have_the_name_of_an_instruction_and_no_address():
    honest = ".visible .entry add(\n.param .u64 a\n)\n{\nadd.s32 %r1, %r2, %r3;\n@%p1 ret;\nret;\n}\n"
    honest += ".func ret()\n{\nret;\n}\n.func two()\n{\ncall.uni ret, ();\nret;\n}\n"
    assert lint_ptx(honest) == ()
    for statement in ("mov.u64 %rd1, two;", "add.u64 %rd1, two, 8;", "st.u64 [%rd2], two;"):
        assert rules(lint_ptx(honest.replace("call.uni ret", f"{statement}\ncall.uni ret"))) == {
            ("code-address", statement.split(",")[0].split("[")[0].strip(" ;"))
        }
    assert rules(lint_ptx(honest + ".global .u64 table = two;\n"))


def test_a_policy_may_be_one_of_two():
    def rules(one, two):
        made = f"createpolicy.fractional.L2::{one}.b64 %rd1, 1.0; createpolicy.fractional.L2::{two}.b64 %rd2, 1.0;"
        body = f"{made} selp.b64 %rd3, %rd1, %rd2, %p1; ld.global.L2::cache_hint.f32 %f1, [%rd4], %rd3;"
        return [(f.rule, f.message) for f in lint_ptx(f".visible .entry f()\n{{\n{body}\nret;\n}}\n")]

    assert rules("evict_first", "evict_normal") == []
    assert {rule for rule, _ in rules("evict_first", "evict_last")} == {"cache-policy"}
    body = "selp.b64 %rd3, 0x12F0000000000000, %rd2, %p1; ld.global.L2::cache_hint.f32 %f1, [%rd4], %rd3;"
    (finding,) = lint_ptx(f".visible .entry f()\n{{\n{body}\nret;\n}}\n")
    assert "what createpolicy makes in the same function" in finding.message


def test_names_of_functions_like_instructions_and_registers():
    head = ".version 9.0\n.visible .entry %s(\n.param .u64 %s_param_0\n)\n{\n%s\nret;\n}\n"
    assert lint_ptx(head % ("call", "call", "mov.u32 %r1, 4;")) == ()
    found = lint_ptx(head % ("P1", "P1", "{ .reg .pred P1; setp.ne.b32 P1, %r1, 0; }"))
    assert "rename the register" in found[0].message
    (found,) = lint_ptx(head % ("call", "call", "mov.u64 %rd1, call;"))
    assert found.message == "takes the address of a function"


def test_a_clock_beside_a_barrier_says_how_else_to_wait():
    (finding,) = lint_ptx(".visible .entry f()\n{\nmbarrier.init.shared.b64 [%r1], 1;\nmov.u64 %rd1, %globaltimer;\n}\n")
    assert "mbarrier.try_wait" in finding.message
    (finding,) = lint_ptx(".visible .entry f()\n{\nmov.u64 %rd1, %globaltimer;\n}\n")
    assert finding.message == "reads %globaltimer"
