/* The directory: clients in slots, and the choice of a holder. Programs of different ports run at the same time. There are no
 * locks: a slot is claimed atomically, a cell is one word that only its client's messages and returns of its holder write, and
 * loads are sums of counts that can be off by one until the client leaves. The number of chunks that a client has reported changes
 * with each bit of its windows, atomically; it can be off, also until it leaves, only if the client is cleared at the same time. */
#ifndef SWP2P_DIRECTORY_H
#define SWP2P_DIRECTORY_H

INLINE u32 cell_of(u32 flags, u32 to, u32 to_epoch, u32 epoch)
{
    return flags | to << 16 | (to_epoch & 255) << 8 | (epoch & 255);
}

/* A cell of a slot, or 0 if it is of an earlier epoch. */
INLINE u32 current(const struct state *s, const struct row *row, u32 slot)
{
    u32 cell = row->cells[slot & 63];

    return (cell ^ s->clients[slot & 63].epoch) & 255 ? 0 : cell;
}

/* Where the request of a cell went: a slot plus 1, TO_SERVER, or 0 if that is not known. */
INLINE u32 target_of(const struct state *s, u32 cell)
{
    u32 to = cell >> 16 & 255;

    if (to - 1 < SLOTS && (cell >> 8 ^ s->clients[(to - 1) & 63].epoch) & 255)
        return 0;
    return to;
}

/* One more (or, with -1, one less) request of a client waits for a holder. */
INLINE void charge(struct state *s, u32 slot, u32 to, int by)
{
    u32 holder = (to - 1) & 63, *outstanding = &s->outstanding[(slot & 63) * SLOTS + holder];

    if (to - 1 >= SLOTS || (by < 0 && !*outstanding))
        return;
    __sync_fetch_and_add(outstanding, by);
    __sync_fetch_and_add(&s->clients[holder].load, by);
}

/* Records where a client's request went. */
INLINE void assign(struct state *s, struct row *row, u32 slot, u32 to)
{
    u32 before = current(s, row, slot), epoch = s->clients[slot & 63].epoch;
    u32 to_epoch = s->clients[(to - 1) & 63].epoch;

    charge(s, slot, target_of(s, before), -1);
    charge(s, slot, to, 1);
    row->cells[slot & 63] = cell_of(before & HAS ? HAS : ASKED, to, to_epoch, epoch);
}

/* Forgets what a client has, has asked for and is asked for; what is in rows becomes void by the new epoch. */
GLOBAL int swp2p_clear(u32 slot)
{
    struct state *s = the_state();
    struct client *client;

    if (!s)
        return 0;
    slot &= 63;
    client = &s->clients[slot];
    for (u32 i = 0; i < SLOTS; i++) {
        u32 *mine = &s->outstanding[slot * SLOTS + i];

        __sync_fetch_and_add(&s->clients[i].load, -(int)*mine);
        *mine = 0;
        s->outstanding[i * SLOTS + slot] = 0;
    }
    client->load = 0;
    client->held = 0;
    client->flags &= BARRED;
    client->epoch++;
    return 0;
}

/* Frees a slot. */
GLOBAL int swp2p_forget(u32 slot)
{
    struct state *s = the_state();
    u64 bit = 1ull << (slot & 63);
    u32 ip;

    if (!s)
        return 0;
    slot &= 63;
    swp2p_clear(slot);
    ip = s->clients[slot].ip;
    map_delete(&by_ip, &ip);
    /* The slot will belong to another client. */
    for (u32 i = 0; i < SLOTS; i++)
        __sync_fetch_and_and(&s->clients[i].accusers, ~bit);
    s->clients[slot].flags = 0;
    __sync_fetch_and_and(&s->used, ~bit);
    return 0;
}

INLINE int is_silent(const struct client *client, const struct config *c, u64 now)
{
    u64 silence = (u64)c->silence_ms * 1000000;

    /* `seen` may be later, by another processor's clock. */
    return now > client->seen && now - client->seen > silence;
}

/* Whether a client is not sent to a holder, because it or several others have received damaged chunks from there. */
INLINE int is_accused(const struct client *holder, u32 slot, u64 now)
{
    return now / 1000000000 < holder->accused_until && (holder->flags & BARRED || holder->accusers >> (slot & 63) & 1);
}

struct moment {
    u64 now;
    u32 interface, beside;
};

static int forget_if_silent(u32 slot, void *context)
{
    const struct moment *moment = context;
    const struct config *c = the_config();
    struct state *s = the_state();

    if (!s || !c)
        return 1;
    slot &= 63;
    if (s->used >> slot & 1 && is_silent(&s->clients[slot], c, moment->now)) {
        swp2p_forget(slot);
        count(COUNT_SILENT);
    }
    return 0;
}

