//! A synthetic text, by the number of times that each of its words occurs.
//!
//! The frequencies follow Zipf and Mandelbrot: the word of rank `r` has a share proportional to `1 / (r + shift)^exponent`. The defaults
//! are fitted to the GNU Collaborative Dictionary of English (40 MB, 5,404,311 words, 219,512 of them distinct). The
//! expected number of distinct words is 219,512. The pairs after combining at 3 and 7 workers with shuffled blocks are
//! 326,469 and 440,117, where the dictionary has 327,046 and 443,422.

use std::sync::LazyLock;

use rackweave_core::Rng;

/// The model of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextModel {
    /// The exponent of the word frequencies, above 1.
    pub exponent: f64,
    /// The shift of the ranks, at least 0.
    pub shift: f64,
    /// The number of words that the language has.
    pub vocabulary: u32,
    /// The length of a word and the space behind it, on average.
    pub bytes_per_word: f64,
}

const DEFAULT: TextModel =
    TextModel { exponent: 1.5, shift: 100.0, vocabulary: 5_742_202, bytes_per_word: 7.392 };

impl Default for TextModel {
    fn default() -> Self {
        DEFAULT
    }
}

/// Words that are expected less often than this are drawn together.
const RARE: f64 = 0.02;

impl TextModel {
    /// Returns the expected number of words in a text of this length.
    #[must_use]
    pub fn words(&self, bytes: u64) -> u64 {
        (bytes as f64 / self.bytes_per_word) as u64
    }

    /// Draws how often each word occurs in a text of about `words` words: rank and number, without words that do not occur. The numbers
    /// of different words are independent and have Poisson's distribution, so that the length of the text varies by its square root.
    #[must_use]
    pub fn counts(&self, words: u64, rng: &mut Rng) -> Vec<(u32, u32)> {
        let vocabulary = f64::from(self.vocabulary);
        let scale = words as f64 / self.integral(0.5, vocabulary + 0.5);
        let mut counts = Vec::new();
        let mut rank = 1;
        while rank <= self.vocabulary {
            let expected = scale * self.weight(rank);
            if expected < RARE {
                break;
            }
            let count = poisson(expected, rng);
            if count > 0 {
                counts.push((rank, count));
            }
            rank += 1;
        }
        // In a block of rare ranks, the number of words is drawn, and then the rank of each of them.
        while rank <= self.vocabulary {
            let last = self.vocabulary.min(rank.saturating_add((rank / 64).max(1)));
            let (low, high) = (f64::from(rank) - 0.5, f64::from(last) + 0.5);
            let number = poisson(scale * self.integral(low, high), rng);
            let first = counts.len();
            for _ in 0..number {
                counts.push((rank + rng.below(u64::from(last - rank) + 1) as u32, 1));
            }
            counts[first..].sort_unstable();
            let mut kept = first;
            for index in first..counts.len() {
                if kept > first && counts[kept - 1].0 == counts[index].0 {
                    counts[kept - 1].1 += 1;
                } else {
                    counts[kept] = counts[index];
                    kept += 1;
                }
            }
            counts.truncate(kept);
            rank = last + 1;
        }
        counts
    }

    /// Returns the expected number of distinct words among this many.
    #[must_use]
    pub fn distinct(&self, words: u64) -> f64 {
        let vocabulary = f64::from(self.vocabulary);
        let scale = words as f64 / self.integral(0.5, vocabulary + 0.5);
        let (mut distinct, mut rank) = (0.0, 1);
        while rank <= self.vocabulary {
            // Neighbours in rank are equally frequent, more or less.
            let last = self.vocabulary.min(rank.saturating_add((rank / 64).max(1)) - 1);
            let (low, high) = (f64::from(rank) - 0.5, f64::from(last) + 0.5);
            let expected = scale * self.integral(low, high) / (high - low);
            distinct += (high - low) * (1.0 - libm::exp(-expected));
            rank = last + 1;
        }
        distinct
    }

