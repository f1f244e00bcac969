//! A client's connection to its server: the manifest, and the client's status. When it breaks it is opened again, as long as
//! the client runs.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::rc::Rc;
use std::time::Duration;

use rackweave_image::{Hash, Manifest, ManifestError};
use rackweave_wire::frisbee::Auth;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::frames::{Frame, Terms};
use crate::hello::{self, Agreed, HelloError, Purpose};
use crate::ipv4;
use crate::multicast::Group;
use crate::status::{ClientStatus, Listed};

/// How long the server may take to accept a connection, or for a frame.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the server may take for its reply to a status: it may be busy.
const REPLY: Duration = Duration::from_secs(10);
/// The interval of statuses.
const EACH: Duration = Duration::from_secs(1);
/// The longest time between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The largest manifest.
const MOST_MANIFEST: u64 = 1 << 30;

/// A manifest may take `--give-up` for each begun piece of this many bytes: one that comes a byte at a time makes progress too, and must end.
const MANIFEST_PIECE: u64 = 16 << 20;
/// How long a list of images may take.
const LIST: Duration = Duration::from_secs(60);

/// The most images of a server.
const MOST_LISTED: usize = 1 << 16;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The system or the network refuses.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The ends do not agree.
    #[error("{0}")]
    Hello(#[from] HelloError),
    /// The server does not serve this client.
    #[error("it says: {0}")]
    Refused(String),
    /// The manifest is wrong.
    #[error("its manifest is wrong: {0}")]
    Manifest(#[from] ManifestError),
    /// The manifest, or the address of the multicast group, has no tag of the key.
    #[error("its manifest has a wrong tag")]
    Tag,
    /// The manifest takes too long.
    #[error("{have} of the {len} bytes of its manifest have arrived within {seconds} s")]
    Slow {
        /// The bytes that have arrived.
        have: usize,
        /// The bytes that the server has announced.
        len: u64,
        /// The time that they could take.
        seconds: u64,
    },
    /// The server's message is not expected here.
    #[error("it does not follow the protocol")]
    Protocol,
    /// The server has ended in good order. Another one may begin.
    #[error("it has ended")]
    Ended,
    /// The image was replaced by another one.
    #[error("it now serves another image under this name")]
    Changed,
}

impl SessionError {
    /// Whether another attempt would fail in the same way.
    pub(super) const fn is_permanent(&self) -> bool {
        match self {
            Self::Io(_) | Self::Ended | Self::Slow { .. } => false,
            Self::Hello(hello) => hello.is_permanent(),
            _ => true,
        }
    }
}

/// Where a session leads, and as whom.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) server: SocketAddrV4,
    pub(super) own: Option<Ipv4Addr>,
    pub(super) auth: Auth,
    pub(super) name: String,
    /// How long a manifest of up to [`MANIFEST_PIECE`] may take, and any other step before that.
    pub(super) give_up: Duration,
}

/// An open session.
#[derive(Debug)]
pub(super) struct Session {
    stream: TcpStream,
    /// This end's address.
    pub(super) own: Ipv4Addr,
    /// Where the image is multicast, if it is.
    pub(super) multicast: Option<Group>,
    /// What the server has said of control messages.
    pub(super) terms: Terms,
}

impl Session {
    /// Connects once, and agrees on the key.
    async fn connect(place: &Place) -> Result<(Self, Agreed), SessionError> {
        let socket = TcpSocket::new_v4()?;
        if let Some(own) = place.own {
            socket.bind(SocketAddr::from((own, 0)))?;
        }
        let patience = place.give_up.min(PATIENCE);
        let connected = timeout(patience, socket.connect(place.server.into())).await;
        let mut stream = connected.map_err(io::Error::from)??;
        stream.set_nodelay(true)?;
        let agreed = hello::connect(&mut stream, Purpose::Session, &place.auth);
        let agreed = timeout(patience, agreed).await.map_err(io::Error::from)??;
        let own = ipv4(stream.local_addr()?).ok_or(SessionError::Protocol)?;
        Ok((Self { stream, own, terms: Terms::default(), multicast: None }, agreed))
    }

