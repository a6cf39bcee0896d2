"""The sentence for each code of an explanation, with its figures and their units.

The name of a figure ends in its unit: `needs_milli_gpus` is rendered as "8 GPUs", `start_us` as
"1 h", `lost_micros` as "2.5 credits".
"""

from typing import Final

from bursar.core.instant import DAY, HOUR, MINUTE, SECOND
from bursar.core.money import CREDIT
from bursar.core.scheduling.model.nodes import MILLI
from bursar.core.scheduling.model.policy import ANY_TYPE

Figures = tuple[tuple[str, int | str], ...]

PHRASES: Final = {
    # blockers
    "backing_off": "The last start failed. The next attempt is in {retry_us}.",
    "earmarked": "Earmarked for this job: {needs} of {gpu_type} on {nodes}. Waiting for {victims}"
    " to stop there ({jobs}): at most {free_us}.",
    "ceiling": "On {gpu_type}, {path} may use at most {ceiling} of {of_type} (in use: {used},"
    " needed: {needs}).",
    "job_limit": "On {gpu_type}, {path} may run at most {jobs_max} at a time (running:"
    " {running_jobs}).",
    "type_at_ceiling": "{gpu_type} is not allowed now: {path} may use at most {ceiling} of"
    " {of_type} (in use: {used}, needed: {needs}).",
    "no_type": "No node has {gpu_type}.",
    "no_region": "No {gpu_type} node is in region {regions}.",
    "no_memory": "{gpu_type} has at most {most_gib} of GPU memory; this job needs {needs_gib}.",
    "no_label": "No {gpu_type} node has the label {label}.",
    "no_such_part": "{needs} of {gpu_type} is not a whole number of slots (slots per GPU: {slots})."
    " Possible instead: {nearest}.",
    "no_such_node": "No {gpu_type} node has all of: {requirements}.",
    "node_too_small": "No {gpu_type} node can run a task, even when empty. A task needs {needs},"
    " {cpu_milli} and {ram_mib} of memory; the largest node has {most}.",
    "over_ceiling": "{path} may use at most {would_fit}; this job needs {needs}.",
    "pool_too_small": "Even without other jobs, only {fit} of {tasks} would fit on {gpu_type}"
    " within one {within}.",
    "not_ready": "Even without other jobs, only {fit} of {tasks} would fit on {gpu_type} within one"
    " {within}; {most_tasks} would fit if {nodes} were ready ({states}).",
    "capacity": "Needs {needs} of {gpu_type}. Free: {free}, usable by this job: {usable}.",
    "fragmented": "Needs {needs} of {gpu_type}. Free: {free}, of which in pieces too small or too"
    " far apart: {fragmented}.",
    "cpu_or_memory": "Enough GPUs of {gpu_type} are free ({free}), but not the CPUs or memory"
    " beside them: a task needs {cpu_milli} and {ram_mib}.",
    "claimed": "Needs {needs} of {gpu_type}. Free: {free}, not claimed by planned starts:"
    " {unclaimed}. First planned start: in {from_us} ({jobs}).",
    "ceiling_claimed": "{gpu_type} is free, but jobs ahead need what the ceiling of {path} still"
    " allows: {jobs}.",
    "ceiling_promised": "Cannot preempt on {gpu_type}: what the ceiling of {path} still allows is"
    " promised to {jobs}.",
    "no_floor": "Cannot preempt to reach a floor: neither its tier, org, account nor user has one.",
    "floor_reached": "Cannot preempt to reach a floor: {path} uses {used} and would use {needs}"
    " more; its floor is {floor} of {of_type}.",
    "no_lower_class": "Cannot preempt in its own org: its class is {own_class}, the lowest class of"
    " running preemptible jobs is {lowest_class}.",
    "no_age_right": "Cannot preempt later jobs of its user with as many GPUs ({jobs}) before it has"
    " waited {patience_us}, in {left_us}.",
    "later_jobs_stay": "Later jobs of its user with as many GPUs run, but cannot be preempted or"
    " end within minutes: {jobs}.",
    "turn_kept": "Cannot take the turn of {jobs} yet: it had waited too long and keeps its turn for"
    " another {span_us}.",
    "no_turn_without_checkpoint": "Cannot take the turn of {jobs}, an earlier job of its user: it"
    " would have to give it back after {span_us} and lose its work. It could if it made"
    " checkpoints or ran at most {span_us}.",
    "no_turn_right": "Cannot take the turn of a job of its own org and class: {jobs_past_turn} ran"
    " long enough, with at most {most_micros} of work left, which is less than twice the"
    " {own_micros} of this job.",
    "no_other_org": "Cannot preempt other orgs: no other org of its tier is running jobs.",
    "no_larger_share": "Cannot preempt other orgs: the largest, {largest}, uses"
    " {largest_micros_per_hour_by_weight} per hour and unit of weight; its own org would use"
    " {own_micros_per_hour_by_weight}.",
    "no_larger_usage": "Cannot preempt other orgs: the largest, {largest}, runs more, but including"
    " past usage it has used {largest_micros_by_weight} per unit of weight; its own org would have"
    " used {own_micros_by_weight}.",
    "protected": "Preemption cannot free enough {gpu_type}. Missing: {missing}. Free: {free}. In"
    " jobs it may preempt: {preemptible}, of which available: {available}. The {protection} of"
    " {path} protects {protected} of its {used}.",
    "too_few_preemptible": "Preemption cannot free enough {gpu_type}. Missing: {missing}. Free:"
    " {free}. In jobs it may preempt: {preemptible}, in other jobs: {other}.",
    "no_victim_set": "No set of jobs that it may preempt frees enough room on {types}.",
    "victims_promised": "No set of jobs that it may preempt frees enough room on {types} without"
    " delaying starts that are promised to {jobs}.",
    "victim_search_limit": "No jobs to preempt were found on {types} before the search ended after"
    " {steps} sets.",
    "preemption_deferred": "Could preempt {victims} ({lost_micros} of lost work), but other jobs"
    " came first in this round.",
    "free_soon": "Preempts no jobs, because GPUs are free in {start_us} anyway.",
    "cheaper_to_wait": "Waiting is cheaper: preempting {victims} would lose {lost_micros} of work,"
    " waiting {start_us} costs {wait_micros}.",
    "behind_similar_jobs": "Similar jobs of {path} are ahead of it and wait.",
    "round_limit": "Not considered in this scheduling round: {blocked_jobs_max} jobs ahead of it"
    " had to wait.",
    # changes
    "limit": "run at most {limit_us} instead of {instead_us}",
    "type": "accept {gpu_type} as well",
    "part": "request {part} instead of {instead}",
    "memory": "accept {memory_gib} of GPU memory instead of {instead_gib}",
    "label": "do not require the label {label}",
    "region": "allow region {region} as well",
    "within": "let it spread over one {within} instead of one {instead_within}",
    "ceiling_raised": "raise the ceiling of {path} by {more}",
    "job_limit_raised": "raise the job limit of {path} by {more_jobs}",
    "floor": "lower the floor of {path} by {less}",
    "gpus": "free {more} on {nodes} of {gpu_type}",
    # reasons
    "placed": "Starts on {nodes} ({gpu_type}, choice {choice} of {choices}): {why}.",
    "close": "Its {tasks} run on {nodes} within one {level}.",
    "tight": "{nodes} had room. Fragmentation cost of the chosen node: {cost} of {worst}; free"
    " there afterwards: {left}.",
    "passed_over": "Not on {gpu_type}: {why}.",
    "victim": "Preempts {job} ({path}) by {right}: class {priority_class}, {milli_gpus},"
    " {lost_micros} of lost work.",
    "victims": "Preempts {victims} in total: highest class {highest_class}, {lost_micros} of lost"
    " work, {milli_gpus} freed, {earmarked} earmarked for this job.",
    "preempted": "Preempted for {wanted_by} by {right}: {lost_micros} of lost work, stops within"
    " {stops_us}.",
    "promised": "It has waited so long that it is promised a start: in {start_us}.",
}  # fmt: skip


