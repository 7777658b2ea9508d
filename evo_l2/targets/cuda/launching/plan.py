"""A CUDA kernel's launches at one case of its problem: evaluated, held against what was built, and hashed.

Nothing here runs anything. `plan` evaluates the `//!` lines; `check_plan` asks whether a card can launch the built code so.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evo_l2.errors import KernelError
from evo_l2.evaluation import Status, Verdict
from evo_l2.kernel import Kernel
from evo_l2.launch import Argument, Call, Launch, Role
from evo_l2.problem import Instance, Problem
from evo_l2.targets.cuda.cards import Card
from evo_l2.targets.cuda.launching.occupancy import Limit, occupancy
from evo_l2.targets.cuda.launching.tensor_maps import ALIGNMENT_BYTES, MAP_BYTES, PlannedTensorMap, plan_tensor_map
from evo_l2.targets.cuda.limits import (
    BLOCK,
    GRID,
    MOST_CLUSTER_BLOCKS,
    MOST_THREADS,
    REGISTERS,
    LimitError,
    bounded,
    shape_of,
)
from evo_l2.targets.cuda.reading.cubin import Cubin, Entry

__all__ = [
    "Plan",
    "PlannedArgument",
    "PlannedLaunch",
    "PlannedWorkspace",
    "check_plan",
    "identity",
    "max_registers",
    "plan",
    "plan_cases",
]

Shape = tuple[int, int, int]
"""Along x, y and z."""
_LARGEST_SHARED_BYTES = 2**31 - 1
_FIRST_WITH_CLUSTERS = 90
"""Architecture from which there are clusters and tensor maps: sm_90."""


@dataclass(frozen=True, slots=True)
class PlannedArgument:
    """One argument of one launch."""

    name: str
    role: Role
    value: int | None = None
    """The value of a size; None for a pointer and for a tensor map."""

    @property
    def n_bytes(self) -> int:
        """What it takes as a parameter: 4 for a size, 8 for a pointer, 128 for a tensor map."""
        return {Role.SIZE: 4, Role.MAP: MAP_BYTES}.get(self.role, 8)

    @property
    def c_type(self) -> str:
        """How the entry declares it."""
        types = {Role.SIZE: "int", Role.MAP: "const __grid_constant__ CUtensorMap"}
        return types.get(self.role, "const pointer" if self.role is Role.IN else "pointer")


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """One launch."""

    entry: str
    grid: Shape
    """Blocks."""
    block: Shape
    """Threads of a block."""
    cluster: Shape | None
    """Blocks of a cluster; None for a launch without clusters."""
    shared_bytes: int
    """Dynamic shared memory of a block."""
    arguments: tuple[PlannedArgument, ...]
    line: int = 1
    """Line of the `launch` directive."""

    @property
    def n_threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True, slots=True)
class PlannedWorkspace:
    """One workspace."""

    name: str
    n_bytes: int
    zeroed: bool
    """Whether it is set to zero before the launches of every call, within the time that counts."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that one call of a kernel launches at one case, in order, on one stream."""

    sizes: tuple[int, ...]
    """Values of the problem's size symbols."""
    launches: tuple[PlannedLaunch, ...]
    workspaces: tuple[PlannedWorkspace, ...]
    max_registers: int | None
    """Most registers a thread that the build may use; None where the kernel does not say."""
    tensor_maps: tuple[PlannedTensorMap, ...]

    @property
    def entries(self) -> tuple[str, ...]:
        """Every entry once, in the order of the launches."""
        return tuple(dict.fromkeys(launch.entry for launch in self.launches))


def plan(kernel: Kernel, problem: Problem, sizes: tuple[int, ...], n_sms: int) -> Plan:
    """The launches of a kernel at one case.

    Expressions read the file's constants, the problem's size symbols and `SMS`, which hide constants of their names; that of
    `registers` reads constants alone.

    Args:
        kernel: A kernel whose layout and arguments are the problem's (see `screen`).
        problem: What is computed.
        sizes: One of the problem's cases.
        n_sms: Multiprocessors of the card, the value of `SMS`.

    Raises:
        KernelError: A launch has no grid or block, or an expression does not evaluate; with line and column.
        LimitError: A value is one that no card takes.
    """
    return _plan(kernel.launch, kernel.constants, problem, sizes, n_sms)


