package org.rackweave.hadoop;

import java.io.Closeable;
import java.io.IOException;

/** Some of a job's map outputs that one worker adds up and uploads. */
interface Source extends Closeable {
  /**
   * Uploads, and returns when the master has everything.
   *
   * @throws IOException with a sentence if it does not
   */
  Upload.Result upload(Upload upload) throws IOException, InterruptedException;

  /** Ends the upload from another thread. */
  @Override
  void close();
}
