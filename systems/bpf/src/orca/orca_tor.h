/* The forwarding decision of Orca's ToR: a pure function of the frame's first bytes, the ingress port, the switch's
 * configuration and its one register. It implements the same rules as orca::switch; a test compares both packet by
 * packet. Freestanding: it includes no system header. */
#ifndef ORCA_TOR_H
#define ORCA_TOR_H

/* The bytes of a frame that the decision depends on: Ethernet, IPv4 without options, UDP, the longest Orca header, and the
 * start of a control body. */
#define ORCA_VIEW 128u
#define ORCA_PORTS 64u
#define ORCA_UPLINKS 16u
#define ORCA_UDP_PORT 6722u
#define ORCA_NONE 255u

#define ORCA_IP 14u    /* offset of the IPv4 header */
#define ORCA_UDP 34u
#define ORCA_HEADER 42u
#define ORCA_LABEL 12u /* offset in the Orca header */

/* Offsets in the body of a control packet, which follows the check: sender and receiver (8 bytes), a tag, a rack and a port,
 * and a number (the epoch of the register). */
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
    ORCA_DROP = 4,      /* the reason is in `port` (enum orca_reason) */
};

enum orca_reason {
    ORCA_NO_AGENT = 0, /* the register is empty */
    ORCA_SPOOF = 1,    /* wrong ingress port: a ping that names another port, or a command that is not from the controller's */
    ORCA_NO_PORT = 2,  /* the label names no port */
};

struct orca_verdict {
    u32 action;
    u32 port;
    u64 ports;
};

/* Fixed while the program is attached. Only u32, so that user space writes it as an array of them. */
struct orca_config {
    u32 rack;
    u32 controller;        /* the only port that the controller's commands are accepted from (an uplink: any uplink), or ORCA_NONE */
    u32 uplink_shift;      /* least significant bit of the uplink field in the pilot label */
    u32 uplink_width;      /* width of that field in bits, at most 16 */
    u32 uplinks;           /* number of uplinks */
    u32 keyed;             /* control packets carry a keyed check, whose key only hosts have */
    u32 hosts[2];          /* set of host ports: bits 0 to 31, then 32 to 63 */
    u32 uplink[ORCA_UPLINKS];
    u32 interface[ORCA_PORTS];
};

/* The register has the active agent's port in the low byte (ORCA_NONE if there is none) and the epoch in the upper half. */
INLINE u32 orca_agent(u64 reg) { return (u32)reg & 255; }

INLINE u64 orca_register(u32 agent, u32 epoch) { return (u64)epoch << 32 | (agent & 255); }

INLINE u64 orca_hosts(const struct orca_config *c) { return (u64)c->hosts[1] << 32 | c->hosts[0]; }

INLINE u32 orca_16(const u8 *p, u32 at) { return (u32)p[at & 127] << 8 | p[(at + 1) & 127]; }

INLINE u32 orca_32(const u8 *p, u32 at) { return orca_16(p, at) << 16 | orca_16(p, at + 2); }

/* A word of the label, counted from the least significant one; words beyond its length are 0. */
INLINE u32 orca_word(const u8 *p, u32 words, u32 word)
{
    return word < words ? orca_32(p, ORCA_HEADER + ORCA_LABEL + 4 * (words - 1 - word)) : 0;
}

/* CRC-32C of a control packet: of its header, and of `behind` bytes after the check. Bitwise, to avoid a lookup table. */
INLINE u32 orca_crc(const u8 *p, u32 behind)
{
    u32 crc = ~0u;

    for (u32 i = 0; i < ORCA_LABEL + 4 + behind; i++) {
        crc ^= p[(ORCA_HEADER + i + (i < ORCA_LABEL + 4 ? 0 : 4)) & 127];
        for (u32 bit = 0; bit < 8; bit++) {
            u32 last = crc & 1;

            /* If the compiler knows that this is 0 or 1, it may emit a branch, and the verifier follows both sides in each
             * iteration. */
            __asm__("" : "+r"(last));
            crc = crc >> 1 ^ last * 0x82f63b78u;
        }
    }
    return ~crc;
}

/* Whether a control packet is well-formed and its CRC is correct. A keyed check cannot be verified here, because the switch
 * does not have the key; commands that set the register must then come from the controller's port. */
INLINE int orca_is_valid(const u8 *p, u32 end, u32 tag, u32 behind, const struct orca_config *c)
{
    u32 check = ORCA_HEADER + ORCA_LABEL + 4, body = check + (c->keyed ? 8 : 4);

    if (p[ORCA_HEADER + 1] != (c->keyed ? ORCA_KEYED | 1 : 1) || end != body + behind || p[(body + ORCA_TAG) & 127] != tag)
        return 0;
    if (orca_16(p, ORCA_HEADER + 2) | orca_32(p, ORCA_HEADER + 4) | orca_32(p, ORCA_HEADER + ORCA_LABEL))
        return 0;
    return c->keyed || orca_crc(p, behind) == orca_32(p, check);
}