def _plan(launch: Launch, constants: Mapping[str, int], problem: Problem, sizes: tuple[int, ...], n_sms: int) -> Plan:
    if launch.layout not in problem.layouts:
        expected = f"layout {' or '.join(problem.layouts)}"
        raise KernelError("the layout is not admitted here", expected=expected, found=launch.layout, line=1, column=1)
    instance = Instance(problem, sizes, launch.layout)
    names = {**constants, **instance.names, "SMS": n_sms}
    n_bytes = launch.workspace_bytes(names)
    return Plan(
        sizes,
        tuple(_plan_call(call, names, instance.names) for call in launch.calls),
        tuple(PlannedWorkspace(space.name, n_bytes[space.name], space.zeroed) for space in launch.workspaces),
        _max_registers(launch, constants),
        tuple(plan_tensor_map(tensor, instance, names) for tensor in launch.tensor_maps),
    )


def max_registers(kernel: Kernel) -> int | None:
    """Most registers a thread that the build may use; None where the kernel does not say.

    Raises:
        KernelError: The expression does not evaluate over the file's constants.
        LimitError: The value is below 16 or above 255.
    """
    return _max_registers(kernel.launch, kernel.constants)


def _max_registers(launch: Launch, constants: Mapping[str, int]) -> int | None:
    if launch.max_registers is None:
        return None
    return bounded(launch.max_registers, constants, REGISTERS, "the number of registers a thread", "registers")


def plan_cases(kernel: Kernel, problem: Problem, n_sms: int) -> tuple[Plan, ...] | Verdict:
    """One plan for each of the problem's cases, or the reason why one of them cannot be launched anywhere.

    What does not evaluate is refused as source (`REJECTED`, gate `launch`); a value that no card takes is `UNLAUNCHABLE`.
    """
    constants = kernel.constants
    plans = []
    for sizes in problem.cases:
        try:
            plans.append(_plan(kernel.launch, constants, problem, sizes, n_sms))
        except KernelError as error:
            where = ", ".join(f"{symbol}={size}" for symbol, size in zip(problem.size_symbols, sizes, strict=True))
            message = f"{error} (at {where})"
            if isinstance(error, LimitError):
                return Verdict(Status.UNLAUNCHABLE, error.gate, message)
            return Verdict(Status.REJECTED, "launch", message if len(problem.cases) > 1 else str(error))
    return tuple(plans)


def _plan_call(call: Call, names: Mapping[str, int], sizes: Mapping[str, int]) -> PlannedLaunch:
    for word, shape, example in (
        ("grid", call.grid, "ceil_div(N, BN), ceil_div(M, BM), BATCH"),
        ("block", call.block, "256"),
    ):
        if not shape:
            expected = f"a line such as '//! {word} {example}' below the launch line"
            raise KernelError(f"{call.entry} has no {word}", expected=expected, found="none", line=call.line, column=1)
    grid = shape_of(call.grid, names, "grid", GRID)
    block = shape_of(call.block, names, "block", BLOCK, MOST_THREADS)
    cluster = None
    if call.cluster:
        cluster = shape_of(call.cluster, names, "cluster", (MOST_CLUSTER_BLOCKS,) * 3, MOST_CLUSTER_BLOCKS)
        _check_cluster(call, grid, cluster)
    shared_bytes = 0
    if call.shared is not None:
        bounds = (0, _LARGEST_SHARED_BYTES)
        shared_bytes = bounded(call.shared, names, bounds, "dynamic shared memory", "shared-memory")
    arguments = tuple(_plan_argument(argument, call, sizes) for argument in call.arguments)
    return PlannedLaunch(call.entry, grid, block, cluster, shared_bytes, arguments, call.line)


def _check_cluster(call: Call, grid: Shape, cluster: Shape) -> None:
    for axis, blocks, together in zip("xyz", grid, cluster, strict=True):
        if blocks % together:
            expected = f"grid {axis} a multiple of {together} (see round_up)"
            place = call.cluster[0]
            what = f"the cluster does not divide the grid of {call.entry}"
            found = f"grid {axis} = {blocks}"
            raise LimitError("cluster-size", what, expected=expected, found=found, line=place.line, column=place.column)