static int count_if_beside(u32 slot, void *context)
{
    struct moment *moment = context;
    const struct config *c = the_config();
    const struct state *s = the_state();
    const struct client *client;

    if (!s || !c)
        return 1;
    slot &= 63;
    client = &s->clients[slot];
    if (s->used >> slot & 1 && client->interface == moment->interface && !is_silent(client, c, moment->now))
        moment->beside++;
    return 0;
}

/* Gives the sender of a frame a slot; returns NONE if the bounds refuse it. */
INLINE u32 add(struct state *s, const struct config *c, const u8 *p, u32 interface, u64 now)
{
    u32 ip = raw32(p + AT_SOURCE), slot = NONE;
    struct moment moment = {now, interface, 0};
    struct client *client;
    u64 bit = 0;

    /* No host has the addresses of this network, of loopback, or of groups. */
    if (p[AT_SOURCE] == 0 || p[AT_SOURCE] == 127 || p[AT_SOURCE] >= 224)
        return NONE;
    if (!~s->used)
        loop(SLOTS, forget_if_silent, &moment, 0);
    loop(SLOTS, count_if_beside, &moment, 0);
    if (moment.beside >= c->per_port)
        return NONE;
    for (u32 i = 0; i < 4; i++) {
        u64 free = ~s->used;

        bit = free & -free;
        if (!bit)
            return NONE;
        if (!(__sync_fetch_and_or(&s->used, bit) & bit))
            break;
        bit = 0;
    }
    if (!bit)
        return NONE;
    slot = lowest_bit(bit);
    if (map_update(&by_ip, &ip, &slot, UPDATE_NEW)) {
        __sync_fetch_and_and(&s->used, ~bit);
        return NONE;
    }
    client = &s->clients[slot & 63];
    client->ip = ip;
    client->interface = interface;
    __builtin_memcpy(client->mac, p + 6, 6);
    client->port = raw16(p + AT_UDP);
    client->accusers = 0;
    client->accused_until = 0;
    client->accuses = 0;
    client->held = 0;
    client->flags = 0;
    client->seen = now;
    return slot;
}

/* Whether a frame comes from where a client's first message came from. */
INLINE int is_from(const struct client *client, const u8 *p, u32 interface)
{
    return client->interface == interface && client->port == raw16(p + AT_UDP) && raw32(client->mac) == raw32(p + 6) &&
           raw16(client->mac + 4) == raw16(p + 10);
}

/* The slot of the sender of a frame: NONE if it has none, or if the frame comes from elsewhere (`spoofed`). */
INLINE u32 find(const struct state *s, const u8 *p, u32 interface, u32 *spoofed)
{
    u32 ip = raw32(p + AT_SOURCE), *slot = map_lookup(&by_ip, &ip);

    *spoofed = slot && !is_from(&s->clients[*slot & 63], p, interface);
    return slot && !*spoofed ? *slot & 63 : NONE;
}

/* Likewise, where a sender without a slot gets one. A client that was silent may come from elsewhere. */
INLINE u32 find_or_add(struct state *s, const struct config *c, const u8 *p, u32 interface, u64 now)
{
    u32 ip = raw32(p + AT_SOURCE), *known = map_lookup(&by_ip, &ip), slot;

    if (known) {
        slot = *known & 63;
        if (is_from(&s->clients[slot], p, interface)) {
            s->clients[slot].seen = now;
            return slot;
        }
        if (!is_silent(&s->clients[slot], c, now)) {
            count(COUNT_SPOOFED);
            return NONE;
        }
        swp2p_forget(slot);
    }
    slot = add(s, c, p, interface, now);
    if (slot == NONE)
        count(COUNT_REFUSED);
    return slot;
}

/* A client's messages are of this image from now on. */
INLINE void set_image(struct state *s, u32 slot, u32 image)
{
    struct client *client = &s->clients[slot & 63];
    u32 flags = client->flags;

    if (flags & WITH_IMAGE && client->image == image)
        return;
    if (flags & WITH_IMAGE) {
        swp2p_clear(slot);
        client->flags = flags & (BARRED | WITH_NUMBER);
    }
    client->image = image;
    client->flags |= WITH_IMAGE;
}

/* A request: for which chunks, and who can serve all of them. */
struct ask {
    u32 slot, first, count, tries, to;
    u32 start;    /* the slot whose turn it is */
    u64 has;      /* the slots of those who have the first chunk */
    u64 able;     /* of those who have each chunk, or will have it; then rotated, so that `start` is bit 0 */
    u64 excluded; /* of those who were asked before */
    u64 now;
    u64 cost; /* of the best so far */
};

/* 1 if `x` is 0, otherwise 0. The compiler must not see that, or it emits a branch, and the verifier follows both sides in each
 * iteration of a loop. */
