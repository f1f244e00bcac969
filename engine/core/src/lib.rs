//! The types that everything in Rackweave shares: time, rates, ids, packets, the traits
//! of transports and switch programs, and named random streams.
//!
//! Nothing here does I/O, reads a clock or owns a thread. The same state
//! machines written against these traits run in the simulator and on Linux.
//!
//! ```
//! use rackweave_core::{Framing, Rate, Rng, Span, Time};
//!
//! // When does a message of 10 KB arrive over an idle 25-Gbps link of 1 us?
//! let link: Rate = "25 Gbps".parse()?;
//! let delay: Span = "1 us".parse()?;
//! let framing = Framing { max_payload: 1460, header_bytes: 40, spray_above_bytes: u32::MAX };
//! let arrival = Time::ZERO + link.span_of(framing.message_wire_bytes(10_000)) + delay;
//! assert_eq!(arrival.to_string(), "4.375 us");
//!
//! // Random numbers are drawn from named streams: the same seed gives the same run.
//! let mut sizes = Rng::stream(1, 0, 0, "sizes");
//! assert_eq!(sizes.below(100), Rng::stream(1, 0, 0, "sizes").below(100));
//! # Ok::<(), rackweave_core::ParseUnitError>(())
//! ```
//!
//! - [`time`]: [`Time`] and [`Span`], in ticks of 10 picoseconds.
//! - [`units`]: [`Rate`] and [`Bytes`], with parsing ("10 Gbps", "86 KB") and printing.
//! - [`ids`]: [`HostId`], [`MessageId`].
//! - [`packet`]: [`Packet`], [`Slice`] and the [`Header`] trait; [`frame`]: the overhead of Ethernet.
//! - [`transport`]: the [`Transport`] trait, its commands and its events.
//! - [`node`]: [`Node`], the contract of every protocol state machine of a host.
//! - [`queue`]: [`Pool`] and [`Fifo`]; [`program`]: [`SwitchProgram`].
//! - [`prefetch`](mod@prefetch): requests for cache lines ahead of their use.
//! - [`telemetry`]: what switches write into packets.
//! - [`rng`]: named random streams, [`Rng::stream`].
//! - [`ranges`]: [`RangeSet`], [`Assembler`]; [`bitmap`]: [`Bitmap`]; [`rtt`]: [`RttEstimator`]; [`schedule`]: [`Schedule`]; [`text`]: texts of others.

pub mod bitmap;
pub mod carried;
pub mod frame;
pub mod ids;
pub mod mixed;
pub mod node;
pub mod packet;
pub mod prefetch;
pub mod program;
pub mod queue;
pub mod ranges;
pub mod rng;
pub mod rtt;
pub mod schedule;
pub mod telemetry;
pub mod text;
pub mod time;
pub mod transport;
pub mod units;

pub use bitmap::Bitmap;
pub use frame::Framing;
pub use ids::{HostId, MessageId, Port};
pub use mixed::Mixed;
pub use node::Node;
pub use packet::{Ecn, Header, Packet, Rank, Slice};
pub use prefetch::{prefetch, prefetch_two};
pub use program::{Destination, Egress, PayloadStore, PortSet, SwitchProgram, Verdict};
pub use queue::{Admission, DropReason, Fifo, PacketRef, Pool};
pub use ranges::{Assembler, RangeSet, TooManyRanges};
pub use rng::Rng;
pub use rtt::RttEstimator;
pub use schedule::Schedule;
pub use text::{is_hidden, visible};
pub use time::{Span, Time};
pub use transport::{
    Event, FailReason, Kind, Open, Placement, RecoveryCounters, Refused, RoundTrip, StreamEvent,
    Submit, Transport,
};
pub use units::{Bytes, ParseUnitError, Rate};
