use proptest::collection::vec;
use proptest::prelude::*;
use rackweave_core::HostId;

use super::*;

fn reasons() -> impl Strategy<Value = Reason> {
    prop_oneof![
        Just(Reason::Left),
        Just(Reason::Refused),
        Just(Reason::Busy),
        Just(Reason::Unknown),
        Just(Reason::Silent),
        Just(Reason::Damaged),
        Just(Reason::TooLate),
        Just(Reason::NoLabel),
        Just(Reason::Stalled),
        Just(Reason::Unresponsive),
        Just(Reason::Exists),
        Just(Reason::Full),
    ]
}

fn places() -> impl Strategy<Value = Place> {
    (any::<u16>(), 0..64_u8).prop_map(|(rack, port)| Place { rack, port })
}

fn statuses() -> impl Strategy<Value = Status> {
    let gaps = vec((any::<u64>(), 1..=u32::MAX, any::<u64>()), 0..=GAPS);
    let numbers = any::<(u16, u64, u64, u64, u32, u64)>();
    (numbers, 0..64_u8, gaps).prop_map(|(numbers, slowest, some)| {
        let (rack, who, have, seen, held_us, limit) = numbers;
        let mut gaps = [Gap::default(); GAPS];
        for (gap, (offset, len, who)) in gaps.iter_mut().zip(some) {
            *gap = Gap { offset, len, who };
        }
        Status { rack, who, have, slowest, seen, held_us, limit, gaps }
    })
}

pub(crate) fn bodies() -> impl Strategy<Value = Body> {
    prop_oneof![
        (any::<(u128, u16, bool)>(), places()).prop_map(|((stream, payload, via_agent), place)| {
            Body::Invite { stream, place, payload, via_agent }
        }),
        (any::<(u32, u128, u64, u64)>(), places()).prop_map(
            |((incarnation, stream, at, limit), place)| Body::Join {
                incarnation,
                stream,
                place,
                at,
                limit
            }
        ),
        statuses().prop_map(Body::Status),
        any::<u64>().prop_map(|length| Body::End { length }),
        places().prop_map(|place| Body::Complete { place }),
        reasons().prop_map(|reason| Body::Bye { reason }),
        any::<bool>().prop_map(|detached| Body::Mode { detached }),
        (places(), any::<u32>()).prop_map(|(place, number)| Body::Ping { place, number }),
        any::<u32>().prop_map(|number| Body::Pong { number }),
        any::<(u16, u8, u32)>().prop_map(|(rack, agent, epoch)| Body::SetActive {
            rack,
            agent,
            epoch
        }),
        any::<(u16, u64, u32)>().prop_map(|(rack, ports, version)| Body::Sync {
            rack,
            ports,
            version
        }),
        (places(), any::<u32>()).prop_map(|(place, version)| Body::SyncDone { place, version }),
        Just(Body::Create),
        any::<(u32, bool, u32)>().prop_map(|(host, joins, change)| Body::Member {
            host: HostId(host),
            joins,
            change
        }),
        Just(Body::Destroy),
        Just(Body::Renew),
        Just(Body::Preparing),
        any::<(u16, bool, u32)>().prop_map(|(rack, agent, epoch)| Body::Served {
            rack,
            agent,
            epoch
        }),
        any::<(u128, u64, u32, u32)>().prop_map(|(pilot, ports, change, timeout_us)| {
            Body::Labels { pilot: Label(pilot), ports, change, timeout_us }
        }),
        (reasons(), any::<u32>()).prop_map(|(reason, change)| Body::Denied { reason, change }),
    ]
}

fn controls() -> impl Strategy<Value = Header> {
    let to = prop_oneof![any::<u32>().prop_map(HostId), Just(TO_AGENT)];
    (any::<(u32, u32)>(), to, bodies()).prop_map(|((from, session), to, body)| {
        Header::Control(Control { from: HostId(from), to, session: Session(session), body })
    })
}

fn labelled() -> impl Strategy<Value = Labelled> {
    prop_oneof![Just(Labelled::Pilot), Just(Labelled::Rack), Just(Labelled::Host)]
}

/// A data packet, the number of words of its label, and its payload.
fn data() -> impl Strategy<Value = (Data, u8, Vec<u8>)> {
    let numbers = any::<(u128, u32, u64, bool, bool)>();
    let parity = any::<Option<(u8, u8, u8, u16)>>();
    (numbers, labelled(), parity, 1..=4_u8, vec(any::<u8>(), 0..300)).prop_map(
        |(numbers, labelled, parity, words, payload)| {
            let (label, session, offset, repair, end) = numbers;
            let parity =
                parity.map(|(index, data, parity, last)| Parity { index, data, parity, last });
            let data = Data {
                labelled,
                label: Label(label >> (128 - 32 * u32::from(words))),
                session: Session(session),
                offset: offset >> 16,
                len: payload.len() as u16,
                repair,
                end,
                parity,
            };
            (data, words, payload)
        },
    )
}