INLINE u32 is_zero(u32 x)
{
    __asm__("" : "+r"(x));
    x = ~(x | -x) >> 31;
    __asm__("" : "+r"(x));
    return x;
}

/* The cell of the holder at which the request of `cell` waits; 0 if that is not known, the server, or the client in `slot`. */
INLINE u32 next_of(const struct state *s, const struct row *row, u32 cell, u32 slot)
{
    u32 to = cell >> 16 & 255, at = (to - 1) & 63, next = row->cells[at], epoch = s->clients[at].epoch;
    u32 is_known = is_zero((to - 1) >> 6) & is_zero((cell >> 8 ^ epoch) & 255) & is_zero((next ^ epoch) & 255);

    return next & -(is_known & ~is_zero(at ^ slot));
}

INLINE u32 is_at_server(u32 cell) { return is_zero((cell >> 16 & 255) ^ TO_SERVER); }

/* Looks at one chunk of a request. A client will get a chunk that it does not have, and without the requester, if its own request
 * went to the server, or to a client that has it; or, where two may follow one another, to a client whose own request went there. */
static int look_at_chunk(u32 index, void *context)
{
    struct ask *ask = context;
    const struct row *row = row_of(ask->first + index);
    const struct config *c = the_config();
    const struct state *s = the_state();
    u32 before, one, two, slot = ask->slot;
    u64 has = 0, able = 0;

    if (!s || !c || !row) {
        ask->able = 0;
        return 1;
    }
    before = target_of(s, current(s, row, slot));
    if (ask->tries && before - 1 < SLOTS)
        ask->excluded |= 1ull << ((before - 1) & 63);
    two = c->pending >> 1 & 1;
    one = (c->pending & 1) | two;
    for (u32 i = 0; i < SLOTS; i++) {
        u32 cell = row->cells[i], is_current = is_zero((cell ^ s->clients[i].epoch) & 255);
        u32 next = next_of(s, row, cell, slot), after = next_of(s, row, next, slot);
        u32 is_sound = is_at_server(cell) | next >> 24 | (two & (is_at_server(next) | after >> 24));
        u32 is_pending = cell >> 25 & one & is_sound;

        has |= (u64)(is_current & cell >> 24 & 1) << i;
        able |= (u64)(is_current & (cell >> 24 | is_pending) & 1) << i;
    }
    if (!index)
        ask->has = has;
    ask->able &= able;
    return !ask->able;
}

/* Compares one able client with the best so far. The first of equals is the one whose turn it is. */
static int consider(u32 index, void *context)
{
    struct ask *ask = context;
    const struct config *c = the_config();
    const struct state *s = the_state();
    u64 bit = ask->able & -ask->able;
    const struct client *client;
    u32 at, load = 0, held = 0;
    u64 cost;

    (void)index;
    if (!s || !c || !bit)
        return 1;
    ask->able &= ~bit;
    at = (lowest_bit(bit) + ask->start) & 63;
    client = &s->clients[at];
    if (!(client->flags & WITH_IMAGE) || client->image != s->clients[ask->slot & 63].image)
        return 0;
    if (is_accused(client, ask->slot, ask->now) || is_silent(client, c, ask->now))
        return 0;
    if (c->policy) {
        load = client->load > 0 ? client->load : 0;
        held = client->held > 0 ? client->held : 0;
    }
    /* To wait is worth one request. Whoever has fewer chunks can serve fewer others (`Cost` in Rust). */
    load += !(ask->has >> at & 1);
    cost = (u64)load << 32 | held;
    if (cost < ask->cost) {
        ask->cost = cost;
        ask->to = at + 1;
    }
    return 0;
}

static int assign_chunk(u32 index, void *context)
{
    const struct ask *ask = context;
    struct row *row = row_of(ask->first + index);
    struct state *s = the_state();

    if (!s || !row)
        return 1;
    assign(s, row, ask->slot, ask->to);
    return 0;
}

/* Chooses a client that can serve all chunks of a request, and records it. Returns its slot; NONE is the server. */
GLOBAL int swp2p_choose(const struct ask *asked)
{
    const struct config *c = the_config();
    struct state *s = the_state();
    u32 slot, turn, start, to;
    struct ask ask;
    u64 able;

    if (!asked || !c || !s)
        return NONE;
    /* Callbacks take what is on the stack. */
    ask = *asked;
    if (ask.count > BATCH_MOST || ask.first + ask.count > SWP2P_CHUNKS) {
        count(COUNT_REFUSED);
        return NONE;
    }
    slot = ask.slot & 63;
    turn = s->clients[slot].image & 63;
    start = (s->last[turn] + 1) & 63;
    ask.able = ~0ull;
    ask.has = ask.excluded = 0;
    ask.start = start;
    ask.cost = ~0ull;
    ask.to = TO_SERVER;
    if (ask.tries < c->max_tries) {
        loop(ask.count, look_at_chunk, &ask, 0);
        able = ask.able & s->used & ~ask.excluded & ~(1ull << slot);
        ask.able = able >> start | able << (-start & 63);
        loop(ones(able), consider, &ask, 0);
    }
    loop(ask.count, assign_chunk, &ask, 0);
    to = ask.to - 1;
    if (to >= SLOTS) {
        count(COUNT_TO_SERVER);
        return NONE;
    }
    s->last[turn] = to;
    count(ask.has >> (to & 63) & 1 ? COUNT_TO_HOLDER : COUNT_TO_PENDING);
    return to;
}

