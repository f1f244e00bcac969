package org.rackweave.hadoop;

import java.io.Closeable;
import java.io.File;
import java.io.IOException;
import java.net.DatagramSocket;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletionService;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorCompletionService;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.mapred.JobConf;

/** One try to collect the sums of one reducer: a master in a process of its own, and a worker for each source. */
final class Aggregation implements Closeable {
  private static final int POLL_MS = 100;

  private final JobConf conf;
  private final List<Source> sources;
  private final File out;
  private final ExecutorService threads = Executors.newCachedThreadPool(Aggregation::thread);
  private Program master;

  Aggregation(JobConf conf, List<Source> sources, File out) {
    this.conf = conf;
    this.sources = sources;
    this.out = out;
  }

  private static Thread thread(Runnable task) {
    Thread thread = new Thread(task, "rackweave source");
    thread.setDaemon(true);
    return thread;
  }

  /**
   * Runs to the end, calling {@code alive} about ten times a second.
   *
   * @param number the number of the aggregation, which no other one that uses the same switch should have
   * @return what was uploaded, altogether; {@code out} has the totals then
   * @throws IOException with a sentence if the totals are not complete
   */
  Upload.Result run(int number, Upload template, String host, Runnable alive) throws IOException, InterruptedException {
    boolean overlay = !Settings.overlay(conf).isEmpty();
    String address = overlay ? Upload.OVERLAY_MASTER : address(host);
    // The controller of a pod assigns another number.
    boolean registers = Settings.arguments(conf, Settings.MASTER_ARGUMENTS).contains("--pod");
    master = new Program(command(registers ? List.of() : List.of("--job", Integer.toString(number)), address, overlay));
    int assigned = registers ? assigned(alive) : number;
    CompletionService<Upload.Result> uploads = new ExecutorCompletionService<>(threads);
    for (int i = 0; i < sources.size(); i++) {
      Source source = sources.get(i);
      Upload upload =
          new Upload(
              address, assigned, i, template.partition, template.keyType, template.valueType, template.codec);
      uploads.submit(() -> source.upload(upload));
    }
    long pairs = 0;
    LinearDigest digest = new LinearDigest();
    int done = 0;
    while (done < sources.size()) {
      alive.run();
      // A master that ended without success ends the workers too, but only after a while.
      if (!master.isAlive()) {
        checkMaster();
      }
      Future<Upload.Result> next = uploads.poll(POLL_MS, TimeUnit.MILLISECONDS);
      if (next != null) {
        Upload.Result result = resultOf(next);
        pairs += result.pairs;
        digest.add(result.digest);
        done++;
      }
    }
    while (!master.await(POLL_MS)) {
      alive.run();
    }
    checkMaster();
    return new Upload.Result(pairs, digest.value());
  }

  private void checkMaster() throws IOException, InterruptedException {
    int code = master.exitCode();
    if (code != 0) {
      throw new IOException(master.failure("the master", code));
    }
  }

  private static Upload.Result resultOf(Future<Upload.Result> upload) throws IOException, InterruptedException {
    try {
      return upload.get();
    } catch (ExecutionException error) {
      if (error.getCause() instanceof IOException) {
        throw (IOException) error.getCause();
      }
      throw new IOException("an upload failed: " + error.getCause(), error.getCause());
    }
  }

  /** The number of the job in the master's event {@code ready}. */
  private int assigned(Runnable alive) throws IOException, InterruptedException {
    Pattern ready = Pattern.compile("\\{\"event\":\"ready\",.*\"job\":([0-9]+)[,}]");
    while (true) {
      boolean hasEnded = master.await(POLL_MS);
      Matcher matcher = ready.matcher(master.output());
      if (matcher.find()) {
        return Integer.parseInt(matcher.group(1));
      }
      if (hasEnded) {
        checkMaster();
        throw new IOException("the master has not said the number of its job");
      }
      alive.run();
    }
  }

  private List<String> command(List<String> job, String address, boolean overlay) {
    List<String> command = new ArrayList<>();
    command.add(Settings.command(conf));
    command.addAll(List.of("reduce", "master", "--workers", Integer.toString(sources.size())));
    command.addAll(job);
    command.addAll(List.of("--operator", "sum", "--out", out.getPath(), "--json"));
    if (overlay) {
      command.addAll(List.of("--overlay", Settings.overlay(conf), "--me", address));
    } else {
      command.addAll(List.of("--listen", address));
    }
    command.addAll(Settings.arguments(conf, Settings.MASTER_ARGUMENTS));
    return command;
  }

  /** An address whose port is free now; if another process takes it first, the master says so and the try fails. */
  private String address(String host) throws IOException {
    InetAddress address = InetAddress.getByName(host);
    int port = conf.getInt(Settings.LISTEN_PORT, 0);
    if (port == 0) {
      try (DatagramSocket socket = new DatagramSocket(new InetSocketAddress(address, 0))) {
        port = socket.getLocalPort();
      }
    }
    return address.getHostAddress() + ":" + port;
  }

  /** A number of what the master reports at its end, or 0 if there is none of this name. */
  long reported(String name) {
    Matcher matcher = Pattern.compile("\"" + name + "\":\\s*([0-9]+)").matcher(master.output());
    return matcher.find() ? Long.parseLong(matcher.group(1)) : 0;
  }

  /** Ends all processes of this try that still run. */
  @Override
  public void close() {
    if (master != null) {
      master.close();
    }
    sources.forEach(Source::close);
    threads.shutdownNow();
  }
}