INLINE struct orca_verdict orca_result(u32 action, u32 port, u64 ports)
{
    struct orca_verdict verdict = {action, port, ports};
    return verdict;
}

/* Forwards to the active agent, if there is one. */
INLINE struct orca_verdict orca_to_agent(u64 reg)
{
    u32 agent = orca_agent(reg);

    return agent < ORCA_PORTS ? orca_result(ORCA_FORWARD, agent, 0) : orca_result(ORCA_DROP, ORCA_NO_AGENT, 0);
}

INLINE struct orca_verdict orca_copies(u64 ports)
{
    return ports ? orca_result(ORCA_REPLICATE, 0, ports) : orca_result(ORCA_DROP, ORCA_NO_PORT, 0);
}

/* `p` has ORCA_VIEW bytes, of which the frame fills the first `len`; the others are 0. `frame` is the length of the frame. */
INLINE struct orca_verdict orca_decide(const u8 *p, u32 len, u32 frame, u32 ingress, const struct orca_config *c, u64 reg)
{
    const struct orca_verdict route = orca_result(ORCA_ROUTE, 0, 0);
    u32 ip_len, udp_len, words, body, end, kind;
    u64 hosts = orca_hosts(c), from = 1ull << (ingress & 63);
    /* A controller above the rack may be reached over any uplink. */
    int below = !!(hosts & from), above = c->controller < ORCA_PORTS && !(hosts >> (c->controller & 63) & 1);
    int controller = c->controller == ORCA_NONE || c->controller == ingress || (above && !below);

    if (len < ORCA_HEADER + ORCA_LABEL || orca_16(p, 12) != 0x0800 || p[ORCA_IP] != 0x45 || p[ORCA_IP + 9] != 17)
        return route;
    /* Fragments are routed: only the first one has a UDP header. */
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

    /* Only packets for a multicast address are forwarded by label; unicast ones are routed. */
    if (kind <= ORCA_HOST && (p[ORCA_IP + 16] & 0xf0) != 0xe0)
        return route;
    switch (kind) {
    case ORCA_PILOT:
        if (below && c->uplinks) {
            u32 word = c->uplink_shift >> 5, up;
            u64 field = (u64)orca_word(p, words, word + 1) << 32 | orca_word(p, words, word);

            up = (u32)(field >> (c->uplink_shift & 31)) & ((1u << (c->uplink_width & 31)) - 1);
            return orca_result(ORCA_FORWARD, c->uplink[up % c->uplinks & (ORCA_UPLINKS - 1)] & 63, 0);
        }
        return orca_to_agent(reg);
    case ORCA_RACK:
        /* Only hosts of the rack set rack labels. */
        if (!below)
            return orca_result(ORCA_DROP, ORCA_SPOOF, 0);
        return orca_copies(((u64)orca_word(p, words, 1) << 32 | orca_word(p, words, 0)) & hosts & ~from);
    case ORCA_TO_AGENT:
        return below ? orca_to_agent(reg) : orca_result(ORCA_DROP, ORCA_SPOOF, 0);
    case ORCA_SET_ACTIVE: {
        u32 port = p[(body + ORCA_BODY_PORT) & 127], epoch = orca_32(p, body + ORCA_BODY_NUMBER);

        if (!orca_is_valid(p, end, ORCA_TAG_SET_ACTIVE, ORCA_BODY, c) || orca_16(p, body + ORCA_BODY_RACK) != c->rack)
            return route;
        if (!controller || (port != ORCA_NONE && (port >= ORCA_PORTS || !(hosts >> (port & 63) & 1))))
            return orca_result(ORCA_DROP, ORCA_SPOOF, 0);
        /* Epochs are compared as serial numbers (RFC 1982); 0 means that the register was never set. */
        if (reg >> 32 && (int)(epoch - (u32)(reg >> 32)) <= 0)
            return orca_result(ORCA_CONSUME, 0, reg);
        return orca_result(ORCA_CONSUME, 0, orca_register(port, epoch));
    }
    case ORCA_PING:
        if (!below || !orca_is_valid(p, end, ORCA_TAG_PING, ORCA_BODY, c))
            return route;
        /* An agent may only report itself. */
        if (p[(body + ORCA_BODY_PORT) & 127] != ingress || orca_16(p, body + ORCA_BODY_RACK) != c->rack)
            return orca_result(ORCA_DROP, ORCA_SPOOF, 0);
        return route;
    case ORCA_SYNC:
        if (!orca_is_valid(p, end, ORCA_TAG_SYNC, ORCA_SYNC_BODY, c) || orca_16(p, body + ORCA_BODY_RACK) != c->rack)
            return route;
        return controller ? orca_copies(hosts) : orca_result(ORCA_DROP, ORCA_SPOOF, 0);
    default:
        return route;
    }
}

#endif
