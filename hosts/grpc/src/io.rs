//! Byte streams over any carrier: the client opens them by a [`Dial`], and the server gets them as [`Accepted`].

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Opens streams to one server.
pub trait Dial: Clone + Send + Sync + 'static {
    /// The type of stream. Dropping it before its end notifies the other side.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Opens a new stream.
    fn dial(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// The carrier of single messages to the same server and back, if there is one: see
    /// [`direct`](crate::direct).
    fn messages(&self) -> Option<Messages> {
        None
    }
}

/// A node's calls to one peer: one message, one response.
#[derive(Clone, Debug)]
pub struct Messages {
    pub(crate) client: rackweave_rpc::Client,
    pub(crate) peer: rackweave_rpc::Peer,
}

/// An incoming stream and its client.
pub struct Accepted<S> {
    /// The stream itself.
    pub stream: S,
    /// The client's address, which `tonic::Request::remote_addr` returns.
    pub info: TcpConnectInfo,
}

impl<S> fmt::Debug for Accepted<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accepted").field("info", &self.info).finish_non_exhaustive()
    }
}

impl<S> Connected for Accepted<S> {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.info.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Accepted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Accepted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
