package org.rackweave.hadoop;

import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CommonConfigurationKeys;
import org.apache.hadoop.mapred.ShuffleHandler;
import org.apache.hadoop.mapreduce.MRConfig;
import org.apache.hadoop.mapreduce.MRJobConfig;
import org.apache.hadoop.mapreduce.v2.hs.JobHistoryServer;
import org.apache.hadoop.mapreduce.v2.jobhistory.JHAdminConfig;
import org.apache.hadoop.mapreduce.v2.util.MRWebAppUtil;
import org.apache.hadoop.service.Service;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppImpl;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppState;

/**
 * A resource manager, several node managers and a job history server in this process. Tasks and application masters
 * are processes of their own, as on a real cluster.
 *
 * <p>Hadoop's {@code MiniMRYarnCluster} is not used because it overwrites the class of the shuffle service.
 */
final class MiniCluster {
  private final MiniYARNCluster yarn;

  /** Starts {@code nodes} node managers whose shuffle service has the class {@code shuffleService}. */
  MiniCluster(int nodes, File directory, Configuration settings, Class<? extends ShuffleHandler> shuffleService)
      throws Exception {
    Configuration conf = new YarnConfiguration(settings);
    System.setProperty("test.build.data", directory.getPath());
    conf.set(MRConfig.FRAMEWORK_NAME, MRConfig.YARN_FRAMEWORK_NAME);
    conf.set(MRJobConfig.MR_AM_STAGING_DIR, new File(directory, "staging").getPath());
    conf.set(CommonConfigurationKeys.FS_PERMISSIONS_UMASK_KEY, "000");
    conf.setStrings(YarnConfiguration.NM_AUX_SERVICES, ShuffleHandler.MAPREDUCE_SHUFFLE_SERVICEID);
    conf.setClass(
        String.format(YarnConfiguration.NM_AUX_SERVICE_FMT, ShuffleHandler.MAPREDUCE_SHUFFLE_SERVICEID),
        shuffleService,
        Service.class);
    conf.setInt(ShuffleHandler.SHUFFLE_PORT_CONFIG_KEY, 0);
    conf.setBoolean(YarnConfiguration.NM_PMEM_CHECK_ENABLED, false);
    conf.setBoolean(YarnConfiguration.NM_VMEM_CHECK_ENABLED, false);
    conf.setFloat(YarnConfiguration.NM_MAX_PER_DISK_UTILIZATION_PERCENTAGE, 99);
    conf.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 256);
    // Hadoop's web pages need this from Java 16 on.
    conf.set(MRJobConfig.MR_AM_ADMIN_COMMAND_OPTS, "--add-opens=java.base/java.lang=ALL-UNNAMED");
    yarn = new MiniYARNCluster("rackweave", nodes, 1, 1);
    yarn.init(conf);
    yarn.start();
    if (!yarn.waitForNodeManagersToConnect(60_000)) {
      throw new IllegalStateException("the node managers did not connect within 60 s");
    }
    String host = MiniYARNCluster.getHostname();
    Configuration live = yarn.getConfig();
    live.set(JHAdminConfig.MR_HISTORY_ADDRESS, host + ":0");
    MRWebAppUtil.setJHSWebappURLWithoutScheme(live, host + ":0");
    live.set(JHAdminConfig.JHS_ADMIN_ADDRESS, host + ":0");
    JobHistoryServer history = new JobHistoryServer();
    history.init(live);
    history.start();
    live.set(JHAdminConfig.MR_HISTORY_ADDRESS, history.getConfig().get(JHAdminConfig.MR_HISTORY_ADDRESS));
  }

  /** What a client needs in order to submit jobs here. */
  Configuration configuration() {
    return new Configuration(yarn.getConfig());
  }

  /** Waits for the application masters to end, which they do some time after their jobs. */
  void awaitMasters() throws InterruptedException {
    for (int i = 0; i < 300 && runs(); i++) {
      Thread.sleep(100);
    }
  }

  private boolean runs() {
    return yarn.getResourceManager().getRMContext().getRMApps().values().stream()
        .anyMatch(app -> !RMAppImpl.isAppInFinalState(app) || app.getState() == RMAppState.FINISHING);
  }
}
