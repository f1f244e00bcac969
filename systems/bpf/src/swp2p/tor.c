/* SWP2P's program of a switch as a tc program at the ingress of its ports. It examines control messages of clients to the
 * server, and passes everything else, and those, to what forwards frames here: a bridge, or the kernel's routing. Only a request
 * that a client can serve is redirected: its destination becomes the client, and it leaves by the client's port. Needs Linux
 * 6.6 (TCX). */
#ifndef SWP2P_H
#include "../bpf.h"
#include "swp2p.h"
#include "kernel.h"
#include "directory.h"
#endif

/* Copies the start of a frame to `p`, VIEW bytes that are 0. Returns whether the frame is long enough to be examined. */
INLINE int view(const struct __sk_buff *skb, u8 *p)
{
    u32 len = skb->len;

    if (len > VIEW)
        len = VIEW;
    /* The lower bound also lets the verifier accept the variable length. */
    return len >= AT_FIELDS && !load_bytes(skb, 0, p, len);
}

/* Makes a client the destination of a frame: MAC and IP address, UDP port, checksums. The source stays the requester. */
INLINE int readdress(struct __sk_buff *skb, const u8 *p, const struct client *to)
{
    u32 old_ip = raw32(p + AT_DESTINATION), ip = to->ip;
    u16 old_port = raw16(p + AT_UDP + 2), port = to->port;
    u8 mac[6];

    __builtin_memcpy(mac, to->mac, 6);
    return store_bytes(skb, 0, mac, 6, 0) || ip_csum_replace(skb, AT_IP_CHECK, old_ip, ip, 4) ||
           udp_csum_replace(skb, AT_UDP_CHECK, old_ip, ip, CSUM_PSEUDO | CSUM_MANGLED_0 | 4) ||
           udp_csum_replace(skb, AT_UDP_CHECK, old_port, port, CSUM_MANGLED_0 | 2) ||
           store_bytes(skb, AT_DESTINATION, &ip, 4, 0) || store_bytes(skb, AT_UDP + 2, &port, 2, 0);
}

INLINE void on_enter(struct state *s, const u8 *p, u32 slot)
{
    struct client *client = &s->clients[slot & 63];
    u32 number = little32(p + AT_FIELDS);

    /* A client that has crashed and returns has lost its memory. It repeats its join until it is answered. */
    if (client->flags & WITH_NUMBER && client->number != number)
        swp2p_clear(slot);
    client->number = number;
    client->flags |= WITH_NUMBER;
}

INLINE void on_report(const struct __sk_buff *skb, struct state *s, const u8 *p, u32 slot)
{
    u32 window = little32(p + AT_FIELDS + 4), zero = 0;
    u8 *map = map_lookup(&scratch, &zero);

    count(COUNT_REPORTS);
    if (window >= WINDOWS) {
        count(COUNT_REFUSED);
        return;
    }
    if (!map || load_bytes(skb, AT_MAP, map, WINDOW / 8))
        return;
    set_image(s, slot, little32(p + AT_FIELDS));
    report(s, slot, window);
}

/* Returns the slot of the client to which the request goes, or NONE. */
INLINE u32 on_batch(struct state *s, const u8 *p, u32 slot, u64 now)
{
    struct ask ask = {.slot = slot, .now = now};

    ask.first = little32(p + AT_FIELDS + 4);
    ask.count = little16(p + AT_FIELDS + 8);
    ask.tries = little16(p + AT_FIELDS + 10);
    set_image(s, slot, little32(p + AT_FIELDS));
    /* An empty request is the server's to judge. */
    return ask.count ? swp2p_choose(&ask) : NONE;
}

/* Likewise, for a request of a client whose server knows Frisbee only. */
INLINE u32 on_request(struct state *s, const u8 *p, u32 subtype, u32 slot, u64 now)
{
    struct ask ask = {.slot = slot, .now = now, .count = 1};

    ask.first = little32(p + AT_FIELDS);
    if (subtype == PREQUEST)
        ask.tries = little32(p + AT_FIELDS + 4);
    set_image(s, slot, SESSION_IMAGE);
    return swp2p_choose(&ask);
}

/* A holder does not have what it was asked for. If that was a whole request, another client may serve it; it then gets the
 * return, which names the requester. */
