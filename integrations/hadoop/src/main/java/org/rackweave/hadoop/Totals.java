package org.rackweave.hadoop;

import java.io.BufferedInputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.util.Arrays;
import org.apache.hadoop.io.DataInputBuffer;
import org.apache.hadoop.io.DataOutputBuffer;
import org.apache.hadoop.io.WritableUtils;
import org.apache.hadoop.mapred.RawKeyValueIterator;
import org.apache.hadoop.util.Progress;

/** What the master wrote, as the sorted input of a reducer: one pair for each key. */
final class Totals implements RawKeyValueIterator {
  private static final int BUFFER_BYTES = 1 << 16;

  private final File file;
  private final PairText.Reader pairs;
  private final Eligibility.KeyType keyType;
  private final Eligibility.ValueType valueType;
  private final long keys;
  private final Progress progress = new Progress();
  private final DataOutputBuffer bytes = new DataOutputBuffer();
  private final DataInputBuffer key = new DataInputBuffer();
  private final DataInputBuffer value = new DataInputBuffer();
  private long done;

  private Totals(
      File file, PairText.Reader pairs, long keys, Eligibility.KeyType keyType, Eligibility.ValueType valueType) {
    this.file = file;
    this.pairs = pairs;
    this.keys = keys;
    this.keyType = keyType;
    this.valueType = valueType;
  }

  /**
   * Reads the file once, and returns it as an iterator if its keys ascend and it is what the hosts uploaded.
   *
   * @param digest the sum of the digests of the uploads
   * @throws IOException with a sentence if it is not
   */
  static Totals open(File file, long digest, Eligibility.KeyType keyType, Eligibility.ValueType valueType)
      throws IOException {
    LinearDigest found = new LinearDigest();
    long keys = 0;
    byte[] last = new byte[0];
    int lastLength = 0;
    try (PairText.Reader reader = reader(file)) {
      while (reader.next()) {
        if (keys > 0 && Arrays.compareUnsigned(last, 0, lastLength, reader.key(), 0, reader.keyLength()) >= 0) {
          throw new IOException("the totals are not sorted at line " + (keys + 1) + ".");
        }
        lastLength = reader.keyLength();
        if (last.length < lastLength) {
          last = new byte[2 * lastLength];
        }
        System.arraycopy(reader.key(), 0, last, 0, lastLength);
        found.add(reader.key(), 0, reader.keyLength(), reader.value());
        keys++;
      }
    }
    if (found.value() != digest) {
      throw new IOException("the totals are not the sum of what was uploaded: their digests differ.");
    }
    return new Totals(file, reader(file), keys, keyType, valueType);
  }

  private static PairText.Reader reader(File file) throws IOException {
    return new PairText.Reader(new BufferedInputStream(new FileInputStream(file), BUFFER_BYTES));
  }

  /** How many keys there are. */
  long keys() {
    return keys;
  }

  @Override
  public boolean next() throws IOException {
    if (!pairs.next()) {
      return false;
    }
    bytes.reset();
    if (keyType == Eligibility.KeyType.BYTES) {
      bytes.writeInt(pairs.keyLength());
    } else {
      WritableUtils.writeVInt(bytes, pairs.keyLength());
    }
    bytes.write(pairs.key(), 0, pairs.keyLength());
    int keyBytes = bytes.getLength();
    if (valueType == Eligibility.ValueType.INT) {
      // Sums modulo 2^64 are, modulo 2^32, what adding up 32 bits gives, overflow included.
      bytes.writeInt((int) pairs.value());
    } else {
      bytes.writeLong(pairs.value());
    }
    key.reset(bytes.getData(), 0, keyBytes);
    value.reset(bytes.getData(), keyBytes, bytes.getLength() - keyBytes);
    done++;
    progress.set(keys == 0 ? 1 : (float) done / keys);
    return true;
  }

  @Override
  public DataInputBuffer getKey() {
    return key;
  }

  @Override
  public DataInputBuffer getValue() {
    return value;
  }

  @Override
  public Progress getProgress() {
    return progress;
  }

  @Override
  public void close() throws IOException {
    pairs.close();
    if (!file.delete()) {
      file.deleteOnExit();
    }
  }
}
