//! The order in which a client asks for chunks.

use rackweave_core::Rng;

/// The rule by which a client orders its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// At random, as Frisbee's clients (`docs/protocols/swp2p.md#frisbee-client`).
    Random,
    /// From the first chunk to the last: Frisbee's option `-O`.
    InOrder,
    /// From a start that depends on the client, continuing at its beginning after its end: SWP2P (`docs/protocols/swp2p.md#swp2p`).
    Rotation,
    /// As the rotation, within one window of this many chunks (at least 1) after the other, so that all clients work on the
    /// same part of the image. Rackweave's choice: holders then need not keep much.
    Windows(u32),
}

/// Where a client starts in a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// How many clients have joined before this one.
    pub index: u32,
    /// The number of clients that will join; `None` if it is not known.
    pub clients: Option<u32>,
}

impl Order {
    /// Returns all chunks of an image with this many, each once.
    #[must_use]
    pub fn of(self, chunks: u32, position: Position, rng: &mut Rng) -> Vec<u32> {
        match self {
            Self::Random => random(chunks, rng),
            Self::InOrder => (0..chunks).collect(),
            Self::Rotation => rotated(0, chunks, position).collect(),
            Self::Windows(window) => {
                let window = window.max(1);
                let starts = (0..chunks).step_by(window as usize);
                let lens = starts.map(|first| (first, window.min(chunks - first)));
                lens.flat_map(|(first, len)| rotated(first, len, position)).collect()
            }
        }
    }
}

impl Position {
    /// Returns the first of `chunks` that this client asks for.
    ///
    /// With a known number of clients, client i of C (from 1) starts at chunk floor((i-1)·N/C) (from 0). Without it, clients
    /// start at the fractions 0, 1/2, 1/4, 3/4, 1/8, ... of the image: the reversed bits of their index. Rackweave's
    /// choice: each start is as far from the earlier ones as any.
    #[must_use]
    pub fn start(self, chunks: u32) -> u32 {
        let fraction = |numerator: u64, denominator: u64| {
            (u128::from(chunks) * u128::from(numerator) / u128::from(denominator)) as u32
        };
        match self.clients {
            Some(clients) if clients > 0 => {
                fraction(u64::from(self.index % clients), u64::from(clients))
            }
            _ => fraction(u64::from(self.index.reverse_bits()), 1 << 32),
        }
    }
}

fn rotated(first: u32, len: u32, position: Position) -> impl Iterator<Item = u32> {
    let start = position.start(len);
    (start..len).chain(0..start).map(move |chunk| first + chunk)
}

/// Frisbee exchanges two random entries 50 N times.
fn random(chunks: u32, rng: &mut Rng) -> Vec<u32> {
    let mut order: Vec<u32> = (0..chunks).collect();
    for _ in 0..50 * u64::from(chunks) {
        let (a, b) = (rng.below(u64::from(chunks)), rng.below(u64::from(chunks)));
        order.swap(a as usize, b as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, proptest};

    use super::*;

    fn rng() -> Rng {
        Rng::stream(1, 0, 0, "order")
    }

    /// The example of the slides: N = 1000, C = 4 gives 1, 251, 501 and 751, counted from 1.
    #[test]
    fn the_rotation_is_that_of_the_paper() {
        let firsts = [0, 1, 2, 3].map(|index| {
            let position = Position { index, clients: Some(4) };
            let order = Order::Rotation.of(1_000, position, &mut rng());
            assert_eq!(order[1], (order[0] + 1) % 1_000);
            order[0] + 1
        });
        assert_eq!(firsts, [1, 251, 501, 751]);
        assert_eq!(Position { index: 1, clients: Some(3) }.start(10), 3);
        assert_eq!(Position { index: 5, clients: Some(4) }.start(1_000), 250, "one too many");
    }

    #[test]
    fn without_the_number_of_clients_starts_halve_the_gaps() {
        let start = |index| Position { index, clients: None }.start(16);
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(start), [0, 8, 4, 12, 2, 10, 6, 14]);
    }

    #[test]
    fn windows_follow_each_other() {
        let position = Position { index: 1, clients: Some(2) };
        let order = Order::Windows(4).of(10, position, &mut rng());
        assert_eq!(order, [2, 3, 0, 1, 6, 7, 4, 5, 9, 8]);
    }

    #[test]
    fn random_orders_differ_and_are_replayable() {
        let position = Position { index: 0, clients: None };
        let order = |rng: &mut Rng| Order::Random.of(180, position, rng);
        let mut one = rng();
        let first = order(&mut one);
        assert_eq!(first, order(&mut rng()));
        assert_ne!(first, order(&mut one));
        let fixed = first.iter().enumerate().filter(|(at, chunk)| *at == **chunk as usize).count();
        assert!(fixed < 10, "{fixed} of 180 are where they were");
    }

    proptest! {
        #[test]
        fn every_chunk_is_in_the_order_once(
            chunks in 1_u32..600,
            index in 0_u32..100,
            clients in prop::option::of(0_u32..100),
            window in 0_u32..700,
        ) {
            let position = Position { index, clients };
            for rule in [Order::Random, Order::InOrder, Order::Rotation, Order::Windows(window)] {
                let mut order = rule.of(chunks, position, &mut rng());
                order.sort_unstable();
                prop_assert!(order.iter().copied().eq(0..chunks), "{rule:?}");
            }
        }
    }
}
