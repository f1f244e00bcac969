/* The aggregating switch as a tc program at the ingress of its ports. It handles messages for the switch's address, and passes
 * everything else to what forwards frames here: a bridge, or the kernel's routing. A reply is made of the frame that it answers, and
 * leaves by the port of its receiver. Needs Linux 6.6 (TCX). */
#ifndef REDUCE_H
#include "../bpf.h"
#include "reduce.h"
#include "jobs.h"
#endif

/* The slots of an epoch: one of the job's copies. */
INLINE u64 copy_of(const struct job *job, u32 epoch, struct range *copy)
{
    u32 len = (job->slots.end - job->slots.start) / (job->copies == 2 ? 2 : 1);
    u32 second = job->copies == 2 ? epoch & 1 : 0;

    copy->start = job->slots.start + second * len;
    copy->end = copy->start + len;
    return job->life[second];
}

INLINE int is_open(const struct job *job, u32 epoch) { return epoch >= job->first && epoch - job->first < job->copies; }

/* Replies with the fields that all messages have as in the message that is answered. */
INLINE u8 *answer(struct scratch *s, u32 kind, u32 counted, u32 len)
{
    u8 *out = s->out + UDP_BYTES;
    u32 i;

#pragma unroll
    for (i = 0; i < F_BODY; i += 4)
        *(any32 *)(out + i) = *(const any32 *)(s->in + UDP_BYTES + i);
    out[F_KIND] = kind;
    out[F_COUNT] = counted;
    s->reply = len;
    return out;
}

/* A message that the switch has no use for. */
INLINE void stale(void) { count(COUNT_STALE, 1); }

INLINE void refuse(struct scratch *s, u32 reason)
{
    count(COUNT_REFUSED, 1);
    /* The bytes behind it are part of the checksum's last word. */
    *(any32 *)(answer(s, REFUSED, 0, F_BODY + 1) + F_BODY) = reason;
}

/* Returns a slot; 0 if there is none with this number. */
INLINE struct slot *slot_at(u32 at)
{
    u32 number = at / REDUCE_WAYS, way = at % REDUCE_WAYS;
    struct bucket *bucket = map_lookup(&table, &number);

    if (!bucket)
        return 0;
    UNKNOWN_TO_COMPILER(bucket);
    UNKNOWN_TO_COMPILER(way);
    if (way >= REDUCE_WAYS)
        return 0;
    return &bucket->slots[way];
}

/* The pairs of a packet on their way into slots. */
struct adding {
    u64 token;
    u64 rest;       /* the pairs without a slot */
    u64 life;       /* of the slots of the epoch */
    u32 first, len; /* these slots */
    u32 operator, workers;
    u32 counted; /* pairs in the reply */
};

/* Adds a pair to the sum of its key. What finds its bucket full is not taken. */
static int add_pair(u32 index, void *context)
{
    struct adding *adding = context;
    struct scratch *s = the_scratch();
    struct bucket *bucket;
    u64 low, high, value;
    const u8 *pair;
    u32 number, way;

    if (!s || index >= PAIRS_MOST)
        return 1;
    pair = s->in + UDP_BYTES + F_PAIRS + PAIR * index;
    low = little64(pair);
    high = little64(pair + 8);
    value = big32(pair + 16);
    number = adding->first / REDUCE_WAYS + bucket_of(hash_of(low, high, adding->token), adding->len / REDUCE_WAYS);
    bucket = map_lookup(&table, &number);
    if (!bucket || !(low | high)) {
        adding->rest |= 1ull << (index & 63);
        return 0;
    }
#pragma unroll
    for (way = 0; way < REDUCE_WAYS; way++) {
        struct slot *slot = &bucket->slots[way];

        if (slot->life != adding->life) {
            slot->key[0] = low;
            slot->key[1] = high;
            slot->value = value;
            slot->life = adding->life;
            return 0;
        }
        if (slot->key[0] == low && slot->key[1] == high) {
            slot->value = combine(adding->operator, slot->value, value);
            return 0;
        }
    }
    adding->rest |= 1ull << (index & 63);
    return 0;
}

