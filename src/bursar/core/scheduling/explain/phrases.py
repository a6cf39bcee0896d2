"""Figures as people read them: a sentence for each stable word, with units.

A figure's name says its unit, unit last: `needs_milli_gpus` is told as "8 GPUs", `start_us` as
"1h", `lost_micros` as "2.5 credits".
"""

from typing import Final

from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.money import CREDIT
from bursar.core.scheduling.model.nodes import MILLI
from bursar.core.scheduling.model.policy import ANY_TYPE

Figures = tuple[tuple[str, int | str], ...]

PHRASES: Final = {
    # blockers
    "backing_off": "a start failed; it may be tried again in {again_us}",
    "kept": "{needs_milli_gpus} of {gpu_type} are kept for it on {nodes}; {victims} still"
    " there ({who}), gone in {free_us} at the latest",
    "ceiling": "{at} may have no more {of}: {used} of {most} are used, on {gpu_type}",
    "type_dropped": "not on {gpu_type}: {at} may have no more {of}, {used} of {most} are used",
    "no_type": "no node has {gpu_type}",
    "no_region": "no node of {gpu_type} stands in region {regions}",
    "no_memory": "{gpu_type} has {most_gib} GiB at most, it needs {needs_gib} GiB",
    "no_label": "no node of {gpu_type} has the label {label}",
    "no_such_part": "no {gpu_type} is divided so that {needs_milli_gpus} would be whole slots of it"
    " (a GPU there has {slots}); what can be had instead: {nearest}",
    "no_such_node": "no node of {gpu_type} has all at once: {asked}",
    "node_too_small": "no node of {gpu_type} has room for one of its tasks, even empty: it needs"
    " {needs_milli_gpus}, the largest has {most_milli_gpus}"
    " (CPU and memory count too: {cpu_milli} mCPU, {ram_mib} MiB)",
    "over_ceiling": "{at} may have {would_fit_milli_gpus} at most, it needs {needs_milli_gpus}",
    "pool_too_small": "{fit} of {tasks} would fit on {gpu_type} within one {within} if"
    " nothing ran",
    "not_ready": "{fit} of {tasks} would fit on {gpu_type} within one {within} if nothing ran,"
    " {most} if {nodes} could be used too ({states})",
    "capacity": "needs {needs_milli_gpus} of {gpu_type}, {free_milli_gpus} free"
    " ({together_milli_gpus} of use to it)",
    "fragmented": "needs {needs_milli_gpus} of {gpu_type}, {free_milli_gpus} free but not together:"
    " {fragmented_milli_gpus} in pieces too small or too far apart",
    "processors": "{free_milli_gpus} of {gpu_type} free and enough for it, but not the CPU or"
    " memory beside them: each task needs {cpu_milli} mCPU and {ram_mib} MiB",
    "claimed": "{free_milli_gpus} of {gpu_type} free, {unclaimed_milli_gpus} without a claim:"
    " places of {by} begin there in {from_us}",
    "crowded": "{gpu_type} is free, but {by} came first and needs what the ceiling of {at} still"
    " allows",
    "promised_away": "may preempt nobody for {gpu_type}: {by} was promised what the ceiling of {at}"
    " still allows",
    "no_floor": "may not preempt for a floor: no place of it has one",
    "floor_reached": "may not preempt for a floor: {at} has {used_milli_gpus} and would have"
    " {needs_milli_gpus} more, its floor is {floor_milli_gpus} of {of_type}",
    "no_lower_class": "may preempt nobody of its org: its class is {own}, the lowest that runs and"
    " can be preempted is {lowest}",
    "no_turn": "may take nobody's turn: of its org and class {up} ran long enough, with at most"
    " {most_micros} of work to do, its own is {own_micros}",
    "no_other_org": "may preempt no other org: no other of its tier has anything that runs",
    "no_larger_share": "may preempt no other org: the largest, {largest}, has"
    " {its_micros_per_hour_by_weight} an hour by weight, its own would have"
    " {ours_micros_per_hour_by_weight}",
    "no_larger_usage": "may preempt no other org: the largest, {largest}, runs more, but with what"
    " it used before it has {its_micros_by_weight} by weight, its own would have"
    " {ours_micros_by_weight}",
    "protected": "lacks {lacks_milli_gpus} of {gpu_type} whoever leaves: {free_milli_gpus} free,"
    " {asked_milli_gpus} with jobs that it may ask, {given_milli_gpus} of these to be given;"
    " the {by} of {of} protects {keeps_milli_gpus} of its {has_milli_gpus}",
    "nobody_to_ask": "lacks {lacks_milli_gpus} of {gpu_type} whoever leaves: {free_milli_gpus}"
    " free, {asked_milli_gpus} with jobs that it may ask, {fixed_milli_gpus} with others",
    "not_together": "nobody that may be asked makes room together on {types}",
    "search_ended": "nobody found that makes room on {types}: the search ended after {steps} sets",
    "not_asked": "could ask {victims} to make room, with {lost_micros} of work lost, but others"
    " were looked at first in this round",
    "free_soon": "asks nobody: GPUs are free in {start_us} anyway",
    "cheaper_to_wait": "would stop {victims} and lose {lost_micros}; waiting {start_us} costs"
    " {wait_micros}",
    "behind": "others of {who} that are alike stand before it and wait",
    "not_looked_at": "it was not looked at in this round: {looks} jobs before it had to wait",
    # changes
    "limit": "run at most {limit_us} instead of {instead_us}",
    "type": "accept {gpu_type} as well",
    "part": "ask for {part_milli_gpus} instead of {instead_milli_gpus}",
    "memory": "accept {memory_gib} GiB instead of {instead_gib} GiB",
    "label": "do without the label {label}",
    "region": "run in region {region} too",
    "within": "lie within one {within} instead of one {instead}",
    "ceiling_raised": "ceiling of {at} +{more}",
    "jobs_raised": "most jobs of {at} +{more}",
    "floor": "floor of {at} -{less_milli_gpus}",
    "gpus": "{more_milli_gpus} more free on {nodes} of {gpu_type}",
    # reasons
    "placed": "starts on {nodes} ({gpu_type}, choice {choice} of {choices}) because: {why}",
    "close": "its {tasks} lie on {nodes} within one {level}",
    "tight": "room on {nodes}; this one fits with fragmentation {cost} of {worst} and has"
    " {left_milli_gpus} left",
    "passed_over": "not on {gpu_type}: {why}",
    "victim": "{job} of {who} makes room by {right}: class {priority_class}, {milli_gpus},"
    " {lost_micros} of work lost",
    "victims": "in all {victims}: class {highest_class} at most, {lost_micros} of work lost;"
    " {milli_gpus} freed, {kept_milli_gpus} kept for it",
    "preempted": "makes room for {wanted_by} by {right}: {lost_micros} of work lost, stops in"
    " {stops_us}",
    "promised": "waits so long that it got a date: in {start_us}",
}  # fmt: skip


