//! The connections of clients to their server: each gets the manifest, and reports its status.

use std::cell::Cell;
use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use rackweave_linux::sys::open_file_limit;
use rackweave_page::{Bounds, Place, Places};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::multicast::For;
use super::{Inner, NO_ROOM, ServeEvent};

use crate::acceptor::Acceptor;
use crate::frames::Frame;
use crate::hello::{self, Agreed, HelloError, Purpose};
use crate::ipv4;
use crate::status::{ClientStatus, LISTED_IN_FRAME, Listed};

/// Maximum number of connections.
const MOST_CONNECTIONS: usize = 1 << 16;
/// Files that the server needs for itself: sockets, images, the page and its readers.
const OWN_FILES: u64 = 16;
/// Connections that have not said who they are, which takes a round trip. Known addresses have places of their own.
const MOST_UNKNOWN: usize = 512;
/// The most of them from one address, so that one host cannot take the room of all.
const MOST_UNKNOWN_OF_ONE: usize = 8;
/// A client that has not reported for this time is gone.
const SILENCE: Duration = Duration::from_secs(15);
/// The shortest time between two statuses of a client.
const STATUS_EACH: Duration = Duration::from_millis(50);
/// How long a client may accept no byte of its manifest.
const STALL: Duration = Duration::from_secs(10);

/// Accepts connections for as long as the server runs.
pub(super) async fn accept(mut acceptor: Acceptor, inner: Rc<Inner>) {
    let open = Rc::new(Cell::new(0_usize));
    let most = most_connections(open_file_limit());
    let most_unknown = MOST_UNKNOWN.min(most / 2);
    let unknown = Places::new(Bounds {
        most: most_unknown,
        of_one: MOST_UNKNOWN_OF_ONE,
        kept: most_unknown / 8,
    });
    let report = |why| inner.event(ServeEvent::NotAccepted(why));
    loop {
        let (stream, from) = acceptor.next(report).await;
        if open.get() >= most {
            acceptor.refused(report, || {
                format!("{most} hosts are connected, and no more fit the limit of open files")
            });
            continue;
        }
        let place = unknown.take(from, inner.knows(from));
        open.set(open.get() + 1);
        let (inner, open) = (Rc::clone(&inner), Rc::clone(&open));
        spawn_local(async move {
            // Why a connection has failed is of interest to its client, which reports it.
            let _ = serve(stream, from, &inner, place).await;
            open.set(open.get() - 1);
        });
    }
}

/// How many sessions there may be with a limit of open files. A client to which chunks are sent takes a second file, without which it
/// would have a session and get nothing.
fn most_connections(files: Option<u64>) -> usize {
    let pairs = files.map_or(u64::MAX, |files| files.saturating_sub(OWN_FILES) / 2);
    usize::try_from(pairs.max(1)).map_or(MOST_CONNECTIONS, |pairs| pairs.min(MOST_CONNECTIONS))
}

async fn serve(
    mut stream: TcpStream,
    from: Ipv4Addr,
    inner: &Rc<Inner>,
    place: Place<Ipv4Addr>,
) -> Result<(), HelloError> {
    let opened = tokio::select! {
        biased;
        opened = open(&mut stream, from, inner) => opened,
        () = place.evicted() => Err(io::Error::from(io::ErrorKind::ConnectionAborted).into()),
    };
    drop(place);
    let (agreed, wanted) = opened?;
    let Wanted::Image(name) = wanted else { return list(&mut stream, inner).await };
    let own = stream.local_addr().ok().and_then(ipv4).ok_or(HelloError::Foreign)?;
    let (number, entry) = match inner.offer(from, &name) {
        Ok(offer) => offer,
        Err(why) => return refuse(&mut stream, why).await,
    };
    let group =
        inner.multicast.borrow().get(&(number, For::Guests)).map(|session| session.group.encode());
    if let Some(group) = group {
        let tag = agreed.tag(&inner.auth, &group);
        let frame = Frame::Multicast { group, tag };
        timeout(STALL, frame.write(&mut stream)).await.map_err(io::Error::from)??;
    }
    let terms = inner.terms();
    let tag =
        agreed.tag(&inner.auth, &[entry.image.manifest().root(), &terms.encode()[..]].concat());
    let frame = Frame::Manifest { len: entry.manifest.len() as u64, terms, tag };
    timeout(STALL, frame.write(&mut stream)).await.map_err(io::Error::from)??;
    for piece in entry.manifest.chunks(64 << 10) {
        timeout(STALL, stream.write_all(piece)).await.map_err(io::Error::from)??;
    }
    let Some(session) = inner.opened(from, own, number, terms) else {
        // Others have taken the room meanwhile. The client's first report is read because closing a socket with unread bytes would
        // reset the connection, and the client would not see the reply.
        timeout(STALL, Frame::read(&mut stream)).await.map_err(io::Error::from)??;
        return refuse(&mut stream, NO_ROOM.to_owned()).await;
    };
    let result = report(&mut stream, from, session, inner).await;
    inner.closed(from, session);
    Ok(result?)
}

