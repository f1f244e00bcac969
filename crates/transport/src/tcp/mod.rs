//! TCP and DCTCP: message streams over connections.
//!
//! A host keeps up to [`Config::connections_per_peer`] connections to each peer. A message takes an
//! idle one, else a new one, else it waits behind others: *head-of-line blocking is real here*, as
//! in every RPC system over TCP. Responses return on the connection on which the request came.
//! Inside a connection messages arrive in the order in which they were submitted.
//!
//! The header's message mapping stands for the framing that such systems write into the stream;
//! segments do not cross messages. Everything else is TCP as Linux runs it, as far as it matters in
//! a data center: SACK (RFC 2018, 2883, 6675) or NewReno (RFC 6582) recovery, limited transmit
//! (RFC 3042), RTO (RFC 6298), tail loss probes (RFC 8985), delayed acknowledgements, ECN
//! (RFC 3168), and the windows of NewReno, CUBIC (RFC 9438) and DCTCP (RFC 8257). Congestion controllers have an
//! interface of their own (`congestion`), with per-acknowledgement delays and pacing for those that use them.
//! Not implemented: timestamps, RACK, proportional rate reduction, `HyStart`, urgent data. Streams have a connection
//! each (see `stream`); only these half-close, and only their receivers close the window.
//!
//! A server that cancels a request sends, in place of the response, a notice that there is none: a segment with FIN and
//! the response's id, which occupies one sequence number. The request then fails at the client. An RPC system over
//! TCP frames such an error in its stream; ending the connection would fail the other messages on it too.
//!
//! # Opening
//! Without [`Config::handshake`] data are sent at once. Until the client has received a segment from its peer,
//! its segments carry SYN and no ACK, and the acknowledgement field, which is unused then, holds the start of
//! the stream: so any segment of the first window can open the connection at the
//! server, and after a restart of either end no old connection is continued by accident. (This is
//! ours, because TCP Fast Open, RFC 7413, opens with the first segment only.)
//!
//! # Memory
//! Whatever arrives, a host holds at most [`Config::max_connections`] connections, its own and its peers',
//! and [`Config::max_messages`] messages that it has submitted; more are refused with `Busy`, or not let
//! in. A connection holds up to [`Config::max_ranges`] ranges that came out of order, and the ids of
//! the messages that begin within its receive window. Besides there are 256 packets without a
//! connection and 1024 connections that are remembered as ended. What a silent peer leaves is
//! forgotten when its retransmissions or keep-alives are used up (`FailReason::PeerSilent`), or,
//! where nothing waits for it, after [`Config::idle_timeout`].

mod config;
mod congestion;
mod connection;
mod host;
mod profile;
mod receiver;
mod rtt;
mod send_times;
mod sender;
mod stream;
mod timers;

#[cfg(test)]
mod tests;

pub use config::{Config, CongestionControl};
pub use host::Host;
