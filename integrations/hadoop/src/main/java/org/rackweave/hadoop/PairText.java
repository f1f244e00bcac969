package org.rackweave.hadoop;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;

/**
 * Pairs as lines {@code key<TAB>value}, as {@code rackweave reduce} reads and writes them. Keys are bytes; tab, line
 * feed, carriage return and backslash are written as {@code \t}, {@code \n}, {@code \r} and {@code \\}. Values are
 * numbers modulo 2^64, without a sign.
 */
final class PairText {
  private PairText() {}

  /** Writes pairs; the stream should be buffered. */
  static final class Writer implements Closeable {
    private final OutputStream out;

    Writer(OutputStream out) {
      this.out = out;
    }

    void write(byte[] key, int offset, int length, long value) throws IOException {
      int plain = offset;
      for (int i = offset; i < offset + length; i++) {
        int escape = escape(key[i]);
        if (escape >= 0) {
          out.write(key, plain, i - plain);
          out.write('\\');
          out.write(escape);
          plain = i + 1;
        }
      }
      out.write(key, plain, offset + length - plain);
      out.write('\t');
      out.write(Long.toUnsignedString(value).getBytes(StandardCharsets.US_ASCII));
      out.write('\n');
    }

    /** Writes the line that says that these are all pairs, and closes the stream. */
    void finish() throws IOException {
      out.write(new byte[] {'\\', '.', '\n'});
      out.close();
    }

    private static int escape(byte b) {
      switch (b) {
        case '\t':
          return 't';
        case '\n':
          return 'n';
        case '\r':
          return 'r';
        case '\\':
          return '\\';
        default:
          return -1;
      }
    }

    @Override
    public void close() throws IOException {
      out.close();
    }
  }

  /** Reads pairs one by one; the stream should be buffered. */
  static final class Reader implements Closeable {
    private final InputStream in;
    private byte[] key = new byte[256];
    private int keyLength;
    private long value;
    private long line;

    Reader(InputStream in) {
      this.in = in;
    }

    /** The bytes of the current key; only the first {@link #keyLength} belong to it. */
    byte[] key() {
      return key;
    }

    int keyLength() {
      return keyLength;
    }

    long value() {
      return value;
    }

    /** Reads the next pair, and returns false at the end. */
    boolean next() throws IOException {
      keyLength = 0;
      line++;
      int b = in.read();
      if (b < 0) {
        return false;
      }
      while (b != '\t') {
        if (b == '\\') {
          b = unescape(in.read());
        } else if (b == '\n' || b < 0) {
          throw malformed("has no tab");
        }
        if (keyLength == key.length) {
          key = java.util.Arrays.copyOf(key, 2 * keyLength);
        }
        key[keyLength++] = (byte) b;
        b = in.read();
      }
      readValue();
      return true;
    }

    private int unescape(int b) throws IOException {
      switch (b) {
        case 't':
          return '\t';
        case 'n':
          return '\n';
        case 'r':
          return '\r';
        case '\\':
          return '\\';
        default:
          throw malformed("has a backslash that no t, n, r or backslash follows");
      }
    }

    private void readValue() throws IOException {
      StringBuilder digits = new StringBuilder(20);
      int b = in.read();
      while (b != '\n') {
        if (b < 0) {
          throw new EOFException("line " + line + " of the pairs is cut off");
        }
        if (digits.length() == 20) {
          throw malformed("has a value that is not a number of 64 bits");
        }
        digits.append((char) b);
        b = in.read();
      }
      try {
        value = Long.parseUnsignedLong(digits.toString());
      } catch (NumberFormatException error) {
        throw malformed("has a value that is not a number of 64 bits");
      }
    }

    private IOException malformed(String what) {
      return new IOException("line " + line + " of the pairs " + what);
    }

    @Override
    public void close() throws IOException {
      in.close();
    }
  }
}
