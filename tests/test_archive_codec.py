"""What is stored is compact JSON, whichever way it was made; and estimates are those of numpy, bit for bit."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from archive.codec import dump, load
from evo_l2.timing import _middle, _percentile

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(values)
def test_dump_is_what_the_standard_encoder_gives(value):
    assert dump(value) == json.dumps(value, separators=(",", ":"))
    assert load(dump(value)) == value


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60), st.sampled_from([2.5, 97.5, 50.0, 0.0, 100.0]))
def test_percentile_and_median_are_those_of_numpy(numbers, percent):
    ordered = np.sort(np.array(numbers))
    assert _percentile(ordered, percent / 100) == float(np.percentile(ordered, percent))
    assert _middle([ordered]) == float(np.median(ordered))
