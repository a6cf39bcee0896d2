"""Which GPUs are here (S17)."""

import shutil
import subprocess
from pathlib import Path

import pytest

from bursar.agent import gpus
from bursar.agent.gpus import DetectedGpus, GpusUnknown, detect_gpus, parse_gpus, short_type

# As much of NVIDIA's library as is asked for.
LIBRARY = """
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory;
static const char names[][96] = { NAMES "" };
const char *nvmlErrorString(int status) { return status == 999 ? "Unknown Error" : "?"; }
int nvmlInit_v2(void) { return STATUS; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = sizeof names / sizeof *names - 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, const char **device)
    { *device = names[index]; return 0; }
int nvmlDeviceGetName(const char *device, char *name, unsigned size)
    { strncpy(name, device, size); return 0; }
int nvmlDeviceGetMinorNumber(const char *device, unsigned *minor)
    { *minor = 7 - (device - names[0]) / 96; return 0; }
int nvmlDeviceGetMemoryInfo(const char *device, memory *told)
    { told->total = 85520809984ULL; return 0; }
"""


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("8xH100", DetectedGpus("H100", 8)),
        ("H100", DetectedGpus("H100", 1)),
        ("0xA100", DetectedGpus("A100", 0)),
    ],
)
def test_gpus_are_parsed(text: str, want: DetectedGpus) -> None:
    assert want == parse_gpus(text)


@pytest.mark.parametrize("text", ["", "8x", "8 H100", "8xH100 ", "-1xH100", "99999xH100"])
def test_text_that_names_no_gpus_is_refused(text: str) -> None:
    with pytest.raises(GpusUnknown, match="write 8xH100"):
        parse_gpus(text)


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA H100 NVL", "H100"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA", "NVIDIA"),
    ],
)
def test_gpu_type_is_its_common_name(name: str, type: str) -> None:
    assert type == short_type(name)


def built(folder: Path, *names: str, status: int = 0) -> str:
    """A library that knows GPUs of these names."""
    if shutil.which("cc") is None:
        pytest.skip("there is no compiler here")
    source, library = folder / "nvml.c", folder / "nvml.so"
    quoted = "".join(f'"{name}", ' for name in names)
    source.write_text(LIBRARY.replace("NAMES", quoted).replace("STATUS", str(status)))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


def test_gpus_are_read_from_the_driver(tmp_path: Path) -> None:
    """Through its own library, as it is on a machine that has one."""
    library = built(tmp_path, *["NVIDIA H100 80GB HBM3"] * 8)

    found = detect_gpus(library)

    assert DetectedGpus("H100", 8, 80, (7, 6, 5, 4, 3, 2, 1, 0)) == found
    assert ("/dev/nvidia7", "/dev/nvidia6") == found.devices[:2]
    assert ("/dev/nvidia0", "/dev/nvidia1") == parse_gpus("2xH100").devices


def test_gpus_of_two_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GpusUnknown, match="one type"):
        detect_gpus(built(tmp_path, "NVIDIA H100", "NVIDIA L40S"))


def test_driver_without_gpus_is_reported(tmp_path: Path) -> None:
    with pytest.raises(GpusUnknown, match="found no GPU"):
        detect_gpus(built(tmp_path))


def test_driver_error_is_reported(tmp_path: Path) -> None:
    with pytest.raises(GpusUnknown, match=r"nvmlInit_v2 failed with 999 \(Unknown Error\)"):
        detect_gpus(built(tmp_path, "NVIDIA H100", status=999))


def test_missing_driver_is_reported(tmp_path: Path) -> None:
    with pytest.raises(GpusUnknown, match="--gpus 8xH100"):
        detect_gpus(str(tmp_path / "none.so"))


def test_processors_and_memory_are_measured() -> None:
    assert gpus.count_cpu_milli() >= 1_000
    assert gpus.measure_ram_mib() > 100
