//! Floats as integers that share a power of two: block floating point.
//!
//! The values of a block become multiples of a quantum, `2^(E - s)`, where `2^E` is the least power of two above all magnitudes of the
//! block at all workers, and `s = 31 - ceil(log2 n)` for n workers. So n values never overflow 32 bits, and their sum is exact. SwitchML
//! (`docs/protocols/ordc.md#switchml`) has a scaling factor for each block, from the largest exponent of all workers, too; powers of two, which
//! make scaling exact, and the rules for values that are not finite are our choice.
//!
//! A worker's value differs from its multiple by at most half a quantum, and not at all if it has at least `2^(24 - s)` of the block's
//! largest magnitude. The sum of n workers differs from that of their values by at most `n * 2^(E - s - 1)`, which is at most
//! `n * 2^-s` of the largest magnitude, before it is rounded to a float.

/// The exponent of a block in which a worker has a value that is not finite. All elements of its sum are NaN.
pub const NOT_FINITE: u8 = u8::MAX;

/// Returns the largest exponent of some values, as `f32` encodes it: 0 for zeros and subnormal values, [`NOT_FINITE`] if one is.
#[must_use]
pub fn exponent_of(values: &[f32]) -> u8 {
    values.iter().map(|value| (value.to_bits() >> 23) as u8).max().unwrap_or(0)
}

/// The number of bits below `2^E` that multiples have with this number of workers, 1 to 64.
const fn scale_bits(workers: u8) -> i32 {
    let n = if workers == 0 { 1 } else { workers as u32 };
    31 - (u32::BITS - (n - 1).leading_zeros()) as i32
}

/// The power of two above all values with this exponent. Subnormal values have that of the smallest normal one.
const fn above(exponent: u8) -> i32 {
    let exponent = if exponent == 0 { 1 } else { exponent as i32 };
    exponent - 126
}

/// `2^power` for powers that a `f64` has as a normal value.
const fn power_of_two(power: i32) -> f64 {
    f64::from_bits(((1023 + power) as u64) << 52)
}

/// Returns the multiple of the quantum that is next to a value, an even one of two. `exponent` is the largest of all workers.
#[must_use]
#[inline]
pub fn quantize(value: f32, exponent: u8, workers: u8) -> i32 {
    if exponent == NOT_FINITE {
        return 0;
    }
    multiple(value, power_of_two(scale_bits(workers) - above(exponent)))
}

/// Adding this to a number below 2^51, and taking it away again, rounds to an integer, an even one of two. Processors of the x86-64
/// baseline have no instruction for that, and a call for each element takes longer than all the rest.
const ROUNDS: f64 = 1.5 * power_of_two(52);

#[inline]
fn multiple(value: f32, scale: f64) -> i32 {
    // A value of 24 bits times a power of two is exact in 53 bits. What is too large for the integer is so after rounding, too.
    let scaled = f64::from(value) * scale;
    ((scaled + ROUNDS) - ROUNDS) as i32
}

/// Appends the multiples of a block's values as a packet carries them: [`quantize`] of each.
pub fn encode(values: &[f32], exponent: u8, workers: u8, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + 4 * values.len(), 0);
    if exponent == NOT_FINITE {
        return;
    }
    let scale = power_of_two(scale_bits(workers) - above(exponent));
    let (multiples, _) = out[start..].as_chunks_mut::<4>();
    for (bytes, value) in multiples.iter_mut().zip(values) {
        *bytes = multiple(*value, scale).to_be_bytes();
    }
}

/// Replaces a block's values by the sums that a packet carries: [`dequantize`] of each.
pub fn decode(payload: &[u8], exponent: u8, workers: u8, values: &mut [f32]) {
    if exponent == NOT_FINITE {
        return values.fill(f32::NAN);
    }
    let scale = power_of_two(above(exponent) - scale_bits(workers));
    let (sums, _) = payload.as_chunks::<4>();
    for (value, sum) in values.iter_mut().zip(sums) {
        *value = (f64::from(i32::from_be_bytes(*sum)) * scale) as f32;
    }
}

/// Returns the float that is next to a sum of multiples.
#[must_use]
#[inline]
pub fn dequantize(sum: i32, exponent: u8, workers: u8) -> f32 {
    if exponent == NOT_FINITE {
        return f32::NAN;
    }
    (f64::from(sum) * power_of_two(above(exponent) - scale_bits(workers))) as f32
}

/// Returns the largest difference between the sum of a block's values and that of their multiples.
#[must_use]
pub fn error_bound(exponent: u8, workers: u8) -> f64 {
    f64::from(workers) * power_of_two(above(exponent) - scale_bits(workers) - 1)
}

