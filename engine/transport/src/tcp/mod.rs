//! TCP and DCTCP: messages over byte-stream connections.
//!
//! A host keeps up to [`Config::connections_per_peer`] connections to each peer. A message uses an idle
//! connection, or else a new one, or else waits behind other messages: *head-of-line blocking is real here*, as
//! in every RPC system over TCP. A response uses the connection on which its request arrived. Messages of a
//! connection arrive in the order of their submission.
//!
//! The message mapping in the header stands for the framing that such systems write into the byte stream. No
//! segment has bytes of two messages. Everything else is TCP as in Linux, as far as it matters in a data center.
//! Acknowledgements are SACK (RFC 2018, 2883), delayed and quick. Losses are found by RACK-TLP (RFC 8985) with tail
//! loss probes, or by the recovery of RFC 6675 or NewReno (RFC 6582), with limited transmit (RFC 3042). Recovery has
//! PRR (RFC 6937, 9937), F-RTO (RFC 5682), the undoing of recoveries in vain, and RTO (RFC 6298). Congestion control
//! has ECN (RFC 3168) and the windows of NewReno, CUBIC (RFC 9438, with `HyStart`) and DCTCP (RFC 8257). Congestion
//! controllers have an interface of their own (`congestion`), with per-acknowledgement delays and pacing for
//! controllers that use them. Timestamps and urgent data are not implemented. Each stream has a connection of its own
//! (see `stream`); only these connections half-close, and only their receivers close the window.
//!
//! A server that cancels a request sends, in place of the response, a notice that there is none: a segment with FIN and
//! the response's id, which occupies one sequence number. The request then fails at the client. An RPC system over
//! TCP frames such an error in its stream; ending the connection would fail the other messages on it too. A client that
//! cancels a partly sent message resets the connection (RFC 9293, 3.10.5), as clients of HTTP/1.1 do, when
//! nothing else uses it; before that, the rest of the message is sent like any data.
//!
//! # Opening
//! Without [`Config::handshake`] data is sent at once. Until the client has received a segment from its peer,
//! its segments carry SYN and no ACK, and the acknowledgement field, which would be unused, holds the initial
//! sequence number of the stream. So any segment of the first window can open the connection at the server, and
//! no old connection is continued by accident after a restart of either end. (This is our choice, because TCP
//! Fast Open, RFC 7413, opens with the first segment only.)
//!
//! # Memory
//! For any input, a host holds at most [`Config::max_connections`] connections, opened by it or by peers, and
//! [`Config::max_messages`] messages that it has submitted. Further ones are refused with `Busy`, or not
//! accepted. A connection holds up to [`Config::max_ranges`] out-of-order ranges, and the ids of the messages
//! that start within its receive window. In addition there are up to 256 packets without a connection, besides the
//! last ones of connections, and twice as many ended connections as there may be open ones, which are remembered for as
//! long as a peer may retransmit. State of a silent peer is discarded when its retransmissions or
//! keep-alives are exhausted (`FailReason::PeerSilent`) or, if nothing waits for it, after
//! [`Config::idle_timeout`]. A host that gives a connection up resets it, so that its peer discards incomplete messages. If
//! the reset is lost, a server keeps them for twice [`Config::idle_timeout`] after the last segment.

mod config;
mod congestion;
mod connection;
mod host;
mod profile;
mod prr;
mod rack;
mod receiver;
mod recovery;
mod rtt;
mod scoreboard;
mod sender;
mod stream;
mod time_wait;
mod timers;

#[cfg(test)]
mod tests;

pub use config::{Config, CongestionControl, HyStart};
pub use congestion::{AckInfo, CongestionEvent, CongestionKind, Controller, External};
pub use host::Host;
