//! The beginning of a connection: what it is for, and the proof that both ends know the key.
//!
//! ```text
//!  connecting end                                  accepting end
//!    magic (8), purpose (1), method (1), 0 (6), nonce (16) ────>
//!    <──── magic (8), status (1), 0 (7), nonce (16), tag (16)
//!    tag (16) ────>
//!    <──── status (1)
//! ```
//! The method is 0 without a key and 1 with one, whose tag is [`rackweave_wire::frisbee::Key::tag`]. An end that reads another method, or anything but zeros where
//! they are reserved, ends the connection, so that a later version can give them a meaning.
//!
//! A tag is that of the key over the name of the end, and the two first messages without tags. Without a key the tags are zero.
//! What follows is neither encrypted nor authenticated: chunks are checked by their hashes, and the manifest has a tag of its own.

use std::io;
use std::time::Duration;

use rackweave_linux::random;
use rackweave_wire::frisbee::{Auth, TAG_BYTES};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Methods of proof.
const NO_PROOF: u8 = 0;
const KEY_TAG: u8 = 1;

const MAGIC: [u8; 8] = *b"RWimage2";
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
    pub(crate) fn tag(&self, auth: &Auth, what: &[u8]) -> [u8; TAG_BYTES] {
        auth.key().map_or([0; TAG_BYTES], |key| key.tag(&[b"what follows", &self.transcript, what]))
    }

    /// Whether a tag is right.
    pub(crate) fn verify(&self, auth: &Auth, what: &[u8], tag: &[u8]) -> bool {
        auth.key().is_none_or(|key| key.verify(&[b"what follows", &self.transcript, what], tag))
    }
}

async fn within<T>(what: impl Future<Output = Result<T, HelloError>>) -> Result<T, HelloError> {
    let timed_out = |_| HelloError::Io(io::ErrorKind::TimedOut.into());
    tokio::time::timeout(PATIENCE, what).await.map_err(timed_out)?
}

