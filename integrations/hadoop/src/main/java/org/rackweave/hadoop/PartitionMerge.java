package org.rackweave.hadoop;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.PriorityQueue;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.DataInputBuffer;
import org.apache.hadoop.io.SecureIOUtils;
import org.apache.hadoop.io.WritableUtils;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.mapred.IFile;
import org.apache.hadoop.mapred.IndexRecord;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.SpillRecord;

/**
 * One partition of several map outputs, merged: the values of equal keys are added up modulo 2^64.
 *
 * <p>Memory is bounded by a buffer for each output that is open. Of more than {@link #MAX_OPEN} outputs that many are
 * merged at a time, so that a key may then appear more than once, which the worker's own addition makes good.
 */
final class PartitionMerge implements Closeable {
  private static final int MAX_OPEN = 256;

  private final JobConf conf;
  private final String owner;
  private final CompressionCodec codec;
  private final int partition;
  private final Eligibility.KeyType keyType;
  private final Eligibility.ValueType valueType;
  private final List<MapOutput> remaining;
  private final PriorityQueue<Segment> open = new PriorityQueue<>();
  private byte[] key = new byte[64];
  private int keyLength;
  private long value;

  /** {@code owner} is the user to whom the files must belong if Hadoop's security is on, or null. */
  PartitionMerge(
      JobConf conf,
      String owner,
      CompressionCodec codec,
      int partition,
      Eligibility.KeyType keyType,
      Eligibility.ValueType valueType,
      List<MapOutput> outputs) {
    this.conf = conf;
    this.owner = owner;
    this.codec = codec;
    this.partition = partition;
    this.keyType = keyType;
    this.valueType = valueType;
    this.remaining = new ArrayList<>(outputs);
  }

  /** The bytes of the current key; only the first {@link #keyLength} belong to it. */
  byte[] key() {
    return key;
  }

  int keyLength() {
    return keyLength;
  }

  long value() {
    return value;
  }

  boolean next() throws IOException {
    if (open.isEmpty()) {
      openMore();
    }
    Segment least = open.poll();
    if (least == null) {
      return false;
    }
    keyLength = least.length;
    if (key.length < keyLength) {
      key = new byte[2 * keyLength];
    }
    System.arraycopy(least.key.getData(), least.start, key, 0, keyLength);
    value = least.value;
    advance(least);
    while (!open.isEmpty() && open.peek().hasKey(key, keyLength)) {
      Segment equal = open.poll();
      value += equal.value;
      advance(equal);
    }
    return true;
  }

  private void advance(Segment segment) throws IOException {
    if (segment.next()) {
      open.add(segment);
    } else {
      segment.close();
    }
  }

  private void openMore() throws IOException {
    while (!remaining.isEmpty() && open.size() < MAX_OPEN) {
      Segment segment = open(remaining.remove(remaining.size() - 1));
      if (segment != null) {
        advance(segment);
      }
    }
  }

  private Segment open(MapOutput output) throws IOException {
    SpillRecord index = new SpillRecord(new Path(output.index.toURI()), conf, owner);
    if (partition < 0 || partition >= index.size()) {
      throw new IOException(output.index + " has " + index.size() + " partitions and none with number " + partition);
    }
    IndexRecord record = index.getIndex(partition);
    if (record.partLength == 0) {
      return null;
    }
    FSDataInputStream in = SecureIOUtils.openFSDataInputStream(output.data, owner, null);
    try {
      in.seek(record.startOffset);
      return new Segment(new IFile.Reader<>(conf, in, record.partLength, codec, null));
    } catch (IOException | RuntimeException error) {
      in.close();
      throw error;
    }
  }

  @Override
  public void close() throws IOException {
    for (Segment segment : open) {
      segment.close();
    }
  }

  /** One partition of one output, at its current pair. */
  private final class Segment implements Comparable<Segment> {
    private final IFile.Reader<?, ?> reader;
    private final DataInputBuffer key = new DataInputBuffer();
    private final DataInputBuffer rawValue = new DataInputBuffer();
    private int start;
    private int length;
    private long value;

    Segment(IFile.Reader<?, ?> reader) {
      this.reader = reader;
    }

    boolean next() throws IOException {
      if (!reader.nextRawKey(key)) {
        return false;
      }
      reader.nextRawValue(rawValue);
      byte[] raw = key.getData();
      int stored = key.getLength();
      // Text stores a length of variable size before its bytes, BytesWritable one of four bytes.
      int prefix = keyType == Eligibility.KeyType.BYTES ? Integer.BYTES : prefixOfText(raw, stored);
      if (prefix > stored || rawValue.getLength() != valueType.bytes) {
        throw new IOException("a pair of a map output is not of the types that the job states");
      }
      start = prefix;
      length = stored - prefix;
      ByteBuffer bytes = ByteBuffer.wrap(rawValue.getData(), 0, rawValue.getLength());
      value = valueType == Eligibility.ValueType.INT ? bytes.getInt() : bytes.getLong();
      return true;
    }

    private int prefixOfText(byte[] raw, int stored) {
      return stored == 0 ? Integer.MAX_VALUE : WritableUtils.decodeVIntSize(raw[0]);
    }

    boolean hasKey(byte[] other, int otherLength) {
      return Arrays.equals(key.getData(), start, start + length, other, 0, otherLength);
    }

    @Override
    public int compareTo(Segment other) {
      return Arrays.compareUnsigned(
          key.getData(),
          start,
          start + length,
          other.key.getData(),
          other.start,
          other.start + other.length);
    }

    void close() throws IOException {
      reader.close();
    }
  }
}
