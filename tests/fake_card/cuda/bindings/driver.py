"""A card made of this machine's memory: the driver's calls that the project makes, and kernels that do what they are called.

What it is like is read from the JSON file that the environment variable FAKE_CARD names, at every call that asks for it. A
stream runs what it is given at once; time is counted, not measured.
"""

import ctypes
import enum
import json
import os
import socket
import sys
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np

N_SMS = 4
GRAIN = 4096
NAMES = {
    0: "CUDA_SUCCESS", 1: "CUDA_ERROR_INVALID_VALUE", 2: "CUDA_ERROR_OUT_OF_MEMORY", 100: "CUDA_ERROR_NO_DEVICE",
    200: "CUDA_ERROR_INVALID_IMAGE", 500: "CUDA_ERROR_NOT_FOUND", 600: "CUDA_ERROR_NOT_READY",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS", 701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", 719: "CUDA_ERROR_LAUNCH_FAILED",
    900: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
}  # fmt: skip
CUresult = enum.IntEnum("CUresult", {name: number for number, name in NAMES.items()})
OK = (CUresult.CUDA_SUCCESS,)

CUevent_flags = SimpleNamespace(CU_EVENT_DEFAULT=0, CU_EVENT_DISABLE_TIMING=2)
CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
CUmemAllocationHandleType = SimpleNamespace(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR=1)
CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM=0)
CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3)
CUfunction_attribute = SimpleNamespace(
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED=14
)
ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 8, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": N_SMS, "L2_CACHE_SIZE": 1 << 16,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 163 << 10, "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": 1,
}  # fmt: skip
CUdevice_attribute = SimpleNamespace(**{f"CU_DEVICE_ATTRIBUTE_{name}": name for name in ATTRIBUTES})

OPEN = Counter()
"""Handles, reservations, modules and graphs that were not given back."""
CARD = SimpleNamespace(now_us=0.0, fault=0, hangs=False, recording=None, allocated={})
LIBC = ctypes.CDLL(None)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
PRIVATE, SHARED, FIXED, ANONYMOUS = 2, 1, 16, 32


def setting(name, default=None):
    """One fact about this card."""
    with open(os.environ["FAKE_CARD"], encoding="utf-8") as file:
        return json.load(file).get(name, default)


def result(code, *values):
    return (CUresult(code), *values)


def enqueue(work, time_us):
    """Work for the stream, or for the graph that it records."""

    def run():
        if not CARD.fault and not CARD.hangs:
            with np.errstate(all="ignore"):
                work()
            CARD.now_us += time_us

    if CARD.recording is None:
        run()
    else:
        CARD.recording.append(run)


# --- device -----------------------------------------------------------------------------------------------------------


def cuInit(flags):
    if setting("no_driver"):
        raise RuntimeError("Failed to dlopen libcuda.so.1")
    time.sleep(setting("start_s", 0))
    return result(setting("init", 0))


def cuDeviceGet(index):
    return result(0 if index < setting("cards", 1) else 100, index)


def cuDevicePrimaryCtxRetain(device):
    return result(0, "context")


def cuCtxSetCurrent(context):
    return OK


def cuDriverGetVersion():
    return result(0, 13020)


def cuDeviceGetName(n_bytes, device):
    return result(0, b"NVIDIA A100-SXM4-80GB" + bytes(n_bytes - 21))


def cuDeviceTotalMem(device):
    return result(0, 1 << 30)


def cuDeviceGetAttribute(attribute, device):
    return result(0, setting(attribute, ATTRIBUTES[attribute]))


# --- memory -----------------------------------------------------------------------------------------------------------


def CUmemAllocationProp():
    return SimpleNamespace(location=SimpleNamespace())


CUmemAccessDesc = CUmemAllocationProp


def cuMemGetAllocationGranularity(properties, flags):
    return result(0, GRAIN)


def cuMemCreate(n_bytes, properties, flags):
    assert n_bytes % GRAIN == 0
    if n_bytes > setting("room_bytes", 1 << 28):
        return result(2, None)
    handle = os.memfd_create("device")
    os.ftruncate(handle, n_bytes)
    OPEN["handle"] += 1
    return result(0, handle)