    /// Returns the frequency of a rank, without its scale. Runs draw thousands of texts of the default model, for which it is
    /// computed once.
    fn weight(&self, rank: u32) -> f64 {
        static WEIGHTS: LazyLock<Box<[f64]>> =
            LazyLock::new(|| (0..1 << 20).map(|rank| DEFAULT.compute_weight(rank)).collect());
        let is_default = self.exponent == DEFAULT.exponent && self.shift == DEFAULT.shift;
        let known = if is_default { WEIGHTS.get(rank as usize) } else { None };
        known.copied().unwrap_or_else(|| self.compute_weight(rank))
    }

    fn compute_weight(&self, rank: u32) -> f64 {
        libm::pow(f64::from(rank) + self.shift, -self.exponent)
    }

    /// Returns the integral of the frequencies from one rank to another, without their scale.
    fn integral(&self, from: f64, to: f64) -> f64 {
        let power = 1.0 - self.exponent;
        let at = |rank: f64| libm::pow(rank + self.shift, power) / power;
        at(to) - at(from)
    }
}

/// Writes the word of a rank. One in 400 is longer than 16 bytes, as in English.
pub fn word(rank: u32, out: &mut Vec<u8>) {
    const DIGITS: &[u8] = b"etaoinshrdlucmfwypvbgkqjxz";
    out.clear();
    let mut rest = rank;
    loop {
        out.push(DIGITS[rest as usize % DIGITS.len()]);
        rest /= DIGITS.len() as u32;
        if rest == 0 {
            break;
        }
    }
    if rank > 1_000 && rank.is_multiple_of(400) {
        out.extend_from_slice(b"-counterrevolution");
    }
}

/// Draws a number with Poisson's distribution: by Knuth's product of uniform numbers, and rounded from the normal distribution if many
/// are expected.
fn poisson(mean: f64, rng: &mut Rng) -> u32 {
    if mean > 60.0 {
        // Box and Muller.
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - rng.unit()));
        let normal = radius * libm::cos(2.0 * core::f64::consts::PI * rng.unit());
        return libm::round(libm::sqrt(mean) * normal + mean).max(0.0) as u32;
    }
    let limit = libm::exp(-mean);
    let (mut product, mut count) = (rng.unit(), 0);
    while product > limit {
        product *= rng.unit();
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_the_words_of_the_dictionary() {
        let model = TextModel::default();
        let mut rng = Rng::stream(1, 0, 0, "text");
        let counts = model.counts(5_404_311, &mut rng);
        let words: u64 = counts.iter().map(|(_, count)| u64::from(*count)).sum();
        assert!(words.abs_diff(5_404_311) < 30_000, "{words}");
        assert!(counts.len().abs_diff(219_512) < 2_500, "{}", counts.len());
        assert!((model.distinct(5_404_311) - 219_512.0).abs() < 500.0);
        assert!(counts.is_sorted_by(|left, right| left.0 < right.0), "each rank once");
        // Seven workers with a seventh each have as many pairs as with shuffled blocks of the dictionary.
        let pairs: usize = (0..7).map(|_| model.counts(5_404_311 / 7, &mut rng).len()).sum();
        assert!(pairs.abs_diff(443_422) < 9_000, "{pairs}");
    }

    #[test]
    fn each_rank_has_a_word_of_its_own() {
        let mut words = std::collections::BTreeSet::new();
        let mut text = Vec::new();
        for rank in 1..100_000 {
            word(rank, &mut text);
            assert!(words.insert(text.clone()), "{rank}");
        }
        let long = words.iter().filter(|word| word.len() > 16).count();
        assert_eq!(long, 99_999 / 400 - 2);
    }

    #[test]
    fn poissons_mean_and_variance_are_equal() {
        let mut rng = Rng::stream(2, 0, 0, "poisson");
        for mean in [0.5, 5.0, 100.0] {
            let n = 40_000;
            let drawn: Vec<f64> = (0..n).map(|_| f64::from(poisson(mean, &mut rng))).collect();
            let average = drawn.iter().sum::<f64>() / f64::from(n);
            let square = drawn.iter().map(|x| (x - average) * (x - average)).sum::<f64>();
            assert!((average / mean - 1.0).abs() < 0.03, "{mean}: {average}");
            assert!((square / f64::from(n) / mean - 1.0).abs() < 0.05, "{mean}");
        }
    }
}
