//! The encoding of Orca's packets; see [`crate::orca`] for the layout.

use core::ops::Range;

use rackweave_core::HostId;

use super::{Body, Control, Data, Header, Label, Labelled, Parity, Session, TO_AGENT, body};
use crate::malformed::{Malformed, Put, Reader};
use crate::overlay::crc32c;

const MAGIC: u8 = 0xc0;

mod kind {
    pub(super) const PILOT: u8 = 1;
    pub(super) const RACK: u8 = 2;
    pub(super) const HOST: u8 = 3;
    pub(super) const TO_AGENT: u8 = 4;
    pub(super) const CONTROL: u8 = 5;
    pub(super) const SET_ACTIVE: u8 = 6;
    pub(super) const PING: u8 = 7;
    pub(super) const PONG: u8 = 8;
    pub(super) const SYNC: u8 = 9;
    pub(super) const SYNC_DONE: u8 = 10;
}

const KEYED: u8 = 0x80;
const REPAIR: u8 = 0x40;
const END: u8 = 0x20;
const PARITY: u8 = 0x10;
const SEALED: u8 = 0x08;
const WORDS: u8 = 0x07;

/// The position of the label in a packet.
const LABEL_AT: usize = 12;
/// The length of the fields that describe a parity, before the payload.
const PARITY_BYTES: usize = 5;
/// The lengths of a sealed packet's counter and tag, which take the place of a check.
const COUNTER_BYTES: usize = 6;
const TAG_BYTES: usize = 16;
/// The length of a control packet's addresses and tag.
const CONTROL_BYTES: usize = 9;

/// A secret that all members share. Packets without a check made with it are refused.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// Creates the key from its bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Derives a key from a passphrase or the content of a key file. The key is as hard to guess as these.
    #[must_use]
    pub fn derive(secret: &[u8]) -> Self {
        Self(blake3::derive_key("rackweave 2026 orca packets", secret))
    }
}

impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The integrity check of a packet, which with a key is also a message authentication code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// CRC-32C, which detects errors but not forgeries.
    Crc(u32),
    /// The first 8 bytes of keyed BLAKE3.
    Keyed([u8; 8]),
    /// The payload is encrypted with an AEAD under a key of the session. [`decode`] cannot verify it.
    Sealed {
        /// The number of the packet under the session's key, below 2^48; the nonce is made from it.
        counter: u64,
        /// The tag of payload and associated data.
        tag: [u8; TAG_BYTES],
    },
}

/// A packet that was decoded and whose check is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The packet's header.
    pub header: Header,
    /// The packet's check, for [`encode_relayed`].
    pub check: Check,
    /// The position of the payload in the packet; empty for a control packet.
    pub payload: Range<usize>,
}

/// What a switch reads of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// The packet's header.
    pub header: Header,
    /// The length of what precedes the payload, which is all of a control packet.
    pub header_end: usize,
    /// Whether it is a control packet whose check is right. A switch acts on no other; the check of data is not verified.
    pub verified: bool,
}

/// Returns the length of a header: everything that precedes the payload. `words` is that of [`encode_header`].
#[must_use]
pub const fn header_bytes(header: &Header, words: u8, keyed: bool) -> u32 {
    let check = if keyed { 8 } else { 4 };
    match header {
        Header::Data(data) => {
            let parity = if data.parity.is_some() { PARITY_BYTES } else { 0 };
            (LABEL_AT + 4 * clamp(words) as usize + check + parity) as u32
        }
        Header::Control(control) => {
            (LABEL_AT + 4 + check + CONTROL_BYTES + body::bytes(&control.body)) as u32
        }
    }
}

/// How many bytes a sealed data packet is longer than one with a CRC.
pub const SEALED_EXTRA_BYTES: u32 = (COUNTER_BYTES + TAG_BYTES) as u32 - 4;

/// Returns the length of the header of a data packet whose payload is sealed. `words` is that of [`encode_header`].
#[must_use]
pub const fn sealed_header_bytes(data: &Data, words: u8) -> u32 {
    header_bytes(&Header::Data(*data), words, false) + SEALED_EXTRA_BYTES
}

