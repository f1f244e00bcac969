//! What goes with packets and with switches.

use core::fmt;
use core::marker::PhantomData;

use rackweave_core::{Header, Packet, Port, Rng, SwitchProgram, Time, Verdict};

/// What is attached to packets under way: their bytes, if they have any.
///
/// Each packet in the fabric owns what its header names. The fabric asks for copies, and gives back what it drops.
pub trait Bodies<H: Header> {
    /// The packet is gone.
    fn release(&mut self, packet: &Packet<H>);

    /// The header of another packet like this one, with bytes of its own. `None`: there is no room.
    fn copy(&mut self, packet: &Packet<H>) -> Option<H>;

    /// Damages its bytes. False: that can't be shown, and it is dropped in place of being damaged.
    fn damage(&mut self, packet: &mut Packet<H>, rng: &mut Rng) -> bool;
}

/// Simulated packets name their bytes and own none; of a damaged one nobody reads more than that it is damaged.
impl<H: Header> Bodies<H> for () {
    #[inline]
    fn release(&mut self, _packet: &Packet<H>) {}

    #[inline]
    fn copy(&mut self, packet: &Packet<H>) -> Option<H> {
        Some(packet.header)
    }

    #[inline]
    fn damage(&mut self, _packet: &mut Packet<H>, _rng: &mut Rng) -> bool {
        false
    }
}

/// The program of a switch that only forwards: it takes no time at all.
pub struct Plain<H>(PhantomData<H>);

impl<H> Plain<H> {
    /// The program; all are alike.
    #[must_use]
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<H> Default for Plain<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H> Clone for Plain<H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for Plain<H> {}

impl<H> fmt::Debug for Plain<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Plain")
    }
}

impl<H: Header> SwitchProgram for Plain<H> {
    type Header = H;

    #[inline]
    fn handle_packet(&mut self, _now: Time, _port: Port, _packet: &mut Packet<H>) -> Verdict {
        Verdict::Route
    }
}