/* Copies a pair without a slot to the reply. */
static int copy_rest(u32 index, void *context)
{
    struct adding *adding = context;
    struct scratch *s = the_scratch();
    const any32 *from;
    any32 *to;
    u32 i, at = adding->counted;

    if (!s || index >= PAIRS_MOST || at >= PAIRS_MOST)
        return 1;
    if (!(adding->rest >> (index & 63) & 1))
        return 0;
    from = (const any32 *)(s->in + UDP_BYTES + F_PAIRS + PAIR * index);
    to = (any32 *)(s->out + UDP_BYTES + F_PAIRS + PAIR * at);
#pragma unroll
    for (i = 0; i < PAIR / 4; i++)
        to[i] = from[i];
    adding->counted = at + 1;
    return 0;
}

/* P4-ORDC's rule (section 2): a hash of JobID and key is the number of a register, to which the value is added, and whose counter is
 * incremented; the sum is sent when the counter equals the number of workers. Keys are not compared. */
static int count_pair(u32 index, void *context)
{
    struct adding *adding = context;
    struct scratch *s = the_scratch();
    struct slot *slot;
    const u8 *pair;
    u32 at, i;
    any32 *to;

    if (!s || index >= PAIRS_MOST)
        return 1;
    pair = s->in + UDP_BYTES + F_PAIRS + PAIR * index;
    at = adding->first + bucket_of(hash_of(little64(pair), little64(pair + 8), adding->token), adding->len);
    slot = slot_at(at);
    if (!slot)
        return 0;
    if (slot->life != adding->life) {
        slot->key[0] = slot->key[1] = slot->value = 0;
        slot->life = adding->life;
    }
    slot->value += big32(pair + 16);
    /* The first bytes of the key are the counter, as in aggregation::switch. */
    slot->key[0] = (slot->key[0] & ~0xffffffffull) | ((slot->key[0] + 1) & 0xffffffff);
    if ((slot->key[0] & 0xffffffff) != adding->workers)
        return 0;
    at = adding->counted;
    if (at >= PAIRS_MOST)
        return 1;
    to = (any32 *)(s->out + UDP_BYTES + F_PAIRS + PAIR * at);
#pragma unroll
    for (i = 0; i < 4; i++)
        to[i] = ((const any32 *)pair)[i];
    to[4] = __builtin_bswap32((u32)slot->value);
    adding->counted = at + 1;
    return 0;
}

/* Sends the rest of a packet to the master, as if its worker had sent it, or acknowledges a packet without a rest. */
INLINE void forward_rest(struct scratch *s, u32 counted)
{
    const u8 *in = s->in + UDP_BYTES;
    u8 *out;

    if (!counted) {
        out = answer(s, ACK, s->marked, F_SEQ + 4);
        *(any32 *)(out + F_SEQ) = *(const any32 *)(in + F_SEQ);
        return;
    }
    out = answer(s, RESIDUAL, counted, F_PAIRS + PAIR * counted);
    *(any32 *)(out + F_SEQ) = *(const any32 *)(in + F_SEQ);
    put_big32(out + F_DATA_EPOCH, big16(in + F_DATA_EPOCH) << 16);
    s->to_master = s->has_payload = 1;
}

