//! Connections that holders open to send chunks.

use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rackweave_image::{Codec, StoredChunk};
use rackweave_linux::sys::set_receive_low_water;
use rackweave_page::{Bounds, Place, Places};
use rackweave_swp2p::p2p::{Check, ChunkOf};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::{spawn_blocking, spawn_local};
use tokio::time::timeout;

use super::{FetchEvent, Inner};
use crate::acceptor::Acceptor;
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

/// Accepts connections for as long as the client runs.
pub(super) async fn accept(mut acceptor: Acceptor, inner: Rc<Inner>) {
    let places = Places::new(CONNECTIONS);
    loop {
        let (stream, from) = acceptor.next(|why| inner.event(FetchEvent::NotAccepted(why))).await;
        if inner.banned.borrow().contains(&from) {
            continue;
        }
        let (inner, place) = (Rc::clone(&inner), places.take(from, false));
        spawn_local(async move {
            // A holder whose connection fails sends chunks over another one, or the machine requests them again.
            tokio::select! {
                biased;
                _ = chunks(stream, from, &inner, &place) => {}
                () = place.evicted() => {}
            }
        });
    }
}

async fn chunks(
    mut stream: TcpStream,
    from: Ipv4Addr,
    inner: &Rc<Inner>,
    place: &Place<Ipv4Addr>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let accepts = |purpose| purpose == Purpose::Chunks;
    hello::accept(&mut stream, &inner.auth, accepts).await.map_err(io::Error::other)?;
    place.prove(&from, true);
    let mut unwanted = 0;
    while unwanted < MOST_UNWANTED && !inner.banned.borrow().contains(&from) {
        let mut header = [0; CHUNK_HEADER];
        match timeout(IDLE, stream.read_exact(&mut header)).await {
            Ok(Ok(_)) => {}
            _ => return Ok(()),
        }
        let header = ChunkHeader::decode(&header).ok_or(io::ErrorKind::InvalidData)?;
        place.touch();
        let is_new = timeout(CHUNK, chunk(&mut stream, from, header, inner)).await??;
        unwanted = if is_new { 0 } else { unwanted + 1 };
    }
    Ok(())
}

/// Reads one chunk. Returns whether it was wanted.
async fn chunk(
    stream: &mut TcpStream,
    from: Ipv4Addr,
    header: ChunkHeader,
    inner: &Rc<Inner>,
) -> io::Result<bool> {
    let ChunkHeader { image, chunk, len } = header;
    let expected = inner.manifest.chunk(chunk).map(|chunk| chunk.stored);
    if image != inner.image.get() || expected != Some(len) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let what = ChunkOf { image, chunk };
    let host = inner.peers.borrow_mut().number(from).ok_or(io::ErrorKind::OutOfMemory)?;
    let is_wanted = !inner.machine.borrow().have().contains(chunk);
    // A permit for each chunk in memory that has not been judged.
    let permit = inner.room.acquire().await.map_err(io::Error::other)?;
    let mut bytes = inner.buffers.take(if is_wanted { len as usize } else { PIECE });
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
            let now = inner.clock.now();
            inner.machine.borrow_mut().chunk_progress(now, host, what);
        }
    }
    set_receive_low_water(stream, 1)?;
    let reply = ChunkReply { image, chunk, taken: is_wanted };
    stream.write_all(&reply.encode()).await?;
    if !is_wanted {
        inner.machine.borrow_mut().chunk_received(inner.clock.now(), host, what, Check::Verified);
        inner.wake.notify_one();
        return Ok(false);
    }
    let (manifest, bytes) = (Arc::clone(&inner.manifest), bytes.freeze());
    let verified = spawn_blocking(move || StoredChunk::verify(&manifest, chunk, bytes)).await;
    let verified = verified.map_err(io::Error::other)?;
    drop(permit);
    let now = inner.clock.now();
    let check = match verified {
        Ok(stored) => {
            let is_new = !inner.machine.borrow().have().contains(chunk);
            if is_new {
                inner.count_received(u64::from(len));
                let codec = inner.manifest.chunk(chunk).map(|chunk| chunk.codec);
                inner.cache.borrow_mut().insert(stored, codec == Some(Codec::Raw));
            }
            Check::Verified
        }
        Err(_) => Check::Damaged,
    };
    inner.machine.borrow_mut().chunk_received(now, host, what, check);
    inner.wake.notify_one();
    match check {
        Check::Verified => Ok(true),
        Check::Damaged => {
            inner.ban(from);
            Err(io::ErrorKind::InvalidData.into())
        }
    }
}
