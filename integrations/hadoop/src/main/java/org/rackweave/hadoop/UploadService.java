package org.rackweave.hadoop;

import java.io.Closeable;
import java.io.IOException;
import java.net.BindException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.mapred.JobConf;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Answers reducers: which map outputs are on this node, and uploads of their sums.
 *
 * <p>A request is two lines: its kind and the job, and for an upload its description; then one line for each attempt. The answers are
 * {@code have}, {@code alive} about once a second while an upload runs, {@code done} and {@code failed}.
 */
final class UploadService implements Closeable {
  private static final Logger LOG = LoggerFactory.getLogger(UploadService.class);
  private static final int REQUEST_TIMEOUT_MS = 10_000;
  private static final int ALIVE_INTERVAL_MS = 1_000;
  /** Connections that have not shown a job's secret, of strangers and of addresses that have shown one before: as many each. */
  private static final int MAX_WAITING = 64;
  /** Requests that are answered at the same time, in addition to running uploads. */
  private static final int MAX_ANSWERED = 256;
  /** Addresses that are remembered. */
  private static final int MAX_KNOWN = 1024;

  private final JobConf conf;
  private final Outputs outputs;
  private final int maxUploads;
  private final SecureRandom random = new SecureRandom();
  private final AtomicInteger answered = new AtomicInteger();
  /** The oldest first. */
  private final Set<Socket> strangers = new LinkedHashSet<>();
  private final Set<Socket> returning = new LinkedHashSet<>();
  private final Set<InetAddress> known = new LinkedHashSet<>();
  private final AtomicInteger running = new AtomicInteger();
  private final Set<Closeable> open = ConcurrentHashMap.newKeySet();
  private final AtomicBoolean closed = new AtomicBoolean();
  private final ScheduledExecutorService deadlines = Executors.newSingleThreadScheduledExecutor(UploadService::thread);
  private ServerSocket server;

  /** What the node knows of its jobs. */
  interface Outputs {
    /** The secret that the tasks of the job share, or null if the job is not known here. */
    byte[] secret(String job);

    /** The user of the job, or null. */
    String owner(String job);

    /** The output that the attempt left on this node, or null. */
    MapOutput find(String job, String attempt) throws IOException;
  }

  UploadService(JobConf conf, Outputs outputs) {
    this.conf = conf;
    this.outputs = outputs;
    this.maxUploads = Math.max(1, conf.getInt(Settings.SERVICE_UPLOADS, 64));
  }

  private static Thread thread(Runnable task) {
    Thread thread = new Thread(task, "rackweave deadlines");
    thread.setDaemon(true);
    return thread;
  }

  /** Binds the first free port and answers in threads of its own. */
  void start() throws IOException {
    server = bind();
    LOG.info("Uploads are served at port {}", server.getLocalPort());
    Thread acceptor = new Thread(this::accept, "rackweave uploads");
    acceptor.setDaemon(true);
    acceptor.start();
  }

  private ServerSocket bind() throws IOException {
    List<Integer> ports = Settings.servicePorts(conf);
    for (int port : ports) {
      ServerSocket socket = new ServerSocket();
      try {
        socket.bind(new InetSocketAddress(port));
        return socket;
      } catch (BindException taken) {
        socket.close();
      }
    }
    throw new IOException("all ports of " + Settings.SERVICE_PORTS + " are taken: " + ports);
  }

  private void accept() {
    while (!closed.get()) {
      try {
        Socket socket = server.accept();
        place(socket);
        Thread thread = new Thread(() -> serve(socket), "rackweave upload");
        thread.setDaemon(true);
        thread.start();
      } catch (IOException error) {
        if (!closed.get()) {
          LOG.warn("A connection could not be accepted", error);
          pause();
        }
      }
    }
  }

  /** Gives a connection a place until it shows a secret. If all are taken, the party that has most loses its oldest one. */
  private void place(Socket socket) {
    Socket oldest = null;
    synchronized (known) {
      Set<Socket> waiting = known.contains(socket.getInetAddress()) ? returning : strangers;
      waiting.add(socket);
      if (waiting.size() > MAX_WAITING) {
        oldest = oldestOfMost(waiting);
        waiting.remove(oldest);
      }
    }
    if (oldest != null) {
      closeQuietly(oldest);
    }
  }

  private static Socket oldestOfMost(Set<Socket> waiting) {
    Map<ByteBuffer, Integer> counts = new HashMap<>();
    for (Socket socket : waiting) {
      counts.merge(party(socket), 1, Integer::sum);
    }
    int most = Collections.max(counts.values());
    for (Socket socket : waiting) {
      if (counts.get(party(socket)) == most) {
        return socket;
      }
    }
    throw new IllegalArgumentException("nobody waits");
  }

  /** An IPv4 address, or a network of IPv6 with 64 bits for its hosts, in which one host has as many addresses as it likes. */
  private static ByteBuffer party(Socket socket) {
    byte[] address = socket.getInetAddress().getAddress();
    return ByteBuffer.wrap(address, 0, Math.min(address.length, 8));
  }

  /** A connection does not wait any more. Returns whether it had its place until now. */
  private boolean leave(Socket socket, boolean hasShown) {
    synchronized (known) {
      boolean had = strangers.remove(socket) | returning.remove(socket);
      if (had && hasShown) {
        known.remove(socket.getInetAddress());
        known.add(socket.getInetAddress());
        if (known.size() > MAX_KNOWN) {
          known.remove(known.iterator().next());
        }
      }
      return had;
    }
  }