fn keys() -> impl Strategy<Value = Option<Key>> {
    any::<Option<[u8; 32]>>().prop_map(|bytes| bytes.map(Key::new))
}

fn packet(data: Data, words: u8, key: Option<&Key>, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (a, b) = payload.split_at(payload.len() / 3);
    encode_header(&Header::Data(data), words, key, &[a, b], &mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

proptest! {
    #![proptest_config(rackweave_testing::cases(500))]

    #[test]
    fn data_comes_back((data, words, payload) in data(), key in keys()) {
        let bytes = packet(data, words, key.as_ref(), &payload);
        let header = Header::Data(data);
        let front = header_bytes(&header, words, key.is_some()) as usize;
        prop_assert_eq!(bytes.len(), front + payload.len());
        let read = decode(&bytes, key.as_ref()).expect("it is as it was written");
        prop_assert_eq!((read.header, read.payload), (header, front..bytes.len()));
        let seen = glance(&bytes, None).expect("it is as it was written");
        prop_assert_eq!((seen.header, seen.header_end, seen.verified), (header, front, false));
    }

    #[test]
    fn control_comes_back(header in controls(), key in keys()) {
        let mut bytes = Vec::new();
        encode_header(&header, 3, key.as_ref(), &[], &mut bytes);
        prop_assert_eq!(bytes.len(), header_bytes(&header, 3, key.is_some()) as usize);
        let read = decode(&bytes, key.as_ref()).expect("it is as it was written");
        prop_assert_eq!((read.header, read.payload.len()), (header, 0));
        let seen = glance(&bytes, key.as_ref()).expect("it is as it was written");
        prop_assert_eq!((seen.header, seen.verified), (header, true));
        let other = Key::new([7; 32]);
        let seen = glance(&bytes, Some(&other)).expect("it is as it was written");
        prop_assert!(!seen.verified);
    }

    #[test]
    fn a_relay_copies_the_check(
        (data, words, payload) in data(), key in keys(), other in any::<u32>(), to in labelled()
    ) {
        let bytes = packet(data, words, key.as_ref(), &payload);
        let read = decode(&bytes, key.as_ref()).expect("it is as it was written");
        let relayed = Data { label: Label(u128::from(other)), labelled: to, ..data };
        // The same with a label of another length.
        let mut again = Vec::new();
        encode_relayed(&relayed, 5 - words, read.check, &mut again);
        again.extend_from_slice(&bytes[read.payload.clone()]);
        let there = decode(&again, key.as_ref()).expect("kind and label are not checked");
        prop_assert_eq!(there.header, Header::Data(relayed));
        let mut in_place = bytes.clone();
        prop_assert!(relabel(&mut in_place, to, Label(u128::from(other))));
        let there = decode(&in_place, key.as_ref()).expect("kind and label are not checked");
        prop_assert_eq!((there.header, there.payload), (Header::Data(relayed), read.payload));
    }

    #[test]
    fn a_flipped_bit_is_found(
        (data, words, payload) in data(), control in controls(), key in keys(), at: prop::sample::Index
    ) {
        let mut bytes = packet(data, words, key.as_ref(), &payload);
        let bit = at.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let decoded = decode(&bytes, key.as_ref()).map(|read| read.header);
        if let Ok(Header::Data(read)) = decoded {
            // Only kind and label may have changed.
            let same = Data { labelled: data.labelled, label: data.label, ..read };
            prop_assert_eq!(same, data);
            prop_assert!(bit < 8 || (96..96 + 32 * usize::from(words)).contains(&bit));
        }
        let mut bytes = Vec::new();
        encode_header(&control, 1, key.as_ref(), &[], &mut bytes);
        let bit = at.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(decode(&bytes, key.as_ref()).is_err());
    }

    #[test]
    fn sealed_data_comes_back_and_can_be_relayed(
        (data, words, payload) in data(), counter in 0..1_u64 << 48, tag: [u8; 16], to in labelled(), label: u32
    ) {
        let mut bytes = Vec::new();
        encode_relayed(&data, words, Check::Sealed { counter, tag }, &mut bytes);
        let front = bytes.len();
        prop_assert_eq!(front as u32, sealed_header_bytes(&data, words));
        bytes.extend_from_slice(&payload);
        let key = Key::new([1; 32]);
        prop_assert_eq!(decode(&bytes, None), Err(crate::Malformed::NoKey));
        let read = decode(&bytes, Some(&key)).expect("it is as it was written");
        prop_assert_eq!(read.header, Header::Data(data));
        prop_assert_eq!((read.check, read.payload), (Check::Sealed { counter, tag }, front..bytes.len()));
        prop_assert_eq!(glance(&bytes, None).expect("a switch can read it").header_end, front);
        // What an agent changes is not associated; everything else of the header is.
        let mut relayed = bytes.clone();
        prop_assert!(relabel(&mut relayed, to, Label(u128::from(label))));
        let Header::Data(there) = decode(&relayed, Some(&key)).expect("only the label differs").header else {
            return Err(TestCaseError::fail("it was data"));
        };
        prop_assert_eq!(associated(&there), associated(&data));
        let others = [
            Data { session: Session(!data.session.0), ..data },
            Data { offset: data.offset ^ 1, ..data },
            Data { repair: !data.repair, ..data },
            Data { end: !data.end, ..data },
            Data { parity: Some(Parity { index: 0, data: 1, parity: 1, last: 7 }), ..data },
        ];
        for other in others {
            prop_assert!(other == data || associated(&other) != associated(&data));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(mut bytes in vec(any::<u8>(), 0..120), kind in 0..12_u8) {
        for _ in 0..2 {
            let _ = decode(&bytes, None);
            let _ = decode(&bytes, Some(&Key::new([0; 32])));
            let _ = glance(&bytes, None);
            let _ = relabel(&mut bytes, Labelled::Rack, Label(1));
            if let [first, flags, ..] = bytes.as_mut_slice() {
                (*first, *flags) = (0xc0 | kind, *flags & 0xf0 | 1);
            }
        }
    }
}

#[test]
fn twenty_bytes_before_the_payload() {
    let data = Data {
        labelled: Labelled::Rack,
        label: Label(0x54),
        session: Session(0x0a0b_0c0d),
        offset: 0x1122_3344_5566,
        len: 3,
        repair: true,
        end: false,
        parity: None,
    };
    let bytes = packet(data, 1, None, b"abc");
    assert_eq!(bytes[..16], *b"\xc2\x41\x11\x22\x33\x44\x55\x66\x0a\x0b\x0c\x0d\0\0\0\x54");
    assert_eq!(bytes.len(), 23);
    for words in 1..=4 {
        assert_eq!(header_bytes(&Header::Data(data), words, false), 16 + 4 * u32::from(words));
    }
    assert_eq!(
        bytes[16..20],
        crc32c::crc32c(b"\x40\x11\x22\x33\x44\x55\x66\x0a\x0b\x0c\x0dabc").to_be_bytes()
    );
}

#[test]
fn the_check_is_crc_32c_whatever_the_pieces() {
    let bytes: Vec<u8> = (0..9000_u32).map(|i| (i * 7 + i / 251) as u8).collect();
    for len in [0, 1, 15, 16, 17, 255, 256, 1400, 1422, 4096, 8999, 9000] {
        for cut in [0, 1, 11, 16, 300, len] {
            let (front, rest) = bytes[..len].split_at(cut.min(len));
            let joined = crate::overlay::crc32c(crate::overlay::crc32c(0, front), rest);
            assert_eq!(joined, crc32c::crc32c(&bytes[..len]), "{len} bytes, cut at {cut}");
        }
    }
}

#[test]
fn fields_that_switches_read_are_at_their_documented_offsets() {
    let body = Body::SetActive { rack: 0x0102, agent: 7, epoch: 9 };
    let control = Control { from: HostId(3), to: HostId(4), session: Session(0), body };
    let mut bytes = Vec::new();
    encode_header(&Header::Control(control), 1, None, &[], &mut bytes);
    assert_eq!((bytes[0], bytes[28]), (0xc6, 10));
    assert_eq!(bytes[29..36], [1, 2, 7, 0, 0, 0, 9]);
}

#[test]
fn a_key_refuses_what_was_made_without() {
    let control =
        Control { from: HostId(3), to: HostId(4), session: Session(0), body: Body::Create };
    let (one, two) = (Key::derive(b"one"), Key::derive(b"two"));
    let (mut plain, mut keyed) = (Vec::new(), Vec::new());
    encode_header(&Header::Control(control), 1, None, &[], &mut plain);
    encode_header(&Header::Control(control), 1, Some(&one), &[], &mut keyed);
    assert_eq!(decode(&plain, Some(&one)), Err(crate::Malformed::NotKeyed));
    assert_eq!(decode(&keyed, None), Err(crate::Malformed::NoKey));
    assert!(matches!(decode(&keyed, Some(&two)), Err(crate::Malformed::Damaged(_))));
    assert!(decode(&keyed, Some(&one)).is_ok());
    assert!(!glance(&keyed, None).unwrap().verified);
}
