/* What programs in the kernel share: types, the kernel's context of a frame, and helper calls. The numbers and layouts are those of the
 * kernel's stable interface (linux/bpf.h). Freestanding: it includes no system header. */
#ifndef RACKWEAVE_BPF_H
#define RACKWEAVE_BPF_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
/* Words of memory that has another type. */
typedef u16 __attribute__((may_alias)) any16;
typedef u32 __attribute__((may_alias)) any32;

#define INLINE static inline __attribute__((always_inline))
/* Verified once, and not for each call. */
#define GLOBAL __attribute__((noinline))
#define SECTION(name) __attribute__((section(name), used))
/* A call of the kernel, which not every program needs. */
#define HELPER static __attribute__((unused))

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
/* The next program of the interface decides, or else the frame goes on its way; the frame goes on its way; it is dropped. */
enum { ACT_NEXT = -1, ACT_OK = 0, ACT_SHOT = 2 };
enum { UPDATE_ANY = 0, UPDATE_NEW = 1 };
/* A checksum of 0 means that there is none; the address is in the pseudo-header. */
enum { CSUM_MANGLED_0 = 0x20, CSUM_PSEUDO = 0x10 };

HELPER void *(*const map_lookup)(void *map, const void *key) = (void *)1;
HELPER long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
HELPER long (*const map_delete)(void *map, const void *key) = (void *)3;
HELPER u64 (*const time_ns)(void) = (void *)5;
HELPER long (*const store_bytes)(struct __sk_buff *skb, u32 at, const void *from, u32 len, u64 flags) = (void *)9;
HELPER long (*const ip_csum_replace)(struct __sk_buff *skb, u32 at, u64 from, u64 to, u64 flags) = (void *)10;
HELPER long (*const udp_csum_replace)(struct __sk_buff *skb, u32 at, u64 from, u64 to, u64 flags) = (void *)11;
HELPER long (*const clone_redirect)(struct __sk_buff *skb, u32 interface, u64 flags) = (void *)13;
HELPER long (*const redirect)(u32 interface, u64 flags) = (void *)23;
HELPER long (*const load_bytes)(const struct __sk_buff *skb, u32 at, void *to, u32 len) = (void *)26;
/* The sum of 32-bit words of `to` minus those of `from`, as checksums add them up. Lengths are multiples of 4. */
HELPER long (*const csum_diff)(const void *from, u32 from_len, const void *to, u32 to_len, u32 seed) = (void *)28;
HELPER u32 (*const hash_recalc)(struct __sk_buff *skb) = (void *)34;
HELPER long (*const change_tail)(struct __sk_buff *skb, u32 len, u64 flags) = (void *)38;
/* The kernel's interface has 32 bits for `times`, but where it inlines the call it reads all 64 of the register. */
HELPER long (*const loop)(u64 times, int (*callback)(u32 index, void *context), void *context, u64 flags) = (void *)181;

/* Hides from the compiler what it knows of a number, so that it does not remove or move a check that the verifier has to see. */
#define UNKNOWN_TO_COMPILER(x) __asm__ volatile("" : "+r"(x))

/* The number of bits that are set, without branches: the verifier would follow each of them. */
INLINE u32 ones(u64 x)
{
    x -= x >> 1 & 0x5555555555555555ull;
    x = (x & 0x3333333333333333ull) + (x >> 2 & 0x3333333333333333ull);
    return ((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0full) * 0x0101010101010101ull >> 56;
}

/* The number of the lowest bit that is set, modulo 64. */
INLINE u32 lowest_bit(u64 set) { return ones(~set & (set - 1)) & 63; }

/* The programs of a file whose `handle` returns the interface by which a frame leaves, 0 if it passes, or less if it is dropped: the
 * one that runs at interfaces, and one for tests. There the frame's mark is its ingress interface, and `cb` has the time; the mark
 * becomes the interface by which the frame leaves, but nothing is sent. */
#define PROGRAMS(name)                                                                  \
    SECTION("classifier") int name(struct __sk_buff *skb)                               \
    {                                                                                   \
        int interface = handle(skb, skb->ifindex, time_ns());                           \
                                                                                        \
        if (interface < 0)                                                              \
            return ACT_SHOT;                                                            \
        return interface ? redirect(interface, 0) : ACT_NEXT;                           \
    }                                                                                   \
                                                                                        \
    SECTION("classifier") int rackweave_trial(struct __sk_buff *skb)                    \
    {                                                                                   \
        int interface = handle(skb, skb->mark, (u64)skb->cb[1] << 32 | skb->cb[0]);     \
                                                                                        \
        if (interface < 0)                                                              \
            return ACT_SHOT;                                                            \
        skb->mark = interface;                                                          \
        return 0;                                                                       \
    }

#define LICENSE SECTION("license") char terms[] = "Dual MIT/GPL";

#endif
