//! Sending chunks: a connection to each peer that has asked for some.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::HostId;
use rackweave_linux::sys::bind_late;
use rackweave_swp2p::p2p::ChunkOf;
use rackweave_wire::frisbee::Auth;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout, timeout_at};
use tokio::try_join;

use crate::frames::{CHUNK_REPLY, ChunkHeader, ChunkReply};
use crate::hello::{self, HelloError, Purpose};
use crate::rate::Limiter;

/// After this time without a connection, what is to be sent does not count among the chunks that are being sent: absent
/// peers must not keep out present ones.
const CONNECTING: Duration = Duration::from_millis(100);
/// How long a peer may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// A chunk that takes longer than this does not count among the chunks that are being sent. Rackweave's choice: eight
/// chunks of 1 MiB that share 13 Mbps take as long.
const SLOW: Duration = Duration::from_secs(5);
/// How long a peer may accept no byte, or take for its reply.
const STALL: Duration = Duration::from_secs(30);
/// How many bytes of a chunk may be unsent in the socket when the next chunk is chosen: enough to keep a link of 1 Gbps busy for half a
/// millisecond, while that chunk is read. More would choose it before other requests are known.
const UNSENT: u32 = 64 << 10;
/// A connection without chunks to send is closed after this time.
const IDLE: Duration = Duration::from_secs(15);

/// What has the chunks.
pub(crate) trait Holder: 'static {
    /// What headers of chunks name as the image.
    fn image(&self, image: u32) -> u32 {
        image
    }

    /// Returns the stored bytes of a chunk; `None` if they cannot be had.
    async fn chunk(&self, what: ChunkOf) -> Option<Bytes>;
    /// A peer has a chunk. The bytes are the ones that it has taken: none of a chunk that it had already.
    fn sent(&self, to: HostId, what: ChunkOf, bytes: u64);
    /// All bytes of a chunk but the last ones have left this host.
    fn ending(&self, to: HostId, what: ChunkOf);
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

/// The connections of a process to the peers that it serves.
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
        let mut result = Ok(());
        // Chunks may be queued while the connection ends. None can be between the last look at the queue and its removal, as there is one
        // thread.
        while result.is_ok() && !queued.is_empty() {
            result = self.send_all(holder, own, to, &mut queued).await;
        }
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
        SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT)?;
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
        let (mut replies, mut chunks) = stream.split();
        let (sent, to_answer) = unbounded_channel();
        let (progress, unanswered) = (Cell::new(Instant::now()), Cell::new(0));
        let sending =
            Sending { uploads: self, holder, to, progress: &progress, unanswered: &unanswered };
        try_join!(
            sending.chunks(&mut chunks, first, queued, sent),
            sending.replies(&mut replies, to_answer),
        )?;
        Ok(())
    }
}

/// A chunk that the peer has not replied to.
#[derive(Debug)]
struct Unanswered {
    what: ChunkOf,
    len: u64,
    since: Instant,
}

/// A connection over which chunks are sent. The next one follows while the reply to the one before is on its way.
struct Sending<'a, H> {
    uploads: &'a Uploads,
    holder: &'a H,
    to: Peer,
    /// When the peer has accepted bytes or replied last.
    progress: &'a Cell<Instant>,
    /// Chunks that the peer has not replied to.
    unanswered: &'a Cell<u32>,
}

impl<H: Holder> Sending<'_, H> {
    /// Sends what is queued, until there was nothing to send for a while.
    async fn chunks(
        &self,
        stream: &mut WriteHalf<'_>,
        first: ChunkOf,
        queued: &mut UnboundedReceiver<ChunkOf>,
        sent: UnboundedSender<Unanswered>,
    ) -> io::Result<()> {
        let mut next = Some(first);
        loop {
            let what = match next.take() {
                Some(first) => first,
                None => match timeout(IDLE, queued.recv()).await {
                    Ok(Some(what)) => what,
                    // Tokio's cooperative scheduling: the queue of a task that has run for long seems to be empty.
                    Err(_) if !queued.is_empty() || self.unanswered.get() > 0 => continue,
                    _ => return Ok(()),
                },
            };
            let Some(bytes) = self.holder.chunk(what).await else {
                self.holder.unavailable(self.to.host, what);
                continue;
            };
            let (image, chunk) = (self.holder.image(what.image), what.chunk);
            let len = bytes.len() as u64;
            self.progress.set(Instant::now());
            self.unanswered.set(self.unanswered.get() + 1);
            // If the other half has ended, it was with an error, which ends this one too.
            let _ = sent.send(Unanswered { what, len, since: Instant::now() });
            let header = ChunkHeader { image, chunk, len: len as u32 };
            self.write(stream, &header.encode()).await?;
            for piece in bytes.chunks(self.uploads.limiter.piece()) {
                self.uploads.limiter.take(piece.len()).await;
                self.write(stream, piece).await?;
            }
            self.holder.ending(self.to.host, what);
        }
    }

    async fn write(&self, stream: &mut WriteHalf<'_>, bytes: &[u8]) -> io::Result<()> {
        self.progress.set(Instant::now());
        timeout(STALL, stream.write_all(bytes)).await??;
        self.progress.set(Instant::now());
        Ok(())
    }

    /// Reads the reply to each chunk.
    async fn replies(
        &self,
        stream: &mut ReadHalf<'_>,
        mut unanswered: UnboundedReceiver<Unanswered>,
    ) -> io::Result<()> {
        while let Some(Unanswered { what, len, since }) = unanswered.recv().await {
            let reply = self.reply(stream, what, since).await?;
            self.progress.set(Instant::now());
            self.unanswered.set(self.unanswered.get() - 1);
            match ChunkReply::decode(&reply) {
                Some(ChunkReply { image, chunk, taken })
                    if (image, chunk) == (self.holder.image(what.image), what.chunk) =>
                {
                    self.holder.sent(self.to.host, what, if taken { len } else { 0 });
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(())
    }

    /// Waits for the reply to a chunk. If that takes long, chunks for others are sent meanwhile.
    async fn reply(
        &self,
        stream: &mut ReadHalf<'_>,
        what: ChunkOf,
        since: Instant,
    ) -> io::Result<[u8; CHUNK_REPLY]> {
        let mut bytes = [0; CHUNK_REPLY];
        let mut reading = pin!(stream.read_exact(&mut bytes));
        if let Ok(read) = timeout_at(since + SLOW, reading.as_mut()).await {
            read?;
            return Ok(bytes);
        }
        self.holder.stalled(self.to.host, what);
        loop {
            let until = self.progress.get() + STALL;
            match timeout_at(until, reading.as_mut()).await {
                Ok(read) => {
                    read?;
                    return Ok(bytes);
                }
                Err(_) if self.progress.get() + STALL > until => {}
                Err(late) => return Err(late.into()),
            }
        }
    }
}
