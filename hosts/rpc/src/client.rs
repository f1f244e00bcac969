//! The calling side of a node.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::Kind;
use tokio::sync::oneshot;

use crate::error::CallError;
use crate::node::Peer;
use crate::state::{CallOptions, Outcome, Owner};
use crate::stream::Stream;

/// Makes calls from a [`Node`](crate::Node). Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    owner: Arc<Owner>,
}

impl Client {
    pub(crate) const fn new(owner: Arc<Owner>) -> Self {
        Self { owner }
    }

    /// Prepares a call: the peer's server gets `bytes`, and its response is the result. Nothing is sent until the call is
    /// awaited.
    ///
    /// ```no_run
    /// # use rackweave_rpc::{Bytes, CallError, Client, Peer};
    /// # use std::time::Duration;
    /// # async fn example(client: Client, peer: Peer) -> Result<(), CallError> {
    /// let answer: Bytes = client.call(peer, "how many?").deadline(Duration::from_millis(50)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn call(&self, peer: Peer, bytes: impl Into<Bytes>) -> Call {
        self.prepare(peer, Kind::Request, bytes.into(), |answer| answer)
    }

    /// Prepares a one-way message. Awaiting it completes when the peer's node has the message, which does not mean that its
    /// application takes it.
    pub fn send(&self, peer: Peer, bytes: impl Into<Bytes>) -> Call<()> {
        self.prepare(peer, Kind::OneWay, bytes.into(), |_| ())
    }

    fn prepare<T>(&self, peer: Peer, kind: Kind, bytes: Bytes, result: fn(Bytes) -> T) -> Call<T> {
        let options =
            CallOptions { peer, kind, bytes, deadline: None, idempotent: false, waits: true };
        Call { owner: Arc::clone(&self.owner), options, result }
    }

    /// Opens a stream. The peer learns of it with the first bytes that are written, or with their end.
    ///
    /// # Errors
    /// If the transport has no streams or no room, or the node has stopped.
    pub fn stream(&self, peer: Peer) -> Result<Stream, CallError> {
        self.open(peer, None)
    }

    /// [`Client::stream`] with a deadline: if the stream has not ended in both directions by then, it fails at
    /// both ends.
    ///
    /// # Errors
    /// The same as for [`Client::stream`].
    pub fn stream_with_deadline(
        &self,
        peer: Peer,
        deadline: Duration,
    ) -> Result<Stream, CallError> {
        self.open(peer, Some(deadline))
    }

    fn open(&self, peer: Peer, deadline: Option<Duration>) -> Result<Stream, CallError> {
        if peer.node != self.owner.0.number {
            return Err(CallError::UnknownPeer);
        }
        let key = self.owner.0.lock().open_stream(peer, deadline)?;
        Ok(Stream::new(Arc::clone(&self.owner), key, peer))
    }
}

/// A call or one-way message that has not been made yet: await it.
#[must_use = "nothing is sent until it is awaited"]
pub struct Call<T = Bytes> {
    owner: Arc<Owner>,
    options: CallOptions,
    result: fn(Bytes) -> T,
}

impl<T> Call<T> {
    /// The call fails if there is no response within this time. A server that has not started on it by then does not
    /// start. `Duration::MAX`: no deadline.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = Some(deadline);
        self
    }

    /// Allows the call to be executed more than once: if the server restarts, it is retried within its deadline.
    /// Otherwise it fails then. With [tickets](crate::NodeConfig::tickets), it may be sent before the handshake, and someone on the
    /// path can have it executed again then, up to fifteen seconds later: after calls that the client has made since.
    pub const fn idempotent(mut self) -> Self {
        self.options.idempotent = true;
        self
    }

    /// Fails at once with [`CallError::Full`] if there is no room to send the call. Otherwise it waits for
    /// room, within its deadline.
    pub const fn without_waiting(mut self) -> Self {
        self.options.waits = false;
        self
    }
}

impl<T> IntoFuture for Call<T> {
    type Output = Result<T, CallError>;
    type IntoFuture = CallFuture<T>;

    fn into_future(self) -> CallFuture<T> {
        let Self { owner, options, result } = self;
        CallFuture { owner, stage: Stage::Ordered(Some(options)), result }
    }
}

/// A call that is made when it is first polled, and cancelled when it is dropped: the client forgets it and ignores
/// its response. A server that has received it continues.
#[must_use = "nothing is sent until it is awaited"]
pub struct CallFuture<T = Bytes> {
    owner: Arc<Owner>,
    stage: Stage,
    result: fn(Bytes) -> T,
}

#[derive(Debug)]
enum Stage {
    Ordered(Option<CallOptions>),
    Made { token: u64, outcome: oneshot::Receiver<Outcome> },
    Done,
}

impl<T> Future for CallFuture<T> {
    type Output = Result<T, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Stage::Ordered(options) = &mut self.stage {
            let Some(options) = options.take() else { unreachable!("it is made once") };
            if options.peer.node != self.owner.0.number {
                self.stage = Stage::Done;
                return Poll::Ready(Err(CallError::UnknownPeer));
            }
            let (done, outcome) = oneshot::channel();
            let begun = self.owner.0.lock().start_call(options, done);
            match begun {
                Ok(token) => self.stage = Stage::Made { token, outcome },
                Err(error) => {
                    self.stage = Stage::Done;
                    return Poll::Ready(Err(error));
                }
            }
        }
        let Stage::Made { outcome, .. } = &mut self.stage else {
            panic!("a call was polled after it had ended");
        };
        let Poll::Ready(outcome) = Pin::new(outcome).poll(cx) else { return Poll::Pending };
        self.stage = Stage::Done;
        // The state reports the end of every call that it forgets.
        let outcome = outcome.unwrap_or(Err(CallError::NodeStopped(None)));
        Poll::Ready(outcome.map(self.result))
    }
}

impl<T> Drop for CallFuture<T> {
    fn drop(&mut self) {
        if let Stage::Made { token, .. } = self.stage {
            self.owner.0.lock().cancel_call(token);
        }
    }
}

impl<T> fmt::Debug for Call<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for CallFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallFuture").field("stage", &self.stage).finish_non_exhaustive()
    }
}