  /** Keeps an error that repeats, such as too many open files, from filling the log. */
  private static void pause() {
    try {
      Thread.sleep(ALIVE_INTERVAL_MS);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private void serve(Socket socket) {
    open.add(socket);
    // For the whole request, because a peer that sends a byte now and then is never silent.
    ScheduledFuture<?> deadline =
        deadlines.schedule(() -> closeQuietly(socket), REQUEST_TIMEOUT_MS, TimeUnit.MILLISECONDS);
    try {
      Channel channel = Channel.accept(socket, random);
      Channel.Message message = channel.receive();
      String[] lines = message.text().split("\n");
      String[] head = lines[0].split(" ");
      byte[] secret = head.length == 2 ? outputs.secret(head[1]) : null;
      if (secret == null) {
        // Nothing that is not authenticated gets more than a closed connection.
        return;
      }
      channel.verify(message, secret);
      if (!deadline.cancel(false) || !leave(socket, true)) {
        return;
      }
      try {
        if (answered.incrementAndGet() > MAX_ANSWERED + maxUploads) {
          channel.send(secret, "failed this node answers " + MAX_ANSWERED + " requests already.");
        } else {
          answer(channel, secret, socket, head[0], head[1], lines);
        }
      } finally {
        answered.decrementAndGet();
      }
    } catch (IOException | IllegalArgumentException error) {
      LOG.info("A request of {} was not answered: {}", socket.getRemoteSocketAddress(), error.toString());
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    } finally {
      deadline.cancel(false);
      open.remove(socket);
      leave(socket, false);
      closeQuietly(socket);
    }
  }

  private void answer(Channel channel, byte[] secret, Socket socket, String kind, String job, String[] lines)
      throws IOException, InterruptedException {
    switch (kind) {
      case "find":
        StringBuilder found = new StringBuilder("have");
        for (int i = 1; i < lines.length; i++) {
          if (outputs.find(job, lines[i]) != null) {
            found.append('\n').append(lines[i]);
          }
        }
        channel.send(secret, found.toString());
        break;
      case "upload":
        if (running.incrementAndGet() > maxUploads) {
          running.decrementAndGet();
          channel.send(secret, "failed this node takes part in " + maxUploads + " uploads already.");
          return;
        }
        try {
          upload(channel, secret, socket, job, lines);
        } finally {
          running.decrementAndGet();
        }
        break;
      default:
        channel.send(secret, "failed this node knows no request " + kind + ".");
    }
  }

  private void upload(Channel channel, byte[] secret, Socket socket, String job, String[] lines)
      throws IOException, InterruptedException {
    List<MapOutput> found = new ArrayList<>();
    for (int i = 2; i < lines.length; i++) {
      MapOutput output = outputs.find(job, lines[i]);
      if (output == null) {
        channel.send(secret, "failed the output of " + lines[i] + " is not on this node.");
        return;
      }
      found.add(output);
    }
    Upload upload = Upload.decode(lines[1]);
    List<String> arguments = Settings.arguments(conf, Settings.WORKER_ARGUMENTS);
    Worker worker = new Worker(upload, found, conf, outputs.owner(job), arguments);
    open.add(worker);
    Running run = new Running(worker);
    try {
      run.start();
      while (!run.ended(ALIVE_INTERVAL_MS)) {
        // A reducer that has ended closes the connection, and then nobody waits for this upload.
        channel.send(secret, "alive");
        if (isClosedByPeer(socket)) {
          return;
        }
      }
      channel.send(secret, run.answer());
    } finally {
      open.remove(worker);
      worker.close();
      run.join();
    }
  }

  /** The reducer sends nothing after its request, so what can be read is the end. */
  private static boolean isClosedByPeer(Socket socket) throws IOException {
    socket.setSoTimeout(1);
    try {
      return socket.getInputStream().read() < 0;
    } catch (java.net.SocketTimeoutException open) {
      return false;
    }
  }

  @Override
  public void close() {
    closed.set(true);
    deadlines.shutdownNow();
    for (Closeable one : open) {
      closeQuietly(one);
    }
    if (server != null) {
      closeQuietly(server);
    }
  }

  private static void closeQuietly(Closeable one) {
    try {
      one.close();
    } catch (IOException error) {
      LOG.debug("{} could not be closed", one, error);
    }
  }

  /** A worker in a thread of its own. */
  private static final class Running extends Thread {
    private final Worker worker;
    private String answer;

    Running(Worker worker) {
      super("rackweave worker");
      setDaemon(true);
      this.worker = worker;
    }

    @Override
    public void run() {
      String result;
      try {
        Upload.Result uploaded = worker.run();
        result = "done " + uploaded.pairs + " " + uploaded.digest;
      } catch (IOException | RuntimeException error) {
        LOG.warn("An upload failed", error);
        result = "failed " + error.getMessage();
      } catch (InterruptedException interrupted) {
        result = "failed the upload was interrupted.";
      }
      synchronized (this) {
        answer = result;
        notifyAll();
      }
    }

    synchronized boolean ended(long milliseconds) throws InterruptedException {
      if (answer == null) {
        wait(milliseconds);
      }
      return answer != null;
    }

    synchronized String answer() {
      return answer;
    }
  }
}
