package org.rackweave.hadoop;

import java.io.File;

/** The files in which one attempt of a map task left its output: sorted, combined, and divided into partitions. */
final class MapOutput {
  final File data;
  final File index;

  MapOutput(File data, File index) {
    this.data = data;
    this.index = index;
  }
}
