/* Orca's ToR: what it does with a frame. A pure function of the frame's first bytes, the port where it came in, the
 * switch's configuration and its one register. The same rules as group::orca::switch, checked against it packet by
 * packet. Freestanding: no header of the system is needed. */
#ifndef ORCA_TOR_H
#define ORCA_TOR_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define INLINE static inline __attribute__((always_inline))

/* As many bytes of a frame decide: Ethernet, IPv4 without options, UDP, Orca's header at its longest, a control body's begin. */
#define ORCA_VIEW 128u
#define ORCA_PORTS 64u
#define ORCA_UPLINKS 16u
#define ORCA_UDP_PORT 6722u
#define ORCA_NONE 255u

#define ORCA_IP 14u    /* where the IPv4 header begins */
#define ORCA_UDP 34u
#define ORCA_HEADER 42u
#define ORCA_LABEL 12u /* in the header */

/* In a control packet behind its check: who says it and to whom, a tag, a place or a rack and the active agent, a number. */
#define ORCA_TAG 8u
#define ORCA_BODY_RACK 9u
#define ORCA_BODY_PORT 11u
#define ORCA_BODY_NUMBER 12u
#define ORCA_BODY 16u
#define ORCA_SYNC_BODY 23u
#define ORCA_TAG_PING 8u
#define ORCA_TAG_SET_ACTIVE 10u
#define ORCA_TAG_SYNC 11u

#define ORCA_KEYED 0x80u
#define ORCA_WORDS 0x07u

enum orca_kind {
    ORCA_PILOT = 1,
    ORCA_RACK = 2,
    ORCA_HOST = 3,
    ORCA_TO_AGENT = 4,
    ORCA_CONTROL = 5,
    ORCA_SET_ACTIVE = 6,
    ORCA_PING = 7,
    ORCA_PONG = 8,
    ORCA_SYNC = 9,
    ORCA_SYNC_DONE = 10,
};

enum orca_action {
    ORCA_ROUTE = 0,     /* ordinary forwarding */
    ORCA_FORWARD = 1,   /* to `port` */
    ORCA_REPLICATE = 2, /* to each port in `ports` */
    ORCA_CONSUME = 3,   /* the register becomes `ports` */
    ORCA_DROP = 4,      /* because of `port` (enum orca_reason) */
};

enum orca_reason {
    ORCA_NO_AGENT = 0, /* the register is empty */
    ORCA_SPOOF = 1,    /* it can't come from there: a ping that names another port, a word of who is not the controller */
    ORCA_NOBODY = 2,   /* a label without a port */
};

struct orca_verdict {
    u32 action;
    u32 port;
    u64 ports;
};

/* Fixed while the program is attached. Only u32, so that user space writes it as an array of them. */
struct orca_config {
    u32 rack;
    u32 controller;        /* the only port that the controller's words come from (one that leads up: any such), or ORCA_NONE */
    u32 uplink_shift;      /* where the pilot label names the uplink: its least significant bit */
    u32 uplink_width;      /* bits of that field, at most 16 */
    u32 uplinks;           /* how many */
    u32 keyed;             /* control packets are made with a key, which only hosts have */
    u32 hosts[2];          /* ports of hosts, bits 0 to 31 and 32 to 63 */
    u32 uplink[ORCA_UPLINKS];
    u32 interface[ORCA_PORTS];
};

/* The register: the active agent's port in the low byte (ORCA_NONE: none), the epoch in the upper half. */
INLINE u32 orca_agent(u64 reg) { return (u32)reg & 255; }

INLINE u64 orca_register(u32 agent, u32 epoch) { return (u64)epoch << 32 | (agent & 255); }

INLINE u64 orca_hosts(const struct orca_config *c) { return (u64)c->hosts[1] << 32 | c->hosts[0]; }

INLINE u32 orca_16(const u8 *p, u32 at) { return (u32)p[at & 127] << 8 | p[(at + 1) & 127]; }

