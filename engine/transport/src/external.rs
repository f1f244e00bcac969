//! Transports that are not in this repository.
//!
//! A crate of one's own implements a transport with the headers of [`rackweave_wire::external`]: as a [`Sender`], whose receivers
//! acknowledge each packet; on [`Driven`] as a [`Scheme`] with [`Parameters`]; or else as a [`Profile`] and a [`Transport`].
//! [`Config::new`] makes it one of the transports of [`TransportConfig`](crate::TransportConfig). Only this variant calls through a
//! pointer. `rackweave new-transport` writes such a crate.

pub mod sender;
mod sequence;

use core::any::Any;
use core::error::Error;
use core::fmt::Debug;
use std::sync::Arc;

use rackweave_core::{Ecn, Framing, HostId, Packet, Placement, Span, Time, Transport};
pub use rackweave_wire::external::{Body, Header, size};
pub use sender::{Ack, Acknowledged, Sender};
pub use sequence::{Due, Piece, Sequence};

pub use crate::common::{
    Arrival, Arriving, Driven, Heap, Jitter, Parameters, Place, Scheme, Sending,
};
use crate::profile::{Control, Profile, Surroundings};

/// One host's instance of an external transport.
pub type Host = Box<dyn Machine>;

/// What a state machine of an external transport is: implemented for each that can be.
pub trait Machine: Transport<Header = Header> + Debug + Send {}

impl<T: Transport<Header = Header> + Debug + Send> Machine for T {}

/// The tags of [`Body::ToSender`] that tell what has arrived.
pub mod told {
    /// The answer to a data packet. Its words: how many packets have arrived in order; whether that packet was marked; the words of its
    /// header.
    pub const OF_DATA: u16 = 0;
    /// The answer to a question ([`Driven::ask`](super::Driven::ask)). Its first word is how many packets have arrived in order.
    pub const OF_ASK: u16 = 1;
}

/// The place of a data packet's payload; `None` if the packet has none, or lost it in a switch that trims.
#[must_use]
#[inline]
pub const fn of_data(packet: &Packet<Header>) -> Option<Place> {
    match packet.header.body {
        Body::Data { message_length, offset, len, .. } if !packet.is_trimmed() => {
            Some(Place { message_length, offset, len })
        }
        _ => None,
    }
}

impl<S: Scheme<Header = Header>> Driven<S> {
    /// Handles the packet types that have the same meaning in all transports.
    pub fn handle_common(&mut self, now: Time, from: HostId, header: &Header) {
        let id = header.id.get();
        match header.body {
            Body::Complete => self.handle_complete(now, from, id),
            Body::Known => self.handle_known(now, from, id),
            Body::Unknown => self.handle_unknown(now, from, id),
            Body::Ask => self.handle_ask_for_response(from, id, Body::Known),
            Body::Data { .. } | Body::ToReceiver { .. } | Body::ToSender { .. } => {}
        }
    }
}

impl<S: Scheme<Header = Header, Incoming = Arriving>> Driven<S> {
    /// Returns the packet of a piece of the message in a slot, which has `bytes`, with these words in its header; `None` if no message is
    /// sent there.
    pub fn data(
        &mut self,
        slot: u32,
        bytes: u32,
        piece: Piece,
        words: [u32; 2],
    ) -> Option<Packet<Header>> {
        let Sending { peer, id, one_way, .. } = self.sending(slot)?;
        let Piece { offset, len, .. } = piece;
        let body = Body::Data { message_length: bytes, offset, len, tag: 0, words };
        let l3_bytes = self.config().common().header_bytes + u32::from(len);
        Some(self.packet(peer, l3_bytes, 0, Header { id, one_way, body }))
    }

    /// Asks the receiver of the message in a slot, which has `bytes`, what has arrived.
    pub fn ask(&mut self, slot: u32, bytes: u32) {
        let Some(Sending { peer, id, one_way, .. }) = self.sending(slot) else { return };
        let body = Body::ToReceiver { tag: 0, words: [bytes, 0, 0, 0] };
        self.send_control(peer, id.get(), one_way, body);
    }

    /// Stores the payload of a data packet, and answers what has arrived ([`told::OF_DATA`]), or that the message is complete.
    pub fn acknowledge(&mut self, now: Time, packet: &Packet<Header>) -> Placement {
        let Some(place) = of_data(packet) else { return Placement::Discard };
        let Body::Data { words: [first, second], .. } = packet.header.body else {
            return Placement::Discard;
        };
        let gaps = self.config().common().max_gaps;
        let Some(arrival) = self.arrived(now, packet.src, &packet.header, place, gaps) else {
            return Placement::Discard;
        };
        let answer = match arrival.acknowledged {
            Some((next, _)) => {
                let marked = u32::from(packet.ecn() == Ecn::Marked);
                Body::ToSender { tag: told::OF_DATA, words: [next, marked, first, second] }
            }
            None => Body::Complete,
        };
        self.send_control(arrival.peer, arrival.id, arrival.one_way, answer);
        arrival.placement
    }