/* Adds up a packet, or answers its repetition. */
INLINE void on_data(struct scratch *s, const struct job *job)
{
    const u8 *in = s->in + UDP_BYTES;
    u32 worker = in[F_WORKER], pairs = in[F_COUNT], seq = big32(in + F_SEQ), epoch = big16(in + F_DATA_EPOCH);
    struct adding adding = {.token = job->token, .operator = job->operator, .workers = job->workers};
    struct record *record;
    struct range copy;
    u32 at;

    if (worker >= job->workers || job->addresses[worker & (WORKERS - 1)] != s->from)
        return stale();
    adding.life = copy_of(job, epoch, &copy);
    adding.first = copy.start;
    adding.len = copy.end - copy.start;
    if (job->rule == COUNTER) {
        count(COUNT_PACKETS, 1);
        count(COUNT_PAIRS, pairs);
        loop(pairs, count_pair, &adding, 0);
        count(COUNT_EMITTED, adding.counted);
        count(COUNT_ABSORBED, pairs - adding.counted);
        return forward_rest(s, adding.counted);
    }
    at = job->window ? job->records.start + worker * job->window + seq % job->window : ~0u;
    record = map_lookup(&records, &at);
    if (!record || seq == ~0u)
        return stale();
    if (record->life != job->record_life)
        record->next = 0;
    if (record->next > seq + 1) {
        /* A packet of an earlier window: its worker has had the acknowledgement, or it could not have gone on. */
        count(COUNT_DUPLICATES, 1);
        return;
    }
    if (record->next == seq + 1) {
        /* With a pair that this one does not have, it was another packet under the same number. */
        if (pairs < PAIRS_MOST && record->rest >> (pairs & 63))
            return stale();
        count(COUNT_DUPLICATES, 1);
        adding.rest = record->rest;
    } else {
        if (!is_open(job, epoch))
            return stale();
        count(COUNT_PACKETS, 1);
        count(COUNT_PAIRS, pairs);
        loop(pairs, add_pair, &adding, 0);
        count(COUNT_ABSORBED, pairs - ones(adding.rest));
        record->next = seq + 1;
        record->life = job->record_life;
        record->rest = adding.rest;
    }
    if (adding.rest) {
        count(COUNT_RESIDUAL, ones(adding.rest));
        loop(pairs, copy_rest, &adding, 0);
    }
    forward_rest(s, adding.counted);
}

/* Remembers where the master of a job is, and renews its lease. */
INLINE void renew(struct job *job, const struct config *c, const struct scratch *s)
{
    const u8 *head = s->head;

    job->expires = s->now + (u64)c->lease_ms * 1000000;
    job->master_ip = raw32(head + AT_SOURCE);
    job->master_port = raw16(head + AT_UDP);
    job->master_interface = s->interface;
    __builtin_memcpy(job->master_mac, head + 6, 6);
    __builtin_memcpy(job->own_mac, head, 6);
}

struct copying {
    u32 job;
};

static int copy_address(u32 index, void *context)
{
    const struct copying *copying = context;
    const struct scratch *s = the_scratch();
    u32 which = copying->job;
    struct job *job = map_lookup(&jobs, &which);

    if (!s || !job || index >= WORKERS)
        return 1;
    job->addresses[index] = big32(s->in + UDP_BYTES + F_OPEN_ADDRESSES + 4 * index);
    return 0;
}

/* Begins an attempt with empty slots and records. */
INLINE void start(struct state *st, const struct scratch *s, struct job *job, u32 index)
{
    const u8 *in = s->in + UDP_BYTES;
    struct copying copying = {.job = index};

    job->attempt = big16(in + F_ATTEMPT);
    job->first = big16(in + F_OPEN_FIRST_EPOCH);
    job->window = big16(in + F_OPEN_WINDOW);
    job->copies = in[F_OPEN_COPIES];
    job->operator = in[F_OPEN_OPERATOR];
    job->workers = in[F_OPEN_WORKERS];
    job->rule = in[F_OPEN_RULE];
    job->record_life = new_life(st);
    job->life[0] = new_life(st);
    job->life[1] = new_life(st);
    loop(job->workers, copy_address, &copying, 0);
}

INLINE void opened(struct scratch *s, const struct job *job)
{
    u8 *out = answer(s, OPENED, 0, F_BODY + 8);

    put_big32(out + F_BODY, job->slots.end - job->slots.start);
    put_big32(out + F_BODY + 4, job->instance);
}

