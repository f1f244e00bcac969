/* The jobs of a switch: who they belong to, and which slots and records they have. */
#ifndef REDUCE_JOBS_H
#define REDUCE_JOBS_H

/* Arrays of one entry. */
SECTION("maps") struct bpf_map_def config = {MAP_ARRAY, 4, sizeof(struct config), 1, 0};
SECTION("maps") struct bpf_map_def state = {MAP_ARRAY, 4, sizeof(struct state), 1, 0};
SECTION("maps") struct bpf_map_def scratch = {MAP_PERCPU_ARRAY, 4, sizeof(struct scratch), 1, 0};
SECTION("maps") struct bpf_map_def jobs = {MAP_ARRAY, 4, sizeof(struct job), JOBS, 0};
/* The index of a job plus 1, by its number; 0: there is no such job. */
SECTION("maps") struct bpf_map_def by_number = {MAP_ARRAY, 4, 4, 65536, 0};
SECTION("maps") struct bpf_map_def records = {MAP_ARRAY, 4, sizeof(struct record), REDUCE_RECORDS, 0};
SECTION("maps") struct bpf_map_def table = {MAP_ARRAY, 4, sizeof(struct bucket), REDUCE_BUCKETS, 0};

enum counter {
    COUNT_PACKETS,    /* packets of pairs that were added up or forwarded for the first time */
    COUNT_PAIRS,      /* pairs in them */
    COUNT_ABSORBED,   /* pairs among those that were added to a sum */
    COUNT_RESIDUAL,   /* pairs that went to a master, repetitions included */
    COUNT_DUPLICATES, /* packets of pairs that had been handled before */
    COUNT_FETCHED,    /* sums that masters have read, repetitions included */
    COUNT_STALE,      /* messages of a job, an attempt or an epoch that is not there, or with a wrong token or sender */
    COUNT_REFUSED,    /* requests for slots that were refused */
    COUNT_EMITTED,    /* words that P4-ORDC's rule has sent to a master */
    COUNT_MALFORMED,  /* datagrams for the switch that are no message */
    COUNT_CHECKSUM,   /* datagrams for the switch whose checksum is wrong */
    COUNT_SUPER,      /* packets with several messages of a host that leaves segmentation to its interface */
    COUNT_BUSY,       /* messages that were dropped because another processor held the state for too long */
    COUNT_LOST,       /* replies that the kernel could not make of the frame */
    COUNTERS,
};
SECTION("maps") struct bpf_map_def counters = {MAP_PERCPU_ARRAY, 4, 8, COUNTERS, 0};

INLINE void count(u32 which, u64 amount)
{
    u64 *number = map_lookup(&counters, &which);

    if (number)
        *number += amount;
}

INLINE const struct config *the_config(void)
{
    u32 zero = 0;

    return map_lookup(&config, &zero);
}

INLINE struct state *the_state(void)
{
    u32 zero = 0;

    return map_lookup(&state, &zero);
}

INLINE struct scratch *the_scratch(void)
{
    u32 zero = 0;

    return map_lookup(&scratch, &zero);
}

/* One processor at a time handles a message. Programs at the ingress of interfaces do not interrupt one another on a processor, so the
 * holder always goes on. The choice of one lock for all jobs is ours: an uncontended one costs a few nanoseconds a packet, and a
 * packet is handled in about a microsecond. */
#define LOCK_TRIES 65536

struct locking {
    u32 *lock;
    u32 held;
};

static int try_lock(u32 index, void *context)
{
    struct locking *locking = context;

    (void)index;
    if (__sync_lock_test_and_set(locking->lock, 1))
        return 0;
    locking->held = 1;
    return 1;
}

INLINE int take_lock(struct state *s)
{
    struct locking locking = {.lock = &s->lock};

    loop(LOCK_TRIES, try_lock, &locking, 0);
    return locking.held;
}

INLINE void release_lock(struct state *s) { __sync_lock_test_and_set(&s->lock, 0); }

/* A new life for slots or records, so that none of them has to be written to be emptied. */
INLINE u64 new_life(struct state *s) { return ++s->lives; }

INLINE void remove_job(struct state *s, struct job *job, u32 index)
{
    u32 number = job->number, *of_number = map_lookup(&by_number, &number);

    if (of_number)
        *of_number = 0;
    s->used &= ~(1ull << (index & 63));
}

/* Frees the slots of jobs whose masters have been silent for the lease. */
struct expiring {
    u64 now;
};

static int expire_job(u32 index, void *context)
{
    const struct expiring *expiring = context;
    struct state *s = the_state();
    struct job *job = map_lookup(&jobs, &index);

    if (s && job && s->used >> (index & 63) & 1 && job->expires <= expiring->now)
        remove_job(s, job, index);
    return 0;
}

/* What the jobs of masters at one address have. */
struct holding {
    u32 master;
    u32 slots, records, jobs;
};

static int add_holding(u32 index, void *context)
{
    struct holding *holding = context;
    struct state *s = the_state();
    struct job *job = map_lookup(&jobs, &index);

    if (s && job && s->used >> (index & 63) & 1 && job->master == holding->master) {
        holding->slots += job->slots.end - job->slots.start;
        holding->records += job->records.end - job->records.start;
        holding->jobs++;
    }
    return 0;
}

/* What is left of a share, of which so much is used. */
INLINE u32 left_of(u32 all, u32 share, u32 used)
{
    u32 most = (u64)all * share / 100;

    return most > used ? most - used : 0;
}

/* Returns the job with this number, and its index. */
INLINE struct job *find_job(struct state *s, u32 number, u64 now, u32 *index)
{
    u32 *found = map_lookup(&by_number, &number);
    struct job *job;

    if (!found || !*found)
        return 0;
    *index = (*found - 1) & (JOBS - 1);
    job = map_lookup(&jobs, index);
    if (job && job->expires <= now) {
        remove_job(s, job, *index);
        return 0;
    }
    return job;
}

/* The search for a free range: the first of those that are long enough, else the longest. */
struct search {
    u32 of_records; /* in the records; otherwise in the slots */
    u32 end;        /* of all */
    u32 wanted;
    u32 start, len; /* of the best */
};

/* The ranges of jobs; those of jobs that have none are not looked at. */
struct gap {
    u32 start, end, of_records;
};

static int next_start(u32 index, void *context)
{
    struct gap *gap = context;
    const struct state *s = the_state();
    u32 start;

    if (!s)
        return 1;
    index &= JOBS - 1;
    start = gap->of_records ? s->records[index].start : s->slots[index].start;
    if (s->used >> index & 1 && start >= gap->start && start < gap->end)
        gap->end = start;
    return 0;
}

static int try_gap(u32 index, void *context)
{
    struct search *search = context;
    const struct state *s = the_state();
    struct gap gap = {.end = search->end, .of_records = search->of_records};
    u32 len;

    if (!s)
        return 1;
    /* A gap begins at 0, or behind the range of a job. */
    if (index < JOBS) {
        index &= JOBS - 1;
        if (!(s->used >> index & 1))
            return 0;
        gap.start = search->of_records ? s->records[index].end : s->slots[index].end;
    }
    loop(JOBS, next_start, &gap, 0);
    len = gap.end > gap.start ? gap.end - gap.start : 0;
    if (len > search->wanted)
        len = search->wanted;
    if (len > search->len || (len == search->len && gap.start < search->start)) {
        search->len = len;
        search->start = gap.start;
    }
    return 0;
}

INLINE void find_range(struct search *search)
{
    search->start = ~0u;
    loop(JOBS + 1, try_gap, search, 0);
}

#endif
