//! The connections of clients to their server: each gets the manifest, and reports its status.

use std::cell::Cell;
use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::{Inner, ServeEvent};
use crate::acceptor::Acceptor;
use crate::frames::Frame;
use crate::hello::{self, Agreed, HelloError, Purpose};
use crate::ipv4;
use crate::status::ClientStatus;

/// Maximum number of connections, of which each takes an open file.
const MOST_CONNECTIONS: usize = 1 << 16;
/// Connections that have not been told apart from a hostile host's: more are not accepted until these are.
const MOST_UNKNOWN: usize = 512;
/// A client that has not reported for this time is gone.
const SILENCE: Duration = Duration::from_secs(15);
/// How long a client may accept no byte of its manifest.
const STALL: Duration = Duration::from_secs(10);

/// Accepts connections for as long as the server runs.
pub(super) async fn accept(mut acceptor: Acceptor, inner: Rc<Inner>) {
    let (open, unknown) = (Rc::new(Cell::new(0_usize)), Rc::new(Cell::new(0_usize)));
    loop {
        let (stream, from) = acceptor.next(|why| inner.event(ServeEvent::NotAccepted(why))).await;
        if open.get() >= MOST_CONNECTIONS || unknown.get() >= MOST_UNKNOWN {
            continue;
        }
        open.set(open.get() + 1);
        unknown.set(unknown.get() + 1);
        let (inner, open, unknown) = (Rc::clone(&inner), Rc::clone(&open), Rc::clone(&unknown));
        spawn_local(async move {
            // Why a connection has failed is of interest to its client, which reports it.
            let _ = serve(stream, from, &inner, &unknown).await;
            open.set(open.get() - 1);
        });
    }
}

async fn serve(
    mut stream: TcpStream,
    from: Ipv4Addr,
    inner: &Rc<Inner>,
    unknown: &Cell<usize>,
) -> Result<(), HelloError> {
    let opened = open(&mut stream, from, inner).await;
    unknown.set(unknown.get() - 1);
    let (agreed, name) = opened?;
    let own = stream.local_addr().ok().and_then(ipv4).ok_or(HelloError::Foreign)?;
    let refusal = inner.refusal(from, &name);
    if let Some(why) = refusal {
        timeout(STALL, Frame::Refused(why).write(&mut stream)).await.map_err(io::Error::from)??;
        return Ok(());
    }
    let Some((number, entry)) = inner.catalog.named(&name) else { return Ok(()) };
    let tag = agreed.tag(inner.key.as_ref(), entry.image.manifest().root());
    let frame = Frame::Manifest { len: entry.manifest.len() as u64, tag };
    timeout(STALL, frame.write(&mut stream)).await.map_err(io::Error::from)??;
    for piece in entry.manifest.chunks(64 << 10) {
        timeout(STALL, stream.write_all(piece)).await.map_err(io::Error::from)??;
    }
    let Some(session) = inner.opened(from, own, number) else { return Ok(()) };
    let result = report(&mut stream, from, session, inner).await;
    inner.closed(from, session);
    Ok(result?)
}

/// Waits for the hello and the name of an image.
async fn open(
    stream: &mut TcpStream,
    from: Ipv4Addr,
    inner: &Rc<Inner>,
) -> Result<(Agreed, String), HelloError> {
    stream.set_nodelay(true)?;
    let accepts = |purpose| purpose == Purpose::Session && inner.admits(from);
    let (_, agreed) = hello::accept(stream, inner.key.as_ref(), accepts).await?;
    match timeout(STALL, Frame::read(stream)).await.map_err(io::Error::from)?? {
        Frame::Open(name) => {
            Ok((agreed, String::from_utf8(name).map_err(|_| HelloError::Foreign)?))
        }
        _ => Err(HelloError::Foreign),
    }
}

/// Takes the client's reports until it ends.
async fn report(
    stream: &mut TcpStream,
    from: Ipv4Addr,
    session: u64,
    inner: &Rc<Inner>,
) -> io::Result<()> {
    loop {
        let Frame::Status(json) = timeout(SILENCE, Frame::read(stream)).await?? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let status: ClientStatus = serde_json::from_slice(&json)?;
        let is_over = status.phase.is_over();
        if !inner.reported(from, session, status) {
            // The client has a newer connection.
            return Ok(());
        }
        let reply =
            inner.broken(from).map_or_else(|| Frame::Seen(inner.problem(from)), Frame::Refused);
        timeout(STALL, reply.write(stream)).await??;
        if is_over {
            return Ok(());
        }
    }
}
