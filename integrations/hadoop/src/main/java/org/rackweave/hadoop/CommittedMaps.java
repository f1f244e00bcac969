package org.rackweave.hadoop;

import java.io.IOException;
import java.net.URI;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.hadoop.mapred.MapTaskCompletionEventsUpdate;
import org.apache.hadoop.mapred.TaskAttemptID;
import org.apache.hadoop.mapred.TaskCompletionEvent;
import org.apache.hadoop.mapred.TaskID;
import org.apache.hadoop.mapred.TaskUmbilicalProtocol;

/**
 * Which attempts of the map tasks count, by the events of the application master.
 *
 * <p>Exactly one attempt of each task counts. The events, and not the attempts themselves, say which: two attempts may
 * both have written all of their output, and an attempt may cease to count when its node is lost.
 */
final class CommittedMaps {
  private static final int MAX_EVENTS = 10_000;

  private final TaskUmbilicalProtocol umbilical;
  private final TaskAttemptID reducer;
  private final Map<TaskID, TaskCompletionEvent> succeeded = new HashMap<>();
  private final Set<TaskID> abandoned = new HashSet<>();
  private int next;

  CommittedMaps(TaskUmbilicalProtocol umbilical, TaskAttemptID reducer) {
    this.umbilical = umbilical;
    this.reducer = reducer;
  }

  /** Reads new events and returns how many tasks have an attempt that counts, or may do without one. */
  int update() throws IOException {
    while (true) {
      MapTaskCompletionEventsUpdate update =
          umbilical.getMapCompletionEvents(reducer.getJobID(), next, MAX_EVENTS, reducer);
      TaskCompletionEvent[] events = update.getMapTaskCompletionEvents();
      if (events.length == 0) {
        return succeeded.size() + abandoned.size();
      }
      next += events.length;
      for (TaskCompletionEvent event : events) {
        apply(event);
      }
    }
  }

  private void apply(TaskCompletionEvent event) {
    TaskID task = event.getTaskAttemptId().getTaskID();
    switch (event.getTaskStatus()) {
      case SUCCEEDED:
        succeeded.put(task, event);
        break;
      case TIPFAILED:
        // The job allows that this task fails; it has no output then.
        succeeded.remove(task);
        abandoned.add(task);
        break;
      default:
        TaskCompletionEvent counted = succeeded.get(task);
        if (counted != null && counted.getTaskAttemptId().equals(event.getTaskAttemptId())) {
          succeeded.remove(task);
        }
    }
  }

  /** Whether the attempt counts, as far as {@link #update} knows. */
  boolean counts(String attempt) {
    TaskCompletionEvent event = succeeded.get(TaskAttemptID.forName(attempt).getTaskID());
    return event != null && event.getTaskAttemptId().toString().equals(attempt);
  }

  /** The attempts that count, by the host at which they ran. */
  Map<String, List<String>> attemptsOfHosts() {
    Map<String, List<String>> hosts = new TreeMap<>();
    for (TaskCompletionEvent event : succeeded.values()) {
      // Not URI.getHost, which knows no host whose name has an underscore.
      String authority = URI.create(event.getTaskTrackerHttp()).getAuthority();
      String host = authority.substring(0, authority.lastIndexOf(':'));
      hosts.computeIfAbsent(host, h -> new ArrayList<>()).add(event.getTaskAttemptId().toString());
    }
    return hosts;
  }
}