/// Returns the sum of some workers' blocks as an aggregator computes it: the definition of the result.
#[must_use]
pub fn sum(blocks: &[&[f32]]) -> Vec<f32> {
    let workers = blocks.len() as u8;
    let exponent = blocks.iter().map(|block| exponent_of(block)).max().unwrap_or(0);
    let length = blocks.first().map_or(0, |block| block.len());
    let element = |index: usize| {
        let multiples = blocks.iter().map(|block| quantize(block[index], exponent, workers));
        dequantize(multiples.fold(0, i32::wrapping_add), exponent, workers)
    };
    (0..length).map(element).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn finite() -> impl Strategy<Value = f32> {
        any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |value| value.is_finite())
    }

    proptest! {
        /// n values never overflow, and the sum is as near to that of `f64` as the bound says.
        #[test]
        fn sums_are_exact_and_near(
            all in prop::collection::vec(prop::collection::vec(finite(), 3), 1..65),
        ) {
            let workers = all.len() as u8;
            let exponent = all.iter().map(|values| exponent_of(values)).max().unwrap();
            for element in 0..3 {
                let multiples = all.iter().map(|values| i64::from(quantize(values[element], exponent, workers)));
                let wide: i64 = multiples.sum();
                let sum = i32::try_from(wide).expect("n values fit");
                let exact: f64 = all.iter().map(|values| f64::from(values[element])).sum();
                let bound = error_bound(exponent, workers);
                let wide = f64::from(sum) * power_of_two(above(exponent) - scale_bits(workers));
                // The sum in `f64` has rounding errors of its own.
                let slack = 64.0 * power_of_two(above(exponent) - 52);
                prop_assert!((wide - exact).abs() <= bound + slack, "{wide} {exact} {bound}");
                let float = dequantize(sum, exponent, workers);
                let ulp = (wide.abs() * power_of_two(-23)).max(f64::from(f32::from_bits(1)));
                prop_assert!(float.is_infinite() || (f64::from(float) - wide).abs() <= ulp);
            }
        }

        #[test]
        fn blocks_are_their_values_one_by_one(
            values in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..9),
            exponent in any::<u8>(),
            workers in 1_u8..65,
        ) {
            let mut bytes = vec![7];
            encode(&values, exponent, workers, &mut bytes);
            let multiples: Vec<i32> =
                bytes[1..].as_chunks().0.iter().map(|it| i32::from_be_bytes(*it)).collect();
            let of_each: Vec<_> = values.iter().map(|it| quantize(*it, exponent, workers)).collect();
            prop_assert_eq!(&multiples, &of_each);
            for (value, multiple) in values.iter().zip(&multiples) {
                let scale = power_of_two(scale_bits(workers) - above(exponent.min(NOT_FINITE - 1)));
                let rounded = (f64::from(*value) * scale).round_ties_even() as i32;
                prop_assert_eq!(*multiple, if exponent == NOT_FINITE { 0 } else { rounded });
            }
            let mut back = vec![1.0; values.len()];
            decode(&bytes[1..], exponent, workers, &mut back);
            let expected = multiples.iter().map(|it| dequantize(*it, exponent, workers).to_bits());
            prop_assert!(back.iter().map(|it| it.to_bits()).eq(expected));
        }

        #[test]
        fn one_worker_gets_its_values_back(value in finite()) {
            let exponent = exponent_of(&[value]);
            let back = dequantize(quantize(value, exponent, 1), exponent, 1);
            // Normal values have 24 bits, a quantum is 31 below; it is less than the least subnormal value.
            prop_assert_eq!(back, value);
        }
    }

    #[test]
    fn the_largest_values_of_all_workers_do_not_overflow() {
        for workers in 1..=64_u8 {
            for value in [f32::MAX, f32::MIN, 1.999_999_9, f32::MIN_POSITIVE, f32::from_bits(1)] {
                let exponent = exponent_of(&[value]);
                let one = i64::from(quantize(value, exponent, workers));
                assert!(i32::try_from(one * i64::from(workers)).is_ok(), "{workers} {value}");
            }
        }
    }

    #[test]
    fn a_block_with_a_value_that_is_not_finite_is_nan() {
        let sums = sum(&[&[1.0, f32::INFINITY], &[2.0, 3.0]]);
        assert!(sums.iter().all(|value| value.is_nan()), "{sums:?}");
        assert_eq!(sum(&[&[1.0, -0.5], &[2.0, 3.0]]), [3.0, 2.5]);
        assert_eq!(sum(&[&[0.0], &[-0.0], &[0.0]]), [0.0]);
    }
}