def _plan_argument(argument: Argument, call: Call, sizes: Mapping[str, int]) -> PlannedArgument:
    if argument.role is not Role.SIZE:
        return PlannedArgument(argument.name, argument.role)
    if argument.name not in sizes:
        expected = f"one of the size symbols {', '.join(sizes)}, or a role"
        raise KernelError("an argument is no size", expected=expected, found=repr(argument.name), line=call.line, column=1)
    return PlannedArgument(argument.name, argument.role, sizes[argument.name])


def check_plan(plan: Plan, code: Cubin, card: Card) -> Verdict | None:
    """The reason why built code cannot be launched as planned on a card, or None.

    Gates: `entries`, `arguments`, `block-size`, `registers`, `shared-memory`, `cluster-size`, `tensor-maps`.
    """
    for launch in plan.launches:
        entry = code.entries.get(launch.entry)
        if entry is None:
            return _no_entry(launch, code)
        for gate, found in (
            ("arguments", _arguments_misfit(launch, entry)),
            ("block-size", _threads_misfit(launch, entry)),
            ("registers", _registers_misfit(launch, entry, card)),
            ("shared-memory", _shared_misfit(launch, entry, card)),
            ("cluster-size", _cluster_misfit(launch, entry, code, card)),
            ("tensor-maps", _maps_misfit(launch, code)),
        ):
            if found is not None:
                return _refused(gate, launch, found)
    return None


def _refused(gate: str, launch: PlannedLaunch, message: str) -> Verdict:
    return Verdict(Status.UNLAUNCHABLE, gate, f"line {launch.line}: {launch.entry}: {message}")