/* Reserves slots, renews a reservation, or starts its next attempt. */
static __attribute__((noinline)) int on_open(struct state *st, const struct config *c, struct scratch *s)
{
    const u8 *in = s->in + UDP_BYTES;
    u64 secret = (u64)c->secret[1] << 32 | c->secret[0], token = big64(in + F_TOKEN), cookie;
    u32 from = s->from, number = big16(in + F_JOB), attempt = big16(in + F_ATTEMPT), workers = in[F_OPEN_WORKERS], copies = in[F_OPEN_COPIES];
    u32 unit = REDUCE_WAYS * copies, index = 0, *of_number, entries = big16(in + F_OPEN_WINDOW) * workers;
    struct search slots = {.end = SLOTS, .wanted = big32(in + F_OPEN_SLOTS)};
    struct search recording = {.of_records = 1, .end = REDUCE_RECORDS, .wanted = entries};
    struct expiring expiring = {.now = s->now};
    struct holding holding = {.master = from};
    u32 allowed, jobs_most = JOBS * c->share / 100;
    struct job *job;
    u8 *out;

    cookie = mix(mix(secret ^ ((u64)from << 16 | number)) ^ token);
    if (big64(in + F_OPEN_COOKIE) != cookie) {
        /* The answer is shorter than the request, so that it amplifies nothing. */
        out = answer(s, CHALLENGE, 0, F_BODY + 12);
        put_big32(out + F_BODY, mix(secret) >> 32);
        put_big64(out + F_BODY + 4, cookie);
        return 0;
    }
    job = find_job(st, number, s->now, &index);
    if (job) {
        if (job->master != from || job->token != token) {
            refuse(s, IN_USE);
            return 0;
        }
        if (attempt < job->attempt) {
            stale();
            return 0;
        }
        if (attempt > job->attempt && (workers != job->workers || big16(in + F_OPEN_WINDOW) != job->window || copies != job->copies)) {
            refuse(s, INVALID);
            return 0;
        }
        renew(job, c, s);
        if (attempt > job->attempt)
            start(st, s, job, index);
        opened(s, job);
        return 0;
    }
    loop(JOBS, expire_job, &expiring, 0);
    loop(JOBS, add_holding, &holding, 0);
    allowed = left_of(SLOTS, c->share, holding.slots);
    if (slots.wanted > allowed)
        slots.wanted = allowed;
    find_range(&slots);
    find_range(&recording);
    slots.len = unit ? slots.len - slots.len % unit : 0;
    if (!slots.len || recording.len < entries || !~st->used || holding.jobs >= (jobs_most ? jobs_most : 1) ||
        entries > left_of(REDUCE_RECORDS, c->share, holding.records)) {
        refuse(s, FULL);
        return 0;
    }
    index = lowest_bit(~st->used) & (JOBS - 1);
    job = map_lookup(&jobs, &index);
    of_number = map_lookup(&by_number, &number);
    if (!job || !of_number)
        return 0;
    *of_number = index + 1;
    UNKNOWN_TO_COMPILER(index);
    index &= JOBS - 1;
    st->used |= 1ull << index;
    st->slots[index].start = job->slots.start = slots.start;
    st->slots[index].end = job->slots.end = slots.start + slots.len;
    st->records[index].start = job->records.start = recording.start;
    st->records[index].end = job->records.end = recording.start + entries;
    /* A job that has lapsed and is reserved again under the same attempt has lost its sums, which the master must notice. */
    job->instance = mix(mix(secret) ^ ++st->reservations) >> 32;
    job->number = number;
    job->token = token;
    job->master = from;
    renew(job, c, s);
    start(st, s, job, index);
    opened(s, job);
    return 0;
}

/* Reads the sums in some slots into the reply. */
struct reading {
    u64 life;
    u32 first, end, sums;
};

static int read_slot(u32 index, void *context)
{
    struct reading *reading = context;
    struct scratch *s = the_scratch();
    u32 at = reading->first + index, sums = reading->sums;
    const struct slot *slot = slot_at(at);
    u8 *sum;

    if (!s || !slot || at >= reading->end || sums >= FETCH_SLOTS)
        return 1;
    if (slot->life != reading->life || !(slot->key[0] | slot->key[1]))
        return 0;
    sum = s->out + UDP_BYTES + F_SUMS + SUM * sums;
    put_little64(sum, slot->key[0]);
    put_little64(sum + 8, slot->key[1]);
    put_big64(sum + 16, slot->value);
    reading->sums = sums + 1;
    return 0;
}

