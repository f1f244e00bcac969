package org.rackweave.spark;

import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.File;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.file.StandardOpenOption;
import org.apache.spark.storage.BlockData;
import org.apache.spark.storage.BlockManager;
import org.apache.spark.storage.BroadcastBlockId;
import org.apache.spark.storage.StorageLevel;
import org.apache.spark.util.io.ChunkedByteBuffer;
import scala.Option;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * The blocks into which Spark's TorrentBroadcast has divided a value, serialised and compressed, and the stream that
 * carries them: their number, then length and bytes of each.
 *
 * <p>An executor that has a block does not ask another for it. So a cast puts blocks where Spark looks first, and
 * whatever is not there comes as without a cast.
 */
final class Blocks {
  private static final ClassTag<Object> ANY = ClassTag$.MODULE$.Object();
  private static final String PREFIX = "broadcast-";

  private final BlockManager manager;
  private final long broadcast;

  Blocks(BlockManager manager, long broadcast) {
    this.manager = manager;
    this.broadcast = broadcast;
  }

  /** The name of the file that carries the blocks. */
  String file() {
    return PREFIX + broadcast;
  }

  /** The broadcast of a file's name or of that of its unfinished form, or -1. */
  static long broadcast(String file) {
    String name = file.endsWith(".part") ? file.substring(0, file.length() - ".part".length()) : file;
    try {
      return name.startsWith(PREFIX) ? Long.parseLong(name.substring(PREFIX.length())) : -1;
    } catch (NumberFormatException other) {
      return -1;
    }
  }

  private BroadcastBlockId block(int number) {
    return new BroadcastBlockId(broadcast, "piece" + number);
  }

  boolean exist() {
    return manager.getStatus(block(0)).isDefined();
  }

  /** Gives the blocks that are here, in their order, to {@code reader}, and returns their number. */
  private int each(Reader reader) throws IOException {
    for (int number = 0; ; number++) {
      BroadcastBlockId id = block(number);
      if (manager.getStatus(id).isEmpty()) {
        return number;
      }
      Option<BlockData> data = manager.getLocalBytes(id);
      if (data.isEmpty()) {
        return number;
      }
      try {
        reader.read(data.get());
      } finally {
        manager.releaseLock(id, Option.empty());
      }
    }
  }

  private interface Reader {
    void read(BlockData block) throws IOException;
  }

  /** The bytes of all blocks. */
  long bytes() throws IOException {
    long[] sum = {0};
    each(block -> sum[0] += block.size());
    return sum[0];
  }

  /** Writes the stream, and closes it only after all of it. */
  void write(OutputStream out) throws IOException {
    int count = each(block -> {});
    DataOutputStream to = new DataOutputStream(out);
    to.writeInt(count);
    WritableByteChannel channel = Channels.newChannel(out);
    int written =
        each(
            block -> {
              to.writeInt(Math.toIntExact(block.size()));
              to.flush();
              ByteBuffer bytes = block.toByteBuffer();
              while (bytes.hasRemaining()) {
                channel.write(bytes);
              }
            });
    if (written != count) {
      throw new IOException("the value was destroyed while it was sent.");
    }
    to.close();
  }

  /**
   * Keeps the blocks of a stream's file as Spark keeps blocks that it fetched.
   *
   * @throws IOException if the stream is not whole
   */
  void store(File file) throws IOException {
    try (FileChannel from = FileChannel.open(file.toPath(), StandardOpenOption.READ)) {
      int count = read(from, Integer.BYTES).getInt();
      for (int number = 0; number < count; number++) {
        int length = read(from, Integer.BYTES).getInt();
        manager.putBytes(
            block(number), new ChunkedByteBuffer(read(from, length)), StorageLevel.MEMORY_AND_DISK_SER(), true, ANY);
      }
    }
  }

  private static ByteBuffer read(FileChannel from, int length) throws IOException {
    if (length < 0 || length > from.size() - from.position()) {
      throw new EOFException("the stream has been cut off.");
    }
    ByteBuffer bytes = ByteBuffer.allocate(length);
    while (bytes.hasRemaining()) {
      if (from.read(bytes) < 0) {
        throw new EOFException("the stream has been cut off.");
      }
    }
    return bytes.flip();
  }

  /** Forgets the blocks here. */
  void remove() {
    manager.removeBroadcast(broadcast, true);
  }
}
