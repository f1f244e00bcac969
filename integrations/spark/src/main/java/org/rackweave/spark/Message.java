package org.rackweave.spark;

import java.io.Serializable;

/** What an executor's part says to the driver's. */
final class Message implements Serializable {
  enum Kind {
    /** Asks for the application's key; the answer is empty if nothing is cast. */
    KEY,
    /** A receiver of the executor is at this host and port. */
    LISTENING,
    /** The executor has no receiver (any more), and why. */
    GONE,
    /** Asks whether a cast of the value is under way. */
    UNDER_WAY,
    /** All blocks of the value are with the executor's; the answer says whether the value still exists. */
    STORED
  }

  private static final long serialVersionUID = 1;

  final Kind kind;
  final String executor;
  final String text;
  final int port;
  final long broadcast;

  private Message(Kind kind, String executor, String text, int port, long broadcast) {
    this.kind = kind;
    this.executor = executor;
    this.text = text;
    this.port = port;
    this.broadcast = broadcast;
  }

  static Message key(String executor) {
    return new Message(Kind.KEY, executor, "", 0, 0);
  }

  static Message listening(String executor, String host, int port) {
    return new Message(Kind.LISTENING, executor, host, port, 0);
  }

  static Message gone(String executor, String why) {
    return new Message(Kind.GONE, executor, why, 0, 0);
  }

  static Message underWay(String executor, long broadcast) {
    return new Message(Kind.UNDER_WAY, executor, "", 0, broadcast);
  }

  static Message stored(String executor, long broadcast) {
    return new Message(Kind.STORED, executor, "", 0, broadcast);
  }
}