INLINE u32 on_return(struct state *s, const u8 *p, u32 interface, u64 now)
{
    u32 requester = raw32(p + AT_FIELDS + 12), *slot = map_lookup(&by_ip, &requester), spoofed;
    struct returned returned = {};
    struct ask ask = {.now = now};
    const struct client *client;

    returned.holder = find(s, p, interface, &spoofed);
    if (spoofed) {
        count(COUNT_SPOOFED);
        return NONE;
    }
    if (!slot)
        return NONE;
    ask.slot = returned.slot = *slot & 63;
    ask.first = returned.first = little32(p + AT_FIELDS + 4);
    ask.count = little16(p + AT_FIELDS + 8);
    ask.tries = little16(p + AT_FIELDS + 10);
    client = &s->clients[ask.slot & 63];
    if (!ask.count || ask.count > BATCH_MOST || !(client->flags & WITH_IMAGE) || client->image != little32(p + AT_FIELDS))
        return NONE;
    loop(ask.count, return_chunk, &returned, 0);
    if (!returned.matching)
        return NONE;
    count(COUNT_RETURNED);
    if (returned.matching < ask.count)
        return NONE;
    if (!ask.tries)
        ask.tries = 1;
    return swp2p_choose(&ask);
}

/* A client has received a damaged chunk. It does not get chunks of this holder for a time; after several such clients, nobody
 * does. Only what a client says counts that has chunks itself, about few holders at a time. */
INLINE void on_damaged(struct state *s, const struct config *c, const u8 *p, u32 slot, u64 now)
{
    u32 seconds = now / 1000000000;
    u16 period = seconds / ACCUSATION_S;
    u32 holder_ip = raw32(p + AT_FIELDS + 8), *holder = map_lookup(&by_ip, &holder_ip);
    const struct row *row = row_of(little32(p + AT_FIELDS + 4));
    struct client *client = &s->clients[slot & 63];

    if (!holder || !row || !(client->flags & WITH_IMAGE) || client->image != little32(p + AT_FIELDS))
        return;
    /* Only an answer to a request can be damaged. */
    if (target_of(s, current(s, row, slot)) != *holder + 1)
        return;
    if (client->held <= 0)
        return;
    if (client->period != period) {
        client->period = period;
        client->accuses = 0;
    }
    if (client->accuses >= ACCUSATIONS_MOST)
        return;
    client->accuses++;
    client = &s->clients[*holder & 63];
    if (seconds >= client->accused_until) {
        client->accusers = 0;
        client->flags &= ~BARRED;
    }
    client->accused_until = seconds + ACCUSATION_S;
    __sync_fetch_and_or(&client->accusers, 1ull << (slot & 63));
    if (!(client->flags & BARRED) && ones(client->accusers) >= c->accusers) {
        client->flags |= BARRED;
        count(COUNT_BARRED);
    }
}

INLINE void on_exit(struct state *s, const u8 *p, u32 interface)
{
    u32 spoofed, slot = find(s, p, interface, &spoofed);
    const struct client *client;

    if (spoofed)
        count(COUNT_SPOOFED);
    if (slot == NONE)
        return;
    client = &s->clients[slot & 63];
    if (!(client->flags & WITH_IMAGE) || client->image == little32(p + AT_FIELDS + 4))
        swp2p_forget(slot);
}

/* Handles a frame. Returns the interface by which it leaves, with its new destination; 0 if it passes; a negative number if it
 * must be dropped. */
INLINE int handle(struct __sk_buff *skb, u32 interface, u64 now)
{
    const struct config *c = the_config();
    struct state *s = the_state();
    u8 p[VIEW] = {};
    u32 to = NONE, subtype, slot;

    if (!c || !s || skb->vlan_present || !view(skb, p))
        return 0;
    subtype = control(p, skb->len, c);
    if (!subtype)
        return 0;
    if (skb->gso_size) {
        count(COUNT_SUPER);
        return 0;
    }
    count(COUNT_MESSAGES);
    if (subtype <= PREQUEST || subtype == BATCH)
        count(COUNT_REQUESTS);
    if (subtype == RETURN) {
        to = on_return(s, p, interface, now);
    } else if (subtype == EXIT) {
        on_exit(s, p, interface);
    } else {
        slot = find_or_add(s, c, p, interface, now);
        if (slot == NONE)
            return 0;
        if (subtype == ENTER)
            on_enter(s, p, slot);
        else if (subtype == REPORT)
            on_report(skb, s, p, slot);
        else if (subtype == BATCH)
            to = on_batch(s, p, slot, now);
        else if (subtype <= PREQUEST)
            to = on_request(s, p, subtype, slot, now);
        else
            on_damaged(s, c, p, slot, now);
    }
    if (to == NONE)
        return 0;
    if (readdress(skb, p, &s->clients[to & 63])) {
        count(COUNT_LOST);
        return -1;
    }
    return s->clients[to & 63].interface;
}

PROGRAMS(rackweave_swp2p)

LICENSE