INLINE void on_fetch(struct scratch *s, const struct job *job)
{
    const u8 *in = s->in + UDP_BYTES;
    u32 epoch = big16(in + F_EPOCH), first = big32(in + F_FIRST);
    struct reading reading = {};
    struct range copy;
    u8 *out;

    reading.life = copy_of(job, epoch, &copy);
    if (!is_open(job, epoch) || first >= copy.end - copy.start)
        return stale();
    reading.first = copy.start + first;
    reading.end = copy.end;
    loop(FETCH_SLOTS, read_slot, &reading, 0);
    count(COUNT_FETCHED, reading.sums);
    out = answer(s, VALUES, reading.sums, F_SUMS + SUM * reading.sums);
    put_big32(out + F_EPOCH, epoch << 16);
    put_big32(out + F_FIRST, first);
    s->has_payload = reading.sums != 0;
}

INLINE void on_clear(struct state *st, struct scratch *s, struct job *job)
{
    const u8 *in = s->in + UDP_BYTES;
    u32 epoch = big16(in + F_EPOCH);

    if (epoch == job->first) {
        job->life[job->copies == 2 ? epoch & 1 : 0] = new_life(st);
        if (job->first < 0xffff)
            job->first++;
    } else if (epoch > job->first) {
        return stale();
    }
    put_big32(answer(s, CLEARED, 0, F_EPOCH + 2) + F_EPOCH, epoch << 16);
}

/* Handles a message, whose fields are possible. */
INLINE void on_message(struct state *st, const struct config *c, struct scratch *s)
{
    const u8 *in = s->in + UDP_BYTES;
    u32 kind = in[F_KIND], index = 0, is_there;
    struct job *job;

    if (kind == OPEN) {
        on_open(st, c, s);
        return;
    }
    job = find_job(st, big16(in + F_JOB), s->now, &index);
    is_there = job != 0;
    if (job && (job->token != big64(in + F_TOKEN) || job->attempt != big16(in + F_ATTEMPT)))
        job = 0;
    if (kind == DATA) {
        s->job = index;
        return job ? on_data(s, job) : stale();
    }
    if (job && job->master != s->from)
        job = 0;
    if (kind == CLOSE) {
        if (job)
            remove_job(st, job, index);
        return;
    }
    if (!job) {
        /* The sender has to know that its job is not there. A wrong token gets no answer from a job that exists. */
        stale();
        if (!is_there)
            answer(s, UNKNOWN, 0, F_BODY);
        return;
    }
    renew(job, c, s);
    if (big16(in + F_RESERVATION) != (job->instance & 0xffff)) {
        /* The master has another reservation in mind, whose sums are not all of its job's. */
        stale();
        answer(s, UNKNOWN, 0, F_BODY);
        return;
    }
    return kind == FETCH ? on_fetch(s, job) : on_clear(st, s, job);
}

/* Whether the fields of a message of `len` bytes are possible, and the switch has a use for it: the rules of wire::reduce::decode. */
INLINE int is_possible(const u8 *in, u32 len)
{
    u32 kind = in[F_KIND], counted = in[F_COUNT];

    if (len < F_BODY || in[0] != MAGIC || in[F_WORKER] >= WORKERS)
        return 0;
    switch (kind) {
    case DATA:
        return counted - 1 < PAIRS_MOST && len >= F_PAIRS + PAIR * counted;
    case FETCH:
        return len >= F_SUMS;
    case CLEAR:
        return len >= F_RESERVATION + 2;
    case CLOSE:
        return 1;
    case OPEN:
        return len >= F_OPEN_ADDRESSES + 4 * (u32)in[F_OPEN_WORKERS] && in[F_OPEN_OPERATOR] <= COUNT_UP &&
               in[F_OPEN_RULE] <= COUNTER && (u32)in[F_OPEN_COPIES] - 1 < 2 && (u32)in[F_OPEN_WORKERS] - 1 < WORKERS &&
               big16(in + F_OPEN_WINDOW) - 1 < WINDOW_MOST;
    default:
        return 0;
    }
}

