"""Whether a card's verdicts and ratios can be believed: libraries that are right pass, and a ratio comes out twice the same.

Run with: python benchmarks/card_trust.py [--rounds 1] [--shapes ten] [--kernel hopper_nn]

Verdicts: every library, both layouts, sums in float and in half, at every shape, judged as a candidate is, once a round
on other inputs. Repeats: one kernel against the libraries in two fresh processes, and against itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from evo_l2.problem import Instance
from evo_l2.problems.hgemm import Hgemm
from experiments.benching import parse_shapes
from experiments.parts import open_rig
from experiments.sections import CudaConfig, LimitsConfig, TimingConfig

SEEDS = Path(__file__).parent.parent / "experiments" / "seeds" / "cuda"
_REPEATED = ("1024,1024,1024", "2048,2048,2048", "4096,4096,4096")


def verdicts(shapes: tuple[tuple[int, int, int, int], ...], rounds: int) -> None:
    """Prints how many libraries passed, by kind of sums, and each that did not with the reason."""
    print("| sums | libraries judged | passed | not there |\n|---|---|---|---|")
    with open_rig(CudaConfig(), TimingConfig(blocks=8), LimitsConfig()) as rig:
        for accumulate in ("fp32", "fp16"):
            counts: Counter[str] = Counter()
            faults: list[str] = []
            for shape in shapes * rounds:
                for layout in ("nn", "nt"):
                    instance = Instance(Hgemm((shape,), accumulate, (layout,)), shape, layout)
                    for library in rig.baselines.at(instance).candidates:
                        wrong = library.median_us is None and "is wrong" in library.description
                        counts["wrong" if wrong else "absent" if library.median_us is None else "passed"] += 1
                        faults += [f"{library.name} {layout} {shape}: {library.description}"] if wrong else []
                    rig.baselines.release(instance)
            n_judged = counts["passed"] + counts["wrong"]
            print(f"| {accumulate} | {n_judged} | {counts['passed']} | {counts['absent']} |", flush=True)
            print("".join(f"\n{fault}" for fault in faults), end="")


def benched(kernel: Path, *words: str) -> dict[str, tuple[float, float, float]]:
    """Ratio with its interval, by shape, from a fresh process."""
    shapes = [word for shape in _REPEATED for word in ("--shapes", shape)]
    command = [sys.executable, "-P", "-m", "experiments", "bench", str(kernel), *shapes, "--json", *words]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout)["rows"]
    return {"x".join(map(str, row["sizes"][:3])): (row["ratio"], *row["interval"]) for row in rows}


def repeats(kernel: Path) -> None:
    """Prints both processes' ratios, and the kernel against itself."""
    first, second, itself = benched(kernel), benched(kernel), benched(kernel, "--against", str(kernel))
    print("\n| shape | first process | second process | they differ by | against itself |\n|---|---|---|---|---|")
    for shape, one in first.items():
        two, own = second[shape], itself[shape]
        cells = [f"{ratio:.4f} ({low:.4f} to {high:.4f})" for ratio, low, high in (one, two, own)]
        print(f"| {shape} | {cells[0]} | {cells[1]} | {100 * abs(two[0] / one[0] - 1):.2f} % | {cells[2]} |")


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--shapes", default="ten")
    parser.add_argument("--kernel", default="hopper_nn")
    arguments = parser.parse_args()
    verdicts(tuple(parse_shapes((arguments.shapes,))), arguments.rounds)
    repeats(SEEDS / f"{arguments.kernel}.cu")


if __name__ == "__main__":
    main()
