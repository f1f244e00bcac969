package org.rackweave.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.SparkConf;

/** The names of all settings, and how their values are read. */
public final class Settings {
  /** Where the program {@code rackweave} is, at the driver and at each executor. */
  public static final String COMMAND = "spark.rackweave.command";

  /** Serialised and compressed bytes from which on a value is cast. */
  public static final String MIN_BYTES = "spark.rackweave.broadcast.minBytes";

  /** How long a cast may take, besides the time that its bytes take at {@link #SLOWEST}. */
  public static final String TIMEOUT = "spark.rackweave.broadcast.timeout";

  /** How many executors of one host a value is cast to; the others take it from these, as Spark does. */
  public static final String PER_HOST = "spark.rackweave.receivers.perHost";

  /** The UDP port that a receiver tries first. Only this port is reached by multicast. */
  public static final String PORT = "spark.rackweave.port";

  /** Further arguments of {@code rackweave cast send}, separated by spaces. */
  public static final String SEND_ARGUMENTS = "spark.rackweave.send.arguments";

  /** Further arguments of {@code rackweave cast receive}, separated by spaces. */
  public static final String RECEIVE_ARGUMENTS = "spark.rackweave.receive.arguments";

  /** Bytes in a second, 100 Mbit/s: a cast that is slower may be given up. */
  private static final long SLOWEST = 12_500_000;

  private Settings() {}

  static String command(SparkConf conf) {
    return conf.get(COMMAND, "rackweave");
  }

  /** By default two of Spark's blocks: what is smaller takes less time than the start of a cast. */
  static long minBytes(SparkConf conf) {
    return conf.getSizeAsBytes(MIN_BYTES, "8m");
  }

  static long timeoutMillis(SparkConf conf, long bytes) {
    return conf.getTimeAsMs(TIMEOUT, "10s") + bytes * 1000 / SLOWEST;
  }

  static int perHost(SparkConf conf) {
    return Math.max(1, conf.getInt(PER_HOST, 1));
  }

  static int port(SparkConf conf) {
    return conf.getInt(PORT, 6722);
  }

  static List<String> arguments(SparkConf conf, String name) {
    List<String> arguments = new ArrayList<>();
    for (String argument : conf.get(name, "").trim().split("\\s+")) {
      if (!argument.isEmpty()) {
        arguments.add(argument);
      }
    }
    return arguments;
  }
}