def cuMemRelease(handle):
    os.close(handle)
    OPEN["handle"] -= 1
    return OK


def cuMemExportToShareableHandle(handle, kind, flags):
    if setting("export", 0):
        return result(setting("export"), None)
    return result(0, os.dup(handle))


def cuMemImportFromShareableHandle(descriptor, kind):
    OPEN["handle"] += 1
    return result(0, os.dup(descriptor))


def cuMemAddressReserve(n_bytes, alignment, address, flags):
    OPEN["reservation"] += 1
    return result(0, LIBC.mmap(None, n_bytes, 0, PRIVATE | ANONYMOUS, -1, 0))


def cuMemMap(address, n_bytes, offset, handle, flags):
    if setting("map", 0):
        return result(setting("map"))
    assert LIBC.mmap(address, n_bytes, 3, SHARED | FIXED, handle, 0) == address
    return OK


def cuMemSetAccess(address, n_bytes, access, count):
    return result(setting("access", 0))


def cuMemUnmap(address, n_bytes):
    assert LIBC.mmap(address, n_bytes, 0, PRIVATE | ANONYMOUS | FIXED, -1, 0) == address
    return OK


def cuMemAddressFree(address, n_bytes):
    LIBC.munmap(address, n_bytes)
    OPEN["reservation"] -= 1
    return OK


def cuMemAlloc(n_bytes):
    memory = ctypes.create_string_buffer(n_bytes)
    CARD.allocated[ctypes.addressof(memory)] = memory
    return result(0, ctypes.addressof(memory))


def cuMemFree(address):
    del CARD.allocated[address]
    return OK


def cuMemsetD8(address, value, n_bytes):
    ctypes.memset(address, value, n_bytes)
    return OK


def cuMemsetD8Async(address, value, n_bytes, stream):
    enqueue(lambda: ctypes.memset(address, value, n_bytes), 0.0)
    return OK


def cuMemcpyDtoH(to, address, n_bytes):
    ctypes.memmove(to, address, n_bytes)
    return OK


# --- kernels ----------------------------------------------------------------------------------------------------------


def cuModuleLoadData(image):
    words = image[:200].split(b"|")
    if words[0] == b"damaged":
        return result(200, None)
    if words[0] == b"traps-at-once":
        return result(719, None)
    if words[0] == b"sleeps":
        time.sleep(60)
    if words[0] == b"dies":
        os._exit(3)
    if words[0] == b"raises":
        raise RuntimeError("a library's own words")
    if words[0] == b"says":
        with socket.socket(fileno=os.dup(int(sys.argv[1]))) as channel:
            channel.send(b"{}")
            socket.send_fds(channel, [words[1]], [0] * int(words[2]))
        time.sleep(60)
    if words[0] == b"tells":
        with open(words[1], "w", encoding="utf-8") as file:
            json.dump(+OPEN, file)
    OPEN["module"] += 1
    return result(0, "module")


def cuModuleUnload(module):
    OPEN["module"] -= 1
    return OK


def cuModuleGetFunction(module, name):
    name = name.decode()
    return result(500, None) if name not in KERNELS else result(0, name)


def cuFuncSetAttribute(function, attribute, value):
    return result(1 if value > 163 << 10 else 0)


CUlaunchConfig = SimpleNamespace
CUstream = int


def cuLaunchKernelEx(config, function, pointers, extra):
    return _launch(function, pointers, setting("kernel_us", 10.0))


def cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, pointers, extra):
    return _launch(function, pointers, 0.0)


def _launch(function, pointers, time_us):
    if function == "too_big":
        return result(701)
    places = (ctypes.c_uint64 * 6).from_address(pointers)
    kernel, n_pointers, n_sizes = KERNELS[function]
    arguments = [ctypes.c_uint64.from_address(places[i]).value for i in range(n_pointers)]
    arguments += [ctypes.c_int.from_address(places[n_pointers + i]).value for i in range(n_sizes)]
    enqueue(lambda: kernel(*arguments), 0.001 if function == "fast" else time_us)
    return OK


def halves(address, *shape):
    memory = (ctypes.c_uint16 * int(np.prod(shape))).from_address(address)
    return np.frombuffer(memory, np.float16).reshape(shape)


