-- Jobs as orgs have submitted them: what was asked, how far they have got in the words of a job's life,
-- and each step of that, so that whoever watches can go on where it has stopped.

alter table jobs
    add column asked      json,                       -- the request; none in jobs from before
    add column labels     json not null default '{}', -- of the submitter's own, to find jobs by
    add column run_ms     bigint,                     -- longest run and stop grace
    add column max_cost   bigint,                     -- what may be set aside for it in all
    add column rolling    boolean not null default false, -- its hold is topped up while it runs
    add column why        text not null default 'submitted', -- the last step of its life
    add column gpu_type   text,                       -- of its last attempt
    add column started_at bigint,                     -- of its last attempt
    add column exit_code  bigint,
    add column result     text,                       -- what it has left, as its worker wrote it
    add column steps      bigint not null default 0;  -- rows of its history

alter table jobs drop constraint jobs_state_known, drop constraint jobs_over_have_an_end;
update jobs
   set state = case when state = 'waiting' then 'queued'
                    when state = 'running' then 'running'
                    when end_class = 'limit' then 'expired'
                    when end_class = 'user' and withdrawn then 'cancelled'
                    when end_class = 'user' then 'succeeded'
                    else 'failed' end;
alter table jobs
    add constraint jobs_state_known
        check (state in ('queued', 'running', 'stopping', 'out_of_credits',
                         'succeeded', 'failed', 'cancelled', 'expired')),
    add constraint jobs_over_have_an_end
        check ((state in ('succeeded', 'failed', 'cancelled', 'expired')) = (ended_at is not null)
               and (ended_at is null) = (end_class is null)),
    add constraint jobs_bounds_are_amounts check (run_ms >= 0 and max_cost >= 0),
    add constraint jobs_count_steps check (steps >= 0);

-- What is shown to people, the newest first; those that are not over; those to be topped up. The first condition holds for
-- all: it keeps the index from being taken where the primary key is meant.
create index jobs_latest on jobs (org_id, submitted_at, job_id) where submitted_at >= 0;
create index jobs_rolling on jobs (org_id, job_id) where rolling and ended_at is null;
create index jobs_alive on jobs (org_id, submitted_at, job_id) where ended_at is null;

-- Every step of a job's life, as its org came to know of it.
create table job_steps (
    org_id       text collate "C" not null,
    job_id       text collate "C" not null,
    n            bigint not null,
    at           bigint not null,
    state        text not null,
    why          text not null,
    attempt      bigint not null,
    gpu_type     text,
    exit_code    bigint,
    spent        bigint not null,
    held         bigint not null,
    constraint job_steps_pkey primary key (org_id, job_id, n),
    constraint job_steps_numbers_count check (n >= 1),
    constraint job_steps_none_negative check (least(attempt, spent, held) >= 0)
);

grant select, insert on job_steps to bursar_service;

alter table job_steps enable row level security;
create policy tenant on job_steps to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

insert into duties (duty, holder, until, done_at) values ('rolling holds', '', 0, 0);
