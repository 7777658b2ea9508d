"""Cards, and how many blocks of a kernel one multiprocessor holds."""

import itertools
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from evo_l2.errors import ConfigurationError
from evo_l2.targets.cuda.cards import CARDS, card_for, find_card
from evo_l2.targets.cuda.launching.occupancy import Limit, occupancy
from evo_l2.targets.cuda.reading.cubin import Entry

WHEEL = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13"


def test_cards_are_found_by_the_names_that_people_and_drivers_use():
    for name in ("A100", "a100", "NVIDIA A100-SXM4-80GB"):
        assert find_card(name).arch == "sm_80"
    assert find_card("NVIDIA GeForce RTX 3090").compute_capability == (8, 6)
    assert find_card("NVIDIA H100 80GB HBM3").name == "H100"
    assert find_card("NVIDIA H200").memory_gb_s > find_card("H100").memory_gb_s
    for name in (
        "NVIDIA H100 PCIe",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA GeForce RTX 3090 Ti",
        "V100",
        "",
    ):
        with pytest.raises(ConfigurationError, match="no such card"):
            find_card(name)


def test_cards_are_found_by_architecture():
    assert [card_for(a).name for a in ("sm_80", "8.6", "sm_90a", "sm_90", "compute_100a", "10.0")] == [
        "A100", "RTX 3090", "H100", "H100", "B200", "B200",
    ]  # fmt: skip
    for arch in ("sm_75", "sm_120a", "ampere", ""):
        with pytest.raises(ConfigurationError, match="no card is known"):
            card_for(arch)


# Dense multiply-adds of a multiprocessor in one clock, from the white papers, times two.
FLOPS_PER_CLOCK = {"A100": 2048, "RTX 3090": 1024, "H100": 4096, "H200": 4096, "B200": 8192}


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_peak_rates_follow_from_multiprocessors_and_clock(card):
    peak = FLOPS_PER_CLOCK[card.name] * card.n_sms * card.clock_mhz * 1e6 / 1e12
    assert card.fp16_tflops == pytest.approx(peak, rel=0.005)
    assert card.fp32_sum_tflops * (2 if card.name == "RTX 3090" else 1) == card.fp16_tflops
    assert card.shared_per_sm_bytes - card.shared_per_block_bytes == 1024
    assert card.source
    assert 50 < card.ridge_flops_per_byte < 400


def entry(n_registers=32, shared=0, n_barriers=1):
    return Entry("k", n_registers, 0, None, shared, 0, n_barriers, None, (), {})


