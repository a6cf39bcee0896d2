"""A job as its org sees it: pure rules over plain rows, run by the service and by the simulator.

    rows              OrgJob, ArrayProgress, Route and the rows that are only added
    transaction       JobTransaction: the rows that one transaction reads and changes
    effects           what a ledger command changes in the jobs, in the same transaction
    states            the row of a job after a message of its pool
    submission        submitting a job, extending its hold
    quotas            quotas that are checked at submission
    cancellation      cancelling a job, or an array with its elements
    pool_messages     handles a message of a pool: its commands, and the row after the last of them
    message_commands  the ledger commands that follow from a message of a pool
    relocation        moving a job without an attempt to another pool
    corrections       correcting the end class of an attempt
    rolling_holds     how much a rolling hold grows, and when
    arrays            starts and ends of elements; the end of an array
    result_cache      identical jobs: one leads, the others follow and get its result

A job is submitted by the command that reserves its hold: job, hold and the message to the pool
exist together or not at all. The hold has the job's id. It stays open until the pool reports the
end of the job, even if the job is cancelled.

Every command has a key, and a repeated key gets its first answer (L7). So a message that is
delivered twice, or a process that dies between two commands of a message, has no second effect.
"""
