/* SWP2P's control messages as a switch reads them, and the state that it keeps: who the clients are, and what each has reported
 * and asked for. The rules are those of swp2p::directory; a test compares both frame by frame. Freestanding: it
 * includes no system header. */
#ifndef SWP2P_H
#define SWP2P_H

/* The number of chunks for which there is memory, a multiple of WINDOW. */
#ifndef SWP2P_CHUNKS
#define SWP2P_CHUNKS 65536u
#endif
/* Clients: the bits of a mask. SWP2P's slides have at most 48 at a switch. */
#define SLOTS 64u
#define NONE 255u
/* The chunks that one report covers, in words of 64 bits. */
#define WINDOW 8192u
#define WINDOW_WORDS 128u
#define WINDOWS (SWP2P_CHUNKS / WINDOW)
/* A batch of more chunks goes to the server. The choice is ours: each chunk takes a look at all slots. */
#define BATCH_MOST 64u
/* Chunks by which one report may change the directory; the client's next report changes the rest. The choice is ours: it bounds
 * the time that a hostile client can take. */
#define CHANGES_MOST 1024u

/* Offsets in a frame: Ethernet, IPv4 without options, UDP, the message and its fields. */
#define AT_IP 14u
#define AT_IP_CHECK 24u
#define AT_SOURCE 26u
#define AT_DESTINATION 30u
#define AT_UDP 34u
#define AT_UDP_CHECK 40u
#define AT_MESSAGE 42u
#define AT_FIELDS 58u
#define AT_MAP (AT_FIELDS + 8)
/* The longest message without its payload: a return. */
#define VIEW (AT_FIELDS + 16)

/* Requests of a Frisbee session name no image (`frisbee::SESSION_IMAGE` in Rust). */
#define SESSION_IMAGE 1u
#define CHUNK_BLOCKS 1024u

enum subtype { REQUEST = 4, PREQUEST = 6, REPORT = 9, BATCH = 10, RETURN = 11, ENTER = 12, EXIT = 13, DAMAGED = 14 };

/* Fixed while the program is attached. Only u32, so that user space writes it as an array of them. Addresses and ports are in
 * network byte order, as in a frame. */
struct config {
    u32 server;
    u32 port;       /* the UDP port of the server */
    u32 silence_ms; /* a client silent for longer is not chosen, and its slot may be reused */
    u32 policy;     /* 0: holders take turns; 1: the one with the fewest outstanding requests, and of several the fewest chunks */
    u32 pending;    /* how many clients that have asked for a chunk and do not have it yet may follow one another: 0 to 2 */
    u32 max_tries;  /* a request with this many earlier tries goes to the server */
    u32 accusers;   /* after this many accusations a holder is not chosen any more */
    u32 per_port;   /* clients of one interface */
};

/* Accusations count for this many seconds after the last of them, and in this time those of one client against few others
 * (`directory::Config::accusation` in Rust). */
#define ACCUSATION_S 60u
#define ACCUSATIONS_MOST 2u

enum client_flags { WITH_NUMBER = 1, WITH_IMAGE = 2, BARRED = 4 };

struct client {
    u32 ip;
    u32 interface;
    u8 mac[6];
    u16 port;     /* its UDP port, in network byte order */
    u32 number;   /* the random number of its join */
    u32 image;    /* the image that its chunks are of: one at a time */
    u32 epoch;    /* of this slot: what was recorded in an earlier one is void */
    int load;     /* requests that were redirected to it, and not yet covered by a report of the requester */
    u32 flags;
    int held;     /* chunks that it has reported: the bits that are set in its windows */
    u64 seen;     /* when it sent something last, in nanoseconds */
    u64 accusers; /* the slots of those who have received a damaged chunk from it, and count until then: */
    u32 accused_until; /* in seconds */
    u16 accuses, period; /* how many it has accused in a period of ACCUSATION_S */
};

/* User space reads a client as 8 words of 64 bits (`TorClient::read`). */
#define AT_CLIENT(field) __builtin_offsetof(struct client, field)
_Static_assert(sizeof(struct client) == 8 * 8, "the length of a client");
_Static_assert(AT_CLIENT(ip) == 0 && AT_CLIENT(interface) == 4 && AT_CLIENT(mac) == 8 && AT_CLIENT(image) == 20, "its first fields");
_Static_assert(AT_CLIENT(load) == 28 && AT_CLIENT(flags) == 32 && AT_CLIENT(held) == 36, "its other fields");