    /// Connects once, and gets the list of images.
    pub(super) async fn list(place: &Place) -> Result<Vec<Listed>, SessionError> {
        timeout(LIST, Self::list_all(place)).await.map_err(io::Error::from)?
    }

    async fn list_all(place: &Place) -> Result<Vec<Listed>, SessionError> {
        let (Self { mut stream, .. }, _) = Self::connect(place).await?;
        timeout(PATIENCE, Frame::List.write(&mut stream)).await.map_err(io::Error::from)??;
        let mut images = Vec::new();
        loop {
            let reply = timeout(REPLY, Frame::read(&mut stream)).await;
            let json = match reply.map_err(io::Error::from)?? {
                Frame::Images(json) => json,
                Frame::Refused(why) => return Err(SessionError::Refused(why)),
                _ => return Err(SessionError::Protocol),
            };
            let part: Vec<Listed> = serde_json::from_slice(&json).map_err(io::Error::from)?;
            if part.is_empty() {
                return Ok(images);
            }
            images.extend(part);
            if images.len() > MOST_LISTED {
                return Err(SessionError::Protocol);
            }
        }
    }

    /// Connects once, and gets the manifest.
    pub(super) async fn open(place: &Place) -> Result<(Self, Manifest), SessionError> {
        let (Self { mut stream, own, .. }, agreed) = Self::connect(place).await?;
        let open = Frame::Open(place.name.as_bytes().to_vec());
        let [patience, wait] = [PATIENCE, REPLY].map(|most| most.min(place.give_up));
        timeout(patience, open.write(&mut stream)).await.map_err(io::Error::from)??;
        let mut reply =
            timeout(wait, Frame::read(&mut stream)).await.map_err(io::Error::from)??;
        let mut multicast = None;
        if let Frame::Multicast { group, tag } = reply {
            if !agreed.verify(&place.auth, &group, &tag) {
                return Err(SessionError::Tag);
            }
            multicast = Some(Group::decode(group).ok_or(SessionError::Protocol)?);
            reply = timeout(wait, Frame::read(&mut stream)).await.map_err(io::Error::from)??;
        }
        let (len, terms, tag) = match reply {
            Frame::Manifest { len, terms, tag } if len <= MOST_MANIFEST => (len, terms, tag),
            Frame::Refused(why) => return Err(SessionError::Refused(why)),
            _ => return Err(SessionError::Protocol),
        };
        // Memory grows with what arrives, not with the length that is announced.
        let mut bytes = Vec::new();
        let pieces = u32::try_from(len.div_ceil(MANIFEST_PIECE).max(1)).unwrap_or(u32::MAX);
        let most = place.give_up.saturating_mul(pieces);
        let reading = async {
            let mut limited = (&mut stream).take(len);
            while (bytes.len() as u64) < len {
                bytes.reserve(64 << 10);
                let read = timeout(patience, limited.read_buf(&mut bytes)).await;
                if read.map_err(io::Error::from)?? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
            }
            Ok::<(), SessionError>(())
        };
        match timeout(most, reading).await {
            Ok(read) => read?,
            Err(_) => {
                let (have, seconds) = (bytes.len(), most.as_secs());
                return Err(SessionError::Slow { have, len, seconds });
            }
        }
        let manifest = Manifest::decode(&bytes)?;
        let agreed_on = [manifest.root(), &terms.encode()[..]].concat();
        if !agreed.verify(&place.auth, &agreed_on, &tag) {
            return Err(SessionError::Tag);
        }
        Ok((Self { stream, own, terms, multicast }, manifest))
    }

