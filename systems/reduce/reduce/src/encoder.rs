//! The pairs of a worker.

use rackweave_aggregation::source::Pairs;
use rackweave_wire::reduce::Operator;

/// Collects the pairs of a worker. Values of equal keys are combined here already, so that each key is sent once.
///
/// It holds all keys in memory, about 100 bytes for each: they are kept until the master has their sums, because a switch that restarts
/// loses what it had added up.
#[derive(Clone, Debug)]
pub struct Encoder {
    pairs: Pairs,
    added: u64,
}

impl Encoder {
    /// No pairs. The master must have the same operator.
    #[must_use]
    pub fn new(operator: Operator) -> Self {
        Self { pairs: Pairs::seeded(operator, rackweave_linux::random() as u64), added: 0 }
    }

    /// Adds a value to a key: any bytes, at most 16 MiB, also none. Sums are modulo 2^64; with [`Operator::Count`] each call counts as one,
    /// whatever the value.
    pub fn add(&mut self, key: &[u8], value: u64) {
        self.pairs.add(key, value);
        self.added += 1;
    }

    /// Returns the number of distinct keys.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Returns whether there are no pairs.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns the number of calls of [`Encoder::add`].
    #[must_use]
    pub const fn added(&self) -> u64 {
        self.added
    }

    /// Returns how values are combined.
    #[must_use]
    pub const fn operator(&self) -> Operator {
        self.pairs.operator()
    }

    pub(crate) fn into_pairs(self) -> Pairs {
        self.pairs
    }
}
