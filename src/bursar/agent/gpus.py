"""The GPUs of this machine: detected through NVIDIA's library, or as the operator writes them."""

import ctypes
import os
import re
from dataclasses import dataclass
from typing import Any, Final

LIBRARY: Final = "libnvidia-ml.so.1"  # comes with the driver
GIB: Final = 1024**3
_NAME_MAX: Final = 96  # bytes of a GPU's name
_GPUS_TEXT: Final = re.compile(r"(?:(\d{1,4})x)?([A-Za-z][\w.+-]{0,63})", re.ASCII)
# Words around the common name of a GPU: "NVIDIA H100 80GB HBM3" is an H100.
_MAKER_WORDS: Final = re.compile(
    r"NVIDIA|GeForce|Tesla|Quadro|Graphics|GPU|PCI[eE]|SXM\d*|NVL|HBM\d\w*", re.ASCII
)
_MEMORY_SIZE: Final = re.compile(r"-?\b\d+ ?GB\b")


@dataclass(frozen=True, slots=True)
class DetectedGpus:
    """The GPUs of a node: all of one type."""

    type: str
    count: int
    memory_gib: int = 0  # of each; 0 if unknown
    minors: tuple[int, ...] = ()  # the numbers of their devices, if known

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the GPUs, by their number."""
        return tuple(f"/dev/nvidia{minor}" for minor in self.minors or range(self.count))


class GpusUnknown(Exception):
    """The GPUs of this machine cannot be determined."""


class _Memory(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def parse_gpus(text: str) -> DetectedGpus:
    """Parse 8xH100, or H100 for one GPU."""
    match = _GPUS_TEXT.fullmatch(text)
    if match is None:
        raise GpusUnknown(f"{text!r} names no GPUs: write 8xH100")
    return DetectedGpus(match[2], int(match[1] or 1))


def detect_gpus(library: str = LIBRARY) -> DetectedGpus:
    """Ask the driver. Raises `GpusUnknown` if it has no GPUs, or GPUs of several types."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        raise GpusUnknown(
            "this machine has no NVIDIA driver: name its GPUs, for example --gpus 8xH100"
        ) from None
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    _call(nvml, nvml.nvmlInit_v2)
    try:
        return _read_devices(nvml)
    finally:
        nvml.nvmlShutdown()


def _read_devices(nvml: Any) -> DetectedGpus:
    count = ctypes.c_uint()
    _call(nvml, nvml.nvmlDeviceGetCount_v2, ctypes.byref(count))
    if not count.value:
        raise GpusUnknown("the NVIDIA driver found no GPU: name them, for example --gpus 8xH100")
    devices = [_read_device(nvml, index) for index in range(count.value)]
    kinds = {device[:2] for device in devices}
    if len(kinds) != 1:
        names = sorted({name for name, _ in kinds})
        raise GpusUnknown(f"a node has GPUs of one type, found {names}: choose with --gpus")
    name, memory_gib = kinds.pop()
    minors = tuple(minor for _, _, minor in devices)
    return DetectedGpus(short_type(name), count.value, memory_gib, minors)


def _read_device(nvml: Any, index: int) -> tuple[str, int, int]:
    """The name, the memory and the number of the device of a GPU."""
    device, memory, minor = ctypes.c_void_p(), _Memory(), ctypes.c_uint()
    name = ctypes.create_string_buffer(_NAME_MAX)
    _call(nvml, nvml.nvmlDeviceGetHandleByIndex_v2, ctypes.c_uint(index), ctypes.byref(device))
    _call(nvml, nvml.nvmlDeviceGetName, device, name, ctypes.c_uint(_NAME_MAX))
    _call(nvml, nvml.nvmlDeviceGetMemoryInfo, device, ctypes.byref(memory))
    _call(nvml, nvml.nvmlDeviceGetMinorNumber, device, ctypes.byref(minor))
    return name.value.decode(errors="replace"), round(memory.total / GIB), minor.value


def _call(nvml: Any, function: Any, *arguments: Any) -> None:
    if (status := function(*arguments)) != 0:
        error = nvml.nvmlErrorString(status).decode(errors="replace")
        raise GpusUnknown(
            f"{function.__name__} failed with {status} ({error}): name the GPUs with --gpus"
        )


def short_type(name: str) -> str:
    """The common name of a GPU: H100 for "NVIDIA H100 80GB HBM3"."""
    plain = _MEMORY_SIZE.sub(" ", _MAKER_WORDS.sub(" ", name))
    return "-".join(word for word in (part.strip("-") for part in plain.split()) if word) or name


def count_cpu_milli() -> int:
    """Processors that this process may use, in thousandths."""
    return len(os.sched_getaffinity(0)) * 1_000


def measure_ram_mib() -> int:
    """The machine's memory, in MiB."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (1024 * 1024)
