//! The beginning of a connection: what it is for, and the proof that both ends know the key.
//!
//! ```text
//!  connecting end                                  accepting end
//!    magic (8), purpose (1), keyed (1), 0 (6), nonce (16) ────>
//!    <──── magic (8), status (1), 0 (7), nonce (16), tag (16)
//!    tag (16) ────>
//!    <──── status (1)
//! ```
//! A tag is that of the key over the name of the end, and the two first messages without tags. Without a key the tags are zero.
//! What follows is neither encrypted nor authenticated: chunks are checked by their hashes, and the manifest has a tag of its own.

use std::io;
use std::time::Duration;

use rackweave_linux::random;
use rackweave_wire::frisbee::{Key, TAG_BYTES};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const MAGIC: [u8; 8] = *b"RWimage1";
const HELLO: usize = 32;
const REPLY: usize = 32;
/// How long the other end may take for its messages.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A client at its server: manifest and status.
    Session,
    /// A holder sends chunks.
    Chunks,
}

/// Why the ends of a connection do not agree.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// The connection has failed, or the other end is silent.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What the other end says is not this protocol.
    #[error("it is not a Rackweave process of this version")]
    Foreign,
    /// This end has no key and the other one has.
    #[error("it requires a key: use --key-file")]
    KeyRequired,
    /// This end has a key and the other one has none.
    #[error("it has no key, and this end has one")]
    NoKey,
    /// The keys differ.
    #[error("it has another key")]
    WrongKey,
    /// The other end does not accept this purpose, or this host.
    #[error("it refuses this host: `image serve --to` does not name it, or it does not serve")]
    Refused,
}

impl HelloError {
    /// Whether the same attempt cannot succeed later.
    pub(crate) const fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::Foreign | Self::KeyRequired | Self::NoKey | Self::WrongKey | Self::Refused
        )
    }
}

const OK: u8 = 0;
const KEY_REQUIRED: u8 = 1;
const NO_KEY: u8 = 2;
const WRONG_KEY: u8 = 3;
const REFUSED: u8 = 4;

const fn refusal(status: u8) -> Result<(), HelloError> {
    match status {
        OK => Ok(()),
        KEY_REQUIRED => Err(HelloError::KeyRequired),
        NO_KEY => Err(HelloError::NoKey),
        WRONG_KEY => Err(HelloError::WrongKey),
        REFUSED => Err(HelloError::Refused),
        _ => Err(HelloError::Foreign),
    }
}

/// A connection whose ends have agreed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    /// What the two ends have sent, by which a tag of what follows belongs to this connection.
    transcript: [u8; HELLO + REPLY],
}

impl Agreed {
    /// The tag of a text that is valid for this connection only; zeros without a key.
    pub(crate) fn tag(&self, key: Option<&Key>, what: &[u8]) -> [u8; TAG_BYTES] {
        key.map_or([0; TAG_BYTES], |key| key.tag(&[b"what follows", &self.transcript, what]))
    }

    /// Whether a tag is right.
    pub(crate) fn verify(&self, key: Option<&Key>, what: &[u8], tag: &[u8]) -> bool {
        key.is_none_or(|key| key.verify(&[b"what follows", &self.transcript, what], tag))
    }
}

async fn within<T>(what: impl Future<Output = Result<T, HelloError>>) -> Result<T, HelloError> {
    let timed_out = |_| HelloError::Io(io::ErrorKind::TimedOut.into());
    tokio::time::timeout(PATIENCE, what).await.map_err(timed_out)?
}

/// Begins a connection that this end has opened.
pub(crate) async fn connect(
    stream: &mut TcpStream,
    purpose: Purpose,
    key: Option<&Key>,
) -> Result<Agreed, HelloError> {
    within(async {
        let mut transcript = [0; HELLO + REPLY];
        transcript[..8].copy_from_slice(&MAGIC);
        transcript[8] = if purpose == Purpose::Session { 1 } else { 2 };
        transcript[9] = u8::from(key.is_some());
        transcript[16..HELLO].copy_from_slice(&random().to_ne_bytes());
        stream.write_all(&transcript[..HELLO]).await?;
        stream.read_exact(&mut transcript[HELLO..]).await?;
        let reply = &transcript[HELLO..];
        if reply[..8] != MAGIC {
            return Err(HelloError::Foreign);
        }
        refusal(reply[8])?;
        let mut tag = [0; TAG_BYTES];
        stream.read_exact(&mut tag).await?;
        if let Some(key) = key
            && !key.verify(&[b"accepting end", &transcript], &tag)
        {
            return Err(HelloError::WrongKey);
        }
        let tag = key.map_or([0; TAG_BYTES], |key| key.tag(&[b"connecting end", &transcript]));
        stream.write_all(&tag).await?;
        refusal(stream.read_u8().await?)?;
        Ok(Agreed { transcript })
    })
    .await
}

/// Begins a connection that this end has accepted. `accepts` judges its purpose.
pub(crate) async fn accept(
    stream: &mut TcpStream,
    key: Option<&Key>,
    accepts: impl FnOnce(Purpose) -> bool,
) -> Result<(Purpose, Agreed), HelloError> {
    within(async {
        let mut transcript = [0; HELLO + REPLY];
        stream.read_exact(&mut transcript[..HELLO]).await?;
        let purpose = match transcript[8] {
            1 => Purpose::Session,
            2 => Purpose::Chunks,
            _ => return Err(HelloError::Foreign),
        };
        if transcript[..8] != MAGIC {
            return Err(HelloError::Foreign);
        }
        let status = match (key.is_some(), transcript[9] == 1) {
            (true, false) => KEY_REQUIRED,
            (false, true) => NO_KEY,
            _ if !accepts(purpose) => REFUSED,
            _ => OK,
        };
        let reply = &mut transcript[HELLO..];
        reply[..8].copy_from_slice(&MAGIC);
        reply[8] = status;
        reply[16..].copy_from_slice(&random().to_ne_bytes());
        let tag = key.map_or([0; TAG_BYTES], |key| key.tag(&[b"accepting end", &transcript]));
        stream.write_all(&transcript[HELLO..]).await?;
        if status != OK {
            return Err(HelloError::Refused);
        }
        stream.write_all(&tag).await?;
        let mut tag = [0; TAG_BYTES];
        stream.read_exact(&mut tag).await?;
        let is_right = key.is_none_or(|key| key.verify(&[b"connecting end", &transcript], &tag));
        stream.write_u8(if is_right { OK } else { WRONG_KEY }).await?;
        if is_right { Ok((purpose, Agreed { transcript })) } else { Err(HelloError::WrongKey) }
    })
    .await
}
