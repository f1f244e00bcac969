//! gRPC over a Rackweave node.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rackweave_rpc::{CallError, Client, Incoming, Node, Peer, Server, Stream};
use tonic::transport::Channel;
use tonic::transport::server::TcpConnectInfo;
use tonic::{Code, Status};

use crate::direct::{self, Limits};
use crate::io::Messages;
use crate::{Accepted, Dial, http2};

/// Creates an HTTP/2 channel from a node to the server at an address: [`http2::channel`] over one stream of the node.
#[must_use]
pub fn connect(node: &Node, address: SocketAddr) -> Channel {
    http2::channel(DialPeer::new(node, node.peer(address)))
}

/// Creates a direct channel from a node to the server at an address, which runs [`direct::Server::serve_node`].
#[must_use]
pub fn connect_directly(node: &Node, address: SocketAddr) -> direct::Channel<DialPeer> {
    direct::Channel::new(DialPeer::new(node, node.peer(address)), Limits::default())
}

/// Returns the streams that clients open to a node, for `serve_with_incoming` of tonic's server. It ends when the node
/// stops. Requests and one-way messages are refused.
pub fn incoming(server: Server) -> IncomingStreams {
    IncomingStreams { next: Some(Box::pin(next(server))) }
}

/// Opens streams to a peer.
#[derive(Clone, Debug)]
pub struct DialPeer {
    client: Client,
    peer: Peer,
}

impl DialPeer {
    /// Opens streams from a node to one of its peers: [`Node::peer`] or, behind a user-space switch, [`Node::host`].
    #[must_use]
    pub fn new(node: &Node, peer: Peer) -> Self {
        Self { client: node.client(), peer }
    }
}

impl Dial for DialPeer {
    type Stream = Stream;

    async fn dial(&self) -> io::Result<Stream> {
        Ok(self.client.stream(self.peer)?)
    }

    fn messages(&self) -> Option<Messages> {
        Some(Messages { client: self.client.clone(), peer: self.peer })
    }
}

type Next = Pin<Box<dyn Future<Output = Option<(Stream, Server)>> + Send>>;

/// The stream of connections that [`incoming`] returns.
#[must_use = "streams do nothing unless polled"]
pub struct IncomingStreams {
    next: Option<Next>,
}

async fn next(server: Server) -> Option<(Stream, Server)> {
    loop {
        // Requests and messages are dropped, and so refused.
        if let Incoming::Stream(stream) = server.next().await? {
            return Some((stream, server));
        }
    }
}

impl fmt::Debug for IncomingStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingStreams").finish_non_exhaustive()
    }
}

impl tokio_stream::Stream for IncomingStreams {
    type Item = io::Result<Accepted<Stream>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(waiting) = &mut self.next else { return Poll::Ready(None) };
        let came = ready!(waiting.as_mut().poll(cx));
        self.next = None;
        Poll::Ready(came.map(|(stream, server)| {
            self.next = Some(Box::pin(next(server)));
            let remote_addr = Some(stream.peer().address());
            Ok(Accepted { stream, info: TcpConnectInfo { local_addr: None, remote_addr } })
        }))
    }
}

/// Returns the gRPC status for a stream's failure.
pub(crate) fn failed(error: &io::Error) -> Status {
    let reason = error.get_ref().and_then(|inner| inner.downcast_ref::<CallError>());
    let code = match reason {
        Some(CallError::Deadline { .. } | CallError::StreamDeadline) => Code::DeadlineExceeded,
        Some(CallError::Cancelled) => Code::Cancelled,
        Some(CallError::NoStreams) => Code::FailedPrecondition,
        Some(CallError::Full { .. } | CallError::TooLong { .. }) => Code::ResourceExhausted,
        _ => Code::Unavailable,
    };
    Status::new(code, error.to_string())
}
