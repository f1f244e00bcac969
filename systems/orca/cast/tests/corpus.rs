//! Replays the fuzz targets' corpus without a fuzzer.

mod checks;

use std::fs;
use std::path::PathBuf;

use rackweave_cast::format::{
    self, Attribute, Delete, FileHeader, Manifest, ManifestEntry, Protected, Purpose, RecordKind,
};
use rackweave_cast::orca::{
    AnswerMessage, BlockHashes, CookieMessage, GroupMessage, HashRequest, KeyRequest, SealedMessage,
};
use rackweave_core::HostId;
use rackweave_crypt::Cipher;
use rackweave_wire::orca::{Body, Control, Header, Place, Session, encode_header};

fn corpus(target: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "..", "fuzz", "corpus", target].iter().collect()
}

fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let read = fs::read_dir(corpus(target)).expect("the corpus is there");
    let mut found: Vec<_> = read
        .map(|entry| {
            let entry = entry.expect("the folder can be read");
            let bytes = fs::read(entry.path()).expect("the seed can be read");
            (entry.file_name().into_string().expect("a plain name"), bytes)
        })
        .collect();
    found.sort();
    assert!(!found.is_empty(), "{target} is empty");
    found
}

fn header(length: Option<u64>) -> FileHeader {
    FileHeader {
        attributes: None,
        owner: None,
        path: b"a/b".to_vec(),
        kind: RecordKind::File,
        length,
        mode: 0o644,
        mtime_s: 1,
        mtime_ns: 2,
    }
}

/// Encodes a stream of one file, of known or unknown length, whose first byte gives the position of the cut.
fn one_file(cut: u8, length: Option<u64>, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![cut];
    format::start(&mut out);
    format::file(&header(length), &mut out);
    let hash = match length {
        Some(_) => format::tree::TreeHash::default().update(bytes),
        None => *blake3::hash(bytes).as_bytes(),
    };
    out.extend_from_slice(&format::chunk_front(bytes.len() as u32));
    out.extend_from_slice(bytes);
    out.extend_from_slice(&hash);
    format::file_end(bytes.len() as u64, blake3::hash(bytes).as_bytes(), &mut out);
    format::end(1, bytes.len() as u64, &mut out);
    out
}

/// Encodes a stream of a file whose first chunk is a hole, and which ends with these bytes.
fn with_hole(bytes: &[u8]) -> Vec<u8> {
    let content = [&[0; format::CHUNK][..], bytes].concat();
    let kind = RecordKind::WithHoles(format::Extents::new(std::iter::once(1..2)));
    let header = FileHeader { kind, ..header(Some(content.len() as u64)) };
    let mut out = vec![30];
    format::start(&mut out);
    format::file(&header, &mut out);
    out.extend_from_slice(&format::chunk_front(bytes.len() as u32));
    out.extend_from_slice(bytes);
    out.extend_from_slice(&format::tree::chunk_hash(1, bytes).0);
    format::file_end(content.len() as u64, blake3::hash(&content).as_bytes(), &mut out);
    format::end(1, content.len() as u64, &mut out);
    out
}

/// A further name of the file, a directory with an extended attribute, and a symbolic link with an owner.
fn others() -> [FileHeader; 3] {
    let named = |path: &[u8], kind| FileHeader { path: path.to_vec(), kind, ..header(Some(0)) };
    let link = named(b"a/c", RecordKind::HardLink(b"a/b".to_vec()));
    let attribute = Attribute { name: b"user.one".to_vec(), value: b"1".to_vec() };
    let directory = named(b"d", RecordKind::Directory);
    let directory = FileHeader { attributes: Some(vec![attribute]), ..directory };
    let symbolic = named(b"e", RecordKind::SymbolicLink(b"../a/b".to_vec()));
    [link, directory, FileHeader { owner: Some((1000, 100)), ..symbolic }]
}

/// Encodes a stream of an empty file, and the others.
fn with_link() -> Vec<u8> {
    let mut out = vec![70];
    format::start(&mut out);
    format::file(&header(Some(0)), &mut out);
    format::file_end(0, blake3::hash(b"").as_bytes(), &mut out);
    others().iter().for_each(|header| format::file(header, &mut out));
    format::end(4, 0, &mut out);
    out
}