@pytest.mark.parametrize(
    ("card", "registers", "threads", "shared", "blocks", "limit"),
    [
        ("A100", 32, 256, 0, 8, Limit.WARPS),
        ("A100", 128, 128, 0, 4, Limit.REGISTERS),
        ("A100", 168, 128, 0, 3, Limit.REGISTERS),
        ("A100", 255, 256, 0, 1, Limit.REGISTERS),
        ("A100", 32, 32, 0, 32, Limit.BLOCKS),
        ("A100", 128, 128, 81 * 1024, 2, Limit.SHARED),
        ("A100", 128, 128, 82 * 1024, 1, Limit.SHARED),
        ("A100", 32, 128, 163 * 1024, 1, Limit.SHARED),
        ("A100", 32, 128, 163 * 1024 + 1, 0, Limit.SHARED),
        ("A100", 128, 1024, 0, 0, Limit.REGISTERS),
        ("A100", 32, 1056, 0, 0, Limit.WARPS),
        ("RTX 3090", 40, 1024, 0, 1, Limit.WARPS),
        ("RTX 3090", 32, 32, 0, 16, Limit.BLOCKS),
        ("RTX 3090", 64, 256, 48 * 1024, 2, Limit.SHARED),
        ("H100", 168, 384, 227 * 1024, 1, Limit.REGISTERS),
        ("H200", 90, 128, 0, 5, Limit.REGISTERS),
        ("B200", 64, 192, 113 * 1024, 2, Limit.SHARED),
    ],
)
def test_known_occupancies(card, registers, threads, shared, blocks, limit):
    result = occupancy(entry(registers), threads, shared, find_card(card))
    assert (result.blocks_per_sm, result.limit) == (blocks, limit)
    assert result.warps_per_sm == blocks * -(-threads // 32)
    assert 0 <= result.fraction <= 1


def test_static_and_dynamic_shared_memory_add_up_and_barriers_count():
    card = find_card("A100")
    assert occupancy(entry(shared=40000), 64, 41000, card) == occupancy(entry(), 64, 81000, card)
    assert occupancy(entry(n_barriers=16), 64, 0, card).blocks_by.keys() == {*Limit} - {Limit.BARRIERS}
    hopper = find_card("H100")
    assert occupancy(entry(n_barriers=16), 64, 0, hopper).limit is Limit.BARRIERS
    assert occupancy(entry(n_barriers=16), 64, 0, hopper).blocks_per_sm == 4
    assert occupancy(entry(n_barriers=0), 64, 0, hopper).blocks_by.keys() == {*Limit} - {Limit.BARRIERS}
    with pytest.raises(ValueError, match="is none"):
        occupancy(entry(), 0, 0, card)


CALCULATOR = r"""
#include <limits.h>
#include <stdio.h>
#include "cuda_occupancy.h"
int main(void)
{
    int major, minor, warps, sm, block, registers, shared, barriers, threads, dynamic;
    while (scanf("%d %d %d %d %d %d %d %d %d %d", &major, &minor, &warps, &sm, &block, &registers, &shared, &barriers,
                 &threads, &dynamic) == 10) {
        cudaOccDeviceProp card = {.computeMajor = major, .computeMinor = minor, .maxThreadsPerBlock = 1024,
            .maxThreadsPerMultiprocessor = warps * 32, .regsPerBlock = 65536, .regsPerMultiprocessor = 65536,
            .warpSize = 32, .sharedMemPerBlock = 49152, .sharedMemPerMultiprocessor = sm, .numSms = 1,
            .sharedMemPerBlockOptin = block, .reservedSharedMemPerBlock = 1024};
        cudaOccFuncAttributes kernel = {.maxThreadsPerBlock = INT_MAX, .numRegs = registers, .sharedSizeBytes = shared,
            .partitionedGCConfig = PARTITIONED_GC_OFF, .shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN,
            .maxDynamicSharedSizeBytes = dynamic, .numBlockBarriers = barriers};
        cudaOccDeviceState state = {CACHE_PREFER_NONE, SHAREDMEM_CARVEOUT_MAX_SHARED};
        cudaOccResult result;
        int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &card, &kernel, &state, threads, dynamic);
        printf("%d %d %d\n", error ? -error : result.activeBlocksPerMultiprocessor, (int)result.allocatedSharedMemPerBlock,
               result.allocatedRegistersPerBlock);
    }
}
"""


def test_occupancy_is_that_of_nvidias_calculator(tmp_path):
    include = WHEEL / "include"
    if not (include / "cuda_occupancy.h").exists() or shutil.which("cc") is None:
        pytest.skip("cuda_occupancy.h or a C compiler is not installed")
    (tmp_path / "a.c").write_text(CALCULATOR)
    subprocess.run(["cc", f"-I{include}", "a.c", "-o", "a.out"], cwd=tmp_path, check=True, capture_output=True)
    sizes = (0, 100, 1024, 16384, 40000, 49152)
    cases = list(
        itertools.product(
            CARDS, (16, 24, 32, 40, 41, 64, 90, 96, 128, 168, 200, 255), (0, 1, 3, 16), sizes,
            (32, 33, 96, 128, 256, 384, 1000, 1024), (0, 1000, 49152, 66000, 98304, 163840, 180000, 232448),
        )
    )[::7]  # fmt: skip
    lines = [
        f"{c.compute_capability[0]} {c.compute_capability[1]} {c.max_warps_per_sm} {c.shared_per_sm_bytes} "
        f"{c.shared_per_block_bytes} {r} {s} {b} {t} {d}"
        for c, r, b, s, t, d in cases
    ]
    done = subprocess.run(["./a.out"], cwd=tmp_path, input="\n".join(lines), capture_output=True, text=True, check=True)
    theirs = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(theirs) == len(cases) > 5000
    for case, expected in zip(cases, theirs, strict=True):
        card, registers, barriers, shared, threads, dynamic = case
        ours = occupancy(entry(registers, shared, barriers), threads, dynamic, card)
        assert (ours.blocks_per_sm, ours.shared_per_block_bytes, ours.registers_per_block) == expected, case