struct state {
    u64 used;          /* the slots that belong to a client */
    u32 last[SLOTS];   /* the slot that was chosen last, by image modulo 64 */
    struct client clients[SLOTS];
    /* For each client, the number of its outstanding requests to each holder. Their sums are the loads, so that these are correct
     * after a client has left. */
    u32 outstanding[SLOTS * SLOTS];
};

/* What is known of a chunk at a client: bits 0 to 7 are the low bits of the slot's epoch; 8 to 15 those of the holder's; 16 to
 * 23 say where the client's request went (0: there is none; a slot plus 1; TO_SERVER); then the flags. A cell of 256 epochs ago
 * would count: the holder then returns the request. */
#define TO_SERVER (SLOTS + 1)
#define HAS 0x01000000u   /* it has reported the chunk */
#define ASKED 0x02000000u /* it has asked for the chunk, and has not reported it */

struct row {
    u32 cells[SLOTS];
};

/* What a client has reported last. */
struct window {
    u32 epoch;
    u32 unused;
    u64 map[WINDOW_WORDS];
};

INLINE u32 big16(const u8 *p) { return (u32)p[0] << 8 | p[1]; }

INLINE u32 little16(const u8 *p) { return (u32)p[1] << 8 | p[0]; }

INLINE u32 little32(const u8 *p) { return little16(p + 2) << 16 | little16(p); }

INLINE u64 little64(u64 word)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap64(word);
#else
    return word;
#endif
}

/* As it is in memory. */
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

/* The subtype of a control message of a client to the server, or 0 for any other frame. `p` has VIEW bytes, of which the frame
 * fills the first ones; `frame` is its length. The rules are those of wire::frisbee::decode: what follows the message, such as
 * a tag, is ignored. */
INLINE u32 control(const u8 *p, u32 frame, const struct config *c)
{
    u32 ip_len = big16(p + AT_IP + 2), udp_len = big16(p + AT_UDP + 4);
    u32 subtype = little32(p + AT_MESSAGE + 4), length = little32(p + AT_MESSAGE + 8), expected;
    u32 source = raw32(p + AT_SOURCE);

    if (frame < AT_FIELDS || big16(p + 12) != 0x0800 || p[AT_IP] != 0x45 || p[AT_IP + 9] != 17)
        return 0;
    if (raw32(p + AT_DESTINATION) != c->server || raw16(p + AT_UDP + 2) != c->port || source == c->server)
        return 0;
    /* Fragments pass: only the first one has a UDP header. So do frames for or from a MAC address of a group. */
    if (big16(p + AT_IP + 6) & 0x3fff || (p[0] | p[6]) & 1)
        return 0;
    if (frame < AT_IP + ip_len || ip_len < 20 + udp_len || udp_len < 8 + 16)
        return 0;
    if (little32(p + AT_MESSAGE) != 1 || length > udp_len - 24 || raw32(p + AT_MESSAGE + 12) != source)
        return 0;
    switch (subtype) {
    case REPORT:
        expected = 8 + WINDOW / 8;
        break;
    case REQUEST:
        /* Of a whole chunk. */
        if (little32(p + AT_FIELDS + 4) || little32(p + AT_FIELDS + 8) != CHUNK_BLOCKS)
            return 0;
        expected = 12;
        break;
    case PREQUEST:
        /* A repeated one; others name the blocks that the client lacks. */
        if (!little32(p + AT_FIELDS + 4))
            return 0;
        expected = 8 + CHUNK_BLOCKS / 8;
        break;
    case BATCH:
    case DAMAGED:
        expected = 12;
        break;
    case RETURN:
        expected = 16;
        break;
    case EXIT:
        return length == 8 ? subtype : 0;
    case ENTER:
        return length - 4 < 256 ? subtype : 0;
    default:
        return 0;
    }
    /* The second field, a chunk or a window, must not be negative, nor the first one of Frisbee's requests. */
    if (length != expected || p[AT_FIELDS + 7] & 0x80 || (subtype <= PREQUEST && p[AT_FIELDS + 3] & 0x80))
        return 0;
    return subtype;
}

#endif
