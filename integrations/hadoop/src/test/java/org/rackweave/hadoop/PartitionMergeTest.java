package org.rackweave.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapred.IFile;
import org.apache.hadoop.mapred.IndexRecord;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.SpillRecord;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Map outputs in the files of Hadoop's own writers. */
public class PartitionMergeTest {
  @Rule public final TemporaryFolder folder = new TemporaryFolder();

  private final JobConf conf = new JobConf(false);

  @Test
  public void valuesOfEqualKeysAreAddedUp() throws IOException {
    List<MapOutput> outputs = List.of(output("a 1", "b -2", "d 4"), output(), output("b 5", "c 1", "d 1"), output("d 1"));
    assertEquals(List.of("a 1", "b 3", "c 1", "d 6"), pairs(outputs, 1));
    assertEquals(List.of("other 4"), pairs(outputs, 0));
  }

  @Test
  public void ofManyOutputsSomeAreOpenAtATime() throws IOException {
    List<MapOutput> outputs = new ArrayList<>();
    for (int i = 0; i < 300; i++) {
      outputs.add(output("key 1"));
    }
    // The key appears once for each group of outputs, and nothing is missing.
    assertEquals(List.of("key 256", "key 44"), pairs(outputs, 1));
  }

  @Test
  public void damageIsAnError() throws IOException {
    MapOutput output = output("word 1");
    try (RandomAccessFile file = new RandomAccessFile(output.data, "rw")) {
      file.seek(file.length() - 8);
      int last = file.read();
      file.seek(file.length() - 8);
      file.write(last ^ 1);
    }
    assertThrows(IOException.class, () -> pairs(List.of(output), 1));
    MapOutput missing = new MapOutput(new File(folder.getRoot(), "none"), new File(folder.getRoot(), "none.index"));
    assertThrows(IOException.class, () -> pairs(List.of(missing), 1));
  }

  @Test
  public void aPartitionThatDoesNotExistIsNamed() throws IOException {
    MapOutput output = output("word 1");
    IOException error = assertThrows(IOException.class, () -> pairs(List.of(output), 2));
    assertTrue(error.getMessage(), error.getMessage().contains("2 partitions and none with number 2"));
  }

  @Test
  public void valuesOfAnotherTypeAreAnError() throws IOException {
    MapOutput output = output("word 1");
    PartitionMerge merge = merge(List.of(output), 1, Eligibility.ValueType.LONG);
    IOException error = assertThrows(IOException.class, merge::next);
    assertTrue(error.getMessage(), error.getMessage().contains("not of the types"));
  }

  private List<String> pairs(List<MapOutput> outputs, int partition) throws IOException {
    List<String> pairs = new ArrayList<>();
    try (PartitionMerge merge = merge(outputs, partition, Eligibility.ValueType.INT)) {
      while (merge.next()) {
        String key = new String(merge.key(), 0, merge.keyLength(), StandardCharsets.UTF_8);
        pairs.add(key + " " + merge.value());
      }
    }
    return pairs;
  }

  private PartitionMerge merge(List<MapOutput> outputs, int partition, Eligibility.ValueType type) {
    return new PartitionMerge(conf, null, null, partition, Eligibility.KeyType.TEXT, type, outputs);
  }

  /** An output of two partitions: one with a pair {@code other 1}, and one with the given pairs. */
  private MapOutput output(String... pairs) throws IOException {
    File data = folder.newFile();
    File index = folder.newFile();
    SpillRecord spill = new SpillRecord(2);
    try (FSDataOutputStream out = FileSystem.getLocal(conf).getRaw().create(new Path(data.toURI()))) {
      spill.putIndex(write(out, "other 1"), 0);
      spill.putIndex(write(out, pairs), 1);
    }
    spill.writeToFile(new Path(index.toURI()), conf);
    return new MapOutput(data, index);
  }

  private IndexRecord write(FSDataOutputStream out, String... pairs) throws IOException {
    long start = out.getPos();
    IFile.Writer<Text, IntWritable> writer = new IFile.Writer<>(conf, out, Text.class, IntWritable.class, null, null);
    for (String pair : pairs) {
      String[] fields = pair.split(" ");
      writer.append(new Text(fields[0]), new IntWritable(Integer.parseInt(fields[1])));
    }
    writer.close();
    return new IndexRecord(start, writer.getRawLength(), writer.getCompressedLength());
  }
}