INLINE u32 fold(u64 sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16);
}

/* The sum of the words of a buffer, of which `len` bytes and zeros up to a multiple of 4 are filled. */
INLINE u32 sum_of(const u8 *bytes, u32 len)
{
    u64 sum = 0;
    u32 i, piece;

    len = (len + 3) & ~3u;
#pragma unroll
    for (i = 0; i < 3; i++) {
        piece = len > CSUM_PIECE ? CSUM_PIECE : len;
        if (piece)
            sum += fold((u32)csum_diff(0, 0, bytes + i * CSUM_PIECE, piece, 0));
        len -= piece;
    }
    return fold(sum);
}

/* The sum of the words of the pseudo-header of UDP (RFC 768). */
INLINE u32 pseudo_sum(u32 source, u32 destination, u32 len)
{
    return fold((u64)source + destination + __builtin_bswap16(17) + __builtin_bswap16(len));
}

/* Reads a datagram for the switch. Returns 1 if there is one, 0 if the frame is for others, and a negative number if it is to be
 * dropped. */
INLINE int read_frame(struct __sk_buff *skb, const struct config *c, struct scratch *s)
{
    u32 ip_len, len, sum, check, full;
    u8 *head = s->head;

    if (skb->vlan_present || load_bytes(skb, 0, head, AT_MESSAGE))
        return 0;
    if (raw16(head + 12) != __builtin_bswap16(0x0800) || head[AT_IP] != 0x45 || head[AT_IP + 9] != 17)
        return 0;
    if (raw32(head + AT_DESTINATION) != c->address || raw16(head + AT_UDP + 2) != c->port)
        return 0;
    /* Fragments have no use here, nor frames for or from a MAC address of a group. */
    ip_len = big16(head + AT_IP + 2);
    len = big16(head + AT_UDP + 4);
    if (big16(head + AT_IP + 6) & 0x3fff || (head[0] | head[6]) & 1 || len < UDP_BYTES + F_BODY || len > DATAGRAM_MOST ||
        ip_len < 20 + len || skb->len < AT_IP + ip_len) {
        count(skb->gso_size ? COUNT_SUPER : COUNT_MALFORMED, 1);
        return -1;
    }
    if (skb->gso_size) {
        count(COUNT_SUPER, 1);
        return -1;
    }
    if (load_bytes(skb, AT_UDP, s->in, len))
        return -1;
    *(any32 *)(s->in + (len & ~3u)) &= (len & 3) ? ~0u >> (32 - 8 * (len & 3)) : 0;
    /* What is damaged must not be added up. A checksum that is left to the interface is the sum of the pseudo-header; 0 is none. */
    check = *(const any16 *)(s->in + 6);
    *(any16 *)(s->in + 6) = 0;
    sum = pseudo_sum(raw32(head + AT_SOURCE), c->address, len);
    full = fold((u64)sum_of(s->in, len) + sum + check);
    if (check && check != sum && full != 0xffff) {
        count(COUNT_CHECKSUM, 1);
        return -1;
    }
    if (!is_possible(s->in + UDP_BYTES, len - UDP_BYTES)) {
        count(COUNT_MALFORMED, 1);
        return -1;
    }
    return 1;
}

