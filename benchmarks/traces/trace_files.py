"""Traces as they are handed out: files in a folder, read into what the experiments run on."""

import csv
import gzip
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.traces.packers import MILLI, Host, Pod
from benchmarks.traces.replay import SECOND, TraceJob

OPENB: Final = "openb"
SHOCKWAVE: Final = "shockwave/jobs_120.csv"
GENTD: Final = "gentd26"
PHILLY: Final = "philly/philly_jobs_shared.csv.gz"

# Experiment D: GPUs by images of a request, shortest and longest run, requests that make a tier.
GPUS_OF_IMAGES: Final = {"": 1, "1": 1, "2": 2, "3": 4, "4": 4, "5": 8, "8": 8}
RUN_LEAST, RUN_MOST = 20.0, 300.0
TIER_REQUESTS: Final = (50, 8)  # enterprise, paid; below it is free


class TraceMissing(Exception):
    """A folder has no such trace."""


def read_hosts(folder: Path) -> list[Host]:
    """The nodes of experiment A."""
    return [
        Host(
            row["model"], int(row["cpu_milli"]), int(row["memory_mib"]), (MILLI,) * int(row["gpu"])
        )
        for row in _read_rows(folder / OPENB / "openb_node_list_gpu_node.csv")
    ]


def read_pods(folder: Path, workload: str) -> list[Pod]:
    """The pods of one list of experiment A; lists without `gpu_spec` take any model."""
    return [
        Pod(
            int(row["cpu_milli"]), int(row["memory_mib"]), int(row["num_gpu"]),
            int(row["gpu_milli"]),
            tuple(sorted(spec.split("|"))) if (spec := row.get("gpu_spec")) else (),
        )
        for row in _read_rows(folder / OPENB / f"openb_pod_list_{workload}.csv")
    ]  # fmt: skip


def list_workloads(folder: Path) -> list[str]:
    """The names of the lists of pods that there are."""
    paths = (folder / OPENB).glob("openb_pod_list_*.csv")
    return sorted(path.stem.removeprefix("openb_pod_list_") for path in paths)


def read_published(folder: Path, percents: tuple[int, ...]) -> dict[tuple[str, str, int], float]:
    """What the authors came to: list, policy and percent asked for → percent given away."""
    path = folder / OPENB / "published_analysis_allo_discrete.csv"
    values_by_key: dict[tuple[str, str, int], list[float]] = {}
    for row in _read_rows(path) if path.exists() else ():
        workload = row["workload"].removeprefix("openb_pod_list_")
        policy = row["sc_policy"].partition("-")[2]
        for percent in percents:
            values_by_key.setdefault((workload, policy, percent), []).append(
                float(row[str(percent)])
            )
    return {key: sum(values) / len(values) for key, values in values_by_key.items()}


class FairJob(NamedTuple):
    """A job of experiment C, and how long it would take on its part of the cluster alone."""

    ask: TraceJob
    alone: float  # seconds on GPUs of its own


def read_fair_jobs(folder: Path) -> list[FairJob]:
    """The jobs of experiment C."""
    return [
        FairJob(
            TraceJob(
                name=f"{int(row['job_id']):04}", owner="", tier=0,
                arrives=_parse_ms(row["arrival_s"]), gpus=int(row["num_gpus"]),
                runs=_parse_ms(row["service_s"]),
            ),
            float(row["fair_ref_exclusive_s"]),
        )
        for row in _read_rows(folder / SHOCKWAVE)
    ]  # fmt: skip


def read_requests(folder: Path) -> list[TraceJob]:
    """The requests of experiment D, all days folded on one."""
    paths = sorted((folder / GENTD).glob("*.csv"))
    if not paths:
        raise TraceMissing(f"there is no trace {folder / GENTD / '*.csv'}")
    rows = [row for row in _read_rows(paths[0]) if row["predict_status"] == "SUCCEED"]
    sent = Counter(row["groupId"] for row in rows)
    return [
        TraceJob(
            name=f"{place:06}", owner=row["groupId"],
            tier=sum(sent[row["groupId"]] < least for least in TIER_REQUESTS),
            arrives=_parse_time_of_day(row["gmt_create"]),
            gpus=GPUS_OF_IMAGES[row["num_images_per_prompt"].partition(".")[0]],
            runs=round(SECOND * min(max(float(row["exec_time_seconds"]), RUN_LEAST), RUN_MOST)),
        )
        for place, row in enumerate(rows)
    ]  # fmt: skip


def read_month(folder: Path) -> list[TraceJob]:
    """The jobs of Philly-Oct: submitted in October 2017."""
    begins = datetime(2017, 10, 1, tzinfo=UTC)
    ends = datetime(2017, 11, 1, tzinfo=UTC)
    jobs = []
    for row in _read_rows(folder / PHILLY):
        at = datetime.fromisoformat(row["submit_time"]).replace(tzinfo=UTC)
        if begins <= at < ends:
            arrives = int((at - begins).total_seconds()) * SECOND
            name = f"{row['vc']}-{int(row['app_id']):06}"
            gpus, runs = int(row["num_gpus"]), int(row["duration_s"]) * SECOND
            jobs.append(TraceJob(name, row["vc"], 0, arrives, gpus, runs))
    return jobs


def _read_rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.exists():
        raise TraceMissing(f"there is no trace {path}")
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _parse_ms(seconds: str) -> int:
    return round(SECOND * float(seconds))


def _parse_time_of_day(stamp: str) -> int:
    hours, minutes, seconds = stamp[11:19].split(":")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * SECOND
