//! Authenticated encryption of datagrams between two hosts that share a key. Nothing here does I/O, reads a clock or makes
//! random numbers: time and randomness are arguments.
//!
//! - [`Key`]: the secret that all hosts share. It derives the Noise pre-shared key and a key for tags from it.
//! - [`handshake`]: Noise NNpsk0 in one round trip, in which the host that is asked keeps no state.
//! - [`Session`]: keys by direction, packet protection with an AEAD, counters as nonces, and a replay [`Window`].
//! - [`GroupSeal`], [`GroupOpen`]: protection of packets that one host sends to many under one key.
//! - [`Ticket`], [`Tickets`]: resumption, so that the packets of some messages need not wait for the handshake.
//! - [`Association`]: all of this for one peer: which session seals, which ones open, when a new one is due, and whether the
//!   peer has restarted.
//! - [`Associations`]: the associations of a host with all its peers: whom it has asked, what it answers to strangers, and what
//!   waits for a session ([`Held`]).
//!
//! The layout of the datagrams is in [`rackweave_wire::secure`]; threats and design are in `docs/ops/security.md`.

mod association;
mod associations;
mod group;
pub mod handshake;
mod key;
mod limit;
mod resume;
mod session;
mod window;

pub use association::{
    Accepted, Association, Due, Early, LOST_INTERVAL, Local, Opened, RENEW_AFTER, RETRY, Unopened,
};
pub use associations::{
    Associations, Handled, Held, KeyMismatch, Peers, Refused, Sender, notice, read,
};
pub use group::{GROUP_EPOCH, GROUP_PACKETS, GroupOpen, GroupSeal};
pub use handshake::{Cipher, Offers, address_bytes};
pub use key::{Key, LEAST_BYTES, ShortSecret};
pub use resume::{
    EARLY_LIFETIME, EARLY_PACKETS, FRESH, NotResumed, STRIKES, TICKET_LIFETIME, Ticket, Tickets,
};
pub use session::{Exhausted, OpenError, RENEW_PACKETS, SEAL_PACKETS, Session};
pub use window::{WINDOW, Window};
