package org.rackweave.hadoop;

import java.io.IOException;
import java.util.Arrays;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.Mapper;

/**
 * Emits keys that are hard to carry: empty ones, ones with tabs, line ends and backslashes, long ones, and any bytes;
 * with values that are negative, or overflow when they are added up.
 */
public final class ShingleMapper extends Mapper<Object, Text, BytesWritable, LongWritable> {
  private static final byte[] SPECIAL = {'\t', '\n', '\r', '\\', 0, (byte) 0xff};

  private final BytesWritable key = new BytesWritable();
  private final LongWritable value = new LongWritable();

  @Override
  protected void map(Object offset, Text line, Context context) throws IOException, InterruptedException {
    byte[] bytes = Arrays.copyOf(line.getBytes(), line.getLength());
    long hash = Arrays.hashCode(bytes);
    write(context, new byte[0], hash << 40);
    write(context, bytes, -hash);
    for (int i = 0; i + 3 <= bytes.length; i += 2) {
      byte special = SPECIAL[i % SPECIAL.length];
      write(context, new byte[] {bytes[i], special, bytes[i + 1], special}, hash * i);
    }
  }

  private void write(Context context, byte[] bytes, long number) throws IOException, InterruptedException {
    key.set(bytes, 0, bytes.length);
    value.set(number);
    context.write(key, value);
  }
}