/* Turns the frame into the reply. Returns the interface by which it leaves, 0 if the kernel could not do that. */
INLINE u32 write_frame(struct __sk_buff *skb, const struct config *c, struct scratch *s)
{
    u32 len = s->reply + UDP_BYTES, old_len = big16(s->in + 4), which = s->job, interface = s->interface;
    u32 old_source = raw32(s->head + AT_SOURCE), source = c->address, destination = old_source, old_sum, new_sum, change;
    u32 port = raw16(s->head + AT_UDP), body;
    u8 *head = s->head, *out = s->out, mac[6];
    u64 ip_sum;

    if (len > DATAGRAM_MOST || len < UDP_BYTES + F_BODY)
        return 0;
    old_sum = fold((u64)sum_of(s->in, old_len) + pseudo_sum(source, destination, old_len));
    __builtin_memcpy(mac, head, 6);
    __builtin_memcpy(head, head + 6, 6);
    __builtin_memcpy(head + 6, mac, 6);
    *(any16 *)out = c->port;
    if (s->to_master) {
        const struct job *job = map_lookup(&jobs, &which);

        if (!job)
            return 0;
        *(any16 *)out = port;
        source = destination;
        destination = job->master_ip;
        port = job->master_port;
        interface = job->master_interface;
        __builtin_memcpy(head, job->master_mac, 6);
        __builtin_memcpy(head + 6, job->own_mac, 6);
    }
    *(any16 *)(out + 2) = port;
    put_big16(out + 4, len);
    *(any16 *)(out + 6) = 0;
    /* What is small and ends a wait has the highest priority; pairs and sums wait in the queues, which mark them. */
    head[AT_IP + 1] = s->has_payload ? (s->to_master && s->marked ? 3 : 2) : 7 << 5;
    put_big16(head + AT_IP + 2, 20 + len);
    head[AT_IP + 8] = 64;
    *(any16 *)(head + AT_IP + 10) = 0;
    __builtin_memcpy(head + AT_SOURCE, &source, 4);
    __builtin_memcpy(head + AT_DESTINATION, &destination, 4);
    ip_sum = 0;
#pragma unroll
    for (int i = 0; i < 20; i += 2)
        ip_sum += *(const any16 *)(head + AT_IP + i);
    *(any16 *)(head + AT_IP + 10) = ~fold(ip_sum);
    new_sum = fold((u64)sum_of(out, len) + pseudo_sum(source, destination, len));
    if (change_tail(skb, AT_UDP + len, 0) || store_bytes(skb, 0, head, AT_UDP, 0) || store_bytes(skb, AT_UDP, out, 6, 0))
        return 0;
    body = len - UDP_BYTES;
    UNKNOWN_TO_COMPILER(body);
    if (body < F_BODY || body > DATAGRAM_MOST - UDP_BYTES || store_bytes(skb, AT_MESSAGE, out + UDP_BYTES, body, 0))
        return 0;
    /* If the checksum is left to the interface, only the change of the pseudo-header counts; otherwise all of it does. */
    change = fold((u64)pseudo_sum(source, destination, len) + (u16)~pseudo_sum(c->address, old_source, old_len));
    new_sum = fold((u64)new_sum + (u16)~old_sum + (u16)~change);
    if (udp_csum_replace(skb, AT_UDP_CHECK, 0, change, CSUM_PSEUDO | CSUM_MANGLED_0) ||
        udp_csum_replace(skb, AT_UDP_CHECK, 0, new_sum, CSUM_MANGLED_0))
        return 0;
    return interface;
}

/* Handles a frame. Returns the interface by which it leaves as a reply; 0 if it passes; a negative number if it is dropped. */
INLINE int handle(struct __sk_buff *skb, u32 interface, u64 now)
{
    const struct config *c = the_config();
    struct scratch *s = the_scratch();
    struct state *st = the_state();
    int is_ours;

    if (!c || !s || !st)
        return 0;
    is_ours = read_frame(skb, c, s);
    if (is_ours <= 0)
        return is_ours;
    s->now = now;
    s->from = number_of(raw32(s->head + AT_SOURCE));
    s->interface = interface;
    s->marked = (s->head[AT_IP + 1] & 3) == 3;
    s->reply = s->to_master = s->has_payload = s->job = 0;
    if (!take_lock(st)) {
        count(COUNT_BUSY, 1);
        return -1;
    }
    on_message(st, c, s);
    release_lock(st);
    if (!s->reply)
        return -1;
    interface = write_frame(skb, c, s);
    if (!interface) {
        count(COUNT_LOST, 1);
        return -1;
    }
    return interface;
}

PROGRAMS(rackweave_reduce)

LICENSE
