/* What the program needs of the kernel: helper calls and maps. */
#ifndef SWP2P_KERNEL_H
#define SWP2P_KERNEL_H

#define SECTION(name) __attribute__((section(name), used))

/* struct __sk_buff of linux/bpf.h, up to the last field that is read. */
struct __sk_buff {
    u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority;
    u32 ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid, data, data_end, napi_id;
    u32 family, remote_ip4, local_ip4, remote_ip6[4], local_ip6[4], remote_port, local_port, data_meta;
    u64 flow_keys, tstamp;
    u32 wire_len, gso_segs;
    u64 sk;
    u32 gso_size;
};

struct bpf_map_def {
    u32 type, key_size, value_size, max_entries, map_flags;
};

enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_PERCPU_ARRAY = 6 };
/* The next program of the interface decides, or else the frame goes on its way. */
enum { ACT_NEXT = -1, ACT_SHOT = 2 };
enum { UPDATE_ANY = 0, UPDATE_NEW = 1 };
/* A checksum of 0 means that there is none; the address is in the pseudo-header. */
enum { CSUM_MANGLED_0 = 0x20, CSUM_PSEUDO = 0x10 };

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const map_delete)(void *map, const void *key) = (void *)3;
static u64 (*const time_ns)(void) = (void *)5;
static long (*const store_bytes)(struct __sk_buff *skb, u32 at, const void *from, u32 len, u64 flags) = (void *)9;
static long (*const ip_csum_replace)(struct __sk_buff *skb, u32 at, u64 from, u64 to, u64 flags) = (void *)10;
static long (*const udp_csum_replace)(struct __sk_buff *skb, u32 at, u64 from, u64 to, u64 flags) = (void *)11;
static long (*const redirect)(u32 interface, u64 flags) = (void *)23;
static long (*const load_bytes)(const struct __sk_buff *skb, u32 at, void *to, u32 len) = (void *)26;
/* The kernel's interface has 32 bits for `times`, but where it inlines the call it reads all 64 of the register. */
static long (*const loop)(u64 times, int (*callback)(u32 index, void *context), void *context, u64 flags) = (void *)181;

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
