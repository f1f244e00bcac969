//! The encoding of control messages: a tag, then the fields in the order of their declaration.

use rackweave_core::HostId;

use super::{Body, GAPS, Gap, Label, Place, Reason, Status};
use crate::malformed::{Malformed, Put, Reader};

mod tag {
    pub(super) const INVITE: u8 = 1;
    pub(super) const JOIN: u8 = 2;
    pub(super) const STATUS: u8 = 3;
    pub(super) const END: u8 = 4;
    pub(super) const COMPLETE: u8 = 5;
    pub(super) const BYE: u8 = 6;
    pub(super) const MODE: u8 = 7;
    pub(super) const PING: u8 = 8;
    pub(super) const PONG: u8 = 9;
    pub(super) const SET_ACTIVE: u8 = 10;
    pub(super) const SYNC: u8 = 11;
    pub(super) const SYNC_DONE: u8 = 12;
    pub(super) const CREATE: u8 = 13;
    pub(super) const MEMBER: u8 = 14;
    pub(super) const DESTROY: u8 = 15;
    pub(super) const LABELS: u8 = 16;
    pub(super) const DENIED: u8 = 17;
    pub(super) const RENEW: u8 = 18;
    pub(super) const SERVED: u8 = 19;
    pub(super) const PREPARING: u8 = 20;
}

/// The lengths of a status without its gaps, and of each gap.
const STATUS: usize = 2 + 8 + 8 + 1 + 8 + 4 + 8 + 1;
const GAP: usize = 8 + 4 + 8;
const PLACE: usize = 3;

/// The length of a body's fields in bytes.
pub(super) const fn bytes(body: &Body) -> usize {
    match body {
        Body::Invite { .. } => 16 + PLACE + 2 + 1,
        Body::Join { .. } => 4 + 16 + PLACE + 8 + 8,
        Body::Status(status) => STATUS + GAP * count(status),
        Body::End { .. } => 8,
        Body::Complete { .. } => PLACE,
        Body::Bye { .. } | Body::Mode { .. } => 1,
        Body::Ping { .. } | Body::SyncDone { .. } => PLACE + 4,
        Body::Pong { .. } => 4,
        Body::SetActive { .. } => 2 + 1 + 4,
        Body::Sync { .. } => 2 + 8 + 4,
        Body::Preparing | Body::Create | Body::Destroy | Body::Renew => 0,
        Body::Served { .. } => 2 + 1 + 4,
        Body::Member { .. } => 4 + 1 + 4,
        Body::Labels { .. } => 16 + 8 + 4 + 4,
        Body::Denied { .. } => 1 + 4,
    }
}

/// The number of gaps in a status.
const fn count(status: &Status) -> usize {
    let (mut i, mut n) = (0, 0);
    while i < GAPS {
        if status.gaps[i].len > 0 {
            n += 1;
        }
        i += 1;
    }
    n
}

