//! What follows the hello: the frames of a session, and those of chunks. All integers are little-endian.
//!
//! A frame of a session is its length (4), its kind (1), and that many bytes:
//!
//! | kind | from | bytes |
//! |---|---|---|
//! | 1 | client | the name of the image that it wants |
//! | 2 | server | the length of the manifest (8), the terms (9), and a tag of its root and the terms (16); the manifest follows the frame |
//! | 3 | server | why it cannot serve, in UTF-8 |
//! | 4 | client | its status, in JSON ([`crate::status::ClientStatus`]) |
//! | 5 | server | it has the status; and what keeps the client from chunks, in UTF-8, if the server knows of something |
//! | 6 | server | none: it ends. It may come at any time after the manifest |
//! | 7 | client | none: it wants the list of images, in place of one |
//! | 8 | server | a part of the list, in JSON ([`crate::status::Listed`]); the last one is empty |
//! | 9 | server | before the manifest, if the image is multicast: the group's address (4), the server's in its packets (4), the port (2), and a tag of these (16) |
//!
//! The terms are the number of the session for control messages (8), and 1 if switches redirect requests, or 0 (1).
//!
//! A chunk is image (4), chunk (4), length (4), zeros (4), and its stored bytes. The receiver replies with image, chunk, and 0 if it has
//! taken the chunk, or 1 if it did not need it. Clients of a server that knows Frisbee only put a number of their session in place of the image.

use std::io;

use rackweave_core::is_hidden;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::multicast::GROUP;

/// A frame of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The name of the image that the client wants.
    Open(Vec<u8>),
    /// A manifest of this length follows.
    Manifest { len: u64, terms: Terms, tag: [u8; 16] },
    /// Why the server cannot serve.
    Refused(String),
    /// The client's status.
    Status(Vec<u8>),
    /// The server has the status. The text says what keeps the client from chunks; it is empty if nothing does.
    Seen(String),
    /// The server ends.
    Ended,
    /// The client wants the list of images.
    List,
    /// A part of the list; an empty one ends it.
    Images(Vec<u8>),
    /// Where the image is multicast.
    Multicast { group: [u8; GROUP], tag: [u8; 16] },
}

/// What both ends of a session must know for their control messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The number that their trailers have.
    pub(crate) session: u64,
    /// Whether switches redirect requests. If they do not, all messages for a client come from its server.
    pub(crate) is_switched: bool,
}

const TERMS: usize = 9;

impl Terms {
    pub(crate) fn encode(self) -> [u8; TERMS] {
        let mut bytes = [0; TERMS];
        bytes[..8].copy_from_slice(&self.session.to_le_bytes());
        bytes[8] = u8::from(self.is_switched);
        bytes
    }

    fn decode(bytes: &[u8; TERMS]) -> Option<Self> {
        let [session @ .., is_switched] = *bytes;
        let is_switched = match is_switched {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Self { session: u64::from_le_bytes(session), is_switched })
    }
}

/// The longest frame: a status that names many peers.
const MOST_BYTES: u32 = 64 << 10;
/// The longest reason.
const MOST_REASON: usize = 2000;

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Makes a text of a peer safe to show.
fn reason(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().filter(|letter| !is_hidden(*letter)).take(MOST_REASON).collect()
}

impl Frame {
    /// Reads the content of a frame.
    pub(crate) fn decode(kind: u8, bytes: Vec<u8>) -> io::Result<Self> {
        match kind {
            1 => Ok(Self::Open(bytes)),
            2 => {
                let (len, tag) = bytes.split_at_checked(8).ok_or(invalid("a short frame"))?;
                let len = len.try_into().map_err(|_| invalid("a short frame"))?;
                let (terms, tag) = tag.split_first_chunk().ok_or(invalid("a short frame"))?;
                let terms = Terms::decode(terms).ok_or(invalid("terms that are unknown"))?;
                let tag = tag.try_into().map_err(|_| invalid("a frame of the wrong length"))?;
                Ok(Self::Manifest { len: u64::from_le_bytes(len), terms, tag })
            }
            3 => Ok(Self::Refused(reason(&bytes))),
            4 => Ok(Self::Status(bytes)),
            5 => Ok(Self::Seen(reason(&bytes))),
            6 if bytes.is_empty() => Ok(Self::Ended),
            7 if bytes.is_empty() => Ok(Self::List),
            6 | 7 => Err(invalid("a frame of the wrong length")),
            8 => Ok(Self::Images(bytes)),
            9 => {
                let (group, tag) = bytes.split_at_checked(GROUP).ok_or(invalid("a short frame"))?;
                let group = group.try_into().map_err(|_| invalid("a short frame"))?;
                let tag = tag.try_into().map_err(|_| invalid("a frame of the wrong length"))?;
                Ok(Self::Multicast { group, tag })
            }
            _ => Err(invalid("a frame of unknown kind")),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, bytes) = match self {
            Self::Open(name) => (1, name.clone()),
            Self::Manifest { len, terms, tag } => {
                (2, [&len.to_le_bytes()[..], &terms.encode(), tag].concat())
            }
            Self::Refused(why) => (3, why.as_bytes().to_vec()),
            Self::Status(status) => (4, status.clone()),
            Self::Seen(why) => (5, why.as_bytes().to_vec()),
            Self::Ended => (6, Vec::new()),
            Self::List => (7, Vec::new()),
            Self::Images(list) => (8, list.clone()),
            Self::Multicast { group, tag } => (9, [&group[..], tag].concat()),
        };
        [&(bytes.len() as u32).to_le_bytes()[..], &[kind], &bytes].concat()
    }

