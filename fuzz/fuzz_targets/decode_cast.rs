//! Any bytes as a stream of files, in two pieces.

#![no_main]

use rackweave_cast::format::{DecodeError, Decoder, FileHeader, Hash, Take, check_path};

struct Count(u64);

impl Take for Count {
    type Error = DecodeError;
    fn file(&mut self, header: &FileHeader, _: u64) -> Result<(), DecodeError> {
        assert!(check_path(&header.path).is_ok());
        Ok(())
    }
    fn chunk(&mut self, bytes: &[u8], _: &Hash, _: u64) -> Result<(), DecodeError> {
        self.0 += bytes.len() as u64;
        Ok(())
    }
    fn file_end(&mut self, _: u64, _: &Hash, _: u64) -> Result<(), DecodeError> {
        Ok(())
    }
    fn end(&mut self, _: u64, bytes: u64) -> Result<(), DecodeError> {
        assert_eq!(bytes, self.0);
        Ok(())
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (cut, bytes) = bytes.split_first().map_or((0, bytes), |(cut, rest)| (usize::from(*cut), rest));
    let (first, second) = bytes.split_at(cut.min(bytes.len()));
    let (mut decoder, mut count) = (Decoder::default(), Count(0));
    let _ = decoder.push(first, &mut count).and_then(|()| decoder.push(second, &mut count));
    // What it holds is no more than what came.
    assert!(decoder.offset() <= bytes.len() as u64);
});
