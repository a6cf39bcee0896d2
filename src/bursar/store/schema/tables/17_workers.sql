-- The background workers of which one runs at a time: which process runs each of them, until when its
-- claim lasts, and when a round was last completed.
create table duties (
    duty    text collate "C" not null,
    holder  text not null,            -- empty: none
    until   bigint not null,
    done_at bigint not null,
    constraint duties_pkey primary key (duty)
);

insert into duties (duty, holder, until, done_at)
values
    ('sweep', '', 0, 0),
    ('alerts', '', 0, 0),
    ('webhooks', '', 0, 0),
    ('rolling holds', '', 0, 0),
    ('followers', '', 0, 0),
    ('moving jobs', '', 0, 0);
