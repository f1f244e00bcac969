use proptest::prelude::*;

use super::*;

#[derive(Debug, Default, PartialEq)]
struct Got {
    files: Vec<(FileHeader, Vec<u8>, Option<Hash>)>,
    ended: bool,
}

impl Visitor for Got {
    type Error = DecodeError;

    fn file(&mut self, header: &FileHeader, _: u64) -> Result<(), DecodeError> {
        self.files.push((header.clone(), Vec::new(), None));
        Ok(())
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        self.files.last_mut().unwrap().1.extend_from_slice(bytes);
        Ok(())
    }
    fn hole(&mut self, len: usize, _: &Hash) -> Result<(), DecodeError> {
        self.bytes(&vec![0; len])
    }
    fn chunk(&mut self, _: &Hash, _: u64) -> Result<(), DecodeError> {
        Ok(())
    }

    fn file_end(&mut self, length: u64, hash: &Hash, _: u64) -> Result<(), DecodeError> {
        let file = self.files.last_mut().unwrap();
        assert_eq!(file.1.len() as u64, length);
        file.2 = Some(*hash);
        Ok(())
    }

    fn end(&mut self, files: u64, _: u64) -> Result<(), DecodeError> {
        assert_eq!(files, self.files.len() as u64);
        self.ended = true;
        Ok(())
    }
}

fn header(path: &str, length: Option<u64>) -> FileHeader {
    let path = path.as_bytes().to_vec();
    FileHeader {
        attributes: None,
        owner: None,
        path,
        kind: RecordKind::File,
        length,
        mode: 0o644,
        mtime_s: -5,
        mtime_ns: 7,
    }
}

/// Encodes a stream of these files. Files of unknown length have chunks of the given length.
fn stream(files: &[(&str, Vec<u8>, Option<usize>)]) -> Vec<u8> {
    let mut out = Vec::new();
    start(&mut out);
    let mut total = 0;
    let mut whole = StreamDigest::default();
    for (path, bytes, chunk) in files {
        let header = header(path, chunk.is_none().then_some(bytes.len() as u64));
        file(&header, &mut out);
        whole.file(&header);
        let mut tree = tree::TreeHash::default();
        for piece in bytes.chunks(chunk.unwrap_or(CHUNK)) {
            let hash = match chunk {
                Some(_) => *blake3::hash(piece).as_bytes(),
                None => tree.update(piece),
            };
            out.extend_from_slice(&chunk_front(piece.len() as u32));
            out.extend_from_slice(piece);
            out.extend_from_slice(&hash);
        }
        file_end(bytes.len() as u64, blake3::hash(bytes).as_bytes(), &mut out);
        whole.file_end(blake3::hash(bytes).as_bytes());
        total += bytes.len() as u64;
    }
    digest(&whole, &mut out);
    end(files.len() as u64, total, &mut out);
    out
}

fn sample() -> Vec<(&'static str, Vec<u8>, Option<usize>)> {
    let bytes = |len: usize| (0..len).map(|i| (i % 251) as u8).collect::<Vec<_>>();
    vec![
        ("a", bytes(10), None),
        ("dir/empty", Vec::new(), None),
        ("dir/big", bytes(2 * CHUNK + 9), None),
        ("pipe", bytes(5000), Some(1234)),
        ("quiet pipe", Vec::new(), Some(1)),
    ]
}

#[test]
fn a_stream_is_read_in_pieces_of_any_size() {
    let sample = sample();
    let bytes = stream(&sample);
    for piece in [1, 7, 1424, 65_536, bytes.len()] {
        let (mut decoder, mut got) = (Decoder::default(), Got::default());
        for piece in bytes.chunks(piece) {
            decoder.push(piece, &mut got).unwrap();
        }
        assert!(got.ended && decoder.is_ended());
        assert_eq!(decoder.offset(), bytes.len() as u64);
        for (found, wanted) in got.files.iter().zip(&sample) {
            assert_eq!(found.0.path, wanted.0.as_bytes());
            assert_eq!(found.1, wanted.1);
            assert_eq!(found.2.unwrap(), *blake3::hash(&wanted.1).as_bytes());
            assert_eq!((found.0.mode, found.0.mtime_s, found.0.mtime_ns), (0o644, -5, 7));
        }
        assert_eq!(got.files.len(), sample.len());
        assert_eq!(decoder.push(&[0], &mut got), Err(DecodeError::AfterEnd));
    }
}