/// The associated data of a sealed packet: what its tag covers besides the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Associated {
    bytes: [u8; LABEL_AT - 1 + PARITY_BYTES],
    len: usize,
}

impl AsRef<[u8]> for Associated {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Returns the associated data of a data packet: flags, offset, session and the description of a parity. Agents change kind,
/// label and the label's length, which are not covered.
#[must_use]
pub fn associated(data: &Data) -> Associated {
    let mut bytes = [0; LABEL_AT - 1 + PARITY_BYTES];
    bytes[0] = flags_of(data) | SEALED;
    bytes[1..7].copy_from_slice(&data.offset.to_be_bytes()[2..]);
    bytes[7..11].copy_from_slice(&data.session.0.to_be_bytes());
    let mut len = LABEL_AT - 1;
    if let Some(Parity { index, data, parity, last }) = data.parity {
        bytes[len..len + 3].copy_from_slice(&[index, data, parity]);
        bytes[len + 3..].copy_from_slice(&last.to_be_bytes());
        len += PARITY_BYTES;
    }
    Associated { bytes, len }
}

/// Returns the check of a packet whose payload consists of these pieces.
#[must_use]
pub fn check(header: &Header, key: Option<&Key>, payload: &[&[u8]]) -> Check {
    let mut front = Vec::with_capacity(64);
    match header {
        Header::Data(data) => {
            put_front(data, if key.is_some() { KEYED } else { 0 }, 0, &mut front);
            // Kind, label and the label's length may change in transit. The description of a parity is covered.
            front.truncate(LABEL_AT);
            put_parity(data, &mut front);
            check_of(key, &front[1..], payload)
        }
        Header::Control(control) => {
            put_control_front(control, key.is_some(), &mut front);
            put_control(control, &mut front);
            check_of(key, &front, &[])
        }
    }
}

/// Appends a packet's header. The pieces of `payload` follow it on the wire; they are read for the check, and not
/// copied. A label takes `words` words, 1 to 4; higher bits are truncated.
pub fn encode_header(
    header: &Header,
    words: u8,
    key: Option<&Key>,
    payload: &[&[u8]],
    out: &mut Vec<u8>,
) {
    let check = check(header, key, payload);
    match header {
        Header::Data(data) => encode_relayed(data, words, check, out),
        Header::Control(control) => {
            put_control_front(control, key.is_some(), out);
            check.put(out);
            put_control(control, out);
        }
    }
}

/// Appends the header of forwarded data with its original check; only kind and label have changed.
pub fn encode_relayed(data: &Data, words: u8, check: Check, out: &mut Vec<u8>) {
    let flag = match check {
        Check::Crc(_) => 0,
        Check::Keyed(_) => KEYED,
        Check::Sealed { .. } => SEALED,
    };
    put_front(data, flag, clamp(words), out);
    check.put(out);
    put_parity(data, out);
}

/// Replaces the label of a data packet in place. Returns false if the packet has no room for it.
pub fn relabel(bytes: &mut [u8], labelled: Labelled, label: Label) -> bool {
    let Ok(Front { header: Header::Data(_), words, .. }) = Front::read(bytes) else { return false };
    let bits = 32 * u32::from(words);
    if label.0.checked_shr(bits).unwrap_or(0) != 0 {
        return false;
    }
    bytes[0] = MAGIC | kind_of_data(labelled);
    let skipped = 16 - 4 * usize::from(words);
    bytes[LABEL_AT..LABEL_AT + 4 * usize::from(words)]
        .copy_from_slice(&label.0.to_be_bytes()[skipped..]);
    true
}

/// Decodes a packet and verifies its check. That of a sealed packet ([`Check::Sealed`]) is not verified: who has the session's
/// key must open the payload before the packet counts. Without a key, sealed packets are refused.
///
/// # Errors
/// [`Malformed`], also if the packet was damaged or its check was not made with the key.
pub fn decode(bytes: &[u8], key: Option<&Key>) -> Result<Decoded, Malformed> {
    let front = Front::read(bytes)?;
    match (front.check, key) {
        (Check::Crc(_), Some(_)) => return Err(Malformed::NotKeyed),
        (Check::Keyed(_) | Check::Sealed { .. }, None) => return Err(Malformed::NoKey),
        _ => {}
    }
    if !matches!(front.check, Check::Sealed { .. }) && !front.is_whole(bytes, key) {
        return Err(Malformed::Damaged("an Orca packet"));
    }
    Ok(Decoded { header: front.header, check: front.check, payload: front.end..bytes.len() })
}

/// Decodes what a switch needs: the header, and for a control packet whether the check is right, for which the switch may
/// need the key.
///
/// # Errors
/// [`Malformed`] if the header cannot be decoded.
pub fn glance(bytes: &[u8], key: Option<&Key>) -> Result<Glance, Malformed> {
    let front = Front::read(bytes)?;
    let same_kind = matches!(front.check, Check::Keyed(_)) == key.is_some();
    let verified = matches!(front.header, Header::Control(_)) && same_kind;
    let verified = verified && front.is_whole(bytes, key);
    Ok(Glance { header: front.header, header_end: front.end, verified })
}

/// A packet that was decoded and whose check was not verified.
struct Front {
    header: Header,
    words: u8,
    check: Check,
    /// The position of the check.
    check_at: usize,
    /// The position of the payload.
    end: usize,
}

impl Front {
    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new("an Orca packet", bytes);
        let (first, flags) = (reader.u8()?, reader.u8()?);
        let kind = first & 0x0f;
        if first & 0xf0 != MAGIC || !(kind::PILOT..=kind::SYNC_DONE).contains(&kind) {
            return Err(Malformed::OrcaKind(first));
        }
        let words = flags & WORDS;
        if !(1..=4).contains(&words) {
            return Err(Malformed::OrcaWords(words));
        }
        let offset = reader.u48()?;
        let session = Session(reader.u32()?);
        let mut label = 0;
        for _ in 0..words {
            label = label << 32 | u128::from(reader.u32()?);
        }
        let check_at = reader.at();
        let check = match flags & (KEYED | SEALED) {
            0 => Check::Crc(reader.u32()?),
            KEYED => Check::Keyed(reader.array()?),
            SEALED => Check::Sealed { counter: reader.u48()?, tag: reader.array()? },
            _ => {
                let value = u64::from(flags);
                return Err(Malformed::OrcaField { what: "flags", value });
            }
        };
        let labelled = match kind {
            kind::PILOT => Labelled::Pilot,
            kind::RACK => Labelled::Rack,
            kind::HOST => Labelled::Host,
            _ => {
                let plain = flags & !(KEYED | WORDS) == 0 && words == 1 && label == 0;
                if !plain || offset != 0 {
                    let value = u64::from(flags);
                    return Err(Malformed::OrcaField { what: "control header", value });
                }
                let (from, to) = (HostId(reader.u32()?), HostId(reader.u32()?));
                let control = Control { from, to, session, body: body::read(&mut reader)? };
                if kind_of_control(&control) != kind {
                    return Err(Malformed::OrcaKind(first));
                }
                let (end, header) = (reader.at(), Header::Control(control));
                if end != bytes.len() {
                    return Err(Malformed::SegmentLength { claimed: end, left: bytes.len() });
                }
                return Ok(Self { header, words, check, check_at, end });
            }
        };
        let parity = if flags & PARITY == 0 {
            None
        } else {
            let (index, data, parity) = (reader.u8()?, reader.u8()?, reader.u8()?);
            Some(Parity { index, data, parity, last: reader.u16()? })
        };
        let end = reader.at();
        let left = bytes.len() - end;
        let len = u16::try_from(left)
            .map_err(|_| Malformed::SegmentLength { claimed: left, left: usize::from(u16::MAX) })?;
        let header = Header::Data(Data {
            labelled,
            label: Label(label),
            session,
            offset,
            len,
            repair: flags & REPAIR != 0,
            end: flags & END != 0,
            parity,
        });
        Ok(Self { header, words, check, check_at, end })
    }

