package org.rackweave.hadoop;

import java.io.File;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.Counters;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.TaskCounter;
import org.apache.hadoop.mapreduce.TaskReport;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.map.TokenCounterMapper;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.hadoop.mapreduce.lib.reduce.IntSumReducer;

/**
 * Runs WordCount jobs, with mapper and reducer from Hadoop itself, one after the other in one process or on one mini
 * cluster, and prints what each took.
 *
 * <p>Usage: {@code RunJobs local|yarn:NODES DIRECTORY [-- NAME INPUT OUTPUT [key=value ...]]...}
 */
public final class RunJobs {
  private RunJobs() {}

  public static void main(String[] args) {
    boolean succeeded = false;
    try {
      succeeded = runAll(args);
    } catch (Throwable error) {
      error.printStackTrace();
    }
    // The mini cluster leaves threads behind, so that returning would not end the process.
    System.exit(succeeded ? 0 : 1);
  }

  private static boolean runAll(String[] args) throws Exception {
    List<List<String>> jobs = new ArrayList<>();
    List<String> head = new ArrayList<>();
    List<String> current = head;
    for (String arg : args) {
      if (arg.equals("--")) {
        current = new ArrayList<>();
        jobs.add(current);
      } else {
        current.add(arg);
      }
    }
    File directory = new File(head.get(1)).getAbsoluteFile();
    Configuration settings = new Configuration();
    settings.setInt("mapreduce.client.completion.pollinterval", 100);
    set(settings, head.subList(2, head.size()));
    settings.set("hadoop.tmp.dir", new File(directory, "tmp").getPath());
    boolean succeeded = true;
    if (head.get(0).startsWith("yarn:")) {
      int nodes = Integer.parseInt(head.get(0).substring("yarn:".length()));
      long start = System.nanoTime();
      try (MiniCluster cluster =
          new MiniCluster(
              nodes,
              directory,
              settings,
              RackweaveShuffleHandler.class)) {
        System.out.printf("cluster of %d nodes started in %.1f s%n", nodes, seconds(start));
        for (List<String> job : jobs) {
          succeeded &= run(cluster.configuration(), job);
        }
      }
    } else {
      for (List<String> job : jobs) {
        succeeded &= run(new Configuration(settings), job);
      }
    }
    return succeeded;
  }

  private static void set(Configuration conf, List<String> assignments) {
    for (String assignment : assignments) {
      int equals = assignment.indexOf('=');
      conf.set(assignment.substring(0, equals), assignment.substring(equals + 1));
    }
  }

  private static boolean run(Configuration conf, List<String> spec) throws Exception {
    String name = spec.get(0);
    set(conf, spec.subList(3, spec.size()));
    Job job = Job.getInstance(conf, name);
    job.setJarByClass(RunJobs.class);
    job.setMapperClass(TokenCounterMapper.class);
    job.setReducerClass(IntSumReducer.class);
    if (conf.getBoolean("test.combiner", true)) {
      job.setCombinerClass(IntSumReducer.class);
    }
    job.setOutputKeyClass(Text.class);
    job.setOutputValueClass(IntWritable.class);
    FileInputFormat.addInputPath(job, new Path(new File(spec.get(1)).toURI()));
    Path output = new Path(new File(spec.get(2)).toURI());
    FileSystem.getLocal(conf).delete(output, true);
    FileOutputFormat.setOutputPath(job, output);
    if (conf.getBoolean("test.rackweave", false)) {
      Rackweave.use(job);
    }
    long start = System.nanoTime();
    boolean success = job.waitForCompletion(false);
    double wall = seconds(start);
    System.out.printf("%s: %s wall %.2f s", name, success ? "succeeded" : "FAILED", wall);
    Counters counters = job.getCounters();
    if (counters != null) {
      for (TaskCounter counter : COUNTERS) {
        System.out.printf(" %s=%d", counter, counters.findCounter(counter).getValue());
      }
      counters.getGroup("Rackweave").forEach(c -> System.out.printf(" rackweave.%s=%d", c.getName(), c.getValue()));
    }
    System.out.println();
    printTasks(job, start);
    return success;
  }

  private static final TaskCounter[] COUNTERS = {
    TaskCounter.MAP_OUTPUT_RECORDS,
    TaskCounter.MAP_OUTPUT_BYTES,
    TaskCounter.MAP_OUTPUT_MATERIALIZED_BYTES,
    TaskCounter.COMBINE_OUTPUT_RECORDS,
    TaskCounter.SPILLED_RECORDS,
    TaskCounter.REDUCE_SHUFFLE_BYTES,
    TaskCounter.REDUCE_INPUT_RECORDS,
    TaskCounter.REDUCE_INPUT_GROUPS,
    TaskCounter.SHUFFLED_MAPS,
    TaskCounter.FAILED_SHUFFLE,
    TaskCounter.CPU_MILLISECONDS,
    TaskCounter.GC_TIME_MILLIS,
  };

  /** Task times exist on a cluster only: the local runner keeps no reports. */
  private static void printTasks(Job job, long start) throws Exception {
    for (TaskType type : new TaskType[] {TaskType.MAP, TaskType.REDUCE}) {
      for (TaskReport report : job.getTaskReports(type)) {
        long cpu = report.getTaskCounters().findCounter(TaskCounter.CPU_MILLISECONDS).getValue();
        System.out.printf(
            "  %s %s %d ms, from %d ms after submission, cpu %d ms%n",
            report.getTaskId(),
            report.getCurrentStatus(),
            report.getFinishTime() - report.getStartTime(),
            report.getStartTime() - job.getStatus().getStartTime(),
            cpu);
        if (type == TaskType.REDUCE) {
          printReducePhases(job);
        }
      }
    }
  }

  private static void printReducePhases(Job job) throws Exception {
    for (var event : job.getTaskCompletionEvents(0, 1000)) {
      System.out.printf(
          "    attempt %s %s%n", event.getTaskAttemptId(), event.getStatus());
    }
  }

  private static double seconds(long start) {
    return (System.nanoTime() - start) / 1e9;
  }
}