/// Adds a digest record to a stream of one file, before its end record.
fn with_digest(mut stream: Vec<u8>) -> Vec<u8> {
    let end = stream.split_off(stream.len() - format::END_BYTES);
    let mut digest = format::StreamDigest::default();
    digest.file(&header(Some(5)));
    digest.file_end(blake3::hash(b"bytes").as_bytes());
    format::digest(&digest, &mut stream);
    stream.extend_from_slice(&end);
    stream
}

#[test]
fn streams() {
    for (name, bytes) in seeds("decode_cast") {
        println!("{name}");
        assert_eq!(checks::manifest(&bytes), name == "manifest", "{name}");
        let whole = checks::stream(&bytes);
        let good =
            ["chunk", "digest", "directory", "empty-file", "hole", "link", "no-files", "pipe"];
        assert_eq!(whole, good.contains(&name.as_str()), "{name}");
    }
}

#[test]
fn groups() {
    for (name, bytes) in seeds("decode_group") {
        println!("{name}");
        assert_eq!(
            checks::group(&bytes),
            ["answer", "question"].contains(&name.as_str()),
            "{name}"
        );
    }
}

#[test]
fn invitations() {
    for (name, bytes) in seeds("decode_invitation") {
        println!("{name}");
        let good = [
            "answer",
            "ask",
            "challenge",
            "control",
            "echo",
            "empty",
            "hash-request",
            "hashes",
            "invitation",
            "key-request",
            "own-key",
            "sealed-answer",
        ];
        assert_eq!(checks::invitation(&bytes), good.contains(&name.as_str()), "{name}");
    }
}

#[test]
fn invitations_that_are_nearly_right() {
    mutants("decode_invitation", 300_000, |bytes| {
        checks::invitation(bytes);
    });
}

/// Seeds of cookies and of what is sealed for a host.
fn invitation_seeds() -> [(&'static str, Vec<u8>); 15] {
    let (session, place) = (Session(0x0102_0304), Place { rack: 0, port: 3 });
    let body = Body::Invite { stream: 5, place, payload: 1400, via_agent: false };
    let invite = Control { from: HostId(1), to: HostId(2), session, body };
    let bye = Control { body: Body::End { length: 9 }, ..invite };
    let mut packet = Vec::new();
    encode_header(&Header::Control(invite), 1, None, &[], &mut packet);
    let echo = CookieMessage::Echo { session, cookie: 7, packet: &packet };
    let sealed = |control: &Control, key| {
        let mut bytes = Vec::new();
        SealedMessage::encode(control, key, &mut bytes);
        bytes
    };
    let with_key = sealed(&invite, Some((Cipher::Aes256Gcm, &[8; 32])));
    let mut no_cipher = with_key.clone();
    no_cipher[1] = 7;
    let encoded = |encode: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        encode(&mut bytes);
        bytes
    };
    let asks = HashRequest { session, nonce: 6, from: 1 << 20, upto: 5 << 19, partial: true };
    let hashes = BlockHashes {
        session,
        nonce: 6,
        from: 1 << 20,
        upto: 5 << 19,
        ended: false,
        hashes: vec![[1; 32], [2; 32]],
    };
    let too_few = BlockHashes { hashes: vec![[1; 32]], ..hashes.clone() };
    let wants_key = KeyRequest { session, nonce: 6 };
    let ask = AnswerMessage::Ask { session, part: 1 };
    let bytes = vec![5, 0x80].into();
    let answer = AnswerMessage::Answer { session, part: 1, length: 194, bytes };
    let own_key = (Cipher::ChaCha20Poly1305, &[9; 32]);
    [
        ("hash-request", encoded(&|out| SealedMessage::encode_request(&asks, out))),
        ("hashes", encoded(&|out| SealedMessage::encode_hashes(&hashes, out))),
        ("too-few-hashes", encoded(&|out| SealedMessage::encode_hashes(&too_few, out))),
        ("key-request", encoded(&|out| SealedMessage::encode_key_request(&wants_key, out))),
        ("own-key", encoded(&|out| SealedMessage::encode_key(&wants_key, own_key, out))),
        ("challenge", CookieMessage::Challenge { session, cookie: 7 }.encode()),
        ("echo", echo.encode()),
        ("empty", vec![0, 0]),
        ("control", sealed(&bye, None)),
        ("invitation", with_key),
        ("invitation-without-key", sealed(&invite, None)),
        ("no-such-cipher", no_cipher),
        ("ask", ask.encode_plain()),
        ("answer", answer.encode_plain()),
        ("sealed-answer", encoded(&|out| SealedMessage::encode_answer(&answer, out))),
    ]
}

