package org.rackweave.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.junit.Test;

public class PairTextTest {
  @Test
  public void anyKeyIsReadAsItWasWritten() throws IOException {
    byte[] all = new byte[1024];
    for (int i = 0; i < all.length; i++) {
      all[i] = (byte) i;
    }
    byte[][] keys = {new byte[0], {'a'}, {'\t', '\n', '\r', '\\'}, {'\\', 't'}, all};
    long[] values = {0, 1, Long.MAX_VALUE, Long.MIN_VALUE, -1};
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    try (PairText.Writer writer = new PairText.Writer(out)) {
      for (int i = 0; i < keys.length; i++) {
        writer.write(keys[i], 0, keys[i].length, values[i]);
      }
    }
    try (PairText.Reader reader = reader(out.toByteArray())) {
      for (int i = 0; i < keys.length; i++) {
        assertTrue(reader.next());
        assertArrayEquals(keys[i], Arrays.copyOf(reader.key(), reader.keyLength()));
        assertEquals(values[i], reader.value());
      }
      assertFalse(reader.next());
    }
  }

  @Test
  public void aLineIsWrittenAsTheProgramReadsIt() throws IOException {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    try (PairText.Writer writer = new PairText.Writer(out)) {
      byte[] key = "..a\tb\\..".getBytes(StandardCharsets.US_ASCII);
      writer.write(key, 2, 4, -1);
    }
    assertEquals("a\\tb\\\\\t18446744073709551615\n", out.toString(StandardCharsets.US_ASCII));
  }

  @Test
  public void whatIsNotAPairIsAnErrorThatNamesTheLine() {
    String[] bad = {"word\n", "word\t\n", "word\tx\n", "word\t-1\n", "word\t12", "wo\\rd\\x\t1\n", "a\t18446744073709551616\n"};
    for (String line : bad) {
      PairText.Reader reader = reader(("good\t1\n" + line).getBytes(StandardCharsets.US_ASCII));
      IOException error =
          assertThrows(
              line,
              IOException.class,
              () -> {
                while (reader.next()) {}
              });
      assertTrue(error.getMessage(), error.getMessage().contains("line 2"));
    }
  }

  private static PairText.Reader reader(byte[] bytes) {
    return new PairText.Reader(new ByteArrayInputStream(bytes));
  }
}
