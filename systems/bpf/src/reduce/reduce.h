/* The messages of an aggregation as a switch reads and writes them, and the state that it keeps. The rules are those of
 * aggregation::switch, the layouts those of wire::reduce; a test compares both programs packet by packet. */
#ifndef REDUCE_H
#define REDUCE_H

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "this program is for little-endian machines"
#endif

/* All slots, a multiple of WAYS, and the slots of a bucket. */
#ifndef REDUCE_BUCKETS
#define REDUCE_BUCKETS 8192u
#endif
#ifndef REDUCE_WAYS
#define REDUCE_WAYS 8u
#endif
#define SLOTS (REDUCE_BUCKETS * REDUCE_WAYS)
/* Packets in the windows of all workers of all jobs whose rest is recorded. */
#ifndef REDUCE_RECORDS
#define REDUCE_RECORDS 65536u
#endif
#define JOBS 64u
#define WORKERS 64u

/* Offsets in a frame: Ethernet, IPv4 without options, UDP. */
#define AT_IP 14u
#define AT_SOURCE 26u
#define AT_DESTINATION 30u
#define AT_UDP 34u
#define AT_UDP_CHECK 40u
#define AT_MESSAGE 42u
#define UDP_BYTES 8u
/* The longest UDP datagram: of an MTU of 1500 bytes. */
#define DATAGRAM_MOST 1480u
/* Checksums are computed in pieces: until Linux 6.13 one call of csum_diff takes 512 bytes. */
#define CSUM_PIECE 496u
#define BUFFER (3 * CSUM_PIECE)

/* Fields of all messages, from the start of the message. */
#define MAGIC 0xa6
#define F_KIND 1
#define F_JOB 2
#define F_ATTEMPT 4
#define F_WORKER 6
#define F_COUNT 7
#define F_TOKEN 8
#define F_BODY 16
/* Fields of DATA and RESIDUAL, FETCH and VALUES, OPEN. */
#define F_SEQ 16
#define F_DATA_EPOCH 20
#define F_PAIRS 24
#define F_EPOCH 16
#define F_RESERVATION 18
#define F_FIRST 20
#define F_SUMS 24
#define F_OPEN_COOKIE 16
#define F_OPEN_SLOTS 24
#define F_OPEN_FIRST_EPOCH 28
#define F_OPEN_WINDOW 30
#define F_OPEN_COPIES 32
#define F_OPEN_OPERATOR 33
#define F_OPEN_WORKERS 34
#define F_OPEN_RULE 35
#define F_OPEN_ADDRESSES 36

#define PAIR 20u
#define SUM 24u
#define PAIRS_MOST 64u
#define FETCH_SLOTS 52u
#define WINDOW_MOST 1024u

enum kind {
    DATA = 1,
    RESIDUAL = 2,
    ACK = 5,
    CHALLENGE = 7,
    OPEN = 10,
    OPENED = 11,
    REFUSED = 12,
    FETCH = 13,
    VALUES = 14,
    CLEAR = 15,
    CLEARED = 16,
    CLOSE = 17,
    UNKNOWN = 18,
};
enum operator { SUM_UP = 0, MIN = 1, MAX = 2, COUNT_UP = 3 };
enum rule { EXACT = 0, COUNTER = 1 };
enum refusal { FULL = 0, IN_USE = 1, INVALID = 2 };

/* Fixed while the program is attached. Only u32, so that user space writes it as an array of them. */
struct config {
    u32 address;   /* of the switch, in network byte order */
    u32 port;      /* its UDP port, in network byte order */
    u32 lease_ms;  /* how long a job keeps its slots after the last message of its master */
    u32 share;     /* the percentage of slots, jobs and records that masters at one address can have together */
    u32 secret[2]; /* a random number of this life of the switch: lower half, upper half */
};

/* A job's range of slots or of records. */
struct range {
    u32 start, end;
};

/* User space reads this as words of 64 bits (`TorJob::read`). */
struct job {
    u64 token;
    u64 expires; /* in nanoseconds */
    u32 number;
    u32 attempt;
    u32 master;           /* its number, as wire::reduce makes it of an address */
    u32 master_ip;        /* as in a frame */
    u32 master_interface; /* where its messages arrive */
    u32 first;            /* the first epoch that is not finished */
    struct range slots;
    struct range records;
    u64 record_life; /* a record of another life is empty */
    u64 life[2];     /* likewise for the slots of a copy */
    u32 instance;    /* the number of the reservation, by which its master recognizes it */
    u32 window, copies, operator, workers, rule;
    u16 master_port; /* as in a frame */
    u8 master_mac[6];
    u8 own_mac[6]; /* to which the master sends */
    u16 unused[3];
    u32 addresses[WORKERS];
};

