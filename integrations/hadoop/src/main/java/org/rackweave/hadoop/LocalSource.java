package org.rackweave.hadoop;

import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.MapOutputFile;
import org.apache.hadoop.mapred.TaskAttemptID;

/** Map outputs of Hadoop's local runner, which are files of this process. */
final class LocalSource implements Source {
  private final JobConf conf;
  private final List<MapOutput> outputs = new ArrayList<>();
  private Worker worker;
  private boolean closed;

  private LocalSource(JobConf conf) {
    this.conf = conf;
  }

  /** Divides the outputs among at most {@code count} sources. */
  static List<Source> divide(JobConf conf, Map<TaskAttemptID, MapOutputFile> files, int count) throws IOException {
    List<LocalSource> sources = new ArrayList<>();
    int next = 0;
    for (MapOutputFile file : new TreeMap<>(files).values()) {
      if (sources.size() < count) {
        sources.add(new LocalSource(conf));
      }
      sources.get(next++ % count).outputs.add(new MapOutput(path(file.getOutputFile()), path(file.getOutputIndexFile())));
    }
    return new ArrayList<>(sources);
  }

  private static File path(Path path) {
    return new File(path.toUri().getPath());
  }

  @Override
  public Upload.Result upload(Upload upload) throws IOException, InterruptedException {
    Worker run;
    synchronized (this) {
      if (closed) {
        throw new IOException("the upload was cancelled.");
      }
      run = new Worker(upload, outputs, conf, null, Settings.arguments(conf, Settings.WORKER_ARGUMENTS));
      worker = run;
    }
    return run.run();
  }

  @Override
  public synchronized void close() {
    closed = true;
    if (worker != null) {
      worker.close();
    }
  }
}
