"""cuBLAS of `fake_vendor`, whose products wait their turn on the fake card's stream."""

import sys

import fake_vendor
from cuda.bindings import driver


class Cublas(fake_vendor.FakeCublas):
    def gemm_strided_batched_ex(self, *arguments):
        def work():
            if driver.setting("cublas") == "wrong":
                return
            if driver.setting("cublas") == "traps":
                driver.CARD.fault = 700
            driver.CARD.hangs = driver.setting("cublas") == "hangs"
            super(Cublas, self).gemm_strided_batched_ex(*arguments)

        driver.enqueue(work, driver.setting("cublas_us", 20.0))


sys.modules[__name__] = Cublas(None)