pub(super) fn put(body: &Body, out: &mut Vec<u8>) {
    match *body {
        Body::Invite { stream, place, payload, via_agent } => {
            out.put_u8(tag::INVITE);
            out.put_u128(stream);
            put_place(place, out);
            out.put_u16(payload);
            out.put_u8(u8::from(via_agent));
        }
        Body::Join { incarnation, stream, place, at, limit } => {
            out.put_u8(tag::JOIN);
            out.put_u32(incarnation);
            out.put_u128(stream);
            put_place(place, out);
            out.put_u64(at);
            out.put_u64(limit);
        }
        Body::Status(ref status) => put_status(status, out),
        Body::End { length } => {
            out.put_u8(tag::END);
            out.put_u64(length);
        }
        Body::Complete { place } => {
            out.put_u8(tag::COMPLETE);
            put_place(place, out);
        }
        Body::Bye { reason } => out.extend_from_slice(&[tag::BYE, code(reason)]),
        Body::Mode { detached } => out.extend_from_slice(&[tag::MODE, u8::from(detached)]),
        Body::Ping { place, number } => {
            out.put_u8(tag::PING);
            put_place(place, out);
            out.put_u32(number);
        }
        Body::Pong { number } => {
            out.put_u8(tag::PONG);
            out.put_u32(number);
        }
        Body::SetActive { rack, agent, epoch } => {
            out.put_u8(tag::SET_ACTIVE);
            out.put_u16(rack);
            out.put_u8(agent);
            out.put_u32(epoch);
        }
        Body::Sync { rack, ports, version } => {
            out.put_u8(tag::SYNC);
            out.put_u16(rack);
            out.put_u64(ports);
            out.put_u32(version);
        }
        Body::SyncDone { place, version } => {
            out.put_u8(tag::SYNC_DONE);
            put_place(place, out);
            out.put_u32(version);
        }
        Body::Create => out.put_u8(tag::CREATE),
        Body::Member { host, joins, change } => {
            out.put_u8(tag::MEMBER);
            out.put_u32(host.0);
            out.put_u8(u8::from(joins));
            out.put_u32(change);
        }
        Body::Destroy => out.put_u8(tag::DESTROY),
        Body::Renew => out.put_u8(tag::RENEW),
        Body::Preparing => out.put_u8(tag::PREPARING),
        Body::Served { rack, agent, epoch } => {
            out.put_u8(tag::SERVED);
            out.put_u16(rack);
            out.put_u8(u8::from(agent));
            out.put_u32(epoch);
        }
        Body::Labels { pilot, ports, change, timeout_us } => {
            out.put_u8(tag::LABELS);
            out.put_u128(pilot.0);
            out.put_u64(ports);
            out.put_u32(change);
            out.put_u32(timeout_us);
        }
        Body::Denied { reason, change } => {
            out.extend_from_slice(&[tag::DENIED, code(reason)]);
            out.put_u32(change);
        }
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<Body, Malformed> {
    Ok(match reader.u8()? {
        tag::INVITE => Body::Invite {
            stream: reader.u128()?,
            place: place(reader)?,
            payload: reader.u16()?,
            via_agent: flag(reader)?,
        },
        tag::JOIN => Body::Join {
            incarnation: reader.u32()?,
            stream: reader.u128()?,
            place: place(reader)?,
            at: reader.u64()?,
            limit: reader.u64()?,
        },
        tag::STATUS => Body::Status(status(reader)?),
        tag::END => Body::End { length: reader.u64()? },
        tag::COMPLETE => Body::Complete { place: place(reader)? },
        tag::BYE => Body::Bye { reason: reason(reader)? },
        tag::MODE => Body::Mode { detached: flag(reader)? },
        tag::PING => Body::Ping { place: place(reader)?, number: reader.u32()? },
        tag::PONG => Body::Pong { number: reader.u32()? },
        tag::SET_ACTIVE => {
            Body::SetActive { rack: reader.u16()?, agent: reader.u8()?, epoch: reader.u32()? }
        }
        tag::SYNC => {
            Body::Sync { rack: reader.u16()?, ports: reader.u64()?, version: reader.u32()? }
        }
        tag::SYNC_DONE => Body::SyncDone { place: place(reader)?, version: reader.u32()? },
        tag::CREATE => Body::Create,
        tag::MEMBER => Body::Member {
            host: HostId(reader.u32()?),
            joins: flag(reader)?,
            change: reader.u32()?,
        },
        tag::DESTROY => Body::Destroy,
        tag::RENEW => Body::Renew,
        tag::PREPARING => Body::Preparing,
        tag::SERVED => {
            Body::Served { rack: reader.u16()?, agent: flag(reader)?, epoch: reader.u32()? }
        }
        tag::LABELS => Body::Labels {
            pilot: Label(reader.u128()?),
            ports: reader.u64()?,
            change: reader.u32()?,
            timeout_us: reader.u32()?,
        },
        tag::DENIED => Body::Denied { reason: reason(reader)?, change: reader.u32()? },
        tag => return Err(Malformed::OrcaField { what: "tag", value: u64::from(tag) }),
    })
}

fn put_place(place: Place, out: &mut Vec<u8>) {
    out.put_u16(place.rack);
    out.put_u8(place.port);
}

fn place(reader: &mut Reader<'_>) -> Result<Place, Malformed> {
    Ok(Place { rack: reader.u16()?, port: port(reader)? })
}

fn port(reader: &mut Reader<'_>) -> Result<u8, Malformed> {
    match reader.u8()? {
        port @ 0..64 => Ok(port),
        port => Err(Malformed::OrcaField { what: "port", value: u64::from(port) }),
    }
}

fn flag(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(Malformed::OrcaField { what: "yes or no", value: u64::from(value) }),
    }
}

fn put_status(status: &Status, out: &mut Vec<u8>) {
    out.put_u8(tag::STATUS);
    out.put_u16(status.rack);
    out.put_u64(status.who);
    out.put_u64(status.have);
    out.put_u8(status.slowest);
    out.put_u64(status.seen);
    out.put_u32(status.held_us);
    out.put_u64(status.limit);
    out.put_u8(count(status) as u8);
    for gap in status.gaps.iter().filter(|gap| gap.len > 0) {
        out.put_u64(gap.offset);
        out.put_u32(gap.len);
        out.put_u64(gap.who);
    }
}

fn status(reader: &mut Reader<'_>) -> Result<Status, Malformed> {
    let mut status = Status {
        rack: reader.u16()?,
        who: reader.u64()?,
        have: reader.u64()?,
        slowest: port(reader)?,
        seen: reader.u64()?,
        held_us: reader.u32()?,
        limit: reader.u64()?,
        gaps: [Gap::default(); GAPS],
    };
    let count = reader.u8()?;
    if usize::from(count) > GAPS {
        return Err(Malformed::OrcaField { what: "number of gaps", value: u64::from(count) });
    }
    for gap in status.gaps.iter_mut().take(usize::from(count)) {
        *gap = Gap { offset: reader.u64()?, len: reader.u32()?, who: reader.u64()? };
        if gap.len == 0 {
            return Err(Malformed::OrcaField { what: "gap's length", value: 0 });
        }
    }
    Ok(status)
}

const REASONS: [Reason; 12] = [
    Reason::Left,
    Reason::Refused,
    Reason::Busy,
    Reason::Unknown,
    Reason::Silent,
    Reason::Damaged,
    Reason::TooLate,
    Reason::NoLabel,
    Reason::Stalled,
    Reason::Unresponsive,
    Reason::Exists,
    Reason::Full,
];

fn code(reason: Reason) -> u8 {
    REASONS.iter().position(|r| *r == reason).unwrap_or(0) as u8 + 1
}

fn reason(reader: &mut Reader<'_>) -> Result<Reason, Malformed> {
    let code = reader.u8()?;
    let reason = usize::from(code).checked_sub(1).and_then(|at| REASONS.get(at));
    reason.copied().ok_or(Malformed::OrcaField { what: "reason", value: u64::from(code) })
}