/// Tells a client why it gets nothing: one that is only disconnected tries again.
async fn refuse(stream: &mut TcpStream, why: String) -> Result<(), HelloError> {
    timeout(STALL, Frame::Refused(why).write(stream)).await.map_err(io::Error::from)??;
    Ok(())
}

/// What a client wants.
enum Wanted {
    /// The image of this name.
    Image(String),
    /// The list of images.
    List,
}

/// Sends the list of images in frames; the last frame is empty.
async fn list(stream: &mut TcpStream, inner: &Inner) -> Result<(), HelloError> {
    let images: Vec<Listed> = inner.catalog.iter().map(|(_, entry)| entry.listed()).collect();
    for part in images.chunks(LISTED_IN_FRAME).chain([&[][..]]) {
        let json = serde_json::to_vec(part).map_err(io::Error::from)?;
        timeout(STALL, Frame::Images(json).write(stream)).await.map_err(io::Error::from)??;
    }
    Ok(())
}

/// Waits for the hello and the name of an image, or the wish for a list.
async fn open(
    stream: &mut TcpStream,
    from: Ipv4Addr,
    inner: &Rc<Inner>,
) -> Result<(Agreed, Wanted), HelloError> {
    stream.set_nodelay(true)?;
    let accepts = |purpose| purpose == Purpose::Session && inner.admits(from);
    let (_, agreed) = hello::accept(stream, &inner.auth, accepts).await?;
    match timeout(STALL, Frame::read(stream)).await.map_err(io::Error::from)?? {
        Frame::Open(name) => {
            let name = String::from_utf8(name).map_err(|_| HelloError::Foreign)?;
            Ok((agreed, Wanted::Image(name)))
        }
        Frame::List => Ok((agreed, Wanted::List)),
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
    let mut ends = inner.ends.subscribe();
    loop {
        let frame = tokio::select! {
            biased;
            _ = ends.wait_for(|ends| *ends) => {
                return timeout(STALL, Frame::Ended.write(stream)).await?;
            }
            frame = timeout(SILENCE, Frame::read(stream)) => frame??,
        };
        let Frame::Status(json) = frame else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let status: ClientStatus = serde_json::from_slice(&json)?;
        let is_over = status.phase.is_over();
        if !is_over {
            // Clients report each second and at changes. One that reports without end must wait for its replies.
            sleep(STATUS_EACH).await;
        }
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;

    use rackweave_image::{Packing, Progress};
    use rackweave_linux::Clock;
    use rackweave_swp2p::p2p;
    use rackweave_wire::frisbee::Auth;
    use tokio::task::LocalSet;

    use super::*;
    use crate::control::Control;
    use crate::{Catalog, ServeConfig};

    /// A server of an image `golden` without its driver, at an address of its own.
    fn server(host: u8) -> (Rc<Inner>, Acceptor, SocketAddrV4) {
        let folder = tempfile::tempdir().unwrap();
        let (disk, image) = (folder.path().join("disk"), folder.path().join("image.rwi"));
        std::fs::write(&disk, [7; 4096]).unwrap();
        rackweave_image::pack(&disk, &image, &Packing::new("golden"), &Progress::default())
            .unwrap();
        let catalog = Catalog::open(&[image], &Progress::default()).unwrap();
        let machine =
            p2p::server::Config { serve: p2p::Serve::default(), directory: None, expected: 0 };
        let own = Ipv4Addr::new(127, 0, 1, host);
        let config = ServeConfig {
            listen: SocketAddrV4::new(own, 0),
            key: None,
            machine,
            rate: None,
            receivers: None,
            holders: None,
            time_limit: None,
            rack_prefix: None,
            multicast: None,
            frisbee: None,
            frisbee_names: None,
            page: None,
        };
        let (udp, tcp) = crate::bind(config.listen).unwrap();
        let (clock, port) = (Clock::start(), tcp.local_addr().unwrap().port());
        let control = Control::new(udp, port, Auth::Number);
        let machine = p2p::server::Server::new(machine);
        let inner = Inner::new(&config, clock, control, port, catalog, machine);
        (Rc::new(inner), Acceptor::new(tcp, clock), SocketAddrV4::new(own, port))
    }

    /// What a client gets that asks for an image and reports once.
    async fn replies(at: SocketAddrV4, name: &str) -> (Frame, Option<Frame>) {
        let mut stream = TcpStream::connect(at).await.unwrap();
        hello::connect(&mut stream, Purpose::Session, &Auth::Number).await.unwrap();
        Frame::Open(name.as_bytes().to_vec()).write(&mut stream).await.unwrap();
        let first = Frame::read(&mut stream).await.unwrap();
        let Frame::Manifest { len, .. } = first else { return (first, None) };
        let mut manifest = vec![0; len as usize];
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut manifest).await.unwrap();
        Frame::Status(b"{}".to_vec()).write(&mut stream).await.unwrap();
        (first, Some(Frame::read(&mut stream).await.unwrap()))
    }

    #[tokio::test]
    async fn a_client_that_gets_nothing_is_told_why() {
        let (inner, acceptor, at) = server(1);
        let tasks = LocalSet::new();
        tasks.spawn_local(accept(acceptor, Rc::clone(&inner)));
        tasks
            .run_until(async {
                let (first, _) = replies(at, "silver").await;
                let why = "there is no image `silver`; it has golden";
                assert_eq!(first, Frame::Refused(why.to_owned()));
                let (first, second) = replies(at, "golden").await;
                assert!(matches!(first, Frame::Manifest { .. }));
                assert_eq!(second, Some(Frame::Seen(String::new())));
                // The client has gone when the server has noticed it.
                while inner.peers.borrow().known(Ipv4Addr::LOCALHOST).is_some() {
                    tokio::task::yield_now().await;
                }
                let mut number = 0;
                while inner.peers.borrow().has_room(Ipv4Addr::LOCALHOST) {
                    inner.peers.borrow_mut().number(Ipv4Addr::from_bits(number));
                    number += 1;
                }
                let (first, _) = replies(at, "golden").await;
                assert_eq!(first, Frame::Refused(NO_ROOM.to_owned()));
            })
            .await;
    }

    /// 64 addresses that connect and say nothing, with all the connections that they can have.
    #[tokio::test]
    async fn silent_hosts_do_not_keep_a_client_out() {
        let (inner, acceptor, at) = server(3);
        let tasks = LocalSet::new();
        tasks.spawn_local(accept(acceptor, Rc::clone(&inner)));
        let silent = async {
            let mut held = Vec::new();
            for number in 0..MOST_UNKNOWN {
                let socket = tokio::net::TcpSocket::new_v4().unwrap();
                let from = Ipv4Addr::new(127, 0, 2, (number / MOST_UNKNOWN_OF_ONE) as u8 + 1);
                socket.bind(SocketAddrV4::new(from, 0).into()).unwrap();
                held.push(socket.connect(at.into()).await.unwrap());
            }
            held
        };
        let joined = async {
            let _held = silent.await;
            timeout(Duration::from_secs(5), replies(at, "golden")).await
        };
        let (first, _) = tasks.run_until(joined).await.expect("the client is served");
        assert!(matches!(first, Frame::Manifest { .. }));
    }

    #[test]
    fn sessions_leave_files_for_chunks() {
        assert_eq!(most_connections(None), MOST_CONNECTIONS);
        assert_eq!(most_connections(Some(40)), 12);
        assert_eq!(most_connections(Some(3)), 1);
    }

    /// Its process was killed: it has not said that it leaves.
    #[tokio::test]
    async fn a_client_that_is_gone_and_returns_joins_again() {
        let (inner, acceptor, at) = server(2);
        let tasks = LocalSet::new();
        tasks.spawn_local(accept(acceptor, Rc::clone(&inner)));
        tasks
            .run_until(async {
                for _ in 0..2 {
                    replies(at, "golden").await;
                    while inner.peers.borrow().known(Ipv4Addr::LOCALHOST).is_some() {
                        tokio::task::yield_now().await;
                    }
                }
            })
            .await;
        let names: Vec<_> = inner
            .events
            .take()
            .iter()
            .map(|event| match event {
                ServeEvent::Joined { .. } => "joined",
                ServeEvent::Ended { .. } => "left",
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(names, ["joined", "left", "joined", "left"]);
    }
}
