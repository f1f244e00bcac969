package org.rackweave.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.EOFException;
import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.mapred.JobConf;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** What the service of a node answers to reducers and to others. */
public class UploadServiceTest {
  private static final String JOB = "job_1_0001";
  private static final byte[] SECRET = "secret".getBytes(StandardCharsets.US_ASCII);
  private static final String DESCRIPTION = "127.0.0.1:9 1 0 0 TEXT INT -";

  private UploadService service;
  private int port;

  @Before
  public void start() throws IOException {
    try (ServerSocket free = new ServerSocket(0)) {
      port = free.getLocalPort();
    }
    JobConf conf = new JobConf(false);
    conf.set(Settings.SERVICE_PORTS, Integer.toString(port));
    conf.set(Settings.COMMAND, "/no/such/program");
    service = new UploadService(conf, new Known());
    service.start();
  }

  @After
  public void stop() {
    service.close();
  }

  @Test
  public void aReducerLearnsWhichOutputsAreThere() throws IOException {
    try (Channel channel = connect()) {
      channel.send(SECRET, "find " + JOB + "\nhere\nelsewhere");
      assertEquals("have\nhere", channel.receive(SECRET));
    }
  }

  @Test
  public void connectionsThatSayNothingKeepNoReducerOut() throws IOException {
    List<Socket> silent = new ArrayList<>();
    for (int i = 0; i < 300; i++) {
      silent.add(new Socket(InetAddress.getLoopbackAddress(), port));
      if (i % 100 == 99) {
        aReducerLearnsWhichOutputsAreThere();
      }
    }
    silent.get(0).setSoTimeout(5_000);
    silent.get(0).getInputStream().readNBytes(32);
    assertEquals(-1, silent.get(0).getInputStream().read());
    for (Socket socket : silent) {
      socket.close();
    }
  }

  @Test
  public void oneHostEndsTheConnectionsOfNoOther() throws IOException {
    List<Socket> silent = new ArrayList<>();
    try (Channel channel = Channel.connect(connectFrom("127.0.0.2"))) {
      for (int i = 0; i < 100; i++) {
        silent.add(connectFrom("127.0.0.3"));
      }
      // It has its place once it hears something.
      assertEquals(32, silent.get(99).getInputStream().readNBytes(32).length);
      channel.send(SECRET, "find " + JOB + "\nhere");
      assertEquals("have\nhere", channel.receive(SECRET));
    }
    for (Socket socket : silent) {
      socket.close();
    }
  }

  @Test
  public void aStrangerGetsNoAnswer() throws IOException {
    for (String request : new String[] {"find " + JOB + "\nhere", "find job_2_0001\nhere", "", "find"}) {
      try (Channel channel = connect()) {
        channel.send("wrong".getBytes(StandardCharsets.US_ASCII), request);
        assertThrows(EOFException.class, channel::receive);
      }
    }
  }

  @Test
  public void aRequestCannotBeRepeatedInAnotherConnection() throws IOException {
    byte[] recorded;
    try (ServerSocket other = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        Socket reducer = new Socket(other.getInetAddress(), other.getLocalPort());
        Socket accepted = other.accept()) {
      accepted.getOutputStream().write(new byte[32]);
      Channel.connect(reducer).send(SECRET, "find " + JOB + "\nhere");
      reducer.shutdownOutput();
      recorded = accepted.getInputStream().readAllBytes();
    }
    try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
      socket.getInputStream().readNBytes(32);
      socket.getOutputStream().write(recorded);
      assertEquals(-1, socket.getInputStream().read());
    }
  }

  @Test
  public void anImpossibleLengthEndsTheConnection() throws IOException {
    try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
      socket.getInputStream().readNBytes(32);
      socket.getOutputStream().write(new byte[] {0x7f, -1, -1, -1});
      assertEquals(-1, socket.getInputStream().read());
    }
  }

  @Test
  public void whatIsNotOnTheNodeIsNotUploaded() throws IOException {
    assertEquals("failed the output of elsewhere is not on this node.", upload(DESCRIPTION, "elsewhere"));
  }

  @Test
  public void aProgramThatIsMissingIsNamed() throws IOException {
    String answer = upload(DESCRIPTION, "here");
    assertTrue(answer, answer.startsWith("failed the program /no/such/program cannot be started"));
  }

  @Test
  public void aDescriptionCannotAddArgumentsOrLoadClasses() {
    String[] bad = {
      "--out 1 0 0 TEXT INT -",
      "127.0.0.1:9;x 1 0 0 TEXT INT -",
      "host:9 1 0 0 TEXT INT -",
      "127.0.0.1:9 1 64 0 TEXT INT -",
      "127.0.0.1:9 -1 0 0 TEXT INT -",
      "127.0.0.1:9 1 0 0 TEXT INT java.lang.Runtime",
      "127.0.0.1:9 1 0 0 TEXT INT",
    };
    for (String text : bad) {
      assertThrows(text, IllegalArgumentException.class, () -> Upload.decode(text));
    }
    assertEquals(DESCRIPTION, Upload.decode(DESCRIPTION).encode());
  }

  @Test
  public void anOutputThatNoServiceHasIsNamed() {
    IOException error =
        assertThrows(
            IOException.class,
            () -> NodeSource.find(Map.of("127.0.0.1", List.of("here", "elsewhere")), List.of(port), JOB, SECRET));
    assertTrue(error.getMessage(), error.getMessage().contains("the output of elsewhere is no longer at"));
  }

  private String upload(String description, String attempt) throws IOException {
    try (Channel channel = connect()) {
      channel.send(SECRET, "upload " + JOB + "\n" + description + "\n" + attempt);
      return channel.receive(SECRET);
    }
  }

  private Socket connectFrom(String address) throws IOException {
    return new Socket(InetAddress.getByName("127.0.0.1"), port, InetAddress.getByName(address), 0);
  }

  private Channel connect() throws IOException {
    return Channel.connect(new Socket(InetAddress.getLoopbackAddress(), port));
  }

  private static final class Known implements UploadService.Outputs {
    @Override
    public byte[] secret(String job) {
      return job.equals(JOB) ? SECRET : null;
    }

    @Override
    public String owner(String job) {
      return null;
    }

    @Override
    public MapOutput find(String job, String attempt) {
      return attempt.equals("here") ? new MapOutput(new File("data"), new File("index")) : null;
    }
  }
}