    /// Reports the status each second, and at once when it is asked to, until the stream breaks.
    async fn report(&mut self, shared: &Shared) -> Result<(), SessionError> {
        loop {
            let status = shared.status.borrow().clone();
            let is_last = status.phase.is_over();
            let json = serde_json::to_vec(&status).map_err(io::Error::from)?;
            let frame = Frame::Status(json);
            timeout(PATIENCE, frame.write(&mut self.stream)).await.map_err(io::Error::from)??;
            let reply = timeout(REPLY, Frame::read(&mut self.stream)).await;
            match reply.map_err(io::Error::from)?? {
                Frame::Seen(why) => {
                    *shared.obstacle.borrow_mut() = Some(why).filter(|why| !why.is_empty());
                }
                // It needs no last status of one that ends, too.
                Frame::Ended if is_last => {}
                Frame::Ended => return Err(SessionError::Ended),
                Frame::Refused(why) => return Err(SessionError::Refused(why)),
                _ => return Err(SessionError::Protocol),
            }
            shared.server_ended.set(false);
            if shared.problem.borrow_mut().take().is_some() {
                shared.wake.notify_one();
            }
            if is_last {
                shared.ended.notify_one();
                return Ok(());
            }
            tokio::select! {
                () = sleep(EACH) => {}
                () = shared.report.notified() => {}
                // All that a server says unasked is that it ends.
                () = said_something(&self.stream) => {
                    let said = timeout(PATIENCE, Frame::read(&mut self.stream)).await;
                    return Err(match said.map_err(io::Error::from)?? {
                        Frame::Ended => SessionError::Ended,
                        _ => SessionError::Protocol,
                    });
                }
            }
        }
    }
}

/// Waits until the other end has said something. That the connection is broken is left to the next status.
async fn said_something(stream: &TcpStream) {
    if !matches!(stream.peek(&mut [0]).await, Ok(1)) {
        std::future::pending::<()>().await;
    }
}

/// What the session and the rest of the client share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) status: RefCell<ClientStatus>,
    /// The terms of the last session.
    pub(super) terms: Cell<Terms>,
    /// Why there is no connection at present.
    pub(super) problem: RefCell<Option<String>>,
    /// Why there will be none.
    pub(super) failure: RefCell<Option<SessionError>>,
    /// Whether there is none because the server has ended in good order.
    pub(super) server_ended: Cell<bool>,
    /// What keeps this client from chunks, as the server says.
    pub(super) obstacle: RefCell<Option<String>>,
    /// Requests that the status is sent at once.
    pub(super) report: Notify,
    /// The server has the last status.
    pub(super) ended: Notify,
    /// Something above has changed.
    pub(super) wake: Notify,
}

/// Keeps the session open until the client is over.
pub(super) async fn keep(mut session: Session, root: Hash, place: Place, shared: Rc<Shared>) {
    loop {
        match session.report(&shared).await {
            Ok(()) => return,
            Err(error) if error.is_permanent() => return fail(&shared, error),
            Err(error) => {
                shared.server_ended.set(matches!(error, SessionError::Ended));
                *shared.problem.borrow_mut() = Some(error.to_string());
            }
        }
        shared.wake.notify_one();
        let mut pause = Duration::from_millis(100);
        session = loop {
            if shared.status.borrow().phase.is_over() {
                shared.ended.notify_one();
                return;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            match Session::open(&place).await {
                Ok((session, manifest)) if *manifest.root() == root => {
                    shared.terms.set(session.terms);
                    shared.wake.notify_one();
                    break session;
                }
                Ok(_) => return fail(&shared, SessionError::Changed),
                Err(error) if error.is_permanent() => return fail(&shared, error),
                Err(error) => *shared.problem.borrow_mut() = Some(error.to_string()),
            }
        };
    }
}

fn fail(shared: &Shared, error: SessionError) {
    *shared.failure.borrow_mut() = Some(error);
    shared.ended.notify_one();
    shared.wake.notify_one();
}
