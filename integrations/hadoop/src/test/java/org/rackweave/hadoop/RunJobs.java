package org.rackweave.hadoop;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapred.lib.TokenCountMapper;
import org.apache.hadoop.mapreduce.Counters;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.JobCounter;
import org.apache.hadoop.mapreduce.TaskCounter;
import org.apache.hadoop.mapreduce.TaskReport;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.map.TokenCounterMapper;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.hadoop.mapreduce.lib.reduce.IntSumReducer;
import org.apache.hadoop.mapreduce.lib.reduce.LongSumReducer;

/**
 * Runs jobs, one after the other, in Hadoop's local runner or on one mini cluster, and prints what each took. Unless {@code
 * test.job} says otherwise they are WordCount, with mapper, combiner and reducer from Hadoop itself.
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
    // Stopping the services of a mini cluster in good order takes 17 s for each node, and nothing of them is kept.
    System.out.flush();
    Runtime.getRuntime().halt(succeeded ? 0 : 1);
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
      MiniCluster cluster = new MiniCluster(nodes, directory, settings, RackweaveShuffleHandler.class);
      System.out.printf("cluster of %d nodes started in %.1f s%n", nodes, seconds(start));
      for (List<String> job : jobs) {
        succeeded &= run(cluster.configuration(), job);
      }
      cluster.awaitMasters();
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
    describe(job);
    FileInputFormat.addInputPath(job, new org.apache.hadoop.fs.Path(new File(spec.get(1)).toURI()));
    var output = new org.apache.hadoop.fs.Path(new File(spec.get(2)).toURI());
    FileSystem.getLocal(conf).delete(output, true);
    FileOutputFormat.setOutputPath(job, output);
    if (conf.getBoolean("test.rackweave", false)) {
      Rackweave.use(job);
    }
    setFault(conf);
    long start = System.nanoTime();
    boolean success = job.waitForCompletion(false);
    double wall = seconds(start);
    System.out.printf("%s: %s wall %.2f s", name, success ? "succeeded" : "FAILED", wall);
    Counters counters = job.getCounters();
    if (counters != null) {
      for (TaskCounter counter : COUNTERS) {
        System.out.printf(" %s=%d", counter, counters.findCounter(counter).getValue());
      }
      for (JobCounter counter : new JobCounter[] {JobCounter.NUM_FAILED_MAPS, JobCounter.NUM_FAILED_REDUCES}) {
        System.out.printf(" %s=%d", counter, counters.findCounter(counter).getValue());
      }
      counters.getGroup("Rackweave").forEach(c -> System.out.printf(" rackweave.%s=%d", c.getName(), c.getValue()));
    }
    System.out.println();
    printTasks(job);
    return success != conf.getBoolean("test.fails", false);
  }

  /** Tells a wrapper of the program what to do to it during this job. */
  private static void setFault(Configuration conf) throws IOException {
    String file = conf.get("test.fault.file");
    if (file != null) {
      Files.write(Path.of(file), conf.get("test.fault", "none").getBytes(StandardCharsets.US_ASCII));
    }
  }

  /** Sets mapper, combiner and reducer; the setting {@code test.job} says which. */
  private static void describe(Job job) throws Exception {
    Configuration conf = job.getConfiguration();
    boolean combiner = conf.getBoolean("test.combiner", true);
    switch (conf.get("test.job", "words")) {
      case "words":
        job.setMapperClass(TokenCounterMapper.class);
        job.setReducerClass(IntSumReducer.class);
        if (combiner) {
          job.setCombinerClass(IntSumReducer.class);
        }
        job.setOutputKeyClass(Text.class);
        job.setOutputValueClass(IntWritable.class);
        break;
      case "bytes":
        job.setMapperClass(ShingleMapper.class);
        job.setReducerClass(LongSumReducer.class);
        job.setCombinerClass(LongSumReducer.class);
        job.setOutputKeyClass(BytesWritable.class);
        job.setOutputValueClass(LongWritable.class);
        break;
      case "old":
        // The older interface, with classes of its own for everything. A job keeps these settings by its configuration.
        conf.setBoolean("mapred.mapper.new-api", false);
        conf.setBoolean("mapred.reducer.new-api", false);
        conf.setClass("mapred.mapper.class", TokenCountMapper.class, org.apache.hadoop.mapred.Mapper.class);
        conf.setClass(
            "mapred.combiner.class",
            org.apache.hadoop.mapred.lib.LongSumReducer.class,
            org.apache.hadoop.mapred.Reducer.class);
        conf.setClass(
            "mapred.reducer.class",
            org.apache.hadoop.mapred.lib.LongSumReducer.class,
            org.apache.hadoop.mapred.Reducer.class);
        job.setOutputKeyClass(Text.class);
        job.setOutputValueClass(LongWritable.class);
        break;
      default:
        throw new IllegalArgumentException("test.job is not words, bytes or old");
    }
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
  private static void printTasks(Job job) throws Exception {
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
        for (String diagnostic : report.getDiagnostics()) {
          System.out.println("    " + diagnostic.replace("\n", "\n    "));
        }
      }
    }
  }

  private static double seconds(long start) {
    return (System.nanoTime() - start) / 1e9;
  }
}
