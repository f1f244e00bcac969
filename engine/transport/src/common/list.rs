//! A FIFO of slots, each at most once, with removal from the middle in constant time.

const NONE: u32 = u32::MAX;
/// Marks, in `next`, a slot that is not in the list.
const OUT: u32 = u32::MAX - 1;

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

/// A doubly linked FIFO whose links are indexed by slot.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct List {
    first: u32,
    last: u32,
    len: u32,
    links: Vec<Link>,
}

impl Default for List {
    fn default() -> Self {
        Self { first: NONE, last: NONE, len: 0, links: Vec::new() }
    }
}

impl List {
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.first == NONE
    }

    /// Number of slots in the list.
    #[inline]
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.links.get(slot as usize).is_some_and(|link| link.next != OUT)
    }

    /// Appends a slot, unless it is in the list already.
    #[inline]
    pub(crate) fn push_back(&mut self, slot: u32) {
        if self.contains(slot) {
            return;
        }
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, Link { previous: NONE, next: OUT });
        }
        self.links[slot as usize] = Link { previous: self.last, next: NONE };
        match self.last {
            NONE => self.first = slot,
            last => self.links[last as usize].next = slot,
        }
        self.last = slot;
        self.len += 1;
    }

    /// The slot at the front.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Removes the slot at the front and returns it.
    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<u32> {
        let first = self.first()?;
        self.remove(first);
        Some(first)
    }

    /// Removes a slot, if it is in the list.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) {
        if !self.contains(slot) {
            return;
        }
        let Link { previous, next } = self.links[slot as usize];
        self.links[slot as usize].next = OUT;
        self.len -= 1;
        match previous {
            NONE => self.first = next,
            previous => self.links[previous as usize].next = next,
        }
        match next {
            NONE => self.last = previous,
            next => self.links[next as usize].previous = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_core::Rng;

    #[test]
    fn agrees_with_a_vector() {
        let mut rng = Rng::stream(1, 0, 0, "list");
        let mut list = List::default();
        let mut model: Vec<u32> = Vec::new();
        for _ in 0..5_000 {
            let slot = rng.below(10) as u32;
            match rng.below(3) {
                0 => {
                    list.push_back(slot);
                    if !model.contains(&slot) {
                        model.push(slot);
                    }
                }
                1 => {
                    list.remove(slot);
                    model.retain(|other| *other != slot);
                }
                _ => {
                    let expected = (!model.is_empty()).then(|| model.remove(0));
                    assert_eq!(list.pop_front(), expected);
                }
            }
            assert_eq!(list.first(), model.first().copied());
            assert_eq!(list.is_empty(), model.is_empty());
            assert_eq!(list.len() as usize, model.len());
            assert!((0..12).all(|slot| list.contains(slot) == model.contains(&slot)));
        }
    }
}
