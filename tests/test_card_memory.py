"""Where operands lie in a mapping, and that memory which cannot be mapped is given back."""

import ctypes
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo_l2.targets.cuda.card.memory import ALIGNMENT_BYTES, GAP_BYTES, Region, create, import_region
from evo_l2.targets.cuda.driver import CudaError

regions = st.builds(Region, st.just("A"), st.integers(0, 1 << 33), st.integers(1, 4096))
granularities = st.sampled_from([4096, 1 << 16, 2 << 20])


@given(regions, granularities)
def test_sets_begin_aligned_and_lie_apart_inside_the_mapping(region, granularity):
    begins = [region.offset(index, granularity) for index in (0, region.n_sets // 2, region.n_sets - 1)]
    assert all(begin % ALIGNMENT_BYTES == 0 for begin in begins)
    assert begins[0] >= GAP_BYTES
    assert begins[-1] + region.n_bytes <= region.mapped_bytes(granularity)
    assert region.stride_bytes - region.n_bytes >= GAP_BYTES


@given(regions, granularities)
def test_the_last_set_ends_where_the_mapping_does_but_for_alignment(region, granularity):
    left = region.mapped_bytes(granularity) - region.offset(region.n_sets - 1, granularity) - max(region.n_bytes, 1)
    assert 0 <= left < ALIGNMENT_BYTES


@given(regions, granularities)
def test_a_mapping_is_whole_grains_and_none_too_many(region, granularity):
    mapped = region.mapped_bytes(granularity)
    assert mapped % granularity == 0
    assert mapped - granularity < region.n_sets * region.stride_bytes <= mapped


def test_what_one_process_writes_another_mapping_shows(fake_card):
    region = Region("A", 100, 2)
    owned = create(region, 0)
    seen = import_region(region, 0, owned.export())
    ctypes.memset(owned.address(1), 7, 100)
    assert ctypes.string_at(seen.address(1), 100) == b"\7" * 100
    assert (owned.n_bytes, owned.first) == (4096, 4096 - 256 - 1280)
    for mapping in (owned, seen):
        mapping.close()
        mapping.close()
    assert +fake_card.driver.OPEN == {}


@pytest.mark.parametrize("call", ["map", "access"])
def test_memory_that_cannot_be_mapped_is_given_back(fake_card, call):
    region = Region("A", 100)
    owned = create(region, 0)
    before = len(os.listdir("/proc/self/fd"))
    descriptor = owned.export()
    fake_card.set(**{call: 1})
    with pytest.raises(CudaError, match=r"CUDA_ERROR_INVALID_VALUE \(1\)"):
        import_region(region, 0, descriptor)
    with pytest.raises(CudaError):
        create(region, 0)
    assert len(os.listdir("/proc/self/fd")) == before
    owned.close()
    assert +fake_card.driver.OPEN == {}
