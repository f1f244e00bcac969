//! The encoding of messages.

use core::ops::Range;

use super::{BLOCK_BYTES, Body, Chunks, HEADER_BYTES, Header};
use crate::Id64;
use crate::malformed::{Malformed, Reader};

const REQUEST: u32 = 1;
const REPLY: u32 = 2;

mod subtype {
    pub(super) const JOIN: u32 = 1;
    pub(super) const LEAVE: u32 = 2;
    pub(super) const BLOCK: u32 = 3;
    pub(super) const REQUEST: u32 = 4;
    pub(super) const LEAVE2: u32 = 5;
    pub(super) const PREQUEST: u32 = 6;
    pub(super) const JOIN2: u32 = 7;
    // 8 is PROGRESS of later versions, which is not decoded.
    pub(super) const REPORT: u32 = 9;
    pub(super) const BATCH: u32 = 10;
    pub(super) const RETURN: u32 = 11;
    pub(super) const ENTER: u32 = 12;
    pub(super) const EXIT: u32 = 13;
    pub(super) const DAMAGED: u32 = 14;
}

/// A message that was read from bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The message.
    pub header: Header,
    /// Where its payload is in the bytes: [`Header::payload_len`] of them.
    pub payload: Range<usize>,
}

/// Appends header and fields: [`Header::header_bytes`] of them. The payload must follow.
pub fn encode(header: &Header, out: &mut Vec<u8>) {
    let start = out.len();
    let (kind, subtype) = kind_of(&header.body);
    put(out, kind);
    put(out, subtype);
    put(out, header.header_bytes() - HEADER_BYTES + header.payload_len());
    out.extend_from_slice(&header.source);
    match header.body {
        Body::Join { client } | Body::Enter { client, .. } => put(out, client),
        Body::JoinReply { blocks } => put(out, blocks),
        Body::Leave { client, elapsed_s } | Body::Leave2 { client, elapsed_s } => {
            put_all(out, [client, elapsed_s]);
        }
        Body::Block { chunk, block, .. } => put_all(out, [chunk, block]),
        Body::Request { chunk, block, count } => put_all(out, [chunk, block, count]),
        Body::PartialRequest { chunk, retries } => put_all(out, [chunk, retries]),
        Body::Join2 { client, blocks, chunk_blocks, block_bytes, bytes, .. } => {
            put_all(out, [client, blocks, chunk_blocks, block_bytes]);
            out.extend_from_slice(&bytes.get().to_le_bytes());
        }
        Body::Report { image, window } => put_all(out, [image, window]),
        Body::Batch(chunks) => put_chunks(out, chunks),
        Body::Return { chunks, requester } | Body::Redirect { chunks, requester } => {
            put_chunks(out, chunks);
            out.extend_from_slice(&requester);
        }
        Body::Entered { client, image, index, clients, chunk_bytes, bytes } => {
            put_all(out, [client, image]);
            out.extend_from_slice(&index.to_le_bytes());
            out.extend_from_slice(&clients.to_le_bytes());
            put(out, chunk_bytes);
            out.extend_from_slice(&bytes.get().to_le_bytes());
        }
        Body::Exit { client, image } => put_all(out, [client, image]),
        Body::Damaged { image, chunk, holder } => {
            put_all(out, [image, chunk]);
            out.extend_from_slice(&holder);
        }
    }
    debug_assert_eq!(out.len() - start, header.header_bytes() as usize);
}

