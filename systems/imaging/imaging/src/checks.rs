//! What must hold for any bytes of a peer: for the fuzz target `decode_imaging`, and the replay of its corpus. Not part of the interface.

use crate::frames::{CHUNK_HEADER, CHUNK_REPLY, ChunkHeader, ChunkReply, Frame};
use crate::multicast::Group;
use crate::status::{ClientStatus, Listed, MOST_PEERS};

/// First bytes that select what precedes a chunk, and its reply. Others are the kinds of frames.
const HEADER: u8 = 200;
const REPLY: u8 = 201;

/// Decodes any bytes as what the first byte selects. Returns whether they were that.
///
/// # Panics
/// If what was decoded has not the properties that others rely on.
#[must_use]
pub fn decode(bytes: &[u8]) -> bool {
    let Some((kind, bytes)) = bytes.split_first() else { return false };
    match *kind {
        HEADER => {
            let Ok(bytes) = <&[u8; CHUNK_HEADER]>::try_from(bytes) else { return false };
            let header = ChunkHeader::decode(bytes);
            assert!(header.is_none_or(|header| header.encode() == *bytes));
            header.is_some()
        }
        REPLY => {
            let Ok(bytes) = <&[u8; CHUNK_REPLY]>::try_from(bytes) else { return false };
            let reply = ChunkReply::decode(bytes);
            assert!(reply.is_none_or(|reply| reply.encode() == *bytes));
            reply.is_some()
        }
        kind => frame(kind, bytes),
    }
}

fn frame(kind: u8, bytes: &[u8]) -> bool {
    let Ok(frame) = Frame::decode(kind, bytes.to_vec()) else { return false };
    let encoded = frame.encode();
    assert_eq!(encoded[4], kind);
    match &frame {
        Frame::Refused(why) | Frame::Seen(why) => {
            assert!(!why.contains(rackweave_core::is_hidden));
            assert_eq!(Frame::decode(kind, encoded[5..].to_vec()).ok().as_ref(), Some(&frame));
        }
        _ => assert_eq!(&encoded[5..], bytes),
    }
    match &frame {
        Frame::Status(json) => status(json),
        Frame::Multicast { group, .. } => {
            let decoded = Group::decode(*group);
            assert!(decoded.is_none_or(|decoded| decoded.encode() == *group));
            decoded.is_some()
        }
        Frame::Images(json) => serde_json::from_slice::<Vec<Listed>>(json).is_ok(),
        _ => true,
    }
}

