package org.rackweave.hadoop;

import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.RawKeyValueIterator;
import org.apache.hadoop.mapred.Reporter;
import org.apache.hadoop.mapred.ShuffleConsumerPlugin;
import org.apache.hadoop.mapred.TaskAttemptID;
import org.apache.hadoop.mapred.TaskStatus;
import org.apache.hadoop.mapreduce.task.reduce.Shuffle;
import org.apache.hadoop.yarn.api.ApplicationConstants;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The input of a reducer, added up on its way: one pair for each key instead of one for each key and map task.
 *
 * <p>It waits until all map tasks have succeeded, and then has the services of the nodes upload the sums of exactly
 * those attempts that the application master counts. Nothing is uploaded before, so attempts that fail, speculative
 * attempts and maps that run again add nothing. All workers of an aggregation are needed at the same time, and there
 * is one for each node rather than for each map task, so that map tasks may run in any number of waves.
 */
public final class RackweaveShuffle<K, V> implements ShuffleConsumerPlugin<K, V> {
  private static final Logger LOG = LoggerFactory.getLogger(RackweaveShuffle.class);
  private static final String COUNTERS = "Rackweave";
  private static final int POLL_MS = 200;
  /** How often map tasks may have to run again for one reduce task. */
  private static final int MAX_LOST = 4;

  private static final int MAX_REPORTS = 20;
  private static final int REPORT_MS = 1_000;
  private static final int MAX_NUMBER = 65_535;

  private Context<K, V> context;
  private JobConf conf;
  private String refusal;
  private ShuffleConsumerPlugin<K, V> plain;
  private volatile Aggregation running;
  private volatile Totals totals;

  @Override
  public void init(Context<K, V> context) {
    this.context = context;
    this.conf = context.getJobConf();
    this.refusal = Eligibility.refusal(conf);
  }

  @Override
  public RawKeyValueIterator run() throws IOException, InterruptedException {
    if (refusal != null) {
      return withoutAggregation("this job is not aggregated: " + refusal, null);
    }
    if (conf.getNumMapTasks() == 0) {
      return withoutAggregation("this job has no map tasks.", null);
    }
    Thread end = new Thread(this::endPrograms, "rackweave end");
    Runtime.getRuntime().addShutdownHook(end);
    try {
      int lost = 0;
      for (int attempt = 1; ; attempt++) {
        try {
          return aggregate(attempt);
        } catch (LostOutputException error) {
          LOG.warn("A map task has to run again: {}", error.getMessage());
          if (++lost > MAX_LOST || !runAgain(error)) {
            return withoutAggregation("aggregation failed: " + error.getMessage(), error);
          }
          attempt--;
        } catch (IOException error) {
          LOG.warn("Aggregation failed at try {}: {}", attempt, error.getMessage());
          if (attempt >= Settings.tries(conf)) {
            return withoutAggregation("aggregation failed: " + error.getMessage(), error);
          }
        }
      }
    } finally {
      endPrograms();
      removeHook(end);
    }
  }

  /**
   * Reports lost outputs until the application master runs their tasks again, and returns whether it does. It acts on
   * three reports ({@code MRJobConfig.MAX_FETCH_FAILURES_NOTIFICATIONS}), which Hadoop's own shuffle sends too.
   */
  private boolean runAgain(LostOutputException lost) throws IOException, InterruptedException {
    CommittedMaps maps = new CommittedMaps(context.getUmbilical(), (TaskAttemptID) context.getReduceId());
    for (int report = 0; report < MAX_REPORTS; report++) {
      maps.update();
      if (lost.attempts().stream().noneMatch(maps::counts)) {
        return true;
      }
      for (String attempt : lost.attempts()) {
        if (maps.counts(attempt)) {
          context.getStatus().addFetchFailedMap(TaskAttemptID.forName(attempt));
        }
      }
      context.getReduceTask().statusUpdate(context.getUmbilical());
      Thread.sleep(REPORT_MS);
    }
    return false;
  }

  private void endPrograms() {
    Aggregation current = running;
    if (current != null) {
      current.close();
    }
  }

  private static void removeHook(Thread hook) {
    try {
      Runtime.getRuntime().removeShutdownHook(hook);
    } catch (IllegalStateException alreadyEnding) {
      LOG.debug("The process ends", alreadyEnding);
    }
  }

  private RawKeyValueIterator withoutAggregation(String why, IOException cause) throws IOException, InterruptedException {
    if (!Settings.fallback(conf)) {
      throw new IOException(why + " (" + Settings.FALLBACK + " is false)", cause);
    }
    LOG.warn("The shuffle of Hadoop is used instead, because {}", why);
    count("FALLBACKS", 1);
    plain = new Shuffle<>();
    plain.init(context);
    return plain.run();
  }

