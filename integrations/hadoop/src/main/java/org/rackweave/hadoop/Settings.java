package org.rackweave.hadoop;

import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;

/** The names of all settings, and how their values are read. */
public final class Settings {
  /** Where the program {@code rackweave} is. In a job: the reducer's; in a node manager's configuration: its own. */
  public static final String COMMAND = "rackweave.command";

  /** Whether a reducer uses Hadoop's own shuffle when aggregation is impossible or has failed; otherwise it fails. */
  public static final String FALLBACK = "rackweave.fallback";

  /**
   * Names of further classes, separated by commas, whose {@code reduce} only adds up. The person who sets this
   * states it; it cannot be checked.
   */
  public static final String SUM_COMBINERS = "rackweave.sum.combiners";

  /** How often a reducer starts an aggregation before it falls back or fails. */
  public static final String TRIES = "rackweave.tries";

  /** The address of the reducer's host at which workers reach its master; by default the name of the node. */
  public static final String LISTEN_HOST = "rackweave.listen.host";

  /** The UDP port of the master; by default any that is free. A switch between hosts answers to port 6731 only. */
  public static final String LISTEN_PORT = "rackweave.listen.port";

  /**
   * The address of a {@code rackweave switch --listen}, by whose ports master and workers are attached: the master as
   * host 0, worker i as host i + 1. It serves one reducer at a time. To be set in the job's configuration and that of
   * the node managers, for trials on one machine.
   */
  public static final String OVERLAY = "rackweave.overlay";

  /** Further arguments of {@code rackweave reduce master}, separated by spaces, for example those of a switch. */
  public static final String MASTER_ARGUMENTS = "rackweave.master.arguments";

  /** Further arguments of {@code rackweave reduce worker}; read from the node manager's configuration only. */
  public static final String WORKER_ARGUMENTS = "rackweave.worker.arguments";

  /** How many workers share the map outputs in Hadoop's local runner, which has no hosts. */
  public static final String LOCAL_WORKERS = "rackweave.local.workers";

  /** The TCP port of the service on each node, or a range such as {@code 13563-13570} of which it takes the first free. */
  public static final String SERVICE_PORTS = "rackweave.service.ports";

  /** How many uploads one node takes part in at the same time; further ones are refused. */
  public static final String SERVICE_UPLOADS = "rackweave.service.uploads";

  /** At most this many workers take part in an aggregation, which is a limit of Rackweave. */
  static final int MAX_WORKERS = 64;

  private static final String DEFAULT_PORTS = "13563";

  private Settings() {}

  static String command(Configuration conf) {
    return conf.getTrimmed(COMMAND, "rackweave");
  }

  static boolean fallback(Configuration conf) {
    return conf.getBoolean(FALLBACK, true);
  }

  static int tries(Configuration conf) {
    return Math.max(1, conf.getInt(TRIES, 2));
  }

  /** The address of the overlay, or an empty string. */
  static String overlay(Configuration conf) {
    return conf.getTrimmed(OVERLAY, "");
  }

  static int localWorkers(Configuration conf) {
    return Math.min(MAX_WORKERS, Math.max(1, conf.getInt(LOCAL_WORKERS, 3)));
  }

  static List<String> arguments(Configuration conf, String name) {
    List<String> arguments = new ArrayList<>();
    for (String argument : conf.getTrimmed(name, "").split("\\s+")) {
      if (!argument.isEmpty()) {
        arguments.add(argument);
      }
    }
    return arguments;
  }

  /** The ports of {@link #SERVICE_PORTS}, of which there are at most 64. */
  static List<Integer> servicePorts(Configuration conf) {
    String text = conf.getTrimmed(SERVICE_PORTS, DEFAULT_PORTS);
    String[] ends = text.split("-", 2);
    List<Integer> ports = new ArrayList<>();
    try {
      int first = Integer.parseInt(ends[0].trim());
      int last = ends.length == 2 ? Integer.parseInt(ends[1].trim()) : first;
      if (first < 1 || last < first || last > 65535 || last - first >= 64) {
        throw new NumberFormatException();
      }
      for (int port = first; port <= last; port++) {
        ports.add(port);
      }
    } catch (NumberFormatException error) {
      throw new IllegalArgumentException(
          SERVICE_PORTS + " is '" + text + "', which is neither a port nor a range of at most 64 ports");
    }
    return ports;
  }
}