/* A report, and the word of its map that is being compared with the client's last one. */
struct update {
    u32 slot, number, changes, word;
    u64 new, changed;
};

static int update_chunk(u32 index, void *context)
{
    struct update *update = context;
    u64 bit = update->changed & -update->changed, before;
    u32 slot = update->slot & 63, at = slot * WINDOWS + update->number, word = update->word & (WINDOW_WORDS - 1), cell;
    struct row *row = row_of(update->number * WINDOW + word * 64 + lowest_bit(bit));
    struct window *window = map_lookup(&windows, &at);
    struct state *s = the_state();

    (void)index;
    if (!s || !row || !window || !bit)
        return 1;
    cell = current(s, row, slot);
    if (update->new & bit) {
        charge(s, slot, target_of(s, cell), -1);
        cell = cell_of(HAS, 0, 0, s->clients[slot].epoch);
    } else {
        cell &= ~HAS;
    }
    row->cells[slot] = cell;
    /* A return may clear a bit at the same time. */
    before = __sync_fetch_and_xor(&window->map[word], bit);
    __sync_fetch_and_add(&s->clients[slot].held, before & bit ? -1 : 1);
    update->changed &= ~bit;
    return 0;
}

static int update_word(u32 index, void *context)
{
    struct update *update = context;
    u32 at = (update->slot & 63) * WINDOWS + update->number, zero = 0, changes;
    const struct window *window = map_lookup(&windows, &at);
    const u64 *map = map_lookup(&scratch, &zero);

    if (!window || !map || index >= WINDOW_WORDS)
        return 1;
    update->word = index;
    update->new = little64(map[index]);
    update->changed = update->new ^ window->map[index];
    if (!update->changed)
        return 0;
    changes = ones(update->changed);
    update->changes += changes;
    if (update->changes > CHANGES_MOST)
        return 1;
    loop(changes, update_chunk, update, 0);
    return 0;
}

/* Records the report of a client, whose map is in `scratch`. */
INLINE void report(const struct state *s, u32 slot, u32 number)
{
    u32 at = slot * WINDOWS + number, epoch = s->clients[slot & 63].epoch;
    struct window *window = map_lookup(&windows, &at);
    struct update update = {.slot = slot, .number = number};

    if (!window)
        return;
    if (window->epoch != epoch) {
        for (u32 i = 0; i < WINDOW_WORDS; i++)
            window->map[i] = 0;
        window->epoch = epoch;
    }
    loop(WINDOW_WORDS, update_word, &update, 0);
}

/* A client does not have a chunk that it was expected to have. */
INLINE void set_lacking(struct state *s, struct row *row, u32 slot, u32 chunk)
{
    u32 at = slot * WINDOWS + chunk / WINDOW, word = chunk % WINDOW / 64;
    struct window *window = map_lookup(&windows, &at);
    u64 bit = 1ull << (chunk & 63);

    row->cells[slot & 63] = current(s, row, slot) & ~(HAS | ASKED);
    if (!window || window->epoch != s->clients[slot & 63].epoch)
        return;
    if (__sync_fetch_and_and(&window->map[word & (WINDOW_WORDS - 1)], ~bit) & bit)
        __sync_fetch_and_add(&s->clients[slot & 63].held, -1);
}

/* A return: chunks of the client in `slot`, which `holder` (or NONE, if it has left) was asked for. */
struct returned {
    u32 slot, first, holder, matching;
};

/* Only chunks count that the client has asked for, and that were redirected to this holder or to one that has left. So a forged
 * return sends nothing to anybody who does not want it. The server serves them, unless another holder is found. */
static int return_chunk(u32 index, void *context)
{
    struct returned *returned = context;
    u32 chunk = returned->first + index, to;
    struct row *row = row_of(chunk);
    struct state *s = the_state();
    u32 cell;

    if (!s || !row)
        return 1;
    cell = current(s, row, returned->slot);
    to = target_of(s, cell);
    if (to && to - 1 == returned->holder)
        set_lacking(s, row, returned->holder, chunk);
    else if (to || !(cell & ASKED))
        return 0;
    assign(s, row, returned->slot, TO_SERVER);
    returned->matching++;
    return 0;
}

#endif