/// Begins a connection that this end has opened.
pub(crate) async fn connect(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    purpose: Purpose,
    auth: &Auth,
) -> Result<Agreed, HelloError> {
    let key = auth.key();
    within(async {
        let mut transcript = [0; HELLO + REPLY];
        transcript[..8].copy_from_slice(&MAGIC);
        transcript[8] = if purpose == Purpose::Session { 1 } else { 2 };
        transcript[9] = if key.is_some() { KEY_TAG } else { NO_PROOF };
        transcript[16..HELLO].copy_from_slice(&random().to_ne_bytes());
        stream.write_all(&transcript[..HELLO]).await?;
        stream.read_exact(&mut transcript[HELLO..]).await?;
        let reply = &transcript[HELLO..];
        if reply[..8] != MAGIC || reply[9..16] != [0; 7] {
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
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    auth: &Auth,
    accepts: impl FnOnce(Purpose) -> bool,
) -> Result<(Purpose, Agreed), HelloError> {
    let key = auth.key();
    within(async {
        let mut transcript = [0; HELLO + REPLY];
        stream.read_exact(&mut transcript[..HELLO]).await?;
        if transcript[..8] != MAGIC || transcript[10..16] != [0; 6] {
            return Err(HelloError::Foreign);
        }
        let purpose = match transcript[8] {
            1 => Purpose::Session,
            2 => Purpose::Chunks,
            _ => return Err(HelloError::Foreign),
        };
        let has_key = match transcript[9] {
            NO_PROOF => false,
            KEY_TAG => true,
            _ => return Err(HelloError::Foreign),
        };
        let status = match (key.is_some(), has_key) {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::{Strategy as _, any, prop_assert, proptest};
    use proptest::{collection::vec, option, prop_oneof};
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    /// More than an end sends.
    const ROOM: usize = 256;
    /// What the ends send in an exchange that succeeds: hello and tag; reply, tag and status.
    const SENT: [usize; 2] = [HELLO + TAG_BYTES, REPLY + TAG_BYTES + 1];

    type Ends = (Result<Agreed, HelloError>, Result<(Purpose, Agreed), HelloError>);

    fn key(secret: &[u8]) -> Auth {
        Auth::Key(rackweave_wire::frisbee::Key::derive(secret))
    }

    fn run<T>(what: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(what)
    }

    /// Passes bytes on until the stream ends. Of the bit `flip`, the inverse is passed on.
    async fn relay(
        mut from: tokio::io::ReadHalf<DuplexStream>,
        mut to: tokio::io::WriteHalf<DuplexStream>,
        flip: Option<usize>,
    ) {
        let mut at = 0;
        while let Ok(mut byte) = from.read_u8().await {
            if flip.is_some_and(|bit| bit / 8 == at) {
                byte ^= 1 << (flip.unwrap_or(0) % 8);
            }
            at += 1;
            if to.write_u8(byte).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
    }

    /// Lets two ends agree. `flip` names a bit of what the connecting and the accepting end send.
    fn exchange(keys: [Auth; 2], purpose: Purpose, flip: [Option<usize>; 2]) -> Ends {
        run(async move {
            let ((mut one, relay_one), (relay_two, mut two)) = (duplex(ROOM), duplex(ROOM));
            let (from_one, to_one) = tokio::io::split(relay_one);
            let (from_two, to_two) = tokio::io::split(relay_two);
            let connecting = async move { connect(&mut one, purpose, &keys[0]).await };
            let accepting = async move { accept(&mut two, &keys[1], |_| true).await };
            let there = relay(from_one, to_two, flip[0]);
            let back = relay(from_two, to_one, flip[1]);
            let (one, two, (), ()) = tokio::join!(connecting, accepting, there, back);
            (one, two)
        })
    }

    /// What an end makes of bytes, after which nothing comes.
    fn heard<T>(bytes: &[u8], end: impl AsyncFnOnce(&mut DuplexStream) -> T) -> T {
        run(async move {
            let (mut other, mut this) = duplex(ROOM);
            other.write_all(bytes).await.unwrap();
            other.shutdown().await.unwrap();
            end(&mut this).await
        })
    }

    #[test]
    fn any_changed_bit_of_a_keyed_exchange_is_noticed() {
        let keys = [key(b"a secret"); 2];
        for (end, bytes) in SENT.into_iter().enumerate() {
            for bit in 0..8 * bytes {
                let mut flip = [None; 2];
                flip[end] = Some(bit);
                let (one, two) = exchange(keys, Purpose::Session, flip);
                assert!(one.is_err() || two.is_err(), "bit {bit} of what end {end} sends");
            }
            let mut flip = [None; 2];
            flip[end] = Some(8 * bytes);
            let (one, two) = exchange(keys, Purpose::Session, flip);
            assert!(one.is_ok() && two.is_ok(), "there are no more bits");
        }
    }

    #[test]
    fn unknown_methods_and_reserved_bytes_are_foreign() {
        let mut hello = [0; HELLO];
        hello[..8].copy_from_slice(&MAGIC);
        hello[8] = 1;
        let accepted = |hello: &[u8; HELLO]| {
            let bytes = [&hello[..], &[0; TAG_BYTES]].concat();
            heard(&bytes, async |stream| accept(stream, &Auth::Number, |_| true).await)
        };
        assert!(accepted(&hello).is_ok());
        for (at, value) in (9..16).map(|at| (at, 2)).chain([(8, 0), (8, 3), (9, 0xff), (0, 0)]) {
            let mut wrong = hello;
            wrong[at] = value;
            assert!(matches!(accepted(&wrong), Err(HelloError::Foreign)), "byte {at}");
        }
        let mut reply = [0; REPLY + TAG_BYTES + 1];
        reply[..8].copy_from_slice(&MAGIC);
        let connected = |reply: &[u8]| {
            heard(reply, async |stream| connect(stream, Purpose::Chunks, &Auth::Number).await)
        };
        assert!(connected(&reply).is_ok());
        for at in 9..16 {
            let mut wrong = reply;
            wrong[at] = 1;
            assert!(matches!(connected(&wrong), Err(HelloError::Foreign)), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn ends_agree_if_their_keys_do(
            secrets in [option::of(0..3_u8), option::of(0..3_u8)],
            is_session in any::<bool>(),
        ) {
            let purpose = if is_session { Purpose::Session } else { Purpose::Chunks };
            let keys = secrets.map(|secret| secret.map_or(Auth::Number, |secret| key(&[secret; 8])));
            match exchange(keys, purpose, [None; 2]) {
                (Ok(one), Ok((said, two))) => {
                    prop_assert!(secrets[0] == secrets[1] && said == purpose);
                    prop_assert!(one.transcript == two.transcript);
                    let tag = one.tag(&keys[0], b"root");
                    prop_assert!(two.verify(&keys[1], b"root", &tag));
                    prop_assert!(keys[1].key().is_none() || !two.verify(&keys[1], b"toor", &tag));
                }
                (Err(one), Err(_)) => {
                    prop_assert!(secrets[0] != secrets[1] && one.is_permanent());
                }
                (one, two) => prop_assert!(false, "{one:?} {two:?}"),
            }
        }

        #[test]
        fn without_the_key_any_bytes_end_in_an_error(
            bytes in prop_oneof![
                vec(any::<u8>(), 0..ROOM),
                vec(any::<u8>(), 0..ROOM - 10).prop_map(|rest| [&MAGIC[..], &[1, 1], &[0; 6], &rest].concat()),
                vec(any::<u8>(), 0..ROOM - 16).prop_map(|rest| [&MAGIC[..], &[0; 8], &rest].concat()),
            ].prop_map(|mut bytes| { bytes.truncate(ROOM); bytes }),
        ) {
            let key = key(b"a secret");
            let accepted = heard(&bytes, async |stream| accept(stream, &key, |_| true).await);
            prop_assert!(accepted.is_err());
            let connected =
                heard(&bytes, async |stream| connect(stream, Purpose::Session, &key).await);
            prop_assert!(connected.is_err());
        }
    }
}
