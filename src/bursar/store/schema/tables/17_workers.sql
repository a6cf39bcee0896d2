-- Leases of the background workers of which one runs at a time: the process that runs the worker, the
-- end of its lease, and the instant up to which its work was last completed.
create table worker_leases (
    worker  text collate "C" not null,
    holder  text not null,            -- the process; empty: none
    until   bigint not null,
    done_at bigint not null,
    constraint worker_leases_pkey primary key (worker)
);

insert into worker_leases (worker, holder, until, done_at)
values
    ('sweeper', '', 0, 0),
    ('alerts', '', 0, 0),
    ('webhooks', '', 0, 0),
    ('rolling holds', '', 0, 0),
    ('result cache', '', 0, 0),
    ('relocation', '', 0, 0);