INLINE u32 orca_32(const u8 *p, u32 at) { return orca_16(p, at) << 16 | orca_16(p, at + 2); }

/* A word of the label, counted from its least significant; those that it lacks are 0. */
INLINE u32 orca_word(const u8 *p, u32 words, u32 word)
{
    return word < words ? orca_32(p, ORCA_HEADER + ORCA_LABEL + 4 * (words - 1 - word)) : 0;
}

/* CRC-32C of a control packet's begin, and of `behind` bytes behind its check; there is no room for a table. */
INLINE u32 orca_crc(const u8 *p, u32 behind)
{
    u32 crc = ~0u;

    for (u32 i = 0; i < ORCA_LABEL + 4 + behind; i++) {
        crc ^= p[(ORCA_HEADER + i + (i < ORCA_LABEL + 4 ? 0 : 4)) & 127];
        for (u32 bit = 0; bit < 8; bit++) {
            u32 last = crc & 1;

            /* A compiler that knows that this is 0 or 1 makes a mask of it, and the verifier tries both, each time. */
            __asm__("" : "+r"(last));
            crc = crc >> 1 ^ last * 0x82f63b78u;
        }
    }
    return ~crc;
}

/* Whether a control packet is one to believe: in form, and with a CRC that is right. A key's check can't be verified
 * here: what says "set the register" must then come from the controller's port. */
INLINE int orca_believed(const u8 *p, u32 end, u32 tag, u32 behind, const struct orca_config *c)
{
    u32 check = ORCA_HEADER + ORCA_LABEL + 4, body = check + (c->keyed ? 8 : 4);

    if (p[ORCA_HEADER + 1] != (c->keyed ? ORCA_KEYED | 1 : 1) || end != body + behind || p[(body + ORCA_TAG) & 127] != tag)
        return 0;
    if (orca_16(p, ORCA_HEADER + 2) | orca_32(p, ORCA_HEADER + 4) | orca_32(p, ORCA_HEADER + ORCA_LABEL))
        return 0;
    return c->keyed || orca_crc(p, behind) == orca_32(p, check);
}

INLINE struct orca_verdict orca_say(u32 action, u32 port, u64 ports)
{
    struct orca_verdict verdict = {action, port, ports};
    return verdict;
}

/* To the active agent, if there is one. */
INLINE struct orca_verdict orca_to_agent(u64 reg)
{
    u32 agent = orca_agent(reg);

    return agent < ORCA_PORTS ? orca_say(ORCA_FORWARD, agent, 0) : orca_say(ORCA_DROP, ORCA_NO_AGENT, 0);
}

INLINE struct orca_verdict orca_copies(u64 ports)
{
    return ports ? orca_say(ORCA_REPLICATE, 0, ports) : orca_say(ORCA_DROP, ORCA_NOBODY, 0);
}

