package org.rackweave.hadoop;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** The map outputs on one node, which the node's {@link RackweaveShuffleHandler} adds up and uploads. */
final class NodeSource implements Source {
  /** By name, because a reducer need not have the class of Hadoop that it extends. */
  private static final String SERVICE_CLASS = "org.rackweave.hadoop.RackweaveShuffleHandler";

  private static final int CONNECT_TIMEOUT_MS = 10_000;
  /** The service answers about once a second while an upload runs. */
  private static final int SILENCE_MS = 30_000;

  private final InetSocketAddress service;
  private final String job;
  private final byte[] secret;
  private final List<String> attempts;
  private Channel channel;
  private boolean closed;

  private NodeSource(InetSocketAddress service, String job, byte[] secret, List<String> attempts) {
    this.service = service;
    this.job = job;
    this.secret = secret;
    this.attempts = attempts;
  }

  /**
   * Asks the services of the hosts which of the attempts' outputs they have.
   *
   * @param attemptsOfHost the attempts that ran at each host
   * @throws LostOutputException if services answer, and none has an output
   * @throws IOException with a sentence if no service answers
   */
  static List<Source> find(Map<String, List<String>> attemptsOfHost, List<Integer> ports, String job, byte[] secret)
      throws IOException {
    List<Source> sources = new ArrayList<>();
    for (Map.Entry<String, List<String>> host : attemptsOfHost.entrySet()) {
      Set<String> missing = new HashSet<>(host.getValue());
      IOException last = null;
      boolean answered = false;
      for (int port : ports) {
        if (missing.isEmpty()) {
          break;
        }
        InetSocketAddress service = new InetSocketAddress(host.getKey(), port);
        try {
          List<String> found = ask(service, job, secret, missing);
          answered = true;
          if (missing.removeAll(found)) {
            sources.add(new NodeSource(service, job, secret, found));
          }
        } catch (IOException error) {
          last = error;
        }
      }
      if (!missing.isEmpty() && answered) {
        throw new LostOutputException(host.getKey(), missing);
      }
      if (!missing.isEmpty()) {
        throw new IOException(
            "no service answers at "
                + host.getKey()
                + ", ports "
                + ports
                + "; is the class of mapreduce_shuffle there "
                + SERVICE_CLASS
                + "?",
            last);
      }
    }
    return sources;
  }

  private static List<String> ask(InetSocketAddress service, String job, byte[] secret, Set<String> attempts)
      throws IOException {
    try (Channel channel = connect(service)) {
      channel.send(secret, "find " + job + "\n" + String.join("\n", attempts));
      String[] lines = channel.receive(secret).split("\n");
      if (!lines[0].equals("have")) {
        throw new IOException(service + " answered: " + lines[0]);
      }
      List<String> found = new ArrayList<>();
      for (int i = 1; i < lines.length; i++) {
        if (attempts.contains(lines[i])) {
          found.add(lines[i]);
        }
      }
      return found;
    }
  }

  private static Channel connect(InetSocketAddress service) throws IOException {
    Socket socket = new Socket();
    try {
      socket.connect(service, CONNECT_TIMEOUT_MS);
      socket.setSoTimeout(SILENCE_MS);
      return Channel.connect(socket);
    } catch (IOException error) {
      socket.close();
      throw error;
    }
  }

  @Override
  public Upload.Result upload(Upload upload) throws IOException {
    Channel running = connect(service);
    synchronized (this) {
      channel = running;
      if (closed) {
        running.close();
        throw new IOException("the upload was cancelled.");
      }
    }
    try (running) {
      running.send(secret, "upload " + job + "\n" + upload.encode() + "\n" + String.join("\n", attempts));
      String answer;
      do {
        answer = running.receive(secret);
      } while (answer.equals("alive"));
      String[] words = answer.split(" ", 2);
      if (words[0].equals("done")) {
        String[] numbers = words[1].split(" ");
        return new Upload.Result(Long.parseLong(numbers[0]), Long.parseLong(numbers[1]));
      }
      throw new IOException("at " + service.getHostString() + ":" + service.getPort() + " " + words[words.length - 1]);
    }
  }

  @Override
  public synchronized void close() {
    closed = true;
    if (channel != null) {
      try {
        channel.close();
      } catch (IOException ignored) {
        // The service notices the end of the connection in any case.
      }
    }
  }
}
