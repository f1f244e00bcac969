/* Orca's ToR as a tc program at the ingress of each of its ports. The decision is in orca_tor.h; this file
 * has the maps, the helper calls and ordinary forwarding. Needs Linux 5.12 or later, whose verifier accepts reads of the stack
 * at variable offsets. */
#ifndef ORCA_TOR_H
#include "../bpf.h"
#include "orca_tor.h"
#endif

/* Arrays of one entry. */
SECTION("maps") struct bpf_map_def config = {MAP_ARRAY, 4, sizeof(struct orca_config), 1, 0};
SECTION("maps") struct bpf_map_def agent = {MAP_ARRAY, 4, 8, 1, 0};

/* The port of each interface, by its index. */
SECTION("maps") struct bpf_map_def ports = {MAP_HASH, 4, 4, ORCA_PORTS, 0};

/* A host's port, by its MAC address (first byte most significant) and by its IPv4 address (as a number). */
struct host {
    u32 port;
    u32 mac[2]; /* upper 16 bits, lower 32 bits */
};
SECTION("maps") struct bpf_map_def by_mac = {MAP_HASH, 8, 4, 65536, 1 /* no preallocation */};
SECTION("maps") struct bpf_map_def by_ip = {MAP_HASH, 4, sizeof(struct host), 65536, 1};

enum counter {
    COUNT_ROUTED,     /* ordinary frames, to one port */
    COUNT_FLOODED,    /* ordinary frames, to all */
    COUNT_FORWARDED,  /* Orca packets, to one port */
    COUNT_REPLICATED, /* Orca packets, to several ports */
    COUNT_COPIES,     /* copies made of flooded and replicated frames */
    COUNT_CONSUMED,
    COUNT_NO_AGENT,
    COUNT_SPOOFED,
    COUNT_NO_PORT,
    COUNT_UNKNOWN,    /* ordinary frames for unknown hosts */
    COUNT_LOST,       /* copies that an interface refused */
    COUNTERS,
};
SECTION("maps") struct bpf_map_def counters = {MAP_PERCPU_ARRAY, 4, 8, COUNTERS, 0};

INLINE void count(u32 which, u64 amount)
{
    u64 *number = map_lookup(&counters, &which);

    if (number)
        *number += amount;
}

/* The interface of the lowest port in a set. */
INLINE u32 lowest(const struct orca_config *c, u64 set)
{
    return c->interface[lowest_bit(set)];
}

/* Sends a copy by each port of a set; the frame itself goes to the last one. GSO packets are not segmented. */
INLINE int replicate(struct __sk_buff *skb, const struct orca_config *c, u64 set)
{
    u32 copies = ones(set);
    u64 lost = 0;

    if (!set)
        return ACT_SHOT;
    for (u32 port = 0; port < ORCA_PORTS; port++) {
        if (!(set & (set - 1)))
            break;
        /* Returns 0 or a negative error. */
        lost += (u64)clone_redirect(skb, lowest(c, set), 0) >> 63;
        set &= set - 1;
    }
    count(COUNT_COPIES, copies - lost);
    count(COUNT_LOST, lost);
    return redirect(lowest(c, set), 0);
}

