//! Streams of bytes between two nodes.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::error::CallError;
use crate::node::Peer;
use crate::state::{Owner, StreamKey};

/// A bidirectional, ordered stream of bytes, as over a TCP connection. It implements [`AsyncRead`] and [`AsyncWrite`];
/// [`read_chunk`](Stream::read_chunk) and [`write_chunk`](Stream::write_chunk) avoid copies.
///
/// - `shutdown` ends this end's direction: the peer reads what was written, then the end.
/// - Dropped **without** `shutdown` it is reset: the peer sees an error, and never mistakes a part of the data for the
///   whole. Dropped after it, what was written still arrives; data from the peer is not read.
/// - Writing waits while [`write_ahead`](crate::NodeConfig::write_ahead) bytes are not acknowledged by the peer;
///   the peer's node acknowledges at most a window beyond what its application has read.
#[derive(Debug)]
pub struct Stream {
    read: ReadHalf,
    write: WriteHalf,
}

impl Stream {
    pub(crate) fn new(owner: Arc<Owner>, key: StreamKey, peer: Peer) -> Self {
        let half = Half { owner, key, peer };
        Self { read: ReadHalf(half.clone()), write: WriteHalf(half) }
    }

    /// Returns the node at the other end.
    #[must_use]
    pub const fn peer(&self) -> Peer {
        self.read.0.peer
    }

    /// Returns the next bytes that have arrived; `None` if the peer has ended its direction.
    ///
    /// # Errors
    /// If the stream has failed and all earlier data has been read.
    pub async fn read_chunk(&mut self) -> Result<Option<Bytes>, CallError> {
        self.read.read_chunk().await
    }

    /// Writes all of these bytes, without copying them.
    ///
    /// # Errors
    /// If the stream has failed, or this direction was ended.
    pub async fn write_chunk(&mut self, bytes: impl Into<Bytes>) -> Result<(), CallError> {
        self.write.write_chunk(bytes).await
    }

    /// Waits until the peer has everything that was written.
    ///
    /// # Errors
    /// If the stream has failed.
    pub async fn acknowledged(&mut self) -> Result<(), CallError> {
        self.write.acknowledged().await
    }

    /// Resets both directions. The peer gets an error ([`CallError::Reset`]).
    pub fn reset(self) {
        self.read.0.owner.0.lock().reset_stream(self.read.0.key);
    }

    /// Splits the stream into its two directions, for two tasks.
    #[must_use]
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        (self.read, self.write)
    }
}

#[derive(Clone, Debug)]
struct Half {
    owner: Arc<Owner>,
    key: StreamKey,
    peer: Peer,
}

/// The receiving direction. If it is dropped, further data is discarded.
#[derive(Debug)]
pub struct ReadHalf(Half);

/// The sending direction. If it is dropped without `shutdown`, the stream is reset.
#[derive(Debug)]
pub struct WriteHalf(Half);

impl Drop for ReadHalf {
    fn drop(&mut self) {
        self.0.owner.0.lock().drop_reader(self.0.key);
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        self.0.owner.0.lock().drop_writer(self.0.key);
    }
}

impl ReadHalf {
    /// Returns the node at the other end.
    #[must_use]
    pub const fn peer(&self) -> Peer {
        self.0.peer
    }

    /// Returns the next bytes that have arrived; see [`Stream::read_chunk`].
    ///
    /// # Errors
    /// The same as for [`Stream::read_chunk`].
    pub async fn read_chunk(&mut self) -> Result<Option<Bytes>, CallError> {
        poll_fn(|cx| self.poll_read_chunk(cx)).await
    }

    /// [`ReadHalf::read_chunk`] as a poll function.
    pub fn poll_read_chunk(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, CallError>> {
        self.0.owner.0.lock().poll_read(cx, self.0.key, usize::MAX)
    }
}

impl WriteHalf {
    /// Returns the node at the other end.
    #[must_use]
    pub const fn peer(&self) -> Peer {
        self.0.peer
    }

    /// Writes all of these bytes without copying; see [`Stream::write_chunk`].
    ///
    /// # Errors
    /// The same as for [`Stream::write_chunk`].
    pub async fn write_chunk(&mut self, bytes: impl Into<Bytes>) -> Result<(), CallError> {
        let mut bytes = bytes.into();
        while !bytes.is_empty() {
            poll_fn(|cx| self.poll_write_some(cx, &mut bytes)).await?;
        }
        Ok(())
    }

    /// Writes as many of these bytes as there is room for, and removes them from `bytes`.
    fn poll_write_some(
        &mut self,
        cx: &Context<'_>,
        bytes: &mut Bytes,
    ) -> Poll<Result<(), CallError>> {
        let mut state = self.0.owner.0.lock();
        let room = ready!(state.poll_room(cx, self.0.key))?;
        let part = bytes.slice(..room.min(bytes.len()));
        ready!(state.poll_write(cx, self.0.key, &part, false))?;
        let _ = bytes.split_to(part.len());
        Poll::Ready(Ok(()))
    }

    /// Waits until the peer has everything that was written; see [`Stream::acknowledged`].
    ///
    /// # Errors
    /// The same as for [`Stream::acknowledged`].
    pub async fn acknowledged(&mut self) -> Result<(), CallError> {
        poll_fn(|cx| self.0.owner.0.lock().poll_acknowledged(cx, self.0.key)).await
    }

    /// Resets both directions. The peer gets an error.
    pub fn reset(self) {
        self.0.owner.0.lock().reset_stream(self.0.key);
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut state = self.0.owner.0.lock();
        if let Some(bytes) = ready!(state.poll_read(cx, self.0.key, buf.remaining()))? {
            buf.put_slice(&bytes);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut state = self.0.owner.0.lock();
        if state.is_finished(self.0.key) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = ready!(state.poll_room(cx, self.0.key))?;
        let part = Bytes::copy_from_slice(&bytes[..room.min(bytes.len())]);
        ready!(state.poll_write(cx, self.0.key, &part, false))?;
        Poll::Ready(Ok(part.len()))
    }

    /// Written data has already been passed to the endpoint.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.owner.0.lock();
        state.poll_finish(cx, self.0.key).map_err(Into::into)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.read).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.write).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_shutdown(cx)
    }
}
