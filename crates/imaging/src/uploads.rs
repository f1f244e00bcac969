//! Sending chunks: a connection to each peer that has asked for some.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::HostId;
use rackweave_group::imaging::p2p::ChunkOf;
use rackweave_linux::sys::bind_late;
use rackweave_wire::frisbee::Auth;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::frames::{CHUNK_REPLY, ChunkHeader, ChunkReply};
use crate::hello::{self, HelloError, Purpose};
use crate::rate::Limiter;

/// After this time without a connection, what is to be sent does not count among the chunks that are being sent: peers that are not there must
/// not keep out those that are.
const CONNECTING: Duration = Duration::from_millis(100);
/// How long a peer may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// A chunk that takes longer than this does not count among those that are being sent. The choice is ours: eight chunks of 1 MiB that share
/// 13 Mbps take as long.
const SLOW: Duration = Duration::from_secs(5);
/// How long a peer may accept no byte, or take for its reply.
const STALL: Duration = Duration::from_secs(30);
/// A connection without chunks to send is closed after this time.
const IDLE: Duration = Duration::from_secs(15);

/// What has the chunks.
pub(crate) trait Holder: 'static {
    /// Returns the stored bytes of a chunk; `None` if they cannot be had.
    async fn chunk(&self, what: ChunkOf) -> Option<Bytes>;
    /// A peer has a chunk. The bytes are those that it has taken: none of a chunk that it had already.
    fn sent(&self, to: HostId, what: ChunkOf, bytes: u64);
    /// A chunk takes long to be sent.
    fn stalled(&self, to: HostId, what: ChunkOf);
    /// A chunk could not be had.
    fn unavailable(&self, to: HostId, what: ChunkOf);
    /// The connection to a peer has failed, so that it gets nothing that was queued for it.
    fn failed(&self, to: HostId, why: &UploadError);
}

/// Why nothing can be sent to a peer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    /// There is no connection.
    #[error("cannot connect to TCP port {port} of {address}: {source}")]
    Connect { address: Ipv4Addr, port: u16, source: HelloError },
    /// The connection has failed.
    #[error("cannot send: {0}")]
    Send(#[from] io::Error),
}

/// A peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) host: HostId,
    pub(crate) address: Ipv4Addr,
}

/// The connections of a process to those that it serves.
#[derive(Debug)]
pub(crate) struct Uploads {
    /// What is to be sent to each peer. The machine limits how much it is.
    queues: RefCell<BTreeMap<HostId, UnboundedSender<ChunkOf>>>,
    port: u16,
    auth: Auth,
    limiter: Limiter,
}

impl Uploads {
    pub(crate) const fn new(port: u16, auth: Auth, limiter: Limiter) -> Self {
        Self { queues: RefCell::new(BTreeMap::new()), port, auth, limiter }
    }

    /// Sends a chunk to a peer from the address `own`.
    pub(crate) fn push<H: Holder>(
        self: &Rc<Self>,
        holder: &Rc<H>,
        own: Ipv4Addr,
        to: Peer,
        what: ChunkOf,
    ) {
        let mut queues = self.queues.borrow_mut();
        let queue = queues.entry(to.host).or_insert_with(|| {
            let (queue, queued) = unbounded_channel();
            let (this, holder) = (Rc::clone(self), Rc::clone(holder));
            spawn_local(async move { this.serve(&*holder, own, to, queued).await });
            queue
        });
        // The task removes the queue from the map before it drops the receiver.
        let _ = queue.send(what);
    }

    async fn serve<H: Holder>(
        &self,
        holder: &H,
        own: Ipv4Addr,
        to: Peer,
        mut queued: UnboundedReceiver<ChunkOf>,
    ) {
        let result = self.send_all(holder, own, to, &mut queued).await;
        // Nothing can be queued between the last look at the queue and its removal, as there is one thread.
        self.queues.borrow_mut().remove(&to.host);
        if let Err(why) = result {
            holder.failed(to.host, &why);
        }
    }

    async fn connect(&self, own: Ipv4Addr, to: Peer) -> Result<TcpStream, HelloError> {
        let socket = TcpSocket::new_v4()?;
        bind_late(&socket)?;
        socket.bind(SocketAddr::from((own, 0)))?;
        let connected = timeout(CONNECT, socket.connect((to.address, self.port).into())).await;
        let mut stream = connected.map_err(io::Error::from)??;
        stream.set_nodelay(true)?;
        hello::connect(&mut stream, Purpose::Chunks, &self.auth).await?;
        Ok(stream)
    }

    async fn send_all<H: Holder>(
        &self,
        holder: &H,
        own: Ipv4Addr,
        to: Peer,
        queued: &mut UnboundedReceiver<ChunkOf>,
    ) -> Result<(), UploadError> {
        // There is one: for it the task was started.
        let Some(first) = queued.recv().await else { return Ok(()) };
        let mut connecting = pin!(self.connect(own, to));
        let connected = match timeout(CONNECTING, connecting.as_mut()).await {
            Ok(connected) => connected,
            Err(_) => {
                holder.stalled(to.host, first);
                connecting.await
            }
        };
        let mut stream = connected.map_err(|source| {
            let (address, port) = (to.address, self.port);
            UploadError::Connect { address, port, source }
        })?;
        let mut next = Some(first);
        loop {
            let what = match next.take() {
                Some(first) => first,
                None => match timeout(IDLE, queued.recv()).await {
                    Ok(Some(what)) => what,
                    // Tokio's cooperative scheduling: the queue of a task that has run for long seems to be empty.
                    Err(_) if !queued.is_empty() => continue,
                    _ => return Ok(()),
                },
            };
            let Some(bytes) = holder.chunk(what).await else {
                holder.unavailable(to.host, what);
                continue;
            };
            let len = bytes.len() as u64;
            let ChunkOf { image, chunk } = what;
            let header = ChunkHeader { image, chunk, len: bytes.len() as u32 };
            let sending = pin!(self.send(&mut stream, header, &bytes));
            let reply = self.sent_or_stalled(holder, to, what, sending).await?;
            match ChunkReply::decode(&reply) {
                Some(reply) if (reply.image, reply.chunk) == (image, chunk) => {
                    holder.sent(to.host, what, if reply.taken { len } else { 0 });
                }
                _ => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
            }
        }
    }
}

/// The other end's reply to a chunk.
type Reply = [u8; CHUNK_REPLY];

impl Uploads {
    async fn send(
        &self,
        stream: &mut TcpStream,
        header: ChunkHeader,
        bytes: &[u8],
    ) -> io::Result<Reply> {
        within(stream.write_all(&header.encode())).await?;
        for piece in bytes.chunks(self.limiter.piece()) {
            self.limiter.take(piece.len()).await;
            within(stream.write_all(piece)).await?;
        }
        let mut reply = [0; CHUNK_REPLY];
        within(stream.read_exact(&mut reply)).await?;
        Ok(reply)
    }

    /// Waits until a chunk is sent. If that takes long, chunks for others are sent meanwhile.
    async fn sent_or_stalled<H: Holder>(
        &self,
        holder: &H,
        to: Peer,
        what: ChunkOf,
        mut sending: Pin<&mut impl Future<Output = io::Result<Reply>>>,
    ) -> io::Result<Reply> {
        if let Ok(sent) = timeout(SLOW, sending.as_mut()).await {
            return sent;
        }
        holder.stalled(to.host, what);
        sending.await
    }
}

async fn within<T>(what: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(STALL, what).await?
}