/* Ordinary forwarding: to hosts by their addresses; broadcast and multicast to all; everything else to an uplink. */
INLINE int route(struct __sk_buff *skb, const u8 *p, u32 ingress, const struct orca_config *c)
{
    u64 hosts = orca_hosts(c), from = 1ull << (ingress & 63);
    u64 mac = (u64)orca_16(p, 0) << 32 | orca_32(p, 2);
    const struct host *host;
    u32 port = ORCA_NONE;
    u32 *known;

    if (p[0] & 1) {
        u64 set = hosts & ~from;

        /* Only from hosts, and over one uplink: this prevents forwarding loops. */
        if (hosts & from && c->uplinks)
            set |= 1ull << (c->uplink[0] & 63);
        count(COUNT_FLOODED, 1);
        return replicate(skb, c, set);
    }
    known = map_lookup(&by_mac, &mac);
    if (known) {
        port = *known;
    } else if (orca_16(p, 12) == 0x0800) {
        u32 ip = orca_32(p, ORCA_IP + 16);

        /* The frame is addressed to the gateway, which this switch is: it gets the MAC address of its receiver. */
        host = map_lookup(&by_ip, &ip);
        if (host) {
            u8 to[6] = {host->mac[0] >> 8, host->mac[0], host->mac[1] >> 24, host->mac[1] >> 16, host->mac[1] >> 8, host->mac[1]};

            port = host->port;
            if (store_bytes(skb, 0, to, 6, 0))
                return ACT_SHOT;
        }
    }
    if (port == ORCA_NONE && hosts & from && c->uplinks) {
        u32 up = hash_recalc(skb) % c->uplinks;

        port = c->uplink[up & (ORCA_UPLINKS - 1)];
    }
    if (port >= ORCA_PORTS || port == ingress) {
        count(COUNT_UNKNOWN, 1);
        return ACT_SHOT;
    }
    count(COUNT_ROUTED, 1);
    return redirect(c->interface[port & 63], 0);
}

/* Copies the start of the frame to `p`, ORCA_VIEW bytes that are 0; returns how many it copied, or 0 if the frame is too short. */
INLINE u32 view(const struct __sk_buff *skb, u8 *p)
{
    u32 len = skb->len;

    if (len > ORCA_VIEW)
        len = ORCA_VIEW;
    /* The lower bound also lets the verifier accept the variable length. */
    if (len < 14 || load_bytes(skb, 0, p, len))
        return 0;
    return len;
}

SECTION("classifier") int rackweave_tor(struct __sk_buff *skb)
{
    u8 p[ORCA_VIEW] = {};
    struct orca_verdict verdict;
    u32 zero = 0, interface = skb->ifindex, len = view(skb, p);
    const struct orca_config *c = map_lookup(&config, &zero);
    u64 *reg = map_lookup(&agent, &zero);
    u32 *ingress = map_lookup(&ports, &interface);
    u64 before;

    if (!c || !reg || !ingress || *ingress >= ORCA_PORTS || !len)
        return ACT_SHOT;
    before = *(volatile u64 *)reg;
    verdict = orca_decide(p, len, skb->len, *ingress, c, before);
    switch (verdict.action) {
    case ORCA_ROUTE:
        return route(skb, p, *ingress, c);
    case ORCA_FORWARD:
        count(COUNT_FORWARDED, 1);
        return redirect(c->interface[verdict.port & 63], 0);
    case ORCA_REPLICATE:
        count(COUNT_REPLICATED, 1);
        return replicate(skb, c, verdict.ports);
    case ORCA_CONSUME:
        /* If another command was written first, this one is lost; controllers repeat their commands. */
        __sync_val_compare_and_swap(reg, before, verdict.ports);
        count(COUNT_CONSUMED, 1);
        return ACT_SHOT;
    default:
        count(COUNT_NO_AGENT + verdict.port % 3, 1);
        return ACT_SHOT;
    }
}

/* For tests: the frame's mark is its ingress port, and the verdict is written to `cb`. Nothing is sent, no state changes. */
SECTION("classifier") int rackweave_decide(struct __sk_buff *skb)
{
    u8 p[ORCA_VIEW] = {};
    struct orca_verdict verdict;
    u32 zero = 0, len = view(skb, p);
    const struct orca_config *c = map_lookup(&config, &zero);
    const u64 *reg = map_lookup(&agent, &zero);

    if (!c || !reg || skb->mark >= ORCA_PORTS || !len)
        return 1;
    verdict = orca_decide(p, len, skb->len, skb->mark, c, *reg);
    skb->cb[0] = verdict.action;
    skb->cb[1] = verdict.port;
    skb->cb[2] = (u32)verdict.ports;
    skb->cb[3] = (u32)(verdict.ports >> 32);
    return 0;
}

LICENSE
