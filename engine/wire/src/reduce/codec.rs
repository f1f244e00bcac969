//! The encoding of messages; see [`crate::reduce`] for the layout.

use core::ops::Range;

use rackweave_core::HostId;

use super::{
    Body, Chunk, Header, LONG_BYTES, MAX_PAIRS, MAX_WINDOW, MAX_WORKERS, Open, OpenVector,
    Operator, Pairs, Phase, Refusal, Rejection, Rule, State,
};
use crate::Id64;
use crate::codec::flag;
use crate::malformed::{Malformed, Put, Reader};

const MAGIC: u8 = 0xa6;
const FLAG: u8 = 1;
const FLAG_2: u8 = 2;

mod kind {
    pub(super) const DATA: u8 = 1;
    pub(super) const RESIDUAL: u8 = 2;
    pub(super) const LONG: u8 = 3;
    pub(super) const FIN: u8 = 4;
    pub(super) const ACK: u8 = 5;
    pub(super) const JOIN: u8 = 6;
    pub(super) const CHALLENGE: u8 = 7;
    pub(super) const STATE: u8 = 8;
    pub(super) const CONFIRM: u8 = 9;
    pub(super) const OPEN: u8 = 10;
    pub(super) const OPENED: u8 = 11;
    pub(super) const REFUSED: u8 = 12;
    pub(super) const FETCH: u8 = 13;
    pub(super) const VALUES: u8 = 14;
    pub(super) const CLEAR: u8 = 15;
    pub(super) const CLEARED: u8 = 16;
    pub(super) const CLOSE: u8 = 17;
    pub(super) const UNKNOWN: u8 = 18;
    pub(super) const JOIN_VECTOR: u8 = 19;
    pub(super) const VECTOR_STATE: u8 = 20;
    pub(super) const VECTOR_PROGRESS: u8 = 21;
    pub(super) const OPEN_VECTOR: u8 = 22;
    pub(super) const CHUNK: u8 = 23;
    pub(super) const CHUNK_SUM: u8 = 24;
    pub(super) const WAITING: u8 = 25;
    pub(super) const VECTOR_NAMED: u8 = 26;
    pub(super) const REJECTED: u8 = 27;
}

/// A message that was read from bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The message.
    pub header: Header,
    /// Where its payload is in the bytes: [`Header::payload_len`] of them.
    pub payload: Range<usize>,
}

