"""How a library reads a product from shapes and strides: whatever it finds is what the arrays hold."""

import math
import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.library.templates import filled


@pytest.fixture(scope="module")
def products():
    """The module that both packages have."""
    module = types.ModuleType("library_products")
    sys.modules[module.__name__] = module
    exec(filled("both/_products.py"), module.__dict__)
    yield module
    del sys.modules[module.__name__]


sizes = st.integers(0, 4)


@st.composite
def operands(draw):
    """Two arrays that fit, which may be transposed, sliced, stepped or turned round in memory."""
    m, n, k = draw(sizes), draw(sizes), draw(sizes)
    batch = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))

    def array(shape):
        order = draw(st.permutations(range(len(shape)))) if draw(st.booleans()) else list(range(len(shape)))
        pad, step = draw(st.sampled_from([0, 0, 0, 1])), draw(st.sampled_from([1, 1, 1, 2, -1]))
        full = [shape[axis] * abs(step) + pad for axis in order]
        memory = np.arange(1, math.prod(full) + 1, dtype=np.float64).reshape(full)
        view = memory.transpose(np.argsort(order))
        return view[tuple(slice(None, size * abs(step), abs(step)) for size in shape)][..., :: 1 if step > 0 else -1]

    return array((*batch, m, k)), array((k, n) if draw(st.booleans()) else (*batch, k, n))


def flat(array, n):
    """What lies at an array's address, as a kernel reads it."""
    return np.lib.stride_tricks.as_strided(array, (n,), (8,))


@settings(max_examples=300, deadline=None)
@given(operands())
def test_every_product_that_is_found_is_the_one_of_the_arrays(products, pair):
    a, b = pair
    shape = products.check_shapes(a.shape, b.shape)
    wanted = np.matmul(a, b)
    assert wanted.shape == shape
    for product in products.products_of(a.shape, a.strides, b.shape, b.strides, 8):
        m, n, k, batch = product.sizes
        assert min(product.sizes) >= 1
        left = flat(a, batch * m * k).reshape(batch, m, k)
        right = flat(b, batch * k * n).reshape((batch, k, n) if product.layout == "nn" else (batch, n, k))
        found = left @ (right if product.layout == "nn" else right.swapaxes(1, 2))
        np.testing.assert_array_equal(found.reshape(shape), wanted)


@given(operands())
def test_contiguous_arrays_are_always_found(products, pair):
    a, b = (np.ascontiguousarray(array) for array in pair)
    layouts = [product.layout for product in products.products_of(a.shape, a.strides, b.shape, b.strides, 8)]
    assert layouts[:1] == (["nn"] if a.size and b.size else [])
    turned = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)
    layouts = [product.layout for product in products.products_of(a.shape, a.strides, turned.shape, turned.strides, 8)]
    assert layouts[-1:] == (["nt"] if a.size and b.size else [])


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3), (4, 5)), ((3,), (3, 4)), ((2, 2, 3), (3, 3, 4)), ((2, 3), (2, 3, 4)), ((), ())]
)
def test_arrays_that_do_not_fit_are_refused(products, a, b):
    with pytest.raises(ValueError, match="the shapes do not fit"):
        products.check_shapes(a, b)