  private RawKeyValueIterator aggregate(int attempt) throws IOException, InterruptedException {
    List<Source> sources = context.getLocalMapFiles() == null ? sourcesOnNodes() : localSources();
    if (sources.isEmpty()) {
      throw new IOException("no map task has an output.");
    }
    if (sources.size() > Settings.MAX_WORKERS) {
      throw new IOException(
          "the map outputs are on " + sources.size() + " nodes, and at most " + Settings.MAX_WORKERS + " can take part.");
    }
    Upload template =
        new Upload(
            "",
            0,
            0,
            context.getReduceId().getTaskID().getId(),
            Eligibility.KeyType.of(conf.getMapOutputKeyClass()),
            Eligibility.ValueType.of(conf.getMapOutputValueClass()),
            context.getCodec() == null ? "" : context.getCodec().getClass().getName());
    File out = outputFile(attempt);
    Reporter reporter = context.getReporter();
    try (Aggregation aggregation = new Aggregation(conf, sources, out)) {
      running = aggregation;
      Upload.Result result = aggregation.run(number(attempt), template, listenHost(), reporter::progress);
      totals = Totals.open(out, result.digest, template.keyType, template.valueType);
      count("WORKERS", sources.size());
      count("PAIRS_OF_WORKERS", result.pairs);
      count("PAIRS_AT_MASTER", aggregation.reported("pairs_reached"));
      count("KEYS", totals.keys());
      count("SLOTS", aggregation.reported("slots"));
      context.getReduceShuffleBytes().increment(aggregation.reported("master_bytes"));
      LOG.info(
          "{} pairs of {} workers arrived as {} keys.", result.pairs, sources.size(), totals.keys());
    } catch (IOException error) {
      if (!out.delete()) {
        LOG.debug("{} does not exist or cannot be removed", out);
      }
      throw error;
    }
    context.getShuffledMapsCounter().increment(conf.getNumMapTasks());
    context.getCopyPhase().complete();
    context.getStatus().setPhase(TaskStatus.Phase.SORT);
    context.getReduceTask().statusUpdate(context.getUmbilical());
    return totals;
  }

  private List<Source> localSources() throws IOException {
    return LocalSource.divide(conf, context.getLocalMapFiles(), Settings.localWorkers(conf));
  }

  private List<Source> sourcesOnNodes() throws IOException, InterruptedException {
    TaskAttemptID reducer = (TaskAttemptID) context.getReduceId();
    CommittedMaps maps = new CommittedMaps(context.getUmbilical(), reducer);
    int all = conf.getNumMapTasks();
    for (int done = maps.update(); done < all; done = maps.update()) {
      context.getCopyPhase().set((float) done / all);
      context.getReporter().progress();
      Thread.sleep(POLL_MS);
    }
    Map<String, List<String>> attempts = maps.attemptsOfHosts();
    byte[] secret = context.getReduceTask().getShuffleSecret().getEncoded();
    return NodeSource.find(attempts, Settings.servicePorts(conf), reducer.getJobID().toString(), secret);
  }

  /** The number of a try: spread over all numbers, because reducers of several jobs may use one switch. */
  private int number(int attempt) {
    int hash = (context.getReduceId() + "/" + attempt).hashCode() * 0x9e3779b1;
    return 1 + (hash >>> 16) % MAX_NUMBER;
  }

  private File outputFile(int attempt) throws IOException {
    String name = "rackweave/" + context.getReduceId() + "." + attempt + ".pairs";
    Path path = context.getLocalDirAllocator().getLocalPathForWrite(name, conf);
    return new File(path.toUri().getPath());
  }

  private String listenHost() throws IOException {
    String configured = conf.getTrimmed(Settings.LISTEN_HOST, "");
    if (!configured.isEmpty()) {
      return configured;
    }
    if (context.getLocalMapFiles() != null) {
      return InetAddress.getLoopbackAddress().getHostAddress();
    }
    String node = System.getenv(ApplicationConstants.Environment.NM_HOST.name());
    return node != null ? node : InetAddress.getLocalHost().getHostAddress();
  }

  private void count(String name, long amount) {
    context.getReporter().incrCounter(COUNTERS, name, amount);
  }

  @Override
  public void close() {
    endPrograms();
    if (totals != null) {
      try {
        totals.close();
      } catch (IOException error) {
        LOG.warn("The totals could not be removed", error);
      }
    }
    if (plain != null) {
      plain.close();
    }
  }
}
