package org.rackweave.hadoop;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.MapTask;
import org.apache.hadoop.mapreduce.MRJobConfig;

/**
 * Hadoop's own collector of map output, which writes down when an attempt has begun and when its output was complete,
 * the moment at which a collector that uploads would have uploaded everything.
 *
 * <p>If {@link #KILL} is set, the first attempt of task 0 ends right after this moment, before Hadoop is informed.
 */
public final class TracingCollector<K, V> extends MapTask.MapOutputBuffer<K, V> {
  /** The file to which lines {@code begin|complete ATTEMPT MILLISECONDS} are appended. */
  static final String FILE = "test.collector.trace";

  static final String KILL = "test.collector.kill";

  private Path trace;
  private String attempt;
  private boolean kill;

  @Override
  public void init(Context context) throws IOException, ClassNotFoundException {
    super.init(context);
    JobConf conf = context.getJobConf();
    trace = Path.of(conf.get(FILE));
    attempt = conf.get(MRJobConfig.TASK_ATTEMPT_ID);
    kill = conf.getBoolean(KILL, false) && attempt.endsWith("_m_000000_0");
    write("begin");
  }

  @Override
  public void flush() throws IOException, ClassNotFoundException, InterruptedException {
    super.flush();
    write("complete");
    if (kill) {
      Runtime.getRuntime().halt(1);
    }
  }

  private void write(String what) throws IOException {
    String line = what + " " + attempt + " " + System.currentTimeMillis() + "\n";
    Files.write(
        trace, line.getBytes(StandardCharsets.US_ASCII), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
  }
}