def render_phrase(word: str, figures: Figures) -> str:
    """The sentence for a word, with its figures in it."""
    told = {name: render_figure(name, value) for name, value in figures}
    short = {name.removesuffix("_milli_gpus"): text for name, text in told.items()}
    of = dict(figures).get("of")
    types = {"of_type": "any type" if of == ANY_TYPE else of}
    return PHRASES[word].format_map({**types, **short, **told})


COUNTED_NOUNS: Final = {"nodes": "node", "victims": "job", "tasks": "task"}


def render_figure(name: str, value: int | str) -> str:
    """A figure with its unit."""
    if value == ANY_TYPE:
        return "GPUs"
    if isinstance(value, str):
        return value
    if name.endswith("milli_gpus"):
        return f"{render_decimal(value, MILLI)} GPU{'' if value == MILLI else 's'}"
    if name.endswith("_us"):
        return render_span(value)
    if name in COUNTED_NOUNS:
        return f"{value} {COUNTED_NOUNS[name]}{'' if value == 1 else 's'}"
    return f"{render_decimal(value, CREDIT)} credits" if "_micros" in name else str(value)


def render_decimal(amount: int, unit: int) -> str:
    """An amount in its unit, as few digits as it takes and three at most: 8, 0.5, 12.345."""
    whole, rest = divmod(amount * 1_000 // unit, 1_000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)


def render_span(span: int) -> str:
    """A length of time in its two largest units: 2h 5m, 30s."""
    seconds = -(-max(span, 0) // SECOND)
    minutes, hours = seconds * SECOND // MINUTE, seconds * SECOND // HOUR
    if hours:
        return f"{hours}h {minutes % 60}m" if minutes % 60 else f"{hours}h"
    if minutes:
        return f"{minutes}m {seconds % 60}s" if seconds % 60 else f"{minutes}m"
    return f"{seconds}s"