def _no_entry(launch: PlannedLaunch, code: Cubin) -> Verdict:
    names = sorted(code.entries)
    mangled = any(re.fullmatch(rf"_Z\w*?{len(launch.entry)}{re.escape(launch.entry)}\w*", name) for name in names)
    reason = ' (mangled, for want of extern "C")' if mangled else ""
    shown = ", ".join(name[:60] for name in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    expected = f'extern "C" __global__ void {launch.entry}(...)'
    return _refused("entries", launch, f"no such kernel was built: expected {expected}, found {shown or 'none'}{reason}")


def _arguments_misfit(launch: PlannedLaunch, entry: Entry) -> str | None:
    n_taken, n_passed = len(entry.parameters), len(launch.arguments)
    if n_taken != n_passed:
        passed = ", ".join(argument.name for argument in launch.arguments)
        return f"the launch does not fit: expected {n_taken} arguments, as the kernel takes, found {n_passed} ({passed})"
    begin = _first_argument(entry)
    for number, (argument, parameter) in enumerate(zip(launch.arguments, entry.parameters, strict=True), start=1):
        what = f"argument {number}, {argument.name}: expected {argument.c_type} ({argument.n_bytes} bytes)"
        if parameter.size != argument.n_bytes:
            return f"{what}, found a parameter of {parameter.size} bytes"
        is_map = argument.role is Role.MAP
        place, alignment = (begin + parameter.offset, ALIGNMENT_BYTES) if is_map else (parameter.offset, argument.n_bytes)
        if place % alignment:
            return f"{what}, found one that is not aligned to {alignment} bytes"
    return None


def _first_argument(entry: Entry) -> int:
    """Bytes of constant bank 0 before the arguments, whose last one ends the bank.

    The compiler aligns a tensor map within the bank, not among the arguments: on sm_90 the first one has offset 112.
    """
    end = max((parameter.offset + parameter.size for parameter in entry.parameters), default=0)
    return entry.constant_bytes.get(0, end) - end


def _threads_misfit(launch: PlannedLaunch, entry: Entry) -> str | None:
    if entry.required_block is not None and launch.block != entry.required_block:
        expected, found = _product(entry.required_block), _product(launch.block)
        return f"the block is not the one that was built for: expected {expected}, found {found}"
    if entry.max_threads is not None and launch.n_threads > entry.max_threads:
        expected = f"at most {entry.max_threads} threads, as __launch_bounds__ says"
        return f"the block is larger than what was built for: expected {expected}, found {_product(launch.block)}"
    return None


def _registers_misfit(launch: PlannedLaunch, entry: Entry, card: Card) -> str | None:
    if occupancy(entry, launch.n_threads, 0, card).blocks_by.get(Limit.REGISTERS) != 0:
        return None
    n_warps = occupancy(entry, 1, 0, card).blocks_by[Limit.REGISTERS]
    expected = f"at most {card.warp_size * n_warps} threads with {entry.n_registers} registers each on {card.name}"
    hint = "ask for fewer with '//! registers N' or __launch_bounds__"
    return f"the registers of a block do not fit: expected {expected}, found {launch.n_threads}; {hint}"


def _shared_misfit(launch: PlannedLaunch, entry: Entry, card: Card) -> str | None:
    n_bytes = entry.static_shared_bytes + launch.shared_bytes
    if n_bytes <= card.shared_per_block_bytes:
        return None
    found = f"{n_bytes} ({entry.static_shared_bytes} static, {launch.shared_bytes} dynamic)"
    return (
        f"too much shared memory: expected at most {card.shared_per_block_bytes} bytes a block on {card.name}, found {found}"
    )


def _cluster_misfit(launch: PlannedLaunch, entry: Entry, code: Cubin, card: Card) -> str | None:
    if launch.cluster is not None and _is_before_hopper(code):
        return f"there are no clusters before sm_{_FIRST_WITH_CLUSTERS}: expected no cluster line, found code for {code.arch}"
    if entry.cluster is not None and launch.cluster != entry.cluster:
        expected = f"'//! cluster {', '.join(map(str, entry.cluster))}', as __cluster_dims__ says"
        found = _product(launch.cluster) if launch.cluster is not None else "none"
        return f"the cluster is not the one that was built for: expected {expected}, found {found}"
    if launch.cluster is not None and math.prod(launch.cluster) > card.max_cluster_blocks:
        expected = f"at most {card.max_cluster_blocks} blocks a cluster on {card.name}"
        return f"the cluster is too large: expected {expected}, found {_product(launch.cluster)}"
    return None


def _maps_misfit(launch: PlannedLaunch, code: Cubin) -> str | None:
    if _is_before_hopper(code) and any(argument.role is Role.MAP for argument in launch.arguments):
        return f"there are no tensor maps before sm_{_FIRST_WITH_CLUSTERS}: expected pointers, found code for {code.arch}"
    return None


def _is_before_hopper(code: Cubin) -> bool:
    match = re.match(r"sm_(\d+)", code.arch)
    return match is not None and int(match.group(1)) < _FIRST_WITH_CLUSTERS


def _product(shape: Shape) -> str:
    return " x ".join(map(str, shape))


def identity(machine_code: str, kernel: Kernel, plans: Sequence[Plan]) -> str:
    """Machine code with its evaluated launches: what two sources share that behave alike; 64 hexadecimal digits.

    Names of entries, workspaces and tensor maps do not count, nor lines, nor how an expression is written.

    Args:
        machine_code: `machine_code_digest` over `Plan.entries`, in their order; names do not count there, nor here.
        kernel: The source, for its layout and whether it is deterministic.
        plans: One for each of the problem's cases, in order.
    """
    launch = kernel.launch
    cases = [_plain(plan) for plan in plans]
    text = json.dumps([machine_code, launch.layout, launch.deterministic, cases], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(plan: Plan) -> list[object]:
    """A plan as nested lists; entries, workspaces and tensor maps are named by the order in which they come."""
    entries = plan.entries
    passed = [a.name for launch in plan.launches for a in launch.arguments if a.role in (Role.WORKSPACE, Role.MAP)]
    order = {name: f"#{number}" for number, name in enumerate(dict.fromkeys(passed))}
    launches = [
        [
            entries.index(launch.entry),
            launch.grid,
            launch.block,
            launch.cluster,
            launch.shared_bytes,
            [[order.get(a.name, a.name), a.role.value] for a in launch.arguments],
        ]
        for launch in plan.launches
    ]
    spaces = [[order[space.name], space.n_bytes, space.zeroed] for space in plan.workspaces]
    maps = [[order[m.name], m.operand, m.shape, m.box, m.swizzle_bytes, m.promotion_bytes] for m in plan.tensor_maps]
    return [launches, sorted(spaces, key=repr), sorted(maps, key=repr)]