/* `p` has ORCA_VIEW bytes, of which the frame fills `len`; the others are 0. `frame`: the whole frame's length. */
INLINE struct orca_verdict orca_decide(const u8 *p, u32 len, u32 frame, u32 ingress, const struct orca_config *c, u64 reg)
{
    const struct orca_verdict route = orca_say(ORCA_ROUTE, 0, 0);
    u32 ip_len, udp_len, words, body, end, kind;
    u64 hosts = orca_hosts(c), from = 1ull << (ingress & 63);
    /* From a port that leads up it can be any of those. */
    int below = !!(hosts & from), above = c->controller < ORCA_PORTS && !(hosts >> (c->controller & 63) & 1);
    int controller = c->controller == ORCA_NONE || c->controller == ingress || (above && !below);

    if (len < ORCA_HEADER + ORCA_LABEL || orca_16(p, 12) != 0x0800 || p[ORCA_IP] != 0x45 || p[ORCA_IP + 9] != 17)
        return route;
    /* Of a datagram in fragments only the first has a header. */
    if (orca_16(p, ORCA_IP + 6) & 0x3fff || orca_16(p, ORCA_UDP + 2) != ORCA_UDP_PORT)
        return route;
    ip_len = orca_16(p, ORCA_IP + 2);
    udp_len = orca_16(p, ORCA_UDP + 4);
    if (ip_len + ORCA_IP > frame || udp_len + 20 > ip_len || (p[ORCA_HEADER] & 0xf0) != 0xc0)
        return route;
    kind = p[ORCA_HEADER] & 15;
    words = p[ORCA_HEADER + 1] & ORCA_WORDS;
    if (words < 1 || words > 4)
        return route;
    body = ORCA_HEADER + ORCA_LABEL + 4 * words + (p[ORCA_HEADER + 1] & ORCA_KEYED ? 8 : 4);
    end = ORCA_UDP + udp_len;
    if (end < body)
        return route;

    /* To one host, without help from switches: only what is for a group is forwarded by label. */
    if (kind <= ORCA_HOST && (p[ORCA_IP + 16] & 0xf0) != 0xe0)
        return route;
    switch (kind) {
    case ORCA_PILOT:
        if (below && c->uplinks) {
            u32 word = c->uplink_shift >> 5, up;
            u64 field = (u64)orca_word(p, words, word + 1) << 32 | orca_word(p, words, word);

            up = (u32)(field >> (c->uplink_shift & 31)) & ((1u << (c->uplink_width & 31)) - 1);
            return orca_say(ORCA_FORWARD, c->uplink[up % c->uplinks & (ORCA_UPLINKS - 1)] & 63, 0);
        }
        return orca_to_agent(reg);
    case ORCA_RACK:
        /* Rack labels are set in the rack. */
        if (!below)
            return orca_say(ORCA_DROP, ORCA_SPOOF, 0);
        return orca_copies(((u64)orca_word(p, words, 1) << 32 | orca_word(p, words, 0)) & hosts & ~from);
    case ORCA_TO_AGENT:
        return below ? orca_to_agent(reg) : orca_say(ORCA_DROP, ORCA_SPOOF, 0);
    case ORCA_SET_ACTIVE: {
        u32 port = p[(body + ORCA_BODY_PORT) & 127], epoch = orca_32(p, body + ORCA_BODY_NUMBER);

        if (!orca_believed(p, end, ORCA_TAG_SET_ACTIVE, ORCA_BODY, c) || orca_16(p, body + ORCA_BODY_RACK) != c->rack)
            return route;
        if (!controller || (port != ORCA_NONE && (port >= ORCA_PORTS || !(hosts >> (port & 63) & 1))))
            return orca_say(ORCA_DROP, ORCA_SPOOF, 0);
        /* Numbers count around; 0: nobody has said anything yet. */
        if (reg >> 32 && (int)(epoch - (u32)(reg >> 32)) <= 0)
            return orca_say(ORCA_CONSUME, 0, reg);
        return orca_say(ORCA_CONSUME, 0, orca_register(port, epoch));
    }
    case ORCA_PING:
        if (!below || !orca_believed(p, end, ORCA_TAG_PING, ORCA_BODY, c))
            return route;
        /* An agent speaks for itself only. */
        if (p[(body + ORCA_BODY_PORT) & 127] != ingress || orca_16(p, body + ORCA_BODY_RACK) != c->rack)
            return orca_say(ORCA_DROP, ORCA_SPOOF, 0);
        return route;
    case ORCA_SYNC:
        if (!orca_believed(p, end, ORCA_TAG_SYNC, ORCA_SYNC_BODY, c) || orca_16(p, body + ORCA_BODY_RACK) != c->rack)
            return route;
        return controller ? orca_copies(hosts) : orca_say(ORCA_DROP, ORCA_SPOOF, 0);
    default:
        return route;
    }
}

#endif