    /// Returns whether the check is correct. A keyed check needs the key.
    fn is_whole(&self, bytes: &[u8], key: Option<&Key>) -> bool {
        let after = match self.check {
            Check::Crc(_) => self.check_at + 4,
            Check::Keyed(_) => self.check_at + 8,
            Check::Sealed { .. } => return false,
        };
        let expected = match &self.header {
            Header::Data(_) => {
                let mut front = [0; LABEL_AT - 1];
                front.copy_from_slice(&bytes[1..LABEL_AT]);
                front[0] &= !WORDS;
                check_of(key, &front, &[&bytes[after..]])
            }
            Header::Control(_) => check_of(key, &bytes[..self.check_at], &[&bytes[after..]]),
        };
        match (expected, self.check) {
            (Check::Crc(expected), Check::Crc(found)) => expected == found,
            (Check::Keyed(expected), Check::Keyed(found)) => {
                // In constant time: no branch depends on the position of the first difference.
                expected.iter().zip(found).fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
            }
            _ => false,
        }
    }
}

impl Check {
    fn put(self, out: &mut Vec<u8>) {
        match self {
            Self::Crc(check) => out.put_u32(check),
            Self::Keyed(check) => out.extend_from_slice(&check),
            Self::Sealed { counter, tag } => {
                out.put_u48(counter);
                out.extend_from_slice(&tag);
            }
        }
    }
}

