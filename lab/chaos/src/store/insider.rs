//! A receiver of a cast with a key that forges data for the others.

use rackweave_core::Rng;
use rackweave_crypt::GroupSeal;
use rackweave_wire::orca::{self, Data, Label, Labelled, Session};

use super::source::Stream;

/// A receiver that has the key of a session's data, and seals other data with it than the sender.
#[derive(Debug)]
pub(super) struct Insider {
    session: Session,
    seal: GroupSeal,
    rng: Rng,
}

impl Insider {
    /// Its numbers of packets are some that the sender has yet to use, some near these, or far above them.
    pub(super) fn new(session: Session, sealer: &GroupSeal, rng: &mut Rng) -> Self {
        let (cipher, key) = sealer.key();
        let mut seal = GroupSeal::new(cipher, *key);
        let lead = [rng.below(200), 4000, 20_000][rng.below(3) as usize];
        for _ in 0..sealer.sealed() + lead {
            let _ = seal.seal(b"", &mut []);
        }
        Self { session, seal, rng: Rng::stream(rng.next_u64(), 0, 0, "insider") }
    }

    pub(super) const fn session(&self) -> Session {
        self.session
    }

    /// Returns the next datagram: wrong bytes, or right ones, somewhere in the stream or beyond it, and sometimes an end.
    pub(super) fn forge(&mut self, stream: &Stream) -> Option<Vec<u8>> {
        let rng = &mut self.rng;
        let length = stream.bytes.len() as u64;
        let len = 1 + rng.below(900);
        let offset = rng.below(length + length / 8 + 1);
        let right = stream.bytes.get(offset as usize..(offset + len) as usize);
        let mut body = match right.filter(|_| rng.chance(0.2)) {
            Some(right) => right.to_vec(),
            None => vec![rng.next_u64() as u8; len as usize],
        };
        let data = Data {
            labelled: if rng.chance(0.5) { Labelled::Pilot } else { Labelled::Host },
            label: Label(0),
            session: self.session,
            offset,
            len: len as u16,
            repair: rng.chance(0.1),
            end: rng.chance(0.1),
            parity: None,
        };
        let (counter, tag) = self.seal.seal(orca::associated(&data).as_ref(), &mut body).ok()?;
        let mut bytes = Vec::new();
        orca::encode_relayed(&data, 1, orca::Check::Sealed { counter, tag }, &mut bytes);
        bytes.extend_from_slice(&body);
        Some(bytes)
    }
}
