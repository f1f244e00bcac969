package org.rackweave.hadoop;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.ShuffleConsumerPlugin;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.MRConfig;
import org.apache.hadoop.mapreduce.MRJobConfig;

/** What a program that submits a job calls. A job can also be configured by settings only, without this class. */
public final class Rackweave {
  private Rackweave() {}

  /**
   * Lets the reducers of a job take their input through Rackweave. Must be called after mapper, combiner, reducer and
   * the types of the map output are set, and before the job is submitted.
   *
   * @throws IllegalArgumentException with a sentence if the job's values may not be added up and {@link
   *     Settings#FALLBACK} is false; otherwise such a job uses the shuffle of Hadoop
   */
  public static void use(Job job) {
    Configuration conf = job.getConfiguration();
    String refusal = Eligibility.refusal(new JobConf(conf));
    if (refusal != null && !Settings.fallback(conf)) {
      throw new IllegalArgumentException("the job " + job.getJobName() + " cannot be aggregated: " + refusal);
    }
    conf.setClass(MRConfig.SHUFFLE_CONSUMER_PLUGIN, RackweaveShuffle.class, ShuffleConsumerPlugin.class);
    // A reducer has nothing to do before the last map task has ended.
    if (conf.get(MRJobConfig.COMPLETED_MAPS_FOR_REDUCE_SLOWSTART) == null) {
      conf.setFloat(MRJobConfig.COMPLETED_MAPS_FOR_REDUCE_SLOWSTART, 1);
    }
  }
}
