package org.rackweave.hadoop;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.util.ReflectionUtils;

/** What one worker is to upload for one reducer. */
final class Upload {
  /** The number of the master's host in an overlay. */
  static final String OVERLAY_MASTER = "0";

  private static final String ADDRESS = "[0-9]{1,3}(\\.[0-9]{1,3}){3}:[0-9]{1,5}|" + OVERLAY_MASTER;
  private static final String CODECS = "org.apache.hadoop.io.compress.";

  /** The reducer's master, as {@code address:port}, or {@link #OVERLAY_MASTER}. */
  final String master;

  /** The number by which master, workers and switches know the aggregation. */
  final int number;

  /** Which of the aggregation's workers this is, from 0. */
  final int worker;

  final int partition;
  final Eligibility.KeyType keyType;
  final Eligibility.ValueType valueType;

  /** The class that compressed the map outputs, or an empty string. */
  final String codec;

  Upload(
      String master,
      int number,
      int worker,
      int partition,
      Eligibility.KeyType keyType,
      Eligibility.ValueType valueType,
      String codec) {
    this.master = master;
    this.number = number;
    this.worker = worker;
    this.partition = partition;
    this.keyType = keyType;
    this.valueType = valueType;
    this.codec = codec;
  }

  /** An instance of the codec, or null for outputs that are not compressed. */
  CompressionCodec codec(Configuration conf) {
    if (codec.isEmpty()) {
      return null;
    }
    try {
      Class<?> type = conf.getClassByName(codec);
      return (CompressionCodec) ReflectionUtils.newInstance(type, conf);
    } catch (ClassNotFoundException | ClassCastException error) {
      throw new IllegalArgumentException("there is no compression " + codec);
    }
  }

  /** What is sent to the service of a node, as text. */
  String encode() {
    return String.join(
        " ",
        master,
        Integer.toString(number),
        Integer.toString(worker),
        Integer.toString(partition),
        keyType.name(),
        valueType.name(),
        codec.isEmpty() ? "-" : codec);
  }

  /**
   * Reads what {@link #encode} wrote.
   *
   * @throws IllegalArgumentException if it is anything else. What passes contains nothing that a program could take
   *     for an option, and no class that is not a codec of Hadoop.
   */
  static Upload decode(String text) {
    String[] fields = text.split(" ", -1);
    if (fields.length != 7
        || !fields[0].matches(ADDRESS)
        || !(fields[6].equals("-") || fields[6].startsWith(CODECS))) {
      throw new IllegalArgumentException("the description of the upload is malformed");
    }
    Upload upload =
        new Upload(
            fields[0],
            Integer.parseInt(fields[1]),
            Integer.parseInt(fields[2]),
            Integer.parseInt(fields[3]),
            Eligibility.KeyType.valueOf(fields[4]),
            Eligibility.ValueType.valueOf(fields[5]),
            fields[6].equals("-") ? "" : fields[6]);
    if (upload.number < 0 || upload.worker < 0 || upload.worker >= Settings.MAX_WORKERS) {
      throw new IllegalArgumentException("the description of the upload has a number out of range");
    }
    return upload;
  }

  /**
   * The command of the worker, which reads its pairs from its standard input.
   *
   * @throws IOException with a sentence if the master is in an overlay that this host does not know
   */
  List<String> command(Configuration conf, List<String> arguments) throws IOException {
    String overlay = Settings.overlay(conf);
    if (overlay.isEmpty() == master.equals(OVERLAY_MASTER)) {
      throw new IOException(Settings.OVERLAY + " is set either for the job only or for its nodes only.");
    }
    List<String> command = new ArrayList<>();
    command.add(Settings.command(conf));
    command.addAll(List.of("reduce", "worker", "--master", master, "--worker", Integer.toString(worker)));
    command.addAll(List.of("--job", Integer.toString(number), "--operator", "sum", "--pairs", "-", "--complete"));
    if (!overlay.isEmpty()) {
      command.addAll(List.of("--overlay", overlay, "--me", Integer.toString(worker + 1)));
    }
    command.addAll(arguments);
    return command;
  }

  /** What was uploaded. */
  static final class Result {
    final long pairs;
    final long digest;

    Result(long pairs, long digest) {
      this.pairs = pairs;
      this.digest = digest;
    }
  }
}
