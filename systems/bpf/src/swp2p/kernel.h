/* The program's maps. */
#ifndef SWP2P_KERNEL_H
#define SWP2P_KERNEL_H

/* Arrays of one entry. */
SECTION("maps") struct bpf_map_def config = {MAP_ARRAY, 4, sizeof(struct config), 1, 0};
SECTION("maps") struct bpf_map_def state = {MAP_ARRAY, 4, sizeof(struct state), 1, 0};
/* The payload of the report that is being handled. */
SECTION("maps") struct bpf_map_def scratch = {MAP_PERCPU_ARRAY, 4, WINDOW / 8, 1, 0};
/* The slot of each client, by its IP address. */
SECTION("maps") struct bpf_map_def by_ip = {MAP_HASH, 4, 4, SLOTS, 0};
/* By chunk. The chunks of different images share rows: a client has chunks of one image only. */
SECTION("maps") struct bpf_map_def rows = {MAP_ARRAY, 4, sizeof(struct row), SWP2P_CHUNKS, 0};
/* By slot, then window. */
SECTION("maps") struct bpf_map_def windows = {MAP_ARRAY, 4, sizeof(struct window), SLOTS * WINDOWS, 0};

enum counter {
    COUNT_MESSAGES,   /* control messages of clients to the server */
    COUNT_REQUESTS,   /* batches among them */
    COUNT_REPORTS,
    COUNT_RETURNED,   /* returns that concern an outstanding request */
    COUNT_TO_HOLDER,  /* requests and returns redirected to a client that has the chunks */
    COUNT_TO_PENDING, /* likewise, to a client that has asked for them */
    COUNT_TO_SERVER,  /* left to the server, because no client can serve them */
    COUNT_REFUSED,    /* messages that were not recorded because a bound was reached */
    COUNT_SPOOFED,    /* messages that named a client and did not come from it */
    COUNT_SUPER,      /* packets of several messages, which are not examined */
    COUNT_BARRED,     /* holders that are not chosen any more */
    COUNT_SILENT,     /* clients that were forgotten because they were silent */
    COUNT_LOST,       /* frames that could not be rewritten */
    COUNTERS,
};
SECTION("maps") struct bpf_map_def counters = {MAP_PERCPU_ARRAY, 4, 8, COUNTERS, 0};

INLINE void count(u32 which)
{
    u64 *number = map_lookup(&counters, &which);

    if (number)
        *number += 1;
}

INLINE struct state *the_state(void)
{
    u32 zero = 0;

    return map_lookup(&state, &zero);
}

INLINE const struct config *the_config(void)
{
    u32 zero = 0;

    return map_lookup(&config, &zero);
}

INLINE struct row *row_of(u32 chunk) { return map_lookup(&rows, &chunk); }

#endif
