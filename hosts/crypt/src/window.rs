//! The replay window: which counters of a session have been accepted.

/// Bits of a block.
const BLOCK: u64 = 64;

/// Blocks; one is always being refilled.
const BLOCKS: usize = 129;

/// Counters that may be accepted late. Packets of different priorities overtake each other by as much as a switch's queues
/// hold, so it is far above IPsec's customary 64 (RFC 4303, section 3.4.3). The value is our choice.
pub const WINDOW: u64 = (BLOCKS as u64 - 1) * BLOCK;

/// A sliding window over 64-bit counters. Each is accepted once; counters more than [`WINDOW`] behind the highest are
/// not accepted. A ring of blocks of bits, as in RFC 6479, so that nothing is shifted.
#[derive(Clone, Debug)]
pub struct Window {
    /// One above the highest counter that was accepted.
    next: u64,
    blocks: [u64; BLOCKS],
}

impl Default for Window {
    fn default() -> Self {
        Self { next: 0, blocks: [0; BLOCKS] }
    }
}

const fn block(counter: u64) -> usize {
    (counter / BLOCK % BLOCKS as u64) as usize
}

const fn bit(counter: u64) -> u64 {
    1 << (counter % BLOCK)
}

impl Window {
    /// Whether a counter can still be accepted.
    #[must_use]
    pub const fn is_new(&self, counter: u64) -> bool {
        if counter >= self.next {
            return true;
        }
        self.next - counter <= WINDOW && self.blocks[block(counter)] & bit(counter) == 0
    }

    /// Accepts a counter. Returns false, and changes nothing, if it was accepted before or is too late. To be called once
    /// the packet is authentic: a forged counter would move the window.
    pub fn accept(&mut self, counter: u64) -> bool {
        if !self.is_new(counter) || counter == u64::MAX {
            return false;
        }
        if counter >= self.next {
            let (last, new) = (self.next.saturating_sub(1) / BLOCK, counter / BLOCK);
            let fresh = (new - last).min(BLOCKS as u64);
            for index in 0..fresh {
                self.blocks[((new - index) % BLOCKS as u64) as usize] = 0;
            }
            self.next = counter + 1;
        }
        self.blocks[block(counter)] |= bit(counter);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The definition, without a ring.
    #[derive(Default)]
    struct Model {
        seen: BTreeSet<u64>,
    }

    impl Model {
        fn accept(&mut self, counter: u64) -> bool {
            let highest = self.seen.last().copied();
            let late = highest.is_some_and(|highest| highest + 1 > counter.saturating_add(WINDOW));
            !late && counter != u64::MAX && self.seen.insert(counter)
        }
    }

    #[test]
    fn the_edges() {
        let mut window = Window::default();
        assert!(window.accept(0) && !window.accept(0));
        assert!(window.accept(WINDOW - 1) && window.is_new(1));
        assert!(window.accept(WINDOW) && !window.is_new(0));
        assert!(window.accept(1) && !window.accept(1));
        assert!(window.accept(u64::MAX - 1));
        assert!(!window.accept(u64::MAX), "the last counter is never used");
        assert!(!window.accept(WINDOW));
    }

    proptest! {
        #[test]
        fn it_is_a_set_with_a_lower_end(
            steps in prop::collection::vec((0_u64..3, 0_u64..20_000), 1..400)
        ) {
            let (mut window, mut model) = (Window::default(), Model::default());
            let mut at = 0_u64;
            for (kind, by) in steps {
                at = match kind {
                    0 => at + by % 3,
                    1 => at.saturating_sub(by),
                    _ => at + by,
                };
                prop_assert_eq!(window.accept(at), model.accept(at), "{}", at);
            }
        }
    }
}
