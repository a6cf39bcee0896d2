-- Jobs that share their results: a digest names what decides a result, one job of those that are alike runs, the
-- others wait for what it leaves; who comes later is given what is there. Who waits is in no pool, and has been
-- told to none: it has sent nothing.

alter table jobs
    add column alike       text collate "C",               -- what decides its result; none if it shares nothing
    add column hit_ppm     bigint,                         -- what it pays for a result, of what the run has cost
    add column leads       boolean not null default false, -- it shares its result, is to run, and is not over
    add column follows     boolean not null default false, -- it waits for the result of another
    add column source      text collate "C",               -- whom it came to follow, or whose result was there
    add column hit         boolean not null default false, -- a result was there when it was submitted
    add column cached_from text collate "C",               -- whose result it was given
    add column letter      json;                           -- what its pool is told if it must run itself

alter table jobs
    add constraint jobs_are_sent_unless_they_followed check (sent >= 1 or source is not null or elements is not null),
    add constraint jobs_that_follow_wait
        check (not follows or (alike is not null and source is not null and letter is not null
                               and ended_at is null and sent = 0)),
    add constraint jobs_that_lead_share
        check (not leads or (alike is not null and not follows and ended_at is null)),
    add constraint jobs_pay_a_part_for_results check (hit_ppm between 0 and 1000000),
    add constraint jobs_with_anothers_result_have_not_run
        check (cached_from is null or (state = 'succeeded' and attempt = 0 and sent = 0));

-- One of those that are alike runs at a time.
create unique index jobs_one_leads on jobs (org_id, alike) where leads;
create index jobs_following on jobs (org_id, alike, submitted_at, job_id) where follows;
create index jobs_results on jobs (org_id, alike, ended_at, job_id)
    where alike is not null and ended_at is not null and cached_from is null;

-- The job that a step is about besides its own: whom it follows, whose result it was given.
alter table job_steps add column other text collate "C";

insert into duties (duty, holder, until, done_at) values ('followers', '', 0, 0);
