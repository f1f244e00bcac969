//! To call others.

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
use crate::state::{Order, Outcome, Owner};
use crate::stream::Stream;

/// Calls others, from a [`Node`](crate::Node). Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    owner: Arc<Owner>,
}

impl Client {
    pub(crate) const fn new(owner: Arc<Owner>) -> Self {
        Self { owner }
    }

    /// A call: `bytes` go to the peer, what its server answers is the result. Nothing happens until the call is
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
        self.order(peer, Kind::Request, bytes.into(), |answer| answer)
    }

    /// A message without an answer. Awaiting it ends when the peer's node has the message; whether its
    /// application takes it, nobody says.
    pub fn send(&self, peer: Peer, bytes: impl Into<Bytes>) -> Call<()> {
        self.order(peer, Kind::OneWay, bytes.into(), |_| ())
    }

    fn order<T>(&self, peer: Peer, kind: Kind, bytes: Bytes, result: fn(Bytes) -> T) -> Call<T> {
        let order = Order { peer, kind, bytes, deadline: None, idempotent: false, waits: true };
        Call { owner: Arc::clone(&self.owner), order, result }
    }

    /// Opens a stream. The peer learns of it with the first bytes that are written, or the end of them.
    ///
    /// # Errors
    /// If the transport has no streams or no room, or the node has stopped.
    pub fn stream(&self, peer: Peer) -> Result<Stream, CallError> {
        self.open(peer, None)
    }

    /// As [`Client::stream`]; if the stream has not ended in both directions after this time, it fails at
    /// both ends.
    ///
    /// # Errors
    /// As [`Client::stream`].
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

/// A call, or a one-way message, before it is made: await it.
#[must_use = "nothing is sent until it is awaited"]
pub struct Call<T = Bytes> {
    owner: Arc<Owner>,
    order: Order,
    result: fn(Bytes) -> T,
}

impl<T> Call<T> {
    /// It fails if there is no answer after so long. A server that has not begun with it by then does not
    /// begin. `Duration::MAX`: no deadline.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.order.deadline = Some(deadline);
        self
    }

    /// It may be executed more than once: if the server restarts, it is made again, within its deadline.
    /// Otherwise it fails then.
    pub const fn idempotent(mut self) -> Self {
        self.order.idempotent = true;
        self
    }

    /// It fails at once with [`CallError::Full`] if there is no room to send it. Otherwise it waits for
    /// room, within its deadline.
    pub const fn without_waiting(mut self) -> Self {
        self.order.waits = false;
        self
    }
}

impl<T> IntoFuture for Call<T> {
    type Output = Result<T, CallError>;
    type IntoFuture = CallFuture<T>;

    fn into_future(self) -> CallFuture<T> {
        let Self { owner, order, result } = self;
        CallFuture { owner, stage: Stage::Ordered(Some(order)), result }
    }
}

/// A call that is made when it is first polled, and cancelled when it is dropped: the client forgets it, and its
/// answer is not taken. A server that has it already goes on.
#[must_use = "nothing is sent until it is awaited"]
pub struct CallFuture<T = Bytes> {
    owner: Arc<Owner>,
    stage: Stage,
    result: fn(Bytes) -> T,
}

#[derive(Debug)]
enum Stage {
    Ordered(Option<Order>),
    Made { token: u64, outcome: oneshot::Receiver<Outcome> },
    Done,
}

impl<T> Future for CallFuture<T> {
    type Output = Result<T, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Stage::Ordered(order) = &mut self.stage {
            let Some(order) = order.take() else { unreachable!("it is made once") };
            if order.peer.node != self.owner.0.number {
                self.stage = Stage::Done;
                return Poll::Ready(Err(CallError::UnknownPeer));
            }
            let (done, outcome) = oneshot::channel();
            let begun = self.owner.0.lock().begin_call(order, done);
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
        // The state never forgets a call without telling it.
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
        f.debug_struct("Call").field("order", &self.order).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for CallFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallFuture").field("stage", &self.stage).finish_non_exhaustive()
    }
}
