-- Jobs as their orgs know them. What the pool knows of a job is a row of `queue`.

-- A row is a job, an array, or an element of an array that has begun. The job's hold has the job's id.
create table jobs (
    org_id          text collate "C" not null,
    job_id          text collate "C" not null,
    account_id      text collate "C" not null,
    user_id         text collate "C" not null,
    pool_id         text collate "C" not null,
    request         json,                                -- with defaults filled in, without id and dry_run; an element has its array's
    labels          json not null default '{}',          -- set by the submitter, to find jobs by
    state           text not null,
    why             text not null default 'submitted',   -- the reason of the last transition
    attempt         bigint not null,
    sent            bigint not null,                     -- messages to the pool
    received        bigint not null,                     -- messages of the pool that are handled
    withdrawn       boolean not null,
    submitted_at    bigint not null,
    run_ms          bigint,                              -- longest run and stop grace
    max_cost        bigint,                              -- the most that may be held for it in all
    rolling         boolean not null default false,      -- its hold is topped up while it runs
    gpu_type        text,                                -- of its last attempt
    started_at      bigint,                              -- of its last attempt
    ended_at        bigint,
    end_class       text,
    exit_code       bigint,
    result          text,                                -- what it has produced, as its worker wrote it
    steps           bigint not null default 0,           -- rows of its history
    -- Arrays
    elements        bigint,                              -- an array: how many elements it has
    array_id        text collate "C",                    -- an element: its array
    place           bigint,                              -- an element: its number, from 0
    -- Jobs that share results: of those with an equal digest one runs, the others wait for its result.
    -- A job that waits is in no pool, and its pool has no message about it yet.
    result_digest   text collate "C",                    -- digest of all that decides the result; null: it shares nothing
    hit_ppm         bigint,                              -- its price for a result, as a part of the run's cost
    leads           boolean not null default false,      -- it runs, and others may wait for its result
    follows         boolean not null default false,      -- it waits for the result of another job
    source          text collate "C",                    -- the job that it follows or has the result of
    hit             boolean not null default false,      -- there was a result when it was submitted
    cached_from     text collate "C",                    -- the job that the result is from
    enqueue_message json,                                -- the message to the pool, if it has to run itself
    constraint jobs_pkey primary key (org_id, job_id),
    constraint jobs_state_known
        check (state in ('queued', 'running', 'stopping', 'out_of_credits',
                         'succeeded', 'failed', 'cancelled', 'expired')),
    constraint jobs_count_messages check (sent >= 0 and received >= 0),
    constraint jobs_count_attempts check (attempt >= 0),
    constraint jobs_count_steps check (steps >= 0),
    constraint jobs_bounds_are_amounts check (run_ms >= 0 and max_cost >= 0),
    constraint jobs_finished_have_an_end
        check ((state in ('succeeded', 'failed', 'cancelled', 'expired')) = (ended_at is not null)
               and (ended_at is null) = (end_class is null)),
    constraint jobs_class_known check (end_class in ('user', 'platform', 'preemption', 'limit')),
    constraint jobs_arrays_send_nothing check (elements is null or (sent = 0 and received = 0)),
    constraint jobs_elements_have_a_place check ((array_id is null) = (place is null) and place >= 0),
    constraint jobs_are_arrays_or_elements check (elements is null or array_id is null),
    constraint jobs_are_sent_unless_they_followed
        check (sent >= 1 or source is not null or elements is not null),
    constraint jobs_that_follow_wait
        check (not follows or (result_digest is not null and source is not null and enqueue_message is not null
                               and ended_at is null and sent = 0)),
    constraint jobs_that_lead_share
        check (not leads or (result_digest is not null and not follows and ended_at is null)),
    constraint jobs_pay_a_part_for_results check (hit_ppm between 0 and 1000000),
    constraint jobs_with_anothers_result_have_not_run
        check (cached_from is null or (state = 'succeeded' and attempt = 0 and sent = 0))
);
-- The list of jobs, newest first, without the elements of arrays; all that have not ended; those whose
-- holds are topped up. `submitted_at >= 0` always holds (see grants).
create index jobs_latest on jobs (org_id, submitted_at, job_id)
    where submitted_at >= 0 and array_id is null;
create index jobs_alive on jobs (org_id, submitted_at, job_id)
    where ended_at is null;
create index jobs_rolling on jobs (org_id, job_id)
    where rolling and ended_at is null;
create unique index jobs_of_array on jobs (org_id, array_id, place)
    where array_id is not null;
-- One of the jobs with an equal digest runs at a time.
create unique index jobs_one_leads on jobs (org_id, result_digest)
    where leads;
create index jobs_following on jobs (org_id, result_digest, submitted_at, job_id)
    where follows;
create index jobs_results on jobs (org_id, result_digest, ended_at, job_id)
    where result_digest is not null and ended_at is not null and cached_from is null and state = 'succeeded';

-- The history of a job: each transition when the org learned of it.
create table job_steps (
    org_id    text collate "C" not null,
    job_id    text collate "C" not null,
    n         bigint not null,        -- from 1, without gaps
    at        bigint not null,
    state     text not null,
    why       text not null,
    attempt   bigint not null,
    gpu_type  text,
    exit_code bigint,
    spent     bigint not null,
    held      bigint not null,
    other     text collate "C",       -- the job that it follows or has the result of
    end_class text,                   -- what an operator has corrected an attempt's end to
    constraint job_steps_pkey primary key (org_id, job_id, n),
    constraint job_steps_numbers_count check (n >= 1),
    constraint job_steps_none_negative check (least(attempt, spent, held) >= 0),
    constraint job_steps_class_of_a_correction check ((end_class is null) = (why <> 'corrected')),
    constraint job_steps_class_known check (end_class in ('user', 'platform', 'preemption', 'limit'))
);

-- The pools to which the router has sent a job that names no pool: first at its submission, then
-- whenever the job moved to another pool. A row without arrived_at is a move that waits for the former
-- pool to give the job back; if the job starts or ends there, arrived_at stays null.
create table job_routes (
    org_id     text collate "C" not null,
    job_id     text collate "C" not null,
    n          bigint not null,
    pool_id    text collate "C" not null,
    at         bigint not null,
    arrived_at bigint,
    reason     text not null,         -- why this pool, for people to read
    constraint job_routes_pkey primary key (org_id, job_id, n),
    constraint job_routes_numbers_count check (n >= 1),
    constraint job_routes_arrive_after_they_begin check (arrived_at >= at)
);
-- A job is sent to each pool once, so that its messages there have one beginning and it never goes
-- back and forth.
create unique index job_routes_pool_once on job_routes (org_id, job_id, pool_id)
    where n >= 1;