def product(a, b, c, m, n, k):
    halves(c, m, n)[...] = halves(a, m, k).astype(np.float32) @ halves(b, k, n).astype(np.float32)


def wrong(a, b, c, m, n, k):
    halves(c, m, n)[...] = 0


def scribbles(a, b, c, m, n, k):
    product(a, b, c, m, n, k)
    ctypes.memset(c - 64, 0, 64)


def traps(a, b, c, m, n, k):
    CARD.fault = 700


def hangs(a, b, c, m, n, k):
    CARD.hangs = True


def clocks(readings):
    if setting("sick"):
        return
    words = (ctypes.c_uint64 * (2 * N_SMS)).from_address(readings)
    words[0::2] = [1 + int(CARD.now_us * setting("clock_mhz", 1410))] * N_SMS
    words[1::2] = [1 + int(CARD.now_us * 1000)] * N_SMS


KERNELS = {
    **{kernel.__name__: (kernel, 3, 3) for kernel in (product, wrong, scribbles, traps, hangs)},
    "fast": (product, 3, 3), "too_big": (product, 3, 3), "clocks": (clocks, 1, 0), "evict": (lambda a, c, n: None, 2, 1),
}  # fmt: skip
"""By entry: what it does, and how many pointers and sizes it takes."""


def cuTensorMapEncodeTiled(*arguments):
    CARD.encoded = arguments
    memory = ctypes.create_string_buffer(b"map", 128)
    return result(0, SimpleNamespace(getPtr=lambda: ctypes.addressof(memory), memory=memory))


cuuint64_t = cuuint32_t = int
CUtensorMapDataType = SimpleNamespace(CU_TENSOR_MAP_DATA_TYPE_FLOAT16="half", CU_TENSOR_MAP_DATA_TYPE_FLOAT32="single")
CUtensorMapInterleave = SimpleNamespace(CU_TENSOR_MAP_INTERLEAVE_NONE="no interleave")
CUtensorMapSwizzle = SimpleNamespace(CU_TENSOR_MAP_SWIZZLE_NONE="no swizzle", CU_TENSOR_MAP_SWIZZLE_128B="swizzle 128")
CUtensorMapL2promotion = SimpleNamespace(CU_TENSOR_MAP_L2_PROMOTION_L2_256B="promote 256")
CUtensorMapFloatOOBfill = SimpleNamespace(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE="zeros")


# --- streams, events, graphs ------------------------------------------------------------------------------------------


def cuStreamCreate(flags):
    return result(0, 7)


def _state():
    return CARD.fault or (600 if CARD.hangs else 0)


def cuStreamQuery(stream):
    return result(_state())


def cuStreamSynchronize(stream):
    while CARD.hangs:
        time.sleep(1)
    return result(CARD.fault)


def cuEventCreate(flags):
    OPEN["event"] += 1
    return result(0, [0.0])


def cuEventRecord(event, stream):
    enqueue(lambda: event.__setitem__(0, CARD.now_us), 0.0)
    return OK


def cuEventRecordWithFlags(event, stream, flags):
    return cuEventRecord(event, stream)


def cuEventQuery(event):
    return result(_state())


def cuEventSynchronize(event):
    return cuStreamSynchronize(0)


def cuEventElapsedTime(start, end):
    return result(0, (end[0] - start[0]) / 1000)


def cuEventDestroy(event):
    OPEN["event"] -= 1
    return OK


def cuStreamBeginCapture(stream, mode):
    assert CARD.recording is None
    CARD.recording = []
    return OK


def cuStreamEndCapture(stream):
    graph, CARD.recording = tuple(CARD.recording), None
    OPEN["graph"] += 1
    return result(0, graph)


def cuGraphInstantiate(graph, flags):
    if setting("instantiate", 0):
        return result(setting("instantiate"), None)
    OPEN["executable"] += 1
    return result(0, graph)


def cuGraphUpload(graph, stream):
    return OK


def cuGraphLaunch(graph, stream):
    for run in graph:
        run()
    return OK


def cuGraphDestroy(graph):
    OPEN["graph"] -= 1
    return OK


def cuGraphExecDestroy(graph):
    OPEN["executable"] -= 1
    return OK
