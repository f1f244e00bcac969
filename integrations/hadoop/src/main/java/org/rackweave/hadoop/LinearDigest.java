package org.rackweave.hadoop;

/**
 * The sum of hash(key) * value over pairs, modulo 2^64.
 *
 * <p>Adding up values of equal keys does not change it, so the digests of what the hosts uploaded must add up to that
 * of the totals. A pair that is lost, added twice, or added to another key changes it, except with a probability of
 * about 2^-60. It protects against errors, not against an attacker.
 */
final class LinearDigest {
  private long value;

  /** FNV-1a over the key, then the finalizer of SplitMix64, made odd so that no value is multiplied by an even number. */
  void add(byte[] key, int offset, int length, long amount) {
    long hash = 0xcbf29ce484222325L;
    for (int i = offset; i < offset + length; i++) {
      hash = (hash ^ (key[i] & 0xff)) * 0x100000001b3L;
    }
    hash = (hash ^ (hash >>> 30)) * 0xbf58476d1ce4e5b9L;
    hash = (hash ^ (hash >>> 27)) * 0x94d049bb133111ebL;
    hash ^= hash >>> 31;
    value += (hash | 1) * amount;
  }

  /** Adds what another digest covers. */
  void add(long other) {
    value += other;
  }

  long value() {
    return value;
  }
}
