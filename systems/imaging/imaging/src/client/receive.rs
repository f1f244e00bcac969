//! Connections that holders open to send chunks.

use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rackweave_core::HostId;
use rackweave_image::{Codec, StoredChunk};
use rackweave_linux::sys::set_receive_low_water;
use rackweave_page::{Bounds, Place, Places};
use rackweave_swp2p::p2p::{Check, ChunkOf};
use rackweave_wire::frisbee::Auth;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::{spawn_blocking, spawn_local};
use tokio::time::timeout;

use super::{FetchEvent, Inner};
use crate::acceptor::Acceptor;
use crate::buffers::Buffers;
use crate::frames::{CHUNK_HEADER, ChunkHeader, ChunkReply};
use crate::hello::{self, Purpose};

/// The places of connections. A holder needs one, and another one while the first is being given up. Half are for holders that have
/// said who they are.
const CONNECTIONS: Bounds = Bounds { most: 1024, of_one: 4, kept: 512 };
/// A connection is closed after this time without a chunk.
const IDLE: Duration = Duration::from_secs(60);
/// How long a holder may send no byte of a chunk.
const STALL: Duration = Duration::from_secs(10);
/// How long a chunk may take. A holder that sends a byte now and then must not block the chunk for ever.
const CHUNK: Duration = Duration::from_secs(60);
/// A connection is closed after this many chunks in a row that are here already. A request that was repeated leads to a few; more are
/// sent because somebody has asked for them in this client's name.
const MOST_UNWANTED: u32 = 32;
/// The pieces in which chunks are read.
const PIECE: usize = 256 << 10;
/// The socket wakes its reader when this much has arrived. More would leave the sender's window closed for longer.
const WAKE: u32 = 64 << 10;

/// What takes the chunks that holders send.
pub(super) trait Taker: 'static {
    /// The key of all hosts.
    fn auth(&self) -> &Auth;
    /// The system refuses connections.
    fn not_accepted(&self, why: String);
    /// Whether nothing is taken from this host.
    fn bans(&self, from: Ipv4Addr) -> bool;
    /// Nothing is taken from this host from now on: it has sent a damaged chunk.
    fn ban(&self, from: Ipv4Addr);
    /// The chunk that a header announces; `None` if it cannot be one that was asked for.
    fn expects(&self, header: ChunkHeader) -> Option<ChunkOf>;
    /// The number of a holder; `None` if there are too many.
    fn number(&self, from: Ipv4Addr) -> Option<HostId>;
    /// Whether the chunk is not here.
    fn wants(&self, chunk: u32) -> bool;
    /// A permit for each chunk in memory that has not been judged.
    fn room(&self) -> &Semaphore;
    /// Memory for chunks.
    fn buffers(&self) -> &Buffers;
    /// Bytes of a chunk have arrived.
    fn progress(&self, from: HostId, what: ChunkOf);
    /// A chunk has arrived that was here already.
    fn unwanted(&self, from: HostId, what: ChunkOf);
    /// Verifies and keeps a chunk.
    async fn take(&self, what: ChunkOf, bytes: Bytes) -> io::Result<Check>;
    /// A chunk was taken, or is damaged.
    fn taken(&self, from: HostId, what: ChunkOf, check: Check);
}

impl Taker for Inner {
    fn auth(&self) -> &Auth {
        &self.auth
    }

    fn not_accepted(&self, why: String) {
        self.event(FetchEvent::NotAccepted(why));
    }

    fn bans(&self, from: Ipv4Addr) -> bool {
        self.banned.borrow().contains(&from)
    }

    fn ban(&self, from: Ipv4Addr) {
        Self::ban(self, from);
    }

    fn expects(&self, header: ChunkHeader) -> Option<ChunkOf> {
        let ChunkHeader { image, chunk, len } = header;
        let expected = self.manifest.chunk(chunk).map(|chunk| chunk.stored);
        (image == self.image.get() && expected == Some(len)).then_some(ChunkOf { image, chunk })
    }

    fn number(&self, from: Ipv4Addr) -> Option<HostId> {
        self.peers.borrow_mut().number(from)
    }

    fn wants(&self, chunk: u32) -> bool {
        !self.machine.borrow().have().contains(chunk)
    }

    fn room(&self) -> &Semaphore {
        &self.room
    }

    fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    fn progress(&self, from: HostId, what: ChunkOf) {
        self.machine.borrow_mut().chunk_progress(self.clock.now(), from, what);
    }

