package org.rackweave.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.DoubleWritable;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.MRConfig;
import org.apache.hadoop.mapreduce.lib.reduce.IntSumReducer;
import org.apache.hadoop.mapreduce.lib.reduce.LongSumReducer;
import org.junit.Test;

public class EligibilityTest {
  @Test
  public void sumsOfIntegersAreAggregated() throws IOException {
    assertNull(refusal(job(IntWritable.class, true)));
    Job longs = job(LongWritable.class, false);
    longs.setCombinerClass(LongSumReducer.class);
    assertNull(refusal(longs));
  }

  @Test
  public void everythingElseIsRefusedWithAReason() throws IOException {
    assertEquals(
        "the job has no combiner, so it does not say that its values may be added up.",
        refusal(job(IntWritable.class, false)));
    assertTrue(refusal(job(DoubleWritable.class, true)).startsWith("values of the class"));
    Job keys = job(IntWritable.class, true);
    keys.setOutputKeyClass(IntWritable.class);
    assertTrue(refusal(keys).startsWith("keys of the class"));
    Job sorted = job(IntWritable.class, true);
    sorted.setSortComparatorClass(Text.Comparator.class);
    assertTrue(refusal(sorted).startsWith("the job sorts with"));
  }

  @Test
  public void aCombinerOfTheUserIsAggregatedOnlyIfTheUserSaysThatItAddsUp() throws IOException {
    Job job = job(IntWritable.class, false);
    job.setCombinerClass(Own.class);
    assertTrue(refusal(job).contains("is not known to add up"));
    job.getConfiguration().set(Settings.SUM_COMBINERS, "other.Class, " + Own.class.getName());
    assertNull(refusal(job));
  }

  @Test
  public void aJobThatMustBeAggregatedAndCannotIsNotSubmitted() throws IOException {
    Job job = job(IntWritable.class, false);
    Rackweave.use(job);
    assertEquals(RackweaveShuffle.class.getName(), job.getConfiguration().get(MRConfig.SHUFFLE_CONSUMER_PLUGIN));
    job.getConfiguration().setBoolean(Settings.FALLBACK, false);
    assertThrows(IllegalArgumentException.class, () -> Rackweave.use(job));
  }

  private static String refusal(Job job) {
    return Eligibility.refusal(new JobConf(job.getConfiguration()));
  }

  private static Job job(Class<?> value, boolean combiner) throws IOException {
    Job job = Job.getInstance(new Configuration(false), "test");
    job.setOutputKeyClass(Text.class);
    job.setOutputValueClass(value);
    if (combiner) {
      job.setCombinerClass(IntSumReducer.class);
    }
    return job;
  }

  /** A reducer of a user's own. */
  public static final class Own extends IntSumReducer<Text> {}
}
