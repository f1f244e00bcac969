//! The serving side of a node.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::{MessageId, Time};
use tokio::sync::oneshot;

use crate::error::CallError;
use crate::node::Peer;
use crate::state::{Arrived, Owner};
use crate::stream::Stream;
use crate::trailer::{self, Status};

/// Takes incoming work of a [`Node`](crate::Node). Clones share it: each request goes to one of them.
#[derive(Debug)]
pub struct Server {
    owner: Arc<Owner>,
}

/// A piece of work that a server receives.
#[derive(Debug)]
#[non_exhaustive]
pub enum Incoming {
    /// A call to answer.
    Request(Request),
    /// A message without a response.
    OneWay(OneWay),
    /// A stream that a client has opened.
    Stream(Stream),
}

impl Server {
    pub(crate) fn new(owner: Arc<Owner>) -> Self {
        owner.0.lock().add_server();
        Self { owner }
    }

    /// The next piece of work; `None` when the node has stopped or shuts down. The future may be dropped and
    /// `next` called again without losing anything.
    pub async fn next(&self) -> Option<Incoming> {
        let shared = &self.owner.0;
        loop {
            let arrival = shared.arrivals.notified();
            let next = shared.lock().next_arrived();
            match next {
                Ok(Some((arrived, peer))) => return Some(self.incoming(arrived, peer)),
                Ok(None) => arrival.await,
                Err(()) => return None,
            }
        }
    }

    fn incoming(&self, arrived: Arrived, peer: Peer) -> Incoming {
        let owner = Arc::clone(&self.owner);
        match arrived {
            Arrived::Request { id, bytes, until, .. } => {
                Incoming::Request(Request { owner, peer, id, bytes, until, answered: false })
            }
            Arrived::OneWay { bytes, .. } => Incoming::OneWay(OneWay { peer, bytes }),
            Arrived::Stream(key) => Incoming::Stream(Stream::new(owner, key, peer)),
        }
    }
}

impl Clone for Server {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.owner))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.owner.0.lock().remove_server();
    }
}

/// A call to answer. Dropping it without a response fails the call at its client
/// ([`CallError::Unanswered`]).
#[derive(Debug)]
#[must_use = "its client waits for an answer"]
pub struct Request {
    owner: Arc<Owner>,
    peer: Peer,
    id: MessageId,
    bytes: Bytes,
    until: Time,
    answered: bool,
}

impl Request {
    /// Returns the client that made the call.
    #[must_use]
    pub const fn peer(&self) -> Peer {
        self.peer
    }

    /// Returns the request's bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Takes the request's bytes and leaves none.
    #[must_use]
    pub fn take_bytes(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes)
    }

    /// Returns how long the client still waits; `None` if it waits without limit.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        (self.until < Time::MAX).then(|| self.owner.0.lock().time_left(self.until))
    }

    /// Answers the call. Completes when the node has accepted the response, which may have to wait for room; the node
    /// then delivers it.
    ///
    /// # Errors
    /// If the response is too long (the client's call then fails), or the client has restarted or
    /// disappeared.
    pub async fn respond(mut self, bytes: impl Into<Bytes>) -> Result<(), CallError> {
        let answer = trailer::answer(bytes.into(), Status::Answer);
        let waits = {
            let mut state = self.owner.0.lock();
            if !state.is_known(self.peer.host, self.id) {
                self.answered = true;
                return Err(CallError::PeerForgot { peer: self.peer.address });
            }
            let (done, taken) = oneshot::channel();
            let sent = state.answer(self.peer, self.id, answer, Some(done))?;
            state.submitted();
            if sent {
                state.forget_request(self.peer.host, self.id);
            }
            (!sent).then_some(taken)
        };
        if let Some(taken) = waits {
            taken.await.unwrap_or(Err(CallError::NodeStopped(None)))?;
            self.owner.0.lock().forget_request(self.peer.host, self.id);
        }
        self.answered = true;
        Ok(())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.answered {
            let mut state = self.owner.0.lock();
            state.refuse(self.peer.host, self.id, Status::Unanswered);
            state.submitted();
        }
    }
}

/// A message without a response.
#[derive(Clone, Debug)]
pub struct OneWay {
    peer: Peer,
    bytes: Bytes,
}

impl OneWay {
    /// Returns the node that sent the message.
    #[must_use]
    pub const fn peer(&self) -> Peer {
        self.peer
    }

    /// Returns the message's bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Takes the message's bytes and leaves none.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}
