package org.rackweave.spark;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * A process of {@code rackweave}. Its key is the first line of a shell's input, so it is in no file, no argument and no
 * environment.
 */
final class Program {
  /** What comes after the key is the program's input. */
  private static final String SENDER = "IFS= read -r key; exec \"$@\" --key /dev/fd/3 3<<END\n$key\nEND";

  /**
   * The rest of the input never has bytes: its end is that of the executor, however it died. Then the receiver ends, and
   * its directory goes.
   */
  private static final String RECEIVER =
      "IFS= read -r key; directory=$1; shift; exec 4<&0\n"
          + "\"$@\" --dir \"$directory\" --key /dev/fd/3 3<<END 4<&- </dev/null &\n$key\nEND\n"
          + "receiver=$!\n"
          + "(read -r end; kill $receiver) <&4 >/dev/null 2>&1 &\n"
          + "watch=$!; exec 4<&-\n"
          + "wait $receiver; code=$?\n"
          + "kill $watch 2>/dev/null; rm -rf \"$directory\"; exit $code";

  /** What is told of a program's output. */
  interface Lines {
    /** A line of JSON. */
    void json(String line);
  }

  private final Process process;
  private String said = "";

  private Program(String script, List<String> arguments, String key) throws IOException {
    List<String> command = new ArrayList<>(List.of("/bin/sh", "-c", script, "rackweave"));
    command.addAll(arguments);
    process = new ProcessBuilder(command).redirectErrorStream(true).start();
    try {
      input().write((key + "\n").getBytes(StandardCharsets.US_ASCII));
      input().flush();
    } catch (IOException error) {
      process.destroyForcibly();
      throw error;
    }
  }

  static Program sender(List<String> command, String key) throws IOException {
    return new Program(SENDER, command, key);
  }

  /** A receiver into a directory, which is removed at its end. */
  static Program receiver(String directory, List<String> command, String key) throws IOException {
    List<String> arguments = new ArrayList<>(List.of(directory));
    arguments.addAll(command);
    return new Program(RECEIVER, arguments, key);
  }

  OutputStream input() {
    return process.getOutputStream();
  }

  /** Reads what the program prints until it ends, and returns its exit code. */
  int read(Lines lines) throws InterruptedException {
    try (BufferedReader from =
        new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
      for (String line = from.readLine(); line != null; line = from.readLine()) {
        if (line.startsWith("{")) {
          lines.json(line);
        } else if (!line.isBlank()) {
          said = line;
        }
      }
    } catch (IOException ended) {
      // The process has ended.
    }
    return process.waitFor();
  }

  /** The last line that was not JSON, once the program has ended. */
  String said() {
    return said;
  }

  /** Whether the program ends within {@code millis}. */
  boolean ends(long millis) throws InterruptedException {
    return process.waitFor(millis, TimeUnit.MILLISECONDS);
  }

  /** Ends the program, at once or, if it does not follow a signal, after two seconds. */
  void stop() {
    // `Process.destroy` would also close what the program has printed and nobody has read yet.
    process.toHandle().destroy();
    leave();
  }

  /** Leaves the program two seconds to end by itself. */
  void leave() {
    process
        .onExit()
        .orTimeout(2, TimeUnit.SECONDS)
        .whenComplete(
            (ended, late) -> {
              if (late != null) {
                process.toHandle().destroyForcibly();
              }
            });
  }

  /** Ends the program's input. */
  void closeInput() {
    try {
      input().close();
    } catch (IOException ended) {
      // The process has ended.
    }
  }
}
