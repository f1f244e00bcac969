package org.rackweave.hadoop;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;

/** Outputs that count, but that the host at which they were made does not have any more. */
final class LostOutputException extends IOException {
  private static final long serialVersionUID = 1;

  private final ArrayList<String> attempts;

  LostOutputException(String host, Collection<String> attempts) {
    super("the output of " + attempts.iterator().next() + " is no longer at " + host + ".");
    this.attempts = new ArrayList<>(attempts);
  }

  /** The attempts of map tasks whose outputs are lost; at least one. */
  List<String> attempts() {
    return attempts;
  }
}
