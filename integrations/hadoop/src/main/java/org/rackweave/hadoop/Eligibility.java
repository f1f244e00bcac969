package org.rackweave.hadoop;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapreduce.CryptoUtils;
import org.apache.hadoop.mapreduce.MRJobConfig;

/**
 * Whether values of a job may be added up before they reach its reducer, so that the result is the same.
 *
 * <p>A combiner that adds up is the job's own statement that this is so. Without one, or with another one, adding up
 * would change what the reducer sees.
 */
final class Eligibility {
  /** Reducers of Hadoop that do nothing but add up {@link IntWritable} or {@link LongWritable} values. */
  private static final Set<String> SUMS =
      Set.of(
          "org.apache.hadoop.mapreduce.lib.reduce.IntSumReducer",
          "org.apache.hadoop.mapreduce.lib.reduce.LongSumReducer",
          "org.apache.hadoop.mapred.lib.LongSumReducer",
          "org.apache.hadoop.examples.WordCount$IntSumReducer");

  private Eligibility() {}

  /** The reason why the job's values may not be added up on the way, as a sentence, or null if they may. */
  static String refusal(JobConf job) {
    Class<?> key = job.getMapOutputKeyClass();
    if (KeyType.of(key) == null) {
      return "keys of the class " + key.getName() + " cannot be aggregated, only Text and BytesWritable.";
    }
    Class<?> value = job.getMapOutputValueClass();
    if (ValueType.of(value) == null) {
      return "values of the class " + value.getName() + " cannot be aggregated, only IntWritable and LongWritable.";
    }
    String combiner = combiner(job);
    if (combiner == null) {
      return "the job has no combiner, so it does not say that its values may be added up.";
    }
    Set<String> sums = new HashSet<>(SUMS);
    sums.addAll(Arrays.asList(job.getTrimmedStrings(Settings.SUM_COMBINERS)));
    if (!sums.contains(combiner)) {
      return "the combiner "
          + combiner
          + " is not known to add up; if it does, name it in "
          + Settings.SUM_COMBINERS
          + ".";
    }
    if (job.get(MRJobConfig.KEY_COMPARATOR) != null) {
      return "the job sorts with " + job.get(MRJobConfig.KEY_COMPARATOR) + ", and only the order of bytes is supported.";
    }
    if (CryptoUtils.isEncryptedSpillEnabled(job)) {
      return "the map outputs are encrypted, so the node's service cannot read them.";
    }
    return null;
  }

  /** The combiner of either API; the newer one takes precedence, as in Hadoop. */
  private static String combiner(JobConf job) {
    String combiner = job.get(MRJobConfig.COMBINE_CLASS_ATTR);
    return combiner != null ? combiner : job.get("mapred.combiner.class");
  }

  /** How keys are stored in map outputs: a length and then the bytes that are compared. */
  enum KeyType {
    TEXT(Text.class),
    BYTES(BytesWritable.class);

    private final Class<?> type;

    KeyType(Class<?> type) {
      this.type = type;
    }

    static KeyType of(Class<?> type) {
      return Arrays.stream(values()).filter(t -> t.type == type).findFirst().orElse(null);
    }
  }

  /** How values are stored in map outputs. */
  enum ValueType {
    INT(IntWritable.class, Integer.BYTES),
    LONG(LongWritable.class, Long.BYTES);

    private final Class<?> type;
    final int bytes;

    ValueType(Class<?> type, int bytes) {
      this.type = type;
      this.bytes = bytes;
    }

    static ValueType of(Class<?> type) {
      return Arrays.stream(values()).filter(t -> t.type == type).findFirst().orElse(null);
    }
  }
}
