//! Properties that must hold for any bytes, shared by the fuzz targets and the replay of their corpus.

#![allow(dead_code, reason = "each fuzz target uses one")]

use rackweave_cast::format::{
    DecodeError, Decoder, FileHeader, Hash, Manifest, RecordKind, Visitor, check_path,
};
use rackweave_cast::orca::{AnswerMessage, CookieMessage, GroupMessage, SealedMessage};

#[derive(Default)]
struct Count {
    files: u64,
    bytes: u64,
    holes: u32,
    ended: bool,
}

impl Visitor for Count {
    type Error = DecodeError;
    fn file(&mut self, header: &FileHeader, _: u64) -> Result<(), DecodeError> {
        assert!(check_path(&header.path).is_ok());
        match &header.kind {
            RecordKind::HardLink(target) => {
                assert!(check_path(target).is_ok() && header.length == Some(0));
            }
            RecordKind::SymbolicLink(target) => {
                assert!(!target.is_empty() && !target.contains(&0) && header.length == Some(0));
            }
            _ => {}
        }
        self.files += 1;
        Ok(())
    }
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        self.bytes += bytes.len() as u64;
        Ok(())
    }
    fn hole(&mut self, len: usize, _: &Hash) -> Result<(), DecodeError> {
        self.bytes += len as u64;
        // A short record can announce more zeros than can be hashed in a day, which a receiver ends when its user or sender does.
        self.holes += 1;
        if self.holes > 8 { Err(DecodeError::FileHash) } else { Ok(()) }
    }
    fn chunk(&mut self, _: &Hash, _: u64) -> Result<(), DecodeError> {
        Ok(())
    }
    fn file_end(&mut self, _: u64, _: &Hash, _: u64) -> Result<(), DecodeError> {
        Ok(())
    }
    fn end(&mut self, files: u64, bytes: u64) -> Result<(), DecodeError> {
        assert_eq!((files, bytes), (self.files, self.bytes));
        self.ended = true;
        Ok(())
    }
}

/// Decodes any bytes as a stream of files, in two pieces that the first byte separates. Returns whether they were a
/// whole stream.
pub(crate) fn stream(bytes: &[u8]) -> bool {
    let (cut, bytes) =
        bytes.split_first().map_or((0, bytes), |(cut, rest)| (usize::from(*cut), rest));
    let (first, second) = bytes.split_at(cut.min(bytes.len()));
    let (mut decoder, mut count) = (Decoder::default(), Count::default());
    let result = decoder.push(first, &mut count).and_then(|()| decoder.push(second, &mut count));
    // The decoder has consumed no more than it was given.
    assert!(decoder.offset() <= bytes.len() as u64);
    assert_eq!(decoder.is_ended(), count.ended);
    result.is_ok() && count.ended
}

/// Decodes any bytes as a manifest; what is decoded must encode to the same bytes. Returns whether they were one.
pub(crate) fn manifest(bytes: &[u8]) -> bool {
    let manifest = Manifest::decode(bytes);
    if let Ok(manifest) = &manifest {
        assert_eq!(manifest.encode().as_deref(), Some(bytes));
    }
    manifest.is_ok()
}

/// Decodes any bytes as a group message; what is decoded must encode to the same bytes. Returns whether they were a
/// message.
pub(crate) fn group(bytes: &[u8]) -> bool {
    let message = GroupMessage::decode(bytes, None);
    if let Some(message) = &message {
        assert_eq!(message.encode(None), bytes);
    }
    message.is_some()
}

/// Decodes any bytes as a cookie for an invitation, as a question about a manifest or its answer, and as what is sealed for a host; what is decoded must encode to the same
/// bytes. Returns whether they were one of these.
pub(crate) fn invitation(bytes: &[u8]) -> bool {
    let cookie = CookieMessage::decode(bytes);
    if let Some(message) = &cookie {
        assert_eq!(message.encode(), bytes);
    }
    let sealed = SealedMessage::decode(bytes);
    let mut again = Vec::new();
    match &sealed {
        Some(SealedMessage::Control(control)) => SealedMessage::encode(control, None, &mut again),
        Some(SealedMessage::HashRequest(request)) => {
            SealedMessage::encode_request(request, &mut again);
        }
        Some(SealedMessage::Hashes(hashes)) => SealedMessage::encode_hashes(hashes, &mut again),
        Some(SealedMessage::KeyRequest(request)) => {
            SealedMessage::encode_key_request(request, &mut again);
        }
        Some(SealedMessage::Answer(message)) => SealedMessage::encode_answer(message, &mut again),
        // The key that they bring is not readable any more.
        Some(SealedMessage::Invitation(..) | SealedMessage::OwnKey(..)) => {}
        Some(SealedMessage::Empty) | None => {}
    }
    if !again.is_empty() {
        assert_eq!(again, bytes);
    }
    let answer = AnswerMessage::decode_plain(bytes);
    if let Some(message) = &answer {
        assert_eq!(message.encode_plain(), bytes);
    }
    cookie.is_some() || sealed.is_some() || answer.is_some()
}
