"""A card's launches as data: the C table that the launcher of a library walks, from the plan of every product."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evo_l2.errors import ConfigurationError
from evo_l2.launch import Role
from evo_l2.targets.cuda.launching.plan import Plan, PlannedArgument, PlannedLaunch
from evo_l2.targets.cuda.launching.tensor_maps import PlannedTensorMap
from experiments.library.templates import filled

__all__ = ["CudaProduct", "c_table", "check_launchable", "workspace_offsets"]

_OPERANDS = ("A", "B", "C")
_SIZES = ("M", "N", "K", "BATCH")
_ALIGNMENT_BYTES = 256
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_PROMOTIONS = {0: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}
_MOST_DIMENSIONS = 3


@dataclass(frozen=True, slots=True)
class CudaProduct:
    """One row of the table: a product, and everything that its kernel launches for it."""

    layout: str
    sums: str
    kernel: str
    """Name of its files, without a suffix."""
    plan: Plan
    needs_sms: bool
    """Whether its launches depend on the number of multiprocessors."""


def check_launchable(plan: Plan, kernel: str) -> None:
    """Nothing, where the launcher has all that a plan asks for.

    Raises:
        ConfigurationError: It has not; says what is missing.
    """
    maps = {tensor.name for tensor in plan.tensor_maps}
    spaces = {space.name for space in plan.workspaces}
    for launch in plan.launches:
        for argument in launch.arguments:
            known = {Role.SIZE: _SIZES, Role.IN: _OPERANDS, Role.OUT: _OPERANDS, Role.WORKSPACE: spaces, Role.MAP: maps}
            if argument.name not in known[argument.role]:
                raise _lacking(
                    kernel, f"arguments that are {', '.join((*_OPERANDS, *_SIZES))}, workspaces or maps", argument.name
                )
    for tensor in plan.tensor_maps:
        if tensor.operand not in _OPERANDS or tensor.dtype != "float16" or len(tensor.shape) > _MOST_DIMENSIONS:
            found = f"{len(tensor.shape)} dimensions of {tensor.dtype} {tensor.operand}"
            raise _lacking(kernel, "tensor maps of A, B or C in float16 with two or three dimensions", found)


def _lacking(kernel: str, expected: str, found: str) -> ConfigurationError:
    return ConfigurationError(f"the launcher cannot launch {kernel}", expected=expected, found=found)


def workspace_offsets(plan: Plan) -> tuple[list[int], int]:
    """Where each workspace begins in one piece of memory, and how much it takes, in bytes."""
    offsets, end = [], 0
    for space in plan.workspaces:
        offsets.append(end)
        end += -(-space.n_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return offsets, end


def c_table(
    products: Sequence[CudaProduct], *, card: str, arch: str, capability: tuple[int, int], n_sms: int, key: str
) -> str:
    """The text of `evo_hgemm_table.h`."""
    kernels = sorted({product.kernel for product in products})
    functions = _functions(products)
    places = {(kernel, entry): number for number, (kernel, entry, _) in enumerate(functions)}
    plans = [product.plan for product in products]
    blocks = [block for number, product in enumerate(products) for block in _blocks(number, product, places)]
    values = {
        "KEY": key,
        "CARD": _text(card),
        "ARCH": _text(arch),
        "MAJOR": str(capability[0]),
        "MINOR": str(capability[1]),
        "SMS": str(n_sms),
        "KERNELS": str(len(kernels)),
        "FUNCTIONS": str(len(functions)),
        "PRODUCTS": str(len(products)),
        "ARGUMENTS": str(max(1, *(len(launch.arguments) for plan in plans for launch in plan.launches), 1)),
        "WORKSPACES": str(max(1, *(len(plan.workspaces) for plan in plans), 1)),
        "MAPS": str(max(1, *(len(plan.tensor_maps) for plan in plans), 1)),
        "CUBINS": "\n".join(f"    {_text(kernel + '.cubin')}," for kernel in kernels),
        "ENTRIES": "\n".join(
            f"    {{.kernel = {kernels.index(kernel)}, .entry = {_text(entry)}, .shared_bytes = {shared}}},"
            for kernel, entry, shared in functions
        ),
        "BLOCKS": "\n\n".join(blocks),
        "ROWS": "\n".join(_row(number, product) for number, product in enumerate(products)),
    }
    return filled("cuda/evo_hgemm_table.h", values)


def _functions(products: Sequence[CudaProduct]) -> list[tuple[str, str, int]]:
    """Kernel, entry, and the most dynamic shared memory that any product asks of it."""
    most: dict[tuple[str, str], int] = {}
    for product in products:
        for launch in product.plan.launches:
            place = (product.kernel, launch.entry)
            most[place] = max(most.get(place, 0), launch.shared_bytes)
    return [(*place, most[place]) for place in sorted(most)]


def _blocks(number: int, product: CudaProduct, places: dict[tuple[str, str], int]) -> Iterator[str]:
    """The arrays that one row points to."""
    plan = product.plan
    launches = "\n".join(_launch(launch, plan, places[product.kernel, launch.entry]) for launch in plan.launches)
    yield f"/* {_title(product)} */\nstatic const struct launch LAUNCHES_{number}[] = {{\n{launches}\n}};"
    if plan.workspaces:
        offsets, _ = workspace_offsets(plan)
        spaces = "\n".join(
            f"    {{.offset = {offset}, .n_bytes = {space.n_bytes}, .is_zeroed = {int(space.zeroed)}}}, /* {space.name} */"
            for offset, space in zip(offsets, plan.workspaces, strict=True)
        )
        yield f"static const struct workspace WORKSPACES_{number}[] = {{\n{spaces}\n}};"
    if plan.tensor_maps:
        maps = "\n".join(_map(tensor) for tensor in plan.tensor_maps)
        yield f"static const struct map MAPS_{number}[] = {{\n{maps}\n}};"


def _title(product: CudaProduct) -> str:
    m, n, k, batch = product.plan.sizes
    shape = f"{m} x {n} x {k}" + (f", batch {batch}" if batch > 1 else "")
    return f"{shape}, {product.layout}, {product.sums}: {product.kernel}"


def _launch(launch: PlannedLaunch, plan: Plan, function: int) -> str:
    shape = f".grid = {_braces(launch.grid)}, .block = {_braces(launch.block)}, .cluster = {_braces(launch.cluster or (0,))}"
    arguments = ", ".join(_argument(argument, plan) for argument in launch.arguments)
    return (
        f"    {{.function = {function}, {shape},\n"
        f"     .shared_bytes = {launch.shared_bytes}, .n_arguments = {len(launch.arguments)},\n"
        f"     .arguments = {{{arguments}}}}},"
    )


def _argument(argument: PlannedArgument, plan: Plan) -> str:
    if argument.role is Role.SIZE:
        return f"{{SIZE, {_SIZES.index(argument.name)}}}"
    if argument.role is Role.WORKSPACE:
        return f"{{WORKSPACE, {[space.name for space in plan.workspaces].index(argument.name)}}}"
    if argument.role is Role.MAP:
        return f"{{MAP, {[tensor.name for tensor in plan.tensor_maps].index(argument.name)}}}"
    return f"{{OPERAND, {_OPERANDS.index(argument.name)}}}"


def _map(tensor: PlannedTensorMap) -> str:
    """The driver takes dimensions innermost first."""
    return (
        f"    {{.operand = {_OPERANDS.index(tensor.operand)}, .n_dimensions = {len(tensor.shape)},"
        f" .shape = {_braces(tensor.shape[::-1])}, .strides_bytes = {_braces(tensor.strides_bytes[::-1])},\n"
        f"     .box = {_braces(tensor.box[::-1])}, .swizzle = CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[tensor.swizzle_bytes]},"
        f" .promotion = CU_TENSOR_MAP_L2_PROMOTION_{_PROMOTIONS[tensor.promotion_bytes]}}}, /* {tensor.name} */"
    )


def _row(number: int, product: CudaProduct) -> str:
    plan = product.plan
    m, n, k, batch = plan.sizes
    spaces = f".workspaces = WORKSPACES_{number}, " if plan.workspaces else ""
    maps = f".maps = MAPS_{number}, " if plan.tensor_maps else ""
    return (
        f"    {{.m = {m}, .n = {n}, .k = {k}, .batch = {batch}, .layout = EVO_HGEMM_{product.layout.upper()},"
        f" .sums = EVO_HGEMM_{product.sums.upper()},\n"
        f"     .launches = LAUNCHES_{number}, {spaces}{maps}.n_launches = {len(plan.launches)},"
        f" .n_workspaces = {len(plan.workspaces)}, .n_maps = {len(plan.tensor_maps)},\n"
        f"     .workspace_bytes = {workspace_offsets(plan)[1]}, .needs_sms = {int(product.needs_sms)}}},"
    )


def _braces(values: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"


def _text(text: str) -> str:
    """A string of C."""
    return json.dumps("".join(c if c.isascii() and c.isprintable() else "?" for c in text))
