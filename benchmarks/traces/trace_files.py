"""Traces as they are handed out: files in a folder, read into what the experiments run on."""

import csv
import gzip
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.traces.packing import MILLI, Host, Pod
from benchmarks.traces.replay import SECOND, Ask

OPENB: Final = "openb"
SHOCKWAVE: Final = "shockwave/jobs_120.csv"
GENTD: Final = "gentd26"
PHILLY: Final = "philly/philly_jobs_shared.csv.gz"

# Experiment D: GPUs by images of a request, shortest and longest run, requests that make a tier.
GPUS_OF_IMAGES: Final = {"": 1, "1": 1, "2": 2, "3": 4, "4": 4, "5": 8, "8": 8}
RUN_LEAST, RUN_MOST = 20.0, 300.0
TIER_REQUESTS: Final = (50, 8)  # enterprise, paid; below it is free


class Missing(Exception):
    """A folder has no such trace."""


def hosts(folder: Path) -> list[Host]:
    """The nodes of experiment A."""
    return [
        Host(
            row["model"], int(row["cpu_milli"]), int(row["memory_mib"]), (MILLI,) * int(row["gpu"])
        )
        for row in _rows(folder / OPENB / "openb_node_list_gpu_node.csv")
    ]


def pods(folder: Path, workload: str) -> list[Pod]:
    """The pods of one list of experiment A; lists without `gpu_spec` take any model."""
    return [
        Pod(
            int(row["cpu_milli"]), int(row["memory_mib"]), int(row["num_gpu"]),
            int(row["gpu_milli"]),
            tuple(sorted(spec.split("|"))) if (spec := row.get("gpu_spec")) else (),
        )
        for row in _rows(folder / OPENB / f"openb_pod_list_{workload}.csv")
    ]  # fmt: skip


def workloads(folder: Path) -> list[str]:
    """The names of the lists of pods that there are."""
    found = (folder / OPENB).glob("openb_pod_list_*.csv")
    return sorted(path.stem.removeprefix("openb_pod_list_") for path in found)


def published(folder: Path, percents: tuple[int, ...]) -> dict[tuple[str, str, int], float]:
    """What the authors came to: list, policy and percent asked for → percent given away."""
    path = folder / OPENB / "published_analysis_allo_discrete.csv"
    seen: dict[tuple[str, str, int], list[float]] = {}
    for row in _rows(path) if path.exists() else ():
        workload = row["workload"].removeprefix("openb_pod_list_")
        policy = row["sc_policy"].partition("-")[2]
        for percent in percents:
            seen.setdefault((workload, policy, percent), []).append(float(row[str(percent)]))
    return {key: sum(values) / len(values) for key, values in seen.items()}


class Fair(NamedTuple):
    """A job of experiment C, and how long it would take on its part of the cluster alone."""

    ask: Ask
    alone: float  # seconds on GPUs of its own


def fair_jobs(folder: Path) -> list[Fair]:
    """The jobs of experiment C."""
    return [
        Fair(
            Ask(
                name=f"{int(row['job_id']):04}", owner="", tier=0,
                arrives=_ms(row["arrival_s"]), gpus=int(row["num_gpus"]),
                runs=_ms(row["service_s"]),
            ),
            float(row["fair_ref_exclusive_s"]),
        )
        for row in _rows(folder / SHOCKWAVE)
    ]  # fmt: skip


def requests(folder: Path) -> list[Ask]:
    """The requests of experiment D, all days folded on one."""
    paths = sorted((folder / GENTD).glob("*.csv"))
    if not paths:
        raise Missing(f"there is no trace {folder / GENTD / '*.csv'}")
    rows = [row for row in _rows(paths[0]) if row["predict_status"] == "SUCCEED"]
    sent = Counter(row["groupId"] for row in rows)
    return [
        Ask(
            name=f"{place:06}", owner=row["groupId"],
            tier=sum(sent[row["groupId"]] < least for least in TIER_REQUESTS),
            arrives=_of_day(row["gmt_create"]),
            gpus=GPUS_OF_IMAGES[row["num_images_per_prompt"].partition(".")[0]],
            runs=round(SECOND * min(max(float(row["exec_time_seconds"]), RUN_LEAST), RUN_MOST)),
        )
        for place, row in enumerate(rows)
    ]  # fmt: skip


def month(folder: Path) -> list[Ask]:
    """The jobs of Philly-Oct: submitted in October 2017."""
    begins = datetime(2017, 10, 1, tzinfo=UTC)
    ends = datetime(2017, 11, 1, tzinfo=UTC)
    jobs = []
    for row in _rows(folder / PHILLY):
        at = datetime.fromisoformat(row["submit_time"]).replace(tzinfo=UTC)
        if begins <= at < ends:
            arrives = int((at - begins).total_seconds()) * SECOND
            name = f"{row['vc']}-{int(row['app_id']):06}"
            gpus, runs = int(row["num_gpus"]), int(row["duration_s"]) * SECOND
            jobs.append(Ask(name, row["vc"], 0, arrives, gpus, runs))
    return jobs


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.exists():
        raise Missing(f"there is no trace {path}")
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _ms(seconds: str) -> int:
    return round(SECOND * float(seconds))


def _of_day(stamp: str) -> int:
    hours, minutes, seconds = stamp[11:19].split(":")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * SECOND
