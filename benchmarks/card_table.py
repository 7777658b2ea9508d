"""The table of seeds on a card: at every shape the setting of tunables that a sweep found, against the fastest library.

Run with: python benchmarks/card_table.py SETTINGS.json [--blocks 40] [--json-to ROWS.json] [--csv ROWS.csv]
SETTINGS.json is a list of {"seed": "hopper_nn", "shape": [M, N, K, BATCH], "tunables": {...}}; `evo-l2 bench SEED --sweep 64`
finds such settings anew. Of several at one shape each is measured.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from evo_l2.kernel import Kernel
from experiments.bench import Row, bench
from experiments.bench_tables import print_rows, rows_csv, rows_json, write_text
from experiments.parts import open_rig
from experiments.sections import CudaConfig, LimitsConfig, TimingConfig
from experiments.seeds import load_seeds, seed_names


def seeds() -> dict[str, Kernel]:
    """Every CUDA seed by name."""
    return {
        name: kernel
        for layout in ("nn", "nt")
        for name, kernel in zip(seed_names("cuda", layout), load_seeds("cuda", layout), strict=True)
    }


def main() -> None:
    """Prints the table, and writes it where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", type=Path)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--json-to", type=Path)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    known = seeds()
    by_shape: dict[tuple[int, int, int, int], list[tuple[str, Kernel]]] = {}
    for setting in json.loads(arguments.settings.read_text(encoding="utf-8")):
        m, n, k, batch = setting["shape"]
        kernel = known[setting["seed"]].with_tunables(setting["tunables"])
        by_shape.setdefault((m, n, k, batch), []).append((setting["seed"], kernel))
    rows: list[Row] = []
    with open_rig(CudaConfig(), TimingConfig(final_blocks=arguments.blocks), LimitsConfig()) as rig:
        for shape, kernels in by_shape.items():
            rows += bench(rig, kernels, [shape], "fp32")
            print_rows(rows[-len(kernels) :])
        environment = {**rig.environment.identity, **rig.environment.provenance}
    print_rows(rows)
    if arguments.csv is not None:
        write_text(arguments.csv, rows_csv(rows))
    if arguments.json_to is not None:
        write_text(arguments.json_to, rows_json(rows, dict(environment)))


if __name__ == "__main__":
    main()
