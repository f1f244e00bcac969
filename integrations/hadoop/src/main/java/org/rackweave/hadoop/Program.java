package org.rackweave.hadoop;

import java.io.Closeable;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A process of {@code rackweave}, with the end of what it prints. */
final class Program implements Closeable {
  private static final int TAIL_BYTES = 4096;

  private final Process process;
  private final Thread reader;
  private final byte[] tail = new byte[TAIL_BYTES];
  private long printed;

  /**
   * Starts {@code command}.
   *
   * @throws IOException with a sentence if there is no such program
   */
  Program(List<String> command) throws IOException {
    try {
      process = new ProcessBuilder(command).redirectErrorStream(true).start();
    } catch (IOException error) {
      throw new IOException(
          "the program " + command.get(0) + " cannot be started (see " + Settings.COMMAND + "): " + error.getMessage(),
          error);
    }
    reader = new Thread(this::drain, "rackweave output");
    reader.setDaemon(true);
    reader.start();
  }

  private void drain() {
    byte[] buffer = new byte[1024];
    try (InputStream in = process.getInputStream()) {
      for (int n = in.read(buffer); n >= 0; n = in.read(buffer)) {
        synchronized (tail) {
          for (int i = 0; i < n; i++) {
            tail[(int) (printed++ % TAIL_BYTES)] = buffer[i];
          }
        }
      }
    } catch (IOException ended) {
      // The process has ended; what it printed before is kept.
    }
  }

  OutputStream input() {
    return process.getOutputStream();
  }

  boolean isAlive() {
    return process.isAlive();
  }

  /** Waits for at most {@code milliseconds} and returns whether the process has ended. */
  boolean await(long milliseconds) throws InterruptedException {
    return process.waitFor(milliseconds, TimeUnit.MILLISECONDS);
  }

  /** Waits for the end and returns the exit code; 128 and more mean that a signal ended the process. */
  int exitCode() throws InterruptedException {
    int code = process.waitFor();
    reader.join(TimeUnit.SECONDS.toMillis(1));
    return code;
  }

  /** The end of what the process printed, at most 4 KiB. */
  String output() {
    synchronized (tail) {
      int length = (int) Math.min(printed, TAIL_BYTES);
      byte[] bytes = new byte[length];
      for (int i = 0; i < length; i++) {
        bytes[i] = tail[(int) ((printed - length + i) % TAIL_BYTES)];
      }
      return new String(bytes, StandardCharsets.UTF_8).trim();
    }
  }

  /** A sentence about an end that was not success. */
  String failure(String what, int code) {
    String output = output();
    String last = output.substring(output.lastIndexOf('\n') + 1);
    String how = code > 128 ? " was killed by signal " + (code - 128) : " failed with exit code " + code;
    return what + how + (last.isEmpty() ? "." : ": " + last);
  }

  /** Ends the process if it runs. */
  @Override
  public void close() {
    process.destroyForcibly();
  }
}