/// Reads a message. What follows its length is ignored, as in Frisbee. Whether chunks and blocks exist is the receiver's to
/// judge, as is whether the source is the packet's.
///
/// # Errors
/// See [`Malformed`].
pub fn decode(bytes: &[u8]) -> Result<Decoded, Malformed> {
    let mut reader = Reader::new("a Frisbee message", bytes);
    reader.need("a Frisbee header", HEADER_BYTES as usize)?;
    let (kind, subtype, length) = (int(&mut reader)?, int(&mut reader)?, int(&mut reader)?);
    let source = reader.array()?;
    let wrong = |what, value: u32| Malformed::FrisbeeField { what, value: u64::from(value) };
    if kind != REQUEST && kind != REPLY {
        return Err(wrong("type", kind));
    }
    // The length decides what can be read; it may be wrong itself.
    let end = HEADER_BYTES as usize + length as usize;
    reader.need("a Frisbee message", end)?;
    let length = length as usize;
    let payload = |fields: usize| {
        let len = length.checked_sub(fields).ok_or_else(|| wrong("length", length as u32))?;
        Ok::<usize, Malformed>(len)
    };
    let body = match (kind, subtype) {
        (REQUEST, subtype::JOIN) => Body::Join { client: word(&mut reader)? },
        (REPLY, subtype::JOIN) => Body::JoinReply { blocks: int(&mut reader)? },
        (REQUEST, subtype::LEAVE) => {
            Body::Leave { client: word(&mut reader)?, elapsed_s: int(&mut reader)? }
        }
        (REQUEST, subtype::LEAVE2) => {
            Body::Leave2 { client: word(&mut reader)?, elapsed_s: int(&mut reader)? }
        }
        (REQUEST, subtype::BLOCK) => {
            let (chunk, block, len) = (int(&mut reader)?, int(&mut reader)?, payload(8)?);
            let most = 8 * BLOCK_BYTES as usize;
            let len = u16::try_from(len).ok().filter(|_| (1..=most).contains(&len));
            Body::Block { chunk, block, len: len.ok_or_else(|| wrong("length", length as u32))? }
        }
        (REQUEST, subtype::REQUEST) => Body::Request {
            chunk: int(&mut reader)?,
            block: int(&mut reader)?,
            count: int(&mut reader)?,
        },
        (REQUEST, subtype::PREQUEST) => {
            Body::PartialRequest { chunk: int(&mut reader)?, retries: int(&mut reader)? }
        }
        (_, subtype::JOIN2) => Body::Join2 {
            reply: kind == REPLY,
            client: word(&mut reader)?,
            blocks: int(&mut reader)?,
            chunk_blocks: int(&mut reader)?,
            block_bytes: int(&mut reader)?,
            bytes: long(&mut reader)?,
        },
        (REQUEST, subtype::REPORT) => {
            Body::Report { image: word(&mut reader)?, window: int(&mut reader)? }
        }
        (REQUEST, subtype::BATCH) => Body::Batch(chunks(&mut reader)?),
        (REQUEST, subtype::RETURN) => {
            Body::Return { chunks: chunks(&mut reader)?, requester: reader.array()? }
        }
        (REPLY, subtype::RETURN) => {
            Body::Redirect { chunks: chunks(&mut reader)?, requester: reader.array()? }
        }
        (REQUEST, subtype::DAMAGED) => Body::Damaged {
            image: word(&mut reader)?,
            chunk: int(&mut reader)?,
            holder: reader.array()?,
        },
        (REQUEST, subtype::ENTER) => {
            let (client, len) = (word(&mut reader)?, payload(4)?);
            let name_len = u8::try_from(len).map_err(|_| wrong("length", length as u32))?;
            Body::Enter { client, name_len }
        }
        (REPLY, subtype::ENTER) => Body::Entered {
            client: word(&mut reader)?,
            image: word(&mut reader)?,
            index: half(&mut reader)?,
            clients: half(&mut reader)?,
            chunk_bytes: int(&mut reader)?,
            bytes: long(&mut reader)?,
        },
        (REQUEST, subtype::EXIT) => {
            Body::Exit { client: word(&mut reader)?, image: word(&mut reader)? }
        }
        (REPLY, subtype::LEAVE..=subtype::PREQUEST | subtype::REPORT..=subtype::DAMAGED) => {
            return Err(wrong("type", kind));
        }
        _ => return Err(wrong("subtype", subtype)),
    };
    let header = Header { source, body };
    if reader.at() != header.header_bytes() as usize
        || end != (header.header_bytes() + header.payload_len()) as usize
    {
        return Err(wrong("length", length as u32));
    }
    Ok(Decoded { header, payload: reader.at()..end })
}

const fn kind_of(body: &Body) -> (u32, u32) {
    match body {
        Body::Join { .. } => (REQUEST, subtype::JOIN),
        Body::JoinReply { .. } => (REPLY, subtype::JOIN),
        Body::Leave { .. } => (REQUEST, subtype::LEAVE),
        Body::Leave2 { .. } => (REQUEST, subtype::LEAVE2),
        Body::Block { .. } => (REQUEST, subtype::BLOCK),
        Body::Request { .. } => (REQUEST, subtype::REQUEST),
        Body::PartialRequest { .. } => (REQUEST, subtype::PREQUEST),
        Body::Join2 { reply: false, .. } => (REQUEST, subtype::JOIN2),
        Body::Join2 { reply: true, .. } => (REPLY, subtype::JOIN2),
        Body::Report { .. } => (REQUEST, subtype::REPORT),
        Body::Batch(_) => (REQUEST, subtype::BATCH),
        Body::Return { .. } => (REQUEST, subtype::RETURN),
        Body::Enter { .. } => (REQUEST, subtype::ENTER),
        Body::Entered { .. } => (REPLY, subtype::ENTER),
        Body::Exit { .. } => (REQUEST, subtype::EXIT),
        Body::Redirect { .. } => (REPLY, subtype::RETURN),
        Body::Damaged { .. } => (REQUEST, subtype::DAMAGED),
    }
}

fn put(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_all<const N: usize>(out: &mut Vec<u8>, values: [u32; N]) {
    for value in values {
        put(out, value);
    }
}

fn put_chunks(out: &mut Vec<u8>, Chunks { image, first, count, tries }: Chunks) {
    put_all(out, [image, first]);
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&tries.to_le_bytes());
}

fn word(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    reader.array().map(u32::from_le_bytes)
}

/// Reads a signed field, which must not be negative.
fn int(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    let value = word(reader)?;
    if value > i32::MAX as u32 {
        return Err(Malformed::FrisbeeField { what: "integer", value: u64::from(value) });
    }
    Ok(value)
}

fn half(reader: &mut Reader<'_>) -> Result<u16, Malformed> {
    reader.array().map(u16::from_le_bytes)
}

fn long(reader: &mut Reader<'_>) -> Result<Id64, Malformed> {
    reader.array().map(u64::from_le_bytes).map(Id64::new)
}

fn chunks(reader: &mut Reader<'_>) -> Result<Chunks, Malformed> {
    let (image, first) = (word(reader)?, int(reader)?);
    Ok(Chunks { image, first, count: half(reader)?, tries: half(reader)? })
}
