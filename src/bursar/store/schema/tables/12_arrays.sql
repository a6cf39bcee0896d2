-- Arrays: one request and one hold for many equal jobs, its elements. An element gets a row of `jobs`
-- when it begins; its hold is a share of the array's hold.

-- The progress of an array, apart from its job row because it changes with each element.
create table arrays (
    org_id    text collate "C" not null,
    job_id    text collate "C" not null,
    count     bigint not null,
    at_once   bigint not null,                  -- the most elements that are in the pool at a time
    begun     bigint not null default 0,
    live      bigint not null default 0,        -- begun and not finished
    succeeded bigint not null default 0,
    failed    bigint not null default 0,
    cancelled bigint not null default 0,
    expired   bigint not null default 0,
    closed    boolean not null default false,   -- no further element begins
    done      boolean not null default false,   -- closed, and all elements are finished
    body      json not null,                    -- the message to the pool for an element, without its number
    constraint arrays_pkey primary key (org_id, job_id),
    constraint arrays_none_negative check (least(live, succeeded, failed, cancelled, expired) >= 0),
    constraint arrays_begin_what_there_is
        check (begun between 0 and count and at_once between 1 and count),
    constraint arrays_know_where_all_are
        check (begun = live + succeeded + failed + cancelled + expired),
    constraint arrays_are_done_when_all_are_finished check (not done or (closed and live = 0))
) with (fillfactor = 70);
-- Arrays of which more elements can begin, or all elements are finished.
create index arrays_due on arrays (org_id, job_id)
    where not done and (case when closed then live = 0 else live < at_once end);
-- Elements that have not begun count towards a quota of waiting jobs, at each submission.
create index arrays_going_on on arrays (org_id, job_id)
    where not closed;
