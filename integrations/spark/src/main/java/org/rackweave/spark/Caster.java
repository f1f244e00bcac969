package org.rackweave.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.SparkConf;
import org.apache.spark.storage.BlockManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The driver's part of casts: who receives, and what is sent. */
final class Caster {
  private static final Logger LOG = LoggerFactory.getLogger(Caster.class);
  private static final ObjectMapper JSON = new ObjectMapper();

  private final SparkConf conf;
  private final BlockManager blocks;
  private final String key;
  private final long minBytes;
  /** The receivers by their executors, the oldest first. */
  private final Map<String, Receiver> receivers = new LinkedHashMap<>();
  private final Map<Long, Cast> casts = new HashMap<>();
  /** Whether there is a program that sends. */
  private boolean usable = true;
  private boolean warned;

  final AtomicLong values = new AtomicLong();
  final AtomicLong bytes = new AtomicLong();
  final AtomicLong deliveries = new AtomicLong();
  final AtomicLong failures = new AtomicLong();

  private static final class Receiver {
    final String host;
    final String address;

    Receiver(String host, String address) {
      this.host = host;
      this.address = address;
    }
  }

  /** A cast that is under way. */
  private static final class Cast {
    /** The executors that may still store the value, and their receivers' addresses. */
    final Map<String, String> waiting = new LinkedHashMap<>();
    int stored;
    /** Why the program that sends has ended without a result. */
    String broken;
  }

  Caster(SparkConf conf, BlockManager blocks, String key) {
    this.conf = conf;
    this.blocks = blocks;
    this.key = key;
    this.minBytes = Settings.minBytes(conf);
  }

  String key() {
    return key;
  }

  synchronized int receivers() {
    return receivers.size();
  }

  synchronized void add(String executor, String host, int port) throws UnknownHostException {
    InetAddress address = InetAddress.getByName(host);
    String text = address.getHostAddress();
    receivers.put(executor, new Receiver(host, (text.contains(":") ? "[" + text + "]" : text) + ":" + port));
    LOG.debug("The executor {} receives casts at {}, port {}.", executor, host, port);
  }

  /** The executor's receiver has ended, or the executor with it. */
  synchronized void remove(String executor, String why) {
    receivers.remove(executor);
    casts.values().forEach(cast -> cast.waiting.remove(executor));
    notifyAll();
    if (why != null) {
      warn("The executor " + executor + " does not receive casts: " + why);
    }
  }

  synchronized boolean underWay(long broadcast) {
    return casts.containsKey(broadcast);
  }

  /** The executor has the value. Returns whether the value still exists. */
  boolean stored(String executor, long broadcast) {
    synchronized (this) {
      Cast cast = casts.get(broadcast);
      if (cast != null && cast.waiting.remove(executor) != null) {
        cast.stored++;
        notifyAll();
      }
    }
    return new Blocks(blocks, broadcast).exist();
  }

  /** One warning suffices: what it is about costs time only. */
  private synchronized void warn(String text) {
    if (warned) {
      LOG.info(text);
    } else {
      LOG.warn("{} Such values take Spark's own way. Further messages like this one are informational.", text);
    }
    warned = true;
  }

  /** Casts a value, if it is large and somebody receives, and returns when that is over. */
  void offer(long broadcast) {
    Blocks value = new Blocks(blocks, broadcast);
    Cast cast = null;
    try {
      synchronized (this) {
        if (!usable || receivers.isEmpty()) {
          return;
        }
      }
      long size = value.bytes();
      if (size < minBytes) {
        return;
      }
      cast = begin(broadcast);
      if (cast != null) {
        send(value, cast, size);
      }
    } catch (IOException error) {
      fail("A cast could not be started: " + error.getMessage());
    } catch (InterruptedException stopped) {
      Thread.currentThread().interrupt();
    } finally {
      if (cast != null) {
        synchronized (this) {
          casts.remove(broadcast);
        }
      }
    }
  }

  private void fail(String why) {
    failures.incrementAndGet();
    warn(why);
  }