/// Computes the check over `front` and these pieces.
fn check_of(key: Option<&Key>, front: &[u8], pieces: &[&[u8]]) -> Check {
    let Some(Key(key)) = key else {
        let first = crc32c(0, front);
        return Check::Crc(pieces.iter().fold(first, |crc, piece| crc32c(crc, piece)));
    };
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(front);
    for piece in pieces {
        hasher.update(piece);
    }
    let mut check = [0; 8];
    check.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    Check::Keyed(check)
}

const fn clamp(words: u8) -> u8 {
    match words {
        0 => 1,
        1..=4 => words,
        _ => 4,
    }
}

const fn kind_of_data(labelled: Labelled) -> u8 {
    match labelled {
        Labelled::Pilot => kind::PILOT,
        Labelled::Rack => kind::RACK,
        Labelled::Host => kind::HOST,
    }
}

fn kind_of_control(control: &Control) -> u8 {
    if control.to == TO_AGENT {
        return kind::TO_AGENT;
    }
    match control.body {
        Body::SetActive { .. } => kind::SET_ACTIVE,
        Body::Ping { .. } => kind::PING,
        Body::Pong { .. } => kind::PONG,
        Body::Sync { .. } => kind::SYNC,
        Body::SyncDone { .. } => kind::SYNC_DONE,
        _ => kind::CONTROL,
    }
}

/// Returns the flags of a data packet that do not depend on its check.
const fn flags_of(data: &Data) -> u8 {
    (if data.repair { REPAIR } else { 0 })
        | (if data.end { END } else { 0 })
        | (if data.parity.is_some() { PARITY } else { 0 })
}

/// Appends all fields before the check, whose kind is `flag`.
fn put_front(data: &Data, flag: u8, words: u8, out: &mut Vec<u8>) {
    out.put_u8(MAGIC | kind_of_data(data.labelled));
    out.put_u8(flags_of(data) | flag | words);
    out.put_u48(data.offset);
    out.put_u32(data.session.0);
    let bytes = data.label.0.to_be_bytes();
    out.extend_from_slice(&bytes[16 - 4 * usize::from(words)..]);
}

fn put_parity(data: &Data, out: &mut Vec<u8>) {
    if let Some(Parity { index, data, parity, last }) = data.parity {
        out.extend_from_slice(&[index, data, parity]);
        out.put_u16(last);
    }
}

fn put_control_front(control: &Control, keyed: bool, out: &mut Vec<u8>) {
    out.put_u8(MAGIC | kind_of_control(control));
    out.put_u8(if keyed { KEYED } else { 0 } | 1);
    out.put_u48(0);
    out.put_u32(control.session.0);
    out.put_u32(0);
}

fn put_control(control: &Control, out: &mut Vec<u8>) {
    out.put_u32(control.from.0);
    out.put_u32(control.to.0);
    body::put(&control.body, out);
}