#[test]
fn known_lengths_tell_where_everything_is() {
    let bytes = vec![3; 2 * CHUNK + 9];
    let len = stream(&[("x", bytes.clone(), None)]).len();
    let fixed = START_BYTES + file_record_bytes(1) + FILE_END_BYTES + DIGEST_BYTES + END_BYTES;
    assert_eq!(len as u64, fixed as u64 + header("x", Some(bytes.len() as u64)).chunks_bytes());
    assert_eq!(header("x", Some(0)).chunks_bytes(), 0);
}

#[test]
fn a_decoder_goes_on_at_a_chunk() {
    let sample = [("first", vec![1; 100], None), ("x", vec![9; 3 * CHUNK + 1], None)];
    let bytes = stream(&sample);
    let mut of_first = StreamDigest::default();
    of_first.file(&header("first", Some(100)));
    of_first.file_end(blake3::hash(&[1; 100]).as_bytes());
    for chunks in 0..=3 {
        let hashes: Vec<Hash> =
            (0..chunks).map(|i| tree::chunk_hash(i, &vec![9; CHUNK]).0).collect();
        let front = START_BYTES
            + file_record_bytes(5)
            + (CHUNK_FRONT + HASH + 100)
            + FILE_END_BYTES
            + file_record_bytes(1);
        let at = front as u64 + chunks * (CHUNK_FRONT + CHUNK + HASH) as u64;
        let resume = Resume {
            files: 1,
            bytes: 100,
            file: Some((header("x", Some(3 * CHUNK as u64 + 1)), hashes)),
            single: None,
            at,
            digest: of_first.clone(),
        };
        let mut decoder = Decoder::resume(resume);
        let mut got = Got::default();
        got.files.push((header("first", None), Vec::new(), None));
        got.files.push((header("x", None), vec![9; chunks as usize * CHUNK], None));
        decoder.push(&bytes[at as usize..], &mut got).unwrap();
        assert!(got.ended);
    }
}

/// A decoder that resumes after files of an earlier attempt compares them with the files that are
/// sent.
#[test]
fn earlier_files_that_are_not_those_that_are_sent_are_found_at_the_end() {
    let sample = [("first", vec![1; 100], None), ("x", vec![9; 10], None)];
    let bytes = stream(&sample);
    let at = START_BYTES + file_record_bytes(5) + (CHUNK_FRONT + HASH + 100) + FILE_END_BYTES;
    let without: Vec<u8> =
        [&bytes[..bytes.len() - END_BYTES - DIGEST_BYTES], &bytes[bytes.len() - END_BYTES..]]
            .concat();
    let resume = |content: u8, name: &str, bytes: &[u8]| {
        let mut digest = StreamDigest::default();
        digest.file(&header(name, Some(100)));
        digest.file_end(blake3::hash(&[content; 100]).as_bytes());
        let (file, single) = (None, None);
        let resume = Resume { files: 1, bytes: 100, file, single, at: at as u64, digest };
        let mut got = Got { files: vec![(header("first", None), Vec::new(), None)], ended: false };
        let result = Decoder::resume(resume).push(&bytes[at..], &mut got);
        (result, got.ended)
    };
    assert_eq!(resume(1, "first", &bytes), (Ok(()), true));
    for (content, name, bytes) in
        [(2, "first", &bytes), (1, "other", &bytes), (1, "first", &without)]
    {
        let found = resume(content, name, bytes);
        assert_eq!(found, (Err(DecodeError::EarlierDiffers), false), "{content} {name}");
    }
    // All files of this attempt were compared with their own hashes.
    let mut got = Got::default();
    Decoder::default().push(&without, &mut got).unwrap();
    assert!(got.ended);
}