def render_phrase(code: str, figures: Figures) -> str:
    """The sentence of a code, with its figures."""
    texts = {name: render_figure(name, value) for name, value in figures}
    short = {name.removesuffix("_milli_gpus"): text for name, text in texts.items()}
    return PHRASES[code].format_map({**short, **texts})


COUNTED_NOUNS: Final = {
    "nodes": "node", "victims": "job", "tasks": "task", "jobs_max": "job", "jobs_past_turn": "job",
    "steps": "set",
}  # fmt: skip


def render_figure(name: str, value: int | str) -> str:
    """A figure with its unit."""
    if value == ANY_TYPE:
        return "any type"
    if isinstance(value, str):
        return value
    if name in COUNTED_NOUNS:
        return _render_count(str(value), COUNTED_NOUNS[name])
    if name.endswith("milli_gpus"):
        return _render_count(render_decimal(value, MILLI), "GPU")
    if name.endswith("cpu_milli"):
        return _render_count(render_decimal(value, MILLI), "CPU")
    if name.endswith("_us"):
        return render_span(value)
    if name.endswith("_gib"):
        return f"{value} GiB"
    if name.endswith("_mib"):
        return f"{value} MiB"
    return f"{render_decimal(value, CREDIT)} credits" if "_micros" in name else str(value)


def _render_count(count: str, noun: str) -> str:
    return f"{count} {noun}{'' if count == '1' else 's'}"


def render_decimal(amount: int, unit: int) -> str:
    """An amount in its unit, with at most three decimals: 8, 0.5, 12.345."""
    whole, rest = divmod(amount * 1_000 // unit, 1_000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)


SPAN_UNITS: Final = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"))
DAYS_FROM: Final = 2 * DAY  # shorter spans are given in hours


def render_span(span: int) -> str:
    """A length of time in its two largest units: 2 h 5 min, 30 s."""
    rest = -(-max(span, 0) // SECOND) * SECOND
    units = SPAN_UNITS if rest >= DAYS_FROM else SPAN_UNITS[1:]
    counts = []
    for length, unit in units:
        count, rest = divmod(rest, length)
        counts.append((count, unit))
    first = next((at for at, (count, _) in enumerate(counts) if count), len(counts) - 1)
    parts = [f"{count} {unit}" for count, unit in counts[first : first + 2] if count]
    return " ".join(parts) or f"0 {SPAN_UNITS[-1][1]}"