    pub(crate) async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        to.write_all(&self.encode()).await
    }

    pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let len = from.read_u32_le().await?;
        let kind = from.read_u8().await?;
        if len > MOST_BYTES {
            return Err(invalid("a frame that is too long"));
        }
        let mut bytes = vec![0; len as usize];
        from.read_exact(&mut bytes).await?;
        Self::decode(kind, bytes)
    }
}

/// What precedes the bytes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkHeader {
    pub(crate) image: u32,
    pub(crate) chunk: u32,
    pub(crate) len: u32,
}

pub(crate) const CHUNK_HEADER: usize = 16;

impl ChunkHeader {
    pub(crate) fn encode(self) -> [u8; CHUNK_HEADER] {
        let mut bytes = [0; CHUNK_HEADER];
        bytes[..4].copy_from_slice(&self.image.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.chunk.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// `None` if the bytes are not a header.
    pub(crate) fn decode(bytes: &[u8; CHUNK_HEADER]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        (word(12) == 0).then(|| Self { image: word(0), chunk: word(4), len: word(8) })
    }
}

/// The reply to a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkReply {
    pub(crate) image: u32,
    pub(crate) chunk: u32,
    pub(crate) taken: bool,
}

pub(crate) const CHUNK_REPLY: usize = 12;

impl ChunkReply {
    pub(crate) fn encode(self) -> [u8; CHUNK_REPLY] {
        let mut bytes = [0; CHUNK_REPLY];
        bytes[..4].copy_from_slice(&self.image.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.chunk.to_le_bytes());
        bytes[8] = u8::from(!self.taken);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; CHUNK_REPLY]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let taken = match word(8) {
            0 => true,
            1 => false,
            _ => return None,
        };
        Some(Self { image: word(0), chunk: word(4), taken })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn frames_come_back_as_they_were() {
        let frames = [
            Frame::Open(b"debian".to_vec()),
            Frame::Manifest {
                len: 1 << 33,
                terms: Terms { session: 9, is_switched: true },
                tag: [7; 16],
            },
            Frame::Refused("no such image".to_owned()),
            Frame::Status(b"{}".to_vec()),
            Frame::Seen(String::new()),
            Frame::Seen("it cannot connect to this host".to_owned()),
            Frame::Ended,
            Frame::List,
            Frame::Images(b"[]".to_vec()),
            Frame::Multicast { group: [3; GROUP], tag: [4; 16] },
        ];
        for frame in frames {
            let bytes = frame.encode();
            assert_eq!(Frame::decode(bytes[4], bytes[5..].to_vec()).unwrap(), frame);
        }
        let header = ChunkHeader { image: 1, chunk: 2, len: 3 };
        assert_eq!(ChunkHeader::decode(&header.encode()), Some(header));
        for taken in [false, true] {
            let reply = ChunkReply { image: 9, chunk: 8, taken };
            assert_eq!(ChunkReply::decode(&reply.encode()), Some(reply));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(kind in 0..10_u8, bytes in any::<Vec<u8>>()) {
            match Frame::decode(kind, bytes.clone()) {
                Ok(Frame::Refused(why) | Frame::Seen(why)) => {
                    prop_assert!(!why.contains(is_hidden));
                }
                Ok(frame) => prop_assert_eq!(&frame.encode()[5..], &bytes[..]),
                Err(_) => {}
            }
        }
    }
}
