package org.rackweave.hadoop;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.Closeable;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.security.SecureRandom;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * Messages between a reducer and the service of a node, each authenticated with the job's secret, which Hadoop gives
 * to both.
 *
 * <p>The service sends a nonce first, and every tag covers the nonce, the direction and the number of the message, so
 * that no message can be repeated or moved. Messages are not encrypted; they contain no keys or values of the job.
 */
final class Channel implements Closeable {
  private static final String ALGORITHM = "HmacSHA256";
  private static final int TAG_BYTES = 32;
  private static final int NONCE_BYTES = 32;
  /** Enough for the names of 6,000 attempts on one node. What strangers can make a service hold follows from it. */
  private static final int MAX_MESSAGE_BYTES = 256 << 10;

  private final Socket socket;
  private final DataInputStream in;
  private final DataOutputStream out;
  private final boolean service;
  private final byte[] nonce = new byte[NONCE_BYTES];
  private long sent;
  private long received;

  private Channel(Socket socket, boolean service) throws IOException {
    this.socket = socket;
    this.service = service;
    this.in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
    this.out = new DataOutputStream(new BufferedOutputStream(socket.getOutputStream()));
  }

  /** The end at the service. */
  static Channel accept(Socket socket, SecureRandom random) throws IOException {
    Channel channel = new Channel(socket, true);
    random.nextBytes(channel.nonce);
    channel.out.write(channel.nonce);
    channel.out.flush();
    return channel;
  }

  /** The end at the reducer. */
  static Channel connect(Socket socket) throws IOException {
    Channel channel = new Channel(socket, false);
    channel.in.readFully(channel.nonce);
    return channel;
  }

  void send(byte[] secret, String text) throws IOException {
    byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
    if (bytes.length > MAX_MESSAGE_BYTES) {
      throw new IOException("the job has too many map outputs on one node for one request.");
    }
    out.writeInt(bytes.length);
    out.write(bytes);
    out.write(tag(secret, service, sent++, bytes));
    out.flush();
  }

  /** Reads a message that is not to be believed before {@link #verify}. */
  Message receive() throws IOException {
    int length = in.readInt();
    if (length < 0 || length > MAX_MESSAGE_BYTES) {
      throw new IOException("the peer sent a message of impossible length.");
    }
    // readNBytes allocates as bytes arrive, so that a length without bytes costs nothing.
    byte[] bytes = in.readNBytes(length);
    byte[] tag = in.readNBytes(TAG_BYTES);
    if (bytes.length < length || tag.length < TAG_BYTES) {
      throw new IOException("the connection ended within a message.");
    }
    return new Message(bytes, tag);
  }

  /** The next message, verified. */
  String receive(byte[] secret) throws IOException {
    return verify(receive(), secret);
  }

  String verify(Message message, byte[] secret) throws IOException {
    if (!MessageDigest.isEqual(message.tag, tag(secret, !service, received++, message.bytes))) {
      throw new IOException("a message is not authentic: the peer does not know the job's secret.");
    }
    return message.text();
  }

  private byte[] tag(byte[] secret, boolean fromService, long number, byte[] bytes) throws IOException {
    try {
      Mac mac = Mac.getInstance(ALGORITHM);
      mac.init(new SecretKeySpec(secret, ALGORITHM));
      mac.update(nonce);
      mac.update((byte) (fromService ? 1 : 0));
      for (int shift = 0; shift < Long.SIZE; shift += Byte.SIZE) {
        mac.update((byte) (number >>> shift));
      }
      return mac.doFinal(bytes);
    } catch (GeneralSecurityException error) {
      throw new IOException(error);
    }
  }

  @Override
  public void close() throws IOException {
    socket.close();
  }

  /** A message whose origin has not been verified yet. */
  static final class Message {
    private final byte[] bytes;
    private final byte[] tag;

    private Message(byte[] bytes, byte[] tag) {
      this.bytes = bytes;
      this.tag = tag;
    }

    String text() {
      return new String(bytes, StandardCharsets.UTF_8);
    }
  }
}
