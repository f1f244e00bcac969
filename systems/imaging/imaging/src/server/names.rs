//! Answers for Emulab's Frisbee clients that know the name of an image only: the messages of its master server, which here knows
//! the sessions that run.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rackweave_image::ndz;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::Inner;
use super::multicast::For;
use crate::multicast::Group;

/// A request: a version, a type, the host that it is for, methods, whether it only asks, the length of the name, and the name.
const REQUEST: usize = 8 + 8 + NAME;
/// A reply: version and type, then method, whether a server runs, error, server, group, port, and what is known of the file.
const REPLY: usize = 8 + 16 + 256 + 8;
/// The longest name.
const NAME: usize = 256;

const VERSION: &[u8; 4] = b"V01\0";
const GET: u32 = 1;
const GET_REPLY: u32 = 2;
const BY_MULTICAST: u8 = 2;

/// How long a client may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clients that are answered at a time. Others wait.
const MOST_CLIENTS: usize = 64;
/// The most of one address, so that no host keeps others from being answered.
const MOST_OF_ONE: usize = 4;

/// Why there is no session for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    NoImage = 3,
    NoAccess = 4,
    NoMethod = 5,
    Invalid = 6,
    TryAgain = 7,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    /// The host for which it asks, if that is another one.
    host: Option<Ipv4Addr>,
    methods: u8,
    name: Vec<u8>,
}

/// Reads a request. `None` if it is another message.
fn decode(bytes: &[u8; REQUEST]) -> Option<Result<Request, Refusal>> {
    let word = |at: usize| bytes.get(at..)?.first_chunk().map(|it| u32::from_be_bytes(*it));
    if !bytes.starts_with(VERSION) || word(4)? != GET {
        return None;
    }
    let host = Some(word(8)?).filter(|host| *host != 0).map(Ipv4Addr::from_bits);
    let len = usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
    let name = bytes[16..].get(..len).map(<[u8]>::to_vec);
    Some(name.map(|name| Request { host, methods: bytes[12], name }).ok_or(Refusal::Invalid))
}

fn encode(found: Result<(Group, u64), Refusal>) -> [u8; REPLY] {
    let mut reply = [0; REPLY];
    let mut put = |at: usize, bytes: &[u8]| reply[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, VERSION);
    put(4, &GET_REPLY.to_be_bytes());
    match found {
        Ok((group, size)) => {
            put(8, &[BY_MULTICAST, 1]);
            put(12, &group.server.octets());
            put(16, &group.address.octets());
            put(20, &group.port.to_be_bytes());
            // The upper half first, as in all else.
            put(REPLY - 8, &size.to_be_bytes());
        }
        Err(refusal) => put(10, &(refusal as u16).to_be_bytes()),
    }
    reply
}

/// Finds the session of an image, by its name with or without the ending.
fn find(inner: &Inner, from: Ipv4Addr, request: &Request) -> Result<(Group, u64), Refusal> {
    // A host cannot ask for others.
    if !inner.admits(from) || request.host.is_some_and(|host| host != from) {
        return Err(Refusal::NoAccess);
    }
    if request.methods & BY_MULTICAST == 0 {
        return Err(Refusal::NoMethod);
    }
    let name = str::from_utf8(&request.name).map_err(|_| Refusal::Invalid)?;
    let found = inner.catalog.named(name);
    let found = found.or_else(|| inner.catalog.named(&format!("{name}.ndz")));
    let (number, entry) = found.ok_or(Refusal::NoImage)?;
    let sessions = inner.multicast.borrow();
    let session = sessions.get(&(number, For::Frisbee)).ok_or(Refusal::TryAgain)?;
    let chunks = u64::from(entry.image.manifest().chunks());
    Ok((session.group, chunks * ndz::CHUNK as u64))
}

/// Answers for as long as the server runs.
pub(super) async fn answer(listener: TcpListener, inner: Rc<Inner>) {
    let places = Arc::new(Semaphore::new(MOST_CLIENTS));
    let served = Rc::new(RefCell::new(Vec::<IpAddr>::new()));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, from)) => {
                let address = from.ip();
                if served.borrow().iter().filter(|it| **it == address).count() >= MOST_OF_ONE {
                    continue;
                }
                served.borrow_mut().push(address);
                let (inner, served) = (Rc::clone(&inner), Rc::clone(&served));
                spawn_local(async move {
                    // Who says nothing of use gets no answer.
                    let _ = timeout(PATIENCE, converse(stream, from, &inner)).await;
                    let mut served = served.borrow_mut();
                    if let Some(index) = served.iter().position(|it| *it == address) {
                        served.swap_remove(index);
                    }
                    drop(place);
                });
            }
            // Too many files are open, for example.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn converse(mut stream: TcpStream, from: SocketAddr, inner: &Inner) -> io::Result<()> {
    let mut request = [0; REQUEST];
    stream.read_exact(&mut request).await?;
    let (Some(request), Some(from)) = (decode(&request), crate::ipv4(from)) else { return Ok(()) };
    let found = request.and_then(|request| find(inner, from, &request));
    stream.write_all(&encode(found)).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(name: &[u8], methods: u8) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[..4].copy_from_slice(VERSION);
        bytes[7] = 1;
        bytes[12] = methods;
        bytes[14..16].copy_from_slice(&(name.len() as u16).to_be_bytes());
        bytes[16..16 + name.len()].copy_from_slice(name);
        bytes
    }

    #[test]
    fn a_request_has_a_name_that_fits_into_it() {
        let read = |bytes: &[u8; REQUEST]| decode(bytes);
        let golden = Request { host: None, methods: 7, name: b"golden".to_vec() };
        assert_eq!(read(&request(b"golden", 7)), Some(Ok(golden.clone())));
        let mut other = request(b"golden", 7);
        other[8..12].copy_from_slice(&[10, 0, 0, 9]);
        let host = Some(Ipv4Addr::new(10, 0, 0, 9));
        assert_eq!(read(&other), Some(Ok(Request { host, ..golden })));
        other[14..16].copy_from_slice(&257_u16.to_be_bytes());
        assert_eq!(read(&other), Some(Err(Refusal::Invalid)));
        for (at, value) in [(0, b'W'), (2, b'2'), (7, 3), (7, 2)] {
            let mut other = request(b"golden", 7);
            other[at] = value;
            assert_eq!(read(&other), None, "{at}");
        }
    }

    #[test]
    fn a_reply_has_the_session_or_an_error() {
        let [server, address] = [[10, 9, 0, 1], [239, 192, 0, 1]].map(Ipv4Addr::from);
        let reply = encode(Ok((Group { address, port: 7001, server }, 91 << 20)));
        assert_eq!(
            reply[..24],
            *b"V01\0\0\0\0\x02\x02\x01\0\0\x0a\x09\0\x01\xef\xc0\0\x01\x1b\x59\0\0"
        );
        assert_eq!(reply[REPLY - 8..], (91_u64 << 20).to_be_bytes());
        let reply = encode(Err(Refusal::NoAccess));
        assert_eq!(
            (reply[8..12].to_vec(), reply[12..] == [0; REPLY - 12]),
            (vec![0, 0, 0, 4], true)
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), REQUEST), is_get in any::<bool>()) {
            let mut bytes: [u8; REQUEST] = bytes.try_into().unwrap();
            if is_get {
                bytes[..8].copy_from_slice(b"V01\0\0\0\0\x01");
            }
            let read = decode(&bytes);
            prop_assert!(read.is_some() || !is_get);
        }
    }
}