#define AT_JOB(field) __builtin_offsetof(struct job, field)
_Static_assert(sizeof(struct job) == 48 * 8, "the length of a job");
_Static_assert(AT_JOB(number) == 16 && AT_JOB(attempt) == 20 && AT_JOB(master_ip) == 28 && AT_JOB(first) == 36, "its first fields");
_Static_assert(AT_JOB(slots) == 40 && AT_JOB(workers) == 96, "its other fields");

/* A packet of a worker's window: its sequence number plus 1, and which of its pairs found no slot. */
struct record {
    u64 life;
    u64 rest;
    u32 next;
    u32 unused;
};

/* A sum and its key, as two little-endian numbers. */
struct slot {
    u64 key[2];
    u64 value;
    u64 life;
};

struct bucket {
    struct slot slots[REDUCE_WAYS];
};

struct state {
    u32 lock;
    u32 unused;
    u64 used;         /* the jobs that have slots */
    u64 lives;        /* the life that was given to a copy or to records last */
    u64 reservations; /* how many there were */
    struct range slots[JOBS];
    struct range records[JOBS];
};

/* The message that is being handled, and the reply. */
struct scratch {
    u8 in[BUFFER];  /* the UDP datagram */
    u8 out[BUFFER]; /* the reply, in the same place */
    u8 head[48];    /* the first bytes of the frame, up to the UDP header */
    u64 now;        /* in nanoseconds */
    u32 from;       /* the number of the sender */
    u32 interface;  /* where the frame arrived */
    u32 marked;     /* whether a queue has marked it (ECN) */
    /* What becomes of the message. */
    u32 reply;       /* the length of the reply; 0: the frame is dropped */
    u32 to_master;   /* the reply goes to the master of the job, from its worker; otherwise back to the sender */
    u32 has_payload; /* whether the reply has pairs or sums */
    u32 job;         /* the index of the job */
};

/* Fields at addresses that are multiples of their length, but for those of 64 bits, which are at multiples of 4. */
INLINE u32 big16(const u8 *p) { return __builtin_bswap16(*(const any16 *)p); }

INLINE u32 big32(const u8 *p) { return __builtin_bswap32(*(const any32 *)p); }

INLINE u64 big64(const u8 *p) { return (u64)big32(p) << 32 | big32(p + 4); }

INLINE void put_big16(u8 *p, u32 value) { *(any16 *)p = __builtin_bswap16(value); }

INLINE void put_big32(u8 *p, u32 value) { *(any32 *)p = __builtin_bswap32(value); }

INLINE void put_big64(u8 *p, u64 value)
{
    put_big32(p, value >> 32);
    put_big32(p + 4, value);
}

INLINE u64 little64(const u8 *p)
{
    const any32 *words = (const any32 *)p;
    return (u64)words[1] << 32 | words[0];
}

INLINE void put_little64(u8 *p, u64 value)
{
    any32 *words = (any32 *)p;
    words[0] = value;
    words[1] = value >> 32;
}

/* Bytes of a frame as they are in memory, at any address. */
INLINE u32 raw32(const u8 *p)
{
    u32 word;

    __builtin_memcpy(&word, p, 4);
    return word;
}

INLINE u16 raw16(const u8 *p)
{
    u16 word;

    __builtin_memcpy(&word, p, 2);
    return word;
}

INLINE u64 mix(u64 x)
{
    u64 z = x + 0x9e3779b97f4a7c15ull;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* The number of the host or switch with an address in network byte order, as wire::reduce makes it. */
INLINE u32 number_of(u32 address)
{
    u32 ip = __builtin_bswap32(address);

    if (ip >> 24 == 10)
        return ip & 0xffffff;
    if (ip >> 20 == 0xac1)
        return 0x80000000 | (ip & 0xfffff);
    return ip;
}

/* A key's hash under the token of its job (aggregation::key). */
INLINE u64 hash_of(u64 low, u64 high, u64 seed) { return mix(mix(low ^ seed) ^ high); }

/* The range of `ranges` in which the lower half of a hash is. */
INLINE u32 bucket_of(u64 hash, u32 ranges) { return (hash & 0xffffffff) * ranges >> 32; }

INLINE u64 combine(u32 operator, u64 sum, u64 value)
{
    if (operator == MIN)
        return value < sum ? value : sum;
    if (operator == MAX)
        return value > sum ? value : sum;
    return sum + value;
}

#endif
