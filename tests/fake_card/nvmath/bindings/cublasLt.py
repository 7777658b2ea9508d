"""cuBLASLt of `fake_vendor` likewise; missing where the card's settings say no word of it."""

import sys
from types import SimpleNamespace

import fake_vendor
from cuda.bindings import driver

from evo_l2.targets.cuda.driver import CudaError

if driver.setting("cublaslt_us") is None:
    raise ImportError("no cuBLASLt here")


class CublasLt(fake_vendor.FakeCublasLt):
    def matmul(self, *arguments):
        defect = driver.setting("cublaslt")
        if defect == "uncapturable" and driver.CARD.recording is not None:
            raise CudaError(900, driver.NAMES[900])

        def work():
            if defect == "traps":
                driver.CARD.fault = 700
            if defect != "wrong":
                super(CublasLt, self).matmul(*arguments)

        driver.enqueue(work, driver.setting("cublaslt_us"))


sys.modules[__name__] = CublasLt(SimpleNamespace(spend=lambda time_us: None))