/// Checks seeds that are truncated, joined, damaged and extended; the mutations are the same in each run.
fn mutants(target: &str, count: usize, mut check: impl FnMut(&[u8])) {
    let seeds = seeds(target);
    let mut random = 1_u64;
    let mut next = || {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize
    };
    for _ in 0..count {
        let mut bytes = seeds[next() % seeds.len()].1.clone();
        for _ in 0..=next() % 4 {
            let at = next() % (bytes.len() + 1);
            match next() % 6 {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, next() as u8),
                2 => {
                    let other = &seeds[next() % seeds.len()].1;
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[next() % (other.len() + 1)..]);
                }
                3 => bytes.iter_mut().skip(at).take(1 + next() % 8).for_each(|byte| *byte = 255),
                4 => bytes.iter_mut().skip(at).take(8).for_each(|byte| *byte = 0),
                _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (at & 7)),
            }
        }
        check(&bytes);
    }
}

#[test]
fn streams_that_are_nearly_right() {
    let mut whole = 0;
    mutants("decode_cast", 300_000, |bytes| {
        whole += u32::from(checks::stream(bytes));
        checks::manifest(bytes);
    });
    // Some changes affect only names and times, or nothing at all.
    assert!(whole > 0);
}

#[test]
fn messages_about_groups_that_are_nearly_right() {
    mutants("decode_group", 300_000, |bytes| {
        checks::group(bytes);
    });
}

/// If this fails, run `SEEDS=write cargo test -p rackweave-cast --test corpus`.
#[test]
fn seeds_are_up_to_date() {
    let mut damaged = one_file(40, Some(5), b"bytes");
    let place = damaged.len() - 60;
    damaged[place] ^= 1;
    let question = GroupMessage { answer: false, nonce: 7, name: "blue" };
    let answer = GroupMessage { answer: true, ..question };
    let (mut long, keyed) = (question.encode(None), question.encode(Some(&[7; 32])));
    long[10] = 255;
    let entries = [(header(Some(5)), Some([3; 32]))];
    let others = others().map(|header| (header, None));
    let entries = entries.into_iter().chain(others);
    let entries = entries.map(|(header, hash)| ManifestEntry { header, hash }).collect();
    let purpose = Purpose { dry_run: true, checksum: true, itemize: true, delete: Delete::Now };
    let protected = Protected { patterns: vec!["*.o".into()], paths: vec![b"a/link".to_vec()] };
    let manifest = Manifest { purpose, entries, protected }.encode().expect("it is short");
    let all = [
        ("manifest", manifest),
        ("chunk", one_file(60, Some(5), b"bytes")),
        ("pipe", one_file(200, None, b"some bytes of a pipe")),
        ("digest", with_digest(one_file(60, Some(5), b"bytes"))),
        ("damaged", damaged),
        ("wrong-length", one_file(9, Some(6), b"bytes")),
        ("hole", with_hole(b"bytes")),
        ("link", with_link()),
    ];
    let groups = [
        ("question", question.encode(None)),
        ("answer", answer.encode(None)),
        ("wrong-length", long),
        ("keyed", keyed),
    ];
    let streams = all.map(|(name, bytes)| ("decode_cast", name, bytes));
    let groups = groups.map(|(name, bytes)| ("decode_group", name, bytes));
    let invitations = invitation_seeds().map(|(name, bytes)| ("decode_invitation", name, bytes));
    for (target, name, bytes) in streams.into_iter().chain(groups).chain(invitations) {
        let path = corpus(target).join(name);
        if std::env::var_os("SEEDS").is_some_and(|value| value == "write") {
            fs::write(&path, &bytes).expect("the corpus can be written");
        }
        assert_eq!(fs::read(&path).ok(), Some(bytes), "{name}");
    }
}
