-- Who answers for the end of an attempt, where an operator has said so (core.dispatch.ends.correct): its
-- lease keeps it, and the history of its job tells it.
alter table leases
    add column corrected text,
    add constraint leases_corrected_once_ended check (corrected is null or ended_at is not null),
    add constraint leases_corrected_to_a_class
        check (corrected in ('user', 'platform', 'preemption', 'limit'));
alter table job_steps
    add column end_class text,
    add constraint job_steps_class_of_a_correction check ((end_class is null) = (why <> 'corrected')),
    add constraint job_steps_class_known check (end_class in ('user', 'platform', 'preemption', 'limit'));