    fn unwanted(&self, from: HostId, what: ChunkOf) {
        self.taken(from, what, Check::Verified);
    }

    async fn take(&self, what: ChunkOf, bytes: Bytes) -> io::Result<Check> {
        let (manifest, len) = (Arc::clone(&self.manifest), bytes.len() as u64);
        let verify = move || StoredChunk::verify(&manifest, what.chunk, bytes);
        let Ok(stored) = spawn_blocking(verify).await.map_err(io::Error::other)? else {
            return Ok(Check::Damaged);
        };
        if self.wants(what.chunk) {
            self.count_received(len);
            let codec = self.manifest.chunk(what.chunk).map(|chunk| chunk.codec);
            self.cache.borrow_mut().insert(stored, codec == Some(Codec::Raw));
        }
        Ok(Check::Verified)
    }

    fn taken(&self, from: HostId, what: ChunkOf, check: Check) {
        self.machine.borrow_mut().chunk_received(self.clock.now(), from, what, check);
        self.wake.notify_one();
    }
}

/// Accepts connections for as long as the client runs.
pub(super) async fn accept<T: Taker>(mut acceptor: Acceptor, taker: Rc<T>) {
    let places = Places::new(CONNECTIONS);
    loop {
        let (stream, from) = acceptor.next(|why| taker.not_accepted(why)).await;
        if taker.bans(from) {
            continue;
        }
        let (taker, place) = (Rc::clone(&taker), places.take(from, false));
        spawn_local(async move {
            // A holder whose connection fails sends chunks over another one, or the machine requests them again.
            tokio::select! {
                biased;
                _ = chunks(stream, from, &*taker, &place) => {}
                () = place.evicted() => {}
            }
        });
    }
}

async fn chunks(
    mut stream: TcpStream,
    from: Ipv4Addr,
    taker: &impl Taker,
    place: &Place<Ipv4Addr>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let accepts = |purpose| purpose == Purpose::Chunks;
    hello::accept(&mut stream, taker.auth(), accepts).await.map_err(io::Error::other)?;
    place.prove(&from, true);
    let mut unwanted = 0;
    while unwanted < MOST_UNWANTED && !taker.bans(from) {
        let mut header = [0; CHUNK_HEADER];
        match timeout(IDLE, stream.read_exact(&mut header)).await {
            Ok(Ok(_)) => {}
            _ => return Ok(()),
        }
        let header = ChunkHeader::decode(&header).ok_or(io::ErrorKind::InvalidData)?;
        place.touch();
        let is_new = timeout(CHUNK, chunk(&mut stream, from, header, taker)).await??;
        unwanted = if is_new { 0 } else { unwanted + 1 };
    }
    Ok(())
}

/// Reads one chunk. Returns whether it was wanted.
async fn chunk(
    stream: &mut TcpStream,
    from: Ipv4Addr,
    header: ChunkHeader,
    taker: &impl Taker,
) -> io::Result<bool> {
    let what = taker.expects(header).ok_or(io::ErrorKind::InvalidData)?;
    let ChunkHeader { image, chunk, len } = header;
    let host = taker.number(from).ok_or(io::ErrorKind::OutOfMemory)?;
    let is_wanted = taker.wants(chunk);
    let permit = taker.room().acquire().await.map_err(io::Error::other)?;
    let mut bytes = taker.buffers().take(if is_wanted { len as usize } else { PIECE });
    bytes.clear();
    let (mut left, mut unreported) = (u64::from(len), 0);
    set_receive_low_water(stream, WAKE.min(len))?;
    while left > 0 {
        if left < u64::from(WAKE) {
            set_receive_low_water(stream, left as u32)?;
        }
        if !is_wanted {
            bytes.clear();
        }
        let mut limited = (&mut *stream).take(left.min(PIECE as u64));
        let read = timeout(STALL, limited.read_buf(&mut *bytes)).await??;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= read as u64;
        unreported += read;
        if unreported >= PIECE {
            unreported = 0;
            taker.progress(host, what);
        }
    }
    set_receive_low_water(stream, 1)?;
    let reply = ChunkReply { image, chunk, taken: is_wanted };
    stream.write_all(&reply.encode()).await?;
    if !is_wanted {
        taker.unwanted(host, what);
        return Ok(false);
    }
    let check = taker.take(what, bytes.freeze()).await?;
    drop(permit);
    taker.taken(host, what, check);
    match check {
        Check::Verified => Ok(true),
        Check::Damaged => {
            taker.ban(from);
            Err(io::ErrorKind::InvalidData.into())
        }
    }
}
