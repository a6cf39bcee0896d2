-- GPUs that others leave to a job that is queued (core.dispatch.pool.keep): whoever leads the pool when
-- they have left gives them to that job.
alter table queue
    add column earmark json,
    add constraint queue_keeps_for_who_waits check (earmark is null or state = 'queued');
