package org.rackweave.hadoop;

import java.io.BufferedOutputStream;
import java.io.Closeable;
import java.io.IOException;
import java.util.List;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.mapred.JobConf;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One worker of an aggregation: adds up one partition of the map outputs of a host and gives the sums to a process of
 * {@code rackweave}, which ends when the master has them.
 */
final class Worker implements Closeable {
  private static final Logger LOG = LoggerFactory.getLogger(Worker.class);
  /** A process that a signal ended is started once more: the master discards what it had of it, and goes on. */
  private static final int STARTS = 2;

  private static final int BUFFER_BYTES = 1 << 16;

  private final Upload upload;
  private final List<MapOutput> outputs;
  private final JobConf conf;
  private final String owner;
  private final List<String> arguments;
  private Program program;
  private boolean closed;

  Worker(Upload upload, List<MapOutput> outputs, JobConf conf, String owner, List<String> arguments) {
    this.upload = upload;
    this.outputs = outputs;
    this.conf = conf;
    this.owner = owner;
    this.arguments = arguments;
  }

  /**
   * Uploads everything, and returns when the master has it.
   *
   * @throws IOException with a sentence if the master does not have it
   */
  Upload.Result run() throws IOException, InterruptedException {
    for (int start = 1; ; start++) {
      try (Program running = start()) {
        Upload.Result result = null;
        IOException broken = null;
        try {
          result = feed(running);
        } catch (IOException error) {
          broken = error;
        }
        // A process that no longer reads has ended or is about to; its reason is better than "broken pipe". If it
        // is the map output that cannot be read, the process waits for input that will not come.
        if (broken != null && !running.await(1000)) {
          throw broken;
        }
        int code = running.exitCode();
        if (code == 0 && result != null) {
          return result;
        }
        String name = "the worker " + upload.worker;
        String failure = code == 0 ? name + " ended before it had read all pairs." : running.failure(name, code);
        if (code <= 128 || start == STARTS || isClosed()) {
          throw new IOException(failure, broken);
        }
        LOG.warn("{} It is started again.", failure);
      }
    }
  }

  private synchronized Program start() throws IOException {
    if (closed) {
      throw new IOException("the upload was cancelled.");
    }
    program = new Program(upload.command(conf, arguments));
    return program;
  }

  private Upload.Result feed(Program to) throws IOException {
    CompressionCodec codec = upload.codec(conf);
    LinearDigest digest = new LinearDigest();
    long pairs = 0;
    PairText.Writer writer = new PairText.Writer(new BufferedOutputStream(to.input(), BUFFER_BYTES));
    try (PartitionMerge merge =
        new PartitionMerge(conf, owner, codec, upload.partition, upload.keyType, upload.valueType, outputs)) {
      while (merge.next()) {
        writer.write(merge.key(), 0, merge.keyLength(), merge.value());
        digest.add(merge.key(), 0, merge.keyLength(), merge.value());
        pairs++;
      }
    }
    // The worker must not take the end of a broken input for the end of its pairs.
    writer.finish();
    return new Upload.Result(pairs, digest.value());
  }

  private synchronized boolean isClosed() {
    return closed;
  }

  /** Ends the upload from another thread. */
  @Override
  public synchronized void close() {
    closed = true;
    if (program != null) {
      program.close();
    }
  }
}
