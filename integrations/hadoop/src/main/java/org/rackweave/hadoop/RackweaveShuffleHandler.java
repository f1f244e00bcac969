package org.rackweave.hadoop;

import java.io.File;
import java.io.IOException;
import javax.crypto.SecretKey;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.JobID;
import org.apache.hadoop.mapred.ShuffleHandler;
import org.apache.hadoop.mapred.TaskAttemptID;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.security.token.SecretManager.InvalidToken;
import org.apache.hadoop.yarn.api.records.ApplicationId;

/**
 * Hadoop's shuffle service of a node, which can also add up the map outputs of the node and upload the sums.
 *
 * <p>It extends Hadoop's service instead of standing beside it because only the service with the name {@code
 * mapreduce_shuffle} is given the secret of a job; other services get an empty message ({@code
 * TaskAttemptImpl.addExternalShuffleProviders}). Jobs that do not ask for aggregation see no difference.
 */
public final class RackweaveShuffleHandler extends ShuffleHandler {
  private UploadService uploads;

  @Override
  protected void serviceStart() throws Exception {
    super.serviceStart();
    Configuration conf = getConfig();
    uploads = new UploadService(new JobConf(conf), new Outputs());
    uploads.start();
  }

  @Override
  protected void serviceStop() throws Exception {
    if (uploads != null) {
      uploads.close();
    }
    super.serviceStop();
  }

  /** What the service of uploads needs to know of the jobs on this node. */
  private final class Outputs implements UploadService.Outputs {
    @Override
    public byte[] secret(String job) {
      try {
        SecretKey key = secretManager.retrieveTokenSecret(job);
        return key.getEncoded();
      } catch (InvalidToken unknown) {
        return null;
      }
    }

    @Override
    public String owner(String job) {
      return userRsrc.get(job);
    }

    @Override
    public MapOutput find(String job, String attempt) throws IOException {
      TaskAttemptID id = TaskAttemptID.forName(attempt);
      if (id == null || id.getTaskType() != TaskType.MAP || !id.getJobID().toString().equals(job)) {
        throw new IOException(attempt + " is not an attempt of a map task of " + job + ".");
      }
      String user = owner(job);
      if (user == null) {
        return null;
      }
      // The place where tasks leave their outputs, as in ShuffleHandler.getBaseLocation, which is private.
      JobID jobId = id.getJobID();
      ApplicationId application = ApplicationId.newInstance(Long.parseLong(jobId.getJtIdentifier()), jobId.getId());
      String base = "usercache/" + user + "/appcache/" + application + "/output/" + id + "/";
      try {
        return new MapOutput(file(base + "file.out"), file(base + "file.out.index"));
      } catch (IOException missing) {
        return null;
      }
    }

    private File file(String path) throws IOException {
      Path found = getAuxiliaryLocalPathHandler().getLocalPathForRead(path);
      return new File(found.toUri().getPath());
    }
  }
}
