//! Bytes of a fuzzer as a sequence of choices.

/// What remains of the fuzzer's bytes. At the end every choice is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn number<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let taken = self.bytes(N);
        out[..taken.len()].copy_from_slice(taken);
        out
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.number::<1>()[0]
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.number())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.number())
    }

    /// A number below `end`, which is at most 256.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.u8()) % end.max(1)
    }

    /// The next bytes, fewer at the end.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Bytes whose number is the first of them.
    pub(crate) fn block(&mut self) -> &'a [u8] {
        let count = self.u8();
        self.bytes(count.into())
    }

    pub(crate) const fn rest(self) -> &'a [u8] {
        self.0
    }
}