    /// Answers a sender that asks what has arrived of its message of this many bytes.
    pub fn answer(&mut self, now: Time, packet: &Packet<Header>, bytes: u32) {
        let (from, header) = (packet.src, &packet.header);
        if let Some((next, _)) = self.probed(now, from, header, bytes) {
            let answer = Body::ToSender { tag: told::OF_ASK, words: [next, 0, 0, 0] };
            self.send_control(from, header.id.get(), header.one_way, answer);
        }
    }
}

/// The parameters of an external transport.
#[derive(Clone, Debug)]
pub struct Config(Arc<dyn Erased>);

impl Config {
    /// Wraps the parameters.
    #[must_use]
    pub fn new<P>(parameters: P) -> Self
    where
        P: Profile<Host: Machine + 'static> + Debug + PartialEq + Send + Sync + 'static,
    {
        Self(Arc::new(parameters))
    }
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_equal(&*other.0)
    }
}

/// The parameters of an external transport are invalid.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Invalid(#[from] Box<dyn Error + Send + Sync>);

/// [`Profile`], without the types that differ from transport to transport.
trait Erased: Any + Debug + Send + Sync {
    fn host(self: Arc<Self>, id: HostId) -> Host;
    fn is_equal(&self, other: &dyn Erased) -> bool;
    fn name(&self) -> &'static str;
    fn check(&self) -> Result<(), Invalid>;
    fn framing(&self) -> Framing;
    fn control(&self, bytes: u64, at: &Surroundings) -> Control;
    fn counts_feedback(&self) -> bool;
    fn max_message_bytes(&self) -> u64;
    fn has_streams(&self) -> bool;
    fn lost_after(&self) -> Option<Span>;
    fn over_udp(&self) -> Config;
    fn patience(&self) -> Span;
    fn patient(&self, at_least: Span) -> Config;
}

impl<P> Erased for P
where
    P: Profile<Host: Machine + 'static> + Debug + PartialEq + Send + Sync + 'static,
{
    fn host(self: Arc<Self>, id: HostId) -> Host {
        Box::new(Profile::host(self, id))
    }

    fn is_equal(&self, other: &dyn Erased) -> bool {
        (other as &dyn Any).downcast_ref::<P>() == Some(self)
    }

    fn name(&self) -> &'static str {
        Profile::name(self)
    }

    fn check(&self) -> Result<(), Invalid> {
        Profile::check(self).map_err(|error| Invalid(error.into()))
    }

    fn framing(&self) -> Framing {
        Profile::framing(self)
    }

    fn control(&self, bytes: u64, at: &Surroundings) -> Control {
        Profile::control(self, bytes, at)
    }

    fn counts_feedback(&self) -> bool {
        Profile::counts_feedback(self)
    }

    fn max_message_bytes(&self) -> u64 {
        Profile::max_message_bytes(self)
    }

    fn has_streams(&self) -> bool {
        Profile::has_streams(self)
    }

    fn lost_after(&self) -> Option<Span> {
        Profile::lost_after(self)
    }

    fn over_udp(&self) -> Config {
        Config::new(Profile::over_udp(self.clone()))
    }

    fn patience(&self) -> Span {
        Profile::patience(self)
    }

    fn patient(&self, at_least: Span) -> Config {
        Config::new(Profile::patient(self.clone(), at_least))
    }
}

impl Profile for Config {
    type Host = Host;
    type Error = Invalid;

    /// None that is known here.
    const NAMES: &'static [&'static str] = &[];

    fn host(self: Arc<Self>, id: HostId) -> Host {
        Arc::clone(&self.0).host(id)
    }

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn check(&self) -> Result<(), Invalid> {
        self.0.check()
    }

    fn framing(&self) -> Framing {
        self.0.framing()
    }

    fn control(&self, bytes: u64, at: &Surroundings) -> Control {
        self.0.control(bytes, at)
    }

    fn counts_feedback(&self) -> bool {
        self.0.counts_feedback()
    }

    fn max_message_bytes(&self) -> u64 {
        self.0.max_message_bytes()
    }

    fn has_streams(&self) -> bool {
        self.0.has_streams()
    }

    fn lost_after(&self) -> Option<Span> {
        self.0.lost_after()
    }

    fn over_udp(self) -> Self {
        self.0.over_udp()
    }

    fn patience(&self) -> Span {
        self.0.patience()
    }

    fn patient(self, at_least: Span) -> Self {
        self.0.patient(at_least)
    }
}