  private synchronized Cast begin(long broadcast) {
    Cast cast = new Cast();
    Map<String, Integer> hosts = new HashMap<>();
    int most = Settings.perHost(conf);
    receivers.forEach(
        (executor, receiver) -> {
          if (hosts.merge(receiver.host, 1, Integer::sum) <= most) {
            cast.waiting.put(executor, receiver.address);
          }
        });
    if (cast.waiting.isEmpty()) {
      return null;
    }
    casts.put(broadcast, cast);
    return cast;
  }

  private void send(Blocks value, Cast cast, long size) throws IOException, InterruptedException {
    Map<String, String> executors = new HashMap<>();
    List<String> command = new ArrayList<>(List.of(Settings.command(conf), "cast", "send", "-", "--name", value.file()));
    synchronized (this) {
      cast.waiting.forEach((executor, address) -> executors.put(address, executor));
    }
    command.addAll(List.of("--json", "--quiet", "--to", String.join(",", executors.keySet())));
    command.addAll(Settings.arguments(conf, Settings.SEND_ARGUMENTS));
    long start = System.nanoTime();
    Program program = Program.sender(command, key);
    thread("rackweave cast", () -> write(value, program));
    thread("rackweave cast result", () -> read(program, cast, executors));
    try {
      await(cast, start + TimeUnit.MILLISECONDS.toNanos(Settings.timeoutMillis(conf, size)));
    } catch (InterruptedException stopped) {
      program.stop();
      throw stopped;
    }
    int stored;
    String broken;
    List<String> late;
    synchronized (this) {
      stored = cast.stored;
      broken = cast.broken;
      late = new ArrayList<>(cast.waiting.keySet());
      if (broken != null) {
        usable = false;
      } else {
        // Nobody waits for them again.
        receivers.keySet().removeAll(late);
      }
    }
    deliveries.addAndGet(stored);
    if (broken != null) {
      fail("Nothing is cast any more: " + broken);
      return;
    }
    if (late.isEmpty()) {
      program.leave();
    } else {
      program.stop();
      fail("A cast of " + size + " bytes was too late at the executors " + late + ", which get no further one.");
    }
    if (stored > 0) {
      values.incrementAndGet();
      bytes.addAndGet(size);
    }
    LOG.debug("{} bytes are with {} executors after {} ms.", size, stored, (System.nanoTime() - start) / 1_000_000);
  }

  /** Waits until nobody is waited for, the program has failed, or it is {@code end}. */
  private synchronized void await(Cast cast, long end) throws InterruptedException {
    while (!cast.waiting.isEmpty() && cast.broken == null) {
      long left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
      if (left <= 0) {
        return;
      }
      wait(left);
    }
  }

  private static void thread(String name, Runnable body) {
    Thread thread = new Thread(body, name);
    thread.setDaemon(true);
    thread.start();
  }

  private void write(Blocks value, Program program) {
    try {
      value.write(program.input());
    } catch (IOException error) {
      // The program has ended and says why, or the value is gone. A program that goes on must not take this for the end.
      program.stop();
    }
  }

  private void read(Program program, Cast cast, Map<String, String> executors) {
    boolean[] result = {false};
    int code = -1;
    try {
      code = program.read(line -> result[0] |= result(line, cast, executors));
    } catch (InterruptedException | LinkageError error) {
      LOG.debug("The result of a cast was not read.", error);
    }
    if (!result[0]) {
      synchronized (this) {
        cast.broken =
            "`" + Settings.command(conf) + " cast send` failed with exit code " + code + ": " + program.said();
        notifyAll();
      }
    }
  }

  /** Takes a receiver that failed off those that are waited for. Returns whether the line is a result. */
  private boolean result(String line, Cast cast, Map<String, String> executors) {
    JsonNode event;
    try {
      event = JSON.readTree(line);
    } catch (IOException other) {
      return false;
    }
    if (!event.path("event").asText().equals("result")) {
      return false;
    }
    for (JsonNode receiver : event.path("receivers")) {
      String executor = executors.get(receiver.path("host").asText());
      if (!receiver.path("state").asText().equals("complete") && executor != null) {
        synchronized (this) {
          if (cast.waiting.containsKey(executor)) {
            failures.incrementAndGet();
            remove(executor, receiver.path("error").asText() + ".");
          }
        }
      }
    }
    return true;
  }
}