/// Appends the fields of a message: [`Header::header_bytes`] of them. The payload must follow.
pub fn encode(header: &Header, out: &mut Vec<u8>) {
    let start = out.len();
    let (kind, count) = kind_and_count(&header.body);
    out.put_u8(MAGIC);
    out.put_u8(kind);
    out.put_u16(header.job);
    out.put_u16(header.attempt);
    out.put_u8(header.worker);
    out.put_u8(count);
    out.put_u64(header.token.get());
    match header.body {
        Body::Data(pairs) | Body::Residual(pairs) => {
            out.put_u32(pairs.seq);
            out.put_u16(pairs.epoch);
            out.put_u16(0);
        }
        Body::Long { seq, epoch, offset, len } => {
            out.put_u32(seq);
            out.put_u16(epoch);
            out.put_u16(len);
            out.put_u32(offset);
        }
        Body::Fin { seq, epoch, long_bytes, pairs } => {
            out.put_u32(seq);
            out.put_u16(epoch);
            out.put_u16(0);
            out.put_u32(long_bytes);
            out.put_u32(pairs);
        }
        Body::Ack { seq: number, .. } | Body::Rejected { instance: number, .. } => {
            out.put_u32(number);
        }
        Body::Join { instance, cookie, digest } | Body::JoinVector { instance, cookie, digest } => {
            out.put_u32(instance);
            out.put_u64(cookie.get());
            out.put_u64(digest.get());
        }
        Body::Challenge { instance, cookie } => {
            out.put_u32(instance);
            out.put_u64(cookie.get());
        }

        Body::State(state) => {
            out.put_u32(state.version);
            out.put_u32(state.instance);
            out.put_u32(state.aggregator.0);
            out.put_u16(state.epochs);
            out.put_u16(state.drained);
            out.put_u16(state.window);
            out.put_u8(state.copies);
            out.put_u8(state.phase as u8);
        }
        Body::Confirm { version, .. } => out.put_u32(version),
        Body::Open(open) => {
            out.put_u64(open.cookie.get());
            out.put_u32(open.slots);
            out.put_u16(open.first_epoch);
            out.put_u16(open.window);
            out.put_u8(open.copies);
            out.put_u8(open.operator as u8);
            out.put_u8(open.workers);
            out.put_u8(open.rule as u8);
        }
        Body::Opened { slots, instance } => {
            out.put_u32(slots);
            out.put_u32(instance);
        }
        Body::Refused { reason } => out.put_u8(reason as u8),
        Body::Fetch { epoch, reservation, first } => {
            out.put_u16(epoch);
            out.put_u16(reservation);
            out.put_u32(first);
        }
        Body::Values { epoch, first, .. } => {
            out.put_u16(epoch);
            out.put_u16(0);
            out.put_u32(first);
        }
        Body::Clear { epoch, reservation } => {
            out.put_u16(epoch);
            out.put_u16(reservation);
        }
        Body::Cleared { epoch } => out.put_u16(epoch),
        Body::Close | Body::Unknown => {}
        Body::VectorState { version, instance, phase } => {
            out.put_u32(version);
            out.put_u32(instance);
            out.put_u32(u32::from(phase as u8) << 24);
        }
        Body::VectorProgress { version, low, .. } | Body::VectorNamed { version, digest: low } => {
            out.put_u32(version);
            out.put_u64(low.get());
        }
        Body::OpenVector(open) => open.encode(out),
        Body::Chunk(chunk) | Body::ChunkSum(chunk) => chunk.encode(out),
        Body::Waiting { number, missing } => {
            out.put_u64(number.get());
            out.put_u64(missing.get());
        }
    }
    debug_assert_eq!(out.len() - start, header.header_bytes() as usize);
}

