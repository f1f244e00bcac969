package org.rackweave.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.net.DatagramSocket;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.storage.BlockManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The plugin at an executor: a receiver, whose files become blocks. */
final class ExecutorPart implements ExecutorPlugin {
  private static final Logger LOG = LoggerFactory.getLogger(ExecutorPart.class);
  private static final ObjectMapper JSON = new ObjectMapper();
  /** Another program may take a port before the receiver does. */
  private static final int STARTS = 3;
  /** A receiver that is still there after this time has its port. */
  private static final long START_MILLIS = 200;

  private PluginContext plugin;
  private String executor;
  private BlockManager blocks;
  private Program program;
  private boolean stopping;

  @Override
  public void init(PluginContext context, Map<String, String> extra) {
    plugin = context;
    executor = context.executorID();
    blocks = SparkEnv.get().blockManager();
    Thread thread = new Thread(this::run, "rackweave receiver");
    thread.setDaemon(true);
    thread.start();
  }

  private void run() {
    try {
      String key = (String) plugin.ask(Message.key(executor));
      if (key.isEmpty()) {
        return;
      }
      String why = "";
      for (int start = 1; start <= STARTS && !isStopping(); start++) {
        try {
          why = receive(key);
        } catch (IOException error) {
          why = error.toString();
        }
      }
      if (!isStopping()) {
        LOG.warn("This executor does not receive casts: {}", why);
        plugin.ask(Message.gone(executor, why));
      }
    } catch (Exception | LinkageError error) {
      // Any error that leaves a thread would end the executor.
      if (!isStopping()) {
        LOG.warn("This executor does not receive casts.", error);
      }
    }
  }

  private synchronized boolean isStopping() {
    return stopping;
  }

  /** Receives until the program ends, and returns why it did. */
  private String receive(String key) throws Exception {
    SparkConf conf = plugin.conf();
    // The plugin's context does not know the name at an executor.
    String host = blocks.blockManagerId().host();
    InetAddress here = InetAddress.getByName(host);
    // What Spark offers at loopback only, a receiver does too.
    String listen = here.isLoopbackAddress() ? here.getHostAddress() : "0.0.0.0";
    int port = freePort(listen, Settings.port(conf));
    File directory = Files.createTempDirectory(blocks.diskBlockManager().localDirs()[0].toPath(), "rackweave").toFile();
    List<String> command =
        new ArrayList<>(List.of(Settings.command(conf), "cast", "receive", "--json", "--listen", listen + ":" + port));
    command.addAll(Settings.arguments(conf, Settings.RECEIVE_ARGUMENTS));
    Program started = Program.receiver(directory.getPath(), command, key);
    synchronized (this) {
      program = started;
      if (stopping) {
        started.closeInput();
      }
    }
    if (!started.ends(START_MILLIS)) {
      plugin.ask(Message.listening(executor, host, port));
    }
    int code = started.read(line -> event(line, directory));
    return "`" + Settings.command(conf) + " cast receive` ended with exit code " + code + ": " + started.said();
  }

  /** The port {@code first} if it is free, or any other. */
  private static int freePort(String listen, int first) throws IOException {
    for (int port : new int[] {first, 0}) {
      try (DatagramSocket socket = new DatagramSocket(new InetSocketAddress(listen, port))) {
        return socket.getLocalPort();
      } catch (IOException taken) {
        LOG.debug("The UDP port {} is not free.", port);
      }
    }
    throw new IOException("no UDP port is free.");
  }

  private void event(String line, File directory) {
    try {
      JsonNode event = JSON.readTree(line);
      if (!event.path("event").asText().equals("received")) {
        return;
      }
      for (JsonNode file : event.path("files")) {
        store(new File(directory, new File(file.path("path").asText()).getName()));
      }
      if (!event.path("error").isNull()) {
        removeRests(directory);
      }
    } catch (Exception | LinkageError error) {
      // The tasks take Spark's own way.
      LOG.warn("A cast was not kept.", error);
    }
  }

  private void store(File file) throws Exception {
    long broadcast = Blocks.broadcast(file.getName());
    if (broadcast < 0) {
      return;
    }
    Blocks value = new Blocks(blocks, broadcast);
    try {
      value.store(file);
    } finally {
      Files.deleteIfExists(file.toPath());
    }
    // The value may have been destroyed meanwhile, before its blocks were here to be removed.
    if (!(Boolean) plugin.ask(Message.stored(executor, broadcast))) {
      value.remove();
    }
  }

  /** A cast that failed leaves what it brought for a repetition, which never comes. */
  private void removeRests(File directory) throws Exception {
    String[] names = directory.list((in, name) -> name.endsWith(".part"));
    for (String name : names == null ? new String[0] : names) {
      long broadcast = Blocks.broadcast(name);
      if (broadcast >= 0 && !(Boolean) plugin.ask(Message.underWay(executor, broadcast))) {
        Files.deleteIfExists(new File(directory, name).toPath());
      }
    }
  }

  @Override
  public void shutdown() {
    Program running;
    synchronized (this) {
      stopping = true;
      running = program;
    }
    if (running != null) {
      running.closeInput();
      try {
        running.ends(1000);
      } catch (InterruptedException stopped) {
        Thread.currentThread().interrupt();
      }
    }
  }
}
