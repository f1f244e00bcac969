//! The elements of a vector, in a host's memory and in packets.

use core::ops::Range;

use rackweave_wire::reduce::Format;

use super::block_float;
use super::layout::Layout;

/// A vector.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Integers, whose sums are modulo 2^64.
    Integers(Vec<i64>),
    /// Floats, which are added up as block floating point.
    Floats(Vec<f32>),
}

impl Values {
    /// Zeros.
    #[must_use]
    pub fn zeros(format: Format, length: usize) -> Self {
        match format {
            Format::I64 => Self::Integers(vec![0; length]),
            Format::BlockFloat => Self::Floats(vec![0.0; length]),
        }
    }

    /// Returns the number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Integers(values) => values.len(),
            Self::Floats(values) => values.len(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how the elements are sent.
    #[must_use]
    pub const fn format(&self) -> Format {
        match self {
            Self::Integers(_) => Format::I64,
            Self::Floats(_) => Format::BlockFloat,
        }
    }

    /// Returns the exponents of its blocks; none of integers.
    #[must_use]
    pub fn exponents(&self, layout: &Layout) -> Vec<u8> {
        match self {
            Self::Integers(_) => Vec::new(),
            Self::Floats(values) => {
                let blocks = values.chunks(usize::from(layout.elements));
                blocks.map(block_float::exponent_of).collect()
            }
        }
    }

    /// Appends the elements of a block as a packet carries them. `exponent` is that of the block over all workers.
    ///
    /// # Panics
    /// If the vector is not as long as the layout says.
    pub fn encode(&self, layout: &Layout, block: u32, exponent: u8, out: &mut Vec<u8>) {
        let range = layout.range(block);
        match self {
            Self::Integers(values) => {
                let start = out.len();
                out.resize(start + 8 * range.len(), 0);
                let (elements, _) = out[start..].as_chunks_mut::<8>();
                for (bytes, value) in elements.iter_mut().zip(&values[range]) {
                    *bytes = value.to_be_bytes();
                }
            }
            Self::Floats(values) => {
                block_float::encode(&values[range], exponent, layout.workers, out);
            }
        }
    }

    /// Replaces the elements of a block by the sums that a packet carries.
    ///
    /// # Panics
    /// If the vector is not as long as the layout says.
    pub fn store(&mut self, layout: &Layout, block: u32, exponent: u8, payload: &[u8]) {
        let range = layout.range(block);
        match self {
            Self::Integers(values) => {
                let (sums, _) = payload.as_chunks::<8>();
                for (value, sum) in values[range].iter_mut().zip(sums) {
                    *value = i64::from_be_bytes(*sum);
                }
            }
            Self::Floats(values) => {
                block_float::decode(payload, exponent, layout.workers, &mut values[range]);
            }
        }
    }

    /// Returns some of the elements.
    ///
    /// # Panics
    /// If they are not all there.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        match self {
            Self::Integers(values) => Self::Integers(values[range].to_vec()),
            Self::Floats(values) => Self::Floats(values[range].to_vec()),
        }
    }

    /// Adds some of the elements of a vector of the same kind to these, as processors do: floats are rounded with each addition.
    pub fn add(&mut self, other: &Self, range: Range<usize>) {
        match (self, other) {
            (Self::Integers(values), Self::Integers(others)) => {
                for (value, other) in values.iter_mut().zip(&others[range]) {
                    *value = value.wrapping_add(*other);
                }
            }
            (Self::Floats(values), Self::Floats(others)) => {
                for (value, other) in values.iter_mut().zip(&others[range]) {
                    *value += *other;
                }
            }
            _ => {}
        }
    }

    /// Replaces the elements from `start` on.
    pub fn put(&mut self, start: usize, part: &Self) {
        match (self, part) {
            (Self::Integers(values), Self::Integers(part)) => {
                values[start..start + part.len()].copy_from_slice(part);
            }
            (Self::Floats(values), Self::Floats(part)) => {
                values[start..start + part.len()].copy_from_slice(part);
            }
            _ => {}
        }
    }

    /// Whether all bits are equal. NaN equals itself if its bits do.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Integers(left), Self::Integers(right)) => left == right,
            (Self::Floats(left), Self::Floats(right)) => {
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
                let (left, right): (Vec<_>, Vec<_>) = (bits(left), bits(right));
                left == right
            }
            _ => false,
        }
    }

    /// Returns the sum of the vectors of all workers by definition: what every worker gets from an aggregator, bit for bit.
    ///
    /// # Panics
    /// If the vectors are not of one kind and length.
    #[must_use]
    pub fn sum(all: &[&Self], elements: u16) -> Option<Self> {
        let first = *all.first()?;
        Some(match first {
            Self::Integers(values) => {
                let mut sum = Self::Integers(vec![0; values.len()]);
                all.iter().for_each(|other| sum.add(other, 0..values.len()));
                sum
            }
            Self::Floats(values) => {
                let floats = |vector: &&'_ Self| -> Vec<f32> {
                    match vector {
                        Self::Floats(values) => values.clone(),
                        Self::Integers(_) => Vec::new(),
                    }
                };
                let all: Vec<Vec<f32>> = all.iter().map(floats).collect();
                let starts = (0..values.len()).step_by(usize::from(elements));
                let blocks = starts.flat_map(|start| {
                    let end = values.len().min(start + usize::from(elements));
                    let blocks: Vec<&[f32]> =
                        all.iter().map(|vector| &vector[start..end]).collect();
                    block_float::sum(&blocks)
                });
                Self::Floats(blocks.collect())
            }
        })
    }
}