/// Reads a message. What follows its payload is ignored, as Ethernet pads short frames. Whether job, worker and epoch exist is the
/// receiver's to judge.
///
/// # Errors
/// See [`Malformed`].
pub fn decode(bytes: &[u8]) -> Result<Decoded, Malformed> {
    let mut reader = Reader::new("a reduce message", bytes);
    let magic = reader.u8()?;
    if magic != MAGIC {
        return Err(field("magic", magic));
    }
    let (kind, job, attempt) = (reader.u8()?, reader.u16()?, reader.u16()?);
    let (worker, count, token) = (reader.u8()?, reader.u8()?, Id64::new(reader.u64()?));
    if worker >= MAX_WORKERS {
        return Err(field("worker", worker));
    }
    let has_flag = count == FLAG;
    let body = match kind {
        kind::DATA | kind::RESIDUAL => {
            if !(1..=MAX_PAIRS).contains(&count) {
                return Err(field("number of pairs", count));
            }
            let pairs = Pairs { seq: reader.u32()?, epoch: reader.u16()?, count };
            reader.skip::<2>()?;
            if kind == kind::DATA { Body::Data(pairs) } else { Body::Residual(pairs) }
        }
        kind::LONG => {
            let (seq, epoch, len, offset) =
                (reader.u32()?, reader.u16()?, reader.u16()?, reader.u32()?);
            if !(1..=LONG_BYTES).contains(&len) || offset.checked_add(u32::from(len)).is_none() {
                return Err(field("length", len));
            }
            Body::Long { seq, epoch, offset, len }
        }
        kind::FIN => {
            let (seq, epoch) = (reader.u32()?, reader.u16()?);
            reader.skip::<2>()?;
            Body::Fin { seq, epoch, long_bytes: reader.u32()?, pairs: reader.u32()? }
        }
        kind::ACK => Body::Ack { seq: reader.u32()?, marked: has_flag },
        kind::JOIN => Body::Join {
            instance: reader.u32()?,
            cookie: Id64::new(reader.u64()?),
            digest: Id64::new(reader.u64()?),
        },
        kind::CHALLENGE => {
            Body::Challenge { instance: reader.u32()?, cookie: Id64::new(reader.u64()?) }
        }
        kind::STATE => Body::State(state(&mut reader, operator(count)?)?),
        kind::CONFIRM => Body::Confirm { version: reader.u32()?, idle: has_flag },
        kind::OPEN => Body::Open(open(&mut reader)?),
        kind::OPENED => Body::Opened { slots: reader.u32()?, instance: reader.u32()? },
        kind::REFUSED => {
            let reason = match reader.u8()? {
                0 => Refusal::Full,
                1 => Refusal::InUse,
                2 => Refusal::Invalid,
                other => return Err(field("reason", other)),
            };
            Body::Refused { reason }
        }
        kind::FETCH | kind::VALUES => {
            let (epoch, reservation, first) = (reader.u16()?, reader.u16()?, reader.u32()?);
            if kind == kind::FETCH {
                Body::Fetch { epoch, reservation, first }
            } else if u32::from(count) <= super::FETCH_SLOTS {
                Body::Values { epoch, first, sums: count }
            } else {
                return Err(field("number of sums", count));
            }
        }
        kind::CLEAR => Body::Clear { epoch: reader.u16()?, reservation: reader.u16()? },
        kind::CLEARED => Body::Cleared { epoch: reader.u16()? },
        kind::CLOSE => Body::Close,
        kind::UNKNOWN => Body::Unknown,
        kind::JOIN_VECTOR => {
            let (instance, cookie) = (reader.u32()?, Id64::new(reader.u64()?));
            Body::JoinVector { instance, cookie, digest: Id64::new(reader.u64()?) }
        }
        kind::VECTOR_STATE => {
            let (version, instance, code) = (reader.u32()?, reader.u32()?, reader.u8()?);
            reader.skip::<3>()?;
            Body::VectorState { version, instance, phase: phase(code)? }
        }
        kind::VECTOR_PROGRESS => {
            let (version, low) = (reader.u32()?, Id64::new(reader.u64()?));
            let (is_known, has_offer) = (count & FLAG != 0, count & FLAG_2 != 0);
            Body::VectorProgress { version, low, is_known, has_offer }
        }
        kind::VECTOR_NAMED => {
            Body::VectorNamed { version: reader.u32()?, digest: Id64::new(reader.u64()?) }
        }
        kind::REJECTED => Body::Rejected { instance: reader.u32()?, why: rejection(count)? },
        kind::OPEN_VECTOR => Body::OpenVector(OpenVector::decode(&mut reader)?),
        kind::CHUNK => Body::Chunk(Chunk::decode(&mut reader, has_flag)?),
        kind::CHUNK_SUM => Body::ChunkSum(Chunk::decode(&mut reader, has_flag)?),
        kind::WAITING => {
            Body::Waiting { number: Id64::new(reader.u64()?), missing: Id64::new(reader.u64()?) }
        }
        code => return Err(Malformed::PacketType { protocol: "reduce", code }),
    };
    let header = Header { job, attempt, worker, token, body };
    let end = reader.at() + header.payload_len() as usize;
    let payload = reader.at()..end;
    reader.need("a reduce message", end)?;
    Ok(Decoded { header, payload })
}

fn field(what: &'static str, value: impl Into<u64>) -> Malformed {
    Malformed::ReduceField { what, value: value.into() }
}

fn operator(code: u8) -> Result<Operator, Malformed> {
    let operator = Operator::ALL.into_iter().find(|operator| *operator as u8 == code);
    operator.ok_or_else(|| field("operator", code))
}

fn rejection(code: u8) -> Result<Rejection, Malformed> {
    Ok(match code {
        0 => Rejection::NoNumber,
        1 => Rejection::Taken,
        2 => Rejection::OtherInput,
        3 => Rejection::Stranger,
        other => return Err(field("reason", other)),
    })
}

fn phase(code: u8) -> Result<Phase, Malformed> {
    Ok(match code {
        0 => Phase::Wait,
        1 => Phase::Run,
        2 => Phase::Quiesce,
        3 => Phase::Done,
        4 => Phase::Failed,
        5 => Phase::Commit,
        other => return Err(field("phase", other)),
    })
}

