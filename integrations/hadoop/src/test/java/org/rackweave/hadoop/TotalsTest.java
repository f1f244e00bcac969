package org.rackweave.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import org.apache.hadoop.io.DataInputBuffer;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.Text;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

public class TotalsTest {
  @Rule public final TemporaryFolder folder = new TemporaryFolder();

  @Test
  public void totalsAreTheInputOfAReducer() throws IOException {
    Totals totals = open("a\t3\nword\t18446744073709551615\n", digest("a", 1, "word", -1, "a", 2));
    assertEquals(2, totals.keys());
    assertEquals("a 3", next(totals));
    assertEquals("word -1", next(totals));
    assertFalse(totals.next());
    totals.close();
    assertEquals(0, folder.getRoot().list().length);
  }

  @Test
  public void sumsOf32BitsOverflowAsTheReducersDo() throws IOException {
    int sum = Integer.MAX_VALUE + 2;
    Totals totals = open("a\t2147483649\n", digest("a", Integer.MAX_VALUE, "a", 2));
    assertEquals("a " + sum, next(totals));
  }

  @Test
  public void whatIsNotTheSumOfTheUploadsIsRefused() {
    long uploaded = digest("a", 1, "b", 2);
    for (String wrong : new String[] {"a\t1\n", "a\t1\nb\t3\n", "a\t2\nb\t1\n", "a\t1\nc\t2\n", "", "a\t1\nb\t2\nc\t1\n"}) {
      IOException error = assertThrows(wrong, IOException.class, () -> open(wrong, uploaded));
      assertTrue(error.getMessage(), error.getMessage().contains("digests differ"));
    }
  }

  @Test
  public void keysThatDoNotAscendAreRefused() {
    for (String wrong : new String[] {"b\t2\na\t1\n", "a\t1\na\t0\nb\t2\n"}) {
      IOException error = assertThrows(IOException.class, () -> open(wrong, digest("a", 1, "b", 2)));
      assertTrue(error.getMessage(), error.getMessage().contains("not sorted at line 2"));
    }
  }

  @Test
  public void theDigestDependsOnKeysAndValues() {
    assertEquals(digest("a", 3, "b", 1), digest("a", 1, "b", 1, "a", 2));
    assertNotEquals(digest("a", 1, "b", 2), digest("a", 2, "b", 1));
    assertNotEquals(digest("a", 0x4000_0000_0000_0000L), digest("a", 0));
  }

  private Totals open(String text, long digest) throws IOException {
    File file = folder.newFile();
    Files.write(file.toPath(), text.getBytes(StandardCharsets.US_ASCII));
    return Totals.open(file, digest, Eligibility.KeyType.TEXT, Eligibility.ValueType.INT);
  }

  private static String next(Totals totals) throws IOException {
    assertTrue(totals.next());
    Text key = new Text();
    IntWritable value = new IntWritable();
    key.readFields(copy(totals.getKey()));
    value.readFields(copy(totals.getValue()));
    return key + " " + value;
  }

  /** As the framework reads a buffer: from its position to its end. */
  private static DataInputBuffer copy(DataInputBuffer buffer) {
    DataInputBuffer copy = new DataInputBuffer();
    copy.reset(buffer.getData(), buffer.getPosition(), buffer.getLength() - buffer.getPosition());
    return copy;
  }

  private static long digest(Object... pairs) {
    LinearDigest digest = new LinearDigest();
    for (int i = 0; i < pairs.length; i += 2) {
      byte[] key = ((String) pairs[i]).getBytes(StandardCharsets.US_ASCII);
      digest.add(key, 0, key.length, ((Number) pairs[i + 1]).longValue());
    }
    return digest.value();
  }
}
