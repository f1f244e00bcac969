//! Datagrams' headers.

use proptest::prelude::*;
use rackweave_wire::homa::Layout;
use rackweave_wire::{Id64, datagram};

use super::{changed, encoded, ids};

/// A header of any content.
pub(crate) fn arbitrary() -> impl Strategy<Value = datagram::Header> {
    (ids(), any::<(u32, u32)>(), 0..=65_000_u16).prop_map(|(id, (message_length, offset), len)| {
        datagram::Header { id, message_length, offset, len }
    })
}

/// One of each kind, by name.
pub(crate) fn examples() -> Vec<(&'static str, datagram::Header)> {
    let header = |message_length, offset, len| {
        let id = Id64::new(42);
        datagram::Header { id, message_length, offset, len }
    };
    vec![
        ("whole", header(100, 0, 100)),
        ("first", header(10_000, 0, 1456)),
        ("last", header(10_000, 8736, 1264)),
    ]
}

/// Headers that are refused.
pub(crate) fn wrong() -> Vec<(&'static str, Vec<u8>)> {
    let datagram = encoded(&examples()[0].1, Layout::Head);
    vec![
        ("length_below_header", changed(datagram.clone(), 5, 23)),
        ("length_beyond_packet", changed(datagram.clone(), 4, 0xff)),
        ("cut", datagram[..23].to_vec()),
    ]
}