#[test]
fn a_byte_that_changed_is_found_wherever_it_is() {
    let sample = [("name", vec![5; 300], None), ("pipe", vec![6; 300], Some(200))];
    let bytes = stream(&sample);
    let good = {
        let mut got = Got::default();
        Decoder::default().push(&bytes, &mut got).unwrap();
        got
    };
    for place in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[place] ^= 0x41;
        let mut got = Got::default();
        let result = Decoder::default().push(&bytes, &mut got);
        // Names, modes and times are not hashed; the checks of packets protect them.
        let contents = |got: &Got| got.files.iter().map(|file| file.1.clone()).collect::<Vec<_>>();
        assert!(result.is_err() || !got.ended || contents(&got) == contents(&good), "{place}");
    }
}

#[test]
fn paths_that_lead_elsewhere_are_refused() {
    for path in [
        "/etc/passwd",
        "..",
        "a/../b",
        ".",
        "./a",
        "a//b",
        "a/",
        "",
        "a\0b",
        ".rackweave-cast-0.state",
        "d/.rackweave-cast-0.link",
        "d/.rackweave-cast-0/e",
    ] {
        assert!(check_path(path.as_bytes()).is_err(), "{path:?}");
        let mut got = Got::default();
        let bytes = stream(&[(path, vec![1], None)]);
        let result = Decoder::default().push(&bytes, &mut got);
        assert!(matches!(result, Err(DecodeError::Path(_))), "{path:?}");
        assert!(got.files.is_empty());
    }
    for path in ["a", "a/b", "..a", "a..", ".hidden/...", "a b\n"] {
        assert_eq!(check_path(path.as_bytes()), Ok(()), "{path:?}");
    }
    assert_eq!(check_path(&[b'a'; 256]), Err(PathError::Long));
}

/// The largest number means nobody to the system.
#[test]
fn owners_come_back_and_nobody_is_none() {
    let read = |owner| {
        let mut bytes = Vec::new();
        start(&mut bytes);
        file(&FileHeader { owner, ..header("x", Some(0)) }, &mut bytes);
        let mut got = Got::default();
        Decoder::default().push(&bytes, &mut got).map(|()| got.files[0].0.owner)
    };
    for owner in [None, Some((0, 0)), Some((1000, u32::MAX - 1))] {
        assert_eq!(read(owner).unwrap(), owner);
    }
    for owner in [(u32::MAX, 0), (0, u32::MAX)] {
        assert!(matches!(read(Some(owner)), Err(DecodeError::Length { .. })));
    }
}

#[test]
fn lengths_are_not_trusted() {
    let mut bytes = Vec::new();
    start(&mut bytes);
    file(&header("x", None), &mut bytes);
    bytes.extend_from_slice(&chunk_front(u32::MAX));
    let error = Decoder::default().push(&bytes, &mut Got::default()).unwrap_err();
    assert!(matches!(error, DecodeError::Length { .. }));
}

proptest! {
    #![proptest_config(rackweave_testing::cases(256))]

    #[test]
    fn nothing_makes_it_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        valid in any::<bool>(),
        cut in 1_usize..400,
    ) {
        let mut bytes = if valid { stream(&[("n", bytes.clone(), None), ("m", bytes, Some(17))]) } else { bytes };
        for (place, byte) in changes {
            if !bytes.is_empty() {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
        }
        let (mut decoder, mut got) = (Decoder::default(), Got::default());
        for piece in bytes.chunks(cut) {
            if decoder.push(piece, &mut got).is_err() {
                break;
            }
        }
    }
}
