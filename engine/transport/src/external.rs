//! Transports that are not in this repository.
//!
//! A crate of one's own implements a transport with the headers of [`rackweave_wire::external`]: on [`Driven`] as a [`Scheme`] with
//! [`Parameters`], or else as a [`Profile`] and a [`Transport`]. [`Config::new`] makes it one of the transports of
//! [`TransportConfig`](crate::TransportConfig). Only this variant calls through a pointer: the others are dispatched as before.
//! `rackweave new-transport` writes such a crate.

use core::any::Any;
use core::error::Error;
use core::fmt::Debug;
use std::sync::Arc;

use rackweave_core::{Framing, HostId, Packet, Span, Time, Transport};
pub use rackweave_wire::external::{Body, Header, size};

pub use crate::common::{
    Arrival, Arriving, Driven, Heap, Jitter, Parameters, Place, Scheme, Sending,
};
use crate::profile::{CountedFeedback, Feedback, Profile};

/// One host's instance of an external transport.
pub type Host = Box<dyn Machine>;

/// What a state machine of an external transport is: implemented for each that can be.
pub trait Machine: Transport<Header = Header> + Debug + Send {}

impl<T: Transport<Header = Header> + Debug + Send> Machine for T {}

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
    fn feedback(&self) -> Feedback;
    fn counted_feedback(&self) -> Option<CountedFeedback>;
    fn max_message_bytes(&self) -> u64;
    fn has_streams(&self) -> bool;
    fn over_udp(&self) -> Config;
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

    fn feedback(&self) -> Feedback {
        Profile::feedback(self)
    }

    fn counted_feedback(&self) -> Option<CountedFeedback> {
        Profile::counted_feedback(self)
    }

    fn max_message_bytes(&self) -> u64 {
        Profile::max_message_bytes(self)
    }

    fn has_streams(&self) -> bool {
        Profile::has_streams(self)
    }

    fn over_udp(&self) -> Config {
        Config::new(Profile::over_udp(self.clone()))
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

    fn feedback(&self) -> Feedback {
        self.0.feedback()
    }

    fn counted_feedback(&self) -> Option<CountedFeedback> {
        self.0.counted_feedback()
    }

    fn max_message_bytes(&self) -> u64 {
        self.0.max_message_bytes()
    }

    fn has_streams(&self) -> bool {
        self.0.has_streams()
    }

    fn over_udp(self) -> Self {
        self.0.over_udp()
    }

    fn patient(self, at_least: Span) -> Self {
        self.0.patient(at_least)
    }
}
