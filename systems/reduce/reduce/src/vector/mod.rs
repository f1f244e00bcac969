//! All-reduce over sockets: each worker has a vector, and all get the sum of all.
//!
//! - [`AllReduce`]: a worker's place in a group, which adds up one vector after the other.
//! - [`OpenGroup`]: the same where each vector has a length and a type of its own.
//! - [`VectorMaster`]: forms the group, and adds up where no switch does.

mod group;
mod link;
mod master;
mod open;

use std::hash::Hasher as _;

use rackweave_aggregation::vector::node::VectorNode;
use rackweave_aggregation::vector::values::Values;
use rackweave_core::{HostId, Time};
use rackweave_wire::reduce::{Format, Header};
use siphasher::sip::SipHasher24;

pub use group::{AllReduce, AllReduceConfig, AllReduceReport};
pub use master::{VectorMaster, VectorMasterConfig, VectorMasterEvent, VectorStats};
pub use open::OpenGroup;

use crate::net::Machine;

/// A type of elements that can be added up: `i64`, modulo 2^64, and `f32`, as block floating point
/// ([`rackweave_aggregation::vector::block_float`]).
pub trait Element: private::Sealed + Copy + Send + Sync + 'static {
    /// How elements are sent.
    const FORMAT: Format;
    /// Bytes of an element in a file.
    const BYTES: usize;

    /// Returns a copy of a vector for the machines.
    fn values(elements: &[Self]) -> Values;

    /// Replaces elements by those of a vector.
    ///
    /// # Panics
    /// If there is another number of them.
    fn copy(values: &Values, elements: &mut [Self]);

    /// Reads an element in little-endian order from the first bytes.
    ///
    /// # Panics
    /// If there are fewer than [`Element::BYTES`].
    fn from_le(bytes: &[u8]) -> Self;

    /// Appends an element in little-endian order.
    fn put_le(self, out: &mut Vec<u8>);
}

mod private {
    pub trait Sealed {}
    impl Sealed for i64 {}
    impl Sealed for f32 {}
}

macro_rules! element {
    ($type:ty, $variant:ident, $format:ident) => {
        impl Element for $type {
            const FORMAT: Format = Format::$format;
            const BYTES: usize = size_of::<$type>();

            fn values(elements: &[Self]) -> Values {
                Values::$variant(elements.to_vec())
            }

            fn copy(values: &Values, elements: &mut [Self]) {
                if let Values::$variant(values) = values {
                    elements.copy_from_slice(values);
                }
            }

            fn from_le(bytes: &[u8]) -> Self {
                let mut all = [0; size_of::<$type>()];
                all.copy_from_slice(&bytes[..size_of::<$type>()]);
                Self::from_le_bytes(all)
            }

            fn put_le(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    };
}

element!(i64, Integers, I64);
element!(f32, Floats, BlockFloat);

impl Machine for VectorNode {
    fn handle(&mut self, now: Time, from: HostId, header: &Header, _marked: bool, payload: &[u8]) {
        self.receive(now, from, header, payload);
    }

    fn handle_timeout(&mut self, now: Time) {
        self.expire(now);
    }

    fn poll_timeout(&self) -> Option<Time> {
        rackweave_core::Node::poll_timeout(self)
    }

    fn poll(&mut self, now: Time) -> Option<(HostId, Header, &[u8])> {
        let (to, header) = Self::poll(self, now)?;
        Some((to, header, self.payload()))
    }
}

/// Returns a digest of a vector, for [`AllReduceConfig::digest`]: never 0, and the same for the same bits.
#[must_use]
pub fn digest<T: Element>(vector: &[T]) -> u64 {
    let mut hasher = SipHasher24::new();
    let mut bytes = Vec::new();
    for elements in vector.chunks(1_024) {
        bytes.clear();
        elements.iter().for_each(|element| element.put_le(&mut bytes));
        hasher.write(&bytes);
    }
    hasher.finish().max(1)
}

/// [`digest`] of sums.
fn digest_of(sums: &Values) -> u64 {
    match sums {
        Values::Integers(sums) => digest(sums),
        Values::Floats(sums) => digest(sums),
    }
}

/// The number of a worker's host where hosts are named by IPv4 addresses. Nothing is sent to it: it would be a multicast address, which
/// no host has.
const NO_HOST: HostId = HostId(0xe000_0001);