fn state(reader: &mut Reader<'_>, operator: Operator) -> Result<State, Malformed> {
    let (version, instance, aggregator) = (reader.u32()?, reader.u32()?, HostId(reader.u32()?));
    let (epochs, drained, window) = (reader.u16()?, reader.u16()?, reader.u16()?);
    let (copies, code) = (reader.u8()?, reader.u8()?);
    let phase = phase(code)?;
    // The master has all sums then.
    if phase == Phase::Commit && drained != epochs {
        return Err(field("phase", code));
    }
    let is_running = !matches!(phase, Phase::Wait | Phase::Failed);
    if is_running && (!(1..=2).contains(&copies) || epochs == 0) {
        return Err(field("number of copies", copies));
    }
    if drained > epochs {
        return Err(field("drained epoch", drained));
    }
    if is_running && !(1..=MAX_WINDOW).contains(&window) {
        return Err(field("window", window));
    }
    Ok(State { version, instance, aggregator, epochs, drained, window, copies, phase, operator })
}

fn open(reader: &mut Reader<'_>) -> Result<Open, Malformed> {
    let (cookie, slots) = (Id64::new(reader.u64()?), reader.u32()?);
    let (first_epoch, window) = (reader.u16()?, reader.u16()?);
    let (copies, operator) = (reader.u8()?, operator(reader.u8()?)?);
    let (workers, rule) = (reader.u8()?, reader.u8()?);
    let rule = match rule {
        0 => Rule::Exact,
        1 => Rule::Counter,
        other => return Err(field("rule", other)),
    };
    if !(1..=2).contains(&copies) {
        return Err(field("number of copies", copies));
    }
    if !(1..=MAX_WORKERS).contains(&workers) {
        return Err(field("number of workers", workers));
    }
    if !(1..=MAX_WINDOW).contains(&window) {
        return Err(field("window", window));
    }
    Ok(Open { cookie, slots, first_epoch, window, copies, operator, workers, rule })
}

const fn kind_and_count(body: &Body) -> (u8, u8) {
    match body {
        Body::Data(pairs) => (kind::DATA, pairs.count),
        Body::Residual(pairs) => (kind::RESIDUAL, pairs.count),
        Body::Long { .. } => (kind::LONG, 0),
        Body::Fin { .. } => (kind::FIN, 0),
        Body::Ack { marked, .. } => (kind::ACK, flag(*marked, FLAG)),
        Body::Join { .. } => (kind::JOIN, 0),
        Body::Challenge { .. } => (kind::CHALLENGE, 0),
        Body::State(state) => (kind::STATE, state.operator as u8),
        Body::Confirm { idle, .. } => (kind::CONFIRM, flag(*idle, FLAG)),
        Body::Open(_) => (kind::OPEN, 0),
        Body::Opened { .. } => (kind::OPENED, 0),
        Body::Refused { .. } => (kind::REFUSED, 0),
        Body::Fetch { .. } => (kind::FETCH, 0),
        Body::Values { sums, .. } => (kind::VALUES, *sums),
        Body::Clear { .. } => (kind::CLEAR, 0),
        Body::Cleared { .. } => (kind::CLEARED, 0),
        Body::Close => (kind::CLOSE, 0),
        Body::Unknown => (kind::UNKNOWN, 0),
        Body::JoinVector { .. } => (kind::JOIN_VECTOR, 0),
        Body::VectorState { .. } => (kind::VECTOR_STATE, 0),
        Body::VectorProgress { is_known, has_offer, .. } => {
            (kind::VECTOR_PROGRESS, flag(*is_known, FLAG) | flag(*has_offer, FLAG_2))
        }
        Body::VectorNamed { .. } => (kind::VECTOR_NAMED, 0),
        Body::Rejected { why, .. } => (kind::REJECTED, *why as u8),
        Body::OpenVector(_) => (kind::OPEN_VECTOR, 0),
        Body::Chunk(chunk) => (kind::CHUNK, flag(chunk.tag != 0, FLAG)),
        Body::ChunkSum(chunk) => (kind::CHUNK_SUM, flag(chunk.tag != 0, FLAG)),
        Body::Waiting { .. } => (kind::WAITING, 0),
    }
}