fn status(json: &[u8]) -> bool {
    let Ok(status) = serde_json::from_slice::<ClientStatus>(json) else { return false };
    for chunks in [0, 7, u32::MAX] {
        let safe = status.clone().sanitized(chunks);
        assert!(
            safe.written <= safe.have && safe.kept + safe.empty <= safe.have && safe.have <= chunks
        );
        assert!(safe.from.len() <= MOST_PEERS && safe.to.len() <= MOST_PEERS);
        assert!(
            !safe.failure.as_ref().is_some_and(|text| text.contains(rackweave_core::is_hidden))
        );
        assert!(!safe.phase.is_complete() || safe.written == chunks);
        let _ = safe.average_rate();
        assert_eq!(safe.clone().sanitized(chunks), safe);
        let again = serde_json::to_vec(&safe).ok().and_then(|it| serde_json::from_slice(&it).ok());
        assert_eq!(again.as_ref(), Some(&safe));
    }
    true
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::Ipv4Addr;
    use std::path::PathBuf;

    use super::*;
    use crate::frames::Terms;
    use crate::status::{Limit, Phase};

    /// Names and bytes.
    type Seeds = Vec<(&'static str, Vec<u8>)>;

    fn corpus() -> PathBuf {
        [env!("CARGO_MANIFEST_DIR"), "..", "..", "..", "fuzz", "corpus", "decode_imaging"]
            .iter()
            .collect()
    }

    fn of_frame(frame: &Frame) -> Vec<u8> {
        frame.encode()[4..].to_vec()
    }

    fn whole_status() -> ClientStatus {
        let peers = |chunks| [(Ipv4Addr::new(192, 0, 2, 1), chunks)].into();
        ClientStatus {
            phase: Phase::Fetching,
            chunks: 7,
            have: 5,
            kept: 1,
            empty: 1,
            written: 4,
            bytes: 1 << 40,
            receive_rate: 1_000_000,
            send_rate: 2_000_000,
            from: peers(4),
            to: peers(2),
            retries: 1,
            damaged: 1,
            refused: 1,
            unsent: 1,
            multicast: true,
            limit: Limit::Disk,
            failure: Some("the disk is full".to_owned()),
            elapsed_ms: 1234,
        }
    }

    /// Seeds that are decoded, and others.
    fn seeds() -> (Seeds, Seeds) {
        let header = ChunkHeader { image: 1, chunk: 2, len: 65_536 }.encode();
        let reply = ChunkReply { image: 1, chunk: 2, taken: false }.encode();
        let group = Group {
            address: Ipv4Addr::new(239, 255, 67, 23),
            port: 6724,
            server: Ipv4Addr::new(192, 0, 2, 1),
        };
        let manifest =
            of_frame(&Frame::Manifest { len: 1184, terms: Terms::default(), tag: [7; 16] });
        let json = serde_json::to_vec(&whole_status()).unwrap();
        let claims =
            br#"{"phase":"gone","have":4294967295,"written":9,"failure":"a\u001b[2J","later":[1]}"#;
        let listed = Listed {
            name: "debian-13".to_owned(),
            root: "00".repeat(32),
            chunks: 7,
            bytes: 7 << 20,
            stored: 7 << 19,
            signed: true,
        };
        let images = serde_json::to_vec(&[listed]).unwrap();
        let good = vec![
            ("open", of_frame(&Frame::Open(b"debian-13".to_vec()))),
            ("manifest", manifest.clone()),
            ("multicast", of_frame(&Frame::Multicast { group: group.encode(), tag: [9; 16] })),
            ("refused", of_frame(&Frame::Refused("there is no such image".to_owned()))),
            ("refused-control", [&[3][..], b"a\x1b[2J\xff"].concat()),
            ("status", of_frame(&Frame::Status(json.clone()))),
            ("status-claims", of_frame(&Frame::Status(claims.to_vec()))),
            ("seen", of_frame(&Frame::Seen(String::new()))),
            ("seen-why", of_frame(&Frame::Seen("it cannot connect".to_owned()))),
            ("ended", of_frame(&Frame::Ended)),
            ("list", of_frame(&Frame::List)),
            ("images", of_frame(&Frame::Images(images))),
            ("chunk", [&[HEADER][..], &header].concat()),
            ("reply", [&[REPLY][..], &reply].concat()),
        ];
        let mut reserved = [&[HEADER][..], &header].concat();
        reserved[16] = 1;
        let mut unknown = [&[REPLY][..], &reply].concat();
        unknown[9] = 2;
        let bad = vec![
            ("manifest-short", manifest[..20].to_vec()),
            ("status-cut", of_frame(&Frame::Status(json[..json.len() / 2].to_vec()))),
            ("kind-unknown", vec![99, 0]),
            ("chunk-reserved", reserved),
            ("reply-unknown", unknown),
        ];
        (good, bad)
    }

    /// If this fails, run `SEEDS=write cargo test -p rackweave-imaging checks`.
    #[test]
    fn seeds_are_up_to_date_and_decoded() {
        let (good, bad) = seeds();
        let all = good.iter().map(|it| (it, true)).chain(bad.iter().map(|it| (it, false)));
        for ((name, bytes), is_good) in all {
            let path = corpus().join(name);
            if std::env::var_os("SEEDS").is_some_and(|value| value == "write") {
                fs::write(&path, bytes).unwrap();
            }
            assert_eq!(fs::read(&path).ok().as_ref(), Some(bytes), "{name}");
            assert_eq!(decode(bytes), is_good, "{name}");
        }
    }

    #[test]
    fn the_corpus_is_replayed() {
        for entry in fs::read_dir(corpus()).unwrap() {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            let _ = decode(&fs::read(path).unwrap());
        }
    }

    /// Seeds that are cut, extended and damaged; the mutations are the same in each run.
    #[test]
    fn what_is_nearly_right() {
        let (good, _) = seeds();
        let mut random = 1_u64;
        let mut next = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize
        };
        let mut decoded = 0;
        for _ in 0..100_000 {
            let mut bytes = good[next() % good.len()].1.clone();
            for _ in 0..=next() % 3 {
                let at = next() % (bytes.len() + 1);
                match next() % 4 {
                    0 => bytes.truncate(at),
                    1 => bytes.insert(at, next() as u8),
                    2 => bytes.iter_mut().skip(at).take(4).for_each(|byte| *byte = b'9'),
                    _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (at & 7)),
                }
            }
            decoded += u32::from(decode(&bytes));
        }
        assert!(decoded > 10_000, "{decoded}");
    }
}
