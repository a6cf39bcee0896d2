"""The GPUs of this machine: asked of NVIDIA's library where it is, or as somebody says."""

import ctypes
import os
import re
from dataclasses import dataclass
from typing import Any, Final

LIBRARY: Final = "libnvidia-ml.so.1"  # comes with the driver
GIB: Final = 1024**3
_NAME_MAX: Final = 96  # bytes of a GPU's name
_GIVEN: Final = re.compile(r"(?:(\d{1,4})x)?([A-Za-z][\w.+-]{0,63})", re.ASCII)
# What makers put around the name that people use.
_NOISE: Final = re.compile(
    r"NVIDIA|GeForce|Tesla|Quadro|Graphics|GPU|PCI[eE]|SXM\d*|NVL|HBM\d\w*", re.ASCII
)
_SIZE: Final = re.compile(r"-?\b\d+ ?GB\b")


@dataclass(frozen=True, slots=True)
class Gpus:
    """So many GPUs of one type."""

    type: str
    count: int
    memory_gib: int = 0  # of each; 0 if nobody knows


class NoGpus(Exception):
    """Nobody says which GPUs are here."""


class _Memory(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def given(text: str) -> Gpus:
    """GPUs as they are written: 8xH100, or H100 for one."""
    found = _GIVEN.fullmatch(text)
    if found is None:
        raise NoGpus(f"{text!r} names no GPUs: write 8xH100")
    return Gpus(found[2], int(found[1] or 1))


def found(library: str = LIBRARY) -> Gpus:
    """The GPUs that the driver knows; `NoGpus` if there are none, or of two types."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        raise NoGpus(
            "there is no NVIDIA driver here: say which GPUs, such as --gpus 8xH100"
        ) from None
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    _asked(nvml, nvml.nvmlInit_v2)
    try:
        return _all_of(nvml)
    finally:
        nvml.nvmlShutdown()


def _all_of(nvml: Any) -> Gpus:
    count = ctypes.c_uint()
    _asked(nvml, nvml.nvmlDeviceGetCount_v2, ctypes.byref(count))
    if not count.value:
        raise NoGpus("the NVIDIA driver knows no GPU here: say which, such as --gpus 8xH100")
    seen = {_one(nvml, index) for index in range(count.value)}
    if len(seen) != 1:
        names = sorted({name for name, _ in seen})
        raise NoGpus(f"a node has GPUs of one type, here are {names}: say which with --gpus")
    name, memory_gib = seen.pop()
    return Gpus(type_of(name), count.value, memory_gib)


def _one(nvml: Any, index: int) -> tuple[str, int]:
    device, memory = ctypes.c_void_p(), _Memory()
    name = ctypes.create_string_buffer(_NAME_MAX)
    _asked(nvml, nvml.nvmlDeviceGetHandleByIndex_v2, ctypes.c_uint(index), ctypes.byref(device))
    _asked(nvml, nvml.nvmlDeviceGetName, device, name, ctypes.c_uint(_NAME_MAX))
    _asked(nvml, nvml.nvmlDeviceGetMemoryInfo, device, ctypes.byref(memory))
    return name.value.decode(errors="replace"), round(memory.total / GIB)


def _asked(nvml: Any, function: Any, *arguments: Any) -> None:
    if (status := function(*arguments)) != 0:
        why = nvml.nvmlErrorString(status).decode(errors="replace")
        raise NoGpus(
            f"{function.__name__} says {status} ({why}): say which GPUs are here with --gpus"
        )


def type_of(name: str) -> str:
    """What people call a GPU: H100 for "NVIDIA H100 80GB HBM3"."""
    plain = _SIZE.sub(" ", _NOISE.sub(" ", name))
    return "-".join(word for word in (part.strip("-") for part in plain.split()) if word) or name


def cpu_milli() -> int:
    """What processors there are, in thousandths."""
    return len(os.sched_getaffinity(0)) * 1_000


def ram_mib() -> int:
    """What memory there is."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (1024 * 1024)
